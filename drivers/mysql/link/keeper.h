/* keeper.h - a thread that looks after idle connections. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_KEEPER_H
#define DLI_MYSQL_KEEPER_H

#include "pool.h"

/*
 * Every idle_check it closes what has lain for too long, asks idle connections for a sign of life (all of
 * them with test_while_idle; otherwise those that are kept, before the server has enough of them), and has
 * new ones made (min_idle; one in each other lane that was ever used).
 */
typedef struct dli_mysql_keeper {
    dli_mysql_pool_t *pool;
    bool is_running;
    int fd; /* an eventfd: go, and look what is wanted */
    atomic_bool is_awake, is_stopping;
    pthread_t thread;
} dli_mysql_keeper_t;

/* Starts the thread, which does nothing until dli_mysql_keeper_wake. The keeper is zeroed. DL_OK;
 * DL_ELIMIT. */
dl_status_t dli_mysql_keeper_start(dli_mysql_keeper_t *keeper, dli_mysql_pool_t *pool, dl_error_t *err);
/* A connection has been made: there is a server to keep up with. Cheap when it is awake already. */
void dli_mysql_keeper_wake(dli_mysql_keeper_t *keeper);
/* forked: the thread does not exist; closes the descriptor. */
void dli_mysql_keeper_stop(dli_mysql_keeper_t *keeper, bool forked);

#endif
