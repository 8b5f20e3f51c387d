/* core_layout_test.c - programs that were built with the headers of an earlier release. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/core.h"

/* ---- a driver that always says yes -----------------------------------------------------------------------
 */

static dl_status_t open_anything(void *state, const dl_option_value_t *options, const dl_driver_env_t *env,
                                 uint64_t deadline_ns, dl_error_t *err) {
    (void)state;
    (void)options;
    (void)env;
    (void)deadline_ns;
    (void)err;
    return DL_OK;
}

static void close_anything(void *state, int forked) {
    (void)state;
    (void)forked;
}

static dl_status_t grant_anything(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                                  dl_error_t *err) {
    (void)state;
    (void)hold;
    (void)request;
    (void)err;
    grant->token = 7;
    return DL_OK;
}

static dl_status_t free_anything(void *state, void *hold, const dl_request_t *request, dl_error_t *err) {
    (void)state;
    (void)hold;
    (void)request;
    (void)err;
    return DL_OK;
}

static void renew_nothing(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    (void)state;
    (void)deadline_ns;
    for (size_t i = 0; i < n; i++) {
        renewals[i].status = DL_ELOST;
    }
}

static dl_status_t inspect_nothing(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                   dl_lock_info_t *info, dl_error_t *err) {
    (void)state;
    (void)name;
    (void)name_len;
    (void)deadline_ns;
    (void)err;
    cr_assert_eq(info->size, sizeof *info, "a driver has a whole one");
    info->held = 1;
    (void)snprintf(info->client, sizeof info->client, "host:1");
    return DL_OK;
}

static dl_status_t init_nothing(const dl_option_value_t *options, const dl_driver_env_t *env, unsigned flags,
                                dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err) {
    (void)options;
    (void)env;
    (void)flags;
    (void)fn;
    (void)arg;
    (void)deadline_ns;
    (void)err;
    return DL_OK;
}

static dl_status_t find_nothing(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns,
                                dl_error_t *err) {
    (void)state;
    (void)deadline_ns;
    (void)err;
    fn(arg, DL_FINDING_OK, "subject", "nothing");
    return DL_OK;
}

static const dl_driver_t yes = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "yes",
    .summary = "grants everything",
    .caps = DL_CAP_LEASE | DL_CAP_FENCE,
    .state_size = 1,
    .open = open_anything,
    .close = close_anything,
    .try_acquire = grant_anything,
    .release = free_anything,
    .renew = renew_nothing,
    .inspect = inspect_nothing,
    .check = find_nothing,
    .init = init_nothing,
};

static dl_client_t *open_client(const dl_driver_t *driver) {
    dl_client_t *client = NULL;
    dl_error_t err = {.message = ""};
    cr_assert_eq(dl_client_open_driver(driver, NULL, 0, &client, &err), DL_OK, "%s", err.message);
    return client;
}

static dl_lock_t *open_lock(dl_client_t *client) {
    dl_lock_t *lock = NULL;
    cr_assert_eq(dl_lock_open(client, "name", &lock, NULL), DL_OK);
    return lock;
}

/* ---- sizes -----------------------------------------------------------------------------------------------
 */

/* As if a release had ended before this member. */
#define UNTIL(type, member) offsetof(type, member)

/* What a program of that release has behind the struct is its own. */
typedef union memory {
    size_t size;
    dl_acquire_opts_t opts;
    dl_lock_info_t lock;
    dl_client_info_t client;
    dl_client_stats_t stats;
    dl_event_t event;
    unsigned char bytes[sizeof(dl_event_t) + sizeof(dl_client_info_t)];
} memory_t;

static void fill(memory_t *m, size_t size) {
    memset(m, 0xa5, sizeof *m);
    memset(m, 0, size);
    m->size = size;
}

static void check_untouched(const memory_t *m, size_t size) {
    cr_assert_eq(m->size, size, "its size is the caller's");
    for (size_t i = size; i < sizeof *m; i++) {
        cr_assert_eq(m->bytes[i], 0xa5, "byte %zu, behind the %zu of the caller's, was written", i, size);
    }
}

Test(layout, the_sizes_of_the_first_release_stay_known) {
    /* 0.1.0, where pointers have 64 bits. */
    if (sizeof(void *) == 8) {
        cr_assert(dli_layout_has(&dli_layout_acquire_opts, 40));
        cr_assert(dli_layout_has(&dli_layout_lock_info, 208));
        cr_assert(dli_layout_has(&dli_layout_client_info, 312));
        cr_assert(dli_layout_has(&dli_layout_client_stats, 184));
        cr_assert(dli_layout_has(&dli_layout_event, 552));
        cr_assert(dli_layout_has(&dli_layout_driver, 192));
        cr_assert(dli_layout_has(&dli_layout_driver, 200));
    }
    cr_assert(!dli_layout_has(&dli_layout_acquire_opts, 0));
    cr_assert(!dli_layout_has(&dli_layout_acquire_opts, sizeof(dl_acquire_opts_t) + 8));
}

Test(layout, options_of_an_earlier_release_have_the_rest_as_it_is_by_default) {
    size_t size = UNTIL(dl_acquire_opts_t, max_hold_ms);
    dli_layout_acquire_opts.earlier[0] = size;
    dl_client_t *client = open_client(&yes);
    dl_lock_t *lock = open_lock(client);
    memory_t m;
    fill(&m, size); /* behind it stand a max_hold and a cancel that nobody has set */
    m.opts.wait_ms = 0;
    m.opts.lease_ms = 5000;
    cr_assert_eq(dl_acquire(lock, &m.opts, NULL), DL_OK);
    cr_assert_gt(dl_valid_ms(lock), 4000);
    cr_assert_eq(dl_unlock(lock, NULL), DL_OK);
    m.size = size - 8;
    cr_assert_eq(dl_acquire(lock, &m.opts, NULL), DL_EINVAL, "no release had it");
    dl_lock_close(lock);
    dl_client_close(client);
}

Test(layout, answers_fill_what_an_earlier_release_has_and_no_more) {
    dl_client_t *client = open_client(&yes);
    dl_lock_t *lock = open_lock(client);
    memory_t m;
    cr_assert_eq(dl_trylock_for(lock, 0, 100, NULL), DL_OK);

    size_t size = dli_layout_lock_info.earlier[0] = UNTIL(dl_lock_info_t, client);
    fill(&m, size);
    cr_assert_eq(dl_inspect(lock, &m.lock, NULL), DL_OK);
    cr_assert_eq(m.lock.held, 1);
    check_untouched(&m, size);

    size = dli_layout_client_info.earlier[0] = UNTIL(dl_client_info_t, server);
    fill(&m, size);
    cr_assert_eq(dl_client_info(client, &m.client), DL_OK);
    cr_assert_str_eq(m.client.driver, "yes");
    check_untouched(&m, size);

    size = dli_layout_client_stats.earlier[0] = UNTIL(dl_client_stats_t, held_now);
    fill(&m, size);
    cr_assert_eq(dl_client_stats(client, &m.stats), DL_OK);
    cr_assert_eq(m.stats.acquired, 1);
    check_untouched(&m, size);

    struct pollfd lost = {.fd = dl_event_fd(client), .events = POLLIN};
    cr_assert_eq(poll(&lost, 1, 5000), 1);
    size = dli_layout_event.earlier[0] = UNTIL(dl_event_t, text);
    fill(&m, size);
    cr_assert_eq(dl_event_next(client, &m.event), DL_OK);
    cr_assert_eq(m.event.kind, DL_EVENT_LOST);
    cr_assert_str_eq(m.event.name, "name");
    check_untouched(&m, size);
    dl_lock_close(lock);
    dl_client_close(client);
}

Test(layout, a_driver_of_an_earlier_release_has_none_of_the_later_ops) {
    dl_driver_t older = yes;
    dl_client_t *client = NULL;
    older.size = UNTIL(dl_driver_t, inspect); /* the ops behind it are somebody else's memory */
    cr_assert_eq(dl_client_open_driver(&older, NULL, 0, &client, NULL), DL_EINVAL, "no release had it");
    dli_layout_driver.earlier[2] = older.size;
    client = open_client(&older);
    dl_lock_t *lock = open_lock(client);
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    cr_assert_eq(dl_lock(lock, NULL), DL_OK);
    cr_assert_eq(dl_token(lock), 7);
    cr_assert_eq(dl_inspect(lock, &info, NULL), DL_ENOTSUP);
    cr_assert_eq(dl_unlock(lock, NULL), DL_OK);
    dl_lock_close(lock);
    dl_client_close(client);
}

static void count_finding(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    (void)level;
    (void)subject;
    (void)text;
    ++*(int *)arg;
}

/* 0.1.0: no caps_off before its last ops, and no listen_fds after them. Its memory ends there. */
enum {
    HEAD = offsetof(dl_driver_t, caps_off),
    LAST = offsetof(dl_driver_t, listen_fds) - offsetof(dl_driver_t, check)
};

typedef union first_table {
    dl_driver_t table;
    unsigned char bytes[HEAD + LAST + 16];
} first_table_t;

static void make_first(first_table_t *older, const dl_driver_t *now) {
    memset(older, 0xa5, sizeof *older);
    memcpy(older->bytes, now, HEAD);
    memcpy(older->bytes + HEAD, &now->check, LAST);
    older->table.size = HEAD + LAST;
    older->table.abi = sizeof(void *) == 8 ? 1 : DL_DRIVER_ABI;
}

Test(layout, the_first_release_had_no_caps_off_before_its_last_ops) {
    first_table_t older;
    int findings = 0;
    make_first(&older, &yes);
    dl_client_t *client = open_client(&older.table);
    cr_assert_eq(dl_client_check(client, count_finding, &findings, NULL), DL_OK);
    cr_assert_geq(findings, 1);
    dl_client_close(client);
}

/* ---- what the first release waited by ---------------------------------------------------------------------
 */

#define BUSY_TIMES 5

static int tries;

static dl_status_t grant_in_the_end(void *state, void *hold, const dl_request_t *request, dl_grant_t *grant,
                                    dl_error_t *err) {
    if (++tries <= BUSY_TIMES) {
        grant->busy_ms = 60000; /* of another client of this library: who could hear would not look again */
        grant->busy_is_dlock = 1;
        return dl_driver_fail(err, DL_EBUSY, 0, "it is held");
    }
    return grant_anything(state, hold, request, grant, err);
}

/* In the places of watch, wait and unwatch, which had other arguments. */
static dl_status_t watch_as_then(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                 const dl_stop_t *stop, dl_watch_t **watch, dl_error_t *err) {
    (void)state;
    (void)name;
    (void)name_len;
    (void)deadline_ns;
    (void)stop;
    (void)watch;
    (void)err;
    abort();
}

static dl_status_t wait_as_then(void *state, dl_watch_t *watch, uint64_t deadline_ns, const dl_stop_t *stop,
                                dl_error_t *err) {
    (void)state;
    (void)watch;
    (void)deadline_ns;
    (void)stop;
    (void)err;
    abort();
}

static void unwatch_as_then(void *state, dl_watch_t *watch) {
    (void)state;
    (void)watch;
    abort();
}

Test(layout, waits_of_a_driver_of_the_first_release_poll, .timeout = 20) {
    if (sizeof(void *) != 8) {
        return; /* its dl_renewal_t was shorter: refused */
    }
    dl_driver_t waiting = yes;
    first_table_t older;
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    waiting.caps |= DL_CAP_NOTIFY;
    waiting.try_acquire = grant_in_the_end;
    make_first(&older, &waiting);
    void (*ops[3])(void) = {(void (*)(void))watch_as_then, (void (*)(void))wait_as_then,
                            (void (*)(void))unwatch_as_then};
    memcpy(older.bytes + offsetof(dl_driver_t, watch), ops, sizeof ops);
    dl_client_t *client = open_client(&older.table);
    cr_assert_eq(dl_client_info(client, &info), DL_OK);
    cr_assert_eq(info.caps, DL_CAP_LEASE | DL_CAP_FENCE);
    dl_lock_t *lock = open_lock(client);
    cr_assert_eq(dl_trylock_for(lock, 15000, DL_LEASE_AUTO, NULL), DL_OK);
    cr_assert_eq(tries, BUSY_TIMES + 1);
    cr_assert_eq(dl_unlock(lock, NULL), DL_OK);
    dl_lock_close(lock);
    dl_client_close(client);
    older.table.abi = 2; /* of no release */
    cr_assert_eq(dl_client_open_driver(&older.table, NULL, 0, &client, NULL), DL_EINVAL);
}

/* ---- the label -------------------------------------------------------------------------------------------
 */

static const char *host = "host";

/* In place of the C library's, as that is: a name that does not fit is an error. */
int gethostname(char *name, size_t len) {
    if (strlen(host) >= len) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(name, host);
    return 0;
}

Test(layout, a_label_has_the_beginning_of_a_long_host_name) {
    char expected[64];
    host = "orders-reconciliation-worker-europe-west-7c9d8b6f5d-x2k9q-64byte";
    (void)snprintf(expected, sizeof expected, "orders-reconciliation-worker-europe-west-7c9d8b:%ld",
                   (long)getpid());
    dl_client_t *client = open_client(&yes);
    cr_assert_str_eq(client->label, expected);
    dl_client_close(client);
}
