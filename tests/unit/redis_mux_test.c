/* redis_mux_test.c - requests on shared connections: order, giving up, silence, kills, scripts. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_link_fixture.h"

#include "drivers/redis/link/mux.h"

static dli_mux_t mux;
static pthread_mutex_t core_mutex = PTHREAD_MUTEX_INITIALIZER;
static dli_backend_env_t core;

static void lock_core(void *arg) {
    pthread_mutex_lock(arg);
}

static void unlock_core(void *arg) {
    pthread_mutex_unlock(arg);
}

/* A line of words, and the answer. */
typedef struct line {
    dli_redis_request_t wire; /* first */
    const char *words, *source;
    char answer[64];
    bool over;
    dl_status_t status;
    dl_error_t err;
} line_t;

static void encode_line(dli_redis_request_t *wire, size_t i, bool with_source, dli_commands_t *commands) {
    const line_t *line = (const line_t *)(const void *)wire;
    dli_slice_t argv[16];
    char copy[256];
    size_t argc = 0;
    (void)i;
    snprintf(copy, sizeof copy, "%s", line->words);
    for (char *rest = copy, *word; (word = strtok_r(rest, " ", &rest)) != NULL && argc < 16;) {
        argv[argc++] = dli_slice(word);
    }
    if (with_source) {
        argv[0] = dli_slice("EVAL");
        argv[1] = dli_slice(line->source);
    }
    dli_commands_add(commands, argc, argv);
}

static bool line_replied(dli_redis_request_t *wire, size_t i, const redisReply *reply) {
    line_t *line = (line_t *)(void *)wire;
    (void)i;
    if (reply->str != NULL) {
        snprintf(line->answer, sizeof line->answer, "%s", reply->str);
    } else {
        snprintf(line->answer, sizeof line->answer, "%lld", reply->integer);
    }
    return true;
}

static void line_ended(dli_redis_request_t *wire, dl_status_t status, const dl_error_t *why) {
    line_t *line = (line_t *)(void *)wire;
    line->status = status;
    line->over = true;
    if (why != NULL) {
        line->err = *why;
    }
}

#define KIND(intent_) \
    { .intent = (intent_), .encode = encode_line, .replied = line_replied, .ended = line_ended }
static const dli_redis_kind_t plain = KIND(DLI_PLAIN), claim = KIND(DLI_CLAIM), release = KIND(DLI_FREE);

static line_t line_of(const dli_redis_kind_t *kind, const char *words) {
    return (line_t){.wire = {.kind = kind, .count = 1, .claim = 7}, .words = words};
}

static void begin_line(line_t *line) {
    lock_core(&core_mutex);
    dli_mux_begin(&mux, &line->wire);
    (void)dli_mux_flush(&mux);
    unlock_core(&core_mutex);
}

static bool withdraw_line(line_t *line) {
    lock_core(&core_mutex);
    bool was_sent = dli_mux_withdraw(&mux, &line->wire);
    unlock_core(&core_mutex);
    return was_sent;
}

static bool finds_claim(uint64_t hold) {
    size_t pipe;
    lock_core(&core_mutex);
    bool found = dli_mux_find_claim(&mux, hold, &pipe);
    unlock_core(&core_mutex);
    return found;
}

static void listen_once(uint64_t until_ns) {
    struct pollfd fds[2 * DLI_PIPES_MAX];
    uint64_t due_ns;
    size_t n = dli_mux_listen_fds(&mux, fds, &due_ns);
    (void)env.poll(fds, n, due_ns < until_ns ? due_ns : until_ns);
    dli_mux_listen(&mux, fds, n);
}

static void await_line(const line_t *line) {
    uint64_t until_ns = env.now_ns() + 5000 * MS;
    while (!line->over) {
        cr_assert_lt(env.now_ns(), until_ns);
        listen_once(until_ns);
    }
}

static void run_line(line_t *line) {
    begin_line(line);
    await_line(line);
}

static void open_mux(const char *path) {
    char url[128];
    dl_error_t err;
    dli_endpoint_extras_t extras = {.database = -1, .connect_timeout_ms = 1000, .keepalive_ms = -1};
    snprintf(url, sizeof url, "unix://%s", path);
    cr_assert_eq(dli_endpoint_make(&endpoint, url, &extras, &err), DL_OK, "%s", err.message);
    core = (dli_backend_env_t){.core = &core_mutex, .lock = lock_core, .unlock = unlock_core};
    cr_assert_eq(dli_mux_open(&mux, &endpoint, &env, &core, &options, 2, &err), DL_OK, "%s", err.message);
}

static void tear_mux_down(void) {
    dli_mux_close(&mux, false);
    tear_down();
}

TestSuite(redis_mux, .init = set_up, .fini = tear_mux_down);

static void open_mux_over_relay(void) {
    relay_listener = listen_at(relay_path, PAIRS);
    cr_assert_eq(pthread_create(&relay_thread, NULL, relay, NULL), 0);
    open_mux(relay_path);
}

static long long on_server(const char *key) {
    line_t look = line_of(&plain, key);
    look.wire.pipe = 1;
    run_line(&look);
    cr_assert_eq(look.status, DL_OK, "%s", look.err.message);
    return strtoll(look.answer, NULL, 10);
}

Test(redis_mux, replies_find_their_requests_by_their_places) {
    enum { MANY = 500 };
    static line_t lines[MANY];
    static char words[MANY][24];
    open_mux(server.path);
    lock_core(&core_mutex);
    for (int i = 0; i < MANY; i++) {
        snprintf(words[i], sizeof words[i], "ECHO %d", i);
        lines[i] = line_of(&plain, words[i]);
        dli_mux_begin(&mux, &lines[i].wire);
    }
    (void)dli_mux_flush(&mux);
    unlock_core(&core_mutex);
    for (int i = 0; i < MANY; i++) {
        await_line(&lines[i]);
        cr_assert_str_eq(lines[i].answer, words[i] + 5);
    }
    cr_assert_eq(connections(), 1);
}

Test(redis_mux, giving_up_costs_a_place_and_nothing_else) {
    open_mux(server.path);
    line_t warm = line_of(&plain, "PING"), a = line_of(&plain, "ECHO a"), b = line_of(&plain, "ECHO b");
    run_line(&warm);
    begin_line(&a);
    begin_line(&b);
    cr_assert(withdraw_line(&a));
    await_line(&b);
    cr_assert_str_eq(b.answer, "b");
    cr_assert_eq(a.over, false);
    /* What was not sent leaves nothing at all. */
    lock_core(&core_mutex);
    line_t never = line_of(&plain, "SET never x");
    dli_mux_begin(&mux, &never.wire);
    cr_assert_eq(dli_mux_withdraw(&mux, &never.wire), false);
    unlock_core(&core_mutex);
    cr_assert_eq(on_server("EXISTS never"), 0);
}

Test(redis_mux, the_free_of_a_claim_without_an_answer_goes_behind_it) {
    open_mux(server.path);
    line_t warm = line_of(&plain, "PING"), get = line_of(&claim, "SET lock x");
    run_line(&warm);
    cr_assert_eq(kill(server.pid, SIGSTOP), 0);
    begin_line(&get);
    cr_assert(withdraw_line(&get));
    cr_assert(finds_claim(7));
    cr_assert_eq(finds_claim(8), false);
    cr_assert_eq(kill(server.pid, SIGCONT), 0);
    line_t give = line_of(&release, "DEL lock");
    run_line(&give);
    cr_assert_str_eq(give.answer, "1");
    cr_assert_eq(finds_claim(7), false);
}

Test(redis_mux, a_script_that_was_forgotten_is_sent_by_its_text) {
    open_mux(server.path);
    line_t call = line_of(&claim, "EVALSHA 0123456789012345678901234567890123456789 0 word");
    call.source = "return ARGV[1]";
    run_line(&call);
    cr_assert_eq(call.status, DL_OK, "%s", call.err.message);
    cr_assert_str_eq(call.answer, "word");
}

/* The relay keeps back what the first connection says. */
static void fall_silent(line_t *get) {
    open_mux_over_relay();
    line_t warm = line_of(&plain, "PING");
    run_line(&warm);
    atomic_store(&relay_held[0], 1);
    *get = line_of(&claim, "SET lock x");
    begin_line(get);
}

Test(redis_mux, a_silent_connection_has_a_successor_and_is_killed_before_the_next_free) {
    line_t get;
    fall_silent(&get);
    await_line(&get);
    cr_assert_eq(get.status, DL_EUNKNOWN);
    cr_assert_has(get.err.message, "does not answer");
    line_t give = line_of(&release, "DEL lock");
    run_line(&give);
    cr_assert_eq(give.status, DL_OK, "%s", give.err.message);
    cr_assert_str_eq(give.answer, "0");
    cr_assert_eq(mux.kill_count, 0);
    atomic_store(&relay_held[0], 0); /* the network was slow */
    AWAIT(!atomic_load(&relay_open[0]));
    cr_assert_eq(on_server("EXISTS lock"), 0);
}

Test(redis_mux, without_the_kill_a_late_claim_would_come_behind_its_free) {
    line_t get;
    fall_silent(&get);
    await_line(&get);
    lock_core(&core_mutex);
    mux.kill_count = 0;
    unlock_core(&core_mutex);
    line_t give = line_of(&release, "DEL lock");
    run_line(&give);
    atomic_store(&relay_held[0], 0);
    AWAIT_THAT(on_server("EXISTS lock"), ==, 1);
}

Test(redis_mux, what_had_not_left_goes_out_on_the_successor) {
    line_t get, next = line_of(&plain, "ECHO next");
    fall_silent(&get);
    cr_assert(withdraw_line(&get)); /* the one before was given up: nobody sends behind it */
    uint64_t until_ns = env.now_ns() + 50 * MS;
    while (env.now_ns() < until_ns) {
        listen_once(until_ns);
    }
    run_line(&next);
    cr_assert_eq(next.status, DL_OK, "%s", next.err.message);
    cr_assert_str_eq(next.answer, "next");
}

Test(redis_mux, a_server_that_is_gone_refuses_at_once_and_is_found_again) {
    open_mux(server.path);
    line_t warm = line_of(&plain, "PING");
    run_line(&warm);
    kill_server(&server);
    line_t lost = line_of(&plain, "PING");
    run_line(&lost);
    cr_assert_eq(lost.status, DL_EIO, "%s", lost.err.message);
    boot_server(&server);
    line_t again;
    do {
        again = line_of(&plain, "PING");
        run_line(&again);
    } while (again.status != DL_OK);
    cr_assert_str_eq(again.answer, "PONG");
    AWAIT(was_reported("the server is back"));
}

Test(redis_mux, a_connection_that_was_idle_is_tested_first) {
    options.test_on_borrow = true;
    open_mux(server.path);
    line_t first = line_of(&plain, "ECHO first"), next = line_of(&plain, "ECHO next");
    run_line(&first);
    uint64_t until_ns = env.now_ns() + 5 * MS;
    (void)env.poll(NULL, 0, until_ns); /* so long is idle */
    run_line(&next);
    cr_assert_str_eq(next.answer, "next");
    cr_assert_eq(info(&server, "commandstats", "cmdstat_ping:calls="), 1);
}
