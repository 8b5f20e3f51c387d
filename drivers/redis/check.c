/* check.c - says which guarantee this server gives to locks, and what weakens it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <string.h>

/* ---- who the server is, and the way to it ----------------------------------------------------------- */

static void report_way(const dli_check_t *check) {
    const dli_endpoint_t *e = &check->redis->endpoint;
    const dli_way_t way = {.host = e->host,
                           .tls = e->tls,
                           .is_verified = e->tls_verify,
                           .has_proof = e->password != NULL || e->tls_cert != NULL,
                           .shows_password = e->password != NULL,
                           .advice = e->tls ? "set tls_verify" : "use rediss://"};
    dli_way_report(&check->report, &way);
}

bool dli_check_server(const dli_check_t *check) {
    char server[512];
    if (check->status != DL_OK) {
        dli_check_say(check, DL_FINDING_ERROR, "server", "%s", check->exchange.err.message);
        return false;
    }
    dli_redis_describe(check->redis, server, sizeof server);
    dli_check_say(check, DL_FINDING_OK, "server", "%s (Redis 6.0 and Valkey 7.2 are the oldest that work)",
                  server);
    report_way(check);
    return true;
}

void dli_check_prefix(const dli_check_t *check) {
    const dli_layout_t *layout = check->redis->layout;
    bool hash = strcmp(layout->redis_type, "hash") == 0;
    if (check->redis->prefix_len == 0) {
        dli_check_say(check, DL_FINDING_NOTE, "prefix",
                      "it is empty: a lock's name is its whole key, so a name can meet any key of database "
                      "%d, and %s; a prefix or a database of their own keeps the locks apart",
                      check->redis->endpoint.database,
                      hash ? "dlock unlock --force deletes any hash there that looks like a lock of Redisson"
                           : "a string there counts as a held lock, which dlock unlock --force deletes");
    }
}

/* ---- time -------------------------------------------------------------------------------------------- */

static uint64_t bound(const dli_check_t *check) {
    uint64_t until_ns = check->redis->env->now_ns() + check->patience_ns;
    return check->patience_ns > 0 && until_ns < check->deadline_ns ? until_ns : check->deadline_ns;
}

static void begin(dli_check_t *check, const dli_commands_t *commands, redisReply **replies) {
    check->exchange = (dli_exchange_t){
        .redis = check->redis, .commands = commands, .replies = replies, .deadline_ns = bound(check)};
    dli_exchange_begin(&check->exchange);
}

/* Those that have begun. */
static void run(dli_check_t *checks, size_t n) {
    dli_exchange_t *exchanges[DLI_EXCHANGES_MAX] = {NULL};
    for (size_t i = 0; i < n; i++) {
        exchanges[i] = &checks[i].exchange;
    }
    dli_exchanges_run(exchanges, n);
}

static void take_look(dli_exchange_t *x, const redisReply *reply, dli_moment_t *best) {
    int64_t seconds, us;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        !dli_text_int(reply->element[0]->str, reply->element[0]->len, &seconds) ||
        !dli_text_int(reply->element[1]->str, reply->element[1]->len, &us)) {
        x->status = dli_reply_unexpected(reply, "TIME", &x->err);
    } else {
        dli_clock_look(best, x->wire.sent_ns, x->heard_ns, seconds * 1000000 + us);
    }
}

/* At those that have answered so far. */
static void look_all(dli_check_t *checks, size_t n, bool is_last) {
    dli_commands_t commands = {0};
    dli_commands_add_words(&commands, "TIME", NULL);
    for (size_t look = 0; look < DLI_CLOCK_LOOKS; look++) {
        redisReply *replies[DLI_EXCHANGES_MAX] = {NULL};
        for (size_t i = 0; i < n; i++) {
            if (checks[i].exchange.status == DL_OK) {
                begin(&checks[i], &commands, &replies[i]);
            }
        }
        run(checks, n);
        for (size_t i = 0; i < n; i++) {
            if (checks[i].exchange.status == DL_OK) {
                take_look(&checks[i].exchange, replies[i], is_last ? &checks[i].last : &checks[i].first);
            }
        }
        dli_replies_free(replies, n);
    }
    dli_commands_free(&commands);
}

/* Once the first look is long enough ago. */
static void look_again(dli_check_t *checks, size_t n) {
    const dl_driver_env_t *env = checks[0].redis->env;
    uint64_t until_ns = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t due_ns = checks[i].first.before_ns + DLI_CLOCK_WINDOW_NS; /* over, where it was not seen */
        until_ns = due_ns > until_ns ? due_ns : until_ns;
    }
    (void)env->poll(NULL, 0, until_ns < checks[0].deadline_ns ? until_ns : checks[0].deadline_ns);
    look_all(checks, n, true);
}

static void report_clock(const dli_check_t *check) {
    if (check->exchange.status == DL_OK) {
        dli_clock_report(&check->report, &check->first, &check->last, true);
    } else {
        dli_check_say(check, DL_FINDING_NOTE, "server clock", "could not be looked at: %s",
                      check->exchange.err.message);
    }
}

static void report_guarantee(const dli_check_t *check) {
    dli_check_say(
        check, DL_FINDING_NOTE, "guarantee",
        "at most one owner of a name among all clients of this server and database, until its lease ends, as "
        "long as the server keeps its data and its clock is not set; each later holder has a larger token");
    dli_check_say(check, DL_FINDING_NOTE, "limit",
                  "one server decides: while it is down nobody can lock, and where it loses data (crash, "
                  "failover, FLUSHALL) a second holder can get in within a lease; let the guarded resource "
                  "refuse smaller tokens");
}

/* ---- the report -------------------------------------------------------------------------------------- */

static void ask(dli_check_t *check) {
    dli_commands_t *commands = &check->commands;
    dli_commands_add_words(commands, "INFO", NULL);
    dli_check_ask_settings(check);
    dli_check_ask_rights(check);
    if (check->redis->voting != NULL) {
        check->vote_at = commands->count;
        dli_commands_add_words(commands, "GET", check->redis->voting->marker_key, NULL);
        dli_commands_add_words(commands, "PTTL", check->redis->voting->quarantine_key, NULL);
        dli_commands_add_words(commands, "GET", check->redis->token_key, NULL);
    }
    begin(check, commands, check->replies);
}

void dli_checks_ask(dli_check_t *checks, size_t n) {
    for (size_t i = 0; i < n; i++) {
        ask(&checks[i]);
    }
    run(checks, n);
    for (size_t i = 0; i < n; i++) {
        dli_check_t *check = &checks[i];
        check->status = check->exchange.status;
        if (check->status == DL_OK && check->replies[0]->type == REDIS_REPLY_STRING) {
            check->info = check->replies[0]->str;
        }
    }
    look_all(checks, n, false);
    look_again(checks, n);
}

bool dli_check_server_rest(const dli_check_t *check) {
    dli_clock_report_trip(&check->report, check->redis->env->lease_ms, &check->first);
    dli_check_settings(check);
    bool has_keys = dli_check_rights(check);
    report_clock(check);
    return has_keys;
}

void dli_check_free(dli_check_t *check) {
    dli_replies_free(check->replies, DLI_CHECK_REPLIES);
    dli_commands_free(&check->commands);
    dli_redis_close_alone(check->redis);
}

static void report(const dli_check_t *check) {
    dli_check_prefix(check);
    if (!dli_check_server_rest(check)) {
        dli_check_say(check, DL_FINDING_NOTE, "locking", "not tried, since the user may not access the keys");
    }
    if (check->redis->ignored[0] != '\0') {
        dli_check_say(check, DL_FINDING_NOTE, "options",
                      "without effect, since requests share connections: %s", check->redis->ignored);
    }
    report_guarantee(check);
}

dl_status_t dli_redis_check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err) {
    dli_check_t check = {.report = {.fn = fn, .arg = arg}, .deadline_ns = deadline_ns};
    dl_status_t status = dli_redis_open_alone(state, &check.redis, err);
    if (status == DL_OK) {
        dli_checks_ask(&check, 1);
        status = check.status;
        if (dli_check_server(&check)) {
            report(&check);
        } else {
            *err = check.exchange.err;
        }
    }
    dli_check_free(&check);
    return status;
}
