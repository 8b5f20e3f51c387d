/* sim.c - a clock that moves only when every known thread is blocked. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/sim.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/sys.h"
#include "support/alloc_fail.h"

/* A real machine has been up for a while; and an instant of 0 must never look like "none". */
#define START_NS (1000u * (uint64_t)1000000000u)
#define MAX_RESUME_FDS 64

typedef enum state { RUNNING, READY, IN_POLL, IN_COND, IN_JOIN, ENDED } state_t;
static const char *const state_names[] = {"running", "ready", "poll", "cond_wait", "thread_join", "ended"};

/* One known thread. Guarded by `mutex`. */
typedef struct sim_thread {
    struct sim_thread *next;
    pthread_t id;
    unsigned number;
    pthread_cond_t go; /* signalled when the state becomes RUNNING */
    state_t state;
    uint64_t deadline_ns;     /* of what it is blocked in; DLI_NEVER: none */
    const struct pollfd *fds; /* IN_POLL: the caller's array, which stands still meanwhile */
    nfds_t fd_count;
    const pthread_cond_t *cond; /* IN_COND */
    pthread_t joined;           /* IN_JOIN */
    int timed_out;
    int dying; /* how often the destructor has come by */
    void *(*fn)(void *);
    void *arg;
} sim_thread_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static sim_thread_t *threads;
static unsigned running; /* threads in RUNNING; 0 only while the clock is being moved */
static unsigned thread_count;
static unsigned next_number;
static atomic_uint_fast64_t clock_ns;
static uint64_t random_state;
static uint64_t schedule_state;
static int serial, installed;
static int resume_fds[MAX_RESUME_FDS]; /* our own duplicates: the clients close theirs */
static unsigned resume_count;
static void (*deadlock_fn)(const char *what);
static void (*advance_fn)(uint64_t from_ns, uint64_t to_ns);
static pthread_key_t self_key;
static pthread_once_t self_once = PTHREAD_ONCE_INIT;

/* splitmix64: small, and every seed is good. */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int is_blocked(const sim_thread_t *t) {
    return t->state == IN_POLL || t->state == IN_COND || t->state == IN_JOIN;
}

void sim_dump(void) {
    uint64_t now = atomic_load(&clock_ns);
    fprintf(stderr, "sim: clock at %.3f ms\n", (double)(now - START_NS) / 1e6);
    for (sim_thread_t *t = threads; t != NULL; t = t->next) {
        fprintf(stderr, "sim: thread %u: %s", t->number, state_names[t->state]);
        if (is_blocked(t) && t->deadline_ns != DLI_NEVER) {
            fprintf(stderr, " until %.3f ms", ((double)t->deadline_ns - (double)START_NS) / 1e6);
        }
        if (t->state == IN_POLL) {
            for (nfds_t i = 0; i < t->fd_count; i++) {
                fprintf(stderr, " fd %d (0x%x)", t->fds[i].fd, (unsigned)t->fds[i].events);
            }
        } else if (t->state == IN_COND) {
            fprintf(stderr, " on %p", (const void *)t->cond);
        }
        fputc('\n', stderr);
    }
}

static void die(const char *what) {
    fprintf(stderr, "sim: %s\n", what);
    sim_dump();
    if (deadlock_fn != NULL) {
        pthread_mutex_unlock(&mutex);
        deadlock_fn(what);
    }
    abort();
}

/* ---- the scheduler; everything here with the mutex held ------------------------------------------ */

static void run(sim_thread_t *t) {
    t->state = RUNNING;
    running++;
    pthread_cond_signal(&t->go);
}

/* A blocked thread may go on; in serial mode only when its turn comes. */
static void wake(sim_thread_t *t, int timed_out) {
    t->timed_out = timed_out;
    if (serial) {
        t->state = READY;
    } else {
        run(t);
    }
}

/* Serial mode: lets one of the ready threads run. */
static int run_one_ready(void) {
    unsigned ready = 0;
    for (sim_thread_t *t = threads; t != NULL; t = t->next) {
        ready += t->state == READY;
    }
    if (ready == 0) {
        return 0;
    }
    uint64_t pick = next_random(&schedule_state) % ready;
    for (sim_thread_t *t = threads; t != NULL; t = t->next) {
        if (t->state == READY && pick-- == 0) {
            run(t);
            return 1;
        }
    }
    return 0;
}

static int poll_now(const struct pollfd *fds, nfds_t n) {
    struct pollfd copy[64];
    if (n == 0) {
        return 0;
    }
    if (n > sizeof copy / sizeof copy[0]) {
        die("a poll of more than 64 descriptors");
    }
    memcpy(copy, fds, n * sizeof copy[0]);
    int rc;
    do {
        rc = poll(copy, n, 0);
    } while (rc < 0 && errno == EINTR);
    return rc;
}

/* Wakes the polls whose descriptors are ready. */
static unsigned wake_pollers(void) {
    unsigned woken = 0;
    for (sim_thread_t *t = threads; t != NULL; t = t->next) {
        if (t->state == IN_POLL && poll_now(t->fds, t->fd_count) != 0) {
            wake(t, 0);
            woken++;
        }
    }
    return woken;
}

static void wake_due(uint64_t now) {
    for (sim_thread_t *t = threads; t != NULL; t = t->next) {
        if (is_blocked(t) && t->deadline_ns <= now) {
            wake(t, 1);
        }
    }
}

static uint64_t earliest_deadline(void) {
    uint64_t earliest = DLI_NEVER;
    for (sim_thread_t *t = threads; t != NULL; t = t->next) {
        if (is_blocked(t) && t->deadline_ns < earliest) {
            earliest = t->deadline_ns;
        }
    }
    return earliest;
}

/* Called when a thread has stopped running. When it was the last, somebody else is woken, by a descriptor or
 * by the clock. */
static void stopped_running(void) {
    running--;
    while (running == 0 && thread_count > 0) {
        if (serial && run_one_ready()) {
            return;
        }
        if (wake_pollers() > 0) {
            continue;
        }
        uint64_t to = earliest_deadline();
        if (to == DLI_NEVER) {
            die("deadlock: every thread waits, and none for a time");
        }
        uint64_t now = atomic_load(&clock_ns);
        if (to > now) {
            if (advance_fn != NULL) {
                advance_fn(now, to);
            }
            atomic_store(&clock_ns, to);
            now = to;
        }
        wake_due(now);
    }
}

static sim_thread_t *self(void) {
    sim_thread_t *t = pthread_getspecific(self_key);
    if (t == NULL) {
        fprintf(stderr, "sim: a thread that the clock does not know waits through it\n");
        abort();
    }
    return t;
}

/* Blocks in `state` until somebody makes this thread run again. */
static void block(sim_thread_t *me, state_t state, uint64_t deadline_ns) {
    me->deadline_ns = deadline_ns;
    me->timed_out = 0;
    me->state = state;
    stopped_running();
    while (me->state != RUNNING) {
        pthread_cond_wait(&me->go, &mutex);
    }
}

/* ---- the table ------------------------------------------------------------------------------------ */

static uint64_t sim_now_ns(void) {
    return atomic_load(&clock_ns);
}

static int sim_random(void *buf, size_t len) {
    pthread_mutex_lock(&mutex);
    unsigned char *at = buf;
    for (size_t i = 0; i < len; i++) {
        at[i] = (unsigned char)(next_random(&random_state) >> 56);
    }
    pthread_mutex_unlock(&mutex);
    return 0;
}

static int sim_poll(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    for (;;) {
        int rc = poll(fds, n, 0);
        if (rc > 0 || (rc < 0 && errno != EINTR)) {
            return rc;
        }
        if (rc == 0 && sim_now_ns() >= deadline_ns) {
            return 0;
        }
        pthread_mutex_lock(&mutex);
        sim_thread_t *me = self();
        me->fds = fds;
        me->fd_count = n;
        block(me, IN_POLL, deadline_ns);
        pthread_mutex_unlock(&mutex);
    }
}

static void sim_cond_init(pthread_cond_t *cond) {
    /* Nobody ever waits on it: its address is its name here. */
    pthread_cond_init(cond, NULL);
}

static int sim_cond_wait(pthread_cond_t *cond, pthread_mutex_t *users, uint64_t deadline_ns) {
    if (sim_now_ns() >= deadline_ns) {
        return ETIMEDOUT;
    }
    pthread_mutex_lock(&mutex);
    sim_thread_t *me = self();
    me->cond = cond;
    /* From here on a broadcast finds us, so the user's mutex may go. */
    me->state = IN_COND;
    pthread_mutex_unlock(users);
    block(me, IN_COND, deadline_ns);
    int timed_out = me->timed_out;
    pthread_mutex_unlock(&mutex);
    pthread_mutex_lock(users);
    return timed_out ? ETIMEDOUT : 0;
}

static void sim_cond_broadcast(pthread_cond_t *cond) {
    pthread_mutex_lock(&mutex);
    for (sim_thread_t *t = threads; t != NULL; t = t->next) {
        if (t->state == IN_COND && t->cond == cond) {
            wake(t, 0);
        }
    }
    pthread_mutex_unlock(&mutex);
}

static sim_thread_t *add_thread(void) {
    sim_thread_t *t = alloc_real(sizeof *t);
    memset(t, 0, sizeof *t);
    pthread_cond_init(&t->go, NULL);
    t->next = threads;
    t->number = next_number++;
    t->state = RUNNING;
    threads = t;
    thread_count++;
    running++;
    return t;
}

static void remove_thread(sim_thread_t *t) {
    for (sim_thread_t **at = &threads; *at != NULL; at = &(*at)->next) {
        if (*at == t) {
            *at = t->next;
            break;
        }
    }
    thread_count--;
    pthread_cond_destroy(&t->go);
    alloc_real_free(t);
}

/* The thread has ended, as far as the clock is concerned. */
static void end_thread(sim_thread_t *me) {
    pthread_mutex_lock(&mutex);
    for (sim_thread_t *t = threads; t != NULL; t = t->next) {
        if (t->state == IN_JOIN && pthread_equal(t->joined, me->id)) {
            wake(t, 0);
        }
    }
    me->state = ENDED;
    remove_thread(me);
    stopped_running();
    pthread_mutex_unlock(&mutex);
}

/* The library has destructors of its own that work when a thread ends. Those have had their turn by the third
 * round; the sanitizers' own take the last one. */
static void thread_destructor(void *value) {
    sim_thread_t *me = value;
    if (++me->dying < 3) {
        pthread_setspecific(self_key, me);
        return;
    }
    end_thread(me);
}

static void make_self_key(void) {
    if (pthread_key_create(&self_key, thread_destructor) != 0) {
        abort();
    }
}

static void *thread_main(void *arg) {
    sim_thread_t *me = arg;
    pthread_setspecific(self_key, me);
    pthread_mutex_lock(&mutex);
    while (me->state != RUNNING) { /* serial mode: not yet our turn */
        pthread_cond_wait(&me->go, &mutex);
    }
    pthread_mutex_unlock(&mutex);
    return me->fn(me->arg);
}

static int sim_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg) {
    pthread_mutex_lock(&mutex);
    sim_thread_t *t = add_thread();
    t->fn = fn;
    t->arg = arg;
    if (serial) {
        t->state = READY;
        running--;
    }
    /* With the mutex held, so that t->id is there before anybody looks for it. */
    int rc = dli_sys_real.thread_start(thread, thread_main, t);
    if (rc != 0) {
        running -= t->state == RUNNING;
        remove_thread(t);
    } else {
        t->id = *thread;
    }
    pthread_mutex_unlock(&mutex);
    return rc;
}

static void sim_thread_join(pthread_t thread) {
    pthread_mutex_lock(&mutex);
    int alive = 0;
    for (sim_thread_t *t = threads; t != NULL; t = t->next) {
        alive = alive || pthread_equal(t->id, thread);
    }
    if (alive) {
        sim_thread_t *me = self();
        me->joined = thread;
        block(me, IN_JOIN, DLI_NEVER);
    }
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, NULL);
}

static int sim_resume_fd(void) {
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_lock(&mutex);
    if (fd >= 0 && resume_count < MAX_RESUME_FDS) {
        resume_fds[resume_count] = dup(fd);
        resume_count += resume_fds[resume_count] >= 0;
    }
    pthread_mutex_unlock(&mutex);
    return fd;
}

static void sim_resume_rearm(int fd) {
    uint64_t value;
    ssize_t n = read(fd, &value, sizeof value);
    (void)n;
}

static const dli_sys_t sim_table = {
    .now_ns = sim_now_ns,
    .random = sim_random,
    .thread_start = sim_thread_start,
    .thread_join = sim_thread_join,
    .poll = sim_poll,
    .cond_init = sim_cond_init,
    .cond_wait = sim_cond_wait,
    .cond_broadcast = sim_cond_broadcast,
    .resume_fd = sim_resume_fd,
    .resume_rearm = sim_resume_rearm,
};

void sim_install(const sim_options_t *options) {
    pthread_once(&self_once, make_self_key);
    pthread_mutex_lock(&mutex);
    if (installed) {
        die("installed twice");
    }
    installed = 1;
    serial = options->serial;
    random_state = options->seed;
    schedule_state = ~options->seed;
    atomic_store(&clock_ns, START_NS);
    sim_thread_t *me = add_thread();
    me->id = pthread_self();
    pthread_setspecific(self_key, me);
    pthread_mutex_unlock(&mutex);
    dli_sys = &sim_table;
}

void sim_uninstall(void) {
    pthread_mutex_lock(&mutex);
    if (!installed || thread_count != 1) {
        die("uninstalled while other threads are left");
    }
    sim_thread_t *me = self();
    pthread_setspecific(self_key, NULL);
    remove_thread(me);
    running = 0;
    for (unsigned i = 0; i < resume_count; i++) {
        close(resume_fds[i]);
    }
    resume_count = 0;
    installed = 0;
    pthread_mutex_unlock(&mutex);
    dli_sys = &dli_sys_real;
}

int sim_active(void) {
    return dli_sys == &sim_table;
}

void sim_suspend(uint64_t ns) {
    pthread_mutex_lock(&mutex);
    atomic_fetch_add(&clock_ns, ns);
    for (unsigned i = 0; i < resume_count; i++) {
        uint64_t one = 1;
        ssize_t n = write(resume_fds[i], &one, sizeof one);
        (void)n;
    }
    wake_due(atomic_load(&clock_ns));
    pthread_mutex_unlock(&mutex);
}

void sim_on_deadlock(void (*fn)(const char *what)) {
    deadlock_fn = fn;
}

void sim_on_advance(void (*fn)(uint64_t from_ns, uint64_t to_ns)) {
    advance_fn = fn;
}
