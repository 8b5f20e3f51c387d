/* mux.c - the pipes of a server: dialling, silence and successors, and who reads. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mux.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "pipe.h"

/* A connection that was used this recently is taken for alive without a look, which costs a system call. Had
 * the server gone away just now, a request would be unknown instead of sent anew; never wrong. */
#define TRUSTED_NS NS_PER_MS
/* A reply is late after half of call_timeout, and sooner: after so long, in which TCP has mended the loss of
 * a packet (after 200 ms at the least), or so many usual round trips. */
#define MENDED_NS (260 * NS_PER_MS)
/* Sooner where all have waited in vain: what others would send behind that would share its fate. */
#define GIVEN_UP_NS (20 * NS_PER_MS)
#define SILENCE_TRIPS 8
/* Who is to read is late, or a connection that is being made. */
#define SILENCE_NS (200 * NS_PER_MS)
/* So many replies owed, and another connection is worth making. */
#define CROWDED 2
/* Where something was sent so lately, more may be. */
#define RECENT_NS (1000 * NS_PER_MS)
/* The successor waits for one more round trip, which takes as long as its greeting did, and no longer. */
#define TRIP_MIN_NS NS_PER_MS
#define TRIP_MAX_NS (300 * NS_PER_MS)
/* A connection that was not looked at for so long after its time. */
#define OVERDUE_NS (50 * NS_PER_MS)
/* Between two tries to make a successor. */
#define RETRY_NS (20 * NS_PER_MS)

dl_status_t dli_mux_open(dli_mux_t *mux, const dli_endpoint_t *endpoint, const dl_driver_env_t *env,
                         const dli_backend_env_t *core, const dli_mux_options_t *options, size_t pipes,
                         dl_error_t *err) {
    mux->endpoint = endpoint;
    mux->env = env;
    mux->core = core;
    mux->is_quiet = options->is_quiet;
    mux->idle_check_ns = (uint64_t)options->idle_check_ms * NS_PER_MS;
    mux->idle_ns = (uint64_t)options->idle_timeout_ms * NS_PER_MS;
    mux->label.key = options->label_key;
    dli_label_lost(&mux->label);
    dl_status_t status = DL_OK;
    for (; mux->count < pipes && status == DL_OK; mux->count++) {
        status = dli_pipe_init(&mux->pipes[mux->count], mux, err);
    }
    return status;
}

/* Takes the label back, where a connection lies idle; nobody waits for the reply. */
static void forget_label(dli_mux_t *mux) {
    bool is_said = !mux->label.is_there;
    for (size_t i = 0; i < mux->count && !is_said; i++) {
        const dli_pipe_t *pipe = &mux->pipes[i];
        dl_error_t err;
        if (pipe->ready && !dli_pipe_owes(pipe) && dli_conn_is_quiet(pipe->conn)) {
            dli_commands_add_words(pipe->out, "DEL", mux->label.key, NULL);
            is_said = dli_conn_flush(pipe->conn, &err) == DL_OK;
        }
    }
}

void dli_mux_close(dli_mux_t *mux, bool forked) {
    if (!forked) {
        forget_label(mux);
    }
    for (size_t i = 0; i < mux->count; i++) {
        dli_pipe_free(&mux->pipes[i], forked);
    }
    mux->count = forked ? mux->count : 0;
}

void dli_redis_report(const dl_driver_env_t *env, const dli_backend_env_t *core, dl_log_level_t level,
                      const char *format, ...) {
    char text[640];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (core->report != NULL) {
        core->report(core->core, level, text);
    } else {
        env->report(env->core, level, text);
    }
}

static void report(dli_mux_t *mux, dl_log_level_t level, const char *who, const char *what) {
    if (!mux->is_quiet) {
        dli_redis_report(mux->env, mux->core, level, "%s: %s", who, what);
    }
}

bool dli_mux_is_to_kill(const dli_mux_t *mux, int64_t id) {
    bool found = false;
    for (size_t i = 0; i < mux->kill_count; i++) {
        found |= mux->kills[i].id == id;
    }
    return found;
}

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* ---- connections begin and end ---------------------------------------------------------------------- */

/* What the machine here lacks says nothing about the server. */
static bool blames_server(dl_status_t status, bool had_begun) {
    return status != DL_ENOMEM && (had_begun || status != DL_ELIMIT);
}

/* A connection that is being made, and looked at until then. One whose time was over long ago is nobody's
 * failure: nobody looked at it, for nobody wanted it, or this process was stopped. */
static dl_status_t step_dial(dli_mux_t *mux, dli_conn_t *conn, uint64_t until_ns, short revents,
                             bool *overdue, dl_error_t *err) {
    *overdue = until_ns != DL_NO_DEADLINE && mux->env->now_ns() >= until_ns + OVERDUE_NS;
    mux->core->unlock(mux->core->core);
    dl_status_t status = dli_conn_step(conn, *overdue ? POLLIN | POLLOUT : revents, err);
    mux->core->lock(mux->core->core);
    return status;
}

/* A connection came to nothing. */
static void note_failure(dli_pipe_t *pipe, uint64_t began_ns, bool blame, const dl_error_t *why) {
    dli_mux_t *mux = pipe->mux;
    if (!blame) {
        dli_breaker_give_up(&mux->breaker, pipe->is_probe);
    } else if (dli_breaker_fail(&mux->breaker, mux->env, began_ns, pipe->is_probe, why)) {
        report(mux, DL_LOG_WARNING, "the server cannot be used", why->message);
    }
    pipe->is_probe = false;
}

/* Dials, in *conn. Lets the mutex go. DL_OK: it is under way, or ready. */
static dl_status_t dial(dli_pipe_t *pipe, dli_conn_t **conn, dl_error_t *err) {
    dli_mux_t *mux = pipe->mux;
    uint64_t began_ns = mux->env->now_ns();
    dl_status_t status = dli_breaker_ask(&mux->breaker, began_ns, &pipe->is_probe, err);
    if (status != DL_OK) {
        return status;
    }
    mux->core->unlock(mux->core->core);
    status = dli_conn_start(mux->endpoint, mux->env, &pipe->made, err);
    mux->core->lock(mux->core->core);
    *conn = pipe->made;
    pipe->polled = false;                      /* not this one */
    atomic_signal_fence(memory_order_release); /* a child that is forked here finds it at least once */
    pipe->made = NULL;
    if (status != DL_OK) {
        note_failure(pipe, began_ns, blames_server(status, false), err);
    }
    return status;
}

static void close_conn(dli_mux_t *mux, dli_conn_t **conn) {
    dli_conn_t *old = *conn;
    *conn = NULL; /* first: a forked child must not find one that is being freed */
    atomic_signal_fence(memory_order_release);
    mux->core->unlock(mux->core->core);
    dli_conn_close(old, false);
    mux->core->lock(mux->core->core);
}

/* Another server has no memory of the old one's connections. */
static void meet_other(dli_mux_t *mux, const dli_facts_t *facts) {
    mux->kill_count = 0;
    mux->may_not_kill = false;
    dli_label_lost(&mux->label);
    bool is_first = mux->run_id[0] == '\0';
    snprintf(mux->run_id, sizeof mux->run_id, "%s", facts->run_id);
    if (!is_first) {
        dli_pipe_retire_all(mux); /* the other connections may lead to the old one, which may live on */
    }
    if (!is_first && (mux->told_ns == 0 || mux->met_ns - mux->told_ns >= RECENT_NS)) {
        mux->told_ns = mux->met_ns;
        report(mux, DL_LOG_WARNING, mux->endpoint->label,
               "the server was restarted or replaced; locks that it had may be gone");
    }
}

/* The connection of this pipe is ready. */
static void become_ready(dli_pipe_t *pipe) {
    dli_mux_t *mux = pipe->mux;
    dli_facts_t facts = *dli_conn_facts(pipe->conn);
    bool was_down = dli_breaker_mend(&mux->breaker, mux->env->now_ns());
    pipe->is_probe = false;
    mux->made_ns = mux->made_ns == 0 ? facts.made_ns : earlier(mux->made_ns, facts.made_ns);
    mux->met_ns = later(mux->met_ns, pipe->began_ns);
    if (facts.run_id[0] != '\0' && strcmp(facts.run_id, mux->run_id) != 0) {
        meet_other(mux, &facts);
    }
    dli_pipe_begin(pipe);
    if (pipe->met) {
        mux->env->count(mux->env->core, DL_COUNT_RECONNECT, 1);
    }
    pipe->met = true;
    if (was_down) {
        report(mux, DL_LOG_INFO, mux->endpoint->label, "the server is back");
    }
}

/* The connection is over. That it was made says that the server is there. */
static void lose(dli_pipe_t *pipe, dl_status_t status, const dl_error_t *why) {
    dli_conn_t *conn = dli_pipe_end(pipe, status, why);
    close_conn(pipe->mux, &conn);
}

/* ---- silence ---------------------------------------------------------------------------------------- */

static uint64_t bound_trip(uint64_t ns) {
    return later(earlier(ns, TRIP_MAX_NS), TRIP_MIN_NS);
}

static uint64_t call_timeout_ns(const dli_pipe_t *pipe) {
    return (uint64_t)pipe->mux->env->call_timeout_ms * NS_PER_MS;
}

/* Does anybody wait for what it owes? What goes ahead of requests counts while it is the oldest. */
static bool is_awaited(const dli_pipe_t *pipe) {
    bool found = dli_pipe_slot(pipe, pipe->head)->kind != DLI_SLOT_REQUEST;
    for (uint64_t at = pipe->head; at != pipe->tail && !found; at++) {
        const dli_slot_t *slot = dli_pipe_slot(pipe, at);
        found = slot->request != NULL && !slot->follows;
    }
    return found;
}

/* When the oldest reply is late, or the connection; DL_NO_DEADLINE: none is due. */
static uint64_t late_ns(const dli_pipe_t *pipe) {
    if (pipe->conn == NULL || (pipe->ready && !dli_pipe_owes(pipe))) {
        return DL_NO_DEADLINE;
    }
    if (!pipe->ready) {
        return pipe->began_ns + SILENCE_NS;
    }
    const dli_slot_t *oldest = dli_pipe_slot(pipe, pipe->head);
    uint64_t ns =
        later(SILENCE_TRIPS * bound_trip(pipe->trip_ns), is_awaited(pipe) ? MENDED_NS : GIVEN_UP_NS);
    return later(oldest->sent_ns, pipe->heard_ns) + earlier(ns, call_timeout_ns(pipe) / 2) +
           oldest->slow_ms * NS_PER_MS;
}

/* When a successor is due. */
static uint64_t due_ns(const dli_pipe_t *pipe) {
    uint64_t ns = late_ns(pipe);
    return pipe->next != NULL ? DL_NO_DEADLINE : later(ns, pipe->retry_ns);
}

/* When a thread has to look at it. */
static uint64_t look_ns(const dli_pipe_t *pipe) {
    return earlier(due_ns(pipe), dli_pipe_rest_ns(pipe));
}

/* The successor takes over, ready or not. */
static void replace(dli_pipe_t *pipe) {
    dl_error_t why;
    dli_conn_t *old = pipe->conn;
    if (pipe->ready) {
        dl_status_t status =
            dl_driver_fail(&why, DL_EIO, ETIMEDOUT, "%s does not answer", pipe->mux->endpoint->label);
        old = dli_pipe_end(pipe, status, &why);
    }
    pipe->conn = pipe->next;
    pipe->polled = pipe->next_ready = false;
    pipe->began_ns = pipe->next_began_ns;
    pipe->next = NULL;
    close_conn(pipe->mux, &old);
}

/* A successor that takes much longer than a connection has taken before is made anew: what swallowed its
 * first words may be gone. */
static uint64_t next_until_ns(const dli_pipe_t *pipe) {
    uint64_t ns = pipe->next_began_ns + later(2 * pipe->mux->made_ns, SILENCE_NS);
    return pipe->met ? earlier(ns, dli_conn_until(pipe->next)) : dli_conn_until(pipe->next);
}

static void step_successor(dli_pipe_t *pipe, short revents) {
    dli_mux_t *mux = pipe->mux;
    dl_error_t err;
    bool overdue;
    if (pipe->next_ready) {
        return;
    }
    dl_status_t status = step_dial(mux, pipe->next, next_until_ns(pipe), revents, &overdue, &err);
    if (status != DL_OK) {
        note_failure(pipe, pipe->next_began_ns, blames_server(status, true) && !overdue, &err);
        close_conn(mux, &pipe->next);
        pipe->retry_ns = overdue ? 0 : pipe->retry_ns;
        pipe->again |= overdue;
    } else if (dli_conn_is_ready(pipe->next)) {
        pipe->next_ready = true;
        pipe->replace_ns =
            pipe->ready ? mux->env->now_ns() + bound_trip(dli_conn_facts(pipe->next)->greeting_ns) : 0;
    }
}

/* When the successor takes over: once it is ready; in any case once nobody waits any more for what the silent
 * one owes. The way may be slower by now: what is being made then has all of its time, and others are made
 * beside. */
static uint64_t replace_ns(const dli_pipe_t *pipe) {
    uint64_t ns = pipe->ready ? late_ns(pipe) + call_timeout_ns(pipe) : DL_NO_DEADLINE;
    return pipe->next_ready ? pipe->replace_ns : ns;
}

static void drop_successor(dli_pipe_t *pipe) {
    dli_breaker_give_up(&pipe->mux->breaker, pipe->is_probe);
    pipe->next_ready = false;
    close_conn(pipe->mux, &pipe->next);
}

/* Before it is looked at, what has come was read. */
static void look_at_silence(dli_pipe_t *pipe, short next_revents) {
    dli_mux_t *mux = pipe->mux;
    if (pipe->next == NULL && due_ns(pipe) == DL_NO_DEADLINE) {
        return;
    }
    uint64_t now_ns = mux->env->now_ns();
    if (pipe->next != NULL && pipe->ready && (!dli_pipe_owes(pipe) || pipe->head != pipe->watched)) {
        drop_successor(pipe);
    }
    if (pipe->next != NULL) {
        step_successor(pipe, next_revents);
    }
    if (pipe->next != NULL && !pipe->next_ready && next_until_ns(pipe) <= now_ns) {
        drop_successor(pipe);
    }
    if (due_ns(pipe) <= now_ns) {
        dl_error_t err;
        pipe->watched = pipe->ready ? pipe->head : UINT64_MAX;
        pipe->next_began_ns = now_ns;
        dl_status_t status = dial(pipe, &pipe->next, &err);
        pipe->retry_ns = now_ns + RETRY_NS;
        if (status != DL_OK && pipe->ready) {
            dli_pipe_refuse(pipe, UINT64_MAX, status, &err);
        }
    }
    if (pipe->next != NULL && !pipe->next_ready && dli_conn_is_ready(pipe->next)) {
        step_successor(pipe, 0); /* a server nearby has answered already */
    }
    if (pipe->next != NULL && replace_ns(pipe) <= now_ns) {
        replace(pipe);
        pipe->again = true;
    }
}

/* ---- a pipe ----------------------------------------------------------------------------------------- */

/* No connection: makes one if something is to be sent. */
static void connect_pipe(dli_pipe_t *pipe) {
    dl_error_t err;
    if (TAILQ_EMPTY(&pipe->queue) && !pipe->wanted) {
        return;
    }
    pipe->wanted = false;
    pipe->began_ns = pipe->mux->env->now_ns();
    dl_status_t status = dial(pipe, &pipe->conn, &err);
    if (status != DL_OK) {
        dli_pipe_refuse(pipe, UINT64_MAX, status, &err);
    }
}

static void step_connecting(dli_pipe_t *pipe, short revents) {
    dli_mux_t *mux = pipe->mux;
    dl_error_t err;
    bool overdue;
    dl_status_t status = step_dial(mux, pipe->conn, dli_conn_until(pipe->conn), revents, &overdue, &err);
    if (status == DL_OK) {
        return;
    }
    note_failure(pipe, pipe->began_ns, blames_server(status, true) && !overdue, &err);
    if (pipe->next != NULL) {
        replace(pipe);
    } else {
        close_conn(mux, &pipe->conn);
    }
    bool is_ready = pipe->conn != NULL && dli_conn_is_ready(pipe->conn);
    if (!overdue && !is_ready) { /* who came later has the successor's time */
        uint64_t timeout_ns = (uint64_t)mux->endpoint->connect_timeout_ms * NS_PER_MS;
        dli_pipe_refuse(pipe, pipe->conn != NULL ? mux->env->now_ns() - timeout_ns : UINT64_MAX, status,
                        &err);
    }
}

/* Was it begun before another server was met, and leads to the one before? */
static bool is_outdated(const dli_pipe_t *pipe) {
    const dli_mux_t *mux = pipe->mux;
    const char *run_id = dli_conn_facts(pipe->conn)->run_id;
    return pipe->began_ns < mux->met_ns && run_id[0] != '\0' && strcmp(run_id, mux->run_id) != 0;
}

/* The connection is made: to the right server? A successor is asked when it takes over: one that is dropped
 * says nothing about the server that the requests go to. */
static void greet(dli_pipe_t *pipe) {
    dli_mux_t *mux = pipe->mux;
    dl_error_t err;
    if (is_outdated(pipe)) { /* another is made */
        note_failure(pipe, pipe->began_ns, false, NULL);
        close_conn(mux, &pipe->conn);
        return;
    }
    dl_status_t status =
        mux->meets == NULL ? DL_OK : mux->meets(mux->meets_arg, dli_conn_facts(pipe->conn), &err);
    if (status == DL_OK) {
        become_ready(pipe);
        return;
    }
    note_failure(pipe, pipe->began_ns, true, &err);
    close_conn(mux, &pipe->conn);
    dli_pipe_refuse(pipe, UINT64_MAX, status, &err);
}

/* Is a connection alive that was idle, by what can be seen from here? A PING goes ahead where that is little.
 */
static bool look_at_idle(dli_pipe_t *pipe) {
    dli_mux_t *mux = pipe->mux;
    if (dli_pipe_owes(pipe) || TAILQ_EMPTY(&pipe->queue)) {
        return true;
    }
    uint64_t now_ns = mux->env->now_ns(), idle_ns = now_ns - pipe->used_ns;
    if (idle_ns < TRUSTED_NS) {
        return true;
    }
    mux->core->unlock(mux->core->core);
    bool is_quiet = dli_conn_is_quiet(pipe->conn);
    mux->core->lock(mux->core->core);
    /* What is closed for that is not made anew, but made. The time that its making took is not idle. */
    pipe->met = pipe->met && now_ns - pipe->heard_ns < mux->idle_ns;
    if (!is_quiet || !pipe->met) {
        return false;
    }
    if (idle_ns >= mux->idle_check_ns) {
        dli_pipe_ping(pipe);
    }
    return true;
}

/* May what has come lie unread, such as the end of the connection? */
static bool is_unread(const dli_pipe_t *pipe) {
    if (!dli_pipe_owes(pipe)) {
        return false;
    }
    uint64_t now_ns = pipe->mux->env->now_ns();
    bool is_read = pipe->polled || pipe->term != 0;
    return late_ns(pipe) <= now_ns || (!is_read && now_ns - pipe->used_ns >= TRUSTED_NS);
}

/* Reads and sends. */
static void step_ready(dli_pipe_t *pipe, short revents) {
    dl_error_t err = {.status = DL_OK};
    if (is_unread(pipe)) {
        revents |= POLLIN;
    }
    dl_status_t status = revents != 0 ? dli_pipe_receive(pipe, revents, &err) : DL_OK;
    dli_pipe_end_rests(pipe);
    if (status == DL_OK && pipe->retired && !dli_pipe_owes(pipe)) {
        status = dl_driver_fail(&err, DL_EIO, 0, "%s is another server by now", pipe->mux->endpoint->label);
    }
    if (status == DL_OK && !look_at_idle(pipe)) {
        status = dl_driver_fail(&err, DL_EIO, 0, "%s: the server closed the connection",
                                pipe->mux->endpoint->label);
    }
    uint64_t ns = late_ns(pipe);
    if (status == DL_OK && (ns == DL_NO_DEADLINE || ns > pipe->mux->env->now_ns())) {
        status = dli_pipe_send(pipe, &err);
    }
    if (status != DL_OK) {
        lose(pipe, status, &err);
    }
}

static void leave_to_callers(dli_pipe_t *pipe);

/* Everything that can be done for a pipe now. Whoever comes while another does it leaves it to that one. */
static void work(dli_pipe_t *pipe, short revents, short next_revents) {
    const dli_mux_t *mux = pipe->mux;
    if (pipe->busy) {
        pipe->again = pipe->stalled = true;
        pipe->revents |= revents;
        pipe->next_revents |= next_revents;
        return;
    }
    pipe->busy = true;
    do {
        pipe->again = false;
        if (pipe->conn == NULL) {
            connect_pipe(pipe);
        } else if (!pipe->ready) {
            step_connecting(pipe, revents);
        }
        if (pipe->conn != NULL && !pipe->ready && dli_conn_is_ready(pipe->conn)) {
            greet(pipe);
            revents = 0;
        }
        if (pipe->ready) {
            step_ready(pipe, revents);
        }
        if (pipe->conn != NULL) {
            look_at_silence(pipe, next_revents);
        }
        pipe->again |= pipe->conn == NULL && !TAILQ_EMPTY(&pipe->queue);
        revents = pipe->revents;
        next_revents = pipe->next_revents;
        pipe->revents = pipe->next_revents = 0;
    } while (pipe->again);
    pipe->busy = false;
    if (pipe->stalled && pipe->leader != NULL) {
        mux->core->look_again(mux->core->core, pipe->leader->asked);
    } else if (pipe->stalled && !pipe->polled) {
        leave_to_callers(pipe);
    }
    pipe->stalled = false;
}

/* ---- the owner's calls ------------------------------------------------------------------------------ */

/* The place behind a claim that was given up, and whose reply is still to come; 0: it is not here. */
static uint64_t place_behind(const dli_pipe_t *pipe, uint64_t claim) {
    for (uint64_t at = pipe->tail; pipe->given_up > 0 && at != pipe->head; at--) {
        const dli_slot_t *slot = dli_pipe_slot(pipe, at - 1);
        if (dli_slot_is_given_up(slot) && slot->claim == claim) {
            return at;
        }
    }
    return 0;
}

/* A free goes to the pipe on which its claim may yet be carried out. */
static void go_behind_claim(const dli_mux_t *mux, dli_redis_request_t *request) {
    for (uint32_t i = 0; i < mux->count && request->place == 0; i++) {
        request->place = place_behind(&mux->pipes[i], request->claim);
        request->pipe = request->place != 0 ? i : request->pipe;
    }
}

void dli_mux_begin(dli_mux_t *mux, dli_redis_request_t *request) {
    request->with_source = request->forgotten = false;
    request->sent_ns = mux->env->now_ns();
    request->got = 0;
    request->place = 0;
    if (request->kind->intent == DLI_FREE) {
        go_behind_claim(mux, request);
    }
    dli_pipe_t *pipe = &mux->pipes[request->pipe];
    pipe->unled += !request->leads;
    dli_redis_queue_push(&pipe->queue, request);
}

bool dli_mux_withdraw(dli_mux_t *mux, dli_redis_request_t *request) {
    dli_pipe_t *pipe = &mux->pipes[request->pipe];
    bool was_sent = !request->queued;
    pipe->unled -= !request->leads;
    pipe->leader = pipe->leader != request ? pipe->leader : NULL;
    if (was_sent) {
        dli_slot_t *slot = dli_pipe_slot(pipe, request->place);
        slot->request = NULL;
        pipe->given_up += dli_slot_is_given_up(slot);
    } else {
        dli_redis_queue_remove(&pipe->queue, request);
    }
    return was_sent && !request->forgotten; /* the server knew no such script */
}

/* What was answered as far as it matters keeps the server waiting there. */
static bool is_stuck(const dli_pipe_t *pipe) {
    const dli_slot_t *oldest = dli_pipe_owes(pipe) ? dli_pipe_slot(pipe, pipe->head) : NULL;
    return oldest != NULL && oldest->request == NULL && oldest->slow_ms > 0;
}

static bool can_send(const dli_pipe_t *pipe) {
    return pipe->ready && !pipe->retired && !is_stuck(pipe);
}

size_t dli_mux_choose(dli_mux_t *mux, size_t first, size_t n, size_t wish) {
    dli_pipe_t *wished = &mux->pipes[first + wish % n];
    for (size_t i = 0; i < n && !can_send(wished); i++) {
        const dli_pipe_t *pipe = &mux->pipes[first + i];
        if (can_send(pipe)) {
            wished->wanted |= wished->conn == NULL && pipe->tail - pipe->head >= CROWDED;
            return first + i;
        }
    }
    size_t at = wished->ready ? (size_t)(wished - mux->pipes) : first;
    for (size_t i = first; i < first + n && is_stuck(&mux->pipes[at]); i++) {
        at = mux->pipes[i].conn == NULL ? i : at;
    }
    return at;
}

/* A caller that reads for so long may not be able to. */
static bool is_led(const dli_pipe_t *pipe, uint64_t now_ns) {
    return pipe->term != 0 && now_ns - pipe->led_ns < SILENCE_NS;
}

/* Does whoever listens have to look again for this pipe? Where a caller reads, only to see in time that it
 * does not. */
static bool is_overlooked(const dli_pipe_t *pipe) {
    if (pipe->unled == 0) {
        return false;
    }
    uint64_t now_ns = pipe->mux->env->now_ns();
    if (is_led(pipe, now_ns)) {
        return pipe->mux->polled_to_ns > pipe->led_ns + SILENCE_NS;
    }
    return (pipe->conn != NULL && !pipe->polled) || look_ns(pipe) < pipe->mux->polled_to_ns ||
           (pipe->ready && !pipe->polled_out && !pipe->busy && dli_conn_unsent(pipe->conn) > 0);
}

bool dli_mux_flush(dli_mux_t *mux) {
    bool look_again = false;
    /* Downwards: what an end begins, it begins on a pipe further down. */
    for (size_t i = mux->count; i-- > 0;) {
        dli_pipe_t *pipe = &mux->pipes[i];
        bool nobody_looks = pipe->conn != NULL && !pipe->ready && TAILQ_EMPTY(&pipe->queue);
        if (!TAILQ_EMPTY(&pipe->queue) || pipe->wanted || nobody_looks) {
            work(pipe, nobody_looks ? POLLIN | POLLOUT : 0, 0);
            look_again |= is_overlooked(pipe);
        }
    }
    return look_again;
}

/* ---- who reads -------------------------------------------------------------------------------------- */

/* What to poll for this one, one descriptor or two; until when. */
static size_t want_pipe(dli_pipe_t *pipe, struct pollfd *fds, uint64_t *until_ns) {
    if (pipe->busy) { /* who has it may be writing */
        fds[0] = (struct pollfd){.fd = pipe->fd, .events = POLLIN};
        *until_ns = look_ns(pipe);
        return 1;
    }
    dli_conn_want(pipe->conn, &fds[0]);
    *until_ns = earlier(dli_conn_until(pipe->conn), look_ns(pipe));
    if (pipe->next == NULL) {
        return 1;
    }
    dli_conn_want(pipe->next, &fds[1]);
    uint64_t ns = pipe->next_ready ? DL_NO_DEADLINE : next_until_ns(pipe);
    *until_ns = earlier(*until_ns, earlier(replace_ns(pipe), ns));
    return 2;
}

static bool can_be_polled(const dli_pipe_t *pipe) {
    bool is_steady = pipe->ready && pipe->next == NULL && !pipe->stalled;
    return pipe->conn != NULL && (!pipe->busy || is_steady);
}

size_t dli_mux_listen_fds(dli_mux_t *mux, struct pollfd *fds, uint64_t *until_ns) {
    mux->core->lock(mux->core->core);
    uint64_t now_ns = mux->env->now_ns(), to_ns = DL_NO_DEADLINE;
    size_t n = 0;
    for (size_t i = 0; i < mux->count; i++) {
        dli_pipe_t *pipe = &mux->pipes[i];
        pipe->given = 0;
        pipe->polled = pipe->unled > 0 && !is_led(pipe, now_ns) && can_be_polled(pipe);
        if (pipe->polled) {
            uint64_t pipe_ns;
            pipe->given = want_pipe(pipe, &fds[n], &pipe_ns);
            pipe->polled_out = (fds[n].events & POLLOUT) != 0;
            n += pipe->given;
            to_ns = earlier(to_ns, pipe_ns);
        }
        if (pipe->unled > 0 && is_led(pipe, now_ns)) {
            to_ns = earlier(to_ns, pipe->led_ns + SILENCE_NS);
        }
        /* What others send meanwhile shall not have to wake this thread so that it looks for their silence.
         */
        if (pipe->ready && pipe->unled > 0 && now_ns - pipe->used_ns < RECENT_NS) {
            to_ns = earlier(to_ns, now_ns + SILENCE_NS);
        }
    }
    mux->polled_to_ns = *until_ns = to_ns;
    memcpy(mux->polled_run_id, mux->run_id, sizeof mux->run_id);
    mux->core->unlock(mux->core->core);
    return n;
}

/* Another caller reads, and has left undone what it polls for, both times that it was looked at. */
static bool is_leader_late(dli_pipe_t *pipe) {
    struct pollfd fds[2];
    uint64_t term = pipe->term, until_ns;
    if (pipe->busy || pipe->conn == NULL) {
        return false;
    }
    size_t n = want_pipe(pipe, fds, &until_ns);
    pipe->mux->core->unlock(pipe->mux->core->core);
    bool is_late = pipe->mux->env->now_ns() >= until_ns || poll(fds, n, 0) > 0;
    pipe->mux->core->lock(pipe->mux->core->core);
    is_late = is_late && pipe->term == term;
    bool again = is_late && pipe->late_term == term;
    pipe->late_term = is_late ? term : 0;
    return again;
}

/* Meanwhile its reply may have come, or had it asked elsewhere. */
static bool is_still_on(const dli_pipe_t *pipe, const dli_redis_request_t *request) {
    return request->asked->pending && pipe == &pipe->mux->pipes[request->pipe];
}

static uint64_t new_term(dli_pipe_t *pipe, dli_redis_request_t *request) {
    dli_mux_t *mux = pipe->mux;
    pipe->term = ++mux->terms * DLI_PIPES_MAX + (uint64_t)(pipe - mux->pipes);
    pipe->led_ns = mux->env->now_ns();
    pipe->leader = request;
    return pipe->term;
}

int dli_mux_lead_fds(dli_mux_t *mux, dli_redis_request_t *request, struct pollfd *fds, bool late,
                     uint64_t *term, uint64_t *until_ns) {
    dli_pipe_t *pipe = &mux->pipes[request->pipe];
    *term =
        *term % DLI_PIPES_MAX == request->pipe ? *term : 0; /* it went elsewhere since it was to read there */
    bool is_own = pipe->term != 0 && pipe->term == *term;
    bool is_free = is_own || (pipe->term == 0 && !pipe->polled) ||
                   (late && is_leader_late(pipe) && is_still_on(pipe, request));
    if (!is_free || pipe->conn == NULL) {
        return 0;
    }
    *term = new_term(pipe, request);
    if (!can_be_polled(pipe)) {
        pipe->stalled = true;
        return 0;
    }
    return (int)want_pipe(pipe, fds, until_ns);
}

bool dli_mux_lead(dli_mux_t *mux, uint64_t term, const struct pollfd *fds, size_t n) {
    dli_pipe_t *pipe = &mux->pipes[term % DLI_PIPES_MAX];
    if (pipe->term != term) {
        return false;
    }
    work(pipe, fds[0].revents, n > 1 ? fds[1].revents : 0);
    return dli_mux_flush(mux); /* what a reply has begun on another pipe */
}

/* Who reads next: where some do not lead, whoever listens for those; the same, while its own reply is to
 * come; else who has waited shortest, and will read for all before it. */
static dli_redis_request_t *heir_of(const dli_pipe_t *pipe) {
    if (pipe->unled == 0 && pipe->leader != NULL) {
        return pipe->leader;
    }
    for (uint64_t at = pipe->tail; at != pipe->head;) {
        dli_redis_request_t *request = dli_pipe_slot(pipe, --at)->request;
        if (request != NULL && (pipe->unled == 0 || !request->leads)) {
            return request;
        }
    }
    return TAILQ_FIRST(&pipe->queue);
}

dli_redis_request_t *dli_mux_end_lead(dli_mux_t *mux, uint64_t term, uint64_t *next) {
    dli_pipe_t *pipe = &mux->pipes[term % DLI_PIPES_MAX];
    if (pipe->term != term) {
        return NULL;
    }
    dli_redis_request_t *heir = heir_of(pipe);
    pipe->term = 0;
    pipe->leader = NULL;
    if (heir != NULL && heir->leads) {
        *next = new_term(pipe, heir);
    }
    return heir;
}

/* Whoever listens reads here no more: who waits for a reply, and was told to leave it to that one, does. */
static void leave_to_callers(dli_pipe_t *pipe) {
    dli_redis_request_t *heir = pipe->term == 0 && pipe->unled == 0 ? heir_of(pipe) : NULL;
    if (heir != NULL) {
        pipe->mux->core->look_again(pipe->mux->core->core, heir->asked);
    }
}

void dli_mux_listen(dli_mux_t *mux, const struct pollfd *fds, size_t n) {
    mux->core->lock(mux->core->core);
    for (size_t i = 0, at = 0; i < mux->count && at < n; i++) {
        dli_pipe_t *pipe = &mux->pipes[i];
        size_t given = pipe->given;
        if (given > 0) {
            pipe->polled = false;
            work(pipe, fds[at].revents, given > 1 ? fds[at + 1].revents : 0);
            leave_to_callers(pipe);
            at += given;
        }
    }
    (void)dli_mux_flush(mux);
    mux->core->unlock(mux->core->core);
}
