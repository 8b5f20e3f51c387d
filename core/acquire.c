/* acquire.c - the steps of an acquire: its turn, try, watch, try, wait ... until it holds or has to end. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "core.h"

/* A lease that is just running out: no need to ask again before this. */
#define SHORTEST_WAIT_NS (2u * (uint64_t)DLI_NS_PER_MS)
/* The longest one request of a natively waiting driver blocks; never more than half of call_timeout, so that
 * the answer has as long again. */
#define NATIVE_SLICE_MS 1000
#define NATIVE_EARLY_MS 25
/* How long other processes are thought to want a name, after one has had it. */
#define RIVALS_NS (100u * (uint64_t)DLI_NS_PER_MS)
/* Who has waited so long and is still not told of releases polls in earnest. */
#define POLLS_NS (1000u * (uint64_t)DLI_NS_PER_MS)
/* How long it is tried to leave the line on a server. */
#define LINE_MS 1000

static dli_next_t turn_step(dli_op_t *op);
static dli_next_t tried_step(dli_op_t *op);

static bool has_turn(const dli_op_t *op) {
    return op->gate->active == op;
}

/* ---- instants ------------------------------------------------------------------------------------- */

/* Both ends included. */
static uint64_t draw_ns(uint64_t least_ns, uint64_t most_ns) {
    uint64_t draw = 0;
    bool is_drawn = dli_sys->random(&draw, sizeof draw) == 0;
    return is_drawn ? least_ns + draw % (most_ns - least_ns + 1) : most_ns;
}

uint64_t dli_backoff(const dl_client_t *client, unsigned tries) {
    /* With full jitter (Brooker, "Exponential Backoff And Jitter"), but never quite nothing. */
    uint64_t max_ns = dli_ms(client->backoff_max_ms);
    uint64_t cap_ns = dli_ms(client->backoff_min_ms);
    for (unsigned i = 0; i < tries && cap_ns < max_ns; i++) {
        cap_ns *= 2;
    }
    cap_ns = dli_min(cap_ns, max_ns);
    return draw_ns(cap_ns / 16, cap_ns);
}

/* Who has it may free it and take it again at once, time after time, and tells nobody: it is met free by who
 * asks often. The longer that goes on, the less often, for the server's sake. */
static uint64_t glance_ns(const dli_op_t *op) {
    const dl_client_t *client = op->client;
    uint64_t cap_ns = dli_max((dli_now() - op->started_ns) / 16, dli_ms(client->backoff_min_ms));
    cap_ns = dli_min(cap_ns, dli_ms(client->backoff_max_ms));
    return draw_ns(cap_ns / 16, cap_ns);
}

uint64_t dli_exchange_deadline(const dli_op_t *op, uint64_t now) {
    uint64_t until_ns = now + dli_ms(op->client->call_timeout_ms);
    if (op->opts.wait_ms == 0 || op->deadline_ns == DLI_NEVER) {
        return until_ns;
    }
    uint64_t grace_ends_ns = op->deadline_ns + DLI_GRACE_NS;
    if (now >= op->deadline_ns) {
        /* The last try begins now; all of the promised 100 ms but a fifth may go into it. */
        grace_ends_ns = dli_min(now + DLI_GRACE_NS, op->deadline_ns + DLI_LAST_TRY_NS);
    }
    return dli_min(until_ns, dli_max(grace_ends_ns, now + 1u * DLI_NS_PER_MS));
}

static int64_t native_wait_ms(const dli_op_t *op, uint64_t now) {
    if ((op->client->driver->caps & DL_CAP_NATIVE_WAIT) == 0 || (op->park == NULL && !op->async) ||
        op->opts.wait_ms == 0 || now >= op->deadline_ns) {
        return 0;
    }
    if (op->trouble_ns != 0) { /* an answer, whatever it is, ends that for all at the gate */
        return DLI_BRIEF_WAIT_MS;
    }
    uint64_t slice_ms = dli_min(NATIVE_SLICE_MS, (uint64_t)op->client->call_timeout_ms / 2);
    uint64_t left_ms = (op->deadline_ns - now) / DLI_NS_PER_MS;
    /* That somebody holds it shall be known before the time is over, also from a server that wakes late. */
    left_ms -= left_ms > 2 * NATIVE_EARLY_MS ? NATIVE_EARLY_MS : 0;
    return (int64_t)dli_min(left_ms, slice_ms);
}

/* When this call has to give the server up: call_timeout after the first try without an answer began. */
static uint64_t patience_ns(const dli_op_t *op, uint64_t now) {
    return (op->trouble_ns != 0 ? op->trouble_ns : now) + dli_ms(op->client->call_timeout_ms);
}

static uint64_t try_deadline(const dli_op_t *op, uint64_t now) {
    /* A last try may begin when patience has just ended; it gets a moment. */
    uint64_t patience = dli_max(patience_ns(op, now), now + 1u * DLI_NS_PER_MS);
    return dli_min(dli_exchange_deadline(op, now), patience);
}

/* ---- the end --------------------------------------------------------------------------------------- */

static void drop_claim(dli_op_t *op) {
    dli_claim_unref(op->claim);
    op->claim = NULL;
}

static void drop_hold(dli_op_t *op) {
    dli_hold_unref(op->hold);
    op->hold = NULL;
}

/* Nobody of this process waits any more: what it has on the server is to go to the next process. If the
 * answer is missing, it goes by itself. */
static void leave_line(dli_op_t *op) {
    dli_claim_t *claim = dli_claim_new(op->gate, &op->owner);
    op->gate->in_line = false;
    if (claim != NULL) {
        claim->hold_id = ++op->client->last_hold_id; /* new to the server */
        claim->lease_ms = LINE_MS;
        dli_free_add(claim, false);
        dli_claim_unref(claim);
    }
}

static dli_next_t end(dli_op_t *op, dl_status_t status) {
    dl_client_stats_t *stats = &op->client->stats;
    stats->waiting_now -= op->counted;
    stats->busy += status == DL_EBUSY;
    stats->timed_out += status == DL_ETIMEDOUT;
    dli_gate_leave(op->gate, op);
    if (op->gate->in_line && !dli_gate_is_wanted(op->gate)) {
        leave_line(op);
    }
    if (status != DL_OK) {
        drop_hold(op);
    }
    return dli_op_end(op, status);
}

static dli_next_t fail(dli_op_t *op, dl_status_t status) {
    dli_error_clear(&op->err);
    return end(op, status);
}

/* Others have asked at its name, in vain. */
static dli_next_t fail_as_others(dli_op_t *op) {
    const dl_client_t *client = op->client;
    dli_error_clear(&op->err);
    if (client->trouble_at == op->gate) { /* else the last was another name's */
        op->err = client->trouble;
        op->err.status = DL_EIO;
    }
    return end(op, DL_EIO);
}

static dli_next_t acquired(dli_op_t *op) {
    dl_client_stats_t *stats = &op->client->stats;
    uint64_t waited_us = (op->hold->acquired_ns - op->started_ns) / DLI_NS_PER_US;
    stats->wait_us_sum += waited_us;
    stats->wait_us_max = dli_max(stats->wait_us_max, waited_us);
    stats->contended += op->held_by_other;
    return end(op, DL_OK);
}

/* The driver's last reason stays in the message. */
static dli_next_t time_out(dli_op_t *op) {
    dl_error_t last = op->err;
    if (last.message[0] != '\0') {
        dli_fail(&op->err, DL_ETIMEDOUT, "%s; last: %s", dl_status_text(DL_ETIMEDOUT), last.message);
    }
    return end(op, DL_ETIMEDOUT);
}

/* ---- re-entry -------------------------------------------------------------------------------------- */

static dli_next_t reentered(dli_op_t *op, uint32_t level) {
    if (op->automatic) {
        dli_hold_enter_auto(op->hold, level, dli_now());
    }
    op->client->stats.reentered++;
    return end(op, DL_OK);
}

static dli_next_t level_told(dli_op_t *op) {
    dli_hold_t *hold = op->hold;
    /* The core's count decides; a count that could not be written is no error. */
    bool is_stopped = op->answer == DL_ECANCELED || op->answer == DL_ECLOSED;
    if (hold->state != DLI_HOLD_LIVE || is_stopped || (op->answer != DL_OK && op->longer)) {
        dli_hold_give_up_level(hold);
        return end(op, op->answer);
    }
    return reentered(op, op->level);
}

/* What watches over a hold has to be there before it. */
static dl_status_t start_threads(dli_op_t *op) {
    dl_client_t *client = op->client;
    int rc = dli_loop_start(client);
    if (rc == 0 && (op->automatic || client->session)) {
        rc = dli_renewals_start(client);
    }
    return rc == 0 ? DL_OK
           : rc == ENOMEM
               ? dli_fail_plain(&op->err, DL_ENOMEM)
               : dl_driver_fail(&op->err, DL_ELIMIT, rc, "no thread to watch over a lock: %s", strerror(rc));
}

static dli_next_t reenter(dli_op_t *op, dli_hold_t *hold) {
    dl_client_t *client = op->client;
    if (hold->levels >= client->level_limit) {
        return end(op, dli_fail(&op->err, DL_ELIMIT, "the lock was entered %u times already",
                                (unsigned)hold->levels));
    }
    dl_status_t status = start_threads(op);
    if (status != DL_OK) {
        return end(op, status);
    }
    dli_op_about(op, hold);
    if (op->queued) { /* another thread of its owner was faster */
        dli_gate_leave(op->gate, op);
    }
    bool renewed_already = op->automatic && hold->auto_level > 0;
    op->longer = !renewed_already && dli_now() + dli_ms(op->lease_ms) > hold->claim->valid_until_ns;
    uint32_t level = ++hold->levels;
    if (op->longer || (client->driver->caps & DL_CAP_SERVER_COUNT) != 0) {
        return dli_tell_server(op, level, level_told);
    }
    return reentered(op, level);
}

/* ---- trying ---------------------------------------------------------------------------------------- */

/* Its outcome is not for the caller, but the server may have the claim: freed in the background. */
static void abandon(dli_op_t *op, bool may_appear) {
    dli_free_add(op->claim, may_appear);
    drop_claim(op);
}

static void ask_now(dli_op_t *op) {
    uint64_t now = dli_now();
    op->began_ns = now;
    op->wait_ms = native_wait_ms(op, now);
    op->until_ns = try_deadline(op, now);
    op->gate->woken = false; /* a release from now on is news */
}

void dli_acquire_ask_now(dli_op_t *op) {
    uint64_t began_ns = op->began_ns, until_ns = op->until_ns;
    bool is_answering = op->client->last_answer_ns >= began_ns;
    ask_now(op);
    if (!is_answering) {
        uint64_t half_ms = (until_ns - op->began_ns) / DLI_NS_PER_MS / 2;
        op->wait_ms = (int64_t)dli_min((uint64_t)op->wait_ms, dli_max(half_ms, DLI_BRIEF_WAIT_MS));
        op->until_ns = dli_min(op->until_ns, until_ns);
        op->began_ns = began_ns;
    }
}

uint64_t dli_acquire_may_queue_until(const dli_op_t *op, uint64_t now) {
    uint64_t alive_ns = op->client->last_answer_ns + dli_ms(op->client->call_timeout_ms);
    if (op->ask != DLI_ASK_TRY || op->opts.wait_ms == 0 || now >= op->deadline_ns) {
        return now;
    }
    return op->deadline_ns == DLI_NEVER ? alive_ns : dli_min(alive_ns, op->deadline_ns + DLI_GRACE_NS);
}

void dli_acquire_line_up(dli_op_t *op, dli_request_t *request) {
    dli_gate_t *gate = op->gate;
    const dli_backend_t *inner = op->client->inner;
    bool waits = (op->opts.wait_ms != 0 && !op->last_try) || !TAILQ_EMPTY(&gate->queue);
    bool hears = gate->watch != NULL && gate->hears;
    request->joins = waits && hears && inner != NULL && inner->lines_up;
    bool is_deaf = op->watch_refused || (gate->watch != NULL && !hears);
    request->polls = is_deaf && op->opts.wait_ms != 0 && dli_now() >= op->started_ns + POLLS_NS;
    gate->in_line |= request->joins;
}

/* It was late, and its turn has passed. */
static dli_next_t back_to_its_turn(dli_op_t *op) {
    drop_hold(op);
    drop_claim(op);
    op->trouble_ns = 0;
    op->step = turn_step;
    return DLI_STEP;
}

static dli_next_t try_step(dli_op_t *op) {
    if (!has_turn(op)) {
        return back_to_its_turn(op);
    }
    dl_status_t status = dli_op_stop_reason(op);
    if (status != DL_OK) {
        return fail(op, status);
    }
    op->hold = op->hold != NULL ? op->hold : dli_hold_new(op->gate, &op->owner);
    if (op->hold != NULL && op->gate->passed != NULL && dli_pass_take(op)) {
        return acquired(op);
    }
    op->claim = op->claim != NULL ? op->claim : dli_claim_new(op->gate, &op->owner);
    if (op->hold == NULL || op->claim == NULL) {
        return fail(op, DL_ENOMEM);
    }
    ask_now(op);
    op->ask = DLI_ASK_TRY;
    op->level = 1;
    op->step = tried_step;
    return DLI_ASK;
}

/* A yes, which may come too late for the call, or for its turn. */
static dl_status_t take(dli_op_t *op) {
    dl_status_t status = dli_op_stop_reason(op);
    if (status == DL_OK && has_turn(op) && dli_hold_begin(op, dli_now())) {
        return DL_OK;
    }
    abandon(op, false);
    return status != DL_OK
               ? status
               : dli_fail(&op->err, DL_ELOST, "the server's yes came so late that no validity was left");
}

/* ---- waiting --------------------------------------------------------------------------------------- */

static dli_next_t wait_until(dli_op_t *op, uint64_t until_ns, dli_step_fn then) {
    op->step = then;
    op->until_ns = dli_min(until_ns, op->deadline_ns);
    /* The poke that told of it may have been used up already. */
    return dli_op_stop_reason(op) == DL_OK ? DLI_WAIT : DLI_STEP;
}

static dli_next_t look_again(dli_op_t *op) {
    op->last_try = dli_now() >= op->deadline_ns;
    return try_step(op);
}

static dli_next_t await_release(dli_op_t *op) {
    op->listens =
        has_turn(op) && !op->gate->woken && dli_op_stop_reason(op) == DL_OK && dli_now() < op->until_ns;
    if (op->listens) {
        return DLI_WAIT;
    }
    dli_loop_hand_over(op->client); /* it may have been the one that listened */
    return look_again(op);
}

/* Unless a release is heard of: until the holder's lease is over, and not beyond the backoff if nobody may
 * tell: it is no client of this library, or there is nothing to hear it by. */
static uint64_t look_again_ns(dli_op_t *op) {
    const dl_grant_t *grant = &op->with.grant;
    bool will_notify =
        op->gate->watch != NULL && op->gate->hears && grant->busy_is_dlock && grant->busy_ms >= 0;
    uint64_t wait_ns = will_notify           ? DLI_NEVER
                       : op->request.unheard ? glance_ns(op)
                                             : dli_backoff(op->client, op->tries++);
    if (grant->busy_ms >= 0) {
        int64_t left_ms = grant->busy_ms < DL_LEASE_MAX_MS ? grant->busy_ms : DL_LEASE_MAX_MS;
        wait_ns = dli_min(wait_ns, dli_max(dli_ms(left_ms) + DLI_NS_PER_MS, SHORTEST_WAIT_NS));
    } else if (!op->told_no_expiry) {
        op->told_no_expiry = true;
        dli_log(op->client, DL_LOG_WARNING,
                "the holder of '%s' has no known expiry; it may stay until somebody frees it",
                op->gate->name);
    }
    return wait_ns;
}

/* Others have had the time to ask. If any did, it draws how long they have it: no two are to take turns. */
static dli_next_t rested_step(dli_op_t *op) {
    dli_gate_t *gate = op->gate;
    uint64_t now = dli_now();
    if (!has_turn(op) || now >= gate->busy_ns + RIVALS_NS) {
        return try_step(op);
    }
    return wait_until(op, now + draw_ns(0, dli_min(4 * gate->turn_ns, DLI_PASS_NS)), try_step);
}

static dli_next_t wait_for_release(dli_op_t *op) {
    uint64_t until_ns = dli_now() + look_again_ns(op);
    if (op->gate->watch == NULL && !op->gate->watch_changes) {
        return wait_until(op, until_ns, look_again);
    }
    op->until_ns = dli_min(until_ns, op->deadline_ns);
    op->step = await_release;
    return DLI_STEP;
}

static dli_next_t watched_step(dli_op_t *op) {
    op->gate->watch_changes = false;
    if (op->answer == DL_OK) {
        op->gate->watch = op->watch;
        dli_loop_listen_anew(op->client);
    }
    if (!has_turn(op)) {
        dli_gate_wake(op->gate);
        return back_to_its_turn(op);
    }
    op->watch_refused = op->answer == DL_ENOTSUP;
    return wait_for_release(op);
}

/* Another holds it: wait until it may be free. */
static dli_next_t wait_for_holder(dli_op_t *op) {
    dl_client_t *client = op->client;
    op->held_by_other = true;
    op->gate->busy_ns = dli_now();
    op->trouble_ns = 0;
    if (op->opts.wait_ms == 0) {
        return end(op, DL_EBUSY);
    }
    if (op->last_try) {
        return time_out(op);
    }
    dl_status_t status = dli_op_can_wait(op);
    if (status != DL_OK) {
        return end(op, status);
    }
    uint64_t now = dli_now();
    bool waited_natively = op->wait_ms > 0 && now - op->began_ns >= dli_ms(op->wait_ms) / 2;
    if (now >= op->deadline_ns || waited_natively) {
        return look_again(op);
    }
    dli_gate_t *gate = op->gate;
    if ((client->driver->caps & DL_CAP_NOTIFY) != 0 && gate->watch == NULL && !gate->watch_changes &&
        !op->watch_refused) {
        gate->woken = gate->hears = false;
        gate->watch_changes = true;
        op->ask = DLI_ASK_WATCH;
        op->until_ns = dli_exchange_deadline(op, now);
        op->step = watched_step;
        return DLI_ASK;
    }
    return wait_for_release(op);
}

static void begin_trouble(dli_op_t *op, uint64_t at_ns) {
    op->trouble_ns = at_ns;
    op->was_refused = false;
    op->tries = 0;
    op->took_ns = DLI_NEVER;
}

/* Its time is over. If there was none for one more answer while it waited for a holder, that is no trouble.
 */
static bool is_troubled(const dli_op_t *op) {
    uint64_t since_ns = op->gate->trouble_ns;
    return since_ns != 0 && since_ns + 2u * DLI_GRACE_NS <= op->deadline_ns;
}

/* The server did not answer, or too late: worth another try for call_timeout. */
static dli_next_t wait_for_server(dli_op_t *op, dl_status_t status) {
    uint64_t now = dli_now();
    /* The machine slept, or this process was stopped, and nobody has waited for the server: simply again. */
    bool was_away = op->interrupted || now >= op->until_ns + dli_ms(op->client->call_timeout_ms);
    if (was_away && op->opts.wait_ms != 0 && now < op->deadline_ns) {
        return try_step(op);
    }
    if (op->trouble_ns == 0) {
        /* A yes that came too late is an answer after all: patience begins now. */
        begin_trouble(op, status == DL_ELOST ? now : op->began_ns);
    }
    if (op->gate->trouble_ns == 0) {
        op->gate->trouble_ns = status == DL_ELOST ? now : op->trouble_ns;
    }
    op->client->trouble = op->err;
    op->client->trouble_at = op->gate;
    op->was_refused |= now + DLI_GRACE_NS < op->deadline_ns;
    uint64_t until_ns = dli_min(op->deadline_ns, patience_ns(op, now));
    if (status != DL_ELOST && op->held_by_other && now >= op->deadline_ns && !op->was_refused &&
        !is_troubled(op)) {
        return time_out(op);
    }
    if (op->opts.wait_ms == 0 || op->last_try || now >= until_ns) {
        return end(op, status);
    }
    uint64_t again_ns = dli_min(until_ns, now + dli_backoff(op->client, op->tries++));
    uint64_t ends_ns = dli_max(try_deadline(op, now), again_ns + 1u * DLI_NS_PER_MS);
    if (op->request.refused) {
        op->took_ns = dli_min(op->took_ns, now - op->began_ns);
    }
    if (op->request.refused && (ends_ns - again_ns) / 2 < op->took_ns) {
        return end(op, status); /* a clear no counts: the next one, cut off, would be in doubt */
    }
    return wait_until(op, again_ns, try_step);
}

static dli_next_t tried_step(dli_op_t *op) {
    dl_status_t status = op->answer;
    if (status == DL_OK || status == DL_EBUSY) {
        /* One whose turn has passed may be answered after a later one. */
        op->gate->in_line = op->request.in_line || (op->gate->in_line && !has_turn(op));
    }
    if (status == DL_EUNKNOWN) {
        abandon(op, true);
        if (op->with.grant.busy_is_dlock && dli_now() >= op->deadline_ns) { /* so it was busy to its end */
            status = DL_EBUSY;
            op->last_try = true;
        }
    } else if (status == DL_OK) { /* for which the server itself may have waited for the holder */
        uint64_t waited_ns = op->request.with.wait_ms > 0 ? dli_now() - op->began_ns : 0;
        op->held_by_other |= waited_ns >= dli_ms(op->client->backoff_min_ms);
        status = take(op);
    } else if (dli_free_rest(op->claim)) {
        drop_claim(op);
    }
    if (!has_turn(op)) {
        return back_to_its_turn(op);
    }
    bool is_trouble = op->answer == DL_EIO || op->answer == DL_EUNKNOWN || op->answer == DL_ECANCELED;
    op->gate->trouble_ns = is_trouble ? op->gate->trouble_ns : 0;
    if (status == DL_OK) {
        return acquired(op);
    }
    dl_status_t stop = dli_op_stop_reason(op);
    if (stop != DL_OK) {
        return fail(op, stop);
    }
    switch (status) {
    case DL_EBUSY:
        return wait_for_holder(op);
    case DL_EIO:
    case DL_EUNKNOWN:
    case DL_ELOST:
        return wait_for_server(op, status);
    case DL_ECANCELED:
        return wait_for_server(op, DL_EIO);
    default:
        return end(op, status);
    }
}

/* ---- its turn in this process ---------------------------------------------------------------------- */

static void count_waiting(dli_op_t *op) {
    op->client->stats.waiting_now += !op->counted;
    op->counted = true;
}

static dli_next_t begin_to_try(dli_op_t *op) {
    dl_status_t status = start_threads(op);
    if (status != DL_OK) {
        return end(op, status);
    }
    if (op->gate->trouble_ns != 0) { /* others have asked, and it is theirs, too */
        begin_trouble(op, dli_max(op->gate->trouble_ns, op->started_ns));
        if (patience_ns(op, 0) <= dli_now()) {
            return fail_as_others(op);
        }
    }
    op->held_by_other = op->counted; /* by the queue of this process */
    if (op->opts.wait_ms != 0) {
        count_waiting(op);
        bool can_wait = dli_op_can_wait(op) == DL_OK; /* or it fails once it has to */
        dli_error_clear(&op->err);
        if (can_wait && op->gate->passed == NULL && op->gate->rest_ns > 0) {
            uint64_t rest_ns = op->gate->rest_ns;
            op->gate->rest_ns = 0;
            return wait_until(op, dli_now() + rest_ns, rested_step);
        }
    }
    return try_step(op);
}

/* Looked at again whenever it was poked: another thread of this owner may have entered meanwhile. */
static dli_next_t turn_step(dli_op_t *op) {
    dli_gate_t *gate = op->gate;
    dl_status_t status = dli_op_stop_reason(op);
    if (status != DL_OK) {
        return fail(op, status);
    }
    uint64_t now = dli_now();
    dli_hold_t *hold = dli_gate_find(gate, &op->owner, now);
    if (hold != NULL && hold->state == DLI_HOLD_LOST) {
        dli_fail(&op->err, DL_ELOST, "it was lost with %u level%s still entered; unlock %s first",
                 (unsigned)hold->levels, hold->levels == 1 ? "" : "s", hold->levels == 1 ? "it" : "them");
        return end(op, DL_ELOST);
    }
    if (hold != NULL) {
        return reenter(op, hold);
    }
    if (!op->queued && gate->current == NULL && !dli_gate_is_wanted(gate)) {
        gate->active = op;
    }
    if (has_turn(op)) {
        return begin_to_try(op);
    }
    if (op->opts.wait_ms == 0 || now >= op->deadline_ns) {
        dli_gate_polled(gate);
        return is_troubled(op) ? fail_as_others(op)
                               : fail(op, op->opts.wait_ms == 0 ? DL_EBUSY : DL_ETIMEDOUT);
    }
    status = dli_op_can_wait(op);
    if (status != DL_OK) {
        return end(op, status);
    }
    if (!op->queued) {
        dli_gate_enqueue(gate, op);
        count_waiting(op);
    }
    op->until_ns = op->deadline_ns;
    return DLI_WAIT;
}

dli_next_t dli_acquire_step(dli_op_t *op) {
    op->started_ns = dli_now();
    op->deadline_ns = op->opts.wait_ms < 0 ? DLI_NEVER : op->started_ns + dli_ms(op->opts.wait_ms);
    op->automatic = op->opts.lease_ms == DL_LEASE_AUTO;
    op->lease_ms = op->automatic ? op->client->lease_ms : op->opts.lease_ms;
    op->step = turn_step;
    return DLI_STEP;
}
