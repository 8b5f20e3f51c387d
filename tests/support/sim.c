/* sim.c - the dli_sys_t of the simulated clock. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "support/sim_core.h"

#define MAX_RESUME_FDS 64

/* Guarded by sim_core.mutex. */
static uint64_t random_state;
static atomic_int installed;
static int resume_fds[MAX_RESUME_FDS]; /* our own duplicates: the clients close theirs */
static unsigned resume_count;
static pthread_once_t self_once = PTHREAD_ONCE_INIT;

static atomic_uint_fast64_t slept_ns;

static uint64_t sim_now_ns(void) {
    return atomic_load(&sim_core.clock_ns);
}

static int sim_random(void *buf, size_t len) {
    pthread_mutex_lock(&sim_core.mutex);
    unsigned char *at = buf;
    for (size_t i = 0; i < len; i++) {
        at[i] = (unsigned char)(sim_next_random(&random_state) >> 56);
    }
    pthread_mutex_unlock(&sim_core.mutex);
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
        pthread_mutex_lock(&sim_core.mutex);
        sim_thread_t *me = sim_self();
        me->fds = fds;
        me->fd_count = n;
        sim_block(me, IN_POLL, deadline_ns);
        pthread_mutex_unlock(&sim_core.mutex);
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
    pthread_mutex_lock(&sim_core.mutex);
    sim_thread_t *me = sim_self();
    me->cond = cond;
    /* From here on a broadcast finds us, so the user's mutex may go. */
    me->state = IN_COND;
    pthread_mutex_unlock(users);
    sim_block(me, IN_COND, deadline_ns);
    int timed_out = me->timed_out;
    pthread_mutex_unlock(&sim_core.mutex);
    pthread_mutex_lock(users);
    return timed_out ? ETIMEDOUT : 0;
}

static void wake_all_of(const void *cond) {
    pthread_mutex_lock(&sim_core.mutex);
    for (sim_thread_t *t = sim_core.threads; t != NULL; t = t->next) {
        if (t->state == IN_COND && t->cond == cond) {
            sim_wake(t, 0);
        }
    }
    pthread_mutex_unlock(&sim_core.mutex);
}

static void sim_cond_broadcast(pthread_cond_t *cond) {
    wake_all_of(cond);
}

/* Time stands still for who spins. */
static unsigned sim_processors(void) {
    return 1;
}

static void sim_word_wait(atomic_uint *word, uint64_t deadline_ns) {
    pthread_mutex_lock(&sim_core.mutex);
    while (atomic_load(word) == 0 && sim_now_ns() < deadline_ns) {
        sim_thread_t *me = sim_self();
        me->cond = word;
        sim_block(me, IN_COND, deadline_ns);
    }
    pthread_mutex_unlock(&sim_core.mutex);
}

static void sim_word_wake(atomic_uint *word) {
    wake_all_of(word);
}

/* The thread has ended, as far as the clock is concerned. */
static void end_thread(sim_thread_t *me) {
    pthread_mutex_lock(&sim_core.mutex);
    for (sim_thread_t *t = sim_core.threads; t != NULL; t = t->next) {
        if (t->state == IN_JOIN && pthread_equal(t->joined, me->id)) {
            sim_wake(t, 0);
        }
    }
    me->state = ENDED;
    sim_remove_thread(me);
    sim_stopped_running();
    pthread_mutex_unlock(&sim_core.mutex);
}

/* The library has destructors of its own that work when a thread ends. Those have had their turn by the third
 * round; the sanitizers' own take the last one. */
static void thread_destructor(void *value) {
    sim_thread_t *me = value;
    if (++me->dying < 3) {
        pthread_setspecific(sim_core.self_key, me);
        return;
    }
    end_thread(me);
}

static void make_self_key(void) {
    if (pthread_key_create(&sim_core.self_key, thread_destructor) != 0) {
        abort();
    }
}

static void *thread_main(void *arg) {
    sim_thread_t *me = arg;
    pthread_setspecific(sim_core.self_key, me);
    pthread_mutex_lock(&sim_core.mutex);
    while (me->state != RUNNING) { /* serial mode: not yet our turn */
        pthread_cond_wait(&me->go, &sim_core.mutex);
    }
    pthread_mutex_unlock(&sim_core.mutex);
    return me->fn(me->arg);
}

static int sim_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg) {
    pthread_mutex_lock(&sim_core.mutex);
    sim_thread_t *t = sim_add_thread();
    t->fn = fn;
    t->arg = arg;
    if (sim_core.serial) {
        t->state = READY;
        sim_core.running--;
    }
    /* With the mutex held, so that t->id is there before anybody looks for it. */
    int rc = dli_sys_real.thread_start(thread, thread_main, t);
    if (rc != 0) {
        sim_core.running -= t->state == RUNNING;
        sim_remove_thread(t);
    } else {
        t->id = *thread;
    }
    pthread_mutex_unlock(&sim_core.mutex);
    return rc;
}

static void sim_thread_join(pthread_t thread) {
    pthread_mutex_lock(&sim_core.mutex);
    int alive = 0;
    for (sim_thread_t *t = sim_core.threads; t != NULL; t = t->next) {
        alive = alive || pthread_equal(t->id, thread);
    }
    if (alive) {
        sim_thread_t *me = sim_self();
        me->joined = thread;
        sim_block(me, IN_JOIN, DLI_NEVER);
    }
    pthread_mutex_unlock(&sim_core.mutex);
    pthread_join(thread, NULL);
}

static int sim_resume_fd(void) {
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_lock(&sim_core.mutex);
    if (fd >= 0 && resume_count < MAX_RESUME_FDS) {
        resume_fds[resume_count] = dup(fd);
        resume_count += resume_fds[resume_count] >= 0;
    }
    pthread_mutex_unlock(&sim_core.mutex);
    return fd;
}

static uint64_t sim_resume_rearm(int fd) {
    uint64_t value;
    ssize_t n = read(fd, &value, sizeof value);
    (void)n;
    return sim_slept_ns();
}

static const dli_sys_t sim_table = {
    .now_ns = sim_now_ns,
    .random = sim_random,
    .thread_start = sim_thread_start,
    .thread_join = sim_thread_join,
    .poll = sim_poll,
    .word_wait = sim_word_wait,
    .processors = sim_processors,
    .word_wake = sim_word_wake,
    .cond_init = sim_cond_init,
    .cond_wait = sim_cond_wait,
    .cond_broadcast = sim_cond_broadcast,
    .resume_fd = sim_resume_fd,
    .resume_rearm = sim_resume_rearm,
};

void sim_install(const sim_options_t *options) {
    pthread_once(&self_once, make_self_key);
    pthread_mutex_lock(&sim_core.mutex);
    if (installed) {
        sim_die("installed twice");
    }
    installed = 1;
    sim_core.serial = options->serial;
    random_state = options->seed;
    sim_core.schedule_state = ~options->seed;
    atomic_store(&sim_core.clock_ns, START_NS);
    sim_thread_t *me = sim_add_thread();
    me->id = pthread_self();
    pthread_setspecific(sim_core.self_key, me);
    pthread_mutex_unlock(&sim_core.mutex);
    dli_sys = &sim_table;
}

static int others_are_left(void) {
    pthread_mutex_lock(&sim_core.mutex);
    int left = sim_core.thread_count > 1;
    pthread_mutex_unlock(&sim_core.mutex);
    return left;
}

void sim_uninstall(void) {
    /* Detached threads that are on their way out get some simulated time to be gone. */
    for (int i = 0; i < 10000 && others_are_left(); i++) {
        (void)sim_poll(NULL, 0, sim_now_ns() + DLI_NS_PER_MS);
    }
    pthread_mutex_lock(&sim_core.mutex);
    if (!installed || sim_core.thread_count != 1) {
        sim_die("uninstalled while other sim_core.threads are left");
    }
    sim_thread_t *me = sim_self();
    pthread_setspecific(sim_core.self_key, NULL);
    sim_remove_thread(me);
    sim_core.running = 0;
    for (unsigned i = 0; i < resume_count; i++) {
        close(resume_fds[i]);
    }
    resume_count = 0;
    installed = 0;
    pthread_mutex_unlock(&sim_core.mutex);
    dli_sys = &dli_sys_real;
}

int sim_active(void) {
    return installed;
}

uint64_t sim_slept_ns(void) {
    return atomic_load(&slept_ns);
}

void sim_suspend(uint64_t ns) {
    pthread_mutex_lock(&sim_core.mutex);
    atomic_fetch_add(&slept_ns, ns);
    atomic_fetch_add(&sim_core.clock_ns, ns);
    for (unsigned i = 0; i < resume_count; i++) {
        uint64_t one = 1;
        ssize_t n = write(resume_fds[i], &one, sizeof one);
        (void)n;
    }
    sim_wake_due(atomic_load(&sim_core.clock_ns));
    pthread_mutex_unlock(&sim_core.mutex);
}

void sim_on_deadlock(void (*fn)(const char *what)) {
    sim_core.deadlock_fn = fn;
}

void sim_on_advance(void (*fn)(uint64_t from_ns, uint64_t to_ns)) {
    sim_core.advance_fn = fn;
}
