/* acquire.c - one call with its turn: try, watch, try, wait ... until it holds or has to end. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "core.h"

/* A lease that is just running out: no need to ask again before this. */
#define SHORTEST_WAIT_NS (2u * (uint64_t)DLI_NS_PER_MS)
/* The longest one request of a natively waiting driver blocks; never more than half of call_timeout, so that
 * the answer has as long again. */
#define NATIVE_SLICE_MS 1000
#define NATIVE_EARLY_MS 25

/* Everything one acquisition carries from try to try. */
typedef struct quest {
    dl_client_t *client;
    dl_lock_t *lock;
    const dli_asked_t *asked;
    dli_hold_t *hold; /* of the next try */
    dli_park_t *park; /* NULL: may not wait, or could not be had because of park_errno */
    int park_errno;
    dl_stop_t stop;
    dl_watch_t *watch;
    bool watch_refused; /* the driver cannot watch here: poll */
    bool last_try;      /* the deadline is over; this try is the last */
    bool interrupted;   /* somebody woke the last try; no trouble of the server's */
    bool was_busy;      /* for the statistics: it had to wait, as far as can be told */
    bool held_by_other; /* another holder was seen, here or by the queue of this process */
    bool told_no_expiry;
    bool was_refused;    /* in this trouble, by an answer or an error with time left */
    unsigned tries;      /* since the last answer of another kind; for the backoff */
    uint64_t began_ns;   /* when the last try began */
    uint64_t trouble_ns; /* when the first try without an answer began; 0: the last one had an answer */
    dl_error_t err;
} quest_t;

dl_status_t dli_stop_reason(const dl_lock_t *lock, const dl_cancel_t *cancel) {
    if (lock->client->closing || lock->closed) {
        return DL_ECLOSED;
    }
    return cancel != NULL && atomic_load(&cancel->triggered) ? DL_ECANCELED : DL_OK;
}

uint64_t dli_backoff(const dl_client_t *client, unsigned tries) {
    /* Exponential backoff with full jitter (Brooker, "Exponential Backoff And Jitter"), never quite
     * nothing. */
    uint64_t max_ns = dli_ms(client->backoff_max_ms);
    uint64_t cap_ns = dli_ms(client->backoff_min_ms);
    for (unsigned i = 0; i < tries && cap_ns < max_ns; i++) {
        cap_ns *= 2;
    }
    cap_ns = dli_min(cap_ns, max_ns);
    uint64_t draw = 0;
    if (dli_sys->random(&draw, sizeof draw) != 0) {
        return cap_ns;
    }
    return cap_ns / 16 + draw % (cap_ns - cap_ns / 16 + 1);
}

/* Sleeps until the instant, or until somebody makes this call look up. Mutex released meanwhile. */
static void pause_until(quest_t *q, uint64_t until_ns) {
    if (dli_stop_reason(q->lock, q->asked->opts->cancel) != DL_OK) {
        return; /* the wake may have been used up already */
    }
    struct pollfd fds[2] = {{.fd = q->stop.fd[0], .events = POLLIN}, {.fd = q->stop.fd[1], .events = POLLIN}};
    dli_unlock_client(q->client);
    (void)dli_sys->poll(fds, 2, dli_min(until_ns, q->asked->deadline_ns));
    if (q->park != NULL) {
        (void)dli_park_drain(q->park);
    }
    dli_lock_client(q->client);
}

uint64_t dli_exchange_deadline(const dl_client_t *client, const dli_asked_t *asked) {
    uint64_t now = dli_now();
    uint64_t until_ns = now + dli_ms(client->call_timeout_ms);
    if (asked->opts->wait_ms == 0 || asked->deadline_ns == DLI_NEVER) {
        return until_ns;
    }
    uint64_t grace_ends_ns = asked->deadline_ns + DLI_GRACE_NS;
    if (now >= asked->deadline_ns) {
        /* The last try begins now; all of the promised 100 ms but a fifth may go into it. */
        grace_ends_ns = dli_min(now + DLI_GRACE_NS, asked->deadline_ns + DLI_LAST_TRY_NS);
    }
    return dli_min(until_ns, dli_max(grace_ends_ns, now + 1u * DLI_NS_PER_MS));
}

static int64_t native_wait_ms(const quest_t *q, uint64_t now) {
    if ((q->client->driver->caps & DL_CAP_NATIVE_WAIT) == 0 || q->park == NULL ||
        q->asked->opts->wait_ms == 0 || now >= q->asked->deadline_ns || q->trouble_ns != 0) {
        return 0;
    }
    uint64_t slice_ms = dli_min(NATIVE_SLICE_MS, (uint64_t)q->client->call_timeout_ms / 2);
    uint64_t left_ms = (q->asked->deadline_ns - now) / DLI_NS_PER_MS;
    /* That somebody holds it shall be known before the time is over, also from a server that wakes late. */
    left_ms -= left_ms > 2 * NATIVE_EARLY_MS ? NATIVE_EARLY_MS : 0;
    return (int64_t)dli_min(left_ms, slice_ms);
}

/* When this call has to give the server up: call_timeout after the first try without an answer began. */
static uint64_t patience_ns(const quest_t *q, uint64_t now) {
    return (q->trouble_ns != 0 ? q->trouble_ns : now) + dli_ms(q->client->call_timeout_ms);
}

static uint64_t try_deadline(const quest_t *q, uint64_t now) {
    /* A last try may begin when patience has just ended; it gets a moment. */
    uint64_t patience = dli_max(patience_ns(q, now), now + 1u * DLI_NS_PER_MS);
    return dli_min(dli_exchange_deadline(q->client, q->asked), patience);
}

/* The outcome of this try is not for the caller, but the server may have the hold: freed in the
 * background. */
static void abandon(quest_t *q, bool may_appear, uint64_t sent_before_ns) {
    dli_orphan_add(q->hold, may_appear, sent_before_ns + dli_ms(q->asked->lease_ms));
    q->hold->state = DLI_HOLD_ENDED;
    dli_hold_unref(q->hold);
    q->hold = NULL;
}

/* A try was answered with yes. DL_OK only if the call may still take it. */
static dl_status_t take(quest_t *q, const dl_grant_t *grant) {
    dl_client_t *client = q->client;
    uint64_t now = dli_now();
    dl_status_t status = dli_stop_reason(q->lock, q->asked->opts->cancel);
    if (status != DL_OK) {
        abandon(q, false, now);
        return status;
    }
    int64_t max_hold_ms = q->asked->opts->max_hold_ms > 0 ? q->asked->opts->max_hold_ms : client->max_hold_ms;
    uint64_t max_hold_until_ns = max_hold_ms > 0 ? now + dli_ms(max_hold_ms) : DLI_NEVER;
    if (dli_hold_begin(q->hold, grant, q->asked->lease_ms, q->asked->automatic, max_hold_until_ns, now)) {
        return DL_OK;
    }
    abandon(q, false, now);
    return dli_fail(&q->err, DL_ELOST, "the server's yes came so late that no validity was left");
}

static dl_status_t try_once(quest_t *q, dl_grant_t *grant, bool *waited_natively) {
    dl_client_t *client = q->client;
    if (q->hold == NULL) {
        q->hold = dli_hold_new(client, q->lock->gate, &q->asked->owner);
        if (q->hold == NULL) {
            return dli_fail_plain(&q->err, DL_ENOMEM);
        }
    }
    uint64_t now = dli_now();
    q->began_ns = now;
    int64_t wait_ms = native_wait_ms(q, now);
    uint64_t until_ns = try_deadline(q, now);
    dli_unlock_client(client);
    dl_status_t status =
        dli_call_try(q->hold, 1, q->asked->lease_ms, wait_ms, until_ns, &q->stop, grant, &q->err);
    q->interrupted = q->park != NULL && dli_park_drain(q->park);
    dli_lock_client(client);
    uint64_t took_ns = dli_now() - now;
    *waited_natively = wait_ms > 0 && took_ns >= dli_ms(wait_ms) / 2;
    /* The server itself may have made it wait for the holder, and then said yes. */
    q->was_busy |= wait_ms > 0 && took_ns >= dli_ms(client->backoff_min_ms);
    if (status == DL_OK) {
        return take(q, grant);
    }
    if (status == DL_EUNKNOWN) {
        abandon(q, true, until_ns);
    }
    return status;
}

/* A driver that can watch is asked to before the first sleep. True: try again at once, a release cannot be
 * missed. */
static bool start_watch(quest_t *q) {
    dl_client_t *client = q->client;
    if ((client->driver->caps & DL_CAP_NOTIFY) == 0 || q->watch_refused || q->watch != NULL) {
        return false;
    }
    uint64_t until_ns = dli_exchange_deadline(client, q->asked);
    dl_error_t err;
    dl_watch_t *watch;
    dli_unlock_client(client);
    dl_status_t status = dli_call_watch(client, q->lock->gate, until_ns, &q->stop, &watch, &err);
    dli_lock_client(client);
    if (status == DL_OK) {
        q->watch = watch;
        return true;
    }
    q->watch_refused = status == DL_ENOTSUP;
    return false;
}

static void end_watch(quest_t *q) {
    if (q->watch != NULL) {
        dl_watch_t *watch = q->watch;
        q->watch = NULL;
        dli_unlock_client(q->client);
        dli_call_unwatch(q->client, watch);
        dli_lock_client(q->client);
    }
}

/* How long to wait before the next try, unless a release is heard of: until the holder's lease is over, and
 * not beyond the backoff if nobody may tell: it is no client of this library, or there is nothing to hear it
 * by. */
static uint64_t look_again_ns(quest_t *q, const dl_grant_t *grant) {
    bool will_notify = q->watch != NULL && grant->busy_is_dlock && grant->busy_ms >= 0;
    uint64_t wait_ns = will_notify ? DLI_NEVER : dli_backoff(q->client, q->tries++);
    if (grant->busy_ms >= 0) {
        int64_t left_ms = grant->busy_ms < DL_LEASE_MAX_MS ? grant->busy_ms : DL_LEASE_MAX_MS;
        wait_ns = dli_min(wait_ns, dli_max(dli_ms(left_ms) + DLI_NS_PER_MS, SHORTEST_WAIT_NS));
    } else if (!q->told_no_expiry) {
        q->told_no_expiry = true;
        dli_log(q->client, DL_LOG_WARNING,
                "the holder of '%s' has no known expiry; it may stay until somebody frees it",
                q->lock->gate->name);
    }
    return wait_ns;
}

/* The driver's last reason stays in the message. */
static dl_status_t time_out(quest_t *q) {
    dl_error_t last = q->err;
    if (last.message[0] == '\0') {
        return DL_ETIMEDOUT;
    }
    return dli_fail(&q->err, DL_ETIMEDOUT, "%s; last: %s", dl_status_text(DL_ETIMEDOUT), last.message);
}

/* Another holds it: wait until it may be free. DL_OK: try again. */
static dl_status_t wait_for_holder(quest_t *q, const dl_grant_t *grant, bool waited_natively) {
    dl_client_t *client = q->client;
    q->was_busy = q->held_by_other = true;
    q->trouble_ns = 0;
    if (q->asked->opts->wait_ms == 0) {
        return DL_EBUSY;
    }
    if (q->last_try) {
        return time_out(q);
    }
    if (q->park == NULL) {
        return q->park_errno == ENOMEM ? dli_fail_plain(&q->err, DL_ENOMEM)
                                       : dli_fail(&q->err, DL_ELIMIT, "no descriptor is left to wait with");
    }
    uint64_t now = dli_now();
    if (now < q->asked->deadline_ns && !waited_natively && !start_watch(q)) {
        uint64_t until_ns = now + look_again_ns(q, grant);
        if (dli_stop_reason(q->lock, q->asked->opts->cancel) != DL_OK) {
            return DL_OK; /* the caller sees why */
        }
        if (q->watch != NULL) {
            dl_error_t err;
            dli_unlock_client(client);
            dl_status_t status =
                dli_call_wait(client, q->watch, dli_min(until_ns, q->asked->deadline_ns), &q->stop, &err);
            (void)dli_park_drain(q->park);
            dli_lock_client(client);
            if (status != DL_OK && status != DL_ETIMEDOUT && status != DL_ECANCELED) {
                dli_log(client, DL_LOG_WARNING, "waiting for '%s' goes on by polling: %s",
                        q->lock->gate->name, err.message);
                end_watch(q);
                pause_until(q, dli_now() + dli_backoff(client, q->tries++));
            }
        } else {
            pause_until(q, until_ns);
        }
    }
    q->last_try = dli_now() >= q->asked->deadline_ns;
    return DL_OK;
}

/* The server did not answer, or too late: worth another try for call_timeout. DL_OK: try again. */
static dl_status_t wait_for_server(quest_t *q, dl_status_t status) {
    uint64_t now = dli_now();
    if (q->interrupted && q->asked->opts->wait_ms != 0 && now < q->asked->deadline_ns) {
        return DL_OK; /* the machine resumed, or the like: simply again */
    }
    if (q->trouble_ns == 0) {
        /* A yes that came too late is an answer after all: patience begins now. */
        q->trouble_ns = status == DL_ELOST ? now : q->began_ns;
        q->was_refused = false;
        q->tries = 0;
    }
    q->was_refused |= now + DLI_GRACE_NS < q->asked->deadline_ns;
    uint64_t until_ns = dli_min(q->asked->deadline_ns, patience_ns(q, now));
    if (status != DL_ELOST && q->held_by_other && now >= q->asked->deadline_ns && !q->was_refused &&
        q->trouble_ns + 2u * DLI_GRACE_NS > q->asked->deadline_ns) {
        /* It has waited for a holder until its time was over. That there was no time for one more answer says
         * nothing of the server. */
        return time_out(q);
    }
    if (q->asked->opts->wait_ms == 0 || q->last_try || now >= until_ns) {
        return status;
    }
    pause_until(q, dli_min(until_ns, now + dli_backoff(q->client, q->tries++)));
    return DL_OK;
}

static dl_status_t go_on(quest_t *q, dl_status_t status, const dl_grant_t *grant, bool waited_natively) {
    switch (status) {
    case DL_EBUSY:
        return wait_for_holder(q, grant, waited_natively);
    case DL_EIO:
    case DL_EUNKNOWN:
    case DL_ELOST:
        return wait_for_server(q, status);
    case DL_ECANCELED:
        return wait_for_server(q, DL_EIO);
    default:
        return status;
    }
}

static void count_acquired(quest_t *q) {
    dl_client_stats_t *stats = &q->client->stats;
    uint64_t waited_us = (dli_now() - q->asked->started_ns) / DLI_NS_PER_US;
    stats->wait_us_sum += waited_us;
    stats->wait_us_max = dli_max(stats->wait_us_max, waited_us);
    stats->contended += q->was_busy;
}

static dl_status_t run(quest_t *q) {
    dl_status_t status = DL_OK;
    while (status == DL_OK) {
        status = dli_stop_reason(q->lock, q->asked->opts->cancel);
        if (status != DL_OK) {
            return status;
        }
        dl_grant_t grant;
        bool waited_natively = false;
        status = try_once(q, &grant, &waited_natively);
        if (status == DL_OK || dli_stop_reason(q->lock, q->asked->opts->cancel) != DL_OK) {
            return status == DL_OK ? DL_OK : dli_stop_reason(q->lock, q->asked->opts->cancel);
        }
        status = go_on(q, status, &grant, waited_natively);
    }
    return status;
}

dl_status_t dli_acquire(dl_lock_t *lock, const dli_asked_t *asked, dl_error_t *err) {
    dl_client_t *client = lock->client;
    const dl_cancel_t *cancel = asked->opts->cancel;
    quest_t q = {
        .client = client,
        .lock = lock,
        .asked = asked,
        .was_busy = asked->queued,
        .held_by_other = asked->queued,
        .stop = {{-1, cancel != NULL ? cancel->fd : -1}},
    };
    bool may_wait = asked->opts->wait_ms != 0;
    if (may_wait) {
        q.park = dli_park_get(lock);
        q.park_errno = errno;
        q.stop.fd[0] = q.park != NULL ? q.park->fd : -1;
        client->stats.waiting_now++;
    }
    dl_status_t status = run(&q);
    end_watch(&q);
    /* The mutex was free for a moment: it may have been lost meanwhile. */
    if (status == DL_OK && (dli_hold_expire(q.hold, dli_now()) || q.hold->state == DLI_HOLD_LOST)) {
        status = dli_fail(&q.err, DL_ELOST, "it was lost as soon as it was held");
        if (q.hold->state == DLI_HOLD_LOST && --q.hold->levels == 0) {
            dli_hold_end(q.hold); /* else another thread of the owner has entered too, and will leave */
        }
    }
    if (may_wait) {
        client->stats.waiting_now--;
        dli_park_put(client, q.park);
    }
    if (status == DL_OK) {
        count_acquired(&q);
    }
    if (q.hold != NULL) {
        q.hold->state = q.hold->state == DLI_HOLD_TRYING ? DLI_HOLD_ENDED : q.hold->state;
        dli_hold_unref(q.hold);
    }
    return dli_error_give(err, &q.err, status);
}
