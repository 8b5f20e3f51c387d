/* pipe.c - one ordered connection of a multiplexer: its queue, what the server owes, and how it ends. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "pipe.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAP 64
/* So much goes into one write, so that nobody waits long for the first of it to leave. */
#define WRITE_BYTES ((size_t)32 * 1024)
/* While so much did not leave yet, nothing is added to it. */
#define UNSENT_BYTES ((size_t)64 * 1024)
#define REPLIES 64

dl_status_t dli_pipe_init(dli_pipe_t *pipe, dli_mux_t *mux, dl_error_t *err) {
    pipe->mux = mux;
    TAILQ_INIT(&pipe->queue);
    pipe->slots = calloc(FIRST_CAP, sizeof *pipe->slots);
    pipe->cap = pipe->slots != NULL ? FIRST_CAP : 0;
    return pipe->slots != NULL ? DL_OK : dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
}

void dli_pipe_free(dli_pipe_t *pipe, bool forked) {
    dli_conn_close(pipe->conn, forked);
    dli_conn_close(pipe->next, forked);
    if (pipe->made != pipe->conn && pipe->made != pipe->next) {
        dli_conn_close(pipe->made, forked);
    }
    if (!forked) {
        pipe->conn = pipe->next = NULL;
        free(pipe->slots);
        pipe->slots = NULL;
    }
}

/* ---- the label --------------------------------------------------------------------------------------- */

#define NS_PER_S ((uint64_t)1000000000)
/* Of a client that dies, it stays for a week; one that lives says it every day. */
#define KEPT_S "604800"
#define AGAIN_NS (86400 * NS_PER_S)
#define AFTER_ERROR_NS (60 * NS_PER_S)

/* Is it to be said now? Who hears true says it; nobody else does at once. */
static bool is_label_due(dli_label_t *label, uint64_t now_ns) {
    bool is_due = now_ns >= label->due_ns;
    label->due_ns = is_due ? now_ns + AGAIN_NS : label->due_ns;
    return is_due;
}

static void answer_label(dli_label_t *label, const redisReply *reply, uint64_t now_ns) {
    if (reply->type != REDIS_REPLY_ERROR) {
        label->is_there = true;
    } else if (dli_reply_is_error(reply, "NOPERM") || dli_reply_is_error(reply, "ERR")) {
        label->due_ns = UINT64_MAX; /* each try would be a line in the server's ACL LOG */
    } else {
        label->due_ns = now_ns + AFTER_ERROR_NS;
    }
}

void dli_label_lost(dli_label_t *label) {
    label->due_ns = label->key != NULL ? 0 : UINT64_MAX;
}

/* ---- the queue -------------------------------------------------------------------------------------- */

void dli_redis_queue_push(dli_redis_queue_t *queue, dli_redis_request_t *request) {
    TAILQ_INSERT_TAIL(queue, request, of_queue);
    request->queued = true;
}

static void push_front(dli_redis_queue_t *queue, dli_redis_request_t *request) {
    TAILQ_INSERT_HEAD(queue, request, of_queue);
    request->queued = true;
}

void dli_redis_queue_remove(dli_redis_queue_t *queue, dli_redis_request_t *request) {
    TAILQ_REMOVE(queue, request, of_queue);
    request->queued = false;
}

/* The request is its owner's again, who may begin it anew at once. */
static void end_with(dli_pipe_t *pipe, dli_redis_request_t *request, dl_status_t status,
                     const dl_error_t *why) {
    pipe->unled -= !request->leads;
    pipe->leader = pipe->leader != request ? pipe->leader : NULL;
    request->kind->ended(request, status, why);
}

void dli_pipe_refuse(dli_pipe_t *pipe, uint64_t since_ns, dl_status_t status, const dl_error_t *why) {
    dli_redis_request_t *request;
    dli_redis_queue_push(&pipe->queue, &pipe->end);
    while ((request = TAILQ_FIRST(&pipe->queue)) != &pipe->end) {
        dli_redis_queue_remove(&pipe->queue, request);
        if (request->sent_ns > since_ns || request->place > pipe->head) {
            dli_redis_queue_push(&pipe->queue, request);
        } else {
            end_with(pipe, request, status, why);
        }
    }
    dli_redis_queue_remove(&pipe->queue, &pipe->end);
}

/* ---- slots ------------------------------------------------------------------------------------------ */

/* Without room nothing is sent until replies have made some: there always is for the first. */
static bool make_room(dli_pipe_t *pipe, uint64_t slots) {
    if (pipe->tail - pipe->head + slots <= pipe->cap) {
        return true;
    }
    dli_slot_t *ring = malloc(2 * pipe->cap * sizeof *ring);
    if (ring == NULL) {
        return false;
    }
    for (uint64_t i = pipe->head; i != pipe->tail; i++) {
        ring[i & (2 * pipe->cap - 1)] = *dli_pipe_slot(pipe, i);
    }
    free(pipe->slots);
    pipe->slots = ring;
    pipe->cap *= 2;
    return true;
}

static dli_slot_t *add_slot(dli_pipe_t *pipe, int kind, size_t replies, uint64_t now_ns) {
    dli_slot_t *slot = dli_pipe_slot(pipe, pipe->tail++);
    *slot = (dli_slot_t){.kind = kind, .left = replies, .sent_ns = now_ns, .at = dli_conn_queued(pipe->conn)};
    return slot;
}

/* ---- sending ---------------------------------------------------------------------------------------- */

/* Was there memory for all that the last slot is for? Otherwise none of it is there, and the slot goes. */
static bool is_put(dli_pipe_t *pipe) {
    bool is_there = !pipe->out->out_of_memory;
    if (!is_there) {
        const dli_slot_t *slot = dli_pipe_slot(pipe, --pipe->tail);
        pipe->out->len -= (size_t)(dli_conn_queued(pipe->conn) - slot->at);
        pipe->out->out_of_memory = false;
    }
    return is_there;
}

/* For people: it goes ahead of a claim or a renewal now and then, and may be left out. */
static void say_label(dli_pipe_t *pipe, const dli_redis_request_t *request, uint64_t now_ns) {
    dli_label_t *label = &pipe->mux->label;
    if (request->kind->says_label && is_label_due(label, now_ns)) {
        (void)add_slot(pipe, DLI_SLOT_LABEL, 1, now_ns);
        dli_commands_add_words(pipe->out, "SET", label->key, pipe->mux->env->client_label, "EX", KEPT_S,
                               NULL);
        if (!is_put(pipe)) {
            dli_label_lost(label);
        }
    }
}

static size_t number_of(const dli_pipe_t *pipe) {
    return (size_t)(pipe - pipe->mux->pipes);
}

/* What this connection has not said yet of what has to be killed. */
static bool say_kills(dli_pipe_t *pipe, uint64_t now_ns) {
    dli_mux_t *mux = pipe->mux;
    uint32_t here = 1u << number_of(pipe);
    char id[24];
    for (size_t i = 0; i < mux->kill_count; i++) {
        if ((mux->kills[i].said & here) != 0) {
            continue;
        }
        const dli_slice_t argv[] = {dli_slice("CLIENT"), dli_slice("KILL"), dli_slice("ID"),
                                    dli_slice_int(id, mux->kills[i].id)};
        add_slot(pipe, DLI_SLOT_KILL, 1, now_ns)->claim = (uint64_t)mux->kills[i].id;
        dli_commands_add(pipe->out, sizeof argv / sizeof argv[0], argv);
        if (!is_put(pipe)) {
            return false;
        }
        mux->kills[i].said |= here;
    }
    return true;
}

/* false: without memory it has to wait until something else has ended. */
static bool put(dli_pipe_t *pipe, dli_redis_request_t *request, uint64_t now_ns) {
    if (!make_room(pipe, 2 + DLI_KILLS_MAX) ||
        (request->kind->intent == DLI_FREE && !say_kills(pipe, now_ns))) {
        return false;
    }
    say_label(pipe, request, now_ns);
    dli_slot_t *slot = add_slot(pipe, DLI_SLOT_REQUEST, request->count, now_ns);
    request->kind->encode(request, request->with_source, pipe->out);
    if (!is_put(pipe)) {
        return false;
    }
    slot->request = request;
    slot->intent = request->kind->intent;
    slot->claim = request->claim;
    slot->slow_ms = request->slow_ms;
    slot->follows = request->kind->intent == DLI_FREE && request->place > pipe->head &&
                    dli_slot_is_given_up(dli_pipe_slot(pipe, request->place - 1));
    pipe->has_rests |= request->rest_ms > 0;
    dli_redis_queue_remove(&pipe->queue, request);
    request->place = pipe->tail - 1;
    request->sent_ns = now_ns;
    request->got = 0;
    return true;
}

/* Puts what may leave into one write: how many requests. */
static size_t gather(dli_pipe_t *pipe) {
    size_t n = 0, begin = pipe->out->len;
    const dli_commands_t *out = pipe->out;
    dli_redis_request_t *next;
    uint64_t now_ns = !TAILQ_EMPTY(&pipe->queue) ? pipe->mux->env->now_ns() : 0;
    for (dli_redis_request_t *request = TAILQ_FIRST(&pipe->queue);
         request != NULL && out->len - begin < WRITE_BYTES; request = next) {
        next = TAILQ_NEXT(request, of_queue);
        if (request->kind->intent == DLI_CLAIM && pipe->tail - pipe->head >= DLI_PIPE_CLAIMS_MAX) {
            continue; /* frees get in always */
        }
        if (put(pipe, request, now_ns)) {
            n++;
            continue;
        }
        if (out->len == 0 && !dli_pipe_owes(pipe)) {
            dl_error_t why;
            dli_redis_queue_remove(&pipe->queue, request);
            end_with(pipe, request, dl_driver_fail(&why, DL_ENOMEM, 0, "out of memory"), &why);
            next = TAILQ_FIRST(&pipe->queue); /* who hears of that may have withdrawn others */
        } else {
            break;
        }
    }
    return n;
}

/* What has been put into `out`. */
static dl_status_t write_out(dli_pipe_t *pipe, dl_error_t *err) {
    const dli_backend_env_t *core = pipe->mux->core;
    pipe->used_ns = pipe->mux->env->now_ns();
    pipe->written = dli_conn_queued(pipe->conn);
    core->unlock(core->core);
    dl_status_t status = dli_conn_flush(pipe->conn, err);
    core->lock(core->core);
    return status;
}

dl_status_t dli_pipe_send(dli_pipe_t *pipe, dl_error_t *err) {
    const dl_driver_env_t *env = pipe->mux->env;
    dl_status_t status = DL_OK;
    do {
        if (!pipe->retired && !pipe->pinged && dli_conn_unsent(pipe->conn) < UNSENT_BYTES) {
            env->count(env->core, DL_COUNT_ROUND_TRIP, gather(pipe));
        }
        if (dli_conn_queued(pipe->conn) == pipe->written) {
            return status;
        }
        status = write_out(pipe, err);
    } while (status == DL_OK && !TAILQ_EMPTY(&pipe->queue));
    return status;
}

void dli_pipe_ping(dli_pipe_t *pipe) {
    (void)add_slot(pipe, DLI_SLOT_PING, 1, pipe->mux->env->now_ns());
    dli_commands_add_words(pipe->out, "PING", NULL);
    pipe->pinged = is_put(pipe);
}

/* ---- replies ---------------------------------------------------------------------------------------- */

static bool is_of_replica(const redisReply *reply) {
    return reply->type == REDIS_REPLY_ERROR &&
           (dli_reply_is_error(reply, "READONLY") || dli_reply_is_error(reply, "MASTERDOWN"));
}

void dli_pipe_retire_all(dli_mux_t *mux) {
    for (size_t i = 0; i < mux->count; i++) {
        mux->pipes[i].retired = mux->pipes[i].ready;
    }
}

static void forget_kill(dli_mux_t *mux, size_t at) {
    mux->kill_count--;
    memmove(&mux->kills[at], &mux->kills[at + 1], (mux->kill_count - at) * sizeof mux->kills[0]);
}

/* ERR: there is no such connection any more. Other errors pass, such as BUSY: it is said again. */
static void note_kill(dli_pipe_t *pipe, uint64_t id, const redisReply *reply) {
    dli_mux_t *mux = pipe->mux;
    bool refused = dli_reply_is_refused(reply);
    bool passes = reply->type == REDIS_REPLY_ERROR && !refused && !dli_reply_is_error(reply, "ERR");
    for (size_t i = mux->kill_count; i-- > 0;) {
        bool is_it = mux->kills[i].id == (int64_t)id;
        if (passes && is_it) {
            mux->kills[i].said &= ~(1u << number_of(pipe));
        } else if (refused || is_it) {
            forget_kill(mux, i);
        }
    }
    if (refused && !mux->may_not_kill) {
        mux->may_not_kill = true;
        dli_redis_report(
            mux->env, mux->core, DL_LOG_WARNING,
            "%s: this client may not kill connections (CLIENT KILL); a claim that was given up can still "
            "be carried out after its release, and then lasts until its lease ends: %.200s",
            mux->endpoint->label, reply->str);
    }
}

static dl_status_t answer_request(dli_pipe_t *pipe, dli_redis_request_t *request, redisReply **owned,
                                  dl_error_t *err) {
    const redisReply *reply = *owned;
    request->got++;
    if (!request->with_source && dli_reply_is_error(reply, "NOSCRIPT")) {
        request->forgotten = true;
        return DL_OK;
    }
    if (request->kept != NULL) {
        request->kept[request->got - 1] = *owned;
        *owned = NULL;
    }
    /* forgotten: what came behind it, all of which is sent again */
    if (request->forgotten || request->kind->replied == NULL || request->kind->replied(request, reply)) {
        return DL_OK;
    }
    return dl_driver_fail(err, DL_EPROTO, 0, "%s: the server's answer makes no sense",
                          pipe->mux->endpoint->label);
}

/* All of its replies have come. */
static void end_request(dli_pipe_t *pipe, dli_redis_request_t *request) {
    const dli_redis_kind_t *kind = request->kind;
    if (request->forgotten && kind->is_too_late != NULL && kind->is_too_late(request)) {
        dl_error_t why;
        end_with(pipe, request, dl_driver_fail(&why, DL_EIO, 0, "no time was left to send the script's text"),
                 &why);
    } else if (request->forgotten) {
        request->forgotten = false;
        request->with_source = true;
        push_front(&pipe->queue, request);
    } else {
        end_with(pipe, request, DL_OK, NULL);
    }
}

/* When it has waited long enough for the rest of its replies. */
static uint64_t rest_ns(const dli_redis_request_t *request) {
    bool waits = request != NULL && request->got > 0 && request->rest_ms > 0;
    return !waits                            ? DL_NO_DEADLINE
           : request->rest_ms == DLI_NO_REST ? 0
                                             : request->sent_ns + request->rest_ms * NS_PER_MS;
}

uint64_t dli_pipe_rest_ns(const dli_pipe_t *pipe) {
    uint64_t first_ns = DL_NO_DEADLINE;
    for (uint64_t at = pipe->head; pipe->has_rests && at != pipe->tail; at++) {
        uint64_t ns = rest_ns(dli_pipe_slot(pipe, at)->request);
        first_ns = ns < first_ns ? ns : first_ns;
    }
    return first_ns;
}

/* A claim among them was answered: its free may go anywhere. */
void dli_pipe_end_rests(dli_pipe_t *pipe) {
    uint64_t now_ns = pipe->has_rests ? pipe->mux->env->now_ns() : 0;
    for (uint64_t at = pipe->head; pipe->has_rests && at != pipe->tail; at++) {
        dli_slot_t *slot = dli_pipe_slot(pipe, at);
        dli_redis_request_t *request = slot->request;
        if (rest_ns(request) <= now_ns) {
            slot->request = NULL;
            slot->intent = DLI_PLAIN;
            end_request(pipe, request);
        }
    }
}

/* The reply has another owner afterwards, or is left where it is. */
static dl_status_t answer(dli_pipe_t *pipe, redisReply **owned, dl_error_t *err) {
    dli_mux_t *mux = pipe->mux;
    const redisReply *reply = *owned;
    if (!dli_pipe_owes(pipe)) {
        return dl_driver_fail(err, DL_EPROTO, 0, "%s: the server says more than it was asked",
                              mux->endpoint->label);
    }
    dli_slot_t *slot = dli_pipe_slot(pipe, pipe->head);
    dl_status_t status = DL_OK;
    if (slot->kind == DLI_SLOT_PING) {
        pipe->pinged = false;
    } else if (slot->kind == DLI_SLOT_LABEL) {
        answer_label(&mux->label, reply, mux->env->now_ns());
    } else if (slot->kind == DLI_SLOT_KILL) {
        note_kill(pipe, slot->claim, reply);
    } else if (is_of_replica(reply)) {
        dli_pipe_retire_all(mux);
    }
    if (slot->request != NULL) {
        status = answer_request(pipe, slot->request, owned, err);
    }
    if (--slot->left > 0 || status != DL_OK) {
        return status;
    }
    dli_redis_request_t *request = slot->request;
    pipe->head++;
    pipe->given_up -= dli_slot_is_given_up(slot);
    if (request != NULL) {
        end_request(pipe, request);
    }
    return DL_OK;
}

/* Takes up to REPLIES. */
static size_t take(dli_pipe_t *pipe, redisReply *replies[REPLIES], dl_status_t *status, dl_error_t *err) {
    size_t n = 0;
    while (n < REPLIES) {
        replies[n] = NULL;
        *status = dli_conn_next(pipe->conn, &replies[n], err);
        if (*status != DL_OK || replies[n] == NULL) {
            break;
        }
        n++;
    }
    return n;
}

/* Replies have come. The fastest says how long a round trip usually takes: the greeting may have been slow.
 */
static void note_heard(dli_pipe_t *pipe) {
    uint64_t now_ns = pipe->mux->env->now_ns();
    pipe->used_ns = pipe->heard_ns = now_ns;
    if (dli_pipe_owes(pipe)) {
        uint64_t trip_ns = now_ns - dli_pipe_slot(pipe, pipe->head)->sent_ns;
        pipe->trip_ns = trip_ns < pipe->trip_ns ? trip_ns : pipe->trip_ns;
    }
}

dl_status_t dli_pipe_receive(dli_pipe_t *pipe, short revents, dl_error_t *err) {
    const dli_backend_env_t *core = pipe->mux->core;
    redisReply *replies[REPLIES];
    dl_status_t status, came = DL_OK;
    size_t n;
    core->unlock(core->core);
    status = dli_conn_step(pipe->conn, revents, err);
    do {
        dl_error_t end = {.status = DL_OK};
        n = status == DL_OK ? take(pipe, replies, &came, &end) : 0;
        core->lock(core->core);
        if (n > 0) {
            note_heard(pipe);
        }
        for (size_t i = 0; i < n && status == DL_OK; i++) {
            status = answer(pipe, &replies[i], err);
        }
        if (status == DL_OK && came != DL_OK) {
            status = came;
            *err = end;
        }
        core->unlock(core->core);
        for (size_t i = 0; i < n; i++) {
            freeReplyObject(replies[i]);
        }
    } while (status == DL_OK && n == REPLIES);
    core->lock(core->core);
    return status;
}

/* ---- a connection's beginning and end --------------------------------------------------------------- */

void dli_pipe_begin(dli_pipe_t *pipe) {
    pipe->ready = true;
    pipe->retired = pipe->pinged = pipe->has_rests = false;
    pipe->out = dli_conn_out(pipe->conn);
    pipe->written = dli_conn_queued(pipe->conn);
    pipe->facts = *dli_conn_facts(pipe->conn);
    pipe->trip_ns = pipe->facts.greeting_ns;
    struct pollfd fd;
    dli_conn_want(pipe->conn, &fd);
    pipe->fd = fd.fd;
    pipe->used_ns = pipe->began_ns; /* it may have lain half made, and the server have hung up */
    pipe->heard_ns = pipe->mux->env->now_ns();
    for (size_t i = 0; i < pipe->mux->kill_count; i++) {
        pipe->mux->kills[i].said &= ~(1u << number_of(pipe));
    }
}

static void add_kill(dli_pipe_t *pipe) {
    dli_mux_t *mux = pipe->mux;
    if (pipe->facts.run_id[0] == '\0' || strcmp(pipe->facts.run_id, mux->run_id) != 0 || mux->may_not_kill) {
        return;
    }
    if (mux->kill_count == DLI_KILLS_MAX) {
        forget_kill(mux, 0);
    }
    mux->kills[mux->kill_count].id = pipe->facts.client_id;
    mux->kills[mux->kill_count++].said = 0;
}

/* It had left: what the server did is not known, but for what only reads. */
static void end_sent(dli_pipe_t *pipe, dli_redis_request_t *request, dl_status_t status,
                     const dl_error_t *why) {
    dl_error_t unknown;
    if (status != DL_EPROTO && request->kind->intent != DLI_READ) {
        status =
            dl_driver_fail(&unknown, DL_EUNKNOWN, why->native, "the outcome is unknown: %s", why->message);
        why = &unknown;
    }
    end_with(pipe, request, status, why);
}

dli_conn_t *dli_pipe_end(dli_pipe_t *pipe, dl_status_t status, const dl_error_t *why) {
    dli_conn_t *conn = pipe->conn;
    uint64_t left = dli_conn_queued(conn) - dli_conn_unsent(conn);
    bool may_claim = false;
    pipe->conn = NULL; /* first: a forked child must not find one that is being freed */
    atomic_signal_fence(memory_order_release);
    pipe->ready = pipe->retired = pipe->pinged = false;
    uint64_t head = pipe->head, tail = pipe->tail;
    while (pipe->tail != head) {
        dli_slot_t slot = *dli_pipe_slot(pipe, --pipe->tail);
        bool has_left = slot.at < left;
        may_claim |= has_left && slot.intent == DLI_CLAIM && slot.kind == DLI_SLOT_REQUEST;
        if (slot.kind == DLI_SLOT_LABEL) {
            dli_label_lost(&pipe->mux->label);
        }
        if (slot.request != NULL && has_left) {
            end_sent(pipe, slot.request, status, why);
        } else if (slot.request != NULL) {
            push_front(&pipe->queue, slot.request);
        }
    }
    pipe->head = pipe->tail = tail; /* nothing waits behind what was here */
    pipe->given_up = 0;             /* the end of one may have had another withdrawn */
    if (may_claim) {
        add_kill(pipe);
    }
    return conn;
}
