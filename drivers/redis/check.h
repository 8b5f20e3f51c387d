/* check.h - what the parts of the report on a server share. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_CHECK_H
#define DLI_REDIS_CHECK_H

#include "lock.h"

/* What differs where the server is one node of several. */
typedef struct dli_check_node {
    char name[32]; /* "node 2" */
    bool durable, quarantines;
    int64_t max_lease_ms;
    const char *marker_key, *quarantine_key;
} dli_check_node_t;

/* One run of a check. */
typedef struct dli_check {
    dli_redis_t *redis;
    dl_finding_fn fn;
    void *arg;
    uint64_t deadline_ns;
    const char *info;             /* what INFO answered; NULL: the user may not ask */
    const dli_check_node_t *node; /* NULL: the only server; its name stands before every subject */
} dli_check_t;

/* Looks at the server's clock, at two instants. */
typedef struct dli_moment {
    uint64_t before_ns, after_ns;
    int64_t server_us;
    int64_t skew_us; /* server minus our wall clock */
} dli_moment_t;

typedef struct dli_check_time {
    bool is_known;
    dli_moment_t first;
    dl_error_t err; /* why not */
} dli_check_time_t;

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

/* check.c: the parts of the report, in this order. */
/* Asks for INFO, which is the caller's to free, and says what the server is and how it is reached. A failure
 * has been reported. */
dl_status_t dli_check_begin(dli_check_t *check, redisReply **info, dl_error_t *err);
void dli_check_prefix(const dli_check_t *check);
void dli_check_first_look(const dli_check_t *check, dli_check_time_t *time);
/* Waits until the first look is long enough ago. */
void dli_check_last_look(const dli_check_t *check, dli_check_time_t *time);

/* check_settings.c: what eviction, persistence, replicas and limits of the server do to locks. */
void dli_check_settings(const dli_check_t *check);
/* check_rights.c: what the user lacks, found by trying. false: not even its keys, so nothing works. */
bool dli_check_rights(const dli_check_t *check);
/* check_trial.c: takes, renews and frees a lock under a name of its own, and waits for it. Each request is
 * carried out by `ask`: what it is to leave behind is there when that returns. Its leases are no longer than
 * lease_max_ms. A release is told of by a majority of these n servers.
 */
#define DLI_CHECK_SERVERS_MAX 16
typedef dl_status_t (*dli_check_ask_fn)(void *asked, const dli_request_t *request);
void dli_check_trial(const dli_check_t *check, dli_check_ask_fn ask, void *asked, int64_t lease_max_ms,
                     dli_redis_t *const *servers, size_t n);

#endif
