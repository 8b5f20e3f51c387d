/* handoff_cases.c - the queue of a lock on the server: one is woken, in order; and what goes wrong. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "faults/redis_wire.h"

/* Each client counts as a process: it has a channel and a place in the queue of its own. */

/* A reservation that nobody takes; how often who stands in line asks again. */
#define RESERVED_MS 200
#define ASK_AGAIN_MS 1000
#define QUEUE "dlock_tokens:client:queue:"

static int is_string(ct_t *ct) {
    return strcmp(ct_driver_name(ct), "redis-string") == 0;
}

static int in_line(ct_t *ct, const char *name) {
    long long len = redis_number(ct_redis(ct), "STRLEN " QUEUE "%s", key_of(ct, name));
    return len > 27 ? (int)((len - 27) / 49) : 0;
}

/* A waiter that is in line, as the n-th. */
static void line_up(ct_t *ct, caller_t *waiter, const char *name, int n) {
    start_caller(ct, waiter);
    CT_AWAIT_THAT(in_line(ct, name), ==, n, 5000);
}

/* It has the lock by now, and not later. */
static void expect_handed(ct_t *ct, caller_t *waiter, watch_t released, int64_t within_ms) {
    end_caller(ct, waiter, DL_OK);
    CT_LE(waiter->ended_ms - released.began_ms, within_ms + ct_tolerance_ms(ct));
}

static int64_t wall_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* As if the lock was left free so long ago, and reserved so often since then. */
static void write_turn(ct_t *ct, const char *name, int64_t ago_ms, int times) {
    int64_t since_ms = wall_ms() - ago_ms;
    (void)redis_ask(ct_redis(ct), "SETRANGE " QUEUE "%s 0 %lld%d", key_of(ct, name), (long long)since_ms,
                    times);
}

static dl_lock_t *lock_of(ct_t *ct, const char *name) {
    return ct_lock(ct, ct_open(ct, "lease: 30s"), name);
}

CT_CASE(handoff, processes_get_it_in_the_order_of_their_coming, REDIS) {
    dl_lock_t *held = lock_of(ct, "ordered");
    CT_OK(dl_lock(held, CT_ERR));
    caller_t waiters[5];
    for (int i = 0; i < 5; i++) {
        waiters[i] = (caller_t)CALLER(lock_of(ct, "ordered"), DL_WAIT_FOREVER);
        line_up(ct, &waiters[i], "ordered", i + 1);
    }
    write_turn(ct, "ordered", 20, 0);
    watch_t released = start_watch(ct);
    CT_OK(dl_unlock(held, CT_ERR));
    int64_t longest_ms = 0, before_ms = released.began_ms;
    int is_ordered = 1;
    for (int i = 0; i < 5; i++) {
        expect_handed(ct, &waiters[i], released, 0);
        int64_t took_ms = waiters[i].ended_ms - before_ms;
        longest_ms = took_ms > longest_ms ? took_ms : longest_ms;
        before_ms = waiters[i].ended_ms;
        is_ordered = is_ordered && (i == 0 || waiters[i].token > waiters[i - 1].token);
    }
    /* Who does not take its reservation in time, as the machine stands still, loses its turn. */
    CT_CHECK(is_ordered || longest_ms >= RESERVED_MS);
    CT_EQ(in_line(ct, "ordered"), 0);
}

CT_CASE(handoff, who_waits_longer_than_an_entry_lasts_keeps_its_place, REDIS) {
    dl_lock_t *held = lock_of(ct, "kept");
    CT_OK(dl_lock(held, CT_ERR));
    caller_t first = CALLER(lock_of(ct, "kept"), DL_WAIT_FOREVER),
             second = CALLER(lock_of(ct, "kept"), DL_WAIT_FOREVER);
    line_up(ct, &first, "kept", 1);
    ct_sleep_ms(ct, 3500);
    line_up(ct, &second, "kept", 2);
    write_turn(ct, "kept", 20, 0);
    watch_t released = start_watch(ct);
    CT_OK(dl_unlock(held, CT_ERR));
    expect_handed(ct, &first, released, 0);
    expect_handed(ct, &second, released, 0);
    CT_GT(second.token, first.token);
}

/* Written as by a release of another client. */
static void reserve(ct_t *ct, const char *name, const char *uuid) {
    const char *key = key_of(ct, name);
    if (is_string(ct)) {
        (void)redis_ask(ct_redis(ct), "SET %s %s:0:0 PX 60000", key, uuid);
    } else {
        (void)redis_ask(ct_redis(ct), "HSET %s %s:0 1 %s:0:h 0", key, uuid, uuid);
        (void)redis_ask(ct_redis(ct), "PEXPIRE %s 60000", key);
    }
}

static int count_locks(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)name;
    (void)info;
    ++*(int *)arg;
    return 0;
}

CT_CASE(handoff, a_reservation_is_for_one_process, REDIS) {
    static const char other[] = "aaaaaaaa-0000-4000-8000-000000000001";
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "reserved");
    dl_client_info_t mine = DL_CLIENT_INFO_INIT;
    int listed = 0;
    CT_OK(dl_client_info(c, &mine));
    reserve(ct, "reserved", other);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    CT_CHECK(!ct_server_info(ct, "reserved").held); /* to people it is no lock */
    CT_OK(dl_list(c, "", count_locks, &listed, CT_ERR));
    CT_EQ(listed, 0);
    CT_STR_EQ(redis_ask(ct_redis(ct), "SET %s x NX PX 1000", key_of(ct, "reserved")), "(nil)");
    CT_OK(dl_force_unlock(lock, CT_ERR));
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    reserve(ct, "reserved", mine.uuid);
    CT_OK(dl_trylock(lock, CT_ERR));
    ct_expect_held(ct, "reserved");
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(handoff, a_reservation_that_nobody_takes_ends_by_itself, REDIS) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, c, "untaken"), *other = lock_of(ct, "untaken");
    CT_OK(dl_lock(held, CT_ERR));
    caller_t waiter = CALLER(lock_of(ct, "untaken"), DL_WAIT_FOREVER);
    line_up(ct, &waiter, "untaken", 1);
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_BEFORE, NULL, "untaken");
    CT_OK(dl_unlock(held, CT_ERR));
    ct_pause_await(ct, pause, 5000);
    watch_t released = start_watch(ct);
    CT_OK(dl_trylock_for(other, 5000, DL_LEASE_AUTO, CT_ERR));
    CT_LE(ct_now_ms(ct) - released.began_ms, RESERVED_MS + ct_tolerance_ms(ct));
    ct_pause_go(ct, pause);
    CT_OK(dl_unlock(other, CT_ERR));
    end_caller(ct, &waiter, DL_OK);
}

CT_CASE(handoff, who_gives_up_leaves_the_line, REDIS) {
    dl_lock_t *held = lock_of(ct, "left"), *other = lock_of(ct, "left");
    dl_cancel_t *cancel;
    CT_OK(dl_cancel_new(&cancel, CT_ERR));
    CT_OK(dl_lock(held, CT_ERR));
    caller_t cancelled = CALLER(lock_of(ct, "left"), DL_WAIT_FOREVER),
             late = CALLER(lock_of(ct, "left"), 1500);
    cancelled.opts.cancel = cancel;
    line_up(ct, &cancelled, "left", 1);
    line_up(ct, &late, "left", 2);
    end_caller(ct, &late, DL_ETIMEDOUT);
    CT_AWAIT_THAT(in_line(ct, "left"), ==, 1, 1000);
    dl_cancel_trigger(cancel);
    end_caller(ct, &cancelled, DL_ECANCELED);
    CT_AWAIT_THAT(in_line(ct, "left"), ==, 0, 1000);
    CT_OK(dl_unlock(held, CT_ERR));
    CT_OK(dl_trylock(other, CT_ERR));
    CT_OK(dl_unlock(other, CT_ERR));
    dl_cancel_free(cancel);
}

/* One after the other. */
CT_CASE(handoff, all_who_give_up_leave_the_line, REDIS) {
    dl_lock_t *held = lock_of(ct, "all left");
    dl_client_t *c = ct_open(ct, NULL);
    dl_cancel_t *cancel;
    CT_OK(dl_cancel_new(&cancel, CT_ERR));
    CT_OK(dl_lock(held, CT_ERR));
    caller_t waiters[3];
    for (int i = 0; i < 3; i++) {
        waiters[i] = (caller_t)CALLER(ct_lock(ct, c, "all left"), DL_WAIT_FOREVER);
        waiters[i].opts.cancel = cancel;
        line_up(ct, &waiters[i], "all left", 1);
    }
    CT_AWAIT_THAT(ct_stats(ct, c).waiting_now, ==, 3, 5000);
    dl_cancel_trigger(cancel);
    for (int i = 0; i < 3; i++) {
        end_caller(ct, &waiters[i], DL_ECANCELED);
    }
    CT_AWAIT_THAT(in_line(ct, "all left"), ==, 0, 1000);
    CT_OK(dl_unlock(held, CT_ERR));
    dl_cancel_free(cancel);
}

/* Its claim is freed in the background again and again, for it may yet come; and it waits all the same. */
CT_CASE(handoff, a_claim_without_an_answer_does_not_cost_the_place, .traits = CT_REDIS | CT_NETWORK) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *held = lock_of(ct, "in doubt");
    CT_OK(dl_lock(held, CT_ERR));
    caller_t first = CALLER(ct_lock(ct, c, "in doubt"), DL_WAIT_FOREVER);
    caller_t second = CALLER(lock_of(ct, "in doubt"), DL_WAIT_FOREVER);
    line_up(ct, &first, "in doubt", 1);
    line_up(ct, &second, "in doubt", 2);
    proxy_plan_t lost = {.request = "dlock_tokens", .way = PROXY_REPLIES, .act = PROXY_CUT};
    proxy_plan(ct, proxy, &lost);
    proxy_await_act(ct, proxy, 1, 5000); /* it has asked again */
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_RELEASE, c, NULL), >=, 3, 10000);
    watch_t released = start_watch(ct);
    CT_OK(dl_unlock(held, CT_ERR));
    expect_handed(ct, &first, released, 0);
    expect_handed(ct, &second, released, 0);
    CT_GT(second.token, first.token);
    proxy_stop(ct, proxy);
}

/* It was its turn to take what was left free, and those behind it look again only when they are told. */
CT_CASE(handoff, who_gives_up_its_turn_tells_the_next, REDIS) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_client_t *d = ct_open(ct, "lease: 30s");
    dl_lock_t *held = lock_of(ct, "turn");
    caller_t first = CALLER(ct_lock(ct, c, "turn"), DL_WAIT_FOREVER);
    caller_t second = CALLER(ct_lock(ct, d, "turn"), DL_WAIT_FOREVER);
    CT_OK(dl_cancel_new(&first.opts.cancel, CT_ERR));
    CT_OK(dl_lock(held, CT_ERR));
    line_up(ct, &first, "turn", 1);
    line_up(ct, &second, "turn", 2);
    ct_fault_t deaf = {.op = CT_OP_WOKEN, .mode = CT_LOSE_REPLY, .count = -1};
    int fault = ct_fault_add(ct, &deaf);
    int heard[] = {ct_calls_of(ct, CT_OP_WOKEN, c, NULL), ct_calls_of(ct, CT_OP_WOKEN, d, NULL)};
    write_turn(ct, "turn", 5000, 0);
    CT_OK(dl_unlock(held, CT_ERR));
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_WOKEN, c, NULL), >=, heard[0] + 2,
                  5000); /* by its own channel, too */
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_WOKEN, d, NULL), >=, heard[1] + 1, 5000);
    ct_fault_end(ct, fault);
    dl_cancel_trigger(first.opts.cancel);
    end_caller(ct, &first, DL_ECANCELED);
    watch_t left = start_watch(ct);
    expect_handed(ct, &second, left, 0);
    dl_cancel_free(first.opts.cancel);
}

CT_CASE(handoff, a_reservation_that_came_too_late_is_given_back, REDIS) {
    dl_cancel_t *cancel;
    dl_client_t *c = ct_open(ct, NULL);
    CT_OK(dl_cancel_new(&cancel, CT_ERR));
    dl_lock_t *held = lock_of(ct, "given back");
    CT_OK(dl_lock(held, CT_ERR));
    caller_t first = CALLER(ct_lock(ct, c, "given back"), DL_WAIT_FOREVER);
    caller_t second = CALLER(lock_of(ct, "given back"), DL_WAIT_FOREVER);
    first.opts.cancel = cancel;
    line_up(ct, &first, "given back", 1);
    line_up(ct, &second, "given back", 2);
    ct_fault_t deaf = {.op = CT_OP_WOKEN, .mode = CT_LOSE_REPLY, .client = c, .count = 1};
    (void)ct_fault_add(ct, &deaf);
    CT_OK(dl_unlock(held, CT_ERR));
    watch_t released = start_watch(ct);
    dl_cancel_trigger(cancel);
    end_caller(ct, &first, DL_ECANCELED);
    expect_handed(ct, &second, released, 0);
    dl_cancel_free(cancel);
}

/* ---- waiters that are killed, stopped, cut off ------------------------------------------------------- */

static void wait_for_ever(ct_t *ct, void *arg) {
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), arg);
    (void)ct_recv(ct, NULL);
    ct_send(ct, NULL, 1);
    (void)dl_lock(lock, NULL);
}

static int subscribers(ct_t *ct) {
    int count = 0;
    for (const char *at = redis_ask(ct_redis(ct), "CLIENT LIST TYPE pubsub"); at != NULL;
         at = strchr(at, '\n')) {
        at += *at == '\n';
        count += strncmp(at, "id=", 3) == 0;
    }
    return count;
}

static void wait_behind(ct_t *ct, char *name, int is_killed) {
    ct_process_t *victim = ct_process(ct, wait_for_ever, name);
    dl_lock_t *held = lock_of(ct, name);
    CT_OK(dl_lock(held, CT_ERR));
    ct_send(ct, victim, 1);
    (void)ct_recv(ct, victim);
    CT_AWAIT_THAT(in_line(ct, name), ==, 1, 5000);
    caller_t next = CALLER(lock_of(ct, name), DL_WAIT_FOREVER);
    line_up(ct, &next, name, 2);
    if (is_killed) {
        CT_AWAIT_THAT(subscribers(ct), ==, 2, 5000);
        ct_process_kill(ct, victim);
        CT_AWAIT_THAT(subscribers(ct), ==, 1, 5000); /* the server has seen it */
    } else {
        ct_process_stop(ct, victim);
    }
    watch_t released = start_watch(ct);
    CT_OK(dl_unlock(held, CT_ERR));
    expect_handed(ct, &next, released, is_killed ? 0 : RESERVED_MS + ASK_AGAIN_MS);
    if (!is_killed) {
        ct_process_kill(ct, victim);
    }
}

CT_CASE(handoff, a_killed_waiter_costs_nothing, .traits = CT_REDIS | CT_PROCESSES) {
    char name[] = "killed";
    wait_behind(ct, name, 1);
}

CT_CASE(handoff, a_stopped_waiter_costs_its_reservation, .traits = CT_REDIS | CT_PROCESSES) {
    char name[] = "stopped";
    wait_behind(ct, name, 0);
}

CT_CASE(handoff, a_waiter_that_is_cut_off_costs_its_reservation, .traits = CT_REDIS | CT_NETWORK) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *b = open_behind(ct, proxy);
    dl_lock_t *held = lock_of(ct, "half-open");
    CT_OK(dl_lock(held, CT_ERR));
    caller_t first = CALLER(ct_lock(ct, b, "half-open"), DL_WAIT_FOREVER);
    caller_t second = CALLER(lock_of(ct, "half-open"), DL_WAIT_FOREVER);
    line_up(ct, &first, "half-open", 1);
    line_up(ct, &second, "half-open", 2);
    proxy_swallow(ct, proxy, PROXY_BOTH);
    watch_t released = start_watch(ct);
    CT_OK(dl_unlock(held, CT_ERR));
    expect_handed(ct, &second, released, RESERVED_MS + ASK_AGAIN_MS);
    proxy_swallow(ct, proxy, 0);
    ct_join(ct, first.thread); /* it has given the server up, or has the lock */
    proxy_stop(ct, proxy);
}

CT_CASE(handoff, who_subscribes_anew_stands_in_line_again, REDIS) {
    dl_client_t *c = ct_open(ct, "lease: 30s");
    dl_lock_t *held = lock_of(ct, "anew");
    CT_OK(dl_lock(held, CT_ERR));
    caller_t waiter = CALLER(ct_lock(ct, c, "anew"), DL_WAIT_FOREVER);
    line_up(ct, &waiter, "anew", 1);
    CT_GE(redis_number(ct_redis(ct), "CLIENT KILL TYPE pubsub"), 1);
    /* It asks meanwhile, which takes it out of the line: for how long, nobody can be sure to see. */
    CT_AWAIT_THAT(ct_stats(ct, c).reconnects, >=, 1, 5000);
    ct_await_hearing(ct, c, "anew", 5000);
    CT_AWAIT_THAT(in_line(ct, "anew"), ==, 1, 5000);
    watch_t released = start_watch(ct);
    CT_OK(dl_unlock(held, CT_ERR));
    expect_handed(ct, &waiter, released, 0);
}

/* ---- the server loses the queue, or keeps none ------------------------------------------------------- */

CT_CASE(handoff, without_the_queue_a_release_is_heard_all_the_same, REDIS) {
    dl_lock_t *held = lock_of(ct, "deleted");
    CT_OK(dl_lock(held, CT_ERR));
    caller_t waiter = CALLER(lock_of(ct, "deleted"), DL_WAIT_FOREVER);
    line_up(ct, &waiter, "deleted", 1);
    CT_EQ(redis_number(ct_redis(ct), "DEL " QUEUE "%s", key_of(ct, "deleted")), 1);
    watch_t released = start_watch(ct);
    CT_OK(dl_unlock(held, CT_ERR));
    expect_handed(ct, &waiter, released, 0);
}

CT_CASE(handoff, a_server_that_loses_everything_delays_nobody_for_long, REDIS) {
    dl_lock_t *held = lock_of(ct, "flushed");
    CT_OK(dl_lock(held, CT_ERR));
    caller_t waiter = CALLER(lock_of(ct, "flushed"), DL_WAIT_FOREVER);
    line_up(ct, &waiter, "flushed", 1);
    watch_t flushed = start_watch(ct);
    (void)redis_ask(ct_redis(ct), "FLUSHALL");
    expect_handed(ct, &waiter, flushed, ASK_AGAIN_MS);
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
}

CT_CASE(handoff, who_may_not_use_the_queue_goes_without, REDIS) {
    dl_lock_t *held = lock_of(ct, "barred");
    dl_client_t *b = ct_open(ct, NULL);
    CT_OK(dl_lock(held, CT_ERR));
    (void)redis_ask(ct_redis(ct), "ACL SETUSER default resetkeys ~%s ~dlock_tokens", key_of(ct, "barred"));
    caller_t waiter = CALLER(ct_lock(ct, b, "barred"), DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    dl_event_t warning = ct_expect_event(ct, b, DL_EVENT_WARNING, NULL, 5000);
    CT_CHECKF(strstr(warning.text, "queue") != NULL, "not about the queue: %s", warning.text);
    watch_t released = start_watch(ct);
    CT_OK(dl_unlock(held, CT_ERR));
    expect_handed(ct, &waiter, released, 0);
    (void)redis_ask(ct_redis(ct), "ACL SETUSER default allkeys");
}

/* ---- others in the crowd ----------------------------------------------------------------------------- */

typedef struct crowd {
    dl_lock_t *lock;
    atomic_int *stop;
} crowd_t;

static void take_turns(ct_t *ct, void *arg) {
    const crowd_t *crowd = arg;
    while (!atomic_load(crowd->stop)) {
        CT_OK(dl_lock(crowd->lock, CT_ERR));
        ct_sleep_ms(ct, 1);
        CT_OK(dl_unlock(crowd->lock, CT_ERR));
    }
}

/* Another library, which looks each millisecond. */
static int poll_once(ct_t *ct, const char *key) {
    redis_server_t *server = ct_redis(ct);
    if (is_string(ct)) {
        return strcmp(redis_ask(server, "SET %s other NX PX 1000", key), "OK") == 0;
    }
    return redis_number(server, "EVAL %s 1 %s",
                        "return redis.call('exists',KEYS[1])==0 and redis.call('hset',KEYS[1],"
                        "'ffffffff-0000-4000-8000-00000000000f:1','1')"
                        " and redis.call('pexpire',KEYS[1],'1000') or 0",
                        key) == 1;
}

/* Is it reserved, or left free? The queue says so. */
static int is_reserved_after(ct_t *ct, const char *name, int64_t ago_ms, int times) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *held = lock_of(ct, name);
    caller_t waiter = CALLER(ct_lock(ct, c, name), DL_WAIT_FOREVER);
    waiter.keep = ct_latch(ct, 1);
    CT_OK(dl_lock(held, CT_ERR));
    line_up(ct, &waiter, name, 1);
    write_turn(ct, name, ago_ms, times);
    CT_OK(dl_unlock(held, CT_ERR));
    CT_AWAIT_THAT(ct_stats(ct, c).held_now, ==, 1, 5000);
    long long now_times = redis_number(ct_redis(ct), "GETRANGE " QUEUE "%s 13 13", key_of(ct, name));
    ct_latch_down(ct, waiter.keep);
    end_caller(ct, &waiter, DL_OK);
    return now_times == times + 1;
}

CT_CASE(handoff, a_lock_is_left_free_after_a_tenth_of_a_second_and_four_or_after_a_second, REDIS) {
    CT_EQ(is_reserved_after(ct, "three", 200, 3), 1);
    CT_EQ(is_reserved_after(ct, "four", 200, 4), 0);
    CT_EQ(is_reserved_after(ct, "none for long", 1000, 0), 0);
}

/* Left free by one who holds it while another waits, and not for 5 s: for 250 ms, or as always? */
static void expect_left_free(ct_t *ct, const char *name, caller_t *holder, int for_longer) {
    dl_lock_t *tried = lock_of(ct, name);
    caller_t waiter = CALLER(lock_of(ct, name), DL_WAIT_FOREVER);
    waiter.keep = ct_latch(ct, 1);
    line_up(ct, &waiter, name, 1);
    write_turn(ct, name, 5000, 4);
    int64_t before_ms = ct_now_ms(ct), wall_before_ms = wall_ms();
    ct_latch_down(ct, holder->keep);
    end_caller(ct, holder, DL_OK);
    long long since_ms = redis_number(ct_redis(ct), "GETRANGE " QUEUE "%s 0 12", key_of(ct, name));
    int64_t wall_after_ms = wall_ms();
    if (for_longer) { /* who does not wait takes it, and gives it back as it was */
        dl_status_t status = dl_trylock(tried, CT_ERR);
        CT_CHECK(status == DL_OK || ct_now_ms(ct) - before_ms >= 249); /* or it is the waiter's turn by now */
        CT_CHECK(status != DL_OK || dl_unlock(tried, CT_ERR) == DL_OK);
    }
    CT_AWAIT_THAT(waiter.ended_ms, !=, 0, 5000);
    ct_latch_down(ct, waiter.keep);
    end_caller(ct, &waiter, DL_OK);
    if (for_longer) {
        CT_GE(since_ms, wall_before_ms + 248);
        CT_GE(waiter.ended_ms - before_ms, 249); /* and the milliseconds of two clocks */
    } else {
        CT_LE(since_ms, wall_after_ms);
    }
}

/* For those that poll every 250 ms; Redisson's RLock, on a hash, waits for messages. */
CT_CASE(handoff, a_lock_that_another_library_had_is_left_free_for_longer, REDIS) {
    const char *key = key_of(ct, "seen");
    CT_CHECK(poll_once(ct, key));
    CT_EQ(redis_number(ct_redis(ct), "PEXPIRE %s 60000", key), 1);
    caller_t first = CALLER(lock_of(ct, "seen"), DL_WAIT_FOREVER), usual = CALLER(lock_of(ct, "usual"), 0);
    first.keep = ct_latch(ct, 1);
    usual.keep = ct_latch(ct, 1);
    line_up(ct, &first, "seen", 1);
    CT_EQ(redis_number(ct_redis(ct), "DEL %s", key), 1);
    CT_AWAIT_THAT(in_line(ct, "seen"), ==, 0, 5000);
    expect_left_free(ct, "seen", &first, is_string(ct));
    start_caller(ct, &usual);
    ct_await_held(ct, "usual", 5000);
    expect_left_free(ct, "usual", &usual, 0);
}

CT_CASE(handoff, who_polls_is_not_starved, REDIS) {
    atomic_int stop = 0;
    crowd_t crowds[3];
    ct_thread_t *threads[3];
    const char *key = key_of(ct, "crowd");
    for (int i = 0; i < 3; i++) {
        crowds[i] = (crowd_t){lock_of(ct, "crowd"), &stop};
        threads[i] = ct_thread(ct, take_turns, &crowds[i]);
    }
    int64_t longest_ms = 0;
    for (int i = 0; i < 5; i++) {
        CT_AWAIT_THAT(in_line(ct, "crowd"), ==, 2, 5000);
        ct_sleep_ms(ct, 300); /* they hand it over to one another */
        int64_t began_ms = ct_now_ms(ct);
        while (!poll_once(ct, key)) {
            CT_LE(ct_now_ms(ct) - began_ms, 2000 + ct_tolerance_ms(ct));
            ct_sleep_ms(ct, 1);
        }
        longest_ms = ct_now_ms(ct) - began_ms > longest_ms ? ct_now_ms(ct) - began_ms : longest_ms;
        CT_EQ(redis_number(ct_redis(ct), "DEL %s", key), 1);
    }
    fprintf(stderr, "who polls waited %lld ms at the longest\n", (long long)longest_ms);
    atomic_store(&stop, 1);
    for (int i = 0; i < 3; i++) {
        ct_join(ct, threads[i]);
    }
}

/* Its subscription is refused, so it polls, as another library would. */
CT_CASE(handoff, who_hears_nothing_is_not_starved, REDIS, .timeout_s = 60) {
    atomic_int stop = 0;
    crowd_t crowds[3];
    ct_thread_t *threads[3];
    (void)redis_ask(ct_redis(ct), "ACL SETUSER deaf on nopass allkeys allchannels +@all -subscribe");
    dl_client_t *deaf = ct_open(ct, "lease: 30s\nusername: deaf\npassword: any");
    for (int i = 0; i < 3; i++) {
        crowds[i] = (crowd_t){lock_of(ct, "crowd"), &stop};
        threads[i] = ct_thread(ct, take_turns, &crowds[i]);
    }
    CT_AWAIT_THAT(in_line(ct, "crowd"), ==, 2, 5000);
    dl_lock_t *lock = ct_lock(ct, deaf, "crowd");
    int64_t began_ms = ct_now_ms(ct);
    /* By luck it may have it before it has said that it polls. */
    for (int has_said_so = 0; !has_said_so;) {
        CT_OK(dl_trylock_for(lock, 30000, DL_LEASE_AUTO, CT_ERR));
        has_said_so = redis_number(ct_redis(ct), "GETRANGE " QUEUE "%s 14 26", key_of(ct, "crowd")) > 0;
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    fprintf(stderr, "who hears nothing waited %lld ms\n", (long long)(ct_now_ms(ct) - began_ms));
    (void)ct_expect_event(ct, deaf, DL_EVENT_WARNING, NULL, 5000);
    atomic_store(&stop, 1);
    for (int i = 0; i < 3; i++) {
        ct_join(ct, threads[i]);
    }
}
