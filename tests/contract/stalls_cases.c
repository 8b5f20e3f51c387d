/* stalls_cases.c - contract: a thread that stops or jumps out of its call, wherever it is, keeps nobody. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "places.h"

#define WORKERS 5
#define ROUNDS 3
/* Of every second call; where time is real, longer than all scenes together keep a server from answering. */
#define WAIT_MS 200
#define REAL_WAIT_MS 2000
/* Scenes at once; each takes a few seconds, most of them asleep. */
#define SCENES 32
/* Somebody is late by a second, and is looked at a second later; more than one may be found out in turn. */
#define GOES_ON_MS 12000
/* All scenes together keep the processors busy: a call has more time for that, and so has a node of several.
 */
#define PATIENT "\ncall_timeout: 4s"
#define PATIENT_NODES PATIENT "\nnode_timeout: 2s"

/* What becomes of the thread: it stands still, or leaves its call. */
typedef enum what { STOPS, JUMPS } what_t;

/* Where a thread that stops is in the driver, what it reads or sends there waits for it (docs/guarantees.md).
 */
typedef struct scene {
    places_t places; /* first */
    dl_client_t *client, *other;
    _Atomic(dli_thread_t *) stands;
    what_t what;
    ct_latch_t *goes_on;
    ct_thread_t *thread; /* of the whole */
} scene_t;

static _Thread_local sigjmp_buf back;

static void stand_or_jump(places_t *places) {
    scene_t *s = (scene_t *)(void *)places;
    atomic_store(&s->stands, dli_thread_known());
    if (s->what == JUMPS) {
        siglongjmp(back, 1);
    }
    ct_latch_wait(places->ct, s->goes_on, KEEP_MS);
}

static void put_between(ct_t *ct, what_t what) {
    put_places_between();
    if (what == JUMPS || ct_traits(ct) & CT_REAL_TIME) {
        mark_asking(ct);
    }
}

/* ---- who goes on ------------------------------------------------------------------------------ */

typedef struct worker {
    scene_t *scene;
    dl_lock_t *lock;
    int is_hot, may_stand;
    ct_thread_t *thread;
} worker_t;

static dl_status_t extend(dl_lock_t *lock, dl_error_t *err) {
    return dl_extend(lock, DL_LEASE_AUTO, err);
}

static dl_status_t inspect(dl_lock_t *lock, dl_error_t *err) {
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    dl_status_t status = dl_inspect(lock, &info, err);
    return status == DL_ENOTSUP ? DL_OK : status;
}

static dl_status_t keep(dl_lock_t *lock, dl_error_t *err) {
    (void)lock;
    (void)err;
    (void)inner->poll(NULL, 0, inner->now_ns() + 2u * DLI_NS_PER_MS); /* this is no place */
    return DL_OK;
}

typedef dl_status_t (*use_fn)(dl_lock_t *lock, dl_error_t *err);
static const use_fn shortly[] = {keep, dl_unlock};
static const use_fn fully[] = {dl_lock, extend, dl_unlock, inspect, dl_unlock};

/* The last of these leaves it. */
static dl_status_t use(const worker_t *w, const use_fn *calls, size_t n, dl_error_t *err) {
    dl_status_t status = DL_OK;
    if (w->is_hot) {
        begin_use(&w->scene->places, w->lock);
    }
    for (size_t i = 0; i < n && status == DL_OK; i++) {
        if (w->is_hot && i + 1 == n) {
            end_use(&w->scene->places);
        }
        status = calls[i](w->lock, err);
    }
    return status;
}

static dl_status_t play_round(ct_t *ct, const worker_t *w, int number, dl_error_t *err) {
    int64_t in_time_ms = ct_traits(ct) & CT_VIRTUAL ? WAIT_MS : REAL_WAIT_MS;
    int64_t began_ms = ct_now_ms(ct), wait_ms = number % 2 == 0 ? DL_WAIT_FOREVER : in_time_ms;
    dl_status_t status = dl_trylock_for(w->lock, wait_ms, DL_LEASE_AUTO, err);
    if (here != NULL && ct_traits(ct) & CT_VIRTUAL && wait_ms > 0) {
        CT_LE(ct_now_ms(ct) - began_ms, WAIT_MS + 100);
    }
    if (status != DL_OK) {
        return status == DL_ETIMEDOUT ? DL_OK : status;
    }
    return wait_ms > 0 ? use(w, fully, sizeof fully / sizeof fully[0], err)
                       : use(w, shortly, sizeof shortly / sizeof shortly[0], err);
}

/* What a call that failed, or was left by a jump, has left. */
static void leave(const worker_t *w) {
    if (w->is_hot && dl_hold_count(w->lock) > 0) {
        end_use(&w->scene->places);
    }
    while (dl_hold_count(w->lock) > 0) {
        (void)dl_unlock(w->lock, CT_ERR);
    }
}

/* One that stood still may find that its call, or its hold, is over. */
static void work(ct_t *ct, void *arg) {
    worker_t *w = arg;
    here = w->may_stand ? &w->scene->places : NULL;
    for (volatile int i = 0; i < ROUNDS; i++) {
        dl_error_t err;
        if (sigsetjmp(back, 1) != 0) {
            ct_listener_leaves(ct, w->scene->client);
            leave(w);
            continue;
        }
        dl_status_t status = play_round(ct, w, i, &err);
        int may_fail = atomic_load(&w->scene->stands) == dli_thread_known();
        CT_CHECKF(status == DL_OK || may_fail, "%s: %s", dl_status_name(status), err.message);
        leave(w);
    }
    here = NULL;
}

static int ended(ct_t *ct, worker_t *workers) {
    int n = 0;
    for (int i = 0; i < WORKERS; i++) {
        n += ct_thread_done(ct, workers[i].thread) != 0;
    }
    return n;
}

/* It stopped while it had the lock: the others wait for it, and rightly so. */
static int is_holder(dl_client_t *client, const char *name, const dli_thread_t *thread) {
    dli_lock_client(client);
    const dli_gate_t *gate = dli_gate_find_name(client, name, strlen(name));
    int holds = gate != NULL && gate->current != NULL && gate->current->state == DLI_HOLD_LIVE &&
                gate->current->owner.thread == thread;
    dli_unlock_client(client);
    return holds;
}

static void use_queue(ct_t *ct, dl_lock_t *task, int64_t within_ms) {
    dl_queue_t *queue = new_queue(ct);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t id = begin_lock(ct, queue, task);
        (void)take_of(ct, queue, id, DL_OK, within_ms);
        unlock_by(ct, queue, task);
    }
    dl_queue_free(queue);
}

/* Another client and three threads of this one want one name; a thread and a task have one each. */
static void play(ct_t *ct, void *arg) {
    scene_t *s = arg;
    char hot[32], own[32], queued[32];
    snprintf(hot, sizeof hot, "hot %d", s->places.at);
    snprintf(own, sizeof own, "own %d", s->places.at);
    snprintf(queued, sizeof queued, "queued %d", s->places.at);
    worker_t workers[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        dl_lock_t *lock = ct_lock(ct, i == 0 ? s->other : s->client, i == 1 ? own : hot);
        workers[i] = (worker_t){.scene = s, .lock = lock, .is_hot = i != 1, .may_stand = i > 0};
        workers[i].thread = ct_thread(ct, work, &workers[i]);
    }
    int64_t lease_ms = ct_traits(ct) & CT_VIRTUAL ? ct_lease_ms(ct) : BRIEF_MS;
    int64_t long_ms = 4000 + ct_server_lease_ms(ct, lease_ms) + GOES_ON_MS;
    use_queue(ct, ct_lock_owned(ct, s->client, queued, 1), long_ms);
    CT_AWAIT(ended(ct, workers) >= WORKERS - (atomic_load(&s->stands) != NULL) ||
                 is_holder(s->client, hot, atomic_load(&s->stands)),
             ROUNDS * long_ms);
    ct_latch_down(ct, s->goes_on);
    for (int i = 0; i < WORKERS; i++) {
        ct_join(ct, workers[i].thread);
    }
    CT_AWAIT_THAT(ct_stats(ct, s->client).held_now, ==, 0, long_ms);
    CT_EQ(ct_stats(ct, s->client).waiting_now, 0);
}

static void begin_scene(ct_t *ct, scene_t *s, int at, what_t what) {
    *s = (scene_t){.what = what, .goes_on = ct_latch(ct, 1)};
    const char *options = ct_traits(ct) & CT_REDLOCK ? BRIEF PATIENT_NODES : BRIEF PATIENT;
    options = ct_traits(ct) & CT_VIRTUAL ? NULL : options;
    s->client = ct_open(ct, options);
    s->places = (places_t){.ct = ct, .client = s->client, .at = at, .come = stand_or_jump};
    s->other = ct_open(ct, options);
    s->thread = ct_thread(ct, play, s);
}

/* False: no thread came to its place. */
static int end_scene(ct_t *ct, scene_t *s) {
    char hot[32];
    snprintf(hot, sizeof hot, "hot %d", s->places.at);
    ct_join(ct, s->thread);
    ct_close(ct, s->client);
    ct_close(ct, s->other);
    ct_expect_free(ct, hot, 0);
    return s->stands != NULL;
}

static void play_in_all_places(ct_t *ct, what_t what) {
    static scene_t scenes[SCENES];
    int stood = SCENES;
    for (int at = 0; stood == SCENES; at += SCENES) {
        for (int i = 0; i < SCENES; i++) {
            begin_scene(ct, &scenes[i], at + i, what);
        }
        stood = 0;
        for (int i = 0; i < SCENES; i++) {
            stood += end_scene(ct, &scenes[i]);
        }
        CT_CHECK(at > 0 || stood > 2 * WORKERS); /* else they hardly waited */
    }
}

CT_CASE(stalls, in_whatever_place_a_thread_stops_the_others_go_on, .traits = CT_BLOCKING | CT_REAL_TIME,
        .timeout_s = 180) {
    put_between(ct, STOPS);
    play_in_all_places(ct, STOPS);
}

/* Here it costs no time, and the threads take turns otherwise each time. */
CT_CASE(stalls, in_whatever_place_a_thread_stops_the_others_go_on_however_they_take_turns,
        .traits = CT_BLOCKING | CT_VIRTUAL) {
    put_between(ct, STOPS);
    for (int i = 0; i < ct_many(3); i++) {
        play_in_all_places(ct, STOPS);
    }
}

CT_CASE(stalls, in_whatever_place_a_thread_jumps_the_others_go_on, .traits = CT_BLOCKING, .timeout_s = 180) {
    put_between(ct, JUMPS);
    play_in_all_places(ct, JUMPS);
}

static void lock_and_stop(ct_t *ct, void *arg) {
    worker_t *w = arg;
    here = &w->scene->places;
    CT_OK(dl_lock(w->lock, CT_ERR));
    here = NULL;
    CT_OK(dl_unlock(w->lock, CT_ERR));
}

#define SLEEPS_AT_ONCE LASTING "\nspin: false"

/* Both replies come on one connection, which the thread that stops was to read. Another reads in time. */
CT_CASE(stalls, who_stops_before_it_reads_its_reply_keeps_no_task_waiting,
        .traits = CT_BLOCKING | CT_REAL_TIME | CT_BACKEND) {
    dl_client_t *client =
        ct_open(ct, ct_call_timeout_ms(ct) > 950 ? SLEEPS_AT_ONCE : SLEEPS_AT_ONCE "\ncall_timeout: 950ms");
    scene_t s = {.places = {.ct = ct, .client = client, .come = stand_or_jump},
                 .client = client,
                 .goes_on = ct_latch(ct, 1)};
    put_between(ct, STOPS);
    dl_queue_t *queue = new_queue(ct);
    dl_lock_t *task = ct_lock_owned(ct, s.client, "task", 1);
    worker_t w = {.scene = &s, .lock = ct_lock(ct, s.client, "thread")};
    CT_OK(dl_lock(w.lock, CT_ERR));
    CT_OK(dl_unlock(w.lock, CT_ERR));
    w.thread = ct_thread(ct, lock_and_stop, &w);
    CT_AWAIT(atomic_load(&s.stands) != NULL, 5000);
    for (int i = 0; i < 2 * ROUNDS; i++) { /* on all its connections */
        lock_by(ct, queue, task, DL_LEASE_AUTO);
        unlock_by(ct, queue, task);
    }
    ct_latch_down(ct, s.goes_on);
    ct_join(ct, w.thread);
    dl_queue_free(queue);
}

/* ---- one that finds work that another has left ------------------------------------------------------ */

/* When it finds it: after it has listened, before it does, or before it sleeps while others do. */
typedef enum when { HAS_LISTENED, IS_TO_LISTEN, IS_TO_SLEEP } when_t;

/* A thread that waits for "cold", and stops or jumps as it wakes who is next for "hot". */
typedef struct finder {
    scene_t scene; /* first */
    when_t when;
    dl_lock_t *cold;
    _Atomic(dli_thread_t *) known;
    atomic_int finds;  /* 1: it is to find work; 2: it has */
    atomic_int missed; /* another has done that before */
    dl_client_t *holder;
    dl_queue_t *queue;
    uint64_t task;
    caller_t next;
} finder_t;

static _Thread_local finder_t *finder;

static dli_op_t *next_of(dl_client_t *client, const char *name) {
    return TAILQ_FIRST(&dli_gate_find_name(client, name, strlen(name))->queue);
}

static bool is_marked(const dl_client_t *client) {
    return client->loop.listener == dli_thread_known()->calls;
}

/* The task of the other name ends. */
static void end_task(finder_t *f) {
    dli_op_t *task = dli_gate_find_name(f->scene.client, "hot", 3)->active;
    atomic_store(&f->finds, 2);
    task->cancelled = true;
    dli_op_poke(task);
}

/* As by one that lets the mutex go for a system call. */
static void find_work(bool polled) {
    finder_t *f = finder;
    if (f == NULL || atomic_load(&f->finds) != 1 || polled != (f->when == HAS_LISTENED)) {
        return;
    }
    dl_client_t *client = f->scene.client;
    pthread_mutex_lock(&client->mutex);
    if (atomic_load(&f->finds) == 1 &&
        (f->when == IS_TO_SLEEP || (polled ? is_marked(client) : !client->loop.listening))) {
        end_task(f);
        here = &f->scene.places;
    }
    pthread_mutex_unlock(&client->mutex);
}

/* Or listens itself, and was not to. */
static void sleep_again(bool polls) {
    finder_t *f = finder;
    if (f != NULL && (here != NULL || (polls && f->when == IS_TO_LISTEN && atomic_load(&f->finds) == 1))) {
        here = NULL;
        atomic_store(&f->missed, 1);
    }
}

static int poll_and_find(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    sleep_again(true);
    int rc = inner->poll(fds, n, deadline_ns);
    find_work(true);
    return rc;
}

static void wait_and_find(atomic_uint *word, uint64_t deadline_ns) {
    sleep_again(false);
    inner->word_wait(word, deadline_ns);
    find_work(false);
}

static void put_finds_between(void) {
    static dli_sys_t finds;
    put_places_between();
    finds = *dli_sys;
    finds.poll = poll_and_find;
    finds.word_wait = wait_and_find;
    dli_sys = &finds;
}

static int sleeps(dl_client_t *client, const char *name) {
    dli_lock_client(client);
    const dli_op_t *next = next_of(client, name);
    int it_does = next != NULL && next->park != NULL && next->park->sleeps;
    dli_unlock_client(client);
    return it_does;
}

static void begin_finder(ct_t *ct, finder_t *f, when_t when) {
    dl_client_t *c = ct_open(ct, LASTING PATIENT);
    *f = (finder_t){.scene = {.places = {.ct = ct, .client = c, .come = stand_or_jump},
                              .client = c,
                              .what = when == IS_TO_SLEEP ? JUMPS : STOPS,
                              .goes_on = ct_latch(ct, 1)},
                    .when = when};
    f->holder = ct_open(ct, LASTING);
    f->cold = ct_lock(ct, c, "cold");
    f->queue = new_queue(ct);
    CT_OK(dl_lock(ct_lock_owned(ct, f->holder, "cold", 1), CT_ERR));
    CT_OK(dl_lock(ct_lock_owned(ct, f->holder, "hot", 1), CT_ERR));
    f->task = begin_lock(ct, f->queue, ct_lock_owned(ct, c, "hot", 1));
    f->next = (caller_t)CALLER(ct_lock(ct, c, "hot"), DL_WAIT_FOREVER);
    start_caller(ct, &f->next);
    CT_AWAIT(sleeps(c, "hot"), SOON_MS);
}

/* False: another was quicker. */
static int end_finder(ct_t *ct, finder_t *f) {
    dli_lock_client(f->scene.client);
    if (atomic_load(&f->finds) < 2) {
        end_task(f);
    }
    dli_unlock_client(f->scene.client);
    ct_latch_down(ct, f->scene.goes_on);
    (void)take_of(ct, f->queue, f->task, DL_ECANCELED, SOON_MS);
    ct_close(ct, f->holder);
    dl_queue_free(f->queue);
    ct_join(ct, f->scene.thread);
    end_caller(ct, &f->next, DL_OK);
    ct_close(ct, f->scene.client);
    return !f->missed;
}

static void wait_and_be_stopped(ct_t *ct, void *arg) {
    finder_t *f = arg;
    atomic_store(&f->known, dli_thread_self());
    finder = f;
    if (sigsetjmp(back, 1) == 0) {
        CT_OK(dl_lock(f->cold, CT_ERR));
        CT_OK(dl_unlock(f->cold, CT_ERR));
    } else {
        CT_STATUS(dl_unlock(f->cold, CT_ERR), DL_ENOTOWNER);
        CT_CHECK(dli_thread_known()->calls == NULL);
    }
    finder = NULL;
}

/* Once it listens; late, it may be replaced before it finds anything. */
static int has_found(finder_t *f) {
    dl_client_t *client = f->scene.client;
    if (atomic_load(&f->finds) < 2) {
        const dli_thread_t *thread = atomic_load(&f->known);
        dli_lock_client(client);
        const dli_op_t *op = client->loop.listener;
        if (atomic_load(&f->finds) < 2 && op != NULL && thread != NULL && op == thread->calls) {
            atomic_store(&f->finds, 1);
            dli_park_wake(client, op->park);
        }
        dli_unlock_client(client);
    }
    return f->scene.stands != NULL || f->missed;
}

static void others_go_on(ct_t *ct, dl_client_t *client) {
    dl_lock_t *third = ct_lock_owned(ct, client, "third", 1);
    dl_queue_t *queue = new_queue(ct);
    lock_by(ct, queue, third, DL_LEASE_AUTO);
    unlock_by(ct, queue, third);
    dl_queue_free(queue);
}

static int stop_a_listener(ct_t *ct) {
    finder_t f;
    begin_finder(ct, &f, HAS_LISTENED);
    f.scene.thread = ct_thread(ct, wait_and_be_stopped, &f);
    CT_AWAIT(has_found(&f), SOON_MS);
    others_go_on(ct, f.scene.client);
    return end_finder(ct, &f);
}

CT_CASE(stalls, who_listens_and_stops_as_it_wakes_another_is_replaced, .traits = CT_BLOCKING,
        .needs = DL_CAP_NOTIFY) {
    put_finds_between();
    while (!stop_a_listener(ct)) {}
}

/* It does not say yet to what it listens: nobody could replace it. */
static void stand_unmarked(places_t *places) {
    ct_t *ct = places->ct;
    pthread_mutex_lock(&places->client->mutex);
    bool marked = is_marked(places->client);
    pthread_mutex_unlock(&places->client->mutex);
    CT_CHECKF(!marked, "it is marked as the one that listens, and then wakes another");
    stand_or_jump(places);
}

static int listens(dl_client_t *client, const char *name) {
    dli_lock_client(client);
    const dli_gate_t *gate = dli_gate_find_name(client, name, strlen(name));
    int it_does = gate != NULL && gate->active != NULL && gate->active == client->loop.listener;
    dli_unlock_client(client);
    return it_does;
}

/* Beside another who listens: the next one to do so. Missed: it listens itself, as the other looked away. */
static int is_next(finder_t *f) {
    dl_client_t *client = f->scene.client;
    const dli_thread_t *thread = atomic_load(&f->known);
    dli_lock_client(client);
    const dli_op_t *op = thread != NULL ? thread->calls : NULL;
    int it_is = op != NULL && op->listens && !op->request.pending && op->park != NULL && op->park->sleeps &&
                client->loop.listener != NULL && client->loop.listener != op;
    if (op != NULL && client->loop.listener == op) {
        atomic_store(&f->missed, 1);
    }
    dli_unlock_client(client);
    return it_is || f->missed;
}

static int stop_before_it_listens(ct_t *ct) {
    finder_t f;
    begin_finder(ct, &f, IS_TO_LISTEN);
    dl_client_t *client = f.scene.client;
    f.scene.places.come = stand_unmarked;
    caller_t before = CALLER(ct_lock(ct, client, "warm"), DL_WAIT_FOREVER);
    CT_OK(dl_cancel_new(&before.opts.cancel, CT_ERR));
    CT_OK(dl_lock(ct_lock_owned(ct, f.holder, "warm", 1), CT_ERR));
    start_caller(ct, &before);
    CT_AWAIT(listens(client, "warm"), SOON_MS);
    f.scene.thread = ct_thread(ct, wait_and_be_stopped, &f);
    CT_AWAIT(is_next(&f), SOON_MS);
    atomic_store(&f.finds, !f.missed);
    dl_cancel_trigger(before.opts.cancel);
    CT_AWAIT(f.scene.stands != NULL || f.missed, SOON_MS);
    others_go_on(ct, client);
    end_caller(ct, &before, DL_ECANCELED);
    dl_cancel_free(before.opts.cancel);
    return end_finder(ct, &f);
}

CT_CASE(stalls, who_stops_as_it_wakes_another_before_it_listens_keeps_nobody, .traits = CT_BLOCKING,
        .needs = DL_CAP_NOTIFY) {
    put_finds_between();
    while (!stop_before_it_listens(ct)) {}
}

static int jump_before_it_sleeps(ct_t *ct) {
    finder_t f;
    begin_finder(ct, &f, IS_TO_SLEEP);
    dl_client_t *client = f.scene.client;
    (void)begin_lock(ct, f.queue, ct_lock_owned(ct, client, "cold", 1));
    f.scene.thread = ct_thread(ct, wait_and_be_stopped, &f);
    ct_await_waiting(ct, client, 4, SOON_MS);
    CT_AWAIT(sleeps(client, "cold"), SOON_MS);
    atomic_store(&f.finds, 1);
    dli_lock_client(client);
    dli_op_poke(next_of(client, "cold"));
    dli_unlock_client(client);
    CT_AWAIT(f.scene.stands != NULL || f.missed, SOON_MS);
    return end_finder(ct, &f);
}

/* It was woken, and is about to sleep again. Its next call ends the one that it has left. */
CT_CASE(stalls, who_jumps_as_it_wakes_another_before_it_sleeps_has_left_its_call, .traits = CT_BLOCKING,
        .needs_not = DL_CAP_NATIVE_WAIT) {
    put_finds_between();
    while (!jump_before_it_sleeps(ct)) {}
}

static void stand_long(places_t *places) {
    ct_t *ct = places->ct;
    ct_sleep_ms(ct, 3 * ct_call_timeout_ms(ct));
}

/* Nobody else would have told it of an answer. */
CT_CASE(stalls, who_stops_before_it_reads_for_longer_than_a_call_has_asks_again,
        .traits = CT_BACKEND | CT_BLOCKING | CT_VIRTUAL) {
    places_t places = {.ct = ct, .client = ct_open(ct, NULL), .come = stand_long};
    dl_lock_t *lock = ct_lock(ct, places.client, "orders");
    int fault = ct_fault(ct, CT_OP_TRY, CT_NEVER, 1);
    put_places_between();
    here = &places;
    CT_OK(dl_lock(lock, CT_ERR));
    CT_CHECK(here == NULL);
    CT_EQ(ct_fault_hits(ct, fault), 1);
    CT_OK(dl_unlock(lock, CT_ERR));
}
