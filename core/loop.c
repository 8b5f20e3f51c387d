/* loop.c - the client's own thread: instants that come, sessions that hang up, releases that are heard of. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>

#include "core.h"

/* How long what the driver listens to may lie unread while nobody waits, or a caller that listens is stopped.
 */
#define TEND_NS (1000u * (uint64_t)DLI_NS_PER_MS)
/* Who waits for an answer that another reads looks at that one after this. */
#define PATIENCE_NS (10u * (uint64_t)DLI_NS_PER_MS)

/* How soon a thread that could not be had is asked for again. */
#define AGAIN_NS (100u * (uint64_t)DLI_NS_PER_MS)

bool dli_loop_is_awake(const dl_client_t *client) {
    return client->loop.sleeps_to_ns == 0 && !client->stop_threads;
}

void dli_loop_wake(dl_client_t *client) {
    dli_loop_t *loop = &client->loop;
    if (loop->started && loop->sleeps_to_ns != 0) {
        loop->sleeps_to_ns = 0;
        loop->is_woken = true;
    }
    loop->again = true;
}

/* Looks again at this instant at the latest. */
static void look_at(dl_client_t *client, uint64_t at_ns) {
    if (at_ns < client->loop.sleeps_to_ns) {
        client->loop.told_ns = at_ns;
        dli_loop_wake(client);
    }
}

void dli_loop_call_again(dl_client_t *client) {
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

/* Of the thread that is reading what has come: it looks for itself. */
static _Thread_local const dli_op_t *reader;

void dli_env_woken(void *core, const char *name, size_t name_len, int hears) {
    dl_client_t *client = core;
    if (client == NULL) {
        return;
    }
    dli_lock_client(client);
    dli_gate_t *gate = dli_gate_find_name(client, name, name_len);
    if (gate != NULL) {
        gate->hears = hears != 0;
        dli_gate_wake(gate);
    }
    dli_unlock_client_at_once(client);
}

static void sleep_at(struct pollfd *fds, nfds_t n, uint64_t until_ns) {
    int ready = dli_sys->poll(fds, n, until_ns);
    for (nfds_t i = 0; i < n && ready <= 0; i++) {
        fds[i].revents = 0;
    }
}

/* When it looks again at the caller who listens, or is to. */
static uint64_t later(const dli_loop_t *loop) {
    return dli_now() + (loop->asks > 0 ? PATIENCE_NS : TEND_NS);
}

static void tend_at(dl_client_t *client, uint64_t at_ns) {
    client->loop.tend_ns = at_ns;
    look_at(client, at_ns);
}

/* Polls these and what the driver listens to, for a caller (op) or for the loop. Releases the mutex
 * meanwhile. */
static void listen_until(dl_client_t *client, dli_op_t *op, struct pollfd *fds, size_t own,
                         uint64_t until_ns) {
    const dl_driver_t *driver = client->driver;
    dli_loop_t *loop = &client->loop;
    /* Before it is marked: what it does for others may hold it up. */
    dli_tidy(client);
    dli_wake_first(client);
    if (loop->listening) {
        return;
    }
    uint64_t due_ns = DLI_NEVER, round = ++loop->round;
    loop->listening = true;
    loop->look_anew = false;
    loop->late_ns = 0;
    loop->listener = op;
    atomic_store(&loop->listens_to_ns, 0);
    if (op != NULL) {
        tend_at(client, later(loop));
    }
    dli_release_client(client);
    size_t n = driver->listen_fds(client->state, fds + own, DL_LISTEN_MAX, &due_ns);
    until_ns = dli_min(until_ns, due_ns);
    memcpy(loop->fds, fds + own, n * sizeof *fds);
    loop->fd_count = n;
    atomic_store(&loop->listens_to_ns, until_ns);
    sleep_at(fds, own + n, until_ns);
    dli_lock_client(client);
    loop->sleeps_to_ns = op != NULL ? loop->sleeps_to_ns : 0;
    dli_tidy(client); /* before it is marked once more */
    dli_wake_first(client);
    if (loop->round != round) {
        return; /* it was late, and another has taken over */
    }
    loop->reading = true;
    dli_release_client(client);
    reader = op;
    driver->listen(client->state, fds + own, n);
    reader = NULL;
    dli_lock_client(client);
    loop->listening = loop->reading = false;
    loop->listener = NULL;
    tend_at(client, n > 0 || due_ns != DLI_NEVER ? later(loop) : DLI_NEVER);
}

void dli_loop_hand_over(dl_client_t *client) {
    if (client->loop.listening) {
        return;
    }
    if (!TAILQ_EMPTY(&client->loop.sleepers)) {
        dli_park_wake(client, TAILQ_FIRST(&client->loop.sleepers)->park);
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
    } else if (op != reader) {
        dli_park_wake(op->client, op->park);
    }
}

void dli_loop_ask(dl_client_t *client, bool begins) {
    dli_loop_t *loop = &client->loop;
    loop->asks += begins ? 1u : (size_t)-1;
    dli_loop_listen(client, begins);
    if (begins && (loop->listener != NULL || !TAILQ_EMPTY(&loop->sleepers))) {
        tend_at(client, dli_min(loop->tend_ns, later(loop)));
    }
}

void dli_loop_listen(dl_client_t *client, bool begins) {
    client->loop.waits += begins ? 1u : (size_t)-1;
    dli_loop_hand_over(client);
}

void dli_loop_listen_anew(dl_client_t *client) {
    client->loop.look_anew = true;
    if (client->loop.listener != NULL) {
        dli_park_wake(client, client->loop.listener->park);
    } else if (client->loop.listening) {
        dli_loop_wake(client);
    }
}

/* ---- a caller sleeps ----------------------------------------------------------------------------- */

static void begin_sleep(dli_op_t *op) {
    op->place = DLI_OP_WAITING;
    TAILQ_INSERT_HEAD(&op->client->loop.sleepers, op, in);
}

static void end_sleep(dli_op_t *op) {
    op->place = DLI_OP_CARRIED;
    TAILQ_REMOVE(&op->client->loop.sleepers, op, in);
}

static void end_round(dl_client_t *client) {
    dli_loop_t *loop = &client->loop;
    loop->round++;
    loop->listening = loop->reading = false;
    loop->listener = NULL;
    dli_loop_hand_over(client);
}

/*
 * A caller that listens may be stopped, or have been left by a jump. One that leaves unread what can be read,
 * or overslept, and does so still after PATIENCE_NS, is late: another listens. Releases the mutex meanwhile.
 */
static void look_at_listener(dl_client_t *client) {
    dli_loop_t *loop = &client->loop;
    struct pollfd fds[DL_LISTEN_MAX];
    uint64_t round = loop->round, until_ns = atomic_load(&loop->listens_to_ns);
    size_t n = until_ns == 0 ? 0 : loop->fd_count; /* 0: it is about to say */
    memcpy(fds, loop->fds, n * sizeof *fds);
    dli_unlock_client(client);
    bool is_late = until_ns != 0 && (dli_now() >= until_ns || dli_sys->poll(fds, n, 0) > 0);
    dli_lock_client(client);
    is_late |= until_ns != 0 && loop->look_anew;
    if (loop->round != round || !loop->listening || loop->reading) {
        return;
    }
    if (!is_late || loop->late_ns == 0) {
        loop->late_ns = is_late ? dli_now() : 0;
    } else if (dli_now() >= loop->late_ns + PATIENCE_NS) {
        end_round(client);
    }
}

/* When it looks at the thread that reads its reply: after PATIENCE_NS, after twice that, and so on. */
static uint64_t patience_until(const dli_op_t *op) {
    uint64_t now = dli_now(), asked_ns = now - op->called_ns;
    return now + (asked_ns > PATIENCE_NS ? asked_ns : PATIENCE_NS);
}

/* Until it is woken, or cancelled. Releases the mutex meanwhile. */
static void sleep_parked(dli_op_t *op, struct pollfd *fds, uint64_t until_ns) {
    dli_park_t *park = op->park;
    park->sleeps = fds[1].fd < 0;
    dli_unlock_client(op->client);
    if (fds[1].fd < 0) {
        dli_sys->word_wait(&park->woken, until_ns);
    } else {
        sleep_at(fds, 2, until_ns);
    }
    dli_lock_client(op->client);
    park->sleeps = false;
}

/* Beside another who listens, and may be late. */
static void sleep_beside(dli_op_t *op, struct pollfd *fds, uint64_t until_ns) {
    dl_client_t *client = op->client;
    uint64_t look_ns = patience_until(op);
    until_ns = op->request.pending ? dli_min(until_ns, look_ns) : until_ns;
    begin_sleep(op);
    sleep_parked(op, fds, until_ns);
    end_sleep(op);
    if (op->request.pending && client->loop.listening && dli_now() >= look_ns) {
        look_at_listener(client);
    }
}

static void end_term(dli_op_t *op, uint64_t term) {
    dl_client_t *client = op->client;
    uint64_t next;
    dli_request_t *heir = term != 0 ? client->inner->end_lead(client->state, term, &next) : NULL;
    if (heir != NULL && heir->leads) {
        dli_op_t *to = DLI_CONTAINER_OF(dli_op_t, request, heir);
        to->term = next;
        if (to != op) {
            dli_park_wake(client, to->park);
        }
    } else if (heir != NULL) {
        dli_loop_listen_anew(client);
    }
}

/* It reads no more, and another whose reply is still to come does. */
void dli_loop_end_lead(dli_op_t *op) {
    uint64_t term = op->term;
    op->term = 0;
    end_term(op, term);
}

static bool spin_at(struct pollfd *fds, nfds_t n, bool yields, uint64_t until_ns) {
    int ready = 0;
    while (ready == 0 && dli_now() < until_ns) {
        if (yields) {
            (void)sched_yield();
        }
        ready = dli_sys->poll(fds, n, 0);
    }
    return ready > 0;
}

/* Reads its own reply. */
static void sleep_leading(dli_op_t *op, struct pollfd *fds, size_t n, uint64_t until_ns) {
    dl_client_t *client = op->client;
    uint64_t spin_until_ns = dli_spin_until(op);
    bool yields = client->calls > 1;
    dli_unlock_client(client);
    bool is_ready = spin_at(fds, 2 + n, yields, spin_until_ns);
    uint64_t ended_ns = dli_now();
    if (!is_ready) {
        sleep_at(fds, 2 + n, until_ns);
    }
    dli_lock_client(client);
    if (spin_until_ns > 0) {
        dli_spin_note(op, is_ready && ended_ns < spin_until_ns, ended_ns);
    }
    reader = op;
    bool look_again = client->inner->lead(client->state, op->term, fds + 2, n);
    reader = NULL;
    if (look_again) {
        dli_loop_listen_anew(client);
    }
    dli_loop_end_lead(op);
}

static void sleep_listening(dli_op_t *op, struct pollfd *fds, uint64_t until_ns) {
    dl_client_t *client = op->client;
    int leads = -1;
    if (op->request.pending && op->request.leads) {
        uint64_t due_ns = DLI_NEVER, term = op->term;
        bool late = dli_now() >= op->called_ns + PATIENCE_NS;
        leads = client->inner->lead_fds(client->state, &op->request, fds + 2, late, &op->term, &due_ns);
        if (op->term != term) {
            end_term(op, term); /* of another connection, or over */
        }
        until_ns = leads > 0 ? dli_min(until_ns, due_ns) : until_ns;
    }
    if (leads > 0) {
        sleep_leading(op, fds, (size_t)leads, until_ns);
    } else if (leads == 0) {
        sleep_parked(op, fds, dli_min(until_ns, patience_until(op))); /* who reads its reply may be late */
    } else if (client->loop.listening) {
        sleep_beside(op, fds, until_ns);
    } else {
        listen_until(client, op, fds, 2, until_ns);
    }
}

void dli_loop_forget(dli_op_t *op) {
    /* It may have left while it read. */
    reader = NULL;
    (void)dli_be_punctual(false);
    if (op->park != NULL) { /* it sleeps no more, and looks for itself */
        op->park->sleeps = false;
        (void)dli_park_drain(op->park);
    }
    dli_spin_end(op);
    dli_loop_end_lead(op);
    if (op->place == DLI_OP_WAITING) {
        end_sleep(op);
    } else if (op->client->loop.listener == op) {
        end_round(op->client);
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
    DLI_PUNCTUAL; /* the program's log function may block: no answer lies unread for it */
    if (op->park == NULL) {
        sleep_without_park(op, until_ns);
        return;
    }
    const dl_cancel_t *cancel = op->opts.cancel;
    struct pollfd fds[2 + DL_LISTEN_MAX] = {
        {.fd = op->park->fd, .events = POLLIN},
        /* What a cancel does not end would spin on it. */
        {.fd = cancel != NULL && (!op->request.pending || op->ask == DLI_ASK_TRY) ? cancel->fd : -1,
         .events = POLLIN},
    };
    if (op->listens || op->request.pending) {
        sleep_listening(op, fds, until_ns);
    } else {
        sleep_parked(op, fds, until_ns);
    }
    (void)dli_park_drain(op->park);
}

/* ---- threads that have ended --------------------------------------------------------------------- */

void dli_exit_hook_hear(dli_exit_hook_t *hook) {
    dl_client_t *client = DLI_CONTAINER_OF(dl_client_t, exit_hook, hook);
    if (dli_forked(client)) {
        return;
    }
    /* No chores here, such as the user's log function: the hooks' mutex is held, and fork() needs it. */
    pthread_mutex_lock(&client->mutex);
    client->threads_exited = true;
    dli_loop_wake(client);
    dli_release_client(client);
}

static bool is_left_behind(const dli_hold_t *hold) {
    return hold->owner.thread != NULL && atomic_load(&hold->owner.thread->exited);
}

static bool free_left_behind_at(dli_gate_t *gate) {
    dli_hold_t *next;
    for (dli_hold_t *hold = LIST_FIRST(&gate->lost); hold != NULL; hold = next) {
        next = LIST_NEXT(hold, beside);
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
    dli_gate_t *next;
    for (dli_gate_t *gate = dli_gate_after(client, NULL); gate != NULL; gate = next) {
        gate->refs++; /* its last hold may end */
        client->threads_exited |= !free_left_behind_at(gate);
        next = dli_gate_after(client, gate);
        dli_gate_unref(gate);
    }
}

/* ---- the thread ---------------------------------------------------------------------------------- */

/* A session has hung up: ask at once whether it lives. */
static void look_at_sessions(dl_client_t *client) {
    struct epoll_event events[64];
    int n = epoll_wait(client->loop.session_epoll_fd, events, 64, 0);
    dli_lock_client(client);
    dli_gate_t *gate = n > 0 ? dli_gate_after(client, NULL) : NULL;
    for (; gate != NULL; gate = dli_gate_after(client, gate)) {
        dli_claim_t *claim = gate->current != NULL ? gate->current->claim : gate->passed;
        for (int k = 0; claim != NULL && claim->session_fd >= 0 && k < n; k++) {
            if (claim->hold_id == events[k].data.u64) {
                claim->hung_up = true;
                claim->renew_due_ns = dli_now();
                dli_claim_watch(claim);
            }
        }
    }
    dli_unlock_client(client);
}

/* After a suspend every wait has to look at the clock again. None minds that somebody has set the other
 * clock.
 */
static void look_after_resume(dl_client_t *client) {
    uint64_t slept_ns = dli_sys->resume_rearm(client->loop.resume_fd), before_ns = client->loop.slept_ns;
    client->loop.slept_ns = slept_ns;
    if (slept_ns < before_ns + DLI_NS_PER_MS) {
        return;
    }
    dli_lock_client(client);
    dli_op_poke_all(client, NULL);
    dli_sys->cond_broadcast(&client->changed);
    dli_unlock_client(client);
}

/* For what no caller listens for. */
static bool has_to_listen(const dli_loop_t *loop) {
    return loop->waits > 0 && TAILQ_EMPTY(&loop->sleepers);
}

void dli_loop_fire(dl_client_t *client) {
    uint64_t now = dli_now();
    while (dli_timers_due(client->loop.timers) <= now) {
        dli_timer_t *timer = DLI_CONTAINER_OF(dli_timer_t, node, dli_tree_after(client->loop.timers, NULL));
        dli_timer_clear(&client->loop.timers, timer);
        timer->fire(timer, now);
    }
}

/* What is due now. Returns until when nothing is; what it was woken for may be over by now, as a hold that
 * was short: it sleeps until then all the same, so that the next one does not wake it. */
static uint64_t turn(dl_client_t *client) {
    dli_loop_t *loop = &client->loop;
    if (loop->listening && loop->tend_ns <= dli_now()) {
        look_at_listener(client);
        loop->tend_ns = later(loop);
    }
    dli_loop_fire(client);
    if (client->threads_exited && !client->closing) {
        free_left_behind(client);
    }
    dli_ops_watch(client);
    dli_run_ready(client);
    bool lacks = client->threads_exited;
    lacks |= dli_lanes_call_again(client);
    uint64_t now = dli_now(),
             until_ns = dli_min(dli_timers_due(loop->timers), lacks ? now + AGAIN_NS : DLI_NEVER);
    until_ns = dli_min(until_ns, loop->told_ns > now ? loop->told_ns : DLI_NEVER);
    return has_to_listen(loop) && !loop->listening ? until_ns : dli_min(until_ns, loop->tend_ns);
}

static void sleep_until(dl_client_t *client, uint64_t until_ns) {
    dli_loop_t *loop = &client->loop;
    struct pollfd fds[3 + DL_LISTEN_MAX] = {{.fd = loop->wake_fd, .events = POLLIN},
                                            {.fd = loop->session_epoll_fd, .events = POLLIN},
                                            {.fd = loop->resume_fd, .events = POLLIN}};
    if (!loop->listening && (has_to_listen(loop) || loop->tend_ns <= dli_now())) {
        /* Where nobody waits it only looks, and leaves listening to the next caller that waits. */
        listen_until(client, NULL, fds, 3, has_to_listen(loop) ? until_ns : 0);
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
    dli_loop_t *loop = &client->loop;
    (void)dli_be_punctual(true);
    dli_lock_client(client);
    while (!client->stop_threads) {
        loop->sleeps_to_ns = 0; /* it is awake */
        loop->again = loop->is_woken = false;
        uint64_t until_ns = turn(client);
        if (loop->again) {
            continue; /* there is more, which the turn may have passed already */
        }
        client->to_flush |= loop->flushes;
        loop->sleeps_to_ns = until_ns;
        sleep_until(client, until_ns);
    }
    client->to_flush |= loop->flushes;
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
