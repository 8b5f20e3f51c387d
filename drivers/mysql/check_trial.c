/* check_trial.c - takes, renews and frees a lock that nobody uses, and takes its row away again. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* Should the trial be cut off, its lock is gone after this. */
#define TRIAL_LEASE_MS 5000

typedef struct trial {
    dli_mysql_check_t *check;
    const dl_driver_t *driver;
    void *hold, *other_hold; /* NULL: the driver has none */
    char name[48], owner[DL_OWNER_MAX + 1], other[DL_OWNER_MAX + 1];
    dl_request_t request;
    dl_error_t err;
} trial_t;

static const dl_driver_t *driver_of(const dli_mysql_kind_t *kind) {
    return kind == &dli_mysql_pessimistic_kind  ? &dli_mysql_pessimistic_driver
           : kind == &dli_mysql_optimistic_kind ? &dli_mysql_optimistic_driver
                                                : &dli_mysql_lease_driver;
}

static void fail(const trial_t *trial, const char *what, dl_status_t status) {
    dli_mysql_check_say(trial->check, DL_FINDING_ERROR, "locking", "%s (%s): %s", what,
                        dl_status_name(status), trial->err.message);
}

static bool begin(trial_t *trial, dli_mysql_check_t *check) {
    const dl_driver_env_t *env = check->mysql->env;
    uint64_t number;
    memset(trial, 0, sizeof *trial);
    trial->check = check;
    trial->driver = driver_of(check->mysql->kind);
    if (env->random(&number, sizeof number) != 0) {
        dli_mysql_check_say(check, DL_FINDING_ERROR, "locking", "no randomness to be had for a trial");
        return false;
    }
    if (trial->driver->hold_size > 0) {
        trial->hold = calloc(1, trial->driver->hold_size);
        trial->other_hold = calloc(1, trial->driver->hold_size);
        if (trial->hold == NULL || trial->other_hold == NULL) {
            dli_mysql_check_say(check, DL_FINDING_ERROR, "locking", "out of memory");
            return false;
        }
    }
    (void)snprintf(trial->name, sizeof trial->name, "dlock-check-%016" PRIx64, number);
    (void)snprintf(trial->owner, sizeof trial->owner, "%s:0", env->client_uuid);
    (void)snprintf(trial->other, sizeof trial->other, "%s:1", env->client_uuid);
    trial->request = (dl_request_t){.name = trial->name,
                                    .name_len = strlen(trial->name),
                                    .owner = trial->owner,
                                    .hold_id = 1,
                                    .level = 1,
                                    .lease_ms = TRIAL_LEASE_MS,
                                    .stop = {{-1, -1}},
                                    .tokens = 1};
    return true;
}

static void drop(const trial_t *trial, void *hold) {
    if (hold != NULL && trial->driver->drop != NULL) {
        trial->driver->drop(trial->check->mysql, hold);
    }
    free(hold);
}

static dl_status_t take(trial_t *trial, const char *owner, void *hold, dl_grant_t *grant) {
    dl_request_t request = trial->request;
    request.owner = owner;
    request.deadline_ns = dli_mysql_check_until(trial->check);
    *grant = (dl_grant_t){.session_fd = -1, .busy_ms = -1};
    dl_status_t status = trial->driver->try_acquire(trial->check->mysql, hold, &request, grant, &trial->err);
    dli_mysql_check_note(trial->check, status);
    return status;
}

static dl_status_t let_go(trial_t *trial, const char *owner, void *hold) {
    dl_request_t request = trial->request;
    request.owner = owner;
    request.level = 0;
    request.deadline_ns = dli_mysql_check_until(trial->check);
    dl_status_t status = trial->driver->release(trial->check->mysql, hold, &request, &trial->err);
    dli_mysql_check_note(trial->check, status);
    return status;
}

static bool renew(trial_t *trial, uint64_t token) {
    dl_renewal_t renewal = {.name = trial->name,
                            .name_len = trial->request.name_len,
                            .owner = trial->owner,
                            .hold_id = 1,
                            .token = token,
                            .lease_ms = 2 * TRIAL_LEASE_MS, /* so that it has to extend */
                            .hold = trial->hold};
    trial->driver->renew(trial->check->mysql, &renewal, 1, dli_mysql_check_until(trial->check));
    if (renewal.status != DL_OK) {
        dli_mysql_check_say(trial->check, DL_FINDING_ERROR, "locking",
                            "a lock was taken but could not be renewed (%s): every hold ends with its first "
                            "lease",
                            dl_status_name(renewal.status));
    }
    return renewal.status == DL_OK;
}

/* Another owner is told that it is busy. */
static bool contend(trial_t *trial) {
    dl_grant_t grant;
    dl_status_t status = take(trial, trial->other, trial->other_hold, &grant);
    if (status == DL_OK) {
        (void)let_go(trial, trial->other, trial->other_hold);
        (void)dl_driver_fail(&trial->err, DL_OK, 0, "it got the lock");
    }
    if (status != DL_EBUSY) {
        fail(trial, "a second owner of a held lock is not told that it is busy", status);
    }
    return status == DL_EBUSY;
}

static bool release(trial_t *trial) {
    dl_status_t status = let_go(trial, trial->owner, trial->hold);
    if (status != DL_OK) {
        fail(trial, "a lock was taken but could not be freed", status);
    }
    return status == DL_OK;
}

/* The name was made up for this, so that no token is lost with its rows. An account that may not delete
 * leaves them. */
static void clear_away(const trial_t *trial) {
    dli_mysql_check_t *check = trial->check;
    char table[sizeof check->mysql->tokens];
    for (const dli_mysql_table_t *t = check->mysql->kind->tables; t->suffix != NULL; t++) {
        DLI_MYSQL_SQL(sql);
        dli_mysql_answer_t answer;
        dl_error_t err;
        dli_mysql_table_name(check->mysql, t, table, sizeof table);
        dli_mysql_sql_add(&sql, "DELETE FROM $t WHERE name = $s", table, trial->name);
        (void)dli_mysql_setup_ask(check->mysql, &sql, dli_mysql_check_until(check), &answer, &err);
        dli_mysql_answer_free(&answer);
    }
}

void dli_mysql_check_trial(dli_mysql_check_t *check) {
    trial_t trial;
    dl_grant_t grant;
    if (begin(&trial, check)) {
        dl_status_t status = take(&trial, trial.owner, trial.hold, &grant);
        if (status != DL_OK) {
            fail(&trial, "a lock could not be taken", status);
            if (status == DL_EUNKNOWN) {
                (void)let_go(&trial, trial.owner, trial.hold);
            }
        } else {
            bool all = renew(&trial, grant.token);
            all = contend(&trial) && all;
            all = release(&trial) && all;
            clear_away(&trial);
            if (all) {
                dli_mysql_check_say(
                    check, DL_FINDING_OK, "locking",
                    "a lock was taken, renewed and freed, and a second owner was told that it "
                    "was busy");
            }
        }
    }
    drop(&trial, trial.hold);
    drop(&trial, trial.other_hold);
}
