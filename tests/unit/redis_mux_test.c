/* redis_mux_test.c - requests on shared connections: order, giving up, silence, kills, scripts. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/ioctl.h>

#include "drivers/redis/link/pipe.h"
#include "redis_mux_fixture.h"

TestSuite(redis_mux, .init = set_up, .fini = tear_down);

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
    line_t give = line_of(&release, "DEL lock"), other = line_of(&release, "DEL other");
    give.wire.pipe = other.wire.pipe = 1;
    other.wire.claim = 8;
    begin_line(&give);
    begin_line(&other);
    cr_assert_eq(give.wire.pipe, 0);
    cr_assert_eq(other.wire.pipe, 1);
    cr_assert_eq(kill(server.pid, SIGCONT), 0);
    await_line(&give);
    cr_assert_str_eq(give.answer, "1");
    await_line(&other);
    line_t again = line_of(&release, "DEL lock");
    again.wire.pipe = 1;
    run_line(&again);
    cr_assert_eq(again.wire.pipe, 1, "its claim was answered");
}

Test(redis_mux, a_script_that_was_forgotten_is_sent_by_its_text) {
    open_mux(server.path);
    line_t call = line_of(&claim, "EVALSHA 0123456789012345678901234567890123456789 0 word");
    call.source = "return ARGV[1]";
    run_line(&call);
    cr_assert_eq(call.status, DL_OK, "%s", call.err.message);
    cr_assert_str_eq(call.answer, "word");
}

/* Two commands; the answer to the second is known already as the first has to be sent again. */
static void encode_twice(dli_redis_request_t *wire, bool with_source, dli_commands_t *commands) {
    encode_line(wire, with_source, commands);
    dli_commands_add_words(commands, "INCR", "calls", NULL);
}

static int replies;

static bool count_reply(dli_redis_request_t *wire, const redisReply *reply) {
    replies++;
    return line_replied(wire, reply);
}

Test(redis_mux, what_comes_behind_a_script_that_was_forgotten_is_no_answer) {
    static const dli_redis_kind_t batch = {
        .intent = DLI_PLAIN, .encode = encode_twice, .replied = count_reply, .ended = line_ended};
    open_mux(server.path);
    line_t call = line_of(&batch, "EVALSHA 0123456789012345678901234567890123456789 0 word");
    call.source = "return ARGV[1]";
    call.wire.count = 2;
    run_line(&call);
    cr_assert_eq(call.status, DL_OK, "%s", call.err.message);
    cr_assert_str_eq(call.answer, "2", "it was carried out twice");
    cr_assert_eq(replies, 2, "and answered once");
}

static line_t *withdrawn;

static void encode_without_memory(dli_redis_request_t *wire, bool with_source, dli_commands_t *commands) {
    (void)wire;
    (void)with_source;
    commands->out_of_memory = true;
}

static void end_and_withdraw(dli_redis_request_t *wire, dl_status_t status, const dl_error_t *why) {
    line_ended(wire, status, why);
    (void)dli_mux_withdraw(&mux, &withdrawn->wire);
}

Test(redis_mux, what_is_withdrawn_as_the_one_before_ends_without_memory_is_not_sent) {
    static const dli_redis_kind_t poor = {.intent = DLI_PLAIN,
                                          .encode = encode_without_memory,
                                          .replied = line_replied,
                                          .ended = end_and_withdraw};
    open_mux(server.path);
    line_t warm = line_of(&plain, "PING");
    run_line(&warm);
    line_t first = line_of(&poor, ""), second = line_of(&claim, "SET lock x"),
           third = line_of(&plain, "PING");
    withdrawn = &second;
    lock_core(&core_mutex);
    dli_mux_begin(&mux, &first.wire);
    dli_mux_begin(&mux, &second.wire);
    dli_mux_begin(&mux, &third.wire);
    (void)dli_mux_flush(&mux);
    unlock_core(&core_mutex);
    await_line(&third);
    cr_assert_eq(first.status, DL_ENOMEM);
    cr_assert_eq(third.status, DL_OK, "%s", third.err.message);
    cr_assert_eq(on_server("EXISTS lock"), 0);
}

static line_t *follows;

static void end_and_go_on(dli_redis_request_t *wire, dl_status_t status, const dl_error_t *why) {
    line_ended(wire, status, why);
    dli_mux_begin(&mux, &follows->wire);
}

/* As the free of a claim that too few replicas know of. */
Test(redis_mux, what_an_end_begins_further_down_is_sent_by_the_same_flush) {
    static const dli_redis_kind_t poor = {
        .encode = encode_without_memory, .replied = line_replied, .ended = end_and_go_on};
    line_t first = line_of(&poor, ""), second = line_of(&plain, "ECHO second");
    open_mux(server.path);
    for (uint32_t i = 0; i < 2; i++) {
        line_t warm = line_of(&plain, "PING");
        warm.wire.pipe = i;
        run_line(&warm);
    }
    first.wire.pipe = 1;
    follows = &second;
    begin_line(&first);
    cr_assert_eq(first.status, DL_ENOMEM);
    cr_assert_not(second.wire.queued, "it waits for another flush");
    await_line(&second);
    cr_assert_str_eq(second.answer, "second");
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

Test(redis_mux, a_successor_on_a_way_that_is_slow_takes_over_all_the_same) {
    line_t get, next = line_of(&plain, "ECHO next");
    env.call_timeout_ms = 60000; /* nobody waits for that */
    atomic_store(&relay_slow_ms, 300);
    fall_silent(&get);
    await_line(&get);
    cr_assert_eq(get.status, DL_EUNKNOWN);
    run_line(&next);
    cr_assert_eq(next.status, DL_OK, "%s", next.err.message);
}

Test(redis_mux, a_successor_on_a_way_that_has_become_slow_takes_over_once_nobody_waits) {
    line_t get, next = line_of(&plain, "ECHO next");
    env.call_timeout_ms = 500;
    fall_silent(&get);
    atomic_store(&relay_slow_ms, 400);
    await_line(&get);
    cr_assert_eq(get.status, DL_EUNKNOWN);
    run_line(&next);
    cr_assert_eq(next.status, DL_OK, "%s", next.err.message);
}

static dl_driver_env_t real; /* without a sleep */
static uint64_t slept_ns;

static uint64_t stands_at_ns; /* the clock does; 0: it runs */

static uint64_t now_after_sleep(void) {
    return stands_at_ns != 0 ? stands_at_ns : real.now_ns() + slept_ns;
}

static int poll_after_sleep(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    return real.poll(fds, n, deadline_ns != DL_NO_DEADLINE ? deadline_ns - slept_ns : deadline_ns);
}

static void count_sleeps(void) {
    real = env;
    env.now_ns = now_after_sleep;
    env.poll = poll_after_sleep;
}

/* The clock stands, whatever the machine does meanwhile. */
static void look_at(uint64_t ns) {
    stands_at_ns = ns;
    listen_once(real.now_ns());
}

static void go_on(void) {
    slept_ns = stands_at_ns - real.now_ns();
    stands_at_ns = 0;
}

Test(redis_mux, who_came_later_than_a_connection_that_fails_has_its_successors_time) {
    line_t first = line_of(&plain, "ECHO first"), later = line_of(&plain, "ECHO later");
    const dli_pipe_t *pipe = &mux.pipes[0];
    count_sleeps();
    atomic_store(&relay_holds_new, 1);
    open_mux_over_relay();
    begin_line(&first);
    look_at(pipe->began_ns + 200 * MS);
    cr_assert_not_null(pipe->next);
    begin_line(&later);
    look_at(dli_conn_until(pipe->conn) + MS);
    cr_assert(first.over);
    cr_assert_eq(first.status, DL_EIO);
    cr_assert_not(later.over);
    go_on();
    AWAIT_THAT(atomic_load(&relay_pairs), ==, 2);
    atomic_store(&relay_holds_new, 0);
    for (int i = 0; i < PAIRS; i++) {
        atomic_store(&relay_held[i], 0);
    }
    await_line(&later);
    cr_assert_eq(later.status, DL_OK, "%s", later.err.message);
}

/* As it came, the first connection was there and silent, and so was its successor, which fails now. */
Test(redis_mux, who_came_to_a_silent_connection_has_the_time_of_its_successors_successor) {
    line_t get, later = line_of(&plain, "ECHO later");
    const dli_pipe_t *pipe = &mux.pipes[0];
    count_sleeps();
    env.call_timeout_ms = 100;
    fall_silent(&get);
    atomic_store(&relay_holds_new, 1);
    AWAIT((listen_once(env.now_ns() + MS), pipe->next != NULL));
    slept_ns += 50 * MS;
    begin_line(&later);
    cr_assert(pipe->ready);
    await_line(&get);
    AWAIT((listen_once(env.now_ns() + MS), pipe->next != NULL));
    uint64_t began_ns = pipe->began_ns;
    slept_ns += dli_conn_until(pipe->conn) + MS - env.now_ns();
    AWAIT_THAT((listen_once(env.now_ns() + MS), pipe->began_ns), >, began_ns);
    cr_assert_not(later.over, "%s", later.err.message);
    atomic_store(&relay_holds_new, 0);
    for (int i = 0; i < PAIRS; i++) {
        atomic_store(&relay_held[i], 0);
    }
    await_line(&later);
    cr_assert_eq(later.status, DL_OK, "%s", later.err.message);
}

Test(redis_mux, a_successor_of_a_connection_that_was_made_after_all_is_dropped) {
    line_t get = line_of(&plain, "PING");
    const dli_pipe_t *pipe = &mux.pipes[0];
    atomic_store(&relay_slow_ms, 400);
    open_mux_over_relay();
    begin_line(&get);
    AWAIT_THAT((listen_once(env.now_ns() + MS), atomic_load(&relay_pairs)), >, 1);
    AWAIT((listen_once(env.now_ns() + MS), pipe->ready));
    cr_assert_null(pipe->next);
    await_line(&get);
    cr_assert_eq(get.status, DL_OK, "%s", get.err.message);
}

static int meetings;

static dl_status_t count_meeting(void *arg, const dli_facts_t *facts, dl_error_t *err) {
    (void)arg;
    (void)facts;
    (void)err;
    meetings++;
    return DL_OK;
}

Test(redis_mux, a_successor_that_does_not_take_over_is_not_the_server) {
    line_t get;
    mux.meets = count_meeting;
    fall_silent(&get);
    const dli_pipe_t *pipe = &mux.pipes[0];
    AWAIT((listen_once(env.now_ns() + MS), pipe->next_ready));
    struct pollfd reply = {.fd = pipe->fd, .events = POLLIN};
    atomic_store(&relay_held[0], 0);
    cr_assert_eq(poll(&reply, 1, 5000), 1);
    await_line(&get);
    cr_assert_eq(get.status, DL_OK, "%s", get.err.message);
    cr_assert_null(pipe->next);
    cr_assert_eq(meetings, 1);
    atomic_store(&relay_held[0], 1);
    get = line_of(&plain, "PING");
    run_line(&get);
    cr_assert_eq(get.status, DL_EUNKNOWN);
    cr_assert_eq(meetings, 2, "it has taken over");
}

static line_t *withdrawn_with_it;

static void ended_with_another(dli_redis_request_t *wire, dl_status_t status, const dl_error_t *why) {
    line_ended(wire, status, why);
    (void)dli_mux_withdraw(&mux, &withdrawn_with_it->wire);
}

Test(redis_mux, a_connection_that_is_over_has_nothing_that_was_given_up) {
    dli_redis_kind_t last = claim;
    line_t get;
    fall_silent(&get);
    last.ended = ended_with_another;
    line_t next = line_of(&last, "SET lock y");
    withdrawn_with_it = &get;
    run_line(&next);
    cr_assert_eq(next.status, DL_EUNKNOWN);
    cr_assert(!get.over);
    cr_assert_eq(mux.pipes[0].given_up, 0);
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

/* The reply is late, and no other connection gets through. */
static void give_up_late(line_t *get) {
    count_sleeps();
    fall_silent(get);
    atomic_store(&relay_holds_new, 1);
    cr_assert(withdraw_line(get));
    slept_ns = 300 * MS;
}

/* This process was stopped while it made a successor, until that had just missed its time. */
Test(redis_mux, who_was_stopped_takes_no_server_for_down_and_still_frees_behind_the_claim) {
    line_t get, give = line_of(&release, "DEL lock");
    give_up_late(&get);
    begin_line(&give);
    cr_assert_not_null(mux.pipes[0].next);
    slept_ns += dli_conn_until(mux.pipes[0].next) + MS - env.now_ns();
    listen_once(env.now_ns());
    listen_once(env.now_ns() + MS);
    cr_assert(!give.over, "%s", give.err.message);
    cr_assert_eq(atomic_load(&warnings), 0, "%s", reported);
    atomic_store(&relay_held[0], 0);
    await_line(&give);
    cr_assert_eq(give.status, DL_OK, "%s", give.err.message);
    cr_assert_str_eq(give.answer, "1");
}

static struct pollfd led[2];

/* Its first connection ends. The next is made, and nobody looks for so long. */
static void lie_half_made(line_t *get, uint64_t ns) {
    line_t warm = line_of(&plain, "PING");
    count_sleeps();
    open_mux_over_relay();
    run_line(&warm);
    atomic_store(&relay_slow_ms, 50);
    atomic_store(&relay_held[0], 1);
    cr_assert_eq(shutdown(relay_fds[0][0], SHUT_RDWR), 0);
    slept_ns += 10 * MS; /* it is no longer trusted without a look */
    begin_line(get);
    AWAIT_THAT(atomic_load(&relay_pairs), ==, 2);
    int came = 0;
    AWAIT_THAT((dli_conn_want(mux.pipes[0].conn, &led[0]), ioctl(led[0].fd, FIONREAD, &came), came), >, 0);
    slept_ns += ns;
}

Test(redis_mux, how_long_a_connection_lay_half_made_is_no_measure_of_its_way) {
    line_t warm = line_of(&plain, "PING"), get = line_of(&claim, "SET lock x");
    lie_half_made(&warm, 900 * MS);
    await_line(&warm);
    cr_assert_eq(warm.status, DL_OK, "%s", warm.err.message);
    env.call_timeout_ms = 60000;
    atomic_store(&relay_slow_ms, 0);
    atomic_store(&relay_held[1], 1);
    atomic_store(&relay_holds_new, 1);
    begin_line(&get);
    AWAIT_THAT((listen_once(env.now_ns() + MS), atomic_load(&relay_pairs)), >, 2);
    uint64_t began_ns = mux.pipes[0].next_began_ns;
    AWAIT_THAT((listen_once(env.now_ns() + MS), mux.pipes[0].next_began_ns), >, began_ns);
    cr_assert_lt(mux.pipes[0].next_began_ns - began_ns, 600 * MS);
    (void)withdraw_line(&get);
}

Test(redis_mux, a_connection_that_lay_half_made_is_looked_at_before_it_is_used) {
    line_t get = line_of(&claim, "SET lock x");
    lie_half_made(&get, 900 * MS);
    atomic_store(&relay_held[1], 1);
    cr_assert_eq(shutdown(relay_fds[1][0], SHUT_WR), 0); /* the server hangs up behind its greeting */
    await_line(&get);
    cr_assert_eq(get.status, DL_OK, "%s", get.err.message);
}

/* No other connection can be made, but this one is there, and so may be the server. */
Test(redis_mux, the_free_of_a_claim_on_its_way_is_not_refused_with_what_else_is_to_be_sent) {
    line_t get, give = line_of(&release, "DEL lock"), other = line_of(&release, "DEL other");
    other.wire.claim = 8;
    give_up_late(&get);
    endpoint.connect_timeout_ms = 10;
    begin_line(&give);
    run_line(&other);
    cr_assert_eq(other.status, DL_EIO, "%s", other.err.message);
    cr_assert(!give.over, "%s", give.err.message);
    atomic_store(&relay_held[0], 0);
    await_line(&give);
    cr_assert_eq(give.status, DL_OK, "%s", give.err.message);
    cr_assert_str_eq(give.answer, "1");
}

/* What had not left a connection that ended is in front again, although it came later. */
Test(redis_mux, who_has_waited_for_long_is_refused_behind_one_who_has_not) {
    line_t young = line_of(&plain, "PING"), old = line_of(&plain, "PING");
    dl_error_t why = {.status = DL_EIO};
    open_mux(server.path);
    lock_core(&core_mutex);
    dli_mux_begin(&mux, &young.wire);
    dli_mux_begin(&mux, &old.wire);
    young.wire.sent_ns = old.wire.sent_ns + 1;
    dli_pipe_refuse(&mux.pipes[0], old.wire.sent_ns, DL_EIO, &why);
    (void)dli_mux_flush(&mux);
    unlock_core(&core_mutex);
    cr_assert_not(young.over);
    cr_assert_eq(old.status, DL_EIO);
    await_line(&young);
    cr_assert_eq(young.status, DL_OK, "%s", young.err.message);
}

Test(redis_mux, a_free_is_not_kept_for_a_claim_whose_connection_is_over) {
    line_t get, give = line_of(&release, "DEL lock");
    give_up_late(&get);
    begin_line(&give);
    cr_assert_eq(unlink(relay_path), 0);
    cr_assert_eq(shutdown(relay_fds[0][0], SHUT_RDWR), 0);
    await_line(&give);
    cr_assert_eq(give.status, DL_EIO);
}

enum { CLAIMS = 4000, FREES = 1000 };

static uint64_t used_ns(void) {
    struct timespec used;
    cr_assert_eq(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used), 0);
    return (uint64_t)used.tv_sec * 1000 * MS + (uint64_t)used.tv_nsec;
}

/* What one refusal costs that keeps the frees of this claim, at the least. */
static uint64_t refusal_ns(uint64_t hold) {
    static line_t gives[FREES];
    uint64_t least_ns = UINT64_MAX;
    dl_error_t why = {.status = DL_EIO};
    lock_core(&core_mutex);
    for (int i = 0; i < FREES; i++) {
        gives[i] = line_of(&release, "PING");
        gives[i].wire.claim = hold;
        dli_mux_begin(&mux, &gives[i].wire);
    }
    for (int i = 0; i < 5; i++) {
        uint64_t began_ns = used_ns();
        dli_pipe_refuse(&mux.pipes[0], UINT64_MAX, DL_EIO, &why);
        uint64_t ns = used_ns() - began_ns;
        least_ns = ns < least_ns ? ns : least_ns;
    }
    for (int i = 0; i < FREES; i++) {
        cr_assert_not(gives[i].over);
        (void)dli_mux_withdraw(&mux, &gives[i].wire);
    }
    unlock_core(&core_mutex);
    return least_ns;
}

Test(redis_mux, what_a_refusal_costs_does_not_depend_on_where_claims_are_on_their_way) {
    static line_t gets[CLAIMS];
    open_mux(server.path);
    line_t warm = line_of(&plain, "PING");
    run_line(&warm);
    lock_core(&core_mutex);
    for (int i = 0; i < CLAIMS; i++) {
        gets[i] = line_of(&claim, "PING");
        gets[i].wire.claim = (uint64_t)i + 1;
        dli_mux_begin(&mux, &gets[i].wire);
    }
    (void)dli_mux_flush(&mux);
    for (int i = 0; i < CLAIMS; i++) {
        cr_assert(dli_mux_withdraw(&mux, &gets[i].wire));
    }
    unlock_core(&core_mutex);
    uint64_t first_ns = refusal_ns(1), last_ns = refusal_ns(CLAIMS);
    cr_assert_lt(last_ns, 10 * first_ns);
    cr_assert_lt(first_ns, 10 * last_ns);
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
    options.idle_check_ms = 60000;
    open_mux(server.path);
    line_t first = line_of(&plain, "ECHO first"), next = line_of(&plain, "ECHO next");
    run_line(&first);
    mux.idle_check_ns = 0;
    uint64_t until_ns = env.now_ns() + 5 * MS;
    (void)env.poll(NULL, 0, until_ns); /* so long is idle */
    run_line(&next);
    cr_assert_str_eq(next.answer, "next");
    cr_assert_eq(info(&server, "commandstats", "cmdstat_ping:calls="), 1);
}

Test(redis_mux, a_connection_whose_making_takes_longer_than_idle_timeout_is_used) {
    line_t get = line_of(&plain, "ECHO get");
    options.idle_timeout_ms = 20;
    atomic_store(&relay_slow_ms, 100);
    open_mux_over_relay();
    run_line(&get);
    cr_assert_eq(get.status, DL_OK, "%s", get.err.message);
    cr_assert_eq(atomic_load(&relay_pairs), 1);
}

static void encode_two(dli_redis_request_t *wire, bool with_source, dli_commands_t *commands) {
    encode_line(wire, with_source, commands);
    dli_commands_add_words(commands, "ECHO", "surplus", NULL);
}

/* The server gives two answers at once, and one is expected. */
Test(redis_mux, an_answer_that_nobody_asked_for_ends_its_connection) {
    static const dli_redis_kind_t two = {.encode = encode_two, .replied = line_replied, .ended = line_ended};
    open_mux(server.path);
    for (int i = 0; i < 3; i++) {
        line_t asked = line_of(&two, "ECHO asked"), mine = line_of(&plain, "ECHO mine");
        run_line(&asked);
        cr_assert_str_eq(asked.answer, "asked");
        run_line(&mine);
        cr_assert_eq(mine.status, DL_OK, "%s", mine.err.message);
        cr_assert_str_eq(mine.answer, "mine");
        cr_assert_eq(atomic_load(&reconnects), i + 1);
    }
}

Test(redis_mux, a_restarted_server_is_reported) {
    open_mux(server.path);
    line_t line = line_of(&plain, "PING");
    run_line(&line);
    kill_server(&server);
    boot_server(&server);
    do {
        line = line_of(&plain, "PING");
        run_line(&line);
    } while (line.status != DL_OK);
    cr_assert(was_reported("restarted or replaced"), "%s", reported);
    cr_assert_eq(atomic_load(&reconnects), 1);
}

Test(redis_mux, after_a_failover_no_connection_of_before_is_used_again) {
    open_mux(server.path);
    line_t first = line_of(&plain, "PING"), other = line_of(&plain, "PING");
    other.wire.pipe = 1;
    run_line(&first);
    run_line(&other);
    cr_assert_eq(connections(), 2);
    tell(&server, "REPLICAOF 127.0.0.1 1");
    line_t refused = line_of(&plain, "SET a 1");
    run_line(&refused);
    cr_assert_eq(strncmp(refused.answer, "READONLY", 8), 0, "%s", refused.answer);
    for (uint32_t i = 0; i < 2; i++) {
        line_t line = line_of(&plain, "PING");
        line.wire.pipe = i;
        run_line(&line);
        cr_assert_eq(line.status, DL_EIO, "a replica is refused");
    }
    AWAIT_THAT(connections(), ==, 0);
}

/* A server to which the relay can lead, beside the one that was met. */
static void have_another(server_t *other) {
    line_t first = line_of(&plain, "PING");
    start_server(other, 0);
    open_mux_over_relay();
    run_line(&first);
}

/* The address leads to another server, and the old one lives on. */
Test(redis_mux, after_another_server_was_met_no_connection_to_the_old_one_is_used) {
    server_t other;
    line_t beside = line_of(&plain, "PING");
    have_another(&other);
    leads_to = &other;
    beside.wire.pipe = 1;
    run_line(&beside);
    cr_assert(was_reported("restarted or replaced"), "%s", reported);
    line_t claims = line_of(&claim, "SET lock x");
    run_line(&claims);
    cr_assert_eq(claims.status, DL_OK, "%s", claims.err.message);
    cr_assert_eq(tell(&server, "EXISTS lock"), 0);
    cr_assert_str_eq(mux.pipes[0].facts.run_id, mux.pipes[1].facts.run_id);
    leads_to = NULL;
    end_server(&other);
}

/* Held back on its way to the server, which never has it. */
static void lose_claim(void) {
    line_t get;
    fall_silent(&get);
    await_line(&get);
    cr_assert_eq(get.status, DL_EUNKNOWN);
    cr_assert_eq(mux.kill_count, 1);
}

static long long kills(void) {
    long long calls = info(&server, "commandstats", "cmdstat_client|kill:calls=");
    return calls < 0 ? 0 : calls;
}

Test(redis_mux, frees_kill_until_a_kill_is_confirmed) {
    lose_claim();
    /* The connection that is to say it is lost before its answer, the first or a later successor. */
    for (int i = 0; i < atomic_load(&relay_pairs); i++) {
        atomic_store(&relay_held[i], 1);
    }
    line_t give = line_of(&release, "DEL lock");
    run_line(&give);
    cr_assert_eq(give.status, DL_EUNKNOWN);
    cr_assert_eq(mux.kill_count, 1);
    cr_assert_eq(kills(), 0);
    for (int i = 0; i < 2; i++) {
        give = line_of(&release, "DEL lock");
        run_line(&give);
        cr_assert_eq(give.status, DL_OK, "%s", give.err.message);
        cr_assert_eq(mux.kill_count, 0);
    }
    cr_assert_eq(kills(), 1);
}

Test(redis_mux, what_another_server_was_asked_is_not_killed_here) {
    lose_claim();
    kill_server(&server);
    boot_server(&server);
    line_t give;
    do {
        give = line_of(&release, "DEL lock");
        run_line(&give);
    } while (give.status != DL_OK);
    cr_assert_eq(kills(), 0);
}

Test(redis_mux, a_server_that_refuses_to_kill_is_asked_once) {
    tell(&server, "ACL SETUSER default -client|kill");
    lose_claim();
    for (int i = 0; i < 2; i++) {
        line_t give = line_of(&release, "DEL lock");
        run_line(&give);
        cr_assert_eq(give.status, DL_OK, "%s", give.err.message);
    }
    cr_assert(was_reported("may not kill connections"), "%s", reported);
    cr_assert_eq(atomic_load(&warnings), 1, "%s", reported);
}

/* It is refused for now, as everything is: a script does not end. */
Test(redis_mux, what_could_not_be_killed_yet_is_killed_by_the_next_free) {
    lose_claim();
    redisContext *script = redisConnectUnix(server.path);
    int sent = 0;
    cr_assert(script != NULL && script->err == 0);
    tell(&server, "CONFIG SET lua-time-limit 1");
    cr_assert_eq(redisAppendCommand(script, "EVAL %s 0", "while true do end"), REDIS_OK);
    AWAIT(redisBufferWrite(script, &sent) == REDIS_OK && sent != 0);
    line_t look = line_of(&plain, "GET lock"), give = line_of(&release, "DEL lock");
    do {
        look.over = false;
        run_line(&look);
    } while (strncmp(look.answer, "BUSY", 4) != 0);
    run_line(&give);
    cr_assert_eq(strncmp(give.answer, "BUSY", 4), 0, "%s", give.answer);
    cr_assert_eq(mux.kill_count, 1);
    tell(&server, "SCRIPT KILL"); /* it ends soon */
    do {
        give = line_of(&release, "DEL lock");
        run_line(&give);
    } while (strncmp(give.answer, "BUSY", 4) == 0);
    cr_assert_eq(kills(), 1);
    cr_assert(!mux.may_not_kill);
    cr_assert_eq(atomic_load(&warnings), 0, "%s", reported);
    redisFree(script);
}

static uint64_t led_term, led_until_ns;

static void begin_leading(line_t *line) {
    line->wire.asked = &line->asked;
    line->wire.leads = line->asked.leads = line->asked.pending = true;
    begin_line(line);
}

static int lead_fds(line_t *line, uint64_t *term, bool late, void (*fn)(void)) {
    lock_core(&core_mutex);
    meanwhile = fn;
    int n = dli_mux_lead_fds(&mux, &line->wire, led, late, term, &led_until_ns);
    meanwhile = NULL;
    unlock_core(&core_mutex);
    return n;
}

/* It goes on after all. */
static void read_as_leader(void) {
    led[0].revents = POLLIN;
    (void)dli_mux_lead(&mux, led_term, led, 1);
}

/* Both replies lie unread, and b has found a late once. */
static void find_late(line_t *a, line_t *b, uint64_t *term) {
    line_t first = line_of(&plain, "PING");
    int unread = 0;
    open_mux(server.path);
    run_line(&first);
    begin_leading(a);
    cr_assert_eq(lead_fds(a, &led_term, false, NULL), 1);
    begin_leading(b);
    cr_assert_eq(a->wire.pipe, b->wire.pipe);
    AWAIT_THAT((ioctl(led[0].fd, FIONREAD, &unread), unread), ==, (int)strlen("$1\r\na\r\n$1\r\nb\r\n"));
    cr_assert_eq(lead_fds(b, term, true, NULL), 0, "it looks twice");
}

/* Its reply is read by the other, whom it has just found late. */
Test(redis_mux, who_takes_over_after_its_reply_has_come_does_not_lead) {
    line_t a = line_of(&plain, "ECHO a"), b = line_of(&plain, "ECHO b");
    uint64_t term = 0;
    find_late(&a, &b, &term);
    cr_assert_eq(lead_fds(&b, &term, true, read_as_leader), 0);
    cr_assert(a.over && b.over);
    cr_assert(mux.pipes[b.wire.pipe].leader == NULL);
}

static line_t *moved;

static void move_away(void) {
    (void)dli_mux_withdraw(&mux, &moved->wire);
    moved->wire.pipe ^= 1u;
    dli_mux_begin(&mux, &moved->wire);
}

/* Its reply was read by the other, and it asks once more, on another pipe. */
Test(redis_mux, who_takes_over_after_it_has_gone_elsewhere_does_not_lead) {
    line_t a = line_of(&plain, "ECHO a"), b = line_of(&plain, "ECHO b");
    uint64_t term = 0;
    find_late(&a, &b, &term);
    moved = &b;
    cr_assert_eq(lead_fds(&b, &term, true, move_away), 0);
    cr_assert_eq(mux.pipes[a.wire.pipe].leader, &a.wire);
    (void)withdraw_line(&a);
    (void)withdraw_line(&b);
}

/* Whoever listens reads for those who do not read themselves, and then no more. */
Test(redis_mux, who_left_its_reply_to_the_one_that_listens_is_told_when_that_one_ends) {
    line_t first = line_of(&plain, "PING"), x = line_of(&plain, "ECHO x"), b = line_of(&plain, "ECHO b");
    struct pollfd fds[2 * DLI_PIPES_MAX];
    uint64_t due_ns, term = 0;
    open_mux(server.path);
    run_line(&first);
    begin_line(&x);
    size_t n = dli_mux_listen_fds(&mux, fds, &due_ns);
    cr_assert_eq(n, 1);
    cr_assert_eq(poll(fds, n, 5000), 1);
    cr_assert_eq(kill(server.pid, SIGSTOP), 0);
    cr_assert_eq(waitpid(server.pid, NULL, WUNTRACED), server.pid);
    begin_leading(&b);
    cr_assert_eq(lead_fds(&b, &term, false, NULL), 0, "the other one reads");
    cr_assert_eq(told_to_look, NULL);
    dli_mux_listen(&mux, fds, n);
    cr_assert(x.over && !b.over);
    cr_assert_eq(told_to_look, &b.asked);
    cr_assert_eq(dli_mux_listen_fds(&mux, fds, &due_ns), 0);
    cr_assert_eq(kill(server.pid, SIGCONT), 0);
    cr_assert_eq(lead_fds(&b, &term, false, NULL), 1);
    cr_assert_eq(poll(led, 1, 5000), 1);
    lock_core(&core_mutex);
    (void)dli_mux_lead(&mux, term, led, 1);
    unlock_core(&core_mutex);
    cr_assert_eq(b.answer[0], 'b');
}

static bool begin_unled(line_t *line) {
    lock_core(&core_mutex);
    dli_mux_begin(&mux, &line->wire);
    bool look_again = dli_mux_flush(&mux);
    unlock_core(&core_mutex);
    return look_again;
}

/* It may be stopped: whoever listens looks after what others have asked meanwhile. */
Test(redis_mux, who_listens_reads_where_the_one_that_leads_does_not) {
    line_t first = line_of(&plain, "PING"), a = line_of(&plain, "ECHO a");
    line_t x = line_of(&plain, "ECHO x"), y = line_of(&plain, "ECHO y");
    struct pollfd fds[2 * DLI_PIPES_MAX];
    uint64_t due_ns;
    count_sleeps();
    open_mux(server.path);
    run_line(&first);
    stands_at_ns = env.now_ns();
    begin_leading(&a);
    cr_assert_eq(lead_fds(&a, &led_term, false, NULL), 1);
    cr_assert_eq(dli_mux_listen_fds(&mux, fds, &due_ns), 0);
    cr_assert_eq(due_ns, DL_NO_DEADLINE);
    cr_assert(begin_unled(&x), "nobody would look");
    cr_assert_eq(dli_mux_listen_fds(&mux, fds, &due_ns), 0, "not yet");
    cr_assert_leq(due_ns, env.now_ns() + 200 * MS);
    cr_assert_not(begin_unled(&y), "it looks soon");
    stands_at_ns = 0;
    slept_ns += 200 * MS;
    await_line(&y);
    cr_assert(x.over && a.over);
}

/* ---- how long a reply is waited for ---------------------------------------------------------------------
 */

/* The first connection is held back. Has one that stood still for so long a successor? */
static bool has_successor_after(uint64_t ns) {
    look_at(stands_at_ns + ns);
    return mux.pipes[0].next != NULL;
}

static void hold_back(void) {
    line_t warm = line_of(&plain, "PING");
    count_sleeps();
    open_mux_over_relay();
    run_line(&warm);
    mux.pipes[0].trip_ns = MS; /* whatever this machine took */
    atomic_store(&relay_held[0], 1);
    stands_at_ns = env.now_ns();
}

static void end_held_back(const line_t *line) {
    go_on();
    atomic_store(&relay_held[0], 0);
    await_line(line);
}

/* TCP sends it again after 200 ms at the least. */
Test(redis_mux, a_packet_that_is_lost_and_sent_again_is_no_silence) {
    line_t line = line_of(&plain, "ECHO line");
    hold_back();
    begin_line(&line);
    cr_assert_not(has_successor_after(250 * MS));
    cr_assert(has_successor_after(10 * MS));
    end_held_back(&line);
}

Test(redis_mux, who_gives_up_does_not_give_up_for_who_waits_behind) {
    line_t first = line_of(&claim, "SET lock x"), second = line_of(&plain, "ECHO second");
    hold_back();
    begin_line(&first);
    begin_line(&second);
    cr_assert(withdraw_line(&first));
    cr_assert_not(has_successor_after(250 * MS));
    cr_assert(has_successor_after(10 * MS));
    end_held_back(&second);
}

Test(redis_mux, where_all_have_given_up_it_is_silent_soon) {
    line_t lines[2] = {line_of(&claim, "SET lock x"), line_of(&plain, "ECHO second")};
    hold_back();
    for (int i = 0; i < 2; i++) {
        begin_line(&lines[i]);
        cr_assert(withdraw_line(&lines[i]));
    }
    line_t give = line_of(&release, "DEL lock"); /* as the core does, in the background */
    begin_line(&give);
    cr_assert_not(has_successor_after(19 * MS));
    cr_assert(has_successor_after(MS));
    end_held_back(&give);
}

/* The first to be begun is the last to be made, and leads to the server of before. */
Test(redis_mux, a_connection_that_was_begun_before_the_switch_does_not_lead_back) {
    server_t other;
    line_t late = line_of(&claim, "SET lock x");
    have_another(&other);
    late.wire.pipe = 1;
    atomic_store(&relay_holds_new, 1);
    begin_line(&late);
    AWAIT_THAT((listen_once(env.now_ns() + MS), atomic_load(&relay_pairs)), ==, 2);
    atomic_store(&relay_holds_new, 0);
    leads_to = &other;
    lock_core(&core_mutex);
    mux.pipes[0].retired = true; /* it is made anew */
    unlock_core(&core_mutex);
    line_t anew = line_of(&plain, "PING");
    run_line(&anew);
    cr_assert(was_reported("restarted or replaced"), "%s", reported);
    atomic_store(&relay_held[1], 0);
    await_line(&late);
    cr_assert_eq(late.status, DL_OK, "%s", late.err.message);
    cr_assert_eq(tell(&server, "EXISTS lock"), 0);
    cr_assert_eq(tell(&other, "EXISTS lock"), 1);
    leads_to = NULL;
    end_server(&other);
}

/* ---- who reads for others --------------------------------------------------------------------------------
 */

/* What it polled for comes, and nobody does it: the leader has left by a jump. */
static void take_over(line_t *line) {
    uint64_t term = 0, until_ns = env.now_ns() + 5000 * MS;
    begin_leading(line);
    while (!line->over) {
        int n = lead_fds(line, &term, true, NULL);
        (void)env.poll(led, n > 0 ? (nfds_t)n : 0, env.now_ns() + 10 * MS);
        lock_core(&core_mutex);
        if (n > 0) {
            (void)dli_mux_lead(&mux, term, led, (size_t)n);
        }
        unlock_core(&core_mutex);
        cr_assert_lt(env.now_ns(), until_ns, "nobody takes over");
    }
    cr_assert_eq(line->status, DL_OK, "%s", line->err.message);
}

Test(redis_mux, a_leader_that_has_left_a_silent_connection_is_replaced) {
    line_t first = line_of(&plain, "PING"), a = line_of(&plain, "ECHO a"), b = line_of(&plain, "ECHO b");
    count_sleeps();
    open_mux_over_relay();
    run_line(&first);
    atomic_store(&relay_held[0], 1);
    begin_leading(&a);
    cr_assert_eq(lead_fds(&a, &led_term, false, NULL), 1);
    slept_ns = (uint64_t)env.call_timeout_ms * MS / 2; /* by now it is late, however slow the first was */
    take_over(&b);
    (void)withdraw_line(&a);
}

Test(redis_mux, a_leader_that_has_left_a_connection_as_it_was_made_is_replaced) {
    line_t a = line_of(&plain, "ECHO a"), b = line_of(&plain, "ECHO b");
    atomic_store(&relay_holds_new, 1);
    open_mux_over_relay();
    begin_leading(&a);
    cr_assert_eq(lead_fds(&a, &led_term, false, NULL), 1);
    AWAIT_THAT(atomic_load(&relay_pairs), ==, 1);
    atomic_store(&relay_holds_new, 0);
    atomic_store(&relay_held[0], 0);
    take_over(&b);
    (void)withdraw_line(&a);
}
