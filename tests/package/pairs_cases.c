/* pairs_cases.c - prints what an uncontended lock and unlock cost each driver in round trips. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "support/contract.h"
#ifdef DLOCK_HAVE_REDIS
#include "support/redlock_nodes.h"
#endif

/* On a busy machine redlock takes a slow node for a dead one now and then, and leaves it alone for a quarter
 * of a second. So pairs are counted for longer than that, and it is not their median that is told. */
#define AT_LEAST_MS 1000
#define PAIRS_MAX 20000

static uint64_t costs[PAIRS_MAX];

static int by_size(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* How many servers answer. */
static uint64_t servers_of(ct_t *ct) {
    (void)ct;
#ifdef DLOCK_HAVE_REDIS
    if (ct_traits(ct) & CT_REDLOCK) {
        return ct_redlock(ct)->n - ct_redlock(ct)->dead;
    }
#endif
    return 1;
}

/*
 * One line: "pair DRIVER MESSAGES ROUNDS SERVERS". Messages are requests with an answer, to whichever server.
 * A round asks each server once at most, all at the same time: no fewer rounds can have carried so many.
 */
CT_CASE(pair, round_trips, .traits = CT_REAL_TIME) {
    uint64_t servers = servers_of(ct);
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    size_t n = 0;
    /* The first one makes rows and connections. */
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    for (int64_t end_ms = ct_now_ms(ct) + AT_LEAST_MS; n < PAIRS_MAX && ct_now_ms(ct) < end_ms; n++) {
        uint64_t before = ct_stats(ct, client).round_trips;
        CT_OK(dl_lock(lock, CT_ERR));
        CT_OK(dl_unlock(lock, CT_ERR));
        costs[n] = ct_stats(ct, client).round_trips - before;
    }
    qsort(costs, n, sizeof costs[0], by_size);
    uint64_t messages = costs[n * 4 / 5];
    CT_GT(messages, 0);
    printf("pair %s %llu %llu %llu\n", ct_driver_name(ct), (unsigned long long)messages,
           (unsigned long long)((messages + servers - 1) / servers), (unsigned long long)servers);
    fflush(stdout);
}
