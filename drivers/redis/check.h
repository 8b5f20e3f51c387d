/* check.h - what the parts of the report on a server share. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_CHECK_H
#define DLI_REDIS_CHECK_H

#include "lock.h"

/* One run of a check. */
typedef struct dli_check {
    dli_redis_t *redis;
    dl_finding_fn fn;
    void *arg;
    uint64_t deadline_ns;
    const char *info; /* what INFO answered; NULL: the user may not ask */
} dli_check_t;

void dli_check_say(const dli_check_t *check, dl_finding_level_t level, const char *subject,
                   const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Runs the commands as one exchange. `replies` has room for all of them; the caller frees what came. */
dl_status_t dli_check_ask(const dli_check_t *check, const dli_commands_t *commands, redisReply **replies,
                          dl_error_t *err);
void dli_check_free(redisReply **replies, size_t n);

/* A field of INFO: false when it is not there. */
bool dli_check_text(const dli_check_t *check, const char *field, char *text, size_t size);
/* The same as a number; `otherwise` when it is not there. */
int64_t dli_check_number(const dli_check_t *check, const char *field, int64_t otherwise);

/* check_settings.c: what eviction, persistence, replicas and limits of the server do to locks. */
void dli_check_settings(const dli_check_t *check);
/* check_rights.c: what the user lacks, found by trying. false: not even its keys, so nothing works. */
bool dli_check_rights(const dli_check_t *check);
/* check_trial.c: takes, renews and frees a lock under a name of its own, and waits for it. */
void dli_check_trial(const dli_check_t *check);

#endif
