/* condemned.h - connections given up with a claim on its way, which have to be killed on the server. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_CONDEMNED_H
#define DLI_REDIS_CONDEMNED_H

#include <pthread.h>
#include <stdatomic.h>

#include "conn.h"

/* More than this and the oldest are forgotten: their claims end by their leases. */
#define DLI_CONDEMNED_MAX 128

typedef struct dli_condemned {
    atomic_size_t count;            /* read without the mutex where nothing has to be killed */
    pthread_mutex_t mutex;          /* guards everything else, and writing to count */
    char run_id[41];                /* of the server whose connections these are; "": none */
    bool refused;                   /* that server does not let us kill */
    int64_t ids[DLI_CONDEMNED_MAX]; /* the oldest first */
} dli_condemned_t;

void dli_condemned_init(dli_condemned_t *condemned);
void dli_condemned_free(dli_condemned_t *condemned);
/* A connection was made. Forgets what was condemned on another server. */
void dli_condemned_meet(dli_condemned_t *condemned, const dli_facts_t *facts);
/* The connection that these facts are of is given up. */
void dli_condemned_add(dli_condemned_t *condemned, const dli_facts_t *facts);

/* The kills that one exchange carries in front of its own commands. */
typedef struct dli_kills {
    dli_commands_t commands;
    size_t count, answered;
    int64_t ids[];
} dli_kills_t;

/* *kills: for a connection with these facts; NULL when there is nothing to kill. DL_OK, DL_ENOMEM. */
dl_status_t dli_condemned_kills(dli_condemned_t *condemned, const dli_facts_t *facts, dli_kills_t **kills,
                                dl_error_t *err);
void dli_kills_free(dli_kills_t *kills);
/* The next answer to them. true: the server refuses to kill, which nobody knew until now. */
bool dli_condemned_answer(dli_condemned_t *condemned, const dli_facts_t *facts, dli_kills_t *kills,
                          const redisReply *reply);

#endif
