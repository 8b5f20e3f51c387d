/* listening_cases.c - contract: one of the calls that wait in a client hears of releases for all of them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "callers.h"

/* Leases and pauses far longer than any wait here: who does not hear of a release is found out. */
#define LONG_LEASE_MS 60000
#define NEVER_POLLS "backoff_min: 60s\nbackoff_max: 60s"
#define WAITERS 4

/* Locks that one client holds, and the callers of another, each waiting for one of them. */
typedef struct room {
    dl_client_t *holding, *waiting;
    dl_lock_t *held[WAITERS];
    caller_t callers[WAITERS];
    char names[WAITERS][16];
} room_t;

static void open_room(ct_t *ct, room_t *room, const char *options) {
    room->holding = ct_open(ct, NULL);
    room->waiting = ct_open(ct, options);
    for (int i = 0; i < WAITERS; i++) {
        snprintf(room->names[i], sizeof room->names[i], "room %d", i);
        room->held[i] = ct_lock(ct, room->holding, room->names[i]);
        room->callers[i] = (caller_t)CALLER(ct_lock(ct, room->waiting, room->names[i]), DL_WAIT_FOREVER);
    }
}

/* Its lock is held, and it waits and hears. */
static void enter(ct_t *ct, room_t *room, int i) {
    CT_OK(dl_trylock_for(room->held[i], 0, LONG_LEASE_MS, CT_ERR));
    start_caller(ct, &room->callers[i]);
    ct_await_hearing(ct, room->waiting, room->names[i], 5000);
}

/* It gets its lock as soon as that is free. */
static void let_have(ct_t *ct, room_t *room, int i) {
    int64_t before_ms = ct_now_ms(ct);
    CT_OK(dl_unlock(room->held[i], CT_ERR));
    end_caller(ct, &room->callers[i], DL_OK);
    CT_BETWEEN(room->callers[i].ended_ms - before_ms, -ct_tolerance_ms(ct), ct_tolerance_ms(ct));
}

/* ---- whoever listens leaves ------------------------------------------------------------------ */

typedef enum leave { WITH_THE_LOCK, BY_CANCEL, BY_DEADLINE } leave_t;

static void leave(ct_t *ct, room_t *room, int i, leave_t how) {
    if (how == WITH_THE_LOCK) {
        let_have(ct, room, i);
        return;
    }
    if (how == BY_CANCEL) {
        dl_cancel_trigger(room->callers[i].opts.cancel);
    }
    end_caller(ct, &room->callers[i], how == BY_CANCEL ? DL_ECANCELED : DL_ETIMEDOUT);
    CT_OK(dl_unlock(room->held[i], CT_ERR));
}

/* Nobody knows who listens: so all but one leave, one after the other, and each is the last once. */
static void all_but_one_leave(ct_t *ct, leave_t how) {
    room_t room;
    open_room(ct, &room, NEVER_POLLS);
    for (int last = 0; last < WAITERS; last++) {
        for (int i = 0; i < WAITERS; i++) {
            dl_acquire_opts_t *opts = &room.callers[i].opts;
            opts->cancel = NULL;
            CT_OK(dl_cancel_new(&opts->cancel, CT_ERR));
            opts->wait_ms = how == BY_DEADLINE && i != last ? 4 * ct_tolerance_ms(ct) : DL_WAIT_FOREVER;
            enter(ct, &room, i);
        }
        for (int i = 0; i < WAITERS; i++) {
            if (i != last) {
                leave(ct, &room, i, how);
            }
        }
        let_have(ct, &room, last);
        for (int i = 0; i < WAITERS; i++) {
            dl_cancel_free(room.callers[i].opts.cancel);
        }
    }
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_UNWATCH), ==, done_calls(ct, CT_OP_WATCH), 5000);
}

CT_CASE(listening, goes_on_when_whoever_listens_gets_the_lock, .needs = DL_CAP_NOTIFY) {
    all_but_one_leave(ct, WITH_THE_LOCK);
}

CT_CASE(listening, goes_on_when_whoever_listens_is_canceled, .needs = DL_CAP_NOTIFY) {
    all_but_one_leave(ct, BY_CANCEL);
}

CT_CASE(listening, goes_on_when_the_time_of_whoever_listens_is_over, .needs = DL_CAP_NOTIFY) {
    all_but_one_leave(ct, BY_DEADLINE);
}

CT_CASE(listening, goes_on_while_whoever_listened_asks_the_server, .needs = DL_CAP_NOTIFY) {
    room_t room;
    open_room(ct, &room, NEVER_POLLS);
    for (int stuck = 0; stuck < WAITERS; stuck++) {
        for (int i = 0; i < WAITERS; i++) {
            enter(ct, &room, i);
        }
        ct_pause_t *pause = ct_pause(ct, CT_OP_TRY, CT_BEFORE, room.waiting, room.names[stuck]);
        ct_woken(ct, room.waiting, room.names[stuck], 1);
        ct_pause_await(ct, pause, 5000);
        for (int i = 0; i < WAITERS; i++) {
            if (i != stuck) {
                let_have(ct, &room, i);
            }
        }
        ct_pause_go(ct, pause);
        ct_await_hearing(ct, room.waiting, room.names[stuck], 5000);
        let_have(ct, &room, stuck);
    }
}

/* ---- news at the wrong instant --------------------------------------------------------------- */

CT_CASE(listening, tells_who_is_about_to_sleep, .needs = DL_CAP_NOTIFY) {
    room_t room;
    open_room(ct, &room, NEVER_POLLS);
    enter(ct, &room, 0); /* who hears of it */
    CT_OK(dl_trylock_for(room.held[1], 0, LONG_LEASE_MS, CT_ERR));
    ct_pause_t *watched = ct_pause(ct, CT_OP_WATCH, CT_AFTER, room.waiting, room.names[1]);
    start_caller(ct, &room.callers[1]);
    ct_pause_await(ct, watched, 5000);
    ct_pause_t *tried = ct_pause(ct, CT_OP_TRY, CT_AFTER, room.waiting, room.names[1]);
    ct_pause_go(ct, watched);
    ct_pause_await(ct, tried, 5000);
    CT_EQ(ct_call(ct, CT_OP_TRY, -1).status, DL_EBUSY);
    ct_await_hearing(ct, room.waiting, room.names[1], 5000);
    int told = ct_calls_of(ct, CT_OP_WOKEN, room.waiting, room.names[1]);
    CT_OK(dl_unlock(room.held[1], CT_ERR));
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_WOKEN, room.waiting, room.names[1]), >, told, 5000);
    int64_t before_ms = ct_now_ms(ct);
    ct_pause_go(ct, tried);
    end_caller(ct, &room.callers[1], DL_OK);
    CT_LE(room.callers[1].ended_ms - before_ms, ct_tolerance_ms(ct));
    let_have(ct, &room, 0);
}

/* Drivers have to know one watch of a name only; the harness sees to it that they have. */
CT_CASE(listening, waits_to_watch_until_the_last_watch_of_the_name_has_ended, .needs = DL_CAP_NOTIFY) {
    room_t room;
    open_room(ct, &room, NEVER_POLLS);
    dl_cancel_t *cancel;
    CT_OK(dl_cancel_new(&cancel, CT_ERR));
    caller_t first = room.callers[0];
    first.opts.cancel = cancel;
    CT_OK(dl_trylock_for(room.held[0], 0, LONG_LEASE_MS, CT_ERR));
    start_caller(ct, &first);
    ct_await_hearing(ct, room.waiting, room.names[0], 5000);
    ct_pause_t *pause = ct_pause(ct, CT_OP_UNWATCH, CT_BEFORE, room.waiting, room.names[0]);
    dl_cancel_trigger(cancel);
    ct_pause_await(ct, pause, 5000);
    int tries = ct_calls(ct, CT_OP_TRY);
    start_caller(ct, &room.callers[0]);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_TRY), ==, tries + 1, 5000);
    ct_sleep_ms(ct, 20);
    CT_EQ(ct_calls(ct, CT_OP_WATCH), 1);
    ct_pause_go(ct, pause);
    end_caller(ct, &first, DL_ECANCELED);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_WATCH), ==, 2, 5000);
    ct_await_hearing(ct, room.waiting, room.names[0], 5000);
    let_have(ct, &room, 0);
    dl_cancel_free(cancel);
}

CT_CASE(listening, does_not_end_a_try_that_is_on_its_way, .needs = DL_CAP_NOTIFY) {
    room_t room;
    open_room(ct, &room, NEVER_POLLS);
    enter(ct, &room, 0);
    ct_fault_t slow = {
        .op = CT_OP_TRY, .mode = CT_LATE_REPLY, .client = room.waiting, .delay_ms = 100, .count = CT_ALWAYS};
    int fault = ct_fault_add(ct, &slow), tries = ct_calls(ct, CT_OP_TRY);
    ct_woken(ct, room.waiting, room.names[0], 1);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_TRY), ==, tries + 1, 5000);
    ct_woken(ct, room.waiting, room.names[0], 1);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_TRY), ==, tries + 2, 5000); /* for the second news */
    CT_EQ(ct_call(ct, CT_OP_TRY, tries).status, DL_EBUSY);
    CT_AWAIT_THAT(ct_call(ct, CT_OP_TRY, tries + 1).end_ns, !=, 0, 5000);
    CT_EQ(ct_call(ct, CT_OP_TRY, tries + 1).status, DL_EBUSY);
    ct_fault_end(ct, fault);
    let_have(ct, &room, 0);
}

/* ---- what is due by time --------------------------------------------------------------------- */

/* The fakes confirm a watch when an exchange with their server would be over. */
#define LATENCY_MS 40

CT_CASE(listening, does_what_is_due_by_time, .needs = DL_CAP_NOTIFY, .traits = CT_VIRTUAL) {
    room_t room;
    open_room(ct, &room, NEVER_POLLS "\nlatency: 40ms");
    enter(ct, &room, 0);
    int64_t watched_ns = (int64_t)ct_call(ct, CT_OP_WATCH, 0).begin_ns;
    CT_BETWEEN((int64_t)ct_call(ct, CT_OP_WOKEN, 0).begin_ns - watched_ns, LATENCY_MS * 1000000,
               (LATENCY_MS + 1) * 1000000);
    let_have(ct, &room, 0);
    /* Free before it is able to hear: noticed when it is. */
    CT_OK(dl_trylock_for(room.held[1], 0, LONG_LEASE_MS, CT_ERR));
    start_caller(ct, &room.callers[1]);
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_WATCH), ==, 2, 5000);
    let_have(ct, &room, 1);
}

CT_CASE(listening, does_not_keep_an_idle_client_awake, .needs = DL_CAP_NOTIFY, .traits = CT_VIRTUAL) {
    room_t room;
    open_room(ct, &room, NEVER_POLLS);
    enter(ct, &room, 0);
    int waiting = ct_calls(ct, CT_OP_LISTEN);
    ct_sleep_ms(ct, LONG_LEASE_MS / 2);
    CT_LE(ct_calls(ct, CT_OP_LISTEN), waiting + 2);
    let_have(ct, &room, 0);
    int idle = ct_calls(ct, CT_OP_LISTEN);
    ct_sleep_ms(ct, LONG_LEASE_MS);
    CT_LE(ct_calls(ct, CT_OP_LISTEN), idle + 2);
}
