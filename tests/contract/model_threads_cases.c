/* model_threads_cases.c - contract: threads do what they like, all at once, and what is promised holds. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "queues.h"
#include "walks.h"

/*
 * Of six threads two share handles that have an owner, and block; two use the same handles by a queue; two
 * are the owners themselves, and end with what they hold. A callback may do as the first do. The model knows
 * how many levels each handle has, so it is right whatever order their calls had: no two are valid at once,
 * tokens rise, a call ends in time, and once all is over nothing is left.
 */
#define NAMES 2
#define HANDLES (2 * NAMES * 3)
#define THREADS 6
#define CANCELS 64
#define WALKS 10
#define STEPS 100
#define LATE_MS 100 /* as every call may be */
/* A thread that is stopped holds others up until it was looked at twice, once a second. */
#define STOPPED_MS 2000
/* For who polls while it is free: twice the longest pause (backoff_max), and the exchanges. */
#define FREE_MS 1200

/* What a walk is made of, beside its threads. */
enum {
    SLOW = 1,        /* each answer takes 7 ms */
    SHORT = 2,       /* one name, held for moments: unlocks pass it on */
    FAULTS = 4,      /* exchanges fail */
    SUSPENDS = 8,    /* the machine sleeps */
    CLOSES = 16,     /* a client is closed under its callers */
    STOPS = 32,      /* threads are stopped in the driver */
    DEAF = 64,       /* news of releases are lost */
    MEMORY = 128,    /* there is none at times */
    CALLBACKS = 256, /* events go to a function, which makes calls, too */
    ALIKE = 512      /* all threads are as the first, and nobody waits in vain while a name is free */
};

typedef struct handle {
    dl_lock_t *lock;
    int name, client;
    bool is_own; /* the thread's that uses it */
    atomic_int levels;
    _Atomic uint64_t token; /* the last that was seen */
} handle_t;

enum { SHARES, BY_QUEUE, OWNS }; /* a trade */

typedef struct walk walk_t;
typedef struct actor {
    way_t way;
    walk_t *walk;
    handle_t own[2 * NAMES];
    int trade;
    dl_queue_t *queue;
    int pending;
    int64_t stood_ms;
} actor_t;

struct walk {
    way_t way;
    int kind;
    dl_client_t *clients[2];
    handle_t handles[HANDLES];
    dl_lock_t *own[2 * NAMES];
    dl_cancel_t *cancels[CANCELS];
    int cancel_count;
    atomic_int held[NAMES];
    _Atomic int64_t left_ms[NAMES], cancelled_ms[CANCELS], closed_ms; /* 0: not yet */
    _Atomic int64_t suspended_ms, resumed_ms; /* sums: of all, and of those that are over */
    _Atomic uint64_t token[NAMES];
    actor_t actors[THREADS + 1]; /* the last is the callback */
};

static bool has_closed(const walk_t *w) {
    return w->closed_ms != 0;
}

/* Short ones more often. */
static int64_t draw_ms(way_t *y, int scales) {
    return 1 + draw(y, (int64_t)10 << draw(y, scales));
}

/* ---- stopped --------------------------------------------------------------------------------------- */

static _Thread_local actor_t *self;

static void stop(ct_t *ct, const ct_call_t *call, void *arg) {
    (void)call;
    (void)arg;
    if (self != NULL && draw(&self->way, 12) == 0) {
        int64_t began_ms = ct_now_ms(ct);
        ct_sleep_ms(ct, draw_ms(&self->way, 11));
        self->stood_ms += ct_now_ms(ct) - began_ms + STOPPED_MS;
    }
}

/* What ends a watch waits for nothing, whatever its caller has still to ask. */
static void let_stop(ct_t *ct) {
    static const ct_op_t ops[] = {CT_OP_TRY, CT_OP_RELEASE, CT_OP_RENEW, CT_OP_WATCH, CT_OP_LISTEN};
    for (size_t i = 0; i < 2 * (sizeof ops / sizeof ops[0]); i++) {
        ct_hook(ct, ops[i / 2], i % 2 ? CT_AFTER : CT_BEFORE, NULL, stop, NULL);
    }
}

/* ---- what is promised at any time -------------------------------------------------------------------- */

/* A token is of one hold: if another handle had it last, it was had twice. */
static void look(actor_t *a, handle_t *h) {
    walk_t *w = a->walk;
    uint64_t before = w->token[h->name], token = dl_token(h->lock);
    NEED(a, token == 0 || token >= before);
    while (token > before && !atomic_compare_exchange_weak(&w->token[h->name], &before, token)) {}
    h->token = token != 0 ? token : h->token;
    for (const handle_t *o = w->handles; o < w->handles + HANDLES && token != 0; o++) {
        bool is_other = o->name == h->name && o != h, is_valid = is_other && dl_valid_ms(o->lock) > 0;
        NEED(a, !is_other || o->token != token);
        NEED(a, !is_valid || dl_valid_ms(h->lock) == 0 || dl_token(h->lock) != token);
    }
    NEED(a, !h->is_own || (int)dl_hold_count(h->lock) == h->levels || has_closed(w));
}

/* A cancel and a close are heard at once. */
static void look_at_end(actor_t *a, const handle_t *h, int64_t began_ms, int cancel) {
    const walk_t *w = a->walk;
    int64_t told_ms[] = {cancel >= 0 ? w->cancelled_ms[cancel] : 0, h->client == 0 ? w->closed_ms : 0};
    for (int i = 0; i < 2; i++) {
        int64_t from_ms = told_ms[i] > began_ms ? told_ms[i] : began_ms;
        NEED(a, told_ms[i] == 0 || ct_now_ms(a->way.ct) <= from_ms + LATE_MS);
    }
}

/* ---- what a thread does ------------------------------------------------------------------------------ */

static handle_t *choose(actor_t *a, int *what) {
    walk_t *w = a->walk;
    handle_t *from = a->trade == OWNS ? a->own : w->handles;
    int count = a->trade == OWNS ? 2 * NAMES : HANDLES;
    handle_t *h = from + draw(&a->way, count);
    *what = (int)draw(&a->way, 20);
    if (w->kind & SHORT) {
        h -= h->name ? 2 : 0;
    }
    if (draw(&a->way, 4) < (w->kind & SHORT ? 3 : 1)) {
        for (handle_t *o = from; o < from + count; o++) {
            if (o->levels > 0) { /* so that it is left soon */
                *what = 10;
                return o;
            }
        }
    }
    return h;
}

static dl_acquire_opts_t draw_opts(actor_t *a) {
    bool is_plain = (a->walk->kind & ALIKE) != 0,
         is_automatic = draw(&a->way, a->walk->kind & SHORT ? 12 : 3);
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.wait_ms = draw(&a->way, 3) ? draw_ms(&a->way, 12) : 0;
    opts.lease_ms = is_automatic || is_plain ? DL_LEASE_AUTO : draw_lease(&a->way, DL_LEASE_MIN_MS);
    opts.max_hold_ms = draw(&a->way, 3) || is_plain ? 0 : draw_ms(&a->way, 11);
    return opts;
}

static void rest(actor_t *a) {
    ct_sleep_ms(a->way.ct, a->walk->kind & SHORT ? draw(&a->way, 4) : draw_ms(&a->way, 10));
}

/* A level is left once, by one of the threads. */
static bool take_level(handle_t *h) {
    int had = h->levels;
    while (had > 0 && !atomic_compare_exchange_weak(&h->levels, &had, had - 1)) {}
    return had > 0;
}

static dl_status_t acquire(actor_t *a, handle_t *h, dl_acquire_opts_t *opts) {
    walk_t *w = a->walk;
    int64_t began_ms = ct_now_ms(a->way.ct);
    int cancel = draw(&a->way, 3) ? -1 : (int)draw(&a->way, CANCELS);
    opts->cancel = cancel >= 0 ? w->cancels[cancel] : NULL;
    dl_status_t status = dl_acquire(h->lock, opts, NULL);
    if (status == DL_OK) {
        h->levels++;
        w->held[h->name]++;
    }
    bool is_told = status == DL_ECANCELED || status == DL_ECLOSED || !(w->kind & FAULTS);
    if (is_told && opts->wait_ms > 0 && !(w->kind & (STOPS | SUSPENDS))) {
        look_at_end(a, h, began_ms, cancel);
    }
    if ((w->kind & ALIKE) && status == DL_ETIMEDOUT) {
        int64_t left_ms = w->left_ms[h->name], free_ms = left_ms > began_ms ? left_ms : began_ms;
        NEED(a, w->held[h->name] > 0 || ct_now_ms(a->way.ct) <= free_ms + FREE_MS);
    }
    return status;
}

static dl_status_t unlock(actor_t *a, handle_t *h) {
    walk_t *w = a->walk;
    if (!take_level(h)) {
        return DL_OK;
    }
    dl_status_t status = dl_unlock(h->lock, NULL);
    NEED(a, status != DL_ENOTOWNER);
    if (status == DL_ENOMEM) {
        h->levels++;
        return status;
    }
    w->left_ms[h->name] = ct_now_ms(a->way.ct);
    w->held[h->name]--;
    return status;
}

static bool is_failure(dl_status_t status) {
    return status == DL_EIO || status == DL_ENOMEM || status == DL_ELIMIT || status == DL_EPROTO;
}

static void take_step(actor_t *a) {
    walk_t *w = a->walk;
    ct_t *ct = a->way.ct;
    int what;
    handle_t *h = choose(a, &what);
    dl_acquire_opts_t opts = draw_opts(a);
    int64_t resumed_ms = w->resumed_ms, began_ms = ct_now_ms(ct);
    dl_status_t status = DL_OK;
    snprintf(a->way.said, sizeof a->way.said, "%d of %s's %d, %lld ms, waits %lld ms", what,
             h->is_own ? "a thread" : "an owner", h->name, (long long)opts.lease_ms, (long long)opts.wait_ms);
    a->stood_ms = 0;
    if (what < 8) {
        status = acquire(a, h, &opts);
    } else if (what < 14) {
        status = unlock(a, h);
    } else if (what < 16) {
        status = dl_extend(h->lock, opts.lease_ms, NULL);
    } else {
        rest(a);
        return;
    }
    look(a, h);
    int64_t most_ms = what < 8 && opts.wait_ms > 0 ? opts.wait_ms : ct_call_timeout_ms(ct);
    int64_t took_ms = ct_now_ms(ct) - began_ms, slept_ms = w->suspended_ms - resumed_ms;
    size_t said = strlen(a->way.said);
    snprintf(a->way.said + said, sizeof a->way.said - said, ": %s after %lld ms", dl_status_name(status),
             (long long)took_ms);
    NEED(a, took_ms <= most_ms + a->stood_ms + slept_ms + LATE_MS + (slept_ms > 0 ? LATE_MS : 0));
    NEED(a, status != DL_ECLOSED || has_closed(w));
    NEED(a, !is_failure(status) || (w->kind & (FAULTS | MEMORY | STOPS | SUSPENDS)));
}

/* ---- and by a queue ---------------------------------------------------------------------------------- */

static void open_queue(actor_t *a) {
    while (dl_queue_new(&a->queue, NULL) != DL_OK) { /* no memory */
        ct_sleep_ms(a->way.ct, 1);
    }
    a->pending = 0;
}

static void take_some(actor_t *a) {
    dl_completion_t done[4];
    size_t n = dl_queue_take(a->queue, done, sizeof done[0], (size_t)draw(&a->way, 5));
    for (size_t i = 0; i < n; i++) {
        handle_t *h = done[i].tag;
        if (done[i].kind == DL_OP_EVENT) {
            continue;
        }
        snprintf(a->way.said, sizeof a->way.said, "taken: %d, %s", (int)done[i].kind,
                 dl_status_name(done[i].status));
        a->pending--;
        if (done[i].kind == DL_OP_ACQUIRE && done[i].status == DL_OK) {
            h->levels++;
            look(a, h);
        }
        NEED(a, done[i].kind != DL_OP_UNLOCK || done[i].status != DL_ENOTOWNER);
        NEED(a, done[i].status != DL_ECLOSED || has_closed(a->walk));
    }
}

static void begin_step(actor_t *a) {
    int what;
    handle_t *h = choose(a, &what);
    dl_acquire_opts_t opts = draw_opts(a);
    uint64_t id = 0;
    bool has_begun = false;
    if (what < 8) {
        has_begun = dl_acquire_begin(h->lock, &opts, a->queue, h, &id, NULL) == DL_OK;
    } else if (what < 14 && take_level(h)) {
        has_begun = dl_unlock_begin(h->lock, a->queue, h, &id, NULL) == DL_OK;
        h->levels += !has_begun;
    } else if (what == 14) {
        has_begun = dl_extend_begin(h->lock, opts.lease_ms, a->queue, h, &id, NULL) == DL_OK;
    } else if (what == 15) {
        (void)dl_queue_events(draw(&a->way, 2) ? a->queue : NULL, a->walk->clients[1]);
    } else if (what == 16 && draw(&a->way, 3) == 0) {
        dl_queue_free(a->queue);
        open_queue(a);
    } else if (what > 16) {
        rest(a);
    }
    a->pending += has_begun;
    if (has_begun && draw(&a->way, 4) == 0) {
        (void)dl_op_cancel(a->queue, id - (uint64_t)draw(&a->way, 3));
    }
}

static void act_by_queue(actor_t *a) {
    open_queue(a);
    for (a->way.step = 0; a->way.step < STEPS; a->way.step++) {
        begin_step(a);
        take_some(a);
    }
    int64_t until_ms = ct_now_ms(a->way.ct) + LONGEST_MS;
    while (a->pending > 0) {
        NEED(a, ct_now_ms(a->way.ct) < until_ms);
        (void)ct_await_readable(a->way.ct, dl_queue_fd(a->queue), LATE_MS);
        take_some(a);
    }
    dl_queue_free(a->queue);
}

static void act(ct_t *ct, void *arg) {
    (void)ct;
    self = arg;
    if (self->trade == BY_QUEUE) {
        act_by_queue(self);
        return;
    }
    for (self->way.step = 0; self->way.step < STEPS; self->way.step++) {
        take_step(self);
    }
}

static void hear(void *arg, const dl_event_t *event) {
    actor_t *a = arg;
    (void)event;
    a->way.step++;
    take_step(a);
}

/* ---- and what is done to them ------------------------------------------------------------------------ */

static void lose_news(way_t *y) {
    static const ct_fault_t news[] = {{.op = CT_OP_WATCH, .mode = CT_FAIL_BEFORE},
                                      {.op = CT_OP_WATCH, .mode = CT_FAIL_BEFORE, .status = DL_ENOTSUP},
                                      {.op = CT_OP_WATCH, .mode = CT_NEVER},
                                      {.op = CT_OP_WOKEN, .mode = CT_LOSE_REPLY},
                                      {.op = CT_OP_WOKEN, .mode = CT_FAIL_BEFORE}};
    ct_fault_t fault = news[draw(y, 5)];
    fault.count = 1 + (int)draw(y, 3);
    ct_fault_add(y->ct, &fault);
}

static void disturb(walk_t *w) {
    way_t *y = &w->way;
    if ((w->kind & FAULTS) && draw(y, 2)) {
        break_some(y);
    }
    if ((w->kind & DEAF) && draw(y, 2)) {
        lose_news(y);
    }
    if (draw(y, 3) == 0 && w->cancel_count < CANCELS) {
        w->cancelled_ms[w->cancel_count] = ct_now_ms(y->ct);
        dl_cancel_trigger(w->cancels[w->cancel_count++]);
    }
    if (w->kind & MEMORY) {
        ct_alloc_fail(y->ct, 1 + (int)draw(y, 30), draw(y, 4) == 0);
    }
    if ((w->kind & SUSPENDS) && draw(y, 8) == 0) {
        int64_t ms = draw_ms(y, 11);
        w->suspended_ms += ms;
        ct_suspend_ms(y->ct, ms);
        w->resumed_ms += ms;
    }
    if ((w->kind & CALLBACKS) && !has_closed(w) && draw(y, 4) == 0) {
        NEED(w, dl_client_on_event(w->clients[0], draw(y, 3) ? hear : NULL, &w->actors[THREADS]) == DL_OK);
    }
    ct_sleep_ms(y->ct, draw_ms(y, 9));
}

static void act_all(walk_t *w) {
    ct_t *ct = w->way.ct;
    ct_thread_t *threads[THREADS];
    int64_t close_at = w->kind & CLOSES ? draw(&w->way, 60) : -1;
    for (int i = 0; i < THREADS; i++) {
        threads[i] = ct_thread(ct, act, &w->actors[i]);
    }
    for (int at = 0, done = 0; done < THREADS; at++) {
        if (at == close_at) {
            w->closed_ms = ct_now_ms(ct);
            ct_close(ct, w->clients[0]);
        }
        disturb(w);
        for (done = 0; done < THREADS && ct_thread_done(ct, threads[done]); done++) {}
    }
    for (int i = 0; i < THREADS; i++) {
        ct_join(ct, threads[i]);
    }
    ct_hooks_end(ct);
    ct_fault_end(ct, -1);
    ct_alloc_fail(ct, 0, 0);
    if ((w->kind & CALLBACKS) && !has_closed(w)) {
        CT_OK(dl_client_on_event(w->clients[0], NULL, NULL));
    }
}

/* ---- walks ------------------------------------------------------------------------------------------- */

static void begin(walk_t *w) {
    ct_t *ct = w->way.ct;
    static const ct_op_t slow[] = {CT_OP_TRY, CT_OP_RELEASE, CT_OP_RENEW};
    char name[32];
    w->clients[0] = ct_open(ct, "lease: 30s");
    w->clients[1] = ct_open(ct, "lease: 3s\nrenew_every: 1s");
    for (int i = 0; i < CANCELS; i++) {
        CT_OK(dl_cancel_new(&w->cancels[i], CT_ERR));
    }
    for (int i = 0; i < HANDLES; i++) {
        handle_t *h = &w->handles[i];
        h->client = i % 2;
        h->name = i / 2 % NAMES;
        snprintf(name, sizeof name, "walk %u, %d", w->way.seed, h->name);
        h->lock = ct_lock_owned(ct, w->clients[h->client], name, (uint64_t)(1 + i / 2 / NAMES));
        if (i < 2 * NAMES) {
            w->own[i] = ct_lock(ct, w->clients[h->client], name);
        }
    }
    for (int i = 0; i <= THREADS; i++) {
        actor_t *a = &w->actors[i];
        a->way = (way_t){.ct = ct, .seed = w->way.seed, .random = w->way.seed * 131 + (unsigned)i * 7919};
        a->walk = w;
        a->trade = w->kind & ALIKE || i == THREADS ? SHARES : i % 3;
        for (int k = 0; k < 2 * NAMES; k++) {
            a->own[k] = (handle_t){.lock = w->own[k], .name = k / 2, .client = k % 2, .is_own = true};
        }
    }
    for (size_t i = 0; i < 3 && (w->kind & SLOW); i++) {
        ct_fault_t late = {.op = slow[i], .mode = CT_LATE_REPLY, .delay_ms = 7, .count = -1};
        ct_fault_add(ct, &late);
    }
    if (w->kind & STOPS) {
        let_stop(ct);
    }
}

/* Each hold has ended once. */
static bool is_at_rest(ct_t *ct, dl_client_t *client) {
    dl_client_stats_t stats = ct_stats(ct, client);
    return stats.waiting_now == 0 && stats.held_now == 0 && stats.acquired == stats.released + stats.lost;
}

/* Each loss was told once, if nobody else has heard of it. */
static void look_at_losses(walk_t *w, dl_client_t *client) {
    dl_event_t event = DL_EVENT_INIT;
    uint64_t told = 0;
    while (dl_event_next(client, &event) == DL_OK) {
        told += event.kind == DL_EVENT_LOST;
    }
    NEED(w, told == ct_stats(w->way.ct, client).lost);
}

/* Of a queue that was freed, what was under way goes on to its end. */
static void end(walk_t *w) {
    ct_t *ct = w->way.ct;
    char name[32];
    for (handle_t *h = w->handles; h < w->handles + HANDLES; h++) {
        bool is_gone = has_closed(w) && h->client == 0;
        CT_AWAIT_THAT(dl_hold_count(h->lock), ==, is_gone ? 0 : h->levels, LONGEST_MS);
        for (; h->levels > 0 && !is_gone; h->levels--) {
            NEED(w, dl_unlock(h->lock, NULL) != DL_ENOTOWNER);
        }
    }
    for (int c = has_closed(w); c < 2; c++) {
        CT_AWAIT(is_at_rest(ct, w->clients[c]), LONGEST_MS);
        if (c == 0 && !(w->kind & CALLBACKS)) {
            look_at_losses(w, w->clients[c]);
        }
    }
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "walk %u, %d", w->way.seed, i);
        ct_expect_free(ct, name, LONGEST_MS);
    }
    for (int i = 0; i < HANDLES; i++) {
        ct_lock_close(ct, w->handles[i].lock);
    }
    for (int i = 0; i < 2 * NAMES; i++) {
        ct_lock_close(ct, w->own[i]);
    }
    for (int c = has_closed(w); c < 2; c++) {
        ct_close(ct, w->clients[c]);
    }
    for (int i = 0; i < CANCELS; i++) {
        dl_cancel_free(w->cancels[i]);
    }
}

static void walk_often(ct_t *ct, int kind) {
    const unsigned first = first_seed(ct, WALKS);
    for (unsigned seed = first; seed < first + (unsigned)ct_many(WALKS); seed++) {
        walk_t *w = calloc(1, sizeof *w);
        CT_CHECK(w != NULL);
        w->way = (way_t){.ct = ct, .seed = seed, .random = seed * 77};
        w->kind = kind;
        begin(w);
        act_all(w);
        end(w);
        free(w);
    }
}

CT_CASE(model, threads_that_do_what_they_like, .traits = CT_VIRTUAL | CT_BLOCKING) {
    walk_often(ct, 0);
}

CT_CASE(model, threads_that_pass_it_on, .traits = CT_VIRTUAL | CT_BLOCKING) {
    walk_often(ct, SHORT | SLOW);
}

CT_CASE(model, threads_wait_in_vain_for_nothing_that_is_free, .traits = CT_VIRTUAL | CT_BLOCKING) {
    walk_often(ct, SHORT | SLOW | ALIKE);
}

CT_CASE(model, threads_whatever_fails, .traits = CT_VIRTUAL | CT_BLOCKING) {
    walk_often(ct, FAULTS | CLOSES);
}

CT_CASE(model, threads_of_a_machine_that_sleeps, .traits = CT_VIRTUAL | CT_BLOCKING) {
    walk_often(ct, SUSPENDS | FAULTS | CLOSES);
}

CT_CASE(model, threads_that_have_no_memory, .traits = CT_VIRTUAL | CT_BLOCKING) {
    walk_often(ct, SHORT | SLOW | MEMORY);
}

CT_CASE(model, threads_that_are_stopped, .traits = CT_VIRTUAL | CT_BLOCKING) {
    walk_often(ct, STOPS | FAULTS | CLOSES);
}

CT_CASE(model, threads_that_hear_of_no_release, .needs = DL_CAP_NOTIFY, .traits = CT_VIRTUAL | CT_BLOCKING) {
    walk_often(ct, DEAF | STOPS | CLOSES);
}

CT_CASE(model, threads_beside_a_callback, .traits = CT_VIRTUAL | CT_BLOCKING) {
    walk_often(ct, CALLBACKS | FAULTS | CLOSES);
}
