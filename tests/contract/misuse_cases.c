/* misuse_cases.c - contract: wrong arguments and wrong driver tables are refused, and change nothing. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>

#include "callers.h"
#include "dlock/driver.h"

CT_CASE(misuse, missing_objects_are_refused) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "misuse");
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    dl_event_t event = DL_EVENT_INIT;
    CT_STATUS(dl_lock(NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_trylock(NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_trylock_for(NULL, 0, DL_LEASE_AUTO, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_acquire(lock, NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_unlock(NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_extend(NULL, DL_LEASE_AUTO, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_inspect(NULL, &info, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_inspect(lock, NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_force_unlock(NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_list(c, NULL, NULL, NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_client_check(c, NULL, NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_cancel_new(NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_lock_open(c, "x", NULL, CT_ERR), DL_EINVAL);
    CT_EQ(dl_valid_ms(NULL), 0);
    CT_EQ(dl_token(NULL), 0);
    CT_EQ(dl_hold_count(NULL), 0);
    CT_EQ(dl_event_fd(NULL), -1);
    CT_EQ(dl_event_next(NULL, &event), DL_EINVAL);
    CT_EQ(dl_event_next(c, NULL), DL_EINVAL);
    CT_EQ(dl_client_info(c, NULL), DL_EINVAL);
    CT_EQ(dl_client_stats(c, NULL), DL_EINVAL);
    CT_EQ(dl_client_on_event(NULL, NULL, NULL), DL_EINVAL);
    CT_EQ(dl_client_set_log(NULL, NULL, NULL), DL_EINVAL);
    dl_client_close(NULL);
    dl_lock_close(NULL);
    dl_cancel_free(NULL);
    dl_cancel_trigger(NULL);
    CT_EQ(dl_cancel_fd(NULL), -1);
}

CT_CASE(misuse, failed_opens_leave_null_behind) {
    dl_client_t *c = ct_open(ct, NULL), *client = c;
    dl_lock_t *some = ct_lock(ct, c, "some"), *lock = some;
    char long_name[DL_NAME_MAX + 2];
    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    CT_STATUS(dl_lock_open(NULL, "x", &lock, CT_ERR), DL_EINVAL);
    CT_CHECK(lock == NULL);
    lock = some;
    CT_STATUS(dl_lock_open(c, NULL, &lock, CT_ERR), DL_EINVAL);
    CT_CHECK(lock == NULL);
    lock = some;
    CT_STATUS(dl_lock_open(c, "", &lock, CT_ERR), DL_EINVAL);
    CT_CHECK(lock == NULL);
    lock = some;
    CT_STATUS(dl_lock_open_owned(c, long_name, 1, &lock, CT_ERR), DL_EINVAL);
    CT_CHECK(lock == NULL);
    CT_STATUS(dl_client_open_text("use: nothing", 12, NULL, &client, CT_ERR), DL_ECONFIG);
    CT_CHECK(client == NULL);
    client = c;
    CT_STATUS(dl_client_open_text(NULL, 0, NULL, &client, CT_ERR), DL_EINVAL);
    CT_CHECK(client == NULL);
    client = c;
    CT_STATUS(dl_client_open("/nowhere/dlock.yaml", NULL, &client, CT_ERR), DL_ECONFIG);
    CT_CHECK(client == NULL);
    CT_STATUS(dl_client_open_text("", 0, NULL, NULL, CT_ERR), DL_EINVAL);
    long_name[DL_NAME_MAX] = 0;
    CT_OK(dl_trylock(ct_lock(ct, c, long_name), CT_ERR)); /* 255 bytes are a name */
}

CT_CASE(misuse, structs_of_another_size_are_refused) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "sizes");
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    dl_client_info_t client_info = DL_CLIENT_INFO_INIT;
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    dl_lock_info_t lock_info = DL_LOCK_INFO_INIT;
    dl_event_t event = DL_EVENT_INIT;
    opts.size = 0;
    CT_STATUS(dl_acquire(lock, &opts, CT_ERR), DL_EINVAL);
    opts.size = sizeof opts + 8;
    CT_STATUS(dl_acquire(lock, &opts, CT_ERR), DL_EINVAL);
    client_info.size = stats.size = lock_info.size = event.size = 0;
    CT_EQ(dl_client_info(c, &client_info), DL_EINVAL);
    CT_EQ(dl_client_stats(c, &stats), DL_EINVAL);
    CT_STATUS(dl_inspect(lock, &lock_info, CT_ERR), DL_EINVAL);
    CT_EQ(dl_event_next(c, &event), DL_EINVAL);
    stats.size = sizeof stats - 4;
    CT_EQ(dl_client_stats(c, &stats), DL_EINVAL);
    CT_EQ(ct_calls(ct, CT_OP_TRY), 0);
}

CT_CASE(misuse, structs_of_an_earlier_release_are_filled) {
    dl_client_t *c = ct_open(ct, NULL);
    take(ct, ct_lock(ct, c, "sizes"), DL_LEASE_AUTO);
    dl_client_stats_t stats = {.size = offsetof(dl_client_stats_t, passed), .passed = 7};
    CT_EQ(dl_client_stats(c, &stats), DL_OK);
    CT_EQ(stats.acquired, 1);
    CT_EQ(stats.passed, 7);
}

CT_CASE(misuse, numbers_out_of_range_are_refused) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "ranges");
    static const int64_t leases_ms[] = {-1,        -2,       1, 50, DL_LEASE_MIN_MS - 1, DL_LEASE_MAX_MS + 1,
                                        INT64_MAX, INT64_MIN};
    static const int64_t waits_ms[] = {-2, DL_WAIT_MAX_MS + 1, INT64_MAX, INT64_MIN};
    CT_OK(dl_lock(lock, CT_ERR)); /* refused inside a hold, too */
    for (size_t i = 0; i < sizeof leases_ms / sizeof leases_ms[0]; i++) {
        CT_STATUS(dl_trylock_for(lock, 0, leases_ms[i], CT_ERR), DL_EINVAL);
        CT_STATUS(dl_extend(lock, leases_ms[i], CT_ERR), DL_EINVAL);
    }
    for (size_t i = 0; i < sizeof waits_ms / sizeof waits_ms[0]; i++) {
        CT_STATUS(dl_trylock_for(lock, waits_ms[i], DL_LEASE_AUTO, CT_ERR), DL_EINVAL);
    }
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.max_hold_ms = -1;
    CT_STATUS(dl_acquire(lock, &opts, CT_ERR), DL_EINVAL);
    opts.max_hold_ms = INT64_MAX;
    CT_STATUS(dl_acquire(lock, &opts, CT_ERR), DL_EINVAL);
    CT_EQ(dl_hold_count(lock), 1);
    CT_EQ(ct_calls(ct, CT_OP_TRY), 1);
    CT_OK(dl_unlock(lock, CT_ERR));
    /* The ends of the ranges are in them. */
    CT_OK(dl_trylock_for(lock, DL_WAIT_MAX_MS, DL_LEASE_MAX_MS, CT_ERR));
    CT_GT(dl_valid_ms(lock), validity_of(DL_LEASE_MAX_MS) - 10000);
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "ranges", 0);
    CT_OK(dl_trylock_for(lock, 0, DL_LEASE_MIN_MS, CT_ERR));
}

typedef struct stranger {
    dl_lock_t *lock;
} stranger_t;

static void unlock_what_is_not_mine(ct_t *ct, void *arg) {
    stranger_t *s = arg;
    CT_STATUS(dl_unlock(s->lock, CT_ERR), DL_ENOTOWNER);
    CT_STATUS(dl_extend(s->lock, DL_LEASE_AUTO, CT_ERR), DL_ENOTOWNER);
    CT_EQ(dl_hold_count(s->lock), 0);
    CT_EQ(dl_valid_ms(s->lock), 0);
    CT_EQ(dl_token(s->lock), 0);
}

CT_CASE(misuse, unlock_by_another_thread_or_once_too_often_changes_nothing) {
    dl_client_t *c = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "mine");
    stranger_t stranger = {lock};
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_lock(lock, CT_ERR));
    ct_join(ct, ct_thread(ct, unlock_what_is_not_mine, &stranger));
    CT_EQ(dl_hold_count(lock), 2);
    ct_expect_held(ct, "mine");
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
    ct_expect_free(ct, "mine", 0);
    CT_OK(dl_trylock(lock, CT_ERR)); /* no debt is left */
    CT_EQ(dl_hold_count(lock), 1);
}

/* ---- driver tables --------------------------------------------------------------------------- */

static dl_status_t open_any(void *state, const dl_option_value_t *options, const dl_driver_env_t *env,
                            uint64_t deadline_ns, dl_error_t *err) {
    (void)state;
    (void)options;
    (void)env;
    (void)deadline_ns;
    (void)err;
    return DL_OK;
}

static void close_any(void *state, int forked) {
    (void)state;
    (void)forked;
}

static dl_status_t try_none(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                            dl_error_t *err) {
    (void)state;
    (void)hold;
    (void)request;
    (void)grant;
    return dl_driver_fail(err, DL_EIO, 0, "no server");
}

static dl_status_t release_none(void *state, void *hold, const dl_request_t *request, dl_error_t *err) {
    (void)state;
    (void)hold;
    (void)request;
    return dl_driver_fail(err, DL_EIO, 0, "no server");
}

static void renew_none(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    (void)state;
    (void)deadline_ns;
    for (size_t i = 0; i < n; i++) {
        renewals[i].status = DL_EIO;
    }
}

static dl_status_t watch_none(void *state, const char *name, size_t name_len, dl_watch_t **watch,
                              dl_error_t *err) {
    (void)state;
    (void)name;
    (void)name_len;
    (void)watch;
    return dl_driver_fail(err, DL_EIO, 0, "no server");
}

static size_t nothing_to_poll(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns) {
    (void)state;
    (void)fds;
    (void)max;
    *until_ns = DL_NO_DEADLINE;
    return 0;
}

static void listen_none(void *state, const struct pollfd *fds, size_t n) {
    (void)state;
    (void)fds;
    (void)n;
}

static void unwatch_none(void *state, dl_watch_t *watch) {
    (void)state;
    (void)watch;
}

static void drop_none(void *state, void *hold) {
    (void)state;
    (void)hold;
}

static const dl_driver_t sound = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "no-server-9",
    .summary = "A driver without a server.",
    .caps = DL_CAP_LEASE,
    .state_size = 1,
    .open = open_any,
    .close = close_any,
    .try_acquire = try_none,
    .release = release_none,
    .renew = renew_none,
};

/* Refused with the table's own fault, before anything of it was called. */
static void refuse(ct_t *ct, const dl_driver_t *table) {
    dl_client_t *client = NULL;
    CT_STATUS(dl_client_open_driver(table, NULL, 0, &client, CT_ERR), DL_EINVAL);
    CT_CHECK(client == NULL);
}

static void accept(ct_t *ct, const dl_driver_t *table) {
    dl_client_t *client;
    CT_OK(dl_client_open_driver(table, NULL, 0, &client, CT_ERR));
    dl_client_close(client);
}

/* The same for all drivers, so one fixture is enough. */
#define ONE_FIXTURE .needs_not = DL_CAP_SESSION | DL_CAP_NOTIFY, .needs = DL_CAP_FENCE, .traits = CT_VIRTUAL

#define REFUSE_WITH(change)    \
    do {                       \
        dl_driver_t t = sound; \
        change;                \
        refuse(ct, &t);        \
    } while (0)

CT_CASE(misuse, driver_tables_without_what_is_needed_are_refused, ONE_FIXTURE) {
    accept(ct, &sound);
    refuse(ct, NULL);
    REFUSE_WITH(t.abi = DL_DRIVER_ABI + 1);
    REFUSE_WITH(t.abi = 0);
    REFUSE_WITH(t.size = sizeof t - 24);
    REFUSE_WITH(t.size = sizeof t + 8);
    REFUSE_WITH(t.name = NULL);
    REFUSE_WITH(t.name = "");
    REFUSE_WITH(t.name = "Upper");
    REFUSE_WITH(t.name = "white space");
    REFUSE_WITH(t.name = "under_score");
    REFUSE_WITH(t.name = "thirty-two-bytes-are-one-too-man");
    REFUSE_WITH(t.summary = NULL);
    REFUSE_WITH(t.state_size = 0);
    REFUSE_WITH(t.open = NULL);
    REFUSE_WITH(t.close = NULL);
    REFUSE_WITH(t.try_acquire = NULL);
    REFUSE_WITH(t.release = NULL);
    REFUSE_WITH(t.renew = NULL);
    dl_client_t *client;
    CT_STATUS(dl_client_open_driver(&sound, NULL, 0, NULL, CT_ERR), DL_EINVAL);
    CT_STATUS(dl_client_open_driver(&sound, "x: y", 4, &client, CT_ERR), DL_ECONFIG);
}

CT_CASE(misuse, driver_tables_that_contradict_themselves_are_refused, ONE_FIXTURE) {
    REFUSE_WITH(t.caps = 0);
    REFUSE_WITH(t.caps = DL_CAP_LEASE | DL_CAP_SESSION);
    REFUSE_WITH(t.caps = DL_CAP_FENCE);
    REFUSE_WITH(t.caps = DL_CAP_LEASE | 0x40u);
    REFUSE_WITH(t.caps = DL_CAP_LEASE | 0x80000000u);
    REFUSE_WITH(t.caps = DL_CAP_LEASE | DL_CAP_NOTIFY);
    dl_driver_t watching = sound;
    watching.caps = DL_CAP_LEASE | DL_CAP_NOTIFY;
    watching.watch = watch_none;
    watching.listen = listen_none;
    watching.unwatch = unwatch_none;
    watching.listen_fds = nothing_to_poll;
    accept(ct, &watching);
    REFUSE_WITH((t = watching, t.watch = NULL));
    REFUSE_WITH((t = watching, t.listen = NULL));
    REFUSE_WITH((t = watching, t.unwatch = NULL));
    REFUSE_WITH((t = watching, t.listen_fds = NULL));
    REFUSE_WITH((t = watching, t.caps = DL_CAP_LEASE));
    REFUSE_WITH((t = watching, t.caps = DL_CAP_LEASE, t.listen = NULL));
    REFUSE_WITH(t.unwatch = unwatch_none);
    REFUSE_WITH(t.hold_size = 8);
    REFUSE_WITH(t.drop = drop_none);
    dl_driver_t holding = sound;
    holding.hold_size = 8;
    holding.drop = drop_none;
    accept(ct, &holding);
}

/* A table of options with a fault in it. */
static void refuse_option(ct_t *ct, dl_option_t option) {
    const dl_option_t options[2] = {option, {.name = NULL}};
    dl_driver_t t = sound;
    t.options = options;
    refuse(ct, &t);
}

CT_CASE(misuse, driver_tables_with_wrong_options_are_refused, ONE_FIXTURE) {
    const dl_option_t good = {.name = "port_2", .type = DL_OPTION_INT, .help = "A port."};
    const dl_option_t twice[3] = {good, good, {.name = NULL}}, once[2] = {good, {.name = NULL}};
    dl_driver_t t = sound;
    t.options = once;
    accept(ct, &t);
    t.options = twice;
    refuse(ct, &t);
    dl_option_t o = good;
    o.name = "Port";
    refuse_option(ct, o);
    o.name = "";
    refuse_option(ct, o);
    o.name = "driver";
    refuse_option(ct, o);
    o.name = "lease"; /* the core's own */
    refuse_option(ct, o);
    o = good;
    o.help = NULL;
    refuse_option(ct, o);
    o = good;
    o.type = (dl_option_type_t)0;
    refuse_option(ct, o);
    o.type = (dl_option_type_t)8;
    refuse_option(ct, o);
    o = good;
    o.min = 2;
    o.max = 1;
    refuse_option(ct, o);
}
