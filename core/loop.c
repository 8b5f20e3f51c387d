/* loop.c - the client's own thread: instants that come, sessions that hang up, releases that are heard of. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/epoll.h>

#include "core.h"

/* How long what the driver listens to may lie unread while nobody waits. */
#define TEND_NS (1000u * (uint64_t)DLI_NS_PER_MS)
/* How soon a thread that could not be had is asked for again. */
#define AGAIN_NS (100u * (uint64_t)DLI_NS_PER_MS)

void dli_loop_wake(dl_client_t *client) {
    dli_eventfd_raise(client->loop.wake_fd);
}

/* Looks again at this instant at the latest. */
static void look_at(dl_client_t *client, uint64_t at_ns) {
    if (at_ns < client->loop.sleeps_to_ns) {
        client->loop.sleeps_to_ns = at_ns;
        dli_loop_wake(client);
    }
}

void dli_loop_look_again(dl_client_t *client) {
    look_at(client, dli_now() + AGAIN_NS);
}

void dli_loop_at(dl_client_t *client, dli_timer_t *timer, uint64_t at_ns) {
    dli_timer_set(&client->loop.timers, timer, at_ns);
    look_at(client, at_ns);
}

/* ---- hearing of releases and answers ------------------------------------------------------------ */

/*
 * One thread at a time polls what the driver listens to: a caller that waits for a release, or for the answer
 * of a backend, so that the news goes through no other thread. One that ceases to wait has the next one do
 * so. The loop does for operations of queues, while no caller waits; and now and then while nobody waits at
 * all.
 */

/* The park of the thread that is reading what has come: it looks for itself. */
static _Thread_local const dli_park_t *reading;

void dli_env_woken(void *core, const char *name, size_t name_len, int hears) {
    dl_client_t *client = core;
    dli_lock_client(client);
    dli_gate_t *gate = dli_gate_find_name(client, name, name_len);
    if (gate != NULL) {
        gate->woken = true;
        gate->hears = hears != 0;
        if (gate->active != NULL && gate->active->listens) {
            dli_op_poke(gate->active);
        }
    }
    dli_unlock_client_at_once(client);
}

/* Polls these and what the driver listens to. park: of a caller. Releases the mutex meanwhile. */
static void listen_until(dl_client_t *client, dli_park_t *park, struct pollfd *fds, size_t own,
                         uint64_t until_ns) {
    const dl_driver_t *driver = client->driver;
    uint64_t due_ns = DLI_NEVER;
    client->loop.listening = true;
    client->loop.listener = park;
    dli_unlock_client(client);
    size_t n = driver->listen_fds(client->state, fds + own, DL_LISTEN_MAX, &due_ns);
    if (dli_sys->poll(fds, own + n, dli_min(until_ns, due_ns)) <= 0) {
        for (size_t i = 0; i < own + n; i++) {
            fds[i].revents = 0;
        }
    }
    reading = park;
    driver->listen(client->state, fds + own, n);
    reading = NULL;
    dli_lock_client(client);
    client->loop.listening = false;
    client->loop.listener = NULL;
    client->loop.tend_ns = n > 0 || due_ns != DLI_NEVER ? dli_now() + TEND_NS : DLI_NEVER;
    look_at(client, client->loop.tend_ns);
}

void dli_loop_hand_over(dl_client_t *client) {
    if (client->loop.listening) {
        return;
    }
    if (client->loop.sleepers != NULL) {
        dli_park_wake(client->loop.sleepers);
    } else if (client->loop.waits > 0) {
        dli_loop_wake(client);
    }
}

void dli_loop_listen_alone(dl_client_t *client, uint64_t until_ns) {
    struct pollfd fds[DL_LISTEN_MAX];
    listen_until(client, NULL, fds, 0, until_ns);
}

void dli_loop_answered(dli_op_t *op) {
    if (op->park == NULL) {
        dli_sys->cond_broadcast(&op->client->changed);
    } else if (op->park != reading) {
        dli_park_wake(op->park);
    }
}

void dli_loop_listen(dl_client_t *client, bool begins) {
    client->loop.waits += begins ? 1u : (size_t)-1;
    dli_loop_hand_over(client);
}

void dli_loop_listen_anew(dl_client_t *client) {
    if (client->loop.listener != NULL) {
        dli_park_wake(client->loop.listener);
    } else if (client->loop.listening) {
        dli_loop_wake(client);
    }
}

/* ---- a caller sleeps ----------------------------------------------------------------------------- */

static void sleep_listening(dli_op_t *op, struct pollfd *fds, uint64_t until_ns) {
    dl_client_t *client = op->client;
    dli_park_t *park = op->park;
    if (!client->loop.listening) {
        listen_until(client, park, fds, 2, until_ns);
        return;
    }
    park->prev_sleeper = NULL;
    park->next_sleeper = client->loop.sleepers;
    if (park->next_sleeper != NULL) {
        park->next_sleeper->prev_sleeper = park;
    }
    client->loop.sleepers = park;
    dli_unlock_client(client);
    (void)dli_sys->poll(fds, 2, until_ns);
    dli_lock_client(client);
    *(park->prev_sleeper != NULL ? &park->prev_sleeper->next_sleeper : &client->loop.sleepers) =
        park->next_sleeper;
    if (park->next_sleeper != NULL) {
        park->next_sleeper->prev_sleeper = park->prev_sleeper;
    }
}

/* The loop listens for it. */
static void sleep_without_park(dli_op_t *op, uint64_t until_ns) {
    dl_client_t *client = op->client;
    bool asks = op->request.pending;
    op->interrupted = false;
    if (asks) {
        dli_loop_listen(client, true);
    }
    dli_before_wait(client);
    if (!op->interrupted && op->request.pending == asks) {
        (void)dli_sys->cond_wait(&client->changed, &client->mutex, until_ns);
    }
    if (asks) {
        dli_loop_listen(client, false);
    }
}

void dli_loop_sleep(dli_op_t *op, uint64_t until_ns) {
    dl_client_t *client = op->client;
    if (op->park == NULL) {
        sleep_without_park(op, until_ns);
        return;
    }
    struct pollfd fds[2 + DL_LISTEN_MAX] = {
        {.fd = op->park->fd, .events = POLLIN},
        {.fd = op->cancel != NULL ? op->cancel->fd : -1, .events = POLLIN},
    };
    if (op->listens || op->request.pending) {
        sleep_listening(op, fds, until_ns);
    } else {
        dli_unlock_client(client);
        (void)dli_sys->poll(fds, 2, until_ns);
        dli_lock_client(client);
    }
    (void)dli_park_drain(op->park);
}

/* ---- threads that have ended --------------------------------------------------------------------- */

void dli_hear_thread_exit(dli_exit_hook_t *hook) {
    dl_client_t *client = (dl_client_t *)(void *)((char *)hook - offsetof(dl_client_t, exit_hook));
    if (dli_forked(client)) {
        return;
    }
    /* No chores here, such as the user's log function: the hooks' mutex is held, and fork() needs it. */
    pthread_mutex_lock(&client->mutex);
    client->threads_exited = true;
    dli_loop_wake(client);
    pthread_mutex_unlock(&client->mutex);
}

static bool is_left_behind(const dli_hold_t *hold) {
    return hold->owner.thread != NULL && atomic_load(&hold->owner.thread->exited);
}

static bool free_left_behind_at(dli_gate_t *gate) {
    dli_hold_t *next;
    for (dli_hold_t *hold = gate->lost; hold != NULL; hold = next) {
        next = hold->next_lost;
        if (is_left_behind(hold)) {
            dli_hold_end(hold); /* its loss was reported already */
        }
    }
    dli_hold_t *hold = gate->current;
    return hold == NULL || hold->state != DLI_HOLD_LIVE || !is_left_behind(hold) ||
           dli_unlock_left_behind(hold);
}

/* Looks at all that is held; what memory is missing for is looked at again. */
static void free_left_behind(dl_client_t *client) {
    client->threads_exited = false;
    for (size_t i = 0; i < client->bucket_count; i++) {
        dli_gate_t *next;
        for (dli_gate_t *gate = client->buckets[i]; gate != NULL; gate = next) {
            gate->refs++; /* its last hold may end */
            client->threads_exited |= !free_left_behind_at(gate);
            next = gate->next_in_bucket;
            dli_gate_unref(client, gate);
        }
    }
}

/* ---- the thread ---------------------------------------------------------------------------------- */

/* A session has hung up: ask at once whether it lives. */
static void look_at_sessions(dl_client_t *client) {
    struct epoll_event events[64];
    int n = epoll_wait(client->loop.session_epoll_fd, events, 64, 0);
    dli_lock_client(client);
    for (size_t i = 0; i < client->bucket_count && n > 0; i++) {
        for (dli_gate_t *gate = client->buckets[i]; gate != NULL; gate = gate->next_in_bucket) {
            dli_claim_t *claim = gate->current != NULL ? gate->current->claim : NULL;
            for (int k = 0; claim != NULL && claim->hold != NULL && k < n; k++) {
                if (claim->hold_id == events[k].data.u64) {
                    claim->hung_up = true;
                    claim->renew_due_ns = dli_now();
                    dli_claim_watch(claim);
                }
            }
        }
    }
    dli_unlock_client(client);
}

/* After a suspend every wait has to look at the clock again. */
static void look_after_resume(dl_client_t *client) {
    dli_sys->resume_rearm(client->loop.resume_fd);
    dli_lock_client(client);
    dli_op_poke_all(client, NULL);
    dli_sys->cond_broadcast(&client->changed);
    dli_unlock_client(client);
}

/* For what no caller listens for. */
static bool has_to_listen(const dli_loop_t *loop) {
    return loop->waits > 0 && loop->sleepers == NULL;
}

/* What is due now. Returns until when nothing is. */
static uint64_t turn(dl_client_t *client) {
    dli_loop_t *loop = &client->loop;
    uint64_t now = dli_now();
    while (loop->timers.len > 0 && loop->timers.at[0]->at_ns <= now) {
        dli_timer_t *timer = loop->timers.at[0];
        dli_timer_clear(&loop->timers, timer);
        timer->fire(timer, now);
    }
    if (client->threads_exited && !client->closing) {
        free_left_behind(client);
    }
    dli_run_ready(client);
    bool lacks = client->threads_exited;
    lacks |= dli_lanes_call_again(client);
    if (loop->tend_ns <= now && loop->listening) {
        loop->tend_ns = now + TEND_NS; /* a caller listens */
    }
    uint64_t until_ns = loop->timers.len > 0 ? loop->timers.at[0]->at_ns : DLI_NEVER;
    until_ns = dli_min(until_ns, lacks ? now + AGAIN_NS : DLI_NEVER);
    return has_to_listen(loop) ? until_ns : dli_min(until_ns, loop->tend_ns);
}

static void sleep_until(dl_client_t *client, uint64_t until_ns) {
    dli_loop_t *loop = &client->loop;
    struct pollfd fds[3 + DL_LISTEN_MAX] = {{.fd = loop->wake_fd, .events = POLLIN},
                                            {.fd = loop->session_epoll_fd, .events = POLLIN},
                                            {.fd = loop->resume_fd, .events = POLLIN}};
    if (!loop->listening && (has_to_listen(loop) || loop->tend_ns <= dli_now())) {
        listen_until(client, NULL, fds, 3, until_ns);
        dli_loop_hand_over(client); /* somebody may have found it listening */
        dli_unlock_client(client);
    } else {
        dli_unlock_client(client);
        (void)dli_sys->poll(fds, 3, until_ns);
    }
    if (fds[0].revents != 0) {
        dli_eventfd_lower(loop->wake_fd);
    }
    if (fds[1].revents != 0) {
        look_at_sessions(client);
    }
    if (fds[2].revents != 0) {
        look_after_resume(client);
    }
    dli_lock_client(client);
}

static void *loop_main(void *arg) {
    dl_client_t *client = arg;
    (void)dli_be_punctual(true);
    dli_lock_client(client);
    while (!client->stop_threads) {
        client->loop.sleeps_to_ns = 0; /* it is awake */
        uint64_t until_ns = turn(client);
        client->loop.sleeps_to_ns = until_ns;
        sleep_until(client, until_ns);
    }
    dli_unlock_client(client);
    return NULL;
}

int dli_loop_start(dl_client_t *client) {
    if (client->loop.started) {
        return 0;
    }
    int rc = dli_sys->thread_start(&client->loop.thread, loop_main, client);
    client->loop.started = rc == 0;
    return rc;
}
