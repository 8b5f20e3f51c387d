/* instants_cases.c - contract: a close, a fork, a cancel, a sleep of the machine at whatever instant. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <unistd.h>

#include "places.h"

#define WORKERS 3
#define TASKS 3
#define ROUNDS 2
/* Where they cost no time, the threads take turns otherwise each time. */
#define TURNS 10
/* Where nobody takes what was granted, the others come to places for ever. */
#define UNTAKEN_PLACES 40

typedef struct scene scene_t;

typedef struct happening {
    void (*act)(ct_t *ct, scene_t *s);  /* on a thread of its own; NULL: the queue's ends */
    int (*has_begun)(const scene_t *s); /* the thread that came to the place goes on; NULL: once it is over */
    dl_status_t ends_calls, or_else;    /* what calls may end with from then on; DL_OK: they go on */
} happening_t;

struct scene {
    places_t places; /* first */
    const happening_t *what;
    dl_client_t *client;
    dl_lock_t *tasks[TASKS];
    dl_lock_t *kept; /* held all the time, and renewed */
    dl_cancel_t *cancel;
    dl_queue_t *queue;
    atomic_ullong acquires[TASKS]; /* operations of the queue; 0: not begun */
    ct_latch_t *now, *over;
    atomic_int came;
};

static void let_it_happen(places_t *places) {
    scene_t *s = (scene_t *)(void *)places;
    ct_t *ct = places->ct;
    atomic_store(&s->came, 1);
    ct_latch_down(ct, s->now);
    CT_AWAIT(s->what->has_begun != NULL ? s->what->has_begun(s) : ct_latch_open(ct, s->over), KEEP_MS);
}

static void act(ct_t *ct, void *arg) {
    scene_t *s = arg;
    looks_on = 1;
    ct_latch_wait(ct, s->now, KEEP_MS);
    s->what->act(ct, s);
    ct_latch_down(ct, s->over);
}

/* ---- who goes on ------------------------------------------------------------------------------ */

static void check(ct_t *ct, const scene_t *s, const char *call, dl_status_t status, const dl_error_t *err) {
    int is_of_it = status == s->what->ends_calls || status == s->what->or_else;
    CT_CHECKF(status == DL_OK || (is_of_it && ct_latch_open(ct, s->now)), "at place %d: %s: %s, %s",
              s->places.at, call, dl_status_name(status), err->message);
}

typedef struct worker {
    scene_t *scene;
    dl_lock_t *lock;
    ct_thread_t *thread;
} worker_t;

static void work(ct_t *ct, void *arg) {
    const worker_t *w = arg;
    const scene_t *s = w->scene;
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.wait_ms = DL_WAIT_FOREVER;
    opts.cancel = s->cancel;
    for (int i = 0; i < ROUNDS; i++) {
        dl_error_t err;
        dl_status_t status = dl_acquire(w->lock, &opts, &err);
        check(ct, s, "dl_acquire", status, &err);
        if (status == DL_OK) {
            begin_use(&w->scene->places, w->lock);
            check(ct, s, "dl_extend", dl_extend(w->lock, DL_LEASE_AUTO, &err), &err);
            end_use(&w->scene->places);
            check(ct, s, "dl_unlock", dl_unlock(w->lock, &err), &err);
        }
    }
}

static int begin_tasks(ct_t *ct, scene_t *s) {
    int pending = 0;
    for (int i = 0; i < TASKS; i++) {
        dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
        dl_error_t err;
        opts.wait_ms = DL_WAIT_FOREVER;
        uint64_t id = 0;
        dl_status_t status = dl_acquire_begin(s->tasks[i], &opts, s->queue, NULL, &id, &err);
        atomic_store(&s->acquires[i], id);
        check(ct, s, "dl_acquire_begin", status, &err);
        pending += status == DL_OK;
    }
    return pending;
}

/* Each operation has one end. */
static void end_tasks(ct_t *ct, scene_t *s, int pending) {
    while (pending > 0) {
        dl_completion_t done = take_next(ct, s->queue, KEEP_MS);
        pending--;
        check(ct, s, "a completion", done.status, &done.err);
        if (done.status == DL_OK && done.kind == DL_OP_ACQUIRE) {
            dl_error_t err;
            begin_use(&s->places, done.lock);
            end_use(&s->places);
            dl_status_t status = dl_unlock_begin(done.lock, s->queue, NULL, NULL, &err);
            check(ct, s, "dl_unlock_begin", status, &err);
            pending += status == DL_OK;
        }
    }
    expect_nothing(ct, s->queue);
}

static int ended(ct_t *ct, const worker_t *workers) {
    int n = 0;
    for (int i = 0; i < WORKERS; i++) {
        n += ct_thread_done(ct, workers[i].thread) != 0;
    }
    return n == WORKERS;
}

static void ignore(void *arg, const dl_event_t *event) {
    (void)arg;
    (void)event;
}

/* 0: no thread came to this place. */
static int play(ct_t *ct, const happening_t *what, int at) {
    scene_t s = {.what = what, .now = ct_latch(ct, 1), .over = ct_latch(ct, 1)};
    worker_t workers[WORKERS];
    char hot[32], kept[32];
    snprintf(hot, sizeof hot, "hot %d", at);
    snprintf(kept, sizeof kept, "kept %d", at);
    dl_lock_t *theirs = ct_lock(ct, ct_observer(ct), hot);
    s.client = ct_open(ct, LASTING);
    s.places = (places_t){.ct = ct, .client = s.client, .at = at, .come = let_it_happen};
    s.kept = ct_lock_owned(ct, s.client, kept, 1);
    s.queue = new_queue(ct);
    CT_OK(dl_cancel_new(&s.cancel, CT_ERR));
    CT_EQ(dl_client_on_event(s.client, ignore, NULL), DL_OK);
    CT_OK(dl_lock(theirs, CT_ERR));
    CT_OK(dl_lock(s.kept, CT_ERR));
    for (uint64_t i = 0; i < TASKS; i++) {
        s.tasks[i] = ct_lock_owned(ct, s.client, hot, i + 1);
    }
    ct_thread_t *actor = what->act != NULL ? ct_thread(ct, act, &s) : NULL;
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (worker_t){.scene = &s, .lock = ct_lock(ct, s.client, hot)};
        workers[i].thread = ct_thread(ct, work, &workers[i]);
    }
    ct_await_waiting(ct, s.client, WORKERS, 5000);
    looks_on = what->act == NULL; /* this thread is the one that acts */
    atomic_store(&everywhere, &s.places);
    dl_error_t err;
    dl_status_t unlocked = dl_unlock(theirs, &err);
    if (what->ends_calls == DL_ELOST) { /* the machine sleeps, perhaps by now, and with it their lease ends */
        check(ct, &s, "dl_unlock of theirs", unlocked, &err);
    } else {
        CT_CHECKF(unlocked == DL_OK, "dl_unlock of theirs: %s", err.message);
    }
    int pending = begin_tasks(ct, &s);
    if (what->act != NULL) {
        end_tasks(ct, &s, pending);
    } else {
        CT_AWAIT(s.came || ended(ct, workers), KEEP_MS);
        dl_queue_free(s.queue);
        ct_latch_down(ct, s.over);
    }
    for (int i = 0; i < WORKERS; i++) {
        ct_join(ct, workers[i].thread);
    }
    ct_latch_down(ct, s.now);
    end_everywhere(ct);
    looks_on = 0;
    if (actor != NULL) {
        ct_join(ct, actor);
        dl_queue_free(s.queue);
    }
    if (what->ends_calls != DL_ECLOSED) {
        check(ct, &s, "dl_unlock of what was kept", dl_unlock(s.kept, &err), &err);
        CT_AWAIT_THAT(ct_stats(ct, s.client).held_now, ==, 0, KEEP_MS);
        CT_EQ(ct_stats(ct, s.client).waiting_now, 0);
        ct_close(ct, s.client);
    }
    ct_expect_free(ct, hot, 0);
    ct_expect_free(ct, kept, 0);
    dl_cancel_free(s.cancel);
    return s.came;
}

static void play_at_all(ct_t *ct, const happening_t *what) {
    put_places_between();
    for (int turn = 0; turn < (ct_traits(ct) & CT_VIRTUAL ? ct_many(TURNS) : 1); turn++) {
        int at = 0;
        while ((what->act != NULL || at < UNTAKEN_PLACES) && play(ct, what, at)) {
            at++;
        }
        CT_GT(at, 2 * WORKERS);
    }
}

/* ---- what happens ----------------------------------------------------------------------------- */

static void close_it(ct_t *ct, scene_t *s) {
    ct_forget(ct, s->client);
    dl_client_close(s->client);
}

static int closes(const scene_t *s) {
    pthread_mutex_lock(&s->client->mutex);
    int closing = s->client->closing;
    pthread_mutex_unlock(&s->client->mutex);
    return closing;
}

CT_CASE(instants, a_client_can_be_closed_at, .traits = CT_BLOCKING, .timeout_s = 120) {
    static const happening_t closing = {.act = close_it, .has_begun = closes, .ends_calls = DL_ECLOSED};
    play_at_all(ct, &closing);
}

static void cancel(ct_t *ct, scene_t *s) {
    (void)ct;
    dl_cancel_trigger(s->cancel);
    for (int i = 0; i < TASKS; i++) {
        (void)dl_op_cancel(s->queue, atomic_load(&s->acquires[i]));
    }
}

CT_CASE(instants, waits_can_be_cancelled_at, .traits = CT_BLOCKING, .timeout_s = 120) {
    static const happening_t cancelling = {.act = cancel, .ends_calls = DL_ECANCELED};
    play_at_all(ct, &cancelling);
}

/* It is over before the thread at the place goes on. */
CT_CASE(instants, a_queue_can_be_freed_at, .traits = CT_BLOCKING, .timeout_s = 120) {
    static const happening_t freeing = {.ends_calls = DL_OK};
    play_at_all(ct, &freeing);
}

static void use_what_was_inherited(ct_t *ct, void *arg) {
    scene_t *s = arg;
    dl_completion_t done;
    for (int i = 0; i < TASKS; i++) {
        CT_STATUS(dl_trylock(s->tasks[i], CT_ERR), DL_EFORKED);
        CT_STATUS(dl_unlock(s->tasks[i], CT_ERR), DL_EFORKED);
        (void)dl_op_cancel(s->queue, atomic_load(&s->acquires[i]));
        CT_EQ(dl_valid_ms(s->tasks[i]), 0);
    }
    CT_EQ(dl_valid_ms(s->kept), 0);
    CT_EQ(dl_queue_take(s->queue, &done, sizeof done, 1), 0);
    dl_queue_free(s->queue);
    dl_client_close(s->client);
    dl_lock_close(s->kept);
}

static void fork_it(ct_t *ct, scene_t *s) {
    ct_process_wait(ct, ct_fork(ct, use_what_was_inherited, s));
}

CT_CASE(instants, a_process_can_fork_at, .traits = CT_BLOCKING | CT_FORK_BUSY, .timeout_s = 120) {
    static const happening_t forking = {.act = fork_it, .ends_calls = DL_OK};
    play_at_all(ct, &forking);
}

static void sleep_long(ct_t *ct, scene_t *s) {
    (void)s;
    ct_suspend_ms(ct, 200000);
}

CT_CASE(instants, the_machine_can_sleep_at, .traits = CT_BLOCKING | CT_VIRTUAL) {
    static const happening_t sleeping = {.act = sleep_long, .ends_calls = DL_ELOST, .or_else = DL_EUNKNOWN};
    play_at_all(ct, &sleeping);
}
