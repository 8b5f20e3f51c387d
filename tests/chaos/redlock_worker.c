/* redlock_worker.c - one process of the rotation: threads increment plain counters under locks of redlock. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "redlock_chaos.h"

#define THREADS_MAX 32
/* With less validity left nothing is written any more: a thread may have to wait for a processor. */
#define MARGIN_MS 150

typedef struct worker {
    int number; /* of all threads of all processes */
    bool is_far, is_first;
    uint64_t random;
    pthread_t thread;
    dl_lock_t *locks[ROTATION_NAMES];
} worker_t;

static worker_t workers[THREADS_MAX];

/* ---- the log ------------------------------------------------------------------------------------- */

/* Claims in the log what dl_valid_ms gives. NULL: nothing. */
static chaos_hold_t *enter(const worker_t *self, uint32_t name, uint64_t asked_ns) {
    uint64_t now = chaos_now_ns();
    int64_t valid_ms = dl_valid_ms(self->locks[name]);
    chaos_hold_t *hold = valid_ms > 0 ? chaos_hold_new() : NULL;
    if (hold != NULL) {
        hold->name = name;
        hold->who = (uint32_t)self->number;
        hold->token = dl_token(self->locks[name]);
        hold->asked_ns = asked_ns;
        hold->enter_ns = now;
        atomic_store(&hold->until_ns, now + (uint64_t)valid_ms * CHAOS_NS_PER_MS);
        atomic_store(&hold->is_claimed, true);
    }
    return hold;
}

static void leave(const worker_t *self, uint32_t name, chaos_hold_t *hold) {
    uint64_t now = chaos_now_ns();
    dl_error_t err = {0};
    if (hold != NULL && now < atomic_load(&hold->until_ns)) {
        atomic_store(&hold->until_ns, now);
    }
    dl_status_t status = dl_unlock(self->locks[name], &err);
    atomic_fetch_add(&shared->outcomes[CHAOS_UNLOCK][status], 1);
    if (status != DL_OK && status != DL_ELOST && status != DL_EUNKNOWN && status != DL_EIO) {
        chaos_violated("unlock answered %s: %s", dl_status_name(status), err.message);
    }
}

/* ---- the work ------------------------------------------------------------------------------------ */

/* The second half of an increment. */
static void count(const worker_t *self, uint32_t name, int64_t read) {
    if (dl_valid_ms(self->locks[name]) > MARGIN_MS) {
        atomic_store_explicit(&board->counters[name], read + 1, memory_order_relaxed);
        atomic_fetch_add(&board->counted[name], 1);
    }
}

static bool try_lock(const worker_t *self, uint32_t name, uint64_t *asked_ns) {
    dl_error_t err = {0};
    *asked_ns = chaos_now_ns();
    dl_status_t status = dl_trylock_for(self->locks[name], 0, ROTATION_LEASE_MS, &err);
    atomic_fetch_add(&shared->outcomes[CHAOS_ACQUIRE][status], 1);
    if (status != DL_OK && status != DL_EBUSY && status != DL_EUNKNOWN && status != DL_EIO) {
        chaos_violated("lock answered %s: %s", dl_status_name(status), err.message);
    }
    return status == DL_OK;
}

static void increment(const worker_t *self, uint32_t name) {
    uint64_t asked_ns;
    if (!try_lock(self, name, &asked_ns)) {
        return;
    }
    int held = atomic_load(&board->held), ended = atomic_load(&board->ended);
    chaos_hold_t *hold = enter(self, name, asked_ns);
    int64_t read = atomic_load_explicit(&board->counters[name], memory_order_relaxed);
    if (name == 0 && !self->is_far) {
        atomic_fetch_add(&board->overlaps, held > ended);
        atomic_fetch_add(&board->contenders, 1);
    }
    chaos_sleep_ms(1);
    count(self, name, read);
    leave(self, name, hold);
}

/* One increment of the first counter that takes until its lease is nearly over, or somebody else was in. */
static void hold_for_step(const worker_t *self, int step) {
    uint64_t asked_ns;
    if (!try_lock(self, 0, &asked_ns)) {
        return;
    }
    chaos_hold_t *hold = enter(self, 0, asked_ns);
    int64_t read = atomic_load_explicit(&board->counters[0], memory_order_relaxed);
    int before = atomic_load(&board->contenders);
    atomic_store(&board->held, step);
    while (dl_valid_ms(self->locks[0]) > 2 * MARGIN_MS && atomic_load(&board->contenders) == before) {
        chaos_sleep_ms(1);
    }
    count(self, 0, read);
    atomic_store(&board->ended, step);
    leave(self, 0, hold);
}

static void *work(void *arg) {
    worker_t *self = arg;
    while (!atomic_load(&shared->is_over)) {
        int asked = atomic_load(&board->asked);
        if (self->is_far && self->is_first && asked > atomic_load(&board->held)) {
            hold_for_step(self, asked);
        } else if (self->is_far) {
            /* The first name is for the steps: a vote for it that cannot be given back, when nodes get out of
             * reach, would keep near processes out as well as the hold that they are to meet. */
            increment(self, 1 + (uint32_t)chaos_draw(&self->random, ROTATION_NAMES - 1));
        } else {
            increment(self, (uint32_t)chaos_draw(&self->random, 2 * ROTATION_NAMES) % (ROTATION_NAMES + 1) %
                                ROTATION_NAMES);
        }
        chaos_sleep_ms((int64_t)chaos_draw(&self->random, 5));
    }
    return NULL;
}

/* ---- the process --------------------------------------------------------------------------------- */

static void log_line(void *arg, dl_log_level_t level, const char *line) {
    fprintf(stderr, "[%llu] %d: level %d: %s\n", (unsigned long long)(chaos_now_ns() / CHAOS_NS_PER_MS),
            *(const int *)arg, (int)level, line);
}

static dl_client_t *open_client(const char *nodes, bool quarantine) {
    char yaml[900];
    dl_client_t *client = NULL;
    dl_error_t err = {0};
    snprintf(yaml, sizeof yaml,
             "backends: {c: {driver: redlock, nodes: %s, lease: %dms, max_lease: %dms, node_timeout: 150ms, "
             "call_timeout: 600ms, quarantine: %s}}\n",
             nodes, ROTATION_LEASE_MS, ROTATION_LEASE_MS, quarantine ? "true" : "false");
    /* Nothing is disturbed yet, but the machine may be slow and the timeouts are short. */
    dl_status_t status = DL_EIO;
    for (int tries = 0; tries < 10 && status == DL_EIO; tries++) {
        status = dl_client_open_text(yaml, strlen(yaml), "c", &client, &err);
    }
    if (status != DL_OK) {
        chaos_die("%s", err.message);
    }
    return client;
}

int rotation_work(int number, bool is_far, const char *nodes, bool quarantine) {
    dl_client_t *client = open_client(nodes, quarantine);
    if (chaos.verbose) {
        (void)dl_client_set_log(client, log_line, &number);
    }
    atomic_fetch_add(&shared->opened, 1);
    for (int i = 0; i < chaos.threads; i++) {
        worker_t *self = &workers[i];
        *self = (worker_t){.number = number * THREADS_MAX + i, .is_far = is_far, .is_first = i == 0};
        self->random = (chaos.seed * 1000003u + (uint64_t)self->number + 1) * 0x9e3779b97f4a7c15u;
        for (int k = 0; k < ROTATION_NAMES; k++) {
            char name[32];
            dl_error_t err;
            snprintf(name, sizeof name, "rotation/%d", k);
            if (dl_lock_open(client, name, &self->locks[k], &err) != DL_OK) {
                chaos_die("%s", err.message);
            }
        }
        if (pthread_create(&self->thread, NULL, work, self) != 0) {
            chaos_die("no thread");
        }
    }
    for (int i = 0; i < chaos.threads; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    dl_client_close(client);
    for (int i = 0; i < chaos.threads; i++) {
        for (int k = 0; k < ROTATION_NAMES; k++) {
            dl_lock_close(workers[i].locks[k]);
        }
    }
    return 0;
}
