/* exchange.c - carries exchanges out: a connection for each, what goes ahead, sending, replies, giving up. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_MS 1000000u
/* A connection that was used this recently is taken for alive without a look: the look costs a system
 * call. Had the server gone away just now, the exchange would be unknown instead of sent anew; never
 * wrong. */
#define TRUSTED_NS NS_PER_MS
/* No answer for so long, and what is idle is not trusted any more. Those who wait for less time say nothing
 * about the others' connections. */
#define SILENCE_NS (200 * NS_PER_MS)
/* No server is farther away than this; one that took longer was busy for once. */
#define FARTHEST_NS (300 * NS_PER_MS)

/* ---- how an exchange ends --------------------------------------------------------------------------- */

static void finish(dli_exchange_t *x, dl_status_t status) {
    dli_kills_free(x->kills);
    x->kills = NULL;
    x->status = status;
    x->step = DLI_STEP_DONE;
}

/* May a byte of the caller's have left? */
static bool has_left(const dli_exchange_t *x) {
    return x->step == DLI_STEP_TALKING && dli_conn_unsent(x->member->conn) < x->commands->len;
}

/* Parts with a connection that is of no use any more; err is filled. true: nothing of the caller's had
 * left, and another connection may do better. Otherwise the exchange is done. */
static bool lose(dli_link_t *link, dli_exchange_t *x, dl_status_t status) {
    bool left = has_left(x);
    if (left && x->intent == DLI_CLAIM) {
        dli_condemned_add(&link->pool.condemned, dli_conn_facts(x->member->conn));
    }
    if (x->says_label) {
        dli_label_lost(&link->pool.label);
        x->says_label = false;
    }
    dli_pool_drop(&link->pool, x->member, true);
    x->member = NULL;
    if (left && status != DL_EPROTO && x->intent != DLI_READ) {
        char why[sizeof x->err->message];
        memcpy(why, x->err->message, sizeof why);
        status = dl_driver_fail(x->err, DL_EUNKNOWN, x->err->native, "the outcome is unknown: %s", why);
    }
    if (left || x->is_fresh || status == DL_ENOMEM || status == DL_ECANCELED) {
        finish(x, status);
        return false;
    }
    dli_kills_free(x->kills);
    x->kills = NULL;
    return true;
}

static bool is_of_replica(const redisReply *reply) {
    return reply->type == REDIS_REPLY_ERROR &&
           (dli_reply_is_error(reply, "READONLY") || dli_reply_is_error(reply, "MASTERDOWN"));
}

/* Has the server said no more than it was asked, as far as it was read, and not hung up? */
static bool is_in_step(const dli_member_t *member) {
    redisReply *more = NULL;
    dl_error_t err;
    dl_status_t status = dli_conn_next(member->conn, &more, &err);
    bool in_step = status == DL_OK && more == NULL;
    freeReplyObject(more);
    return in_step;
}

static void succeed(dli_link_t *link, dli_exchange_t *x) {
    dli_member_t *member = x->member;
    bool failed_over = false;
    for (size_t i = 0; i < x->got; i++) {
        failed_over = failed_over || is_of_replica(x->replies[i]);
    }
    x->member = NULL;
    if (failed_over) {
        dli_pool_failed_over(&link->pool, member);
    }
    if (failed_over || !is_in_step(member)) {
        dli_pool_drop(&link->pool, member, true);
    } else {
        dli_pool_give_back(&link->pool, member);
    }
    finish(x, DL_OK);
}

/* ---- sending ---------------------------------------------------------------------------------------- */

/* What goes ahead and the caller's commands in one write. */
static dl_status_t send_behind(dli_exchange_t *x, const dli_commands_t *ahead) {
    char *bytes = malloc(ahead->len + x->commands->len);
    if (bytes == NULL) {
        return dl_driver_fail(x->err, DL_ENOMEM, 0, "out of memory");
    }
    memcpy(bytes, ahead->bytes, ahead->len);
    memcpy(bytes + ahead->len, x->commands->bytes, x->commands->len);
    dl_status_t status = dli_conn_send(x->member->conn, bytes, ahead->len + x->commands->len, x->err);
    free(bytes);
    return status;
}

/* Nothing of the caller's may fail because of the label: without memory it waits for the next. */
static dl_status_t send_behind_label(dli_link_t *link, dli_exchange_t *x) {
    dl_status_t status = send_behind(x, &link->pool.label.say);
    x->says_label = status != DL_ENOMEM || dli_conn_unsent(x->member->conn) > 0;
    if (!x->says_label) {
        dli_label_lost(&link->pool.label);
        status = dli_conn_send(x->member->conn, x->commands->bytes, x->commands->len, x->err);
    }
    return status;
}

static dl_status_t send_commands(dli_link_t *link, dli_exchange_t *x) {
    bool is_hold = x->intent == DLI_CLAIM || (x->intent == DLI_PLAIN && x->lane == DLI_LANE_RENEWALS);
    if (x->kills != NULL) {
        return send_behind(x, &x->kills->commands);
    }
    return is_hold && dli_label_is_due(&link->pool.label, x->sent_ns)
               ? send_behind_label(link, x)
               : dli_conn_send(x->member->conn, x->commands->bytes, x->commands->len, x->err);
}

/* What is to be sent is there, or it is said why not. */
static dl_status_t prepare(dli_exchange_t *x) {
    if (x->prepare != NULL) {
        dl_status_t status = x->prepare(x, dli_conn_facts(x->member->conn), x->err);
        if (status != DL_OK) {
            return status;
        }
        for (size_t i = 0; i < x->commands->count; i++) {
            x->replies[i] = NULL;
        }
    }
    return x->commands->out_of_memory ? dl_driver_fail(x->err, DL_ENOMEM, 0, "out of memory") : DL_OK;
}

/* DL_OK: it is under way, or was refused by its caller and is done. */
static dl_status_t send_all(dli_link_t *link, dli_exchange_t *x) {
    const dl_driver_env_t *env = link->pool.env;
    dl_status_t ready = prepare(x);
    if (ready != DL_OK) {
        dli_pool_give_back(&link->pool, x->member); /* there is nothing wrong with it */
        x->member = NULL;
        finish(x, ready);
        return DL_OK;
    }
    if (x->intent == DLI_FREE) {
        dl_status_t status =
            dli_condemned_kills(&link->pool.condemned, dli_conn_facts(x->member->conn), &x->kills, x->err);
        if (status != DL_OK) {
            return status;
        }
    }
    x->sent_ns = env->now_ns();
    dl_status_t status = send_commands(link, x);
    /* Without memory nothing may even have been queued; then no byte of it can have left. */
    if (status != DL_ENOMEM || dli_conn_unsent(x->member->conn) > 0) {
        x->step = DLI_STEP_TALKING;
    }
    if (status == DL_OK) {
        env->count(env->core, DL_COUNT_ROUND_TRIP, 1);
    }
    return status;
}

/* ---- getting a connection --------------------------------------------------------------------------- */

/* Is this idle connection alive, by what can be seen from here? */
static bool is_usable(dli_link_t *link, dli_member_t *member, uint64_t now_ns) {
    dl_error_t err;
    if (member->owed > 0) {
        return dli_keeper_read_owed(member, POLLIN, &err) == DL_OK &&
               (member->owed == 0 ? dli_conn_is_quiet(member->conn)
                                  : !dli_keeper_is_late(&link->pool, member, now_ns));
    }
    return (now_ns >= member->used_ns && now_ns - member->used_ns < TRUSTED_NS) ||
           dli_conn_is_quiet(member->conn);
}

/* The connection is there. */
static dl_status_t use(dli_link_t *link, dli_exchange_t *x) {
    static const char ping[] = "*1\r\n$4\r\nPING\r\n";
    x->step = DLI_STEP_TESTING;
    x->asked_ns = link->pool.env->now_ns();
    if (!link->pool.options.test_on_borrow || x->is_fresh) {
        return send_all(link, x);
    }
    x->member->owed++;
    return dli_conn_send(x->member->conn, ping, sizeof ping - 1, x->err);
}

/* Would the answer to a claim come too late, by what the greeting took? Then the next call shall have the
 * connection: otherwise there would be an unknown outcome and no connection, each time. */
static bool is_in_vain(const dli_link_t *link, const dli_exchange_t *x) {
    uint64_t now_ns = link->pool.env->now_ns(), trip_ns = dli_conn_facts(x->member->conn)->greeting_ns;
    trip_ns = trip_ns < FARTHEST_NS ? trip_ns : FARTHEST_NS;
    return x->intent == DLI_CLAIM && !x->member->was_left &&
           (now_ns >= x->deadline_ns || x->deadline_ns - now_ns < trip_ns);
}

static void use_if_ready(dli_link_t *link, dli_exchange_t *x) {
    if (!dli_conn_is_ready(x->member->conn)) {
        return;
    }
    dli_pool_connected(&link->pool, x->member);
    dli_keeper_wake(&link->keeper);
    if (is_in_vain(link, x)) {
        dli_pool_give_back(&link->pool, x->member);
        x->member = NULL;
        finish(x, dl_driver_fail(x->err, DL_EIO, 0, "%s: no time is left after connecting",
                                 link->pool.endpoint->label));
        return;
    }
    dl_status_t status = use(link, x);
    if (status != DL_OK) {
        (void)lose(link, x, status); /* a fresh one is not replaced */
    }
}

static void connect_anew(dli_link_t *link, dli_exchange_t *x) {
    x->is_fresh = true;
    dl_status_t status = dli_pool_connect(&link->pool, x->lane, true, &x->member, x->err);
    x->step = DLI_STEP_CONNECTING;
    if (status == DL_OK) {
        use_if_ready(link, x); /* a server nearby may have answered already */
    } else {
        finish(x, status);
    }
}

/* Takes idle connections until one is good; else a place to make one, or in the queue. */
static void obtain(dli_link_t *link, dli_exchange_t *x, uint64_t now_ns) {
    for (;;) {
        dl_status_t status = DL_OK;
        if (x->member == NULL) {
            status = dli_pool_borrow(&link->pool, x->lane, now_ns, &x->member, &x->ticket, x->err);
        }
        if (status != DL_OK) {
            finish(x, status);
            return;
        }
        if (x->ticket != NULL) {
            x->step = DLI_STEP_QUEUED;
            return;
        }
        if (x->member == NULL) {
            connect_anew(link, x);
            return;
        }
        if (!is_usable(link, x->member, now_ns)) {
            dli_pool_drop(&link->pool, x->member, true);
            x->member = NULL;
            continue;
        }
        status = use(link, x);
        if (status == DL_OK || !lose(link, x, status)) {
            return;
        }
    }
}

void dli_link_begin(dli_link_t *link, dli_exchange_t *x, dl_error_t *err) {
    const dl_driver_env_t *env = link->pool.env;
    uint64_t now_ns = env->now_ns();
    for (size_t i = 0; x->prepare == NULL && i < x->commands->count; i++) {
        x->replies[i] = NULL;
    }
    x->status = DL_OK;
    x->err = err;
    x->member = NULL;
    x->ticket = NULL;
    x->kills = NULL;
    x->says_label = false;
    x->got = 0;
    x->sent_ns = 0;
    x->asked_ns = 0;
    x->is_fresh = false;
    x->borrow_until_ns =
        x->is_patient ? x->deadline_ns : now_ns + (uint64_t)link->pool.options.borrow_timeout_ms * NS_PER_MS;
    if (x->prepare == NULL && x->commands->out_of_memory) {
        finish(x, dl_driver_fail(err, DL_ENOMEM, 0, "out of memory"));
    } else if (now_ns >= x->deadline_ns) {
        finish(x, dl_driver_fail(err, DL_EIO, 0, "no time is left to send a request"));
    } else {
        obtain(link, x, now_ns);
    }
}

/* ---- in steps --------------------------------------------------------------------------------------- */

static void step_queued(dli_link_t *link, dli_exchange_t *x) {
    const dli_pool_t *pool = &link->pool;
    uint64_t now_ns = pool->env->now_ns();
    if (dli_pool_collect(&link->pool, &x->ticket, &x->member)) {
        if (x->member == NULL) {
            connect_anew(link, x);
        } else {
            obtain(link, x, now_ns);
        }
    } else if (now_ns >= x->borrow_until_ns) {
        dli_link_abandon(link, x, DL_EIO);
    }
}

static void step_connecting(dli_link_t *link, dli_exchange_t *x, short revents) {
    dl_status_t status = dli_conn_step(x->member->conn, revents, x->err);
    if (status != DL_OK) {
        dli_pool_connect_failed(&link->pool, x->member, status, x->err);
        x->member = NULL;
        finish(x, status);
    } else {
        use_if_ready(link, x);
    }
}

static void step_testing(dli_link_t *link, dli_exchange_t *x, short revents) {
    dl_status_t status = dli_keeper_read_owed(x->member, revents, x->err);
    if (status == DL_OK && x->member->owed == 0) {
        status = send_all(link, x);
    }
    if (status != DL_OK && lose(link, x, status)) {
        obtain(link, x, link->pool.env->now_ns());
    }
}

/* Answers to what went ahead come first. */
static void take_reply(dli_link_t *link, dli_exchange_t *x, redisReply *reply) {
    dli_pool_t *pool = &link->pool;
    if (x->says_label) {
        dli_label_answer(&pool->label, reply, pool->env->now_ns());
        x->says_label = false;
        freeReplyObject(reply);
        return;
    }
    if (x->kills == NULL || x->kills->answered == x->kills->count) {
        x->replies[x->got++] = reply;
        return;
    }
    if (dli_condemned_answer(&pool->condemned, dli_conn_facts(x->member->conn), x->kills, reply)) {
        char text[640];
        snprintf(
            text, sizeof text,
            "%s: this user may not kill connections (CLIENT KILL); a claim that was given up can still be "
            "carried out after its release, and then lasts until its lease ends: %.200s",
            pool->endpoint->label, reply->str);
        pool->env->report(pool->env->core, DL_LOG_WARNING, text);
    }
    freeReplyObject(reply);
}

static void step_talking(dli_link_t *link, dli_exchange_t *x, short revents) {
    dl_status_t status = dli_keeper_read_owed(x->member, revents, x->err);
    while (status == DL_OK && x->member->owed == 0 && x->got < x->commands->count) {
        redisReply *reply = NULL;
        status = dli_conn_next(x->member->conn, &reply, x->err);
        if (reply == NULL) {
            break;
        }
        take_reply(link, x, reply);
    }
    if (x->got == x->commands->count) {
        succeed(link, x);
    } else if (status != DL_OK && lose(link, x, status)) {
        obtain(link, x, link->pool.env->now_ns());
    }
}

void dli_link_step(dli_link_t *link, dli_exchange_t *x, short revents) {
    switch (x->step) {
    case DLI_STEP_QUEUED:
        step_queued(link, x);
        break;
    case DLI_STEP_CONNECTING:
        step_connecting(link, x, revents);
        break;
    case DLI_STEP_TESTING:
        step_testing(link, x, revents);
        break;
    case DLI_STEP_TALKING:
        step_talking(link, x, revents);
        break;
    default:
        break;
    }
}

void dli_link_abandon(dli_link_t *link, dli_exchange_t *x, dl_status_t why) {
    const char *label = link->pool.endpoint->label;
    if (x->step == DLI_STEP_DONE) {
        return;
    }
    if (why == DL_ECANCELED) {
        dl_driver_fail(x->err, why, 0, "%s: cancelled", label);
    } else if (x->step == DLI_STEP_QUEUED) {
        dl_driver_fail(x->err, why, EAGAIN, "%s: all %lld connections are in use", label,
                       (long long)link->pool.options.max_total);
    } else if (x->step == DLI_STEP_CONNECTING) {
        dl_driver_fail(x->err, why, 0, "%s: no connection in time", label);
    } else {
        dl_driver_fail(x->err, why, 0, "%s: no answer in time", label);
    }
    x->is_fresh = true; /* nothing is tried again */
    if (x->step == DLI_STEP_QUEUED) {
        dli_pool_quit(&link->pool, x->lane, &x->ticket);
        finish(x, why);
    } else if (x->step == DLI_STEP_CONNECTING) {
        dli_pool_connect_cut(&link->pool, x->member);
        x->member = NULL;
        finish(x, why);
    } else {
        uint64_t asked_ns = x->asked_ns;
        bool was_silent = why == DL_EIO && link->pool.env->now_ns() - asked_ns >= SILENCE_NS;
        (void)lose(link, x, why);
        if (was_silent) {
            dli_pool_distrust(&link->pool, asked_ns);
        }
    }
}
