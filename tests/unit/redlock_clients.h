/* redlock_clients.h - Redis servers behind relays, and a redlock client of them made by hand. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDLOCK_CLIENTS_H
#define REDLOCK_CLIENTS_H

#include "drivers/redis/redlock/round.h"
#include "redlock_relays.h"

/* Looks until it is true, and lets the client read meanwhile, which has no thread: this one is it. */
static inline void take_turn(void);
#undef AWAIT
#define AWAIT(cond)                                                      \
    do {                                                                 \
        for (uint64_t end_ = ran_ns() + 15000 * MS; !(cond);) {          \
            cr_assert_lt(ran_ns(), end_, "%s did not come true", #cond); \
            take_turn();                                                 \
        }                                                                \
    } while (0)
#undef AWAIT_THAT
#define AWAIT_THAT(a, op, b) AWAIT((a)op(b))

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
} plan_t;

SHARED size_t server_count;
SHARED server_t servers[NODES_MAX];
SHARED relay_t relays[NODES_MAX];
SHARED dli_redlock_t client;
SHARED dl_driver_env_t env;
SHARED dl_error_t err;
SHARED dl_grant_t grant;
SHARED atomic_int warnings;
SHARED pthread_t owner_thread;

#define HOLDS_MAX 1024
SHARED struct {
    uint64_t hold_id; /* 0: free */
    dli_redlock_hold_t hold;
} holds[HOLDS_MAX];

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

static const dli_mux_options_t options = {.idle_timeout_ms = 60000, .idle_check_ms = 1000};

static inline void open_node(size_t i, const plan_t *plan) {
    dli_node_t *node = &client.nodes[i];
    char url[128];
    dli_endpoint_extras_t extras = {.username = plan->username,
                                    .password = plan->username,
                                    .database = -1,
                                    .connect_timeout_ms = 1000,
                                    .keepalive_ms = -1};
    snprintf(url, sizeof url, "unix://%.95s", relays[i].path);
    node->redlock = &client;
    node->index = i;
    node->redis.env = &env;
    node->redis.core = &dli_redis_no_core;
    node->redis.layout = &dli_redis_string_layout;
    node->redis.prefix_len = 6;
    memcpy(node->redis.prefix, "dlock:", 7);
    memcpy(node->redis.token_key, TOKENS, sizeof TOKENS);
    memcpy(node->redis.prefix_shown, "dlock:", 7);
    memcpy(node->redis.token_key_shown, TOKENS, sizeof TOKENS);
    cr_assert_eq(dli_endpoint_make(&node->redis.endpoint, url, &extras, &err), DL_OK, "%s", err.message);
}

/* Without quarantine. */
static inline void open_client(const plan_t *plan) {
    client.env = &env;
    client.core = &dli_redis_no_core;
    client.n = plan->n;
    client.quorum = plan->n / 2 + 1;
    client.node_timeout_ms = 500;
    client.voting.max_lease_ms = 60000;
    client.fences = plan->fences;
    memcpy(client.voting.marker_key, MARKER, sizeof MARKER);
    memcpy(client.voting.quarantine_key, QUARANTINE, sizeof QUARANTINE);
    for (size_t i = 0; i < client.n; i++) {
        open_node(i, plan);
    }
    cr_assert_eq(dli_redlock_connect(&client, options, &err), DL_OK, "%s", err.message);
    for (size_t i = 0; i < client.n; i++) {
        dli_label_t *label = &client.nodes[i].redis.mux.label;
        label->key = NULL; /* there is none: writes are counted */
        dli_label_lost(label);
    }
    owner_thread = pthread_self();
}

static inline void close_client(void) {
    for (size_t i = 0; i < HOLDS_MAX; i++) {
        dli_redlock_drop(&client, &holds[i].hold);
        holds[i].hold_id = 0;
    }
    dli_redlock_close(&client, 0);
    memset(&client, 0, sizeof client);
}

/* Reads what has come within a millisecond. */
static inline void take_turn(void) {
    struct pollfd fds[DL_LISTEN_MAX];
    uint64_t due_ns;
    if (client.env == NULL || !pthread_equal(pthread_self(), owner_thread)) {
        (void)poll(NULL, 0, 1);
        return;
    }
    size_t n = dli_redlock_listen_fds(&client, fds, DL_LISTEN_MAX, &due_ns);
    if (poll(fds, n, 1) <= 0) {
        for (size_t i = 0; i < n; i++) {
            fds[i].revents = 0;
        }
    }
    dli_redlock_listen(&client, fds, n);
}

/* ---- requests ------------------------------------------------------------------------------------- */

/* One that has begun, as by the core. */
typedef struct asked {
    dli_request_t request; /* the first */
    dl_status_t status;
    bool is_over;
} asked_t;

static inline void note_end(dli_request_t *request, dl_status_t status) {
    asked_t *asked = (asked_t *)(void *)request;
    asked->status = status;
    asked->is_over = true;
}

static inline void begin_asking(asked_t *asked, const dli_request_t *request) {
    *asked = (asked_t){.request = *request};
    asked->request.ended = note_end;
    dli_redlock_begin(&client, &asked->request);
    (void)dli_redlock_flush(&client);
}

/* Nobody waits any more. */
static inline dl_status_t withdraw(asked_t *asked) {
    dl_status_t status = dli_redlock_withdraw(&client, &asked->request) ? DL_EUNKNOWN : DL_EIO;
    if (asked->request.err != NULL) {
        (void)dl_driver_fail(asked->request.err, status, 0, "no reply from the server");
    }
    return status;
}

static inline dl_status_t end_asking(asked_t *asked) {
    while (!asked->is_over && show_ns() < asked->request.with.deadline_ns) {
        take_turn();
    }
    return asked->is_over ? asked->status : withdraw(asked);
}

static inline dl_status_t ask(const dli_request_t *request) {
    asked_t asked;
    begin_asking(&asked, request);
    return end_asking(&asked);
}

static inline dl_status_t ask_by_name(dli_ask_kind_t kind, const char *name, dl_lock_info_t *info) {
    const dli_request_t request = {
        .kind = kind,
        .with = {.name = name, .name_len = strlen(name), .deadline_ns = in_ms(2000)},
        .info = info,
        .err = &err};
    return ask(&request);
}

static inline void *hold_of(uint64_t hold_id) {
    size_t i = 0;
    while (holds[i].hold_id != hold_id && holds[i].hold_id != 0) {
        cr_assert_lt(++i, HOLDS_MAX);
    }
    holds[i].hold_id = hold_id;
    return &holds[i].hold;
}

/* May the nodes have something of it still? As the core asks. */
static inline bool owes(uint64_t hold_id) {
    return dli_redlock_backend.owes(&client, hold_of(hold_id));
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

/* Requests to nodes whose answers are still to come. */
static inline size_t pending(void) {
    const dli_round_t *round;
    size_t count = 0;
    LIST_FOREACH(round, &client.all, of_all) {
        count += round->pending;
    }
    return count;
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

static inline dli_request_t try_of(const dl_request_t *with) {
    grant = (dl_grant_t){.session_fd = -7, .busy_ms = -7};
    err = (dl_error_t){.status = DL_OK};
    return (dli_request_t){
        .kind = DLI_ASK_TRY, .with = *with, .hold = hold_of(with->hold_id), .grant = &grant, .err = &err};
}

static inline dl_status_t try_with(dl_request_t with) {
    const dli_request_t request = try_of(&with);
    dl_status_t status = ask(&request);
    cr_assert_eq(status, err.status, "%s", err.message);
    return status;
}

static inline dl_request_t request_of(uint64_t hold_id) {
    return make_request(NAME, OWNER, hold_id, in_ms(2000));
}

static inline dl_status_t try_it(uint64_t hold_id) {
    return try_with(request_of(hold_id));
}

static inline dl_status_t free_until(uint64_t hold_id, uint64_t deadline_ns) {
    const dli_request_t request = {.kind = DLI_ASK_RELEASE,
                                   .with = make_request(NAME, OWNER, hold_id, deadline_ns),
                                   .hold = hold_of(hold_id),
                                   .err = &err};
    err = (dl_error_t){.status = DL_OK};
    return ask(&request);
}

static inline dl_status_t free_it(uint64_t hold_id) {
    return free_until(hold_id, in_ms(2000));
}

/* In the background, as the core does while it is owed. */
static inline dl_status_t free_again(uint64_t hold_id) {
    const dli_request_t request = {
        .kind = DLI_ASK_RELEASE, .with = request_of(hold_id), .hold = hold_of(hold_id)};
    return ask(&request);
}

/* Every node has a connection that is ready, and no answer of one is still to be read. */
static inline void connect_all(void) {
    cr_assert_eq(try_it(1), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":1"), ==, client.n);
    cr_assert_eq(free_it(1), DL_OK, "%s", err.message);
    AWAIT(is_free());
    AWAIT_THAT(pending(), ==, 0);
    spread_counters(8100000000000000);
}

#endif
