/* requests.c - what the core asks of one server: each request is a script or two on one of the pipes. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/block.h"
#include "lock.h"

/* Less time than this is none to hear of replicas in. */
#define REPLICAS_NS (20 * NS_PER_MS)
/* Servers look only ten times a second whether the time of a WAIT is over. */
#define WAIT_LATE_MS 120
#define TOO_FEW_REPLICAS "only %lld of %lld replicas acknowledged the lock"

/* In the room of the core's request. */
typedef struct ask {
    dli_redis_request_t wire; /* first */
    dli_redis_t *redis;
    dl_status_t status; /* what the replies mean */
    int64_t replicas;   /* TRY: so many know of it */
    redisReply *seen;   /* FORCE: who holds it */
} ask_t;

static_assert(sizeof(ask_t) <= DLI_REQUEST_ROOM, "a request's room is too small");

static ask_t *ask_of(dli_redis_request_t *wire) {
    return (ask_t *)(void *)wire;
}

static void end(ask_t *a, dl_status_t status) {
    a->wire.asked->ended(a->wire.asked, status);
}

static dl_error_t *err_of(const ask_t *a) {
    return a->wire.asked->err != NULL ? a->wire.asked->err : &a->redis->unread;
}

/* An answer that made no sense: the request may have been carried out all the same. */
static dl_status_t in_doubt(dl_status_t status) {
    return status == DL_EPROTO ? DL_EUNKNOWN : status;
}

/* As the replies were judged; otherwise for a reason of the link's. */
static void ended(dli_redis_request_t *wire, dl_status_t status, const dl_error_t *why) {
    ask_t *a = ask_of(wire);
    if (status != DL_OK) {
        dl_error_t *err = err_of(a);
        *err = *why;
        err->status = a->status = wire->kind->intent == DLI_READ ? status : in_doubt(status);
    }
    end(a, a->status);
}

/* false: it makes no sense. */
static bool judge_error(ask_t *a, const redisReply *reply) {
    a->status = dli_redis_fail(a->redis, &a->wire.asked->with, reply, err_of(a));
    return reply->type == REDIS_REPLY_ERROR;
}

/* ---- pipes ------------------------------------------------------------------------------------------ */

/* Owners are numbered, one after the other; those of owned handles behind a letter. */
static size_t wish(const char *owner) {
    const char *number = owner != NULL ? strrchr(owner, ':') : NULL;
    return number != NULL ? strtoul(number + 1 + (number[1] == 't'), NULL, 10) : 0;
}

/* A claim that waits for replicas. */
static bool is_durable(const ask_t *a) {
    return a->redis->min_replicas > 0 && a->wire.asked->kind == DLI_ASK_TRY;
}

/* Renewals have a pipe of their own; so have claims that wait for replicas. Else what one thread asks has
 * one, where that is connected. */
static uint32_t pipe_of(const ask_t *a) {
    const dli_redis_t *redis = a->redis;
    const dli_request_t *asked = a->wire.asked;
    bool waits = a->wire.count > 1;
    size_t first = waits ? redis->connections + 1 : 0;
    size_t n = waits ? 2 * redis->connections : redis->connections;
    return asked->kind == DLI_ASK_RENEW
               ? (uint32_t)redis->connections
               : (uint32_t)dli_mux_choose(&a->redis->mux, first, n, wish(asked->with.owner));
}

/* ---- taking ----------------------------------------------------------------------------------------- */

static uint64_t left_ms(const ask_t *a) {
    uint64_t now = a->redis->env->now_ns(), deadline_ns = a->wire.asked->with.deadline_ns;
    return deadline_ns > now ? (deadline_ns - now) / NS_PER_MS : 0;
}

/* At most half of what is left of the call. WAIT takes 0 as for ever. */
static uint32_t replicas_wait_ms(const ask_t *a) {
    uint64_t half_ms = left_ms(a) / 2, most_ms = (uint64_t)a->redis->replica_timeout_ms;
    uint64_t wait_ms = half_ms < most_ms ? half_ms : most_ms;
    return wait_ms > 0 ? (uint32_t)wait_ms : 1;
}

/* The script, and behind it on the same connection the wait for the replicas. A level may find that the hold
 * is over, and then tells those who wait. */
static void encode_claim(dli_redis_request_t *wire, bool with_source, dli_commands_t *commands) {
    ask_t *a = ask_of(wire);
    const dli_request_t *asked = wire->asked;
    const char *letters = asked->with.level > 1 ? "kt|ohvxfcp"
                          : asked->joins        ? "kt|ohvxfbq1"
                          : asked->polls        ? "kt|ohvxfbq2"
                                                : "kt|ohvxfbq0";
    char replicas[24], wait_ms[24];
    dli_redis_encode(a->redis, &asked->with, a->redis->layout->acquire, letters, NULL, with_source, commands);
    if (!is_durable(a)) {
        return;
    }
    /* A server that is late with the end of its wait is given up while there is still a quarter of the time
     * to free the lock in, so that the call can end with a clear no. */
    wire->slow_ms = replicas_wait_ms(a) + WAIT_LATE_MS;
    wire->rest_ms = (uint32_t)(left_ms(a) / 4 * 3 + 1);
    const dli_slice_t argv[3] = {dli_slice("WAIT"), dli_slice_int(replicas, a->redis->min_replicas),
                                 dli_slice_int(wait_ms, wire->slow_ms - WAIT_LATE_MS)};
    dli_commands_add(commands, 3, argv);
}

/* Once. */
static void warn_of_queue(dli_redis_t *redis) {
    if (!redis->warned_of_queue) {
        redis->warned_of_queue = true;
        dli_redis_report(redis->env, redis->core, DL_LOG_WARNING,
                         "the server keeps no queue at '%s" DLI_QUEUE_INFIX
                         "*', so waiters race for each lock: see `dlock init --print`",
                         redis->token_key_shown);
    }
}

/* When a process that waits asks again: its entry is forgotten after 3 s, and nobody tells it if the one
 * before does not come for its reservation. At random, so that not all ask at once. */
#define ASK_AGAIN_MS 1000

static void note_place(ask_t *a, int64_t place) {
    dli_request_t *asked = a->wire.asked;
    if (!asked->joins) {
        return;
    }
    uint32_t draw = 0;
    (void)a->redis->env->random(&draw, sizeof draw);
    int64_t again_ms = ASK_AGAIN_MS - draw % (ASK_AGAIN_MS / 4);
    asked->in_line = place > 0;
    if (place < 0) {
        warn_of_queue(a->redis);
    } else if (asked->grant->busy_ms > again_ms) {
        asked->grant->busy_ms = again_ms;
    }
}

/* false: it makes no sense. */
static bool judge_busy(ask_t *a, const redisReply *reply) {
    dl_grant_t *grant = a->wire.asked->grant;
    dl_error_t *err = err_of(a);
    int64_t left_ms, ours, place;
    if (reply->elements < 4 || !dli_reply_int(reply->element[3], &place) ||
        !dli_reply_int(reply->element[0], &left_ms) || !dli_reply_int(reply->element[2], &ours)) {
        return false;
    }
    grant->busy_ms = left_ms < 0 ? -1 : left_ms;
    grant->busy_is_dlock = ours == 1;
    a->wire.asked->unheard = ours != 1 && !a->redis->layout->hears_peers;
    note_place(a, place);
    const char *who = !ours || reply->element[1]->len > 0 ? "held by another owner" : "kept for who waits";
    a->status = left_ms < 0 ? dl_driver_fail(err, DL_EBUSY, 0, "%s, without an end", who)
                            : dl_driver_fail(err, DL_EBUSY, 0, "%s for %s more", who,
                                             dl_driver_duration(left_ms).text);
    return true;
}

static bool judge_claim(ask_t *a, const redisReply *reply) {
    const dl_request_t *with = &a->wire.asked->with;
    dl_grant_t *grant = a->wire.asked->grant;
    dl_error_t *err = err_of(a);
    int64_t number;
    bool fresh = with->level == 1;
    if (reply->type == REDIS_REPLY_ARRAY) {
        return judge_busy(a, reply);
    }
    if (!fresh && dli_redis_is_foreign(reply)) {
        a->status = dl_driver_fail(err, DL_ELOST, 0, "something else is where this hold was");
    } else if (reply->type == REDIS_REPLY_ERROR) {
        return judge_error(a, reply);
    } else if (!dli_reply_int(reply, &number) || number < 0 ||
               (fresh && (uint64_t)number <= with->token_floor)) {
        return false; /* or from a server that is out of its mind; it may have the hold */
    } else if (number == 0) {
        a->status =
            dl_driver_fail(err, DL_ELOST, 0, "the lock was lost: this hold is no longer on the server");
    } else {
        grant->token = fresh ? (uint64_t)number : 0;
        grant->tokens = fresh ? dli_block(with, DLI_EXACT_END - 1) : 0;
        grant->sent_ns = a->wire.sent_ns;
        grant->session_fd = -1;
        a->status = DL_OK;
    }
    return true;
}

static bool claim_replied(dli_redis_request_t *wire, const redisReply *reply) {
    ask_t *a = ask_of(wire);
    if (wire->got == 1) {
        bool makes_sense = judge_claim(a, reply);
        wire->rest_ms = a->status == DL_OK ? wire->rest_ms : DLI_NO_REST; /* no replica makes it a yes */
        return makes_sense;
    }
    if (!dli_reply_int(reply, &a->replicas) && a->status == DL_OK) {
        a->replicas = -1;
        (void)dli_reply_unexpected(reply, "WAIT", err_of(a));
    }
    return reply->type == REDIS_REPLY_INTEGER || reply->type == REDIS_REPLY_ERROR;
}

static void begin_as(ask_t *a, const dli_redis_kind_t *kind) {
    const dli_backend_env_t *core = a->redis->core;
    a->wire.kind = kind;
    dli_mux_begin(&a->redis->mux, &a->wire);
    if (a->wire.leads) { /* it sleeps beside who has read for it, and may have to read here by itself */
        core->look_again(core->core, a->wire.asked);
    }
}

static const dli_redis_kind_t refuse_kind;

/* At most once a second. */
static void warn_of_replicas(dli_redis_t *redis, int64_t known) {
    uint64_t now_ns = redis->env->now_ns();
    if (known < redis->min_replicas &&
        (redis->warned_ns == 0 || now_ns - redis->warned_ns >= 1000 * NS_PER_MS)) {
        redis->warned_ns = now_ns;
        dli_redis_report(redis->env, redis->core, DL_LOG_WARNING, TOO_FEW_REPLICAS,
                         (long long)(known > 0 ? known : 0), (long long)redis->min_replicas);
    }
}

/* The lock is taken. Do as many replicas know of it as have to? After DL_EIO the core frees nothing, so a
 * lock that is refused has to be gone for sure by then. */
static void confirm(ask_t *a) {
    dli_redis_t *redis = a->redis;
    if (a->replicas >= redis->min_replicas || redis->warns_of_shortfall) {
        warn_of_replicas(redis, a->replicas);
        end(a, DL_OK);
        return;
    }
    a->wire.slow_ms = a->wire.rest_ms = 0;
    a->wire.count = 1;
    a->wire.pipe = pipe_of(a);
    begin_as(a, &refuse_kind);
}

static void claim_ended(dli_redis_request_t *wire, dl_status_t status, const dl_error_t *why) {
    ask_t *a = ask_of(wire);
    if (wire->got > 0 && status != DL_OK && status != DL_EPROTO && a->status != DL_OK) {
        status = DL_OK; /* the answer counts, also where that to the WAIT behind it is missing */
    }
    if (status == DL_OK && a->status == DL_OK && is_durable(a)) {
        confirm(a);
    } else {
        ended(wire, status, why);
    }
}

/* There has to be time to hear of the replicas, and to free the lock. */
static bool is_claim_too_late(const dli_redis_request_t *wire) {
    const ask_t *a = (const ask_t *)(const void *)wire;
    return is_durable(a) && a->redis->env->now_ns() + REPLICAS_NS > wire->asked->with.deadline_ns;
}

static const dli_redis_kind_t claim_kind = {.intent = DLI_CLAIM,
                                            .says_label = true,
                                            .encode = encode_claim,
                                            .replied = claim_replied,
                                            .ended = claim_ended,
                                            .is_too_late = is_claim_too_late};

/* ---- freeing ---------------------------------------------------------------------------------------- */

static void encode_free(dli_redis_request_t *wire, bool with_source, dli_commands_t *commands) {
    const dli_redis_t *redis = ask_of(wire)->redis;
    const dli_request_t *asked = wire->asked;
    dl_request_t with = asked->with;
    with.level = wire->kind == &refuse_kind ? 0 : with.level;
    dli_redis_encode(redis, &with, redis->layout->release, asked->joins ? "k|ohvcpq1" : "k|ohvcpq0", NULL,
                     with_source, commands);
}

static bool release_replied(dli_redis_request_t *wire, const redisReply *reply) {
    ask_t *a = ask_of(wire);
    dl_error_t *err = err_of(a);
    int64_t number;
    if (dli_reply_int(reply, &number)) {
        a->status = DL_OK;
        a->wire.asked->in_line = number == 2;
        return number >= 0 && number <= 2;
    }
    bool is_nil = reply->type == REDIS_REPLY_NIL, by_force = a->wire.asked->kind == DLI_ASK_FORCE;
    if (is_nil && by_force) {
        a->status = dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody held it");
    } else if (is_nil || (dli_redis_is_foreign(reply) && !by_force)) {
        a->status =
            dl_driver_fail(err, DL_ELOST, 0, "the lock was lost: this hold is no longer on the server");
    } else {
        return judge_error(a, reply);
    }
    return true;
}

static const dli_redis_kind_t release_kind = {
    .intent = DLI_FREE, .encode = encode_free, .replied = release_replied, .ended = ended};

static void refuse_ended(dli_redis_request_t *wire, dl_status_t status, const dl_error_t *why) {
    ask_t *a = ask_of(wire);
    (void)why;
    char text[160];
    snprintf(text, sizeof text, TOO_FEW_REPLICAS, (long long)(a->replicas > 0 ? a->replicas : 0),
             (long long)a->redis->min_replicas);
    if (status != DL_OK || (a->status != DL_OK && a->status != DL_ELOST)) {
        end(a, dl_driver_fail(err_of(a), DL_EUNKNOWN, 0, "%s, and freeing it has no clear outcome", text));
    } else if (a->replicas < 0 && a->status == DL_OK) {
        end(a, err_of(a)->status); /* WAIT was refused, and how is there */
    } else {
        a->wire.asked->refused = true;
        end(a, dl_driver_fail(err_of(a), DL_EIO, 0, "%s", text));
    }
}

static const dli_redis_kind_t refuse_kind = {
    .intent = DLI_FREE, .encode = encode_free, .replied = release_replied, .ended = refuse_ended};

/* ---- freeing by force ------------------------------------------------------------------------------- */

/* By force reservations are seen, too. */
static void encode_look(dli_redis_request_t *wire, bool with_source, dli_commands_t *commands) {
    const dli_redis_t *redis = ask_of(wire)->redis;
    const char *letters = wire->asked->kind == DLI_ASK_FORCE ? "k|" : "k|l";
    dli_redis_encode(redis, &wire->asked->with, redis->layout->inspect, letters, NULL, with_source, commands);
}

/* What was seen and nothing else: a request that arrives late, when others have the lock, does them no harm.
 */
static void encode_force(dli_redis_request_t *wire, bool with_source, dli_commands_t *commands) {
    const ask_t *a = ask_of(wire);
    const redisReply *value = a->seen->element[1];
    const dli_slice_t seen = {value->str, value->len};
    dli_redis_encode(a->redis, &wire->asked->with, a->redis->layout->release, "k|.-0cpq1", &seen, with_source,
                     commands);
}

static bool look_replied(dli_redis_request_t *wire, const redisReply *reply) {
    dl_lock_info_t info;
    if (dli_redis_read_info(reply, &info)) {
        ask_of(wire)->status = DL_OK;
        return true;
    }
    return reply->type != REDIS_REPLY_INTEGER && release_replied(wire, reply);
}

static void force_ended(dli_redis_request_t *wire, dl_status_t status, const dl_error_t *why) {
    ask_t *a = ask_of(wire);
    freeReplyObject(a->seen);
    a->seen = NULL;
    ended(wire, status, why);
}

static const dli_redis_kind_t force_kind = {
    .intent = DLI_FREE, .encode = encode_force, .replied = release_replied, .ended = force_ended};

static void look_ended(dli_redis_request_t *wire, dl_status_t status, const dl_error_t *why) {
    ask_t *a = ask_of(wire);
    if (status != DL_OK || a->status != DL_OK) {
        force_ended(wire, status, why);
        return;
    }
    wire->kept = NULL;
    begin_as(a, &force_kind);
}

static const dli_redis_kind_t look_kind = {
    .intent = DLI_READ, .encode = encode_look, .replied = look_replied, .ended = look_ended};

/* ---- renewing --------------------------------------------------------------------------------------- */

dl_request_t dli_renewal_request(const dl_renewal_t *r) {
    return (dl_request_t){.name = r->name,
                          .name_len = r->name_len,
                          .owner = r->owner,
                          .hold_id = r->hold_id,
                          .lease_ms = r->lease_ms};
}

static void encode_renewal(dli_redis_request_t *wire, bool with_source, dli_commands_t *commands) {
    const dli_redis_t *redis = ask_of(wire)->redis;
    for (size_t i = 0; i < wire->asked->n; i++) {
        const dl_request_t with = dli_renewal_request(&wire->asked->renewals[i]);
        dli_redis_encode(redis, &with, redis->layout->acquire, "kt|oh0x-cp", NULL, with_source && i == 0,
                         commands);
    }
}

static bool renewal_replied(dli_redis_request_t *wire, const redisReply *reply) {
    const ask_t *a = ask_of(wire);
    dl_renewal_t *r = &wire->asked->renewals[wire->got - 1];
    dl_error_t err;
    int64_t number;
    r->sent_ns = wire->sent_ns;
    if (dli_reply_int(reply, &number)) {
        r->status = number == 1 ? DL_OK : number == 0 ? DL_ELOST : DL_EUNKNOWN;
        return number == 0 || number == 1;
    }
    r->status = dli_redis_is_foreign(reply) ? DL_ELOST : dli_redis_fail(a->redis, NULL, reply, &err);
    return reply->type == REDIS_REPLY_ERROR;
}

static void renewal_ended(dli_redis_request_t *wire, dl_status_t status, const dl_error_t *why) {
    (void)why;
    for (size_t i = wire->forgotten ? 0 : wire->got; i < wire->asked->n && status != DL_OK; i++) {
        wire->asked->renewals[i].status = in_doubt(status);
    }
    end(ask_of(wire), DL_OK);
}

static const dli_redis_kind_t renewal_kind = {.intent = DLI_PLAIN,
                                              .says_label = true,
                                              .encode = encode_renewal,
                                              .replied = renewal_replied,
                                              .ended = renewal_ended};

/* ---- looking ---------------------------------------------------------------------------------------- */

static bool inspect_replied(dli_redis_request_t *wire, const redisReply *reply) {
    ask_t *a = ask_of(wire);
    dl_lock_info_t *info = a->wire.asked->info;
    *info = (dl_lock_info_t){.size = info->size, .remaining_ms = -1};
    a->status = DL_OK;
    return reply->type == REDIS_REPLY_NIL || dli_redis_read_info(reply, info) || judge_error(a, reply);
}

static const dli_redis_kind_t inspect_kind = {
    .intent = DLI_READ, .encode = encode_look, .replied = inspect_replied, .ended = ended};

/* ---- what the core calls ---------------------------------------------------------------------------- */

/* Nothing of it can be sent. */
static dl_status_t check(const ask_t *a) {
    const dli_request_t *request = a->wire.asked;
    const dl_request_t *with = &request->with;
    dl_error_t *err = err_of(a);
    bool takes = request->kind <= DLI_ASK_LEVEL;
    if (with->hold_id >= DLI_EXACT_END || (takes && with->token_floor >= DLI_EXACT_END - 1)) {
        return dl_driver_fail(err, DL_ELIMIT, 0, "hold id or token floor is too large for this server");
    }
    if (takes && (with->lease_ms < 1 || with->lease_ms > DL_LEASE_MAX_MS)) {
        return dl_driver_fail(err, DL_EINVAL, 0, "a lease of %s", dl_driver_duration(with->lease_ms).text);
    }
    if (is_claim_too_late(&a->wire)) {
        return dl_driver_fail(err, DL_EIO, 0, "no time is left to hear from %lld replicas",
                              (long long)a->redis->min_replicas);
    }
    return DL_OK;
}

static ask_t *prepare(dli_redis_t *redis, dli_request_t *request) {
    static const dli_redis_kind_t *const kinds[] = {
        [DLI_ASK_TRY] = &claim_kind,       [DLI_ASK_LEVEL] = &claim_kind,     [DLI_ASK_RENEW] = &renewal_kind,
        [DLI_ASK_RELEASE] = &release_kind, [DLI_ASK_INSPECT] = &inspect_kind, [DLI_ASK_FORCE] = &look_kind,
    };
    ask_t *a = (ask_t *)(void *)request->room;
    *a = (ask_t){.redis = redis, .wire.asked = request};
    a->wire.leads = request->leads;
    a->wire.kind = kinds[request->kind];
    a->wire.count = request->kind == DLI_ASK_RENEW ? request->n : is_durable(a) ? 2 : 1;
    a->wire.claim = request->with.hold_id;
    a->wire.kept = request->kind == DLI_ASK_FORCE ? &a->seen : NULL;
    a->wire.pipe = pipe_of(a);
    a->status = check(a);
    return a;
}

void dli_redis_begin(void *state, dli_request_t *request) {
    dli_redis_t *redis = state;
    ask_t *a = prepare(redis, request);
    if (a->status == DL_OK) {
        dli_mux_begin(&redis->mux, &a->wire);
    } else {
        end(a, a->status); /* nothing of it can be sent */
    }
}

bool dli_redis_withdraw(void *state, dli_request_t *request) {
    dli_redis_t *redis = state;
    ask_t *a = (ask_t *)(void *)request->room;
    bool was_sent = dli_mux_withdraw(&redis->mux, &a->wire) || a->wire.kind == &refuse_kind;
    freeReplyObject(a->seen);
    return was_sent && a->wire.kind->intent != DLI_READ; /* that leaves nothing in doubt */
}

bool dli_redis_flush(void *state) {
    dli_redis_t *redis = state;
    return dli_mux_flush(&redis->mux);
}

int dli_redis_lead_fds(void *state, dli_request_t *request, struct pollfd *fds, bool late, uint64_t *term,
                       uint64_t *until_ns) {
    dli_redis_t *redis = state;
    ask_t *a = (ask_t *)(void *)request->room;
    return dli_mux_lead_fds(&redis->mux, &a->wire, fds, late, term, until_ns);
}

bool dli_redis_lead(void *state, uint64_t term, const struct pollfd *fds, size_t n) {
    dli_redis_t *redis = state;
    return dli_mux_lead(&redis->mux, term, fds, n);
}

dli_request_t *dli_redis_end_lead(void *state, uint64_t term, uint64_t *next) {
    dli_redis_t *redis = state;
    dli_redis_request_t *heir = dli_mux_end_lead(&redis->mux, term, next);
    return heir != NULL ? heir->asked : NULL;
}

void dli_redis_attach(void *state, const dli_backend_env_t *core) {
    dli_redis_t *redis = state;
    redis->core = core;
}
