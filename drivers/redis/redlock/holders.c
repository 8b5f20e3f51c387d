/* holders.c - who holds a lock, by what several servers say of it; pure functions. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "holders.h"

#include <stdlib.h>
#include <string.h>

void dli_holders_add(dli_holders_t *holders, const dl_lock_info_t *info) {
    size_t i = 0;
    while (i < holders->n && !(holders->at[i].info.hold_id == info->hold_id &&
                               strcmp(holders->at[i].info.owner, info->owner) == 0)) {
        i++;
    }
    dli_holder_t *holder = &holders->at[i];
    if (i == holders->n) {
        holders->n++;
        holder->info = *info;
        holder->nodes = 0;
    }
    if (holder->info.client[0] == '\0') {
        memcpy(holder->info.client, info->client, sizeof info->client);
    }
    holder->left_ms[holder->nodes++] = info->remaining_ms < 0 ? INT64_MAX : info->remaining_ms;
}

const dli_holder_t *dli_holders_find(const dli_holders_t *holders, size_t unanswered, size_t quorum) {
    const dli_holder_t *most = NULL;
    for (size_t i = 0; i < holders->n; i++) {
        if (most == NULL || holders->at[i].nodes > most->nodes) {
            most = &holders->at[i];
        }
    }
    return most != NULL && most->nodes + unanswered >= quorum ? most : NULL;
}

static int longest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

void dli_holders_tell(const dli_holders_t *holders, size_t unanswered, size_t quorum, dl_lock_info_t *info) {
    const dli_holder_t *holder = dli_holders_find(holders, unanswered, quorum);
    size_t size = info->size;
    *info = (dl_lock_info_t){.remaining_ms = -1};
    if (holder != NULL) {
        int64_t left_ms[DLI_NODES_MAX];
        memcpy(left_ms, holder->left_ms, holder->nodes * sizeof left_ms[0]);
        qsort(left_ms, holder->nodes, sizeof left_ms[0], longest_first);
        *info = holder->info;
        int64_t last_ms = left_ms[holder->nodes < quorum ? holder->nodes - 1 : quorum - 1];
        info->remaining_ms = last_ms == INT64_MAX ? -1 : last_ms;
    }
    info->size = size;
}
