/* condemned.h - connections given up with a claim on its way, which have to be killed on the server. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_CONDEMNED_H
#define DLI_MYSQL_CONDEMNED_H

#include <pthread.h>
#include <stdatomic.h>

#include "conn.h"

/* More than this and the oldest are forgotten: their claims end by their leases. */
#define DLI_MYSQL_CONDEMNED_MAX 128

/* What was killed is waited for no longer than this, in all: what keeps it must not delay every free. */
#define DLI_MYSQL_DYING_NS ((uint64_t)5000000000)

/* A connection id says something only together with the server that gave it and since when that was up: ids
 * begin anew with each start. */
typedef struct dli_mysql_doomed {
    uint64_t id;
    uint64_t began_ns; /* when the making of the connection began: the server was up by its end */
    uint64_t serial;   /* rises along the list */
    uint64_t until_ns; /* killed, and no longer waited for; 0: not killed so far */
    char identity[320];
} dli_mysql_doomed_t;

typedef struct dli_mysql_condemned {
    atomic_size_t count;        /* read without the mutex where nothing has to be killed */
    atomic_bool has_unnumbered; /* not told yet: one that has no id could not be added */
    pthread_mutex_t mutex;      /* guards the rest, and writing to count; never held during I/O */
    dli_mysql_doomed_t *doomed; /* the oldest first; room for all from the beginning */
    uint64_t serial;            /* the last one given */
    bool was_refused;           /* this account may not kill, or nobody may; said once */
} dli_mysql_condemned_t;

/* DL_OK, DL_ENOMEM. */
dl_status_t dli_mysql_condemned_init(dli_mysql_condemned_t *condemned, dl_error_t *err);
/* forked: somebody who is not there may have the mutex. */
void dli_mysql_condemned_free(dli_mysql_condemned_t *condemned, bool forked);
/* began_ns: when the making of it began. One without an id is not killed. */
void dli_mysql_condemned_add(dli_mysql_condemned_t *condemned, const dli_mysql_facts_t *facts,
                             uint64_t began_ns);
/* Nobody is to be killed: whatever is on the list counts as without an id. */
void dli_mysql_condemned_spare(dli_mysql_condemned_t *condemned);
/* Reports, once, that there was one without an id. */
void dli_mysql_condemned_tell(dli_mysql_condemned_t *condemned, const dl_driver_env_t *env);
/*
 * Kills what this connection's server may kill, until it is gone: only then nothing of it can follow. Off the
 * list: what is gone (1094), what is not proven to be of this run of this server, what this account may not
 * kill, and what was killed DLI_MYSQL_DYING_NS ago.
 * DL_OK; DL_ETIMEDOUT, DL_ECANCELED: some are not gone yet; or what the connection's asking came to.
 */
dl_status_t dli_mysql_condemned_kill(dli_mysql_condemned_t *condemned, dli_mysql_conn_t *conn,
                                     uint64_t ready_ns, const dli_mysql_bounds_t *bounds, dl_error_t *err);

/* ---- whose number is it? ------------------------------------------------------------------------------- */

/* What is known of the server that a connection leads to. Its instants may lie before the start of this
 * machine, and then are negative. */
typedef struct dli_mysql_witness {
    dli_mysql_conn_t *conn;
    int64_t
        up_since_ns; /* the server's run surely began before this: at first, when the connection was ready */
    bool asked_uptime;
} dli_mysql_witness_t;

/* `KILL what id`, if the number means the same there as at a server with this identity, for a connection that
 * began to be made at began_ns: only if the server is proven to be the same one and to have been up by then.
 * The witness was ready before, or the uptime says so. *is_sent false: it is not proven (DL_OK), or this is
 * what asking for the uptime came to. Otherwise what the KILL came to, with its answer. */
dl_status_t dli_mysql_witness_kill(dli_mysql_witness_t *witness, const char *what, uint64_t id,
                                   const char *identity, int64_t began_ns, const dli_mysql_bounds_t *bounds,
                                   bool *is_sent, dli_mysql_answer_t *answer, dl_error_t *err);

#endif
