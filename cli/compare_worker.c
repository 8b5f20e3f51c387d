/* compare_worker.c - a worker process of dlock compare: its threads take the locks, hold and free them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "clock.h"
#include "commands.h"
#include "compare.h"

/* After an error of a lock call, so that a server in trouble is not stormed. */
#define ERROR_PAUSE_NS (10u * (uint64_t)NS_PER_MS)
/* Of the first locks: each may wait so long in all, but only while some thread gets one within a step. */
#define WARM_UP_WAIT_MS 30000
#define WARM_UP_STEP_MS 3000
/* How often a long hold tells the others how long it is valid. */
#define TELL_EVERY_NS (100u * (uint64_t)NS_PER_MS)

typedef struct crew {
    const board_t *board;
    process_notes_t *notes;
    int number;
    dl_client_t *client;
    dl_lock_t **locks; /* one a name */
    dl_cancel_t *cancel;
    int warm_fd; /* counts the threads that are warm, or have failed to be */
    atomic_bool failed;
} crew_t;

typedef struct worker {
    crew_t *crew;
    pthread_t thread;
    uint64_t owner; /* among those of all processes */
    owner_notes_t *notes;
    uint32_t random;
} worker_t;

/* ---- small things ------------------------------------------------------------------------------- */

static void keep_error(process_notes_t *notes, dl_status_t status, const dl_error_t *err) {
    if (!atomic_exchange(&notes->has_error, true)) {
        (void)snprintf(notes->error, sizeof notes->error, "%s",
                       err->message[0] != '\0' ? err->message : dl_status_text(status));
    }
}

static bool stopped(const board_t *board) {
    return atomic_load(&board->orders->stop);
}

static void tell(int event_fd) {
    eventfd_t one = 1;
    (void)eventfd_write(event_fd, one);
}

static void await_hang_up(int fd) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    while (poll(&ready, 1, -1) < 0) {}
}

/* Until that instant, or until the parent says stop. */
static void pause_until(const board_t *board, uint64_t until_ns) {
    struct pollfd ready = {.fd = board->stop_fd, .events = POLLIN};
    for (uint64_t left = ns_before(until_ns, now_ns()); left > 0; left = ns_before(until_ns, now_ns())) {
        struct timespec time = {.tv_sec = (time_t)(left / 1000000000u),
                                .tv_nsec = (long)(left % 1000000000u)};
        if (ppoll(&ready, 1, &time, NULL) > 0) {
            return;
        }
    }
}

/* A lower bound; 0: the calling thread does not hold it. */
static uint64_t valid_until(dl_lock_t *lock) {
    uint64_t now = now_ns();
    int64_t valid_ms = dl_valid_ms(lock);
    return valid_ms > 0 ? now + ns_of_ms(valid_ms) : 0;
}

/* The same sequence on each backend: the workload is one. */
static uint32_t next_random(worker_t *worker) {
    uint32_t x = worker->random;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return worker->random = x;
}

/* ---- the measured time -------------------------------------------------------------------------- */

static dl_status_t acquire(const worker_t *worker, int name, int64_t wait_ms, dl_error_t *err) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.wait_ms = wait_ms;
    opts.cancel = worker->crew->cancel;
    return dl_acquire(worker->crew->locks[name], &opts, err);
}

static void note_error(const worker_t *worker, dl_status_t status, const dl_error_t *err) {
    worker->notes->errors[status]++;
    keep_error(worker->crew->notes, status, err);
}

static void note_unfinished(owner_notes_t *notes, uint64_t waited_ns) {
    notes->unfinished++;
    if (waited_ns > notes->unfinished_max_ns) {
        notes->unfinished_max_ns = waited_ns;
    }
}

static void stay_until(const board_t *board, place_t *place, dl_lock_t *lock, const stay_t *stay,
                       uint64_t until_ns) {
    for (uint64_t now = now_ns(); now < until_ns && !stopped(board); now = now_ns()) {
        pause_until(board, ns_min(now + TELL_EVERY_NS, until_ns));
        if (until_ns - now > TELL_EVERY_NS) {
            place_stay(place, stay, valid_until(lock));
        }
    }
}

/* Holds the lock for the time of the plan and frees it. */
static void hold(const worker_t *worker, int name, const grant_t *grant) {
    const board_t *board = worker->crew->board;
    place_t *place = &board->places[name];
    dl_lock_t *lock = worker->crew->locks[name];
    stay_t stay;
    place_enter(place, grant, &stay);
    if (stay.handoff_ns != NO_HANDOFF && grant->returned_ns <= board->orders->end_ns) {
        histogram_add(&worker->notes->handoffs, stay.handoff_ns);
    }
    uint64_t value = place_read(place);
    if (board->plan->hold_ns > 0) {
        stay_until(board, place, lock, &stay,
                   ns_min(grant->returned_ns + board->plan->hold_ns, board->orders->end_ns));
    }
    uint64_t until_ns = valid_until(lock);
    bool written = until_ns != 0 && stay.entry != 0;
    if (written) {
        place_write(place, value + 1);
    }
    place_leave(place, &stay, until_ns);
    dl_error_t err;
    dl_status_t status = dl_unlock(lock, &err);
    if (!written || status == DL_ELOST) {
        worker->notes->lost++;
    } else {
        place_complete(place);
    }
    if (status != DL_OK && status != DL_ELOST) {
        note_error(worker, status, &err);
    }
}

static void take_turn(worker_t *worker) {
    const board_t *board = worker->crew->board;
    uint64_t end_ns = board->orders->end_ns;
    int name = (int)(next_random(worker) % (uint32_t)board->plan->names);
    dl_error_t err;
    atomic_fetch_add(&board->places[name].waiting, 1);
    uint64_t called_ns = now_ns();
    int64_t wait_ms = (int64_t)(ns_before(end_ns, called_ns) / NS_PER_MS) + 1;
    dl_status_t status = acquire(worker, name, wait_ms, &err);
    grant_t grant = {.owner = worker->owner, .returned_ns = now_ns()};
    atomic_fetch_sub(&board->places[name].waiting, 1);
    if (status == DL_OK) {
        if (grant.returned_ns <= end_ns) {
            histogram_add(&worker->notes->waits, grant.returned_ns - called_ns);
            atomic_fetch_add_explicit(&worker->notes->acquired, 1, memory_order_relaxed);
        }
        grant.valid_until_ns = valid_until(worker->crew->locks[name]);
        grant.token = dl_token(worker->crew->locks[name]);
        hold(worker, name, &grant);
        return;
    }
    bool over = stopped(board) || now_ns() >= end_ns;
    if (over && (status == DL_ETIMEDOUT || status == DL_ECANCELED)) {
        note_unfinished(worker->notes, ns_before(ns_min(grant.returned_ns, end_ns), called_ns));
        return;
    }
    if (status == DL_ELOST) {
        worker->notes->lost++;
    } else {
        note_error(worker, status, &err);
    }
    pause_until(board, ns_min(now_ns() + ERROR_PAUSE_NS, end_ns));
}

/* Where nobody gets any lock the wait is cut short: a quarantine, say, would outlast it. */
static dl_status_t acquire_first(const worker_t *worker, int name, dl_error_t *err) {
    atomic_uint_fast64_t *warmed = &worker->crew->board->orders->warmed;
    for (int64_t waited_ms = WARM_UP_STEP_MS;; waited_ms += WARM_UP_STEP_MS) {
        uint64_t before = atomic_load(warmed);
        dl_status_t status = acquire(worker, name, WARM_UP_STEP_MS, err);
        if (status == DL_OK) {
            atomic_fetch_add(warmed, 1);
        }
        if (status != DL_ETIMEDOUT || waited_ms >= WARM_UP_WAIT_MS || atomic_load(warmed) == before) {
            return status;
        }
    }
}

/* Each name once by somebody, and each thread at least once, so that all is connected and made. */
static void warm_up(worker_t *worker) {
    const crew_t *crew = worker->crew;
    const plan_t *plan = crew->board->plan;
    size_t owners = (size_t)plan->processes * (size_t)plan->threads;
    size_t name = worker->owner % (size_t)plan->names;
    do {
        dl_error_t err;
        dl_status_t status = acquire_first(worker, (int)name, &err);
        if (status == DL_OK) {
            status = dl_unlock(crew->locks[name], &err);
        }
        if (status != DL_OK) {
            if (!stopped(crew->board)) {
                keep_error(crew->notes, status, &err);
                atomic_store(&worker->crew->failed, true);
            }
            return;
        }
        name += owners;
    } while (name < (size_t)plan->names && !stopped(crew->board));
}

static void *work(void *arg) {
    worker_t *worker = arg;
    const board_t *board = worker->crew->board;
    warm_up(worker);
    tell(worker->crew->warm_fd);
    await_hang_up(board->go_fd);
    while (!stopped(board) && now_ns() < board->orders->end_ns) {
        take_turn(worker);
    }
    return NULL;
}

/* ---- the process -------------------------------------------------------------------------------- */

static dl_status_t open_all(crew_t *crew, dl_error_t *err) {
    const plan_t *plan = crew->board->plan;
    dl_status_t status = try_client(plan->options, plan->backend, &crew->client, err);
    if (status != DL_OK) {
        return status;
    }
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    (void)dl_client_info(crew->client, &info);
    process_notes_t *notes = crew->notes;
    (void)snprintf(notes->driver, sizeof notes->driver, "%s", info.driver);
    (void)snprintf(notes->server, sizeof notes->server, "%s", info.server);
    atomic_store(&notes->call_timeout_ms, info.call_timeout_ms);
    crew->locks = calloc((size_t)plan->names, sizeof *crew->locks);
    status = crew->locks != NULL ? dl_cancel_new(&crew->cancel, err) : DL_ENOMEM;
    for (int i = 0; status == DL_OK && i < plan->names; i++) {
        char name[96];
        (void)snprintf(name, sizeof name, "%s.%d", plan->prefix, i);
        status = dl_lock_open(crew->client, name, &crew->locks[i], err);
    }
    return status;
}

/* Until all threads are warm, or one could not be, or the parent says stop: then its waits end. */
static void await_warm(crew_t *crew, int started) {
    struct pollfd fds[] = {{.fd = crew->warm_fd, .events = POLLIN},
                           {.fd = crew->board->stop_fd, .events = POLLIN}};
    for (int warm = 0; warm < started;) {
        if (poll(fds, 2, -1) < 0) {
            continue;
        }
        if (fds[1].revents != 0) {
            dl_cancel_trigger(crew->cancel);
            fds[1].fd = -1;
        }
        eventfd_t count;
        if (fds[0].revents != 0 && eventfd_read(crew->warm_fd, &count) == 0) {
            warm += (int)count;
        }
    }
}

static void set_state(const crew_t *crew, worker_state_t state) {
    atomic_store(&crew->notes->state, (int)state);
    tell(crew->board->news_fd);
}

/* How many threads could be started. */
static int start_threads(crew_t *crew, worker_t *workers) {
    int threads = crew->board->plan->threads;
    for (int i = 0; i < threads; i++) {
        uint64_t owner = (uint64_t)crew->number * (uint64_t)threads + (uint64_t)i;
        workers[i] = (worker_t){.crew = crew,
                                .owner = owner,
                                .notes = &crew->board->owners[owner],
                                .random = 2654435761u * ((uint32_t)owner + 1)};
        int failed = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        if (failed != 0) {
            dl_error_t err = {.status = DL_ELIMIT};
            (void)snprintf(err.message, sizeof err.message, "cannot start a thread: %s", strerror(failed));
            keep_error(crew->notes, DL_ELIMIT, &err);
            atomic_store(&crew->failed, true);
            return i;
        }
    }
    return threads;
}

static void run_threads(crew_t *crew, worker_t *workers) {
    int started = start_threads(crew, workers);
    await_warm(crew, started);
    dl_client_stats_t before = DL_CLIENT_STATS_INIT;
    dl_client_stats_t after = DL_CLIENT_STATS_INIT;
    (void)dl_client_stats(crew->client, &before);
    /* The parent ends what has failed: then it hangs up as well. */
    bool failed = atomic_load(&crew->failed);
    set_state(crew, failed ? WORKER_FAILED : WORKER_READY);
    await_hang_up(crew->board->stop_fd);
    dl_cancel_trigger(crew->cancel);
    for (int i = 0; i < started; i++) {
        (void)pthread_join(workers[i].thread, NULL);
    }
    (void)dl_client_stats(crew->client, &after);
    crew->notes->pairs = after.acquired - before.acquired;
    crew->notes->round_trips = after.round_trips - before.round_trips;
    dl_client_close(crew->client);
    if (!failed) {
        set_state(crew, WORKER_DONE);
    }
}

void worker_run(const board_t *board, int number) {
    crew_t crew = {.board = board, .notes = &board->processes[number], .number = number};
    crew.warm_fd = eventfd(0, EFD_CLOEXEC);
    worker_t *workers = calloc((size_t)board->plan->threads, sizeof *workers);
    dl_error_t err = {.message = ""};
    dl_status_t status = crew.warm_fd >= 0 && workers != NULL ? open_all(&crew, &err) : DL_ELIMIT;
    if (status != DL_OK) {
        keep_error(crew.notes, status, &err);
        set_state(&crew, WORKER_FAILED);
        dl_client_close(crew.client);
        _exit(0);
    }
    /* First this, then a look at `stop`; the parent does it in the other order, and kills only what is
     * still opening. So none is killed that has gone on to take a lock. */
    atomic_store(&crew.notes->state, WORKER_WARMING);
    if (!stopped(board)) {
        run_threads(&crew, workers);
    }
    _exit(0);
}
