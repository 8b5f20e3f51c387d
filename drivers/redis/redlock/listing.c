/* listing.c - which locks are held, by what each of the servers has. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "holders.h"
#include "options.h"
#include "round.h"

/* ---- one node's list -------------------------------------------------------------------------------- */

typedef struct entry {
    char name[DL_NAME_MAX + 1];
    dl_lock_info_t info;
} entry_t;

typedef struct sheet {
    dli_node_t *node;
    dli_redis_t *alone;
    dli_exchange_t *listing;
    entry_t *entries;
    size_t n, cap;
    bool out_of_memory;
} sheet_t;

static int note(void *arg, const char *name, const dl_lock_info_t *info) {
    sheet_t *sheet = arg;
    size_t len = strlen(name);
    if (dli_redlock_is_own_key(sheet->node->redlock, name, len)) {
        return 0;
    }
    if (sheet->n == sheet->cap) {
        size_t cap = sheet->cap > 0 ? 2 * sheet->cap : 64;
        entry_t *entries = realloc(sheet->entries, cap * sizeof *entries);
        if (entries == NULL) {
            sheet->out_of_memory = true;
            return 1;
        }
        sheet->entries = entries;
        sheet->cap = cap;
    }
    entry_t *entry = &sheet->entries[sheet->n++];
    memcpy(entry->name, name, len + 1);
    entry->info = *info;
    return 0;
}

static int compare(const void *a, const void *b) {
    const entry_t *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* NULL: out of memory. One that hangs must not take all the time that the others need. */
static dli_exchange_t *begin(sheet_t *sheet, dli_node_t *node, dli_listed_t listed) {
    dl_error_t err;
    sheet->node = node;
    listed.arg = sheet;
    listed.first_ns = dli_round_until(node->redlock, listed.deadline_ns);
    bool is_open = dli_node_open_alone(node, &sheet->alone, &err) == DL_OK;
    return sheet->listing = is_open ? dli_listing_begin(sheet->alone, &listed) : NULL;
}

static dl_status_t finish(sheet_t *sheet, dl_error_t *err) {
    dl_status_t status = dli_listing_end(sheet->listing, err);
    dli_redis_close_alone(sheet->alone);
    if (sheet->n > 0) {
        qsort(sheet->entries, sheet->n, sizeof *sheet->entries, compare);
    }
    return sheet->out_of_memory ? dl_driver_fail(err, DL_ENOMEM, 0, "out of memory") : status;
}

/* All of them at once. */
static void fill_sheets(dli_redlock_t *redlock, sheet_t *sheets, const dli_listed_t *listed,
                        dli_verdicts_t *verdicts) {
    dli_exchange_t *exchanges[DLI_NODES_MAX];
    size_t n = 0;
    for (size_t i = 0; i < redlock->n; i++) {
        exchanges[n] = begin(&sheets[i], &redlock->nodes[i], *listed);
        n += exchanges[n] != NULL;
    }
    dli_exchanges_run(exchanges, n);
    for (size_t i = 0; i < redlock->n; i++) {
        verdicts->statuses[i] = finish(&sheets[i], &verdicts->errors[i]);
        verdicts->good |= verdicts->statuses[i] == DL_OK ? 1u << i : 0;
    }
}

/* ---- all of them ------------------------------------------------------------------------------------ */

/* The first name that is left on any sheet; NULL: none. */
static const char *next_name(const dli_redlock_t *redlock, const sheet_t *sheets, const size_t *at,
                             uint32_t nodes) {
    const char *first = NULL;
    for (size_t i = 0; i < redlock->n; i++) {
        if ((nodes >> i & 1) != 0 && at[i] < sheets[i].n &&
            (first == NULL || strcmp(sheets[i].entries[at[i]].name, first) < 0)) {
            first = sheets[i].entries[at[i]].name;
        }
    }
    return first;
}

/* Goes through the sheets side by side, in the order of names: each lock once. */
static void merge(const dli_redlock_t *redlock, const sheet_t *sheets, uint32_t nodes, dl_list_fn fn,
                  void *arg) {
    size_t at[DLI_NODES_MAX] = {0}, unanswered = redlock->n - dli_nodes_count(nodes);
    dli_holders_t holders;
    const char *name;
    int has_enough = 0;
    while (has_enough == 0 && (name = next_name(redlock, sheets, at, nodes)) != NULL) {
        dl_lock_info_t info = DL_LOCK_INFO_INIT;
        holders.n = 0;
        for (size_t i = 0; i < redlock->n; i++) {
            if ((nodes >> i & 1) != 0 && at[i] < sheets[i].n &&
                strcmp(sheets[i].entries[at[i]].name, name) == 0) {
                dli_holders_add(&holders, &sheets[i].entries[at[i]++].info);
            }
        }
        dli_holders_tell(&holders, unanswered, redlock->quorum, &info);
        has_enough = info.held != 0 ? fn(arg, name, &info) : 0;
    }
}

dl_status_t dli_redlock_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                             uint64_t deadline_ns, dl_error_t *err) {
    dli_redlock_t *redlock = state;
    const dli_backend_env_t *core = redlock->core;
    const dli_listed_t listed = {
        .prefix = prefix, .prefix_len = prefix_len, .fn = note, .deadline_ns = deadline_ns};
    dli_verdicts_t verdicts = {0};
    sheet_t *sheets = calloc(redlock->n, sizeof *sheets);
    if (sheets == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    fill_sheets(redlock, sheets, &listed, &verdicts);
    core->lock(core->core);
    for (size_t i = 0; i < redlock->n; i++) {
        dli_node_tell(&redlock->nodes[i], verdicts.statuses[i], &verdicts.errors[i]);
    }
    dli_news_tell(&redlock->news, redlock->env, core);
    core->unlock(core->core);
    dl_status_t status = dli_nodes_need_majority(redlock, &verdicts, err);
    if (status == DL_OK) {
        merge(redlock, sheets, verdicts.good, fn, arg);
    }
    for (size_t i = 0; i < redlock->n; i++) {
        free(sheets[i].entries);
    }
    free(sheets);
    return status;
}
