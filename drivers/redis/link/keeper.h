/* keeper.h - a thread that looks after idle connections, where the configuration asks for it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_KEEPER_H
#define DLI_REDIS_KEEPER_H

#include "pool.h"

/*
 * Every idle_check it closes what has lain for too long, sends PING to idle connections (test_while_idle),
 * closes those that did not answer the last one, and makes new ones (min_idle). It never waits for an answer
 * with a connection in its hands: the answer is read at the next check, or by the call that borrows the
 * connection.
 */
typedef struct dli_keeper {
    dli_pool_t *pool;
    bool is_running;
    int fd; /* an eventfd: go, and look what is wanted */
    atomic_bool is_awake, is_stopping;
    pthread_t thread;
} dli_keeper_t;

/* Starts the thread if the pool's options want one; it does nothing until dli_keeper_wake. The keeper is
 * zeroed. DL_OK; DL_ELIMIT. */
dl_status_t dli_keeper_start(dli_keeper_t *keeper, dli_pool_t *pool, dl_error_t *err);
/* A connection has been made: there is a server to keep up with. Cheap when it is awake already. */
void dli_keeper_wake(dli_keeper_t *keeper);
/* forked: the thread does not exist; closes the descriptor. */
void dli_keeper_stop(dli_keeper_t *keeper, bool forked);

/* Reads what has come to a connection with answers owed. DL_OK, or it is broken. */
dl_status_t dli_keeper_read_owed(dli_member_t *member, short revents, dl_error_t *err);
/* Is an answer owed that should have been here long ago? */
bool dli_keeper_is_late(const dli_pool_t *pool, const dli_member_t *member, uint64_t now_ns);

#endif
