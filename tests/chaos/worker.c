/* worker.c - one process of the chaos: threads lock, re-enter, extend, unlock, and look at the promises. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "chaos.h"
#include "support/entries.h"

#define LEVELS_MAX 4

enum { STRING, HASH, KINDS };

typedef struct worker {
    int number; /* of all threads of all processes */
    uint64_t random;
    pthread_t thread;
    dl_lock_t *locks[CHAOS_NAMES_MAX];
} worker_t;

/* What a thread knows of its hold. */
typedef struct claim {
    dl_lock_t *lock;
    uint32_t name;
    chaos_hold_t *hold; /* NULL: nothing was claimed, or no room */
    uint64_t asked_ns, enter_ns, until_ns;
    int levels;
} claim_t;

static dl_client_t *clients[KINDS];
static worker_t workers[CHAOS_THREADS_MAX];

/* ---- outcomes --------------------------------------------------------------------------------------- */

static void note(chaos_op_t op, dl_status_t status, const dl_error_t *err) {
    static const char *const names[CHAOS_OPS] = {"lock", "lock again", "extend", "unlock"};
    atomic_fetch_add(&shared->outcomes[op][status], 1);
    switch (status) {
    case DL_OK:
    case DL_ELOST:
    case DL_EIO:
    case DL_EUNKNOWN:
        return;
    case DL_EBUSY:
    case DL_ETIMEDOUT:
        if (op == CHAOS_ACQUIRE) {
            return;
        }
        break;
    default:
        break;
    }
    chaos_violated("%s answered %s: %s", names[op], dl_status_name(status), err->message);
}

/* ---- claims ----------------------------------------------------------------------------------------- */

/* Asks for the validity, and claims it in the log. false: there is none any more. */
static bool claim(claim_t *c) {
    uint64_t before_ns = chaos_now_ns();
    int64_t valid_ms = dl_valid_ms(c->lock);
    if (valid_ms > 0) {
        uint64_t until_ns = before_ns + (uint64_t)valid_ms * CHAOS_NS_PER_MS;
        c->until_ns = until_ns > c->until_ns ? until_ns : c->until_ns;
        if (c->hold != NULL) {
            atomic_store(&c->hold->until_ns, c->until_ns);
        }
        return true;
    }
    /* The last millisecond is 0, too: it is rounded down. */
    uint64_t now = chaos_now_ns();
    if (now + CHAOS_NS_PER_MS <= c->until_ns && !chaos_was_wiped(c->asked_ns, now)) {
        chaos_violated("lock %u: lost %.3f ms before its validity was over", c->name,
                       (double)(c->until_ns - now) / 1e6);
    }
    return false;
}

static void enter(worker_t *self, claim_t *c) {
    c->levels = 1;
    c->until_ns = 0;
    c->enter_ns = chaos_now_ns();
    c->hold = NULL;
    uint64_t token = dl_token(c->lock);
    if (claim(c) && token != 0) {
        c->hold = chaos_hold_new();
    }
    if (c->hold != NULL) {
        c->hold->name = c->name;
        c->hold->who = (uint32_t)self->number;
        c->hold->token = token;
        c->hold->asked_ns = c->asked_ns;
        c->hold->enter_ns = c->enter_ns;
        atomic_store(&c->hold->until_ns, c->until_ns);
        atomic_store(&c->hold->is_claimed, true);
    }
}

/* Leaves one level. */
static void leave(claim_t *c) {
    dl_error_t err = {0};
    (void)claim(c);
    uint64_t now = chaos_now_ns();
    bool is_last = c->levels-- == 1;
    if (is_last && c->hold != NULL && now < atomic_load(&c->hold->until_ns)) {
        atomic_store(&c->hold->until_ns, now);
    }
    chaos_timing_t timing = chaos_begin_timing();
    dl_status_t status = dl_unlock(c->lock, &err);
    chaos_end_timing(&timing, chaos.call_timeout_ms, "unlock", status, &err);
    note(CHAOS_UNLOCK, status, &err);
    now = chaos_now_ns();
    if (status == DL_ELOST && now < c->until_ns && !chaos_was_wiped(c->asked_ns, now)) {
        chaos_violated("lock %u: unlock said that it was lost, %.3f ms before its validity was over", c->name,
                       (double)(c->until_ns - now) / 1e6);
    }
    if (dl_hold_count(c->lock) != (uint32_t)c->levels) {
        chaos_violated("lock %u: %u levels after an unlock that left %d", c->name, dl_hold_count(c->lock),
                       c->levels);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------ */

static dl_status_t acquire(claim_t *c, int64_t wait_ms, int64_t lease_ms, chaos_op_t op) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    dl_error_t err = {0};
    opts.wait_ms = wait_ms;
    opts.lease_ms = lease_ms;
    chaos_timing_t timing = chaos_begin_timing();
    if (op == CHAOS_ACQUIRE) {
        c->asked_ns = chaos_now_ns();
    }
    dl_status_t status = dl_acquire(c->lock, &opts, &err);
    chaos_end_timing(&timing, wait_ms == 0 ? chaos.call_timeout_ms : wait_ms,
                     op == CHAOS_ACQUIRE ? "lock" : "lock again", status, &err);
    note(op, status, &err);
    return status;
}

static int64_t draw_lease(worker_t *self) {
    return chaos_draw(&self->random, 2) == 0 ? DL_LEASE_AUTO : 300 + (int64_t)chaos_draw(&self->random, 1200);
}

static int64_t draw_wait(worker_t *self) {
    return chaos_draw(&self->random, 4) == 0 ? 0 : 1 + (int64_t)chaos_draw(&self->random, 800);
}

static void extend(worker_t *self, const claim_t *c) {
    dl_error_t err = {0};
    chaos_timing_t timing = chaos_begin_timing();
    dl_status_t status =
        dl_extend(c->lock, 500 + (int64_t)chaos_draw(&self->random, CHAOS_LONGEST_LEASE_MS - 500), &err);
    chaos_end_timing(&timing, chaos.call_timeout_ms, "extend", status, &err);
    note(CHAOS_EXTEND, status, &err);
}

/* Does something with the lock in hand. */
static void use(worker_t *self, claim_t *c) {
    int steps = (int)chaos_draw(&self->random, 5);
    for (int i = 0; i < steps && claim(c); i++) {
        switch (chaos_draw(&self->random, 6)) {
        case 0:
            extend(self, c);
            break;
        case 1:
            if (c->levels < LEVELS_MAX &&
                acquire(c, draw_wait(self), draw_lease(self), CHAOS_REENTER) == DL_OK) {
                c->levels++;
            }
            break;
        case 2:
            if (c->levels > 1) {
                leave(c);
            }
            break;
        case 3: /* now and then past the lease */
            chaos_sleep_ms((int64_t)chaos_draw(&self->random, chaos_draw(&self->random, 8) == 0 ? 1200 : 60));
            break;
        default:
            chaos_sleep_ms((int64_t)chaos_draw(&self->random, 10));
        }
    }
    while (c->levels > 0) {
        leave(c);
    }
}

/* A child of the process closes what it inherited, which must not be felt here. */
static void fork_once(void) {
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0; i < KINDS; i++) {
            dl_client_close(clients[i]);
        }
        _exit(0);
    }
    int status = 0;
    if (pid > 0 && (waitpid(pid, &status, 0) != pid || status != 0)) {
        chaos_violated("a forked child that closed its clients ended with status 0x%x", (unsigned)status);
    }
}

static void *work(void *arg) {
    worker_t *self = arg;
    while (!atomic_load(&shared->is_over)) {
        claim_t c = {.name = (uint32_t)chaos_draw(&self->random, (uint64_t)chaos.names)};
        c.lock = self->locks[c.name];
        if (acquire(&c, draw_wait(self), draw_lease(self), CHAOS_ACQUIRE) == DL_OK) {
            enter(self, &c);
            use(self, &c);
        } else {
            chaos_sleep_ms((int64_t)chaos_draw(&self->random, 5));
        }
        if (chaos.forks && chaos_draw(&self->random, 200) == 0) {
            fork_once();
        }
    }
    return NULL;
}

/* ---- the calm after it ------------------------------------------------------------------------------ */

static dl_client_stats_t stats_of(dl_client_t *client) {
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    (void)dl_client_stats(client, &stats);
    return stats;
}

/* Every lock can be had within a lease: whatever is left of the chaos ends by then. */
static void take_all(worker_t *self) {
    int64_t wait_ms = CHAOS_LONGEST_LEASE_MS + 2 * chaos.call_timeout_ms;
    for (uint32_t i = 0; i < (uint32_t)chaos.names; i++) {
        claim_t c = {.lock = self->locks[i], .name = i};
        dl_status_t status = acquire(&c, wait_ms, DL_LEASE_AUTO, CHAOS_ACQUIRE);
        if (status != DL_OK) {
            chaos_violated("lock %u cannot be had after the chaos: %s", i, dl_status_name(status));
            continue;
        }
        enter(self, &c);
        leave(&c);
    }
}

static void look_at_client(dl_client_t *client) {
    uint64_t lost = 0;
    /* What may yet appear is looked for until a lease is over that begins when the server is back. */
    chaos_sleep_ms(CHAOS_LONGEST_LEASE_MS + CHAOS_LONGEST_PAUSE_MS + 2 * chaos.call_timeout_ms);
    dl_client_stats_t before = stats_of(client);
    chaos_sleep_ms(chaos.lease_ms);
    dl_client_stats_t after = stats_of(client);
    dl_event_t event = DL_EVENT_INIT;
    while (dl_event_next(client, &event) == DL_OK) {
        lost += event.kind == DL_EVENT_LOST;
    }
    if (after.held_now != 0 || after.waiting_now != 0) {
        chaos_violated("%llu locks held and %llu waited for by nobody", (unsigned long long)after.held_now,
                       (unsigned long long)after.waiting_now);
    }
    if (after.renewed != before.renewed || after.renewals_failed != before.renewals_failed) {
        chaos_violated("a lock was renewed after its unlock");
    }
    if (after.unknown_outcomes != before.unknown_outcomes ||
        after.background_frees != before.background_frees) {
        chaos_violated("unknown outcomes do not settle");
    }
    if (after.events_dropped == 0 && lost != after.lost) {
        chaos_violated("%llu holds were lost, and %llu events say so", (unsigned long long)after.lost,
                       (unsigned long long)lost);
    }
    atomic_fetch_add(&shared->losses, after.lost);
    atomic_fetch_add(&shared->unknown, after.unknown_outcomes);
    atomic_fetch_add(&shared->frees, after.background_frees);
    atomic_fetch_add(&shared->reconnects, after.reconnects);
}

/* ---- the process ------------------------------------------------------------------------------------ */

static void log_line(void *arg, dl_log_level_t level, const char *line) {
    (void)arg;
    fprintf(stderr, "[%llu] %d: level %d: %s\n", (unsigned long long)(chaos_now_ns() / CHAOS_NS_PER_MS),
            (int)getpid(), (int)level, line);
}

static void open_clients(int number, const char *url) {
    static const char *const drivers[KINDS] = {"redis-string", "redis-hash-reentrant"};
    for (int i = 0; i < KINDS; i++) {
        char yaml[400];
        dl_error_t err;
        /* Every second pool is so small that calls have to queue. */
        snprintf(yaml, sizeof yaml,
                 "backends: {c: {driver: %s, url: \"%s\", lease: %lldms, call_timeout: %lldms, "
                 "connect_timeout: 400ms, max_total: %d, test_while_idle: %s, idle_check: 200ms}}\n",
                 drivers[i], url, (long long)chaos.lease_ms, (long long)chaos.call_timeout_ms,
                 number % 2 == 0 ? 16 : 2, number % 4 < 2 ? "false" : "true");
        /* Nothing is disturbed yet, but the machine may be slow and the timeouts are short. */
        dl_status_t status = DL_EIO;
        for (int tries = 0; tries < 10 && status == DL_EIO; tries++) {
            status = dl_client_open_text(yaml, strlen(yaml), "c", &clients[i], &err);
        }
        if (status != DL_OK) {
            chaos_die("%s", err.message);
        }
        if (chaos.verbose) {
            (void)dl_client_set_log(clients[i], log_line, NULL);
        }
    }
}

static void open_locks(worker_t *self) {
    for (int i = 0; i < chaos.names; i++) {
        char name[32];
        dl_error_t err;
        snprintf(name, sizeof name, "chaos/%d", i);
        if (dl_lock_open(clients[i % KINDS], name, &self->locks[i], &err) != DL_OK) {
            chaos_die("%s", err.message);
        }
    }
}

static void run_threads(int number) {
    for (int i = 0; i < chaos.threads; i++) {
        worker_t *self = &workers[i];
        self->number = number * CHAOS_THREADS_MAX + i;
        self->random = (chaos.seed * 1000003u + (uint64_t)self->number + 1) * 0x9e3779b97f4a7c15u;
        open_locks(self);
        if (pthread_create(&self->thread, NULL, work, self) != 0) {
            chaos_die("no thread");
        }
    }
    for (int i = 0; i < chaos.threads; i++) {
        pthread_join(workers[i].thread, NULL);
    }
}

static void close_all(void) {
    dl_error_t none = {0};
    for (int i = 0; i < KINDS; i++) {
        chaos_timing_t timing = chaos_begin_timing();
        dl_client_close(clients[i]);
        chaos_end_timing(&timing, chaos.call_timeout_ms, "close", DL_OK, &none);
    }
    for (int i = 0; i < chaos.threads; i++) {
        for (int k = 0; k < chaos.names; k++) {
            dl_lock_close(workers[i].locks[k]);
        }
    }
}

int chaos_work(int number, const char *url) {
    int descriptors = open_descriptors();
    chaos_start_ticking();
    int threads = running_threads();
    open_clients(number, url);
    atomic_fetch_add(&shared->opened, 1);
    run_threads(number);
    atomic_fetch_add(&shared->looped, 1);
    while (!atomic_load(&shared->may_inspect)) {
        chaos_sleep_ms(5);
    }
    take_all(&workers[0]);
    /* What was unknown at the end of the chaos is over when its lease is. */
    chaos_sleep_ms(CHAOS_LONGEST_LEASE_MS + chaos.call_timeout_ms);
    for (int i = 0; i < KINDS; i++) {
        look_at_client(clients[i]);
    }
    atomic_fetch_add(&shared->idle, 1);
    while (!atomic_load(&shared->may_close)) {
        chaos_sleep_ms(5);
    }
    close_all();
    if (open_descriptors() != descriptors || running_threads() != threads) {
        chaos_violated("after closing %d descriptors (%d before) and %d threads (%d before)",
                       open_descriptors(), descriptors, running_threads(), threads);
    }
    chaos_stop_ticking();
    return 0;
}
