/* spare.c - rounds that are there from the beginning, for what must not fail for lack of memory. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "round.h"

/* As new again. Nothing of it is late. */
static void renew(dli_round_t *round) {
    for (size_t i = 0; i < round->redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        for (size_t j = 0; j < round->replies_max; j++) {
            freeReplyObject(part->replies[j]);
            part->replies[j] = NULL;
        }
        dli_commands_free(&part->commands);
        part->state = DLI_PART_UNASKED;
        part->sent_ns = 0;
        part->with_source = part->is_left = false;
    }
}

bool dli_spare_keep(dli_redlock_t *redlock, dli_round_t **spare, const dli_question_t *question,
                    size_t data_size) {
    pthread_mutex_lock(&redlock->mutex);
    if (*spare == NULL) {
        *spare = dli_round_new(redlock, question, data_size, 1);
    }
    bool is_there = *spare != NULL;
    pthread_mutex_unlock(&redlock->mutex);
    return is_there;
}

dli_round_t *dli_spare_take(dli_redlock_t *redlock, dli_round_t **spare) {
    pthread_mutex_lock(&redlock->mutex);
    dli_round_t *round = *spare;
    *spare = NULL;
    pthread_mutex_unlock(&redlock->mutex);
    if (round != NULL) {
        round->is_spare = true;
    }
    return round;
}

void dli_spare_drop(dli_round_t **spare, dli_round_t *round) {
    if (round->is_spare && dli_round_mask(round, DLI_PART_LATE) == 0) {
        dli_redlock_t *redlock = round->redlock;
        renew(round);
        round->is_spare = false;
        pthread_mutex_lock(&redlock->mutex);
        if (*spare == NULL) {
            *spare = round;
            round = NULL;
        }
        pthread_mutex_unlock(&redlock->mutex);
    }
    dli_round_drop(round);
}
