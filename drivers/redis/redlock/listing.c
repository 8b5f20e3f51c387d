/* listing.c - which locks are held, by what each of the servers has. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "holders.h"
#include "options.h"
#include "round.h"

/* ---- who is there ----------------------------------------------------------------------------------- */

static void encode_look(const dli_round_t *round, const dli_node_t *node, const char *run_id,
                        bool with_source, dli_commands_t *commands) {
    const dli_slice_t argv[] = {dli_slice(node->redis.token_key)};
    dli_script_call_t call = {&dli_script_string_inspect, 1, 1, argv};
    (void)round;
    (void)run_id;
    dli_script_encode(commands, &call, with_source);
}

static const dli_question_t looking = {
    .what = "a sign of life", .lane = DLI_LANE_CALLS, .intent = DLI_READ, .encode = encode_look};

static bool never_settled(const dli_round_t *round, const void *arg) {
    (void)round;
    (void)arg;
    return false;
}

/* The nodes that answer within node_timeout: one that hangs must not take all the time that the others need.
 */
static dl_status_t look(dli_redlock_t *redlock, uint64_t deadline_ns, dli_verdicts_t *verdicts,
                        dl_error_t *err) {
    dli_round_t *round = dli_round_new(redlock, &looking, 0, 1);
    if (round == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    (void)dli_round_run(round, dli_nodes_all(redlock), deadline_ns, NULL, never_settled, NULL);
    for (size_t i = 0; i < redlock->n; i++) {
        const dli_part_t *part = &round->parts[i];
        verdicts->statuses[i] = part->exchange.status;
        verdicts->errors[i] = part->err;
        verdicts->good |= part->exchange.status == DL_OK ? 1u << i : 0;
        dli_node_tell(&redlock->nodes[i], part->exchange.status, &part->err);
    }
    dli_round_drop(round);
    return dli_nodes_need_majority(redlock, verdicts, err);
}

/* ---- one node's list -------------------------------------------------------------------------------- */

typedef struct entry {
    char name[DL_NAME_MAX + 1];
    dl_lock_info_t info;
} entry_t;

typedef struct sheet {
    dli_node_t *node;
    const char *prefix;
    size_t prefix_len;
    uint64_t deadline_ns;
    entry_t *entries;
    size_t n, cap;
    bool out_of_memory;
    bool has_thread;
    pthread_t thread;
    dl_status_t status;
    dl_error_t err;
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

static void *fill_sheet(void *arg) {
    sheet_t *sheet = arg;
    sheet->status = dli_redis_list(&sheet->node->redis, sheet->prefix, sheet->prefix_len, note, sheet,
                                   sheet->deadline_ns, &sheet->err);
    if (sheet->out_of_memory) {
        sheet->status = dl_driver_fail(&sheet->err, DL_ENOMEM, 0, "out of memory");
    }
    if (sheet->n > 0) {
        qsort(sheet->entries, sheet->n, sizeof *sheet->entries, compare);
    }
    return NULL;
}

/* Side by side where there are threads to be had, so that they share the time instead of dividing it. */
static void fill_all(const dli_redlock_t *redlock, sheet_t *sheets, uint32_t nodes) {
    for (size_t i = 0; i < redlock->n; i++) {
        sheet_t *sheet = &sheets[i];
        sheet->has_thread = (nodes >> i & 1) != 0 && i + 1 < redlock->n &&
                            redlock->env->thread_start(&sheet->thread, fill_sheet, sheet) == 0;
        if ((nodes >> i & 1) != 0 && !sheet->has_thread) {
            (void)fill_sheet(sheet);
        }
    }
    for (size_t i = 0; i < redlock->n; i++) {
        if (sheets[i].has_thread) {
            redlock->env->thread_join(sheets[i].thread);
        }
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
    dli_verdicts_t verdicts = {0};
    dl_status_t status = look(redlock, deadline_ns, &verdicts, err);
    if (status != DL_OK) {
        return status;
    }
    sheet_t *sheets = calloc(redlock->n, sizeof *sheets);
    if (sheets == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    for (size_t i = 0; i < redlock->n; i++) {
        sheets[i] = (sheet_t){.node = &redlock->nodes[i],
                              .prefix = prefix,
                              .prefix_len = prefix_len,
                              .deadline_ns = deadline_ns};
    }
    fill_all(redlock, sheets, verdicts.good);
    for (size_t i = 0; i < redlock->n; i++) {
        if ((verdicts.good >> i & 1) != 0 && sheets[i].status != DL_OK) {
            verdicts.good &= ~(1u << i);
            verdicts.statuses[i] = sheets[i].status;
            verdicts.errors[i] = sheets[i].err;
        }
    }
    status = dli_nodes_need_majority(redlock, &verdicts, err);
    if (status == DL_OK) {
        merge(redlock, sheets, verdicts.good, fn, arg);
    }
    for (size_t i = 0; i < redlock->n; i++) {
        free(sheets[i].entries);
    }
    free(sheets);
    return status;
}
