/* core_test.c - the small parts of the core, each alone. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/client.h"
#include "core/core.h"
#include "drivers/registry.h"

/* ---- statuses ---------------------------------------------------------------------------------- */

Test(error, every_status_has_a_name_and_a_text) {
    for (int i = 0; i < DL_STATUS_COUNT; i++) {
        cr_assert_eq(strncmp(dl_status_name((dl_status_t)i), "DL_", 3), 0, "status %d", i);
        cr_assert_gt(strlen(dl_status_text((dl_status_t)i)), 5, "status %d", i);
    }
    cr_assert_str_eq(dl_status_name(DL_EFORKED), "DL_EFORKED");
    cr_assert_str_eq(dl_status_name((dl_status_t)DL_STATUS_COUNT), "DL_UNKNOWN_STATUS");
    cr_assert_str_eq(dl_status_name((dl_status_t)-1), "DL_UNKNOWN_STATUS");
}

Test(error, a_message_is_one_line_and_always_terminated) {
    dl_error_t err;
    char big[600];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    cr_assert_eq(dl_driver_fail(&err, DL_EIO, 7, "a\nb\tc\x1b%s", big), DL_EIO);
    cr_assert_eq(err.native, 7);
    cr_assert_eq(strncmp(err.message, "a b c x", 7), 0, "%s", err.message);
    cr_assert_eq(strlen(err.message), sizeof err.message - 1);
    cr_assert_eq(dl_driver_fail(NULL, DL_EIO, 0, "nobody listens"), DL_EIO);
}

Test(error, a_message_is_utf8_and_steers_no_terminal) {
    dl_error_t err;
    char full[sizeof err.message - 1];
    (void)dl_driver_fail(&err, DL_EIO, 0, "%s",
                         "\xff\xc3\xa9\xc2\x9b"
                         "31m\xed\xa0\x80\xe2\x82");
    cr_assert_str_eq(err.message, "?\xc3\xa9  31m?????");
    memset(full, 'x', sizeof full - 1);
    full[sizeof full - 1] = '\0';
    (void)dl_driver_fail(&err, DL_EIO, 0, "%s\xc3\xa9", full);
    cr_assert_eq(strlen(err.message), sizeof err.message - 1);
    cr_assert_eq(err.message[sizeof err.message - 2], '?', "half a character");
}

/* ---- owners ------------------------------------------------------------------------------------ */

Test(owner, uuids_are_random_and_of_version_4) {
    char a[37], b[37];
    cr_assert_eq(dli_uuid_new(a), 0);
    cr_assert_eq(dli_uuid_new(b), 0);
    cr_assert_str_neq(a, b);
    cr_assert_eq(strlen(a), 36);
    cr_assert_eq(a[14], '4');
    cr_assert_not_null(strchr("89ab", a[19]));
    for (int i = 0; i < 36; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        cr_assert(dash ? a[i] == '-' : strchr("0123456789abcdef", a[i]) != NULL, "%s", a);
    }
}

static void *thread_number(void *out) {
    *(uint64_t *)out = dli_thread_self()->number;
    return NULL;
}

Test(owner, a_thread_number_is_never_used_again) {
    uint64_t seen[20];
    for (int i = 0; i < 20; i++) {
        /* One after the other: the operating system would use its thread ids again. */
        pthread_t thread;
        cr_assert_eq(pthread_create(&thread, NULL, thread_number, &seen[i]), 0);
        pthread_join(thread, NULL);
        if (i > 0) {
            cr_assert_gt(seen[i], seen[i - 1]);
        }
    }
    cr_assert_eq(dli_thread_self(), dli_thread_self());
}

Test(owner, threads_and_tasks_with_one_number_are_not_one_owner) {
    dli_thread_t *self = dli_thread_self();
    dli_owner_t thread = {.number = self->number, .thread = self}, task = {.number = self->number};
    cr_assert(!dli_owner_equal(&thread, &task));
    char a[DLI_OWNER_TEXT], b[DLI_OWNER_TEXT];
    dli_owner_text(&thread, "u", a);
    dli_owner_text(&task, "u", b);
    cr_assert_str_neq(a, b);
    dli_owner_t largest = {.number = UINT64_MAX};
    dli_owner_text(&largest, "00000000-0000-0000-0000-000000000000", a);
    cr_assert_str_eq(a, "00000000-0000-0000-0000-000000000000:t18446744073709551615");
}

/* No handler of pthread_atfork has run there. */
Test(origin, a_process_made_by_clone_alone_is_another) {
    dli_origin_t parents = dli_origin();
    long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        bool is_seen = dli_is_inherited(&parents);
        dli_origin_t own = dli_origin();
        _exit(is_seen && own.pid == getpid() && !dli_is_inherited(&own) ? 0 : 1);
    }
    int status = -1;
    cr_assert_gt(pid, 0);
    cr_assert_eq(waitpid((pid_t)pid, &status, 0), pid);
    cr_assert_eq(status, 0, "it takes what it inherited for its own");
    cr_assert_not(dli_is_inherited(&parents));
}

/* ---- arithmetic -------------------------------------------------------------------------------- */

Test(hold, validity_is_the_lease_less_one_percent_and_two_milliseconds) {
    cr_assert_eq(dli_valid_until(1000, 30000), 1000 + (30000 - 300 - 2) * (uint64_t)DLI_NS_PER_MS);
    cr_assert_eq(dli_valid_until(0, 100), (100 - 1 - 2) * (uint64_t)DLI_NS_PER_MS);
    /* A lease of 365 days and an uptime of a hundred years fit. */
    uint64_t century = 100u * 365u * 86400u * (uint64_t)1000000000u;
    cr_assert_gt(dli_valid_until(century, DL_LEASE_MAX_MS), century);
}

Test(acquire, pauses_grow_to_the_maximum_and_are_never_nothing) {
    dl_client_t client;
    memset(&client, 0, sizeof client);
    client.backoff_min_ms = 4;
    client.backoff_max_ms = 64;
    uint64_t longest = 0;
    for (unsigned tries = 0; tries < 100; tries++) {
        uint64_t cap_ms = tries < 4 ? 4u << tries : 64;
        for (int i = 0; i < 200; i++) {
            uint64_t ns = dli_backoff(&client, tries);
            cr_assert_gt(ns, 0, "try %u: %llu ns", tries, (unsigned long long)ns);
            cr_assert_leq(ns, cap_ms * DLI_NS_PER_MS, "try %u: %llu ns", tries, (unsigned long long)ns);
            longest = ns > longest ? ns : longest;
        }
    }
    cr_assert_gt(longest, 32u * DLI_NS_PER_MS, "full jitter reaches the upper half");
}

/* ---- gates ------------------------------------------------------------------------------------- */

static size_t count_gates(dl_client_t *client) {
    size_t n = 0;
    for (dli_gate_t *gate = dli_gate_after(client, NULL); gate != NULL; gate = dli_gate_after(client, gate)) {
        n++;
    }
    return n;
}

Test(gate, names_are_exact_and_a_gate_goes_with_its_last_reference) {
    dl_client_t client;
    memset(&client, 0, sizeof client);
    dli_gate_t *a = dli_gate_get(&client, "a", 1), *again = dli_gate_get(&client, "a", 1);
    dli_gate_t *space = dli_gate_get(&client, "a ", 2), *capital = dli_gate_get(&client, "A", 1);
    cr_assert_eq(a, again);
    cr_assert_neq(a, space);
    cr_assert_neq(a, capital);
    cr_assert_neq(space, capital);
    cr_assert_eq(count_gates(&client), 3);
    dli_gate_unref(again);
    cr_assert_eq(count_gates(&client), 3);
    dli_gate_unref(a);
    dli_gate_unref(space);
    dli_gate_unref(capital);
    cr_assert_null(client.gates);
}

Test(gate, thousands_of_names_are_found_again_among_each_other) {
    dl_client_t client;
    memset(&client, 0, sizeof client);
    static dli_gate_t *gates[5000];
    char name[16];
    for (int i = 0; i < 5000; i++) {
        int n = snprintf(name, sizeof name, "n%d", i);
        gates[i] = dli_gate_get(&client, name, (size_t)n);
    }
    for (int i = 0; i < 5000; i++) {
        int n = snprintf(name, sizeof name, "n%d", i);
        cr_assert_eq(dli_gate_get(&client, name, (size_t)n), gates[i]);
        dli_gate_unref(gates[i]);
        dli_gate_unref(gates[i]);
    }
    cr_assert_null(client.gates);
}

/* ---- the validation door ----------------------------------------------------------------------- */

Test(driver_check, a_table_of_another_abi_is_refused) {
    dl_driver_t table, taken;
    memset(&table, 0, sizeof table);
    table.abi = DL_DRIVER_ABI + 1;
    table.size = sizeof table;
    dl_error_t err;
    cr_assert_eq(dli_driver_take(&table, NULL, &taken, &err), DL_EINVAL);
    cr_assert_has(err.message, "ABI");
    cr_assert_eq(dli_driver_take(NULL, NULL, &taken, &err), DL_EINVAL);
}

/* What check says of a backend with this table, "" if nothing. */
static const char *said_of_backend(dl_driver_t table, dl_error_t *err) {
    dl_driver_t taken;
    dli_backend_t backend = {.driver = &table};
    err->message[0] = '\0';
    return dli_driver_take(&table, &backend, &taken, err) == DL_OK ? "" : err->message;
}

Test(driver_check, a_backend_has_no_ops_that_ask_but_it_listens) {
    const dl_driver_t *whole = dli_registry_find("sqlite");
    whole = whole != NULL ? whole : dli_registry_find("redis-string"); /* a build has one of them */
    dl_error_t err;
    dl_driver_t table = *whole;
    table.try_acquire = NULL;
    table.release = NULL;
    table.renew = NULL;
    cr_assert_str_eq(said_of_backend(table, &err), "");
    dl_driver_t without_watch = table;
    without_watch.watch = NULL;
    without_watch.unwatch = NULL;
    cr_assert_has(said_of_backend(without_watch, &err), "NOTIFY");
    without_watch.caps &= ~DL_CAP_NOTIFY;
    cr_assert_str_eq(said_of_backend(without_watch, &err), "");
    without_watch.listen_fds = NULL;
    cr_assert_has(said_of_backend(without_watch, &err), "together");
    without_watch.listen = NULL;
    cr_assert_has(said_of_backend(without_watch, &err), "listens");
    dl_driver_t session = table;
    session.caps = (session.caps & ~DL_CAP_LEASE) | DL_CAP_SESSION;
    cr_assert_has(said_of_backend(session, &err), "leases");
}

/* ---- whose an object is ---------------------------------------------------------------------------- */

#define NO_NAMESPACE 99

/* What this comes to in a child that is the first process of a namespace: its number is 1 whatever has it
 * elsewhere. Before it nothing of the library was used here. */
static int as_first_process(int (*run)(dl_cancel_t *), dl_cancel_t *cancel) {
    int status = 0;
    if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
        return NO_NAMESPACE;
    }
    pid_t child = fork();
    if (child == 0) {
        _exit(run(cancel));
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int use_inherited(dl_cancel_t *cancel) {
    return dl_cancel_fd(cancel) == -1 ? 0 : 1;
}

static int make_and_fork(dl_cancel_t *none) {
    dl_cancel_t *cancel = none;
    return dl_cancel_new(&cancel, NULL) == DL_OK ? as_first_process(use_inherited, cancel) : 2;
}

Test(origin, an_object_is_known_as_inherited_where_the_number_of_its_process_comes_again) {
    int outcome = as_first_process(make_and_fork, NULL);
    if (outcome == NO_NAMESPACE) {
        cr_skip("no namespace of processes here: %s", strerror(errno));
    }
    cr_assert_eq(outcome, 0);
}
