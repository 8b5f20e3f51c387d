/* core_trial_test.c - what is said of a lock that is tried, on a driver that answers as it is told. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "dlock/driver.h"

TestSuite(core_trial, .timeout = 60);

/* ---- a driver that answers as the script says ---------------------------------------------------------- */

typedef struct script {
    dl_status_t takes, renews, contends, frees, watches;
    bool hears, wakes, warns, speaks; /* of "locking", itself */
    bool closes;                      /* the client, while it renews */
    int busy; /* so many tries are told that it is busy, before the first that is not */
} script_t;

/* All is as it should be. */
#define SOUND .contends = DL_EBUSY, .hears = true, .wakes = true

static script_t script;
static const dl_driver_env_t *env;
static atomic_int tries, frees, watches;
static atomic_int_fast64_t longest_ms;
static atomic_int latecomers; /* asked by no later a deadline than what was asked before */
static atomic_uint_fast64_t last_deadline_ns;

static dl_status_t open_script(void *state, const dl_option_value_t *options, const dl_driver_env_t *lent,
                               uint64_t deadline_ns, dl_error_t *err) {
    (void)state;
    (void)options;
    (void)deadline_ns;
    (void)err;
    env = lent;
    return DL_OK;
}

static void close_script(void *state, int forked) {
    (void)state;
    (void)forked;
}

static bool is_trials(const dl_request_t *r) {
    return r->name_len == 14 && strncmp(r->name, "dlock-check-", 12) == 0;
}

static dl_status_t answer(dl_status_t status, dl_error_t *err) {
    return status == DL_OK ? DL_OK : dl_driver_fail(err, status, 0, "as told");
}

static void note_lease(int64_t lease_ms) {
    if (lease_ms > longest_ms) {
        atomic_store(&longest_ms, lease_ms);
    }
}

static void note_deadline(uint64_t deadline_ns) {
    atomic_fetch_add(&latecomers, deadline_ns <= atomic_exchange(&last_deadline_ns, deadline_ns));
}

static dl_status_t take(void *state, void *hold, const dl_request_t *r, dl_grant_t *grant, dl_error_t *err) {
    (void)state;
    (void)hold;
    grant->token = 7;
    if (!is_trials(r)) {
        return DL_OK;
    }
    note_lease(r->lease_ms);
    note_deadline(r->deadline_ns);
    bool is_first = strcmp(strrchr(r->owner, ':'), ":t1") == 0;
    atomic_fetch_add(&tries, is_first);
    if (is_first && script.busy > 0) {
        script.busy--;
        return DL_EBUSY;
    }
    return answer(is_first ? script.takes : script.contends, err);
}

static dl_status_t release(void *state, void *hold, const dl_request_t *r, dl_error_t *err) {
    (void)state;
    (void)hold;
    if (!is_trials(r)) {
        return DL_OK;
    }
    atomic_fetch_add(&frees, 1);
    note_deadline(r->deadline_ns);
    if (script.wakes) {
        env->woken(env->core, r->name, r->name_len, 1);
    }
    return answer(script.frees, err);
}

static dl_client_t *closed;
static pthread_t closer;

static void *close_it(void *arg) {
    dl_client_close(closed);
    return arg;
}

static void begin_to_close(void) {
    dl_lock_t *lock;
    cr_assert_eq(dl_lock_open(closed, "other", &lock, NULL), DL_OK);
    cr_assert_eq(pthread_create(&closer, NULL, close_it, NULL), 0);
    while (dl_hold_count(lock) == 0 && dl_trylock(lock, NULL) != DL_ECLOSED) {
        (void)dl_unlock(lock, NULL);
    }
    dl_lock_close(lock);
}

static void renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    (void)state;
    note_deadline(deadline_ns);
    if (script.closes) {
        begin_to_close();
    }
    for (size_t i = 0; i < n; i++) {
        renewals[i].status = script.renews;
        note_lease(renewals[i].lease_ms);
    }
}

static dl_status_t watch(void *state, const char *name, size_t len, dl_watch_t **watch, dl_error_t *err) {
    *watch = state;
    atomic_fetch_add(&watches, script.watches == DL_OK);
    if (script.watches == DL_OK && script.hears) {
        env->woken(env->core, name, len, 1);
    }
    return answer(script.watches, err);
}

static void unwatch(void *state, dl_watch_t *watch) {
    (void)state;
    (void)watch;
    atomic_fetch_sub(&watches, 1);
}

static size_t listen_fds(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns) {
    (void)state;
    (void)fds;
    (void)max;
    *until_ns = DL_NO_DEADLINE;
    return 0;
}

static void listen_to_it(void *state, const struct pollfd *fds, size_t n) {
    (void)state;
    (void)fds;
    (void)n;
    if (script.warns) {
        env->report(env->core, DL_LOG_WARNING, "as warned");
    }
}

static dl_status_t check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err) {
    (void)state;
    (void)deadline_ns;
    (void)err;
    fn(arg, DL_FINDING_ERROR, script.speaks ? "locking" : "subject", "of the driver's own");
    return DL_OK;
}

static const dl_driver_t driver = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "script",
    .summary = "answers as it is told",
    .caps = DL_CAP_LEASE | DL_CAP_FENCE | DL_CAP_NOTIFY,
    .state_size = 1,
    .open = open_script,
    .close = close_script,
    .try_acquire = take,
    .release = release,
    .renew = renew,
    .watch = watch,
    .unwatch = unwatch,
    .listen_fds = listen_fds,
    .listen = listen_to_it,
    .check = check,
};

/* ---- what it says ---------------------------------------------------------------------------------------
 */

static char said[4096];

static void keep(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    (void)arg;
    size_t len = strlen(said);
    (void)snprintf(said + len, sizeof said - len, "%d %s: %s\n", (int)level, subject, text);
}

static dl_client_t *open_client(const char *options) {
    dl_client_t *client;
    dl_error_t err;
    cr_assert_eq(dl_client_open_driver(&driver, options, strlen(options), &client, &err), DL_OK, "%s",
                 err.message);
    said[0] = '\0';
    atomic_store(&longest_ms, 0);
    atomic_store(&tries, 0);
    atomic_store(&frees, 0);
    return client;
}

static void check_by(script_t with) {
    script = with;
    dl_client_t *client = open_client("");
    dl_error_t err;
    cr_assert_eq(dl_client_check(client, keep, NULL, &err), DL_OK, "%s", err.message);
    dl_client_close(client);
}

#define OWN "3 subject: of the driver's own\n"
#define TRIED "0 locking: a lock was taken, renewed and freed, and a second owner was told that it was busy\n"
#define WOKEN "0 wake-up: a release wakes waiters\n"

#define EXPECT(words, ...)               \
    do {                                 \
        check_by((script_t)__VA_ARGS__); \
        cr_expect_str_eq(said, words);   \
    } while (0)

Test(core_trial, says_what_works_and_what_does_not) {
    EXPECT(OWN TRIED WOKEN, {SOUND});
    cr_expect_eq(frees, 1);
    EXPECT(OWN "3 locking: a lock could not be taken: as told\n", {SOUND, .takes = DL_EAUTH});
    cr_expect_eq(frees, 0);
    EXPECT(OWN "3 locking: a lock was taken but could not be renewed (the lock was held and has been lost): "
               "every hold ends with its first lease\n" WOKEN,
           {SOUND, .renews = DL_ELOST});
    EXPECT(OWN
           "3 locking: a second owner of a held lock is not told that it is busy (DL_EIO): as told\n" WOKEN,
           {.contends = DL_EIO, .hears = true, .wakes = true});
    EXPECT(OWN "3 locking: a second owner of a held lock is not told that it is busy (DL_OK): it got the "
               "lock\n" WOKEN,
           {.hears = true, .wakes = true});
    cr_expect_eq(frees, 2, "both have it");
    EXPECT(OWN
           "3 locking: a lock was taken but could not be freed: as told; every lock stays until its lease "
           "ends\n",
           {SOUND, .frees = DL_EAUTH});
    cr_expect_geq(frees, 2, "it is freed in the background");
}

/* Each may take as long as any call: four that take a while are no lock that cannot be freed. */
Test(core_trial, each_exchange_has_a_deadline_of_its_own) {
    EXPECT(OWN TRIED WOKEN, {SOUND});
    cr_expect_eq(latecomers, 0);
}

/* Of one that closes, all have that of the close. */
Test(core_trial, a_close_does_not_wait_for_all_of_them) {
    script = (script_t){.renews = DL_EIO, .contends = DL_EIO, .closes = true};
    closed = open_client("");
    (void)dl_client_check(closed, keep, NULL, NULL);
    cr_assert_eq(pthread_join(closer, NULL), 0);
    cr_expect_eq(frees, 1);
    cr_expect_geq(latecomers, 1);
}

Test(core_trial, says_whether_releases_are_heard_of) {
    EXPECT(OWN TRIED "2 wake-up: releases cannot be heard of: as told; waiters find out by polling\n",
           {SOUND, .watches = DL_ENOTSUP});
    EXPECT(
        OWN TRIED
        "2 wake-up: releases cannot be heard of: that they will be was not confirmed in time; waiters find "
        "out by polling\n",
        {.contends = DL_EBUSY});
    EXPECT(OWN TRIED "2 wake-up: releases cannot be heard of: as warned; waiters find out by polling\n",
           {.contends = DL_EBUSY, .warns = true});
    EXPECT(OWN TRIED "2 wake-up: a release was not heard of: waiters find out by polling\n",
           {.contends = DL_EBUSY, .hears = true});
}

Test(core_trial, is_left_out_where_the_driver_has_said_that_no_lock_can_be_taken) {
    EXPECT("3 locking: of the driver's own\n", {SOUND, .speaks = true});
    cr_expect_eq(tries, 0);
}

Test(core_trial, leaves_a_name_that_is_in_use_alone) {
    EXPECT(OWN TRIED WOKEN, {SOUND, .busy = 3});
    cr_expect_eq(tries, 4);
    EXPECT(OWN "3 locking: a lock could not be taken: the lock is held by another owner\n",
           {SOUND, .busy = 1000});
    cr_expect_eq(frees, 0);
}

Test(core_trial, frees_what_it_was_not_told_of) {
    EXPECT(OWN "3 locking: a lock could not be taken: as told\n", {SOUND, .takes = DL_EUNKNOWN});
    cr_expect_geq(frees, 1);
}

Test(core_trial, asks_for_no_longer_lease_than_the_client) {
    script = (script_t){SOUND};
    dl_client_t *client = open_client("{lease: 1s}");
    cr_assert_eq(dl_client_check(client, keep, NULL, NULL), DL_OK);
    cr_expect_str_eq(said, OWN TRIED WOKEN);
    cr_expect_eq(longest_ms, 1000);
    dl_client_close(client);
}

Test(core_trial, tells_neither_events_nor_statistics_of_its_lock) {
    script = (script_t){.renews = DL_ELOST, .frees = DL_ELOST};
    dl_client_t *client = open_client("{lease: 60s}");
    dl_lock_t *lock;
    dl_error_t err;
    dl_event_t event = DL_EVENT_INIT;
    dl_client_stats_t before = DL_CLIENT_STATS_INIT, after = DL_CLIENT_STATS_INIT;
    cr_assert_eq(dl_lock_open(client, "held", &lock, &err), DL_OK, "%s", err.message);
    cr_assert_eq(dl_lock(lock, &err), DL_OK, "%s", err.message);
    cr_assert_eq(dl_client_stats(client, &before), DL_OK);
    cr_assert_eq(dl_client_check(client, keep, NULL, &err), DL_OK, "%s", err.message);
    cr_assert_eq(dl_client_stats(client, &after), DL_OK);
    cr_expect_eq(memcmp(&before, &after, sizeof before), 0);
    cr_expect_eq(dl_event_next(client, &event), DL_ETIMEDOUT, "%s", event.text);
    cr_expect_gt(dl_valid_ms(lock), 0);
    cr_expect_eq(longest_ms, 10000);
    cr_expect_eq(dl_unlock(lock, &err), DL_OK, "%s", err.message);
    dl_client_close(client);
}

static atomic_int complaints;

static void count_complaints(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    (void)arg;
    (void)text;
    atomic_fetch_add(&complaints, level != DL_FINDING_OK && strcmp(subject, "subject") != 0);
}

static void *check_often(void *client) {
    for (int i = 0; i < 16; i++) {
        (void)dl_client_check(client, count_complaints, NULL, NULL);
    }
    return NULL;
}

/* Some of them draw a name that another, or an earlier one, still uses. */
Test(core_trial, several_of_one_client_do_not_meet) {
    pthread_t threads[4];
    script = (script_t){SOUND};
    dl_client_t *client = open_client("");
    for (size_t i = 0; i < 4; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, check_often, client), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    cr_expect_eq(complaints, 0);
    cr_expect_eq(frees, 64);
    dl_client_close(client);
    cr_expect_eq(watches, 0);
}
