/* stress.c - threads do everything at once on few names: one holder at a time, rising tokens. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: stress [--threads N] [--names N] [--ops N] [--clients N] [--seed N] [--file PATH] [--custom]
 *
 * A plain program, for sanitizers and valgrind; --custom uses the driver of examples/custom_driver. With one
 * client (the default) what the lock protects is plain memory, so that ThreadSanitizer itself sees whether
 * the lock orders the holders. With several clients the order comes from the file, which it cannot see, and
 * the same memory is touched by relaxed atomics.
 */
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "custom_driver.h"
#include "support/scratch.h"

enum { MAX_THREADS = 64, MAX_NAMES = 32, MAX_CLIENTS = 8, LEASE_MS = 60000, BOUND_MS = 60000 };

/* What one name's lock protects. */
typedef struct guarded {
    long inside;
    long count;
    uint64_t token;
} guarded_t;

/* One thread of the stress, and the wait that the canceller may end. */
typedef struct worker {
    pthread_t thread;
    int number;
    uint64_t random;
    pthread_mutex_t mutex; /* protects cancel */
    dl_cancel_t *cancel;
    long held, busy, cancelled;
} worker_t;

static int threads = 8, names = 4, ops = 400, clients = 1, custom = 0;
static uint64_t seed = 1;
static dl_client_t *client[MAX_CLIENTS];
static guarded_t guarded[MAX_NAMES];
static worker_t workers[MAX_THREADS];
static atomic_long violations;
static atomic_int done;
static atomic_ulong next_owner = 1;

#define CHECK(cond) ((cond) ? (void)0 : violated(#cond, __LINE__, ""))
#define CHECK_THAT(a, op, b)                                                                             \
    do {                                                                                                 \
        int64_t check_a_ = (int64_t)(a), check_b_ = (int64_t)(b);                                        \
        char check_text_[80];                                                                            \
        if (!(check_a_ op check_b_)) {                                                                   \
            snprintf(check_text_, sizeof check_text_, ": %" PRId64 " and %" PRId64, check_a_, check_b_); \
            violated(#a " " #op " " #b, __LINE__, check_text_);                                          \
        }                                                                                                \
    } while (0)

static void violated(const char *what, int line, const char *values) {
    fprintf(stderr, "tests/support/stress.c:%d: %s is false%s\n", line, what, values);
    atomic_fetch_add(&violations, 1);
}

static void fatal(const char *what, const dl_error_t *err) {
    fprintf(stderr, "stress: %s: %s: %s\n", what, dl_status_name(err->status), err->message);
    exit(1);
}

/* xorshift64: the same seed gives the same choices. */
static uint64_t draw(worker_t *self, uint64_t bound) {
    self->random ^= self->random << 13;
    self->random ^= self->random >> 7;
    self->random ^= self->random << 17;
    return self->random % bound;
}

static long load(const long *p) {
    return clients == 1 ? *p : __atomic_load_n(p, __ATOMIC_RELAXED);
}

static void store(long *p, long value) {
    if (clients == 1)
        *p = value;
    else
        __atomic_store_n(p, value, __ATOMIC_RELAXED);
}

/* ---- under the lock ---------------------------------------------------------------------------- */

/* Touches what the lock protects as only a single holder may. */
static void use(worker_t *self, dl_lock_t *lock, guarded_t *g, uint32_t levels) {
    uint64_t token = dl_token(lock);

    CHECK_THAT(load(&g->inside), ==, 0);
    store(&g->inside, self->number + 1);
    store(&g->count, load(&g->count) + 1);
    CHECK_THAT(dl_valid_ms(lock), >, 0);
    CHECK_THAT(dl_hold_count(lock), ==, levels);
    if (draw(self, 4) == 0)
        sched_yield();
    if (clients == 1) {
        CHECK_THAT(token, >, g->token);
        g->token = token;
    } else {
        CHECK_THAT(token, >, __atomic_load_n(&g->token, __ATOMIC_RELAXED));
        __atomic_store_n(&g->token, token, __ATOMIC_RELAXED);
    }
    CHECK_THAT(load(&g->inside), ==, self->number + 1);
    store(&g->inside, 0);
    self->held++;
}

static void leave(dl_lock_t *lock) {
    dl_error_t err;

    if (dl_unlock(lock, &err) != DL_OK)
        fatal("unlock", &err);
}

/* 1 if held; counts what may happen, stops at what may not. */
static int entered(worker_t *self, dl_status_t status, const dl_error_t *err) {
    if (status == DL_OK)
        return 1;
    if (status == DL_EBUSY || status == DL_ETIMEDOUT)
        self->busy++;
    else if (status == DL_ECANCELED)
        self->cancelled++;
    else
        fatal("lock", err);
    return 0;
}

/* ---- the operations ---------------------------------------------------------------------------- */

static void simple(worker_t *self, dl_lock_t *lock, guarded_t *g) {
    dl_error_t err;
    dl_status_t status;

    switch (draw(self, 3)) {
    case 0:
        status = dl_trylock(lock, &err);
        break;
    case 1:
        status = dl_trylock_for(lock, (int64_t)draw(self, 20), LEASE_MS, &err);
        break;
    default:
        status = dl_trylock_for(lock, BOUND_MS, DL_LEASE_AUTO, &err);
    }
    if (entered(self, status, &err)) {
        use(self, lock, g, 1);
        leave(lock);
    }
}

static void reentry(worker_t *self, dl_lock_t *lock, guarded_t *g) {
    dl_error_t err;

    if (!entered(self, dl_trylock_for(lock, BOUND_MS, LEASE_MS, &err), &err))
        return;
    if (dl_extend(lock, LEASE_MS * 2, &err) != DL_OK)
        fatal("extend", &err);
    if (dl_lock(lock, &err) != DL_OK)
        fatal("enter again", &err);
    use(self, lock, g, 2);
    leave(lock);
    CHECK_THAT(dl_hold_count(lock), ==, 1);
    leave(lock);
}

/* Waits with a cancel object that the canceller may trigger at any instant. */
static void cancellable(worker_t *self, dl_lock_t *lock, guarded_t *g) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    dl_error_t err;
    dl_cancel_t *cancel;

    if (dl_cancel_new(&cancel, &err) != DL_OK)
        fatal("cancel", &err);
    pthread_mutex_lock(&self->mutex);
    self->cancel = cancel;
    pthread_mutex_unlock(&self->mutex);
    opts.wait_ms = BOUND_MS;
    opts.cancel = cancel;
    if (entered(self, dl_acquire(lock, &opts, &err), &err)) {
        use(self, lock, g, 1);
        leave(lock);
    }
    pthread_mutex_lock(&self->mutex);
    self->cancel = NULL;
    pthread_mutex_unlock(&self->mutex);
    dl_cancel_free(cancel);
}

static void open_handle(dl_client_t *c, const char *name, int owned, uint64_t owner, dl_lock_t **lock) {
    dl_error_t err;

    if ((owned ? dl_lock_open_owned(c, name, owner, lock, &err) : dl_lock_open(c, name, lock, &err)) != DL_OK)
        fatal("handle", &err);
}

/* Enters by a handle of its own, closes it held, and leaves by another. */
static void handles(worker_t *self, dl_client_t *c, const char *name, guarded_t *g) {
    dl_lock_t *one, *other;
    dl_error_t err;
    uint64_t owner = atomic_fetch_add(&next_owner, 1);
    int owned = draw(self, 2) == 0;

    open_handle(c, name, owned, owner, &one);
    open_handle(c, name, owned, owner, &other);
    int held = entered(self, dl_trylock_for(one, BOUND_MS, DL_LEASE_AUTO, &err), &err);
    dl_lock_close(one);
    if (held) {
        use(self, other, g, 1);
        leave(other);
    }
    dl_lock_close(other);
}

static void *hold_and_exit(void *arg) {
    dl_error_t err;
    dl_status_t status = dl_trylock(arg, &err);

    if (status != DL_OK && status != DL_EBUSY)
        fatal("lock of a thread that exits", &err);
    return NULL;
}

/* A thread that ends holding: the housekeeping frees its hold. */
static void abandon(dl_lock_t *lock) {
    pthread_t thread;

    if (pthread_create(&thread, NULL, hold_and_exit, lock) == 0)
        pthread_join(thread, NULL);
}

static void *work(void *arg) {
    worker_t *self = arg;
    dl_error_t err;
    dl_lock_t *lock[MAX_NAMES];
    dl_client_t *c = client[self->number % clients];
    char name[32];

    for (int i = 0; i < names; i++) {
        snprintf(name, sizeof name, "stress/%d", i);
        if (dl_lock_open(c, name, &lock[i], &err) != DL_OK)
            fatal("handle", &err);
    }
    for (int op = 0; op < ops; op++) {
        int i = (int)draw(self, (uint64_t)names);
        snprintf(name, sizeof name, "stress/%d", i);
        switch (draw(self, 16)) {
        case 0:
            abandon(lock[i]);
            break;
        case 1:
        case 2:
        case 3:
            cancellable(self, lock[i], &guarded[i]);
            break;
        case 4:
        case 5:
            reentry(self, lock[i], &guarded[i]);
            break;
        case 6:
        case 7:
            handles(self, c, name, &guarded[i]);
            break;
        default:
            simple(self, lock[i], &guarded[i]);
        }
    }
    for (int i = 0; i < names; i++)
        dl_lock_close(lock[i]);
    return NULL;
}

/* Ends the waits of others at instants of its own. */
static void *cancel_waits(void *arg) {
    worker_t self = {.random = seed * 31 + 7};
    struct timespec pause = {0, 200000};

    (void)arg;
    while (!atomic_load(&done)) {
        worker_t *victim = &workers[draw(&self, (uint64_t)threads)];
        pthread_mutex_lock(&victim->mutex);
        if (victim->cancel)
            dl_cancel_trigger(victim->cancel);
        pthread_mutex_unlock(&victim->mutex);
        /* The pace of a disturbance, not a wait for anything. */
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* ---- the end ----------------------------------------------------------------------------------- */

static void *wait_until_closed(void *arg) {
    dl_error_t err;

    CHECK_THAT(dl_lock(arg, &err), ==, DL_ECLOSED);
    return NULL;
}

/* Closes every client while threads wait for a lock that it holds. */
static void close_under_waiters(void) {
    dl_error_t err;

    for (int i = 0; i < clients; i++) {
        enum { WAITERS = 3 };
        pthread_t waiter[WAITERS];
        dl_client_stats_t stats = {.size = sizeof stats};
        dl_lock_t *lock;
        char name[32];
        snprintf(name, sizeof name, "close/%d", i);
        if (dl_lock_open(client[i], name, &lock, &err) != DL_OK || dl_lock(lock, &err) != DL_OK)
            fatal("lock before closing", &err);
        for (int w = 0; w < WAITERS; w++)
            if (pthread_create(&waiter[w], NULL, wait_until_closed, lock) != 0)
                exit(1);
        while (dl_client_stats(client[i], &stats) == DL_OK && stats.waiting_now < WAITERS)
            sched_yield();
        dl_client_close(client[i]);
        for (int w = 0; w < WAITERS; w++)
            pthread_join(waiter[w], NULL);
        CHECK_THAT(dl_unlock(lock, &err), ==, DL_ECLOSED);
        dl_lock_close(lock);
    }
}

/* Every name is free in the end; also what exited threads held. */
static void check_all_free(void) {
    for (int i = 0; i < names; i++) {
        dl_error_t err;
        dl_lock_t *lock;
        char name[32];
        snprintf(name, sizeof name, "stress/%d", i);
        if (dl_lock_open(client[0], name, &lock, &err) != DL_OK ||
            dl_trylock_for(lock, 10000, DL_LEASE_AUTO, &err) != DL_OK)
            fatal("a lock was left behind", &err);
        leave(lock);
        dl_lock_close(lock);
    }
}

static void open_clients(const char *path) {
    char yaml[1024];
    dl_error_t err;
    int len = snprintf(yaml, sizeof yaml,
                       custom ? "{path: \"%s\", lease: 60s, call_timeout: 60s}"
                              : "{use: s, backends: {s: {driver: sqlite, path: \"%s\", lease: 60s,"
                                " call_timeout: 60s}}}",
                       path);

    for (int i = 0; i < clients; i++)
        if ((custom ? dl_client_open_driver(custom_driver(), yaml, (size_t)len, &client[i], &err)
                    : dl_client_open_text(yaml, (size_t)len, NULL, &client[i], &err)) != DL_OK)
            fatal("open", &err);
}

static void parse(int argc, char **argv, const char **path) {
    static const struct option long_options[] = {
        {"threads", 1, NULL, 't'}, {"names", 1, NULL, 'n'}, {"ops", 1, NULL, 'o'},
        {"clients", 1, NULL, 'c'}, {"seed", 1, NULL, 's'},  {"file", 1, NULL, 'f'},
        {"custom", 0, NULL, 'd'},  {NULL, 0, NULL, 0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        int number = optarg ? atoi(optarg) : 0;
        if (option == 't' && number > 0 && number <= MAX_THREADS)
            threads = number;
        else if (option == 'n' && number > 0 && number <= MAX_NAMES)
            names = number;
        else if (option == 'o' && number > 0)
            ops = number;
        else if (option == 'c' && number > 0 && number <= MAX_CLIENTS)
            clients = number;
        else if (option == 's' && number > 0)
            seed = (uint64_t)number;
        else if (option == 'd')
            custom = 1;
        else if (option == 'f')
            *path = optarg;
        else
            exit(2);
    }
}

int main(int argc, char **argv) {
    char folder[128], own_path[160];
    const char *path = NULL;
    pthread_t canceller;
    long held = 0, busy = 0, cancelled = 0, counted = 0;

    parse(argc, argv, &path);
    if (!path) {
        if (!scratch_make("stress", folder, sizeof folder))
            return 1;
        snprintf(own_path, sizeof own_path, "%s/locks.db", folder);
    }
    open_clients(path ? path : own_path);
    for (int i = 0; i < threads; i++) {
        workers[i].number = i;
        workers[i].random = seed * 1000003 + (uint64_t)i * 7919 + 1;
        pthread_mutex_init(&workers[i].mutex, NULL);
    }
    for (int i = 0; i < threads; i++)
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            return 1;
    if (pthread_create(&canceller, NULL, cancel_waits, NULL) != 0)
        return 1;
    for (int i = 0; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    atomic_store(&done, 1);
    pthread_join(canceller, NULL);

    check_all_free();
    close_under_waiters();
    for (int i = 0; i < threads; i++) {
        held += workers[i].held;
        busy += workers[i].busy;
        cancelled += workers[i].cancelled;
    }
    for (int i = 0; i < names; i++)
        counted += guarded[i].count;
    CHECK_THAT(counted, ==, held);
    CHECK_THAT(held, >, 0);
    if (!path)
        scratch_remove(folder);
    printf("stress: seed %" PRIu64 ", %d threads, %d names, %d clients: %ld holds, %ld busy, %ld cancelled, "
           "%ld violations\n",
           seed, threads, names, clients, held, busy, cancelled, atomic_load(&violations));
    return atomic_load(&violations) ? 1 : 0;
}
