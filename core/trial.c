/* trial.c - a lock of nobody's is taken, kept from another, renewed, freed, and its release heard of. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "core.h"

/* Should the trial be cut off, its lock is gone after this, or twice as long once it was renewed. */
#define LEASE_MS 5000
/* How long it may take until releases are heard, and then to hear of one. */
#define LISTEN_MS 1000
#define WOKEN_MS 500
/* The names are few, so that they leave few rows where names stay; one that is in use is left alone. */
#define NAMES_TRIED 8

/* How its parts ended; of the first, the taking, the operation tells. */
typedef struct trial {
    dl_error_t hears, renewed, refused, freed;
    bool listened, was_woken; /* for the release */
    dl_finding_fn fn;
    void *arg;
} trial_t;

/* ---- one part ---------------------------------------------------------------------------------------- */

/* By a deadline of its own. The claim: of what is asked; NULL: of the name. */
static dl_status_t ask(dli_op_t *op, dli_ask_kind_t kind, dli_claim_t *claim, uint32_t level,
                       dl_error_t *err) {
    op->ask = kind;
    op->until_ns = dli_ask_deadline(op->client);
    op->claim = claim;
    op->level = level;
    dli_op_ask(op);
    op->claim = NULL;
    err->status = DL_OK;
    return dli_error_give(err, &op->err, op->answer);
}

/* True: a release was heard of, or it is known now whether they are heard. */
static bool await_news(dli_op_t *op, int64_t wait_ms) {
    const dli_gate_t *gate = op->gate;
    uint64_t until_ns = dli_now() + dli_ms(wait_ms);
    op->listens = true;
    while (!gate->woken && dli_now() < until_ns && dli_op_stop_reason(op) == DL_OK) {
        dli_loop_sleep(op, until_ns);
    }
    op->listens = false;
    dli_loop_hand_over(op->client); /* it may have been the one that listened */
    return gate->woken && gate->hears;
}

static void begin_to_hear(dli_op_t *op, dl_error_t *err) {
    dli_gate_t *gate = op->gate;
    gate->watch_changes = true;
    dl_status_t status = ask(op, DLI_ASK_WATCH, NULL, 0, err);
    gate->watch_changes = false;
    if (status == DL_OK) {
        gate->watch = op->watch;
        dli_loop_listen_anew(op->client);
        op->client->why_deaf = err;
        bool hears = await_news(op, LISTEN_MS);
        op->client->why_deaf = NULL;
        if (hears) {
            err->status = DL_OK;
        } else if (err->status == DL_OK) {
            dli_fail(err, DL_EIO, "that they will be was not confirmed in time");
        }
    }
}

/* What it may leave on the server is freed in the background, also if it was not to be granted. */
static dl_status_t take(dli_op_t *op, dli_claim_t *claim, dl_error_t *err) {
    dl_status_t status = ask(op, DLI_ASK_TRY, claim, 1, err);
    if (status == DL_EUNKNOWN) {
        dli_free_add(claim, true);
    } else if (status != DL_OK) {
        (void)dli_free_rest(claim);
    }
    claim->token = status == DL_OK ? op->with.grant.token : 0;
    return status;
}

static void give_back(dli_op_t *op, dli_claim_t *claim, dl_error_t *err) {
    dli_free_left(claim, ask(op, DLI_ASK_RELEASE, claim, 0, err));
}

/* ---- all of them --------------------------------------------------------------------------------------- */

static dl_status_t hold_once(dli_op_t *op, trial_t *trial, dli_claim_t *claim, dli_claim_t *other) {
    dl_error_t unread;
    op->lease_ms = LEASE_MS < op->client->lease_ms / 2 ? LEASE_MS : op->client->lease_ms / 2;
    dl_status_t status = take(op, claim, &unread);
    if (status != DL_OK) {
        return status;
    }
    op->lease_ms *= 2; /* so that it has to extend */
    claim->lease_ms = op->lease_ms;
    (void)ask(op, DLI_ASK_RENEW, claim, 1, &trial->renewed);
    if (take(op, other, &trial->refused) == DL_OK) {
        dli_fail(&trial->refused, DL_OK, "it got the lock");
        give_back(op, other, &unread);
    }
    op->gate->woken = false;
    give_back(op, claim, &trial->freed);
    trial->listened = trial->freed.status == DL_OK && op->gate->hears;
    trial->was_woken = trial->listened && await_news(op, WOKEN_MS);
    return DL_OK;
}

static dl_status_t try_it(dli_op_t *op, trial_t *trial) {
    const dli_owner_t other_owner = {.number = 2};
    dli_claim_t *claim = dli_claim_new(op->gate, &op->owner);
    dli_claim_t *other = dli_claim_new(op->gate, &other_owner);
    dl_status_t status = claim != NULL && other != NULL ? DL_OK : dli_fail_plain(&op->err, DL_ENOMEM);
    if (status == DL_OK && (op->client->driver->caps & DL_CAP_NOTIFY) != 0) {
        begin_to_hear(op, &trial->hears);
    }
    if (status == DL_OK) {
        status = hold_once(op, trial, claim, other);
    }
    dli_claim_unref(claim);
    dli_claim_unref(other);
    return status;
}

/* The only step of a blocking call: it asks and waits within. */
static dli_next_t trial_step(dli_op_t *op) {
    dl_client_t *client = op->client;
    if (op->gate->refs > 1) { /* another check, or a watch of an earlier one */
        return dli_op_end(op, DL_EBUSY);
    }
    dl_status_t status = dli_op_can_wait(op);
    if (status == DL_OK && dli_loop_start(client) != 0) {
        status = dli_fail(&op->err, DL_ELIMIT, "no thread to watch over a lock");
    }
    if (status == DL_OK) {
        op->gate->active = op; /* what is heard is for it */
        status = try_it(op, op->tag);
        dli_gate_leave(op->gate, op);
    }
    return dli_op_end(op, status);
}

/* DL_EBUSY: somebody else uses the name. */
static dl_status_t try_a_name(dl_client_t *client, trial_t *trial, dl_error_t *err) {
    dli_asked_t asked = {.kind = DL_OP_FORCE, .step = trial_step, .tag = trial};
    unsigned char number = 0;
    char name[16];
    dl_lock_t *lock;
    (void)dli_sys->random(&number, 1);
    (void)snprintf(name, sizeof name, "dlock-check-%02x", number);
    dl_status_t status = dl_lock_open_owned(client, name, 1, &lock, err);
    if (status == DL_OK) {
        status = dli_op_call(&asked, lock, NULL, err);
        dl_lock_close(lock);
    }
    return status;
}

/* ---- what is said -------------------------------------------------------------------------------------- */

__attribute__((format(printf, 4, 5))) static void say(const trial_t *trial, dl_finding_level_t level,
                                                      const char *subject, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    dli_line(text, sizeof text, format, args);
    va_end(args);
    trial->fn(trial->arg, level, subject, text);
}

static void report_hold(const trial_t *trial) {
    bool renewed = trial->renewed.status == DL_OK, freed = trial->freed.status == DL_OK;
    bool refused = trial->refused.status == DL_EBUSY;
    if (!renewed) {
        say(trial, DL_FINDING_ERROR, "locking",
            "a lock was taken but could not be renewed (%s): every hold ends with its first lease",
            trial->renewed.message);
    }
    if (!refused) {
        say(trial, DL_FINDING_ERROR, "locking",
            "a second owner of a held lock is not told that it is busy (%s): %s",
            dl_status_name(trial->refused.status), trial->refused.message);
    }
    if (!freed) {
        say(trial, DL_FINDING_ERROR, "locking",
            "a lock was taken but could not be freed: %s; every lock stays until its lease ends",
            trial->freed.message);
    }
    if (renewed && refused && freed) {
        say(trial, DL_FINDING_OK, "locking",
            "a lock was taken, renewed and freed, and a second owner was told that it was busy");
    }
}

static void report_hearing(const trial_t *trial) {
    if (trial->hears.status != DL_OK) {
        say(trial, DL_FINDING_WARNING, "wake-up",
            "releases cannot be heard of: %s; waiters find out by polling", trial->hears.message);
    } else if (trial->was_woken) {
        say(trial, DL_FINDING_OK, "wake-up", "a release wakes waiters");
    } else if (trial->listened) {
        say(trial, DL_FINDING_WARNING, "wake-up", "a release was not heard of: waiters find out by polling");
    }
}

void dli_trial(dl_client_t *client, dl_finding_fn fn, void *arg) {
    trial_t trial = {.fn = fn, .arg = arg};
    dl_error_t err;
    dl_status_t status = DL_EBUSY;
    for (int i = 0; i < NAMES_TRIED && status == DL_EBUSY; i++) {
        status = try_a_name(client, &trial, &err);
    }
    if (status == DL_OK) {
        report_hold(&trial);
    } else {
        say(&trial, DL_FINDING_ERROR, "locking", "a lock could not be taken: %s", err.message);
    }
    report_hearing(&trial);
}
