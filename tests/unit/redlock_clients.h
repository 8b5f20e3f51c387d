/* redlock_clients.h - Redis servers behind relays, and a redlock client of them made by hand. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDLOCK_CLIENTS_H
#define REDLOCK_CLIENTS_H

#include "drivers/redis/redlock/round.h"
#include "redlock_relays.h"

#define NODES_MAX 5
#define UUID "aaaaaaaa-0000-4000-8000-000000000001"
#define OWNER UUID ":1"
#define TOKENS "dlock_tokens"
#define MARKER "dlock_tokens:node"
#define QUARANTINE "dlock_tokens:quarantine"

/* What a suite wants of its servers and its client. */
typedef struct plan {
    size_t n;                       /* of nodes */
    const dli_script_t *scripts[4]; /* that the servers know from the start; NULL: the end */
    const char *username;           /* and password; NULL: the default user */
    bool fences;                    /* it draws tokens, and the servers' counters differ */
    bool subscribes;                /* it can hear of releases */
} plan_t;

SHARED size_t server_count;
SHARED server_t servers[NODES_MAX];
SHARED relay_t relays[NODES_MAX];
SHARED dli_redlock_t client;
SHARED dl_driver_env_t env;
SHARED dl_error_t err;
SHARED dl_grant_t grant;
SHARED atomic_int warnings;

/* ---- the servers ---------------------------------------------------------------------------------- */

static inline void start_servers(const plan_t *plan) {
    for (size_t i = 0; i < plan->n; i++) {
        start_server(&servers[i], 0);
        start_relay(&relays[i], &servers[i]);
        for (const dli_script_t *const *script = plan->scripts; *script != NULL; script++) {
            tell(&servers[i], "SCRIPT LOAD %s", (*script)->source);
        }
    }
    server_count = plan->n;
}

/* The counters differ: the last node has the highest. */
static inline void spread_counters(long long from) {
    for (size_t i = 0; i < server_count; i++) {
        tell(&servers[i], "SET " TOKENS " %lld", from + 1000 * (long long)i);
    }
}

static inline void await_relays(void) {
    for (size_t i = 0; i < server_count; i++) {
        await_relay(&relays[i], &servers[i]);
    }
}

static inline void set_trap(size_t i, const dli_script_t *script, int way) {
    atomic_store(&relays[i].trap_way, way);
    atomic_store(&relays[i].trap, script->sha);
}

static inline void freeze(size_t i) {
    cr_assert_eq(kill(servers[i].pid, SIGSTOP), 0);
    cr_assert_eq(waitpid(servers[i].pid, NULL, WUNTRACED), servers[i].pid);
}

static inline void thaw(size_t i) {
    cr_assert_eq(kill(servers[i].pid, SIGCONT), 0);
}

/* ---- the client ----------------------------------------------------------------------------------- */

static inline void note_report(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    (void)text;
    atomic_fetch_add(&warnings, level <= DL_LOG_WARNING);
}

static inline void note_count(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    (void)what;
    (void)n;
}

static inline void open_node(size_t i, const plan_t *plan) {
    static const dli_pool_options_t pool = {.max_total = 8,
                                            .max_idle = 8,
                                            .borrow_timeout_ms = 1000,
                                            .idle_timeout_ms = 60000,
                                            .idle_check_ms = 1000};
    dli_node_t *node = &client.nodes[i];
    char url[128];
    dli_endpoint_extras_t extras = {.username = plan->username,
                                    .password = plan->username,
                                    .database = -1,
                                    .connect_timeout_ms = 1000,
                                    .keepalive_ms = -1};
    snprintf(url, sizeof url, "unix://%s", relays[i].path);
    node->redlock = &client;
    node->index = i;
    node->redis.env = &env;
    node->redis.layout = &dli_redis_string_layout;
    node->redis.prefix_len = 6;
    memcpy(node->redis.prefix, "dlock:", 7);
    memcpy(node->redis.token_key, TOKENS, sizeof TOKENS);
    memcpy(node->redis.prefix_shown, "dlock:", 7);
    memcpy(node->redis.token_key_shown, TOKENS, sizeof TOKENS);
    cr_assert_eq(dli_endpoint_make(&node->redis.endpoint, url, &extras, &err), DL_OK, "%s", err.message);
    cr_assert_eq(dli_link_open(&node->redis.endpoint, &pool, &env, &node->redis.link, &err), DL_OK);
    if (plan->subscribes) {
        cr_assert_eq(dli_subscriber_open(&node->redis.endpoint, &env, &node->redis.subscriber, &err), DL_OK);
    }
}

/* Without quarantine. */
static inline void open_client(const plan_t *plan) {
    client.env = &env;
    client.n = plan->n;
    client.quorum = plan->n / 2 + 1;
    client.node_timeout_ms = 500;
    client.max_lease_ms = 60000;
    client.fences = plan->fences;
    memcpy(client.marker_key, MARKER, sizeof MARKER);
    memcpy(client.quarantine_key, QUARANTINE, sizeof QUARANTINE);
    pthread_mutex_init(&client.mutex, NULL);
    for (size_t i = 0; i < client.n; i++) {
        open_node(i, plan);
    }
    cr_assert_eq(dli_stragglers_open(&client, &client.stragglers, &err), DL_OK, "%s", err.message);
}

static inline void close_client(void) {
    dli_stragglers_close(client.stragglers, false);
    dli_round_free(client.spare);
    dli_round_free(client.renewal_spare);
    for (size_t i = 0; i < client.n; i++) {
        dli_link_close(client.nodes[i].redis.link, false);
        dli_subscriber_close(client.nodes[i].redis.subscriber, false);
        dli_endpoint_free(&client.nodes[i].redis.endpoint);
    }
    pthread_mutex_destroy(&client.mutex);
    memset(&client, 0, sizeof client);
}

static inline void start_nodes(const plan_t *plan) {
    env = make_env(UUID, note_report, note_count);
    env.now_ns = show_ns;
    env.poll = poll_in_slices;
    start_servers(plan);
    if (plan->fences) {
        spread_counters(8000000000000000);
    }
    open_client(plan);
}

static inline void end_nodes(void) {
    atomic_store(&stopped_ns, 0);
    close_client();
    for (size_t i = 0; i < server_count; i++) {
        end_relay(&relays[i]);
        end_server(&servers[i]);
    }
}

/* ---- what the servers have ------------------------------------------------------------------------ */

static inline bool node_has(size_t i, const char *key, const char *value) {
    redisReply *reply = redisCommand(servers[i].admin, "GET %s", key);
    cr_assert_not_null(reply);
    bool has = reply->type == REDIS_REPLY_STRING && strcmp(reply->str, value) == 0;
    freeReplyObject(reply);
    return has;
}

/* The nodes where this very hold is. */
static inline uint32_t where(const char *name, uint64_t hold_id) {
    char key[64], value[128];
    uint32_t nodes = 0;
    snprintf(key, sizeof key, "dlock:%s", name);
    snprintf(value, sizeof value, OWNER ":%llu", (unsigned long long)hold_id);
    for (size_t i = 0; i < server_count; i++) {
        nodes |= node_has(i, key, value) ? 1u << i : 0;
    }
    return nodes;
}

static inline unsigned long long counter(size_t i) {
    redisReply *reply = redisCommand(servers[i].admin, "GET " TOKENS);
    cr_assert_not_null(reply);
    cr_assert_eq(reply->type, REDIS_REPLY_STRING);
    unsigned long long number = strtoull(reply->str, NULL, 10);
    freeReplyObject(reply);
    return number;
}

/* How many scripts were run there. */
static inline long long runs(size_t i) {
    return info(&servers[i], "commandstats", "cmdstat_evalsha:calls=");
}

/* Has any script written a key there since the counts were cleared? */
static inline bool was_written(size_t node) {
    return info(&servers[node], "commandstats", "cmdstat_set:calls=") > 0;
}

static inline void clear_counts(void) {
    for (size_t i = 0; i < server_count; i++) {
        tell(&servers[i], "CONFIG RESETSTAT");
    }
}

#define CHANNEL "dlock:released:dlock:"

static inline long long subscribers(size_t node, const char *name) {
    redisReply *reply = redisCommand(servers[node].admin, "PUBSUB NUMSUB " CHANNEL "%s", name);
    cr_assert_not_null(reply);
    cr_assert_eq(reply->elements, 2);
    long long number = reply->element[1]->integer;
    freeReplyObject(reply);
    return number;
}

static inline long long subscriptions(size_t node) {
    return tell(&servers[node], "PUBSUB CHANNELS");
}

/* ---- claims and frees of one lock ----------------------------------------------------------------- */

#define NAME "orders"
#define KEY "dlock:orders"

#define OTHER "bbbbbbbb-0000-0000-0000-000000000002:1"

/* Another has it there. */
static inline void occupy(size_t i, const char *value, long long left_ms) {
    tell(&servers[i], "SET " KEY " %s PX %lld", value, left_ms);
}

/* The nodes, of those that run, that have this at the lock's key. */
static inline size_t have(const char *value) {
    size_t count = 0;
    for (size_t i = 0; i < client.n; i++) {
        count += servers[i].pid != 0 && node_has(i, KEY, value);
    }
    return count;
}

static inline bool is_free(void) {
    for (size_t i = 0; i < client.n; i++) {
        if (servers[i].pid != 0 && tell(&servers[i], "EXISTS " KEY) != 0) {
            return false;
        }
    }
    return true;
}

static inline dl_status_t try_with(dl_request_t request) {
    grant = (dl_grant_t){.session_fd = -7, .busy_ms = -7};
    err = (dl_error_t){.status = DL_OK};
    dl_status_t status = dli_redlock_try_acquire(&client, NULL, &request, &grant, &err);
    cr_assert_eq(status, err.status, "%s", err.message);
    return status;
}

static inline dl_request_t request_of(uint64_t hold_id) {
    return make_request(NAME, OWNER, hold_id, in_ms(2000));
}

static inline dl_status_t try_it(uint64_t hold_id) {
    return try_with(request_of(hold_id));
}

static inline dl_status_t free_it(uint64_t hold_id) {
    dl_request_t request = request_of(hold_id);
    err = (dl_error_t){.status = DL_OK};
    return dli_redlock_release(&client, NULL, &request, &err);
}

/* Every node has a connection that is ready, and no answer of one is still to be read. */
static inline void connect_all(void) {
    cr_assert_eq(try_it(1), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":1"), ==, client.n);
    cr_assert_eq(free_it(1), DL_OK, "%s", err.message);
    AWAIT(is_free());
    for (size_t i = 0; i < client.n; i++) {
        AWAIT_THAT(atomic_load(&client.nodes[i].backlog), ==, 0);
    }
    spread_counters(8100000000000000);
}

#endif
