/* passing_cases.c - contract: a lock that others of the process wait for is passed on without the server. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <string.h>

#include "places.h"

#define CROWD_MAX 40
#define LONG_LEASE_MS 60000

/* One after another of a client, who stood in line while one of them had the lock. */
typedef struct crowd {
    dl_client_t *client;
    dl_lock_t *lock;
    int size;
    int64_t hold_ms;
    int64_t lease_ms, first_lease_ms; /* of all but the first, and of that */
    int served;                       /* guarded by the lock under test */
    uint64_t tokens[CROWD_MAX];
    int asked[CROWD_MAX]; /* how often the server had said yes by then */
    int begun;
    ct_thread_t *threads[CROWD_MAX];
} crowd_t;

static void pass_through(ct_t *ct, void *arg) {
    crowd_t *c = arg;
    int is_first = __atomic_fetch_add(&c->begun, 1, __ATOMIC_SEQ_CST) == 0;
    CT_OK(dl_trylock_for(c->lock, DL_WAIT_FOREVER, is_first ? c->first_lease_ms : c->lease_ms, CT_ERR));
    int turn = __atomic_fetch_add(&c->served, 1, __ATOMIC_SEQ_CST);
    c->tokens[turn] = dl_token(c->lock);
    c->asked[turn] = done_calls(ct, CT_OP_TRY);
    CT_GT(dl_valid_ms(c->lock), 0);
    if (c->hold_ms > 0) {
        ct_sleep_ms(ct, c->hold_ms);
    }
    CT_OK(dl_unlock(c->lock, CT_ERR));
}

/* Has it while others of the client come to stand in line; with a lease of its own, so that it frees it. */
static dl_lock_t *open_later(ct_t *ct, dl_client_t *client) {
    dl_lock_t *lock = ct_lock_owned(ct, client, "desk", 99);
    take(ct, lock, LONG_LEASE_MS);
    return lock;
}

/* All stand in line before the first gets in. */
static void serve(ct_t *ct, crowd_t *c, const char *settings) {
    c->client = ct_open(ct, settings);
    dl_lock_t *other = open_later(ct, c->client);
    c->lock = ct_lock(ct, c->client, "desk");
    for (int i = 0; i < c->size; i++) {
        c->threads[i] = ct_thread(ct, pass_through, c);
        ct_await_waiting(ct, c->client, (uint64_t)i + 1, 5000);
    }
    CT_OK(dl_unlock(other, CT_ERR));
    for (int i = 0; i < c->size; i++) {
        ct_join(ct, c->threads[i]);
    }
    ct_expect_free(ct, "desk", ct_tolerance_ms(ct));
}

/* How many of the crowd stood on the claim that the server gave with its n-th yes. */
static int stood_on(const crowd_t *c, int n) {
    int count = 0;
    for (int i = 0; i < c->size; i++) {
        count += c->asked[i] == n;
    }
    return count;
}

static void expect_rising(ct_t *ct, const crowd_t *c) {
    if (ct_caps(ct) & DL_CAP_FENCE) {
        for (int i = 1; i < c->size; i++) {
            CT_GT(c->tokens[i], c->tokens[i - 1]);
        }
    }
}

CT_CASE(passing, the_server_is_asked_once_for_all_who_stand_in_line) {
    crowd_t c = {.size = 6};
    serve(ct, &c, NULL);
    dl_client_stats_t stats = ct_stats(ct, c.client);
    CT_EQ(done_calls(ct, CT_OP_TRY), 1 + c.size - (int)stats.passed);
    CT_EQ(stats.acquired, 1 + c.size);
    CT_EQ(stats.released, 1 + c.size);
    CT_EQ(stats.held_now, 0);
    expect_rising(ct, &c);
    if (ct_traits(ct) & CT_VIRTUAL) { /* elsewhere the time may be over before all had it */
        CT_EQ(stats.passed, c.size - 1);
    }
}

CT_CASE(passing, it_ends_after_32_holds) {
    crowd_t c = {.size = CROWD_MAX};
    serve(ct, &c, NULL);
    expect_rising(ct, &c);
    for (int n = 2; n <= done_calls(ct, CT_OP_TRY); n++) {
        CT_BETWEEN(stood_on(&c, n), 1, 33);
    }
    if (ct_traits(ct) & CT_VIRTUAL) {
        CT_EQ(stood_on(&c, 2), 33);
        CT_EQ(stood_on(&c, 3), CROWD_MAX - 33);
    }
}

CT_CASE(passing, it_ends_after_10_ms) {
    crowd_t c = {.size = 8, .hold_ms = 4};
    serve(ct, &c, NULL);
    expect_rising(ct, &c);
    for (int n = 2; n <= done_calls(ct, CT_OP_TRY); n++) {
        CT_BETWEEN(stood_on(&c, n), 1, 3);
    }
}

CT_CASE(passing, it_can_be_turned_off) {
    crowd_t c = {.size = 4};
    serve(ct, &c, "pass: false");
    CT_EQ(ct_stats(ct, c.client).passed, 0);
    CT_EQ(done_calls(ct, CT_OP_TRY), 1 + c.size);
    expect_rising(ct, &c);
}

CT_CASE(passing, who_asks_for_a_lease_of_his_own_asks_the_server) {
    crowd_t c = {.size = 4, .lease_ms = 2 * ct_lease_ms(ct)};
    serve(ct, &c, NULL);
    CT_EQ(ct_stats(ct, c.client).passed, 0);
    CT_EQ(done_calls(ct, CT_OP_TRY), 1 + c.size);
}

CT_CASE(passing, who_has_a_lease_of_his_own_frees_it) {
    crowd_t c = {.size = 2, .first_lease_ms = ct_lease_ms(ct) / 2};
    serve(ct, &c, NULL);
    CT_EQ(ct_stats(ct, c.client).passed, 0);
    CT_EQ(done_calls(ct, CT_OP_TRY), 1 + c.size);
}

/* ---- one after another, step by step --------------------------------------------------------------- */

/* Two of one client: the first was asked for while the second stood in line, so there are tokens for both. */
typedef struct pair {
    places_t places; /* first; the second's, who passes them all unless a case says otherwise */
    dl_client_t *client;
    caller_t first, second;
    ct_latch_t *comes; /* the second, where he was made to stop */
} pair_t;

static void stop(places_t *places) {
    ct_latch_wait(places->ct, ((pair_t *)(void *)places)->comes, KEEP_MS);
}

static void run_first(ct_t *ct, void *pair) {
    run_caller(ct, &((pair_t *)pair)->first);
}

static void run_second(ct_t *ct, void *pair) {
    here = pair;
    run_caller(ct, &((pair_t *)pair)->second);
    here = NULL;
}

static void stand(ct_t *ct, pair_t *p, caller_t *caller, uint64_t owner) {
    *caller = (caller_t)CALLER(ct_lock_owned(ct, p->client, "desk", owner), DL_WAIT_FOREVER);
    caller->keep = ct_latch(ct, 1);
    caller->thread = ct_thread(ct, caller == &p->first ? run_first : run_second, p);
    ct_await_waiting(ct, p->client, owner, 5000);
}

/* The first has it. */
static void line_up(ct_t *ct, pair_t *p, const char *settings) {
    p->client = ct_open(ct, settings);
    p->places = (places_t){.ct = ct, .client = p->client, .at = INT_MAX, .come = stop};
    dl_lock_t *other = open_later(ct, p->client);
    stand(ct, p, &p->first, 1);
    stand(ct, p, &p->second, 2);
    CT_OK(dl_unlock(other, CT_ERR));
    CT_AWAIT_THAT(p->first.ended_ms, !=, 0, 5000);
}

static void leave(ct_t *ct, caller_t *caller) {
    ct_latch_down(ct, caller->keep);
    end_caller(ct, caller, DL_OK);
}

/* The second has it. */
static void hand_on(ct_t *ct, pair_t *p) {
    leave(ct, &p->first);
    CT_AWAIT_THAT(p->second.ended_ms, !=, 0, 5000);
}

CT_CASE(passing, validity_is_what_is_left_of_the_claim, .traits = CT_VIRTUAL) {
    /* Part of it is over when the first has it. */
    (void)ct_fault_add(
        ct,
        &(ct_fault_t){.op = CT_OP_TRY, .mode = CT_LATE_REPLY, .delay_ms = 50, .skip = 1, .count = CT_ALWAYS});
    pair_t p;
    line_up(ct, &p, NULL);
    hand_on(ct, &p);
    CT_EQ(ct_stats(ct, p.client).passed, 1);
    CT_EQ(p.second.ended_ms + p.second.valid_ms, p.first.ended_ms + p.first.valid_ms);
    leave(ct, &p.second);
    ct_fault_end(ct, -1);
}

CT_CASE(passing, it_is_renewed_for_who_has_it, .traits = CT_VIRTUAL) {
    pair_t p;
    line_up(ct, &p, NULL);
    hand_on(ct, &p);
    CT_EQ(ct_stats(ct, p.client).passed, 1);
    ct_sleep_ms(ct, 3 * ct_lease_ms(ct));
    CT_EQ(ct_stats(ct, p.client).lost, 0);
    CT_GT(dl_valid_ms(p.second.lock), ct_lease_ms(ct) / 2);
    CT_EQ(dl_token(p.second.lock), p.second.token);
    leave(ct, &p.second);
}

static int note(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)name;
    memcpy(arg, info, sizeof *info);
    return 0;
}

CT_CASE(passing, the_process_knows_who_has_it, .traits = CT_VIRTUAL | CT_CAN_INSPECT | CT_CAN_LIST) {
    pair_t p;
    line_up(ct, &p, NULL);
    dl_lock_info_t first = DL_LOCK_INFO_INIT, second = DL_LOCK_INFO_INIT, listed = DL_LOCK_INFO_INIT;
    CT_OK(dl_inspect(p.first.lock, &first, CT_ERR));
    CT_EQ(first.token, p.first.token);
    hand_on(ct, &p);
    CT_EQ(ct_stats(ct, p.client).passed, 1);
    CT_OK(dl_inspect(p.first.lock, &second, CT_ERR));
    CT_EQ(second.ours, 1);
    CT_NE(strcmp(first.owner, second.owner), 0);
    CT_NE(first.hold_id, second.hold_id);
    CT_EQ(second.token, p.second.token);
    CT_OK(dl_list(p.client, NULL, note, &listed, CT_ERR));
    CT_STR_EQ(listed.owner, second.owner);
    CT_EQ(listed.token, second.token);
    CT_STR_EQ(ct_server_info(ct, "desk").owner, first.owner);
    CT_EQ(dl_hold_count(p.first.lock), 0);
    CT_EQ(dl_hold_count(p.second.lock), 1);
    leave(ct, &p.second);
}

CT_CASE(passing, a_loss_is_the_loss_of_who_has_it, .traits = CT_VIRTUAL | CT_CAN_FORCE) {
    pair_t p;
    line_up(ct, &p, NULL);
    hand_on(ct, &p);
    CT_EQ(ct_stats(ct, p.client).passed, 1);
    ct_wipe(ct, "desk");
    dl_event_t event = ct_expect_event(ct, p.client, DL_EVENT_LOST, "desk", ct_lease_ms(ct));
    CT_EQ(event.token, p.second.token);
    CT_EQ(ct_stats(ct, p.client).lost, 1);
    ct_latch_down(ct, p.second.keep);
    ct_join(ct, p.second.thread);
    CT_STATUS(p.second.unlocked, DL_ELOST);
}

CT_CASE(passing, a_session_is_watched_for_who_has_it, .needs = DL_CAP_SESSION,
        .traits = CT_VIRTUAL | CT_CAN_FORCE) {
    pair_t p;
    line_up(ct, &p, NULL);
    hand_on(ct, &p);
    CT_EQ(ct_stats(ct, p.client).passed, 1);
    ct_wipe(ct, "desk");
    (void)ct_expect_event(ct, p.client, DL_EVENT_LOST, "desk", ct_tolerance_ms(ct));
    ct_latch_down(ct, p.second.keep);
    ct_join(ct, p.second.thread);
}

CT_CASE(passing, only_with_the_tokens_that_were_given, .needs = DL_CAP_FENCE, .traits = CT_VIRTUAL) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "desk");
    CT_OK(dl_lock(lock, CT_ERR)); /* nobody stands behind it, so it draws one */
    caller_t second = CALLER(lock, DL_WAIT_FOREVER);
    start_caller(ct, &second);
    ct_await_waiting(ct, client, 1, 5000);
    CT_OK(dl_unlock(lock, CT_ERR));
    end_caller(ct, &second, DL_OK);
    CT_EQ(ct_stats(ct, client).passed, 0);
    CT_EQ(done_calls(ct, CT_OP_TRY), 2);
}

CT_CASE(passing, the_next_request_names_the_last_token_of_the_block, .needs = DL_CAP_FENCE,
        .traits = CT_VIRTUAL) {
    pair_t p;
    line_up(ct, &p, NULL);
    hand_on(ct, &p);
    CT_EQ(p.second.token, p.first.token + 1);
    leave(ct, &p.second);
    take(ct, ct_lock(ct, p.client, "another"), DL_LEASE_AUTO);
    CT_EQ(ct_call(ct, CT_OP_TRY, -1).token_floor, p.first.token + 32);
}

CT_CASE(passing, a_claim_in_doubt_is_not_passed_on, .traits = CT_VIRTUAL) {
    /* Its renewal is due by the time its answer is there. */
    (void)ct_fault_add(
        ct,
        &(ct_fault_t){.op = CT_OP_TRY, .mode = CT_LATE_REPLY, .delay_ms = 50, .skip = 1, .count = CT_ALWAYS});
    ct_fault(ct, CT_OP_RENEW, CT_FAIL_BEFORE, CT_ALWAYS);
    pair_t p;
    line_up(ct, &p, "renew_every: 10ms");
    (void)ct_expect_event(ct, p.client, DL_EVENT_RENEWAL_FAILING, "desk", 8);
    hand_on(ct, &p);
    CT_EQ(ct_stats(ct, p.client).passed, 0);
    leave(ct, &p.second);
    ct_fault_end(ct, -1);
}

CT_CASE(passing, a_claim_whose_renewal_is_under_way_is_not_passed_on, .needs = DL_CAP_LEASE,
        .traits = CT_VIRTUAL) {
    (void)ct_fault_add(
        ct, &(ct_fault_t){
                .op = CT_OP_TRY, .mode = CT_LATE_REPLY, .delay_ms = 120, .skip = 1, .count = CT_ALWAYS});
    ct_fault(ct, CT_OP_RENEW, CT_NEVER, CT_ALWAYS);
    pair_t p;
    line_up(ct, &p, "lease: 200ms\nrenew_every: 100ms");
    hand_on(ct, &p);
    CT_EQ(ct_stats(ct, p.client).passed, 0);
    leave(ct, &p.second);
    ct_fault_end(ct, -1);
}

/* The extension is confirmed, and moves the next renewal into the future. */
CT_CASE(passing, a_claim_whose_renewal_is_under_way_is_not_passed_on_for_an_extension, .needs = DL_CAP_LEASE,
        .traits = CT_VIRTUAL) {
    (void)ct_fault_add(
        ct, &(ct_fault_t){
                .op = CT_OP_TRY, .mode = CT_LATE_REPLY, .delay_ms = 120, .skip = 1, .count = CT_ALWAYS});
    ct_fault(ct, CT_OP_RENEW, CT_NEVER, 1);
    pair_t p;
    line_up(ct, &p, "lease: 200ms\nrenew_every: 100ms");
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_RENEW), ==, 1, 5000);
    CT_OK(dl_extend(p.first.lock, DL_LEASE_AUTO, CT_ERR));
    hand_on(ct, &p);
    CT_EQ(ct_stats(ct, p.client).passed, 0);
    leave(ct, &p.second);
    ct_fault_end(ct, -1);
}

static void extend_and_lose(ct_t *ct, void *lock) {
    CT_STATUS(dl_extend(lock, DL_LEASE_AUTO, CT_ERR), DL_ELOST);
}

/* All have done what they can when time goes on. The second stands where he was woken, and the claim is
 * nobody's, when the server says so. By a queue there is no such place: he has it by then, and loses it. */
CT_CASE(passing, a_claim_that_is_lost_on_the_way_is_nobodys, .needs = DL_CAP_LEASE,
        .traits = CT_VIRTUAL | CT_CAN_FORCE) {
    put_places_between();
    pair_t p = {.comes = ct_latch(ct, 1)};
    line_up(ct, &p, NULL);
    ct_pause_t *pause = ct_pause(ct, CT_OP_RENEW, CT_BEFORE, p.client, "desk");
    ct_thread_t *extender = ct_thread(ct, extend_and_lose, p.first.lock);
    ct_pause_await(ct, pause, 5000);
    ct_wipe(ct, "desk");
    ct_sleep_ms(ct, 1);
    p.places.at = atomic_load(&p.places.place);
    ct_latch_down(ct, p.first.keep);
    ct_sleep_ms(ct, 1);
    ct_pause_go(ct, pause);
    ct_join(ct, extender);
    ct_latch_down(ct, p.comes);
    end_caller(ct, &p.first, DL_OK);
    CT_AWAIT_THAT(p.second.ended_ms, !=, 0, 5000);
    dl_client_stats_t stats = ct_stats(ct, p.client);
    CT_EQ(stats.passed, stats.lost);
    ct_latch_down(ct, p.second.keep);
    ct_join(ct, p.second.thread);
}

CT_CASE(passing, a_claim_with_a_longer_lease_is_not_passed_on, .needs = DL_CAP_LEASE, .traits = CT_VIRTUAL) {
    pair_t p;
    line_up(ct, &p, NULL);
    CT_OK(dl_extend(p.first.lock, 100 * ct_lease_ms(ct), CT_ERR));
    hand_on(ct, &p);
    CT_EQ(ct_stats(ct, p.client).passed, 0);
    leave(ct, &p.second);
}

CT_CASE(passing, a_session_that_is_asked_whether_it_lives_is_not_passed_on, .needs = DL_CAP_SESSION,
        .traits = CT_VIRTUAL | CT_CAN_FORCE) {
    pair_t p;
    line_up(ct, &p, NULL);
    (void)ct_fault_add(ct, &(ct_fault_t){.op = CT_OP_RENEW, .mode = CT_LATE_REPLY, .delay_ms = 5});
    ct_wipe(ct, "desk");
    CT_AWAIT_THAT(ct_calls(ct, CT_OP_RENEW), >, 0, 5000);
    ct_latch_down(ct, p.first.keep);
    ct_join(ct, p.first.thread);
    CT_STATUS(p.first.unlocked, DL_ELOST);
    CT_AWAIT_THAT(p.second.ended_ms, !=, 0, 5000);
    CT_EQ(ct_stats(ct, p.client).passed, 0);
    leave(ct, &p.second);
    ct_fault_end(ct, -1);
}

CT_CASE(passing, a_rest_that_nobody_takes_is_forgotten, .needs_not = DL_CAP_NATIVE_WAIT,
        .traits = CT_VIRTUAL) {
    (void)ct_fault_add(
        ct,
        &(ct_fault_t){.op = CT_OP_TRY, .mode = CT_LATE_REPLY, .delay_ms = 8, .skip = 1, .count = CT_ALWAYS});
    pair_t p;
    line_up(ct, &p, NULL);
    hand_on(ct, &p);
    CT_EQ(ct_stats(ct, p.client).passed, 1);
    ct_sleep_ms(ct, 20); /* beyond the bound */
    caller_t third = CALLER(ct_lock_owned(ct, p.client, "desk", 3), 30);
    start_caller(ct, &third);
    ct_await_waiting(ct, p.client, 1, 5000);
    (void)ct_fault_add(
        ct, &(ct_fault_t){.op = CT_OP_RELEASE, .mode = CT_LATE_REPLY, .delay_ms = 100, .count = 1});
    leave(ct, &p.second);
    ct_join(ct, third.thread);
    CT_STATUS(third.status, DL_ETIMEDOUT);
    ct_fault_end(ct, -1);
    int64_t began_ms = ct_now_ms(ct);
    CT_OK(dl_trylock_for(p.first.lock, 1000, DL_LEASE_AUTO, CT_ERR));
    CT_EQ(ct_now_ms(ct), began_ms);
    CT_OK(dl_unlock(p.first.lock, CT_ERR));
}

CT_CASE(passing, who_gives_up_before_he_takes_it_leaves_it_to_the_next) {
    dl_cancel_t *cancel;
    CT_OK(dl_cancel_new(&cancel, CT_ERR));
    pair_t p;
    line_up(ct, &p, NULL);
    caller_t quitter = CALLER(ct_lock_owned(ct, p.client, "desk", 3), DL_WAIT_FOREVER);
    quitter.opts.cancel = cancel;
    start_caller(ct, &quitter);
    ct_await_waiting(ct, p.client, 2, 5000);
    dl_cancel_trigger(cancel);
    hand_on(ct, &p);
    leave(ct, &p.second);
    ct_join(ct, quitter.thread);
    (void)CT_EITHER(quitter.status, DL_ECANCELED, DL_OK);
    ct_expect_free(ct, "desk", ct_tolerance_ms(ct));
    dl_cancel_free(cancel);
}

CT_CASE(passing, a_client_that_closes_frees_what_was_passed) {
    pair_t p;
    line_up(ct, &p, NULL);
    ct_latch_down(ct, p.first.keep);
    ct_latch_down(ct, p.second.keep);
    ct_close(ct, p.client);
    ct_join(ct, p.first.thread);
    ct_join(ct, p.second.thread);
    ct_expect_free(ct, "desk", ct_tolerance_ms(ct));
}

/* ---- between clients -------------------------------------------------------------------------------- */

/* The stranger's turn, after how many of the crowd. */
typedef struct stranger {
    dl_lock_t *lock;
    crowd_t *crowd;
    int served;
} stranger_t;

static void come_between(ct_t *ct, void *arg) {
    stranger_t *s = arg;
    CT_OK(dl_lock(s->lock, CT_ERR));
    s->served = s->crowd->served;
    CT_OK(dl_unlock(s->lock, CT_ERR));
}

/* Who hears of a release has to ask: the next of the process that had it lets so much time pass. */
CT_CASE(passing, another_client_gets_in_after_32_holds, .needs = DL_CAP_NOTIFY, .traits = CT_VIRTUAL) {
    dl_lock_t *other = ct_lock(ct, ct_open(ct, NULL), "desk");
    CT_OK(dl_lock(other, CT_ERR));
    crowd_t c = {.size = CROWD_MAX};
    c.client = ct_open(ct, NULL);
    c.lock = ct_lock(ct, c.client, "desk");
    dl_client_t *far = ct_open(ct, NULL);
    stranger_t stranger = {.lock = ct_lock(ct, far, "desk"), .crowd = &c};
    (void)ct_fault_add(
        ct,
        &(ct_fault_t){.op = CT_OP_TRY, .mode = CT_LATE, .delay_ms = 2, .client = far, .count = CT_ALWAYS});
    (void)ct_fault_add(
        ct,
        &(ct_fault_t){
            .op = CT_OP_TRY, .mode = CT_LATE_REPLY, .delay_ms = 5, .client = c.client, .count = CT_ALWAYS});
    for (int i = 0; i < c.size; i++) {
        c.threads[i] = ct_thread(ct, pass_through, &c);
        ct_await_waiting(ct, c.client, (uint64_t)i + 1, 5000);
    }
    ct_thread_t *thread = ct_thread(ct, come_between, &stranger);
    ct_await_hearing(ct, c.client, "desk", 5000);
    ct_await_hearing(ct, far, "desk", 5000);
    CT_OK(dl_unlock(other, CT_ERR));
    ct_join(ct, thread);
    CT_EQ(stranger.served, 33);
    for (int i = 0; i < c.size; i++) {
        ct_join(ct, c.threads[i]);
    }
    ct_fault_end(ct, -1);
}
