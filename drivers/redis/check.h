/* check.h - what the parts of the report on a server share. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_CHECK_H
#define DLI_REDIS_CHECK_H

#include "drivers/clock.h"
#include "lock.h"

/* As many as are asked at once. */
#define DLI_CHECK_REPLIES 40

/* One run of a check: everything is asked at once, of several servers side by side, then said. */
typedef struct dli_check {
    dli_exchange_t exchange; /* first */
    dli_redis_t *redis;      /* alone */
    dli_report_t report;
    uint64_t deadline_ns, patience_ns; /* so long for each answer; 0: until the deadline */
    /* What was asked first, and the answers. */
    dli_commands_t commands;
    redisReply *replies[DLI_CHECK_REPLIES];
    size_t settings_at, rights_at, vote_at;
    const char *info;         /* what INFO answered; NULL: the user may not ask */
    dl_status_t status;       /* of that; then the exchange is the last look at the clock */
    dli_moment_t first, last; /* the time, at two instants */
} dli_check_t;

#define dli_check_say(check, ...) dli_say(&(check)->report, __VA_ARGS__)

/* check.c */
/* Asks all of them, and looks at their clocks at two instants. `checks` has redis, report and the instants. A
 * server that does not answer has a status other than DL_OK. */
void dli_checks_ask(dli_check_t *checks, size_t n);
/* The parts of the report on one of them, in this order. false: it has not answered, and that is all to say.
 */
bool dli_check_server(const dli_check_t *check);
void dli_check_prefix(const dli_check_t *check);
/* As dli_check_rights, which is among it. */
bool dli_check_server_rest(const dli_check_t *check);
void dli_check_free(dli_check_t *check); /* and closes `redis` */

/* check_settings.c: what eviction, persistence, replicas and limits of the server do to locks. */
void dli_check_ask_settings(dli_check_t *check);
void dli_check_settings(const dli_check_t *check);
/* check_rights.c: what the user lacks, found by trying. false: not even its keys, so nothing works. */
void dli_check_ask_rights(dli_check_t *check);
bool dli_check_rights(const dli_check_t *check);

#endif
