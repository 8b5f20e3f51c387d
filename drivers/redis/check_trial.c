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

/* What hears of the release at one server: a subscriber of the trial's own, since the client may be in use.
 */
typedef struct ear {
    dli_watcher_t watcher; /* the first: what is heard, is heard by the whole */
    dli_subscriber_t *subscriber;
    bool is_live, is_refused, was_told;
} ear_t;

typedef struct trial {
    const dli_check_t *check;
    dli_check_ask_fn ask;
    void *asked;
    char name[48], owner[DL_OWNER_MAX + 1];
    dl_request_t request;
    dl_driver_env_t env; /* of the ears */
    ear_t ears[DLI_CHECK_SERVERS_MAX];
    size_t n, live, refused, told; /* ears */
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
                       .stop = no_stop,
                       .tokens = 1};
    return true;
}

static dl_status_t take(trial_t *trial, const char *owner, dl_grant_t *grant) {
    dl_request_t request = trial->request;
    request.owner = owner;
    *grant = (dl_grant_t){.session_fd = -1, .busy_ms = -1};
    const dli_request_t try = {.kind = DLI_ASK_TRY, .with = request, .grant = grant, .err = &trial->err};
    return trial->ask(trial->asked, &try);
}

static bool renew(trial_t *trial, uint64_t token) {
    dl_renewal_t renewal = {.name = trial->name,
                            .name_len = trial->request.name_len,
                            .owner = trial->owner,
                            .hold_id = 1,
                            .token = token,
                            .lease_ms = 2 * trial->request.lease_ms, /* so that it has to extend */
                            .status = DL_EIO};
    const dli_request_t batch = {.kind = DLI_ASK_RENEW,
                                 .with = {.deadline_ns = trial->check->deadline_ns, .stop = no_stop},
                                 .renewals = &renewal,
                                 .n = 1};
    if (trial->ask(trial->asked, &batch) != DL_OK || renewal.status != DL_OK) {
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
    const dli_request_t free_it = {.kind = DLI_ASK_RELEASE, .with = request, .err = &trial->err};
    if (trial->ask(trial->asked, &free_it) != DL_OK) {
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

/* ---- hearing ---------------------------------------------------------------------------------------- */

static void hear(dli_watcher_t *watcher, bool hears) {
    ear_t *ear = (ear_t *)watcher;
    ear->is_refused = !hears && !ear->is_live;
    ear->was_told |= hears && ear->is_live;
    ear->is_live = hears;
}

/* Their findings say it all. */
static void ignore_report(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    (void)level;
    (void)text;
}

static dl_status_t open_ears(trial_t *trial, dli_redis_t *const *servers, size_t n) {
    dl_status_t status = DL_OK;
    trial->env = *trial->check->redis->env;
    trial->env.report = ignore_report;
    for (size_t i = 0; i < n && status == DL_OK; i++) {
        ear_t *ear = &trial->ears[trial->n++];
        dli_key_t channel;
        dli_redis_channel(servers[i], trial->name, trial->request.name_len, &channel);
        ear->watcher.heard = hear;
        status = dli_subscriber_open(&servers[i]->endpoint, &trial->env, &ear->subscriber, &trial->err);
        if (status == DL_OK) {
            status =
                dli_subscriber_watch(ear->subscriber, channel.at, channel.len, &ear->watcher, &trial->err);
        }
    }
    return status;
}

static void close_ears(trial_t *trial) {
    for (size_t i = 0; i < trial->n; i++) {
        if (trial->ears[i].subscriber != NULL) {
            dli_subscriber_unwatch(trial->ears[i].subscriber, &trial->ears[i].watcher);
            dli_subscriber_close(trial->ears[i].subscriber, false);
        }
    }
}

/* Polls once, and hears. */
static void listen_until(trial_t *trial, uint64_t until_ns) {
    struct pollfd fds[DLI_CHECK_SERVERS_MAX];
    for (size_t i = 0; i < trial->n; i++) {
        uint64_t due_ns;
        dli_subscriber_fds(trial->ears[i].subscriber, &fds[i], &due_ns);
        until_ns = due_ns < until_ns ? due_ns : until_ns;
    }
    int ready = trial->env.poll(fds, trial->n, until_ns);
    trial->live = trial->refused = trial->told = 0;
    for (size_t i = 0; i < trial->n; i++) {
        const ear_t *ear = &trial->ears[i];
        dli_subscriber_listen(ear->subscriber, ready > 0 ? fds[i].revents : 0);
        trial->live += ear->is_live;
        trial->refused += ear->is_refused;
        trial->told += ear->was_told;
    }
}

/* Until so many of them hear that one is among those that are told; or that cannot be. */
static dl_status_t await_ears(trial_t *trial) {
    size_t needed = (trial->n + 1) / 2;
    while (trial->live < needed && trial->refused <= trial->n - needed &&
           trial->env.now_ns() < trial->check->deadline_ns) {
        listen_until(trial, trial->check->deadline_ns);
    }
    if (trial->live >= needed) {
        return DL_OK;
    }
    const char *why = "";
    for (size_t i = 0; i < trial->n && why[0] == '\0'; i++) {
        why = trial->ears[i].is_live ? "" : dli_subscriber_why(trial->ears[i].subscriber);
    }
    return dl_driver_fail(&trial->err, DL_EIO, 0, "%s",
                          why[0] != '\0' ? why : "a subscription was not confirmed in time");
}

static bool await_release(trial_t *trial) {
    uint64_t until_ns = trial->env.now_ns() + WAKE_MS * NS_PER_MS;
    until_ns = until_ns < trial->check->deadline_ns ? until_ns : trial->check->deadline_ns;
    while (trial->told == 0 && trial->env.now_ns() < until_ns) {
        listen_until(trial, until_ns);
    }
    return trial->told > 0;
}

/* ---- the trial -------------------------------------------------------------------------------------- */

void dli_check_trial(const dli_check_t *check, dli_check_ask_fn ask, void *asked, int64_t lease_max_ms,
                     dli_redis_t *const *servers, size_t n) {
    trial_t trial = {.check = check, .ask = ask, .asked = asked};
    if (!begin(&trial, check, lease_max_ms)) {
        dli_check_say(check, DL_FINDING_ERROR, "locking", "no randomness to be had for a trial");
        return;
    }
    dl_status_t hears = open_ears(&trial, servers, n);
    hears = hears == DL_OK ? await_ears(&trial) : hears;
    if (hears != DL_OK) {
        dli_check_say(check, DL_FINDING_WARNING, "wake-up",
                      "releases cannot be heard of: %s; waiters find out by polling", trial.err.message);
    }
    if (hold_once(&trial)) {
        dli_check_say(check, DL_FINDING_OK, "locking", "a lock was taken, renewed and freed");
        if (hears == DL_OK) {
            bool told = await_release(&trial);
            dli_check_say(check, told ? DL_FINDING_OK : DL_FINDING_WARNING, "wake-up", "%s",
                          told ? "a release wakes waiters"
                               : "a release was not heard of: waiters find out by polling");
        }
    }
    close_ears(&trial);
}
