/* check.h - what the parts of the report on a server share. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_CHECK_H
#define DLI_MYSQL_CHECK_H

#include "drivers/clock.h"
#include "setup.h"

/* One run of a check. */
typedef struct dli_mysql_check {
    dli_mysql_t *mysql;
    dli_report_t report;
    uint64_t deadline_ns;        /* as the op was given it */
    bool is_silent;              /* the server has left something without an answer */
    dli_mysql_answer_t settings; /* dli_mysql_variables_ask */
} dli_mysql_check_t;

/* The end of the next exchange. Each has the whole of call_timeout, until one of them has needed it. */
uint64_t dli_mysql_check_until(const dli_mysql_check_t *check);
/* What an exchange came to. */
void dli_mysql_check_note(dli_mysql_check_t *check, dl_status_t status);

#define dli_mysql_check_say(check, ...) dli_say(&(check)->report, __VA_ARGS__)
/* A statement of constants of ours. Whatever the server says to it is in the answer. */
dl_status_t dli_mysql_check_ask(dli_mysql_check_t *check, const char *sql, dli_mysql_answer_t *answer,
                                dl_error_t *err);
/* The driver whose locks are kept in rows that say so, or false: whose locks are the row locks themselves. */
bool dli_mysql_check_is_lease(dli_mysql_check_t *check);

/* check_settings.c: what the server's settings, its limits and its replicas do to locks. */
void dli_mysql_check_settings(dli_mysql_check_t *check);
/* check_way.c: how statements get there: TLS, the session's settings, rights. false: no lock can be taken. */
bool dli_mysql_check_way(dli_mysql_check_t *check);
/* check_clock.c: looks at the server's clock, with other work between the two instants. */
void dli_mysql_check_clock_begin(dli_mysql_check_t *check, dli_moment_t *first);
void dli_mysql_check_clock_end(dli_mysql_check_t *check, const dli_moment_t *first);

#endif
