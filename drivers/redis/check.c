/* check.c - says which guarantee this server gives to locks, and what weakens it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NS_PER_US ((uint64_t)1000)
#define NS_PER_MS ((uint64_t)1000000)

void dli_check_say(const dli_check_t *check, dl_finding_level_t level, const char *subject,
                   const char *format, ...) {
    char text[1024], whose[64];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)snprintf(whose, sizeof whose, "%s %s", check->node != NULL ? check->node->name : "", subject);
    check->fn(check->arg, level, check->node != NULL ? whose : subject, text);
}

dl_status_t dli_check_ask(const dli_check_t *check, const dli_commands_t *commands, redisReply **replies,
                          dl_error_t *err) {
    memset(replies, 0, commands->count * sizeof *replies);
    if (commands->out_of_memory) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    dli_exchange_t exchange = {
        .commands = commands, .replies = replies, .intent = DLI_READ, .deadline_ns = check->deadline_ns};
    return dli_link_run(check->redis->link, &exchange, err);
}

void dli_check_free(redisReply **replies, size_t n) {
    for (size_t i = 0; i < n; i++) {
        freeReplyObject(replies[i]);
        replies[i] = NULL;
    }
}

bool dli_check_text(const dli_check_t *check, const char *field, char *text, size_t size) {
    size_t len = strlen(field);
    const char *at = check->info;
    while (at != NULL && !(strncmp(at, field, len) == 0 && at[len] == ':')) {
        at = strchr(at, '\n');
        at = at != NULL ? at + 1 : NULL;
    }
    if (at == NULL) {
        return false;
    }
    at += len + 1;
    (void)snprintf(text, size, "%.*s", (int)strcspn(at, "\r\n"), at);
    return true;
}

int64_t dli_check_number(const dli_check_t *check, const char *field, int64_t otherwise) {
    char text[32];
    int64_t number;
    return dli_check_text(check, field, text, sizeof text) && dli_text_int(text, strlen(text), &number)
               ? number
               : otherwise;
}

/* ---- who the server is, and the way to it ----------------------------------------------------------- */

static void report_product(const dli_check_t *check) {
    dli_facts_t facts;
    dli_link_facts(check->redis->link, &facts);
    dli_check_say(check, DL_FINDING_OK, "server",
                  "%s %s at %s (Redis 6.0 and Valkey 7.2 are the oldest that work)",
                  strcmp(facts.product, "valkey") == 0 ? "Valkey" : "Redis", facts.version,
                  check->redis->endpoint.label);
}

static bool is_loopback(const char *host) {
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

static void report_transport(const dli_check_t *check) {
    const dli_endpoint_t *e = &check->redis->endpoint;
    if (e->host == NULL) {
        dli_check_say(check, DL_FINDING_OK, "transport", "a unix socket: nothing leaves this host");
    } else if (e->tls && e->tls_verify) {
        dli_check_say(check, DL_FINDING_OK, "transport", "TLS, and the server's certificate is verified");
    } else if (is_loopback(e->host)) {
        dli_check_say(check, DL_FINDING_OK, "transport", "loopback: nothing leaves this host%s",
                      e->tls ? " (TLS, and the server's certificate is not verified)" : "");
    } else if (e->tls) {
        dli_check_say(
            check, DL_FINDING_WARNING, "transport",
            "TLS, but the server's certificate is not verified: anyone who can redirect the connection "
            "learns the password and decides who holds the locks; set tls_verify");
    } else {
        dli_check_say(check, DL_FINDING_WARNING, "transport",
                      "no TLS: %slock names and owners cross the network in clear, and anyone on the way can "
                      "free or forge locks; use rediss://",
                      e->password != NULL ? "the password, " : "");
    }
    if (e->password == NULL && e->tls_cert == NULL && e->host != NULL && !is_loopback(e->host)) {
        dli_check_say(check, DL_FINDING_WARNING, "password",
                      "none is configured: anyone who reaches the port can free, take or forge locks");
    }
}

void dli_check_prefix(const dli_check_t *check) {
    const dli_layout_t *layout = check->redis->layout;
    bool hash = strcmp(layout->redis_type, "hash") == 0;
    if (check->redis->prefix_len == 0) {
        dli_check_say(
            check, DL_FINDING_NOTE, "prefix",
            "it is empty: a lock's name is its whole key, so a name can meet any key of database %d, and "
            "%s; a prefix or a database of their own keeps the locks apart",
            check->redis->endpoint.database,
            hash ? "dlock unlock --force deletes any hash there that looks like a lock of Redisson"
                 : "a string there counts as a held lock, which dlock unlock --force deletes");
    }
}

/* ---- time -------------------------------------------------------------------------------------------- */

/* Looks taken at each end of the measurement; the quickest is the sharpest. */
#define LOOKS 5
/* Between the ends; long enough that a clock a few percent off shows. */
#define WINDOW_NS (250 * NS_PER_MS)
/* What a scheduler may add to a look without anything being wrong. */
#define NOISE_US 2000
/* Clocks of hosts that keep time differ by less. */
#define SKEW_WORTH_A_NOTE_US 2000000

static int64_t wall_us(void) {
    /* Only to tell the user how far the server's clock is from this host's: nothing is decided by it. */
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static dl_status_t look_once(const dli_check_t *check, const dli_commands_t *time, dli_moment_t *moment,
                             dl_error_t *err) {
    redisReply *reply = NULL;
    int64_t seconds, us;
    moment->before_ns = check->redis->env->now_ns();
    int64_t wall = wall_us();
    dl_status_t status = dli_check_ask(check, time, &reply, err);
    moment->after_ns = check->redis->env->now_ns();
    if (status == DL_OK && (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
                            !dli_text_int(reply->element[0]->str, reply->element[0]->len, &seconds) ||
                            !dli_text_int(reply->element[1]->str, reply->element[1]->len, &us))) {
        status = dli_reply_unexpected(reply, "TIME", err);
    } else if (status == DL_OK) {
        moment->server_us = seconds * 1000000 + us;
        int64_t half_way_us = (int64_t)((moment->after_ns - moment->before_ns) / 2 / NS_PER_US);
        moment->skew_us = moment->server_us - wall - half_way_us;
    }
    freeReplyObject(reply);
    return status;
}

/* The quickest of a few looks. */
static dl_status_t look(const dli_check_t *check, dli_moment_t *best, dl_error_t *err) {
    dli_commands_t time = {0};
    dl_status_t status = DL_OK;
    dli_commands_add_words(&time, "TIME", NULL);
    for (int i = 0; i < LOOKS && status == DL_OK; i++) {
        dli_moment_t moment;
        status = look_once(check, &time, &moment, err);
        if (status == DL_OK &&
            (i == 0 || moment.after_ns - moment.before_ns < best->after_ns - best->before_ns)) {
            *best = moment;
        }
    }
    dli_commands_free(&time);
    return status;
}

/* Without its sign. */
static dl_duration_text_t measured(int64_t us) {
    return dl_driver_measured((uint64_t)(us < 0 ? -us : us) * NS_PER_US);
}

static void report_round_trip(const dli_check_t *check, const dli_moment_t *moment) {
    const dl_driver_env_t *env = check->redis->env;
    uint64_t took_ns = moment->after_ns - moment->before_ns;
    /* A hold is renewed every third of its lease, and two of three may fail. */
    if (took_ns > (uint64_t)env->lease_ms * NS_PER_MS / 20) {
        dli_check_say(check, DL_FINDING_WARNING, "round trip",
                      "%s at best, with a lease of %s: "
                      "little time is left for a renewal that "
                      "has to be repeated; use a longer lease",
                      dl_driver_measured(took_ns).text, dl_driver_duration(env->lease_ms).text);
    } else {
        dli_check_say(check, DL_FINDING_OK, "round trip", "%s at best%s", dl_driver_measured(took_ns).text,
                      check->node == NULL ? "; an uncontended lock and unlock take two" : "");
    }
}

static void report_clock(const dli_check_t *check, const dli_moment_t *first, const dli_moment_t *last) {
    int64_t ours_us = (int64_t)((last->before_ns - first->before_ns) / NS_PER_US);
    int64_t off_us = last->server_us - first->server_us - ours_us;
    int64_t blur_us =
        (int64_t)((last->after_ns - last->before_ns + first->after_ns - first->before_ns) / NS_PER_US);
    int64_t bound_us = blur_us + NOISE_US + ours_us / 100;
    if (off_us > bound_us || off_us < -bound_us) {
        dli_check_say(check, DL_FINDING_WARNING, "server clock",
                      "it went %s%s while ours went %s: leases end by it, so while it is being set or runs "
                      "too fast a lock can pass to another before its holder stops",
                      last->server_us < first->server_us ? "-" : "",
                      measured(last->server_us - first->server_us).text, measured(ours_us).text);
    } else {
        dli_check_say(
            check, DL_FINDING_OK, "server clock",
            "it ran as ours did over %s; leases end by it, so it must be slewed, not set, while locks "
            "are held",
            measured(ours_us).text);
    }
    int64_t skew_us = last->skew_us;
    bool far = skew_us > SKEW_WORTH_A_NOTE_US || skew_us < -SKEW_WORTH_A_NOTE_US;
    dli_check_say(
        check, far ? DL_FINDING_NOTE : DL_FINDING_OK, "clock skew",
        "the server is %s %s this host: harmless for leases, which compare no clocks; tokens start "
        "from the server's clock, so a server that replaces this one without its data must not be behind it",
        measured(skew_us).text, skew_us < 0 ? "behind" : "ahead of");
}

static void report_guarantee(const dli_check_t *check) {
    dli_check_say(
        check, DL_FINDING_NOTE, "guarantee",
        "at most one owner of a name among all clients of this server and database, until its lease ends, as "
        "long as the server keeps its data and its clock is not set; each later holder has a larger token");
    dli_check_say(
        check, DL_FINDING_NOTE, "limit",
        "one server decides: while it is down nobody can lock, and where it loses data (crash, failover, "
        "FLUSHALL) a second holder can get in within a lease; let the guarded resource refuse smaller "
        "tokens");
}

/* ---- the report -------------------------------------------------------------------------------------- */

/* DL_OK with NULL: the user may not ask. */
static dl_status_t ask_info(const dli_check_t *check, redisReply **reply, dl_error_t *err) {
    dli_commands_t commands = {0};
    dli_commands_add_words(&commands, "INFO", NULL);
    dl_status_t status = dli_check_ask(check, &commands, reply, err);
    dli_commands_free(&commands);
    if (status == DL_OK && (*reply)->type != REDIS_REPLY_STRING) {
        dli_check_free(reply, 1);
    }
    return status;
}

dl_status_t dli_check_begin(dli_check_t *check, redisReply **info, dl_error_t *err) {
    *info = NULL;
    dl_status_t status = ask_info(check, info, err);
    if (status != DL_OK) {
        dli_check_free(info, 1);
        dli_check_say(check, DL_FINDING_ERROR, "server", "%s", err->message);
        return status;
    }
    check->info = *info != NULL ? (*info)->str : NULL;
    report_product(check);
    report_transport(check);
    return DL_OK;
}

void dli_check_first_look(const dli_check_t *check, dli_check_time_t *time) {
    time->is_known = look(check, &time->first, &time->err) == DL_OK;
    if (time->is_known) {
        report_round_trip(check, &time->first);
    }
}

void dli_check_last_look(const dli_check_t *check, dli_check_time_t *time) {
    dli_moment_t last;
    if (time->is_known) {
        uint64_t until_ns = time->first.before_ns + WINDOW_NS;
        (void)check->redis->env->poll(NULL, 0, until_ns < check->deadline_ns ? until_ns : check->deadline_ns);
        time->is_known = look(check, &last, &time->err) == DL_OK;
    }
    if (time->is_known) {
        report_clock(check, &time->first, &last);
    } else {
        dli_check_say(check, DL_FINDING_NOTE, "server clock", "could not be looked at: %s",
                      time->err.message);
    }
}

/* On a connection of its own: the client may be in use. */
static void try_locking(const dli_check_t *check) {
    dli_redis_t *alone;
    dl_error_t err;
    dli_redis_t *redis = check->redis;
    if (dli_redis_open_alone(redis, check->deadline_ns, &alone, &err) == DL_OK) {
        dli_check_trial(check, dli_redis_ask_alone, alone, INT64_MAX, &redis, 1);
    } else {
        dli_check_say(check, DL_FINDING_ERROR, "locking", "no connection for a trial: %s", err.message);
    }
    dli_redis_close_alone(alone);
}

dl_status_t dli_redis_check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err) {
    dli_check_t check = {.redis = state, .fn = fn, .arg = arg, .deadline_ns = deadline_ns};
    dli_check_time_t time;
    redisReply *info;
    dl_status_t status = dli_check_begin(&check, &info, err);
    if (status != DL_OK) {
        return status;
    }
    dli_check_prefix(&check);
    dli_check_first_look(&check, &time);
    dli_check_settings(&check);
    if (dli_check_rights(&check)) {
        try_locking(&check);
    }
    if (check.redis->ignored[0] != '\0') {
        dli_check_say(&check, DL_FINDING_NOTE, "options",
                      "without effect, since requests share connections: %s", check.redis->ignored);
    }
    dli_check_last_look(&check, &time);
    report_guarantee(&check);
    dli_check_free(&info, 1);
    return DL_OK;
}
