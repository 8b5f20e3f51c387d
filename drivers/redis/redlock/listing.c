/* listing.c - which locks are held, by what each of the servers has. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "round.h"

/* ---- one node's list -------------------------------------------------------------------------------- */

typedef struct entry {
    char name[DL_NAME_MAX + 1];
    size_t node;
    dl_lock_info_t info;
} entry_t;

/* What all nodes have listed. */
typedef struct entries {
    entry_t *at;
    size_t n, cap;
} entries_t;

typedef struct sheet {
    entries_t *entries;
    dli_node_t *node;
    dli_redis_t *alone;
    dli_exchange_t *listing;
    bool out_of_memory;
} sheet_t;

static int note(void *arg, const char *name, const dl_lock_info_t *info) {
    sheet_t *sheet = arg;
    entries_t *all = sheet->entries;
    size_t len = strlen(name);
    if (all->n == all->cap) {
        size_t cap = all->cap > 0 ? 2 * all->cap : 64;
        entry_t *at = realloc(all->at, cap * sizeof *at);
        if (at == NULL) {
            sheet->out_of_memory = true;
            return 1;
        }
        *all = (entries_t){at, all->n, cap};
    }
    entry_t *entry = &all->at[all->n++];
    memcpy(entry->name, name, len + 1);
    entry->node = sheet->node->index;
    entry->info = *info;
    return 0;
}

static int compare(const void *a, const void *b) {
    const entry_t *x = a, *y = b;
    int by_name = strcmp(x->name, y->name);
    return by_name != 0 ? by_name : (x->node > y->node) - (x->node < y->node);
}

/* NULL: out of memory. One that hangs must not take all the time that the others need. */
static dli_exchange_t *begin(sheet_t *sheet, entries_t *entries, dli_node_t *node, dli_listed_t listed) {
    dl_error_t err;
    sheet->entries = entries;
    sheet->node = node;
    listed.arg = sheet;
    listed.first_ns = dli_round_until(node->redlock, listed.deadline_ns);
    bool is_open = dli_node_open_alone(node, &sheet->alone, &err) == DL_OK;
    return sheet->listing = is_open ? dli_listing_begin(sheet->alone, &listed) : NULL;
}

static void finish(sheet_t *sheet, dl_error_t *said) {
    said->status = dli_listing_end(sheet->listing, said);
    dli_redis_close_alone(sheet->alone);
    if (sheet->out_of_memory) {
        (void)dl_driver_fail(said, DL_ENOMEM, 0, "out of memory");
    }
}

/* All of them at once. */
static void list_all(dli_redlock_t *redlock, const dli_listed_t *listed, entries_t *entries,
                     dl_error_t said[]) {
    sheet_t sheets[DLI_NODES_MAX] = {0};
    dli_exchange_t *exchanges[DLI_NODES_MAX];
    size_t n = 0;
    for (size_t i = 0; i < redlock->n; i++) {
        exchanges[n] = begin(&sheets[i], entries, &redlock->nodes[i], *listed);
        n += exchanges[n] != NULL;
    }
    dli_exchanges_run(exchanges, n);
    for (size_t i = 0; i < redlock->n; i++) {
        finish(&sheets[i], &said[i]);
    }
}

/* ---- all of them ------------------------------------------------------------------------------------ */

/* Each lock once, in the order of names, by what the nodes have of it that listed all. */
static void report(const dli_redlock_t *redlock, const entries_t *entries, const dl_error_t said[],
                   dl_list_fn fn, void *arg) {
    size_t unanswered = 0;
    int has_enough = 0;
    for (size_t i = 0; i < redlock->n; i++) {
        unanswered += said[i].status != DL_OK;
    }
    for (size_t i = 0; i < entries->n && has_enough == 0;) {
        const char *name = entries->at[i].name;
        dl_lock_info_t seen[DLI_NODES_MAX], info = DL_LOCK_INFO_INIT;
        size_t n = 0;
        for (; i < entries->n && strcmp(entries->at[i].name, name) == 0; i++) {
            if (said[entries->at[i].node].status == DL_OK) {
                seen[n++] = entries->at[i].info;
            }
        }
        dli_tally_holder(seen, n, unanswered, redlock->quorum, &info);
        has_enough = info.held != 0 ? fn(arg, name, &info) : 0;
    }
}

dl_status_t dli_redlock_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                             uint64_t deadline_ns, dl_error_t *err) {
    dli_redlock_t *redlock = state;
    const dli_listed_t listed = {
        .prefix = prefix, .prefix_len = prefix_len, .fn = note, .deadline_ns = deadline_ns};
    dl_error_t said[DLI_NODES_MAX];
    entries_t entries = {0};
    list_all(redlock, &listed, &entries, said);
    dl_status_t status = dli_nodes_need_majority(redlock, said, err);
    if (status == DL_OK && entries.n > 0) {
        qsort(entries.at, entries.n, sizeof *entries.at, compare);
        report(redlock, &entries, said, fn, arg);
    }
    free(entries.at);
    return status;
}
