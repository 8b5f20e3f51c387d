/* condemned.c - connections given up with a claim on its way, which have to be killed on the server. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "condemned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dli_condemned_init(dli_condemned_t *condemned) {
    memset(condemned, 0, sizeof *condemned);
    pthread_mutex_init(&condemned->mutex, NULL);
}

void dli_condemned_free(dli_condemned_t *condemned) {
    pthread_mutex_destroy(&condemned->mutex);
}

/* With the mutex held: is this the server whose connections are listed? */
static bool is_same(const dli_condemned_t *condemned, const dli_facts_t *facts) {
    return facts->run_id[0] != '\0' && strcmp(condemned->run_id, facts->run_id) == 0;
}

void dli_condemned_meet(dli_condemned_t *condemned, const dli_facts_t *facts) {
    pthread_mutex_lock(&condemned->mutex);
    if (facts->run_id[0] != '\0' && !is_same(condemned, facts)) {
        snprintf(condemned->run_id, sizeof condemned->run_id, "%s", facts->run_id);
        condemned->refused = false;
        condemned->count = 0;
    }
    pthread_mutex_unlock(&condemned->mutex);
}

/* With the mutex held. */
static void remove_at(dli_condemned_t *condemned, size_t at) {
    size_t behind = condemned->count - at - 1;
    memmove(&condemned->ids[at], &condemned->ids[at + 1], behind * sizeof condemned->ids[0]);
    condemned->count--;
}

void dli_condemned_add(dli_condemned_t *condemned, const dli_facts_t *facts) {
    pthread_mutex_lock(&condemned->mutex);
    if (is_same(condemned, facts) && !condemned->refused) {
        if (condemned->count == DLI_CONDEMNED_MAX) {
            remove_at(condemned, 0);
        }
        condemned->ids[condemned->count] = facts->client_id;
        condemned->count++;
    }
    pthread_mutex_unlock(&condemned->mutex);
}

static void encode(dli_kills_t *kills) {
    char number[24];
    for (size_t i = 0; i < kills->count; i++) {
        dli_slice_t argv[] = {dli_slice("CLIENT"), dli_slice("KILL"), dli_slice("ID"),
                              dli_slice_int(number, kills->ids[i])};
        dli_commands_add(&kills->commands, 4, argv);
    }
}

dl_status_t dli_condemned_kills(dli_condemned_t *condemned, const dli_facts_t *facts, dli_kills_t **kills,
                                dl_error_t *err) {
    *kills = NULL;
    if (atomic_load(&condemned->count) == 0) {
        return DL_OK;
    }
    dli_kills_t *new_kills = calloc(1, sizeof *new_kills + sizeof condemned->ids);
    if (new_kills == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    pthread_mutex_lock(&condemned->mutex);
    if (is_same(condemned, facts)) {
        new_kills->count = condemned->count;
        memcpy(new_kills->ids, condemned->ids, new_kills->count * sizeof condemned->ids[0]);
    }
    pthread_mutex_unlock(&condemned->mutex);
    encode(new_kills);
    if (new_kills->commands.out_of_memory) {
        dli_kills_free(new_kills);
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    if (new_kills->count == 0) {
        dli_kills_free(new_kills);
        return DL_OK;
    }
    *kills = new_kills;
    return DL_OK;
}

void dli_kills_free(dli_kills_t *kills) {
    if (kills != NULL) {
        dli_commands_free(&kills->commands);
        free(kills);
    }
}

bool dli_condemned_answer(dli_condemned_t *condemned, const dli_facts_t *facts, dli_kills_t *kills,
                          const redisReply *reply) {
    bool newly_refused = false;
    int64_t id = kills->ids[kills->answered++];
    bool killed = reply->type == REDIS_REPLY_INTEGER; /* 1, or 0 when it was gone already */
    /* Other errors, such as BUSY, are of the moment: the next release tries again. */
    bool refused = dli_reply_is_error(reply, "NOPERM") || dli_reply_is_error(reply, "ERR");
    pthread_mutex_lock(&condemned->mutex);
    if (is_same(condemned, facts)) {
        for (size_t i = 0; killed && i < condemned->count; i++) {
            if (condemned->ids[i] == id) {
                remove_at(condemned, i);
                break;
            }
        }
        if (refused) {
            newly_refused = !condemned->refused;
            condemned->refused = true;
            condemned->count = 0;
        }
    }
    pthread_mutex_unlock(&condemned->mutex);
    return newly_refused;
}
