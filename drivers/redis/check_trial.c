/* check_trial.c - takes, renews and frees a lock that nobody uses, and waits for its release. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

#define NS_PER_MS ((uint64_t)1000000)
/* Should the trial be cut off, its lock is gone after this, or twice as long once it was renewed. */
#define TRIAL_LEASE_MS 5000
/* How long a release may take to wake a waiter. */
#define WAKE_MS 500

static const dl_stop_t no_stop = {{-1, -1}};

typedef struct trial {
    const dli_check_t *check;
    const dl_driver_t *driver;
    void *state;
    char name[48], owner[DL_OWNER_MAX + 1];
    dl_request_t request;
    dl_watch_t *watch;
    dl_error_t err;
} trial_t;

static bool begin(trial_t *trial, const dli_check_t *check, int64_t lease_max_ms) {
    const dl_driver_env_t *env = check->redis->env;
    uint64_t number;
    if (env->random(&number, sizeof number) != 0) {
        return false;
    }
    (void)snprintf(trial->name, sizeof trial->name, "dlock-check-%016" PRIx64, number);
    (void)snprintf(trial->owner, sizeof trial->owner, "%s:0", env->client_uuid);
    trial->request =
        (dl_request_t){.name = trial->name,
                       .name_len = strlen(trial->name),
                       .owner = trial->owner,
                       .hold_id = 1,
                       .level = 1,
                       .lease_ms = lease_max_ms < 2 * TRIAL_LEASE_MS ? lease_max_ms / 2 : TRIAL_LEASE_MS,
                       .deadline_ns = check->deadline_ns,
                       .stop = no_stop};
    return true;
}

static dl_status_t take(trial_t *trial, const char *owner, dl_grant_t *grant) {
    dl_request_t request = trial->request;
    request.owner = owner;
    *grant = (dl_grant_t){.session_fd = -1, .busy_ms = -1};
    return trial->driver->try_acquire(trial->state, NULL, &request, grant, &trial->err);
}

static bool renew(trial_t *trial, uint64_t token) {
    dl_renewal_t renewal = {.name = trial->name,
                            .name_len = trial->request.name_len,
                            .owner = trial->owner,
                            .hold_id = 1,
                            .token = token,
                            .lease_ms = 2 * trial->request.lease_ms}; /* so that it has to extend */
    trial->driver->renew(trial->state, &renewal, 1, trial->check->deadline_ns);
    if (renewal.status != DL_OK) {
        dli_check_say(trial->check, DL_FINDING_ERROR, "locking",
                      "a lock was taken but could not be renewed (%s): every hold ends with its first lease",
                      dl_status_name(renewal.status));
    }
    return renewal.status == DL_OK;
}

/* Another owner is told that it is busy. */
static bool contend(trial_t *trial) {
    char other[DL_OWNER_MAX + 1];
    dl_grant_t grant;
    (void)snprintf(other, sizeof other, "%s:1", trial->check->redis->env->client_uuid);
    dl_status_t status = take(trial, other, &grant);
    if (status != DL_EBUSY) {
        dli_check_say(trial->check, DL_FINDING_ERROR, "locking",
                      "a second owner of a held lock is not told that it is busy (%s): %s",
                      dl_status_name(status), status != DL_OK ? trial->err.message : "it got the lock");
    }
    return status == DL_EBUSY;
}

static bool release(trial_t *trial) {
    dl_request_t request = trial->request;
    request.level = 0;
    if (trial->driver->release(trial->state, NULL, &request, &trial->err) != DL_OK) {
        dli_check_say(trial->check, DL_FINDING_ERROR, "locking",
                      "a lock was taken but could not be freed: %s; every lock stays until its lease ends",
                      trial->err.message);
        return false;
    }
    return true;
}

/* Takes, renews, frees; a second owner looks on. false: reported. */
static bool hold_once(trial_t *trial) {
    dl_grant_t grant;
    if (take(trial, trial->owner, &grant) != DL_OK) {
        dli_check_say(trial->check, DL_FINDING_ERROR, "locking", "a lock could not be taken: %s",
                      trial->err.message);
        return false;
    }
    bool all = renew(trial, grant.token);
    all = contend(trial) && all;
    return release(trial) && all;
}

void dli_check_trial(const dli_check_t *check, const dl_driver_t *driver, void *state, int64_t lease_max_ms) {
    const dl_driver_env_t *env = check->redis->env;
    trial_t trial = {.check = check, .driver = driver, .state = state};
    if (!begin(&trial, check, lease_max_ms)) {
        dli_check_say(check, DL_FINDING_ERROR, "locking", "no randomness to be had for a trial");
        return;
    }
    dl_status_t watched = driver->watch(state, trial.name, trial.request.name_len, check->deadline_ns,
                                        &no_stop, &trial.watch, &trial.err);
    if (watched != DL_OK) {
        dli_check_say(check, DL_FINDING_WARNING, "wake-up",
                      "releases cannot be heard of: %s; waiters find out by polling", trial.err.message);
    }
    if (hold_once(&trial)) {
        dli_check_say(check, DL_FINDING_OK, "locking", "a lock was taken, renewed and freed");
        if (watched == DL_OK) {
            uint64_t until_ns = env->now_ns() + WAKE_MS * NS_PER_MS;
            dl_status_t woken = driver->wait(state, trial.watch,
                                             until_ns < check->deadline_ns ? until_ns : check->deadline_ns,
                                             &no_stop, &trial.err);
            dli_check_say(check, woken == DL_OK ? DL_FINDING_OK : DL_FINDING_WARNING, "wake-up", "%s",
                          woken == DL_OK ? "a release wakes waiters"
                                         : "a release was not heard of: waiters find out by polling");
        }
    }
    if (watched == DL_OK) {
        driver->unwatch(state, trial.watch);
    }
}
