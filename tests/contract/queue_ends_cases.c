/* queue_ends_cases.c - contract: operations of queues that are cancelled, closed or left, in any state. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>

#include "queues.h"

/* Locks that client a holds for good, operations of client b, and a queue for them. */
typedef struct scene {
    dl_client_t *a, *b;
    dl_queue_t *queue;
    dl_lock_t *held;
} scene_t;

static scene_t new_scene(ct_t *ct) {
    scene_t s = {.a = ct_open(ct, LASTING), .b = ct_open(ct, LASTING), .queue = new_queue(ct)};
    s.held = ct_lock(ct, s.a, "held");
    CT_OK(dl_lock(s.held, CT_ERR));
    return s;
}

static dl_lock_t *task(ct_t *ct, const scene_t *s, const char *name, uint64_t owner) {
    return ct_lock_owned(ct, s->b, name, owner);
}

/* Cancelled in time, it ends at once and leaves nothing. */
static void cancel_now(ct_t *ct, const scene_t *s, uint64_t id) {
    CT_EQ(dl_op_cancel(s->queue, id), DL_OK);
    (void)take_of(ct, s->queue, id, DL_ECANCELED, ct_tolerance_ms(ct));
    CT_EQ(dl_op_cancel(s->queue, id), DL_EINVAL);
}

/* ---- cancel ------------------------------------------------------------------------------------ */

CT_CASE(queue, a_cancel_ends_a_wait_in_the_queue_of_the_process, .traits = CT_BLOCKING) {
    scene_t s = new_scene(ct);
    dl_lock_t *first = task(ct, &s, "mine", 1), *third = task(ct, &s, "mine", 3);
    lock_by(ct, s.queue, first, DL_LEASE_AUTO);
    uint64_t second = begin_lock(ct, s.queue, task(ct, &s, "mine", 2)), last = begin_lock(ct, s.queue, third);
    cancel_now(ct, &s, second);
    expect_nothing(ct, s.queue);
    unlock_by(ct, s.queue, first);
    (void)take_of(ct, s.queue, last, DL_OK, SOON_MS);
    unlock_by(ct, s.queue, third);
    CT_EQ(ct_stats(ct, s.b).waiting_now, 0);
    dl_queue_free(s.queue);
}

CT_CASE(queue, a_cancel_ends_a_wait_for_another_holder, .traits = CT_BLOCKING) {
    scene_t s = new_scene(ct);
    dl_lock_t *lock = task(ct, &s, "held", 1);
    uint64_t id = begin_lock(ct, s.queue, lock);
    await_wait(ct, s.b, "held");
    cancel_now(ct, &s, id);
    CT_EQ(ct_stats(ct, s.b).waiting_now, 0);
    ct_expect_held(ct, "held");
    CT_OK(dl_unlock(s.held, CT_ERR));
    ct_sleep_ms(ct, 50);
    ct_expect_free(ct, "held", 0);
    lock_by(ct, s.queue, lock, DL_LEASE_AUTO);
    dl_queue_free(s.queue);
}

CT_CASE(queue, a_cancel_ends_a_request_that_the_server_does_not_answer, .traits = CT_BLOCKING) {
    static const ct_mode_t silent[] = {CT_NEVER, CT_NEVER_ACTED, CT_LATE_REPLY};
    scene_t s = new_scene(ct);
    for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++) {
        ct_fault_t fault = {.op = CT_OP_TRY, .mode = silent[i], .delay_ms = ct_call_timeout_ms(ct) * 3 / 4};
        int tries = ct_calls(ct, CT_OP_TRY);
        ct_fault_add(ct, &fault);
        uint64_t id = begin_lock(ct, s.queue, task(ct, &s, "asked", 1));
        CT_AWAIT_THAT(ct_calls(ct, CT_OP_TRY), ==, tries + 1, SOON_MS);
        ct_sleep_ms(ct, 20);
        cancel_now(ct, &s, id);
        ct_expect_free(ct, "asked", ct_tolerance_ms(ct));
        CT_EQ(ct_stats(ct, s.b).held_now, 0);
        lock_by(ct, s.queue, task(ct, &s, "asked", 2), DL_LEASE_AUTO); /* and the gate is free */
        unlock_by(ct, s.queue, task(ct, &s, "asked", 2));
    }
    dl_queue_free(s.queue);
}

/* More than there are threads to ask: the last wait for one. */
#define CROWD 20

CT_CASE(queue, a_cancel_ends_what_was_not_asked_yet, .traits = CT_BLOCKING, .traits_not = CT_BACKEND) {
    scene_t s = new_scene(ct);
    dl_lock_t *more = task(ct, &s, "more", 1);
    uint64_t ids[CROWD];
    lock_by(ct, s.queue, more, 60000);
    ct_fault(ct, CT_OP_TRY, CT_NEVER, CT_ALWAYS);
    for (int i = 0; i < CROWD; i++) {
        char name[16];
        snprintf(name, sizeof name, "silent %d", i);
        ids[i] = begin_lock(ct, s.queue, task(ct, &s, name, 1));
    }
    ct_sleep_ms(ct, 20);
    CT_LT(ct_calls_of(ct, CT_OP_TRY, s.b, NULL), CROWD);
    for (int i = CROWD; i-- > 0;) {
        cancel_now(ct, &s, ids[i]);
    }
    ct_fault_end(ct, -1);
    CT_GT(dl_valid_ms(more), 0);
    CT_EQ(ct_stats(ct, s.b).waiting_now, 0);
    dl_queue_free(s.queue);
}

static uint64_t cancelled_id;

static void cancel_on_yes(ct_t *ct, const ct_call_t *call, void *arg) {
    if (call->status == DL_OK) {
        CT_EQ(dl_op_cancel(arg, __atomic_load_n(&cancelled_id, __ATOMIC_SEQ_CST)), DL_OK);
    }
}

CT_CASE(queue, a_cancel_at_the_instant_of_the_yes_gives_the_lock_back, .traits = CT_BLOCKING) {
    scene_t s = new_scene(ct);
    ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_BEFORE, s.b, "yes");
    ct_hook(ct, CT_OP_TRY, CT_AFTER, "yes", cancel_on_yes, s.queue);
    uint64_t id = begin_lock(ct, s.queue, task(ct, &s, "yes", 1));
    __atomic_store_n(&cancelled_id, id, __ATOMIC_SEQ_CST);
    ct_pause_await(ct, pause, SOON_MS);
    ct_pause_go(ct, pause);
    (void)take_of(ct, s.queue, id, DL_ECANCELED, SOON_MS);
    ct_hook(ct, CT_OP_TRY, CT_AFTER, NULL, NULL, NULL);
    ct_expect_free(ct, "yes", ct_tolerance_ms(ct));
    CT_EQ(ct_stats(ct, s.b).acquired, 0);
    ct_no_event(ct, s.b, 0, NULL, 0);
    dl_queue_free(s.queue);
}

CT_CASE(queue, a_cancel_is_too_late_for_what_has_completed, .traits = CT_BLOCKING) {
    scene_t s = new_scene(ct);
    dl_lock_t *lock = task(ct, &s, "mine", 1);
    uint64_t id = begin_lock(ct, s.queue, lock);
    CT_CHECK(ct_await_readable(ct, dl_queue_fd(s.queue), SOON_MS));
    CT_EQ(dl_op_cancel(s.queue, id), DL_EBUSY);
    (void)take_of(ct, s.queue, id, DL_OK, 0);
    CT_GT(dl_valid_ms(lock), 0);
    CT_EQ(dl_op_cancel(s.queue, id), DL_EINVAL);
    CT_EQ(dl_op_cancel(s.queue, id + 1), DL_EINVAL);
    dl_queue_free(s.queue);
}

#define OTHERS 200

/* However many were begun meanwhile, some of which still wait. */
CT_CASE(queue, an_id_that_was_taken_is_never_anothers, .traits = CT_BLOCKING) {
    scene_t s = new_scene(ct);
    uint64_t ids[OTHERS];
    for (uint64_t i = 0; i < OTHERS; i++) {
        ids[i] = begin_lock(ct, s.queue, task(ct, &s, "held", i));
        if (i % 2 == 0) {
            cancel_now(ct, &s, ids[i]);
        }
    }
    for (int i = 0; i < OTHERS; i += 2) {
        CT_EQ(dl_op_cancel(s.queue, ids[i]), DL_EINVAL);
    }
    expect_nothing(ct, s.queue);
    for (int i = 1; i < OTHERS; i += 2) {
        cancel_now(ct, &s, ids[i]);
    }
    CT_EQ(ct_stats(ct, s.b).waiting_now, 0);
    dl_queue_free(s.queue);
}

CT_CASE(queue, an_unlock_cannot_be_cancelled, .traits = CT_BLOCKING) {
    scene_t s = new_scene(ct);
    dl_lock_t *lock = task(ct, &s, "mine", 1);
    lock_by(ct, s.queue, lock, DL_LEASE_AUTO);
    ct_pause_t *pause = ct_pause(ct, CT_OP_RELEASE, CT_BEFORE, s.b, "mine");
    uint64_t id = begin_unlock(ct, s.queue, lock);
    CT_EQ(dl_op_cancel(s.queue, id), DL_EBUSY);
    ct_pause_await(ct, pause, SOON_MS);
    CT_EQ(dl_op_cancel(s.queue, id), DL_EBUSY);
    expect_nothing(ct, s.queue);
    ct_pause_go(ct, pause);
    (void)take_of(ct, s.queue, id, DL_OK, SOON_MS);
    ct_expect_free(ct, "mine", 0);
    dl_queue_free(s.queue);
}

CT_CASE(queue, an_extension_that_is_asked_cannot_be_cancelled, .traits = CT_BLOCKING) {
    scene_t s = new_scene(ct);
    dl_lock_t *lock = task(ct, &s, "mine", 1);
    lock_by(ct, s.queue, lock, 60000);
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, s.b, "mine");
    uint64_t id = begin_extend(ct, s.queue, lock, 120000);
    ct_pause_await(ct, pause, SOON_MS);
    CT_EQ(dl_op_cancel(s.queue, id), DL_EBUSY);
    ct_pause_go(ct, pause);
    (void)take_of(ct, s.queue, id, DL_OK, SOON_MS);
    dl_queue_free(s.queue);
}

/* Sooner and later after it began: its completion bears out what the cancel said. */
CT_CASE(queue, a_cancel_of_an_extension_says_what_becomes_of_it, .traits = CT_BLOCKING) {
    scene_t s = new_scene(ct);
    dl_lock_t *lock = task(ct, &s, "mine", 1);
    lock_by(ct, s.queue, lock, 60000);
    for (int i = 0; i < 200; i++) {
        uint64_t id = begin_extend(ct, s.queue, lock, 60000 + i);
        for (int k = 0; k < 5 * i; k++) {
            CT_GT(dl_valid_ms(lock), 0);
        }
        dl_status_t said = dl_op_cancel(s.queue, id);
        CT_CHECK(said == DL_OK || said == DL_EBUSY);
        (void)take_of(ct, s.queue, id, said == DL_OK ? DL_ECANCELED : DL_OK, SOON_MS);
    }
    unlock_by(ct, s.queue, lock);
    dl_queue_free(s.queue);
}

typedef struct reading {
    int answered; /* extensions, before */
    ct_latch_t *has_read, *goes_on;
} reading_t;

static void stand_behind_the_answer(ct_t *ct, const ct_call_t *call, void *arg) {
    (void)call;
    reading_t *r = arg;
    if (done_calls(ct, CT_OP_RENEW) > r->answered) {
        r->answered = INT_MAX;
        ct_latch_down(ct, r->has_read);
        ct_latch_wait(ct, r->goes_on, KEEP_MS);
    }
}

/* Who has read its answer stands still before anybody looks at it. */
CT_CASE(queue, a_cancel_behind_the_answer_of_an_extension_is_late, .traits = CT_BLOCKING | CT_BACKEND) {
    scene_t s = new_scene(ct);
    dl_lock_t *lock = task(ct, &s, "mine", 1);
    lock_by(ct, s.queue, lock, 60000);
    reading_t r = {done_calls(ct, CT_OP_RENEW), ct_latch(ct, 1), ct_latch(ct, 1)};
    ct_hook(ct, CT_OP_LISTEN, CT_AFTER, NULL, stand_behind_the_answer, &r);
    uint64_t id = begin_extend(ct, s.queue, lock, 120000);
    ct_latch_wait(ct, r.has_read, SOON_MS);
    CT_EQ(dl_op_cancel(s.queue, id), DL_EBUSY);
    ct_latch_down(ct, r.goes_on);
    (void)take_of(ct, s.queue, id, DL_OK, SOON_MS);
    ct_hooks_end(ct);
    unlock_by(ct, s.queue, lock);
    dl_queue_free(s.queue);
}

/* While a ping has its connection an extension waits, and can be cancelled; so can it by closing its handle.
 */
CT_CASE(queue, an_extension_that_waits_for_a_ping_is_cancelled, .traits = CT_BLOCKING,
        .needs = DL_CAP_SESSION) {
    for (int by_close = 0; by_close <= 1; by_close++) {
        scene_t s = new_scene(ct);
        dl_lock_t *lock = task(ct, &s, "mine", 1), *same = task(ct, &s, "mine", 1);
        lock_by(ct, s.queue, lock, DL_LEASE_AUTO);
        ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, s.b, "mine");
        ct_pause_await(ct, pause, SOON_MS);
        uint64_t id = begin_extend(ct, s.queue, lock, 120000);
        expect_nothing(ct, s.queue);
        if (by_close) {
            ct_lock_close(ct, lock);
            (void)take_of(ct, s.queue, id, DL_ECLOSED, ct_tolerance_ms(ct));
        } else {
            cancel_now(ct, &s, id);
        }
        ct_pause_go(ct, pause);
        unlock_by(ct, s.queue, same);
        dl_queue_free(s.queue);
        ct_close(ct, s.b);
        ct_close(ct, s.a);
        ct_expect_free(ct, "held", 0);
    }
}

#define EXTENSIONS 3000

/* One at a time is asked on the connection; the others cost nothing meanwhile. */
CT_CASE(queue, extensions_of_one_hold_are_asked_in_their_order, .traits = CT_BLOCKING | CT_VIRTUAL,
        .needs = DL_CAP_SESSION) {
    scene_t s = new_scene(ct);
    dl_lock_t *lock = task(ct, &s, "mine", 1);
    static uint64_t ids[EXTENSIONS];
    lock_by(ct, s.queue, lock, 60000);
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, s.b, "mine");
    for (int i = 0; i < EXTENSIONS; i++) {
        ids[i] = begin_extend(ct, s.queue, lock, 120000);
    }
    ct_pause_await(ct, pause, SOON_MS);
    cancel_now(ct, &s, ids[EXTENSIONS / 2]);
    ct_pause_go(ct, pause);
    for (int i = 0; i < EXTENSIONS; i++) {
        if (i != EXTENSIONS / 2) {
            (void)take_of(ct, s.queue, ids[i], DL_OK, SOON_MS);
        }
    }
    unlock_by(ct, s.queue, lock);
    dl_queue_free(s.queue);
}

/* Cancels at the n-th point where the waiter's driver is entered or left. */
typedef struct strike {
    dl_queue_t *queue;
    uint64_t id;
    int client, at, passed;
    int answered;
    dl_status_t answer; /* of the cancel */
} strike_t;

static void pass_point(ct_t *ct, const ct_call_t *call, void *arg) {
    strike_t *s = arg;
    if (call->client != s->client || __atomic_fetch_add(&s->passed, 1, __ATOMIC_SEQ_CST) != s->at) {
        return;
    }
    CT_AWAIT_THAT(__atomic_load_n(&s->id, __ATOMIC_SEQ_CST), !=, 0, SOON_MS);
    s->answer = dl_op_cancel(s->queue, s->id);
    __atomic_store_n(&s->answered, 1, __ATOMIC_SEQ_CST);
}

static void hook_points(ct_t *ct, strike_t *s) {
    static const ct_op_t ops[] = {CT_OP_TRY, CT_OP_WATCH, CT_OP_LISTEN};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        for (ct_when_t when = CT_BEFORE; when <= CT_AFTER; when++) {
            ct_hook(ct, ops[i], when, NULL, NULL, NULL);
            if (s != NULL) {
                ct_hook(ct, ops[i], when, ops[i] == CT_OP_LISTEN ? NULL : "held", pass_point, s);
            }
        }
    }
}

#define POINTS_MAX 100

/* What the cancel said is what becomes of it. */
CT_CASE(queue, a_cancel_at_any_point_of_a_wait_keeps_its_word, .traits = CT_BLOCKING) {
    static strike_t strikes[POINTS_MAX]; /* a thread that passes late may look at its own */
    scene_t s = new_scene(ct);
    dl_lock_t *lock = task(ct, &s, "held", 1);
    int at = 0;
    for (int reached = 1; reached; at++) {
        CT_LT(at, POINTS_MAX);
        strike_t *strike = &strikes[at];
        *strike = (strike_t){.queue = s.queue, .client = 1, .at = at, .answer = DL_EBUSY};
        hook_points(ct, strike);
        uint64_t id = begin_lock(ct, s.queue, lock);
        __atomic_store_n(&strike->id, id, __ATOMIC_SEQ_CST);
        (void)ct_await_readable(ct, dl_queue_fd(s.queue), 40);
        CT_OK(dl_unlock(s.held, CT_ERR));
        dl_completion_t done = take_next(ct, s.queue, SOON_MS);
        hook_points(ct, NULL);
        reached = __atomic_load_n(&strike->passed, __ATOMIC_SEQ_CST) > at;
        CT_AWAIT_THAT(__atomic_load_n(&strike->answered, __ATOMIC_SEQ_CST), >=, reached, SOON_MS);
        /* Not reached, or by somebody who listens once it has ended: too late. */
        dl_status_t expected = strike->answer == DL_OK ? DL_ECANCELED : DL_OK;
        CT_CHECKF(done.status == expected, "cancelled at point %d with %s, it is %s", at,
                  dl_status_name(strike->answer), dl_status_name(done.status));
        if (done.status == DL_OK) {
            unlock_by(ct, s.queue, lock);
        }
        expect_nothing(ct, s.queue);
        ct_expect_free(ct, "held", ct_tolerance_ms(ct));
        CT_EQ(ct_stats(ct, s.b).waiting_now, 0);
        CT_OK(
            dl_lock(s.held, CT_ERR)); /* for which it may be the other's turn, until that has left the line */
    }
    CT_GE(at, ct_caps(ct) & DL_CAP_NATIVE_WAIT ? 2 : 4);
    dl_queue_free(s.queue);
}

/* ---- in every state, and then --------------------------------------------------------------------- */

/* Operations of client b: completed and not taken, in the queues of the process, waiting for a holder, asked
 * and not answered, and not asked yet for want of a thread. */
typedef struct states {
    scene_t scene;
    int granted, waiting, silent, behind; /* names of each kind, and operations behind the first of each */
    int begun;
} states_t;

static void name_of(char *text, size_t size, const char *kind, int i) {
    snprintf(text, size, "%s %d", kind, i);
}

static void begin_several(ct_t *ct, states_t *st, const char *kind, int names, int each, uint64_t from) {
    for (int i = 0; i < names; i++) {
        char name[32];
        name_of(name, sizeof name, kind, i);
        for (int k = 0; k < each; k++) {
            (void)begin_lock(ct, st->scene.queue, task(ct, &st->scene, name, from + (uint64_t)k));
            st->begun++;
        }
    }
}

static void enter_states(ct_t *ct, states_t *st) {
    char name[32];
    uint64_t held = ct_stats(ct, st->scene.b).held_now;
    for (int i = 0; i < st->waiting; i++) {
        name_of(name, sizeof name, "waits", i);
        CT_OK(dl_lock(ct_lock(ct, st->scene.a, name), CT_ERR));
    }
    begin_several(ct, st, "grant", st->granted, 1, 0);
    CT_AWAIT_THAT(ct_stats(ct, st->scene.b).held_now, ==, held + (uint64_t)st->granted, 4 * SOON_MS);
    begin_several(ct, st, "grant", st->granted, st->behind, 1);
    begin_several(ct, st, "waits", st->waiting, 1 + st->behind, 0);
    for (int i = 0; i < st->waiting; i++) {
        name_of(name, sizeof name, "waits", i);
        CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, st->scene.b, name), >=, 1, 4 * SOON_MS);
    }
    ct_fault_t fault = {.op = CT_OP_TRY, .mode = CT_NEVER, .count = CT_ALWAYS, .client = st->scene.b};
    ct_fault_add(ct, &fault);
    begin_several(ct, st, "silent", st->silent, 1 + st->behind, 0);
    ct_sleep_ms(ct, 20);
}

static void expect_free_all(ct_t *ct, const char *kind, int names) {
    for (int i = 0; i < names; i++) {
        char name[32];
        name_of(name, sizeof name, kind, i);
        ct_expect_free(ct, name, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    }
}

static void check_states_are_over(ct_t *ct, const states_t *st) {
    expect_free_all(ct, "grant", st->granted);
    expect_free_all(ct, "silent", st->silent);
    for (int i = 0; i < st->waiting; i++) {
        char name[32];
        name_of(name, sizeof name, "waits", i);
        ct_expect_held(ct, name);
    }
}

/* Each holder's session is a connection. */
static states_t few_states(ct_t *ct) {
    return (states_t){.scene = new_scene(ct), .granted = 4, .waiting = 3, .silent = 10, .behind = 2};
}

CT_CASE(queue, a_client_that_closes_ends_operations_in_every_state, .traits = CT_BLOCKING) {
    states_t st = few_states(ct);
    dl_lock_t *unlocked = task(ct, &st.scene, "unlocked", 1);
    lock_by(ct, st.scene.queue, unlocked, DL_LEASE_AUTO);
    enter_states(ct, &st);
    uint64_t unlock = begin_unlock(ct, st.scene.queue, unlocked);
    CT_AWAIT_THAT(ct_stats(ct, st.scene.b).released, ==, 1, SOON_MS);
    int64_t before_ms = ct_now_ms(ct);
    ct_close(ct, st.scene.b);
    /* What was granted is freed by one request each, which takes its time on a real server. */
    CT_LE(ct_now_ms(ct) - before_ms,
          ct_traits(ct) & CT_VIRTUAL ? 100 : ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    for (int i = 0; i < st.begun + 1; i++) {
        dl_completion_t done = take_next(ct, st.scene.queue, 0);
        /* What was held is not any more. */
        CT_EQ(done.status, done.id == unlock ? DL_OK : DL_ECLOSED);
        CT_STR_EQ(done.status == DL_OK ? "" : done.err.message,
                  done.status == DL_OK ? "" : dl_status_text(DL_ECLOSED));
    }
    expect_nothing(ct, st.scene.queue);
    ct_fault_end(ct, -1);
    check_states_are_over(ct, &st);
    dl_queue_free(st.scene.queue);
}

/* They may be asked for the same name as ever. */
static void leave_queue(ct_t *ct, states_t *st, int64_t within_ms) {
    dl_client_t *b = st->scene.b;
    int64_t before_ms = ct_now_ms(ct);
    int tries = ct_calls(ct, CT_OP_TRY);
    dl_queue_free(st->scene.queue);
    CT_LE(ct_now_ms(ct) - before_ms, within_ms);
    if (ct_traits(ct) & CT_VIRTUAL) { /* nobody gets the turn of another, to ask for nothing */
        CT_EQ(ct_calls(ct, CT_OP_TRY), tries);
    }
    ct_fault_end(ct, -1);
    CT_AWAIT_THAT(ct_stats(ct, b).waiting_now, ==, 0, SOON_MS);
    CT_AWAIT_THAT(ct_stats(ct, b).held_now, ==, 0, SOON_MS);
    check_states_are_over(ct, st);
    ct_no_event(ct, b, DL_EVENT_LOST, NULL, 0);
    dl_lock_t *again = ct_lock(ct, b, "grant 0");
    CT_OK(dl_trylock(again, CT_ERR));
    CT_OK(dl_unlock(again, CT_ERR));
}

CT_CASE(queue, freed_with_a_thousand_operations_leaves_nothing, .traits = CT_BLOCKING) {
    states_t st = few_states(ct);
    st.behind = 1000 / (st.granted + st.waiting + st.silent);
    enter_states(ct, &st);
    CT_GE(st.begun, 1000);
    leave_queue(ct, &st, ct_traits(ct) & CT_VIRTUAL ? 100 : ct_tolerance_ms(ct));
}

/* As many grants as anything else: each is freed by a request of its own. */
CT_CASE(queue, freed_with_many_grants_frees_them, .traits = CT_BLOCKING | CT_VIRTUAL) {
    states_t st = {.scene = new_scene(ct), .granted = 400, .waiting = 100, .silent = 100, .behind = 1};
    enter_states(ct, &st);
    CT_GE(st.begun, 1000);
    leave_queue(ct, &st, 100);
}

/* Unlocks, extensions and inspections too. */
CT_CASE(queue, freed_while_a_silent_server_is_asked, .traits = CT_BLOCKING | CT_CAN_INSPECT) {
    scene_t s = new_scene(ct);
    dl_lock_t *locks[6];
    for (uint64_t i = 0; i < 6; i++) {
        char name[2] = {(char)('a' + i), 0};
        locks[i] = task(ct, &s, name, i);
        lock_by(ct, s.queue, locks[i], 60000);
    }
    int fault = ct_fault(ct, CT_OP_RELEASE, CT_NEVER, CT_ALWAYS);
    ct_fault(ct, CT_OP_RENEW, CT_NEVER, CT_ALWAYS);
    for (int i = 0; i < 6; i++) {
        (void)(i % 2 ? begin_unlock(ct, s.queue, locks[i]) : begin_extend(ct, s.queue, locks[i], 120000));
        CT_OK(dl_inspect_begin(locks[i], s.queue, NULL, NULL, CT_ERR));
    }
    CT_AWAIT_THAT(ct_fault_hits(ct, fault), >=, 1, SOON_MS);
    int64_t before_ms = ct_now_ms(ct);
    dl_queue_free(s.queue);
    CT_LE(ct_now_ms(ct) - before_ms, ct_tolerance_ms(ct));
    ct_fault_end(ct, -1);
    for (int i = 1; i < 6; i += 2) {
        char name[2] = {(char)('a' + i), 0};
        ct_expect_free(ct, name, 2 * ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
        CT_EQ(dl_hold_count(locks[i]), 0);
    }
    for (int i = 0; i < 6; i += 2) {
        CT_GT(dl_valid_ms(locks[i]), 0);
    }
}

CT_CASE(queue, freed_gives_back_the_level_that_nobody_took, .traits = CT_BLOCKING) {
    scene_t s = new_scene(ct);
    dl_queue_t *other = new_queue(ct);
    dl_lock_t *lock = task(ct, &s, "mine", 1), *grant = task(ct, &s, "grant", 1);
    lock_by(ct, other, lock, DL_LEASE_AUTO);
    (void)begin_lock(ct, s.queue, lock); /* the level counts before the server has said yes */
    CT_CHECK(ct_await_readable(ct, dl_queue_fd(s.queue), SOON_MS));
    CT_EQ(dl_hold_count(lock), 2);
    (void)begin_lock(ct, s.queue, grant);
    CT_AWAIT_THAT(dl_hold_count(grant), ==, 1, SOON_MS);
    dl_queue_free(s.queue);
    CT_EQ(dl_hold_count(lock), 1);
    CT_EQ(dl_hold_count(grant), 0);
    ct_expect_free(ct, "grant", ct_tolerance_ms(ct));
    int renewals = renewals_of(ct, "grant");
    ct_sleep_ms(ct, ct_lease_ms(ct));
    CT_EQ(renewals_of(ct, "grant"), renewals);
    ct_expect_held(ct, "mine");
    CT_GT(dl_valid_ms(lock), 0);
    unlock_by(ct, other, lock);
    ct_expect_free(ct, "mine", 0);
    dl_queue_free(other);
}

/* ---- handles -------------------------------------------------------------------------------------- */

CT_CASE(queue, a_handle_that_is_closed_ends_its_operations_and_no_others, .traits = CT_BLOCKING) {
    scene_t s = new_scene(ct);
    dl_lock_t *waits = task(ct, &s, "held", 1), *queued = task(ct, &s, "held", 2);
    dl_lock_t *stays = task(ct, &s, "held", 3), *asked = task(ct, &s, "asked", 1);
    uint64_t ids[4] = {begin_lock(ct, s.queue, waits), begin_lock(ct, s.queue, queued)};
    await_wait(ct, s.b, "held");
    ct_fault_t silent = {.op = CT_OP_TRY, .mode = CT_NEVER, .name = "asked"};
    int fault = ct_fault_add(ct, &silent);
    ids[2] = begin_lock(ct, s.queue, asked);
    ids[3] = begin_lock(ct, s.queue, stays);
    CT_AWAIT_THAT(ct_fault_hits(ct, fault), ==, 1, SOON_MS);
    dl_lock_t *closed[] = {queued, waits, asked};
    const uint64_t order[] = {ids[1], ids[0], ids[2]};
    for (int i = 0; i < 3; i++) {
        ct_lock_close(ct, closed[i]);
        dl_completion_t done = take_of(ct, s.queue, order[i], DL_ECLOSED, ct_tolerance_ms(ct));
        CT_CHECK(done.lock == closed[i] && done.tag == closed[i]);
    }
    expect_nothing(ct, s.queue);
    ct_fault_end(ct, -1);
    CT_OK(dl_unlock(s.held, CT_ERR));
    (void)take_of(ct, s.queue, ids[3], DL_OK, SOON_MS);
    ct_expect_free(ct, "asked", ct_call_timeout_ms(ct));
    CT_EQ(ct_stats(ct, s.b).waiting_now, 0);
    dl_queue_free(s.queue);
}

#define HANDLES 3
#define ON_EACH 5

/* Begun by turns, and some have ended: the first, the last, and one in between. */
CT_CASE(queue, a_handle_that_is_closed_ends_all_its_operations, .traits = CT_BLOCKING) {
    scene_t s = new_scene(ct);
    dl_lock_t *locks[HANDLES];
    uint64_t ids[HANDLES][ON_EACH];
    for (uint64_t h = 0; h < HANDLES; h++) {
        locks[h] = task(ct, &s, "held", h);
    }
    for (int i = 0; i < ON_EACH; i++) {
        for (int h = 0; h < HANDLES; h++) {
            ids[h][i] = begin_lock(ct, s.queue, locks[h]);
        }
    }
    for (int i = 0; i < ON_EACH; i += 2) {
        cancel_now(ct, &s, ids[1][i]);
    }
    ids[1][0] = begin_lock(ct, s.queue, locks[1]);
    for (int h = HANDLES; h-- > 0;) {
        uint64_t left = 0;
        for (int i = 0; i < ON_EACH; i++) {
            left += h != 1 || i % 2 == 1 || i == 0 ? ids[h][i] : 0;
        }
        ct_lock_close(ct, locks[h]);
        for (int n = h == 1 ? 3 : ON_EACH; n > 0; n--) {
            dl_completion_t done = take_next(ct, s.queue, ct_tolerance_ms(ct));
            CT_EQ(done.status, DL_ECLOSED);
            CT_CHECK(done.lock == locks[h] && done.tag == locks[h]);
            left -= done.id;
        }
        CT_EQ(left, 0);
        expect_nothing(ct, s.queue);
    }
    CT_EQ(ct_stats(ct, s.b).waiting_now, 0);
    dl_queue_free(s.queue);
}

/* A handle lives until its completions are taken, though it was closed and its client too. */
CT_CASE(queue, outlives_handles_and_clients, .traits = CT_BLOCKING) {
    scene_t s = new_scene(ct);
    dl_lock_t *early = task(ct, &s, "mine", 1), *late = task(ct, &s, "mine", 2);
    dl_lock_t *mine = ct_lock_owned(ct, s.a, "other", 1);
    uint64_t ids[3] = {begin_lock(ct, s.queue, early), begin_lock(ct, s.queue, late)};
    CT_CHECK(ct_await_readable(ct, dl_queue_fd(s.queue), SOON_MS));
    ct_lock_close(ct, early);
    ct_close(ct, s.b);
    ct_lock_close(ct, late);
    ids[2] = begin_lock(ct, s.queue, mine); /* it serves another client, too */
    dl_completion_t done = take_of(ct, s.queue, ids[0], DL_ECLOSED, 0);
    CT_CHECK(done.lock == early && done.tag == early && done.client == s.b);
    done = take_of(ct, s.queue, ids[1], DL_ECLOSED, 0);
    CT_CHECK(done.lock == late && done.client == s.b);
    done = take_of(ct, s.queue, ids[2], DL_OK, SOON_MS);
    CT_CHECK(done.lock == mine && done.client == s.a);
    ct_expect_free(ct, "mine", 0);
    dl_queue_free(s.queue);
}

/* ---- levels ------------------------------------------------------------------------------------ */

CT_CASE(queue, freed_gives_up_the_renewals_of_the_level_that_nobody_took, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, c, "levels", 1);
    dl_queue_t *taken = new_queue(ct), *freed = new_queue(ct);
    int64_t lease_ms = 4 * ct_lease_ms(ct);
    lock_by(ct, taken, lock, lease_ms);
    (void)begin_lock(ct, freed, lock);
    CT_CHECK(ct_await_readable(ct, dl_queue_fd(freed), SOON_MS));
    CT_EQ(dl_hold_count(lock), 2);
    dl_queue_free(freed);
    CT_EQ(dl_hold_count(lock), 1);
    CT_AWAIT_THAT(ct_stats(ct, c).lost, ==, 1, 2 * lease_ms); /* with the lease of the level that is left */
    dl_queue_free(taken);
}

CT_CASE(queue, a_cancel_of_a_level_that_is_asked_for_is_too_late, .traits = CT_BLOCKING) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock_owned(ct, c, "levels", 1);
    dl_queue_t *queue = new_queue(ct);
    lock_by(ct, queue, lock, 60000);
    ct_op_t op = ct_caps(ct) & DL_CAP_SERVER_COUNT ? CT_OP_TRY : CT_OP_RENEW;
    ct_pause_t *pause = ct_pause(ct, op, CT_BEFORE, c, "levels");
    uint64_t id = begin_acquire(ct, queue, lock, DL_WAIT_FOREVER, 120000);
    ct_pause_await(ct, pause, SOON_MS);
    CT_EQ(dl_op_cancel(queue, id), DL_EBUSY);
    ct_pause_go(ct, pause);
    (void)take_of(ct, queue, id, DL_OK, SOON_MS);
    CT_EQ(dl_hold_count(lock), 2);
    dl_queue_free(queue);
}

/* So many that the workers are busy for longer than call_timeout while the server answers; then it is silent.
 */
#define SLOW 160
#define BEHIND 240

CT_CASE(queue, what_waits_for_a_thread_hears_of_a_silent_server_in_time, .traits = CT_BLOCKING | CT_VIRTUAL,
        .traits_not = CT_BACKEND) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_queue_t *queue = new_queue(ct);
    ct_fault_t slow = {.op = CT_OP_TRY, .mode = CT_LATE_REPLY, .delay_ms = 1000, .count = SLOW};
    ct_fault_add(ct, &slow);
    ct_op_t all[] = {CT_OP_TRY, CT_OP_RELEASE, CT_OP_RENEW};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        ct_fault(ct, all[i], CT_NEVER, CT_ALWAYS);
    }
    for (int i = 0; i < SLOW + BEHIND; i++) {
        char name[32];
        snprintf(name, sizeof name, "orders %d", i);
        (void)begin_lock(ct, queue, ct_lock_owned(ct, c, name, 1));
    }
    int64_t answered_ms = 0;
    for (int yes = 0, no = 0; yes + no < SLOW + BEHIND;) {
        dl_completion_t done = take_next(ct, queue, KEEP_MS);
        yes += done.status == DL_OK;
        no += done.status != DL_OK;
        answered_ms = done.status == DL_OK ? ct_now_ms(ct) : answered_ms;
    }
    /* One may have been asked just before: it has a call_timeout of its own. */
    CT_LT(ct_now_ms(ct) - answered_ms, 2 * ct_call_timeout_ms(ct));
    dl_queue_free(queue);
}
