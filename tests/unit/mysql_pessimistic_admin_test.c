/* mysql_pessimistic_admin_test.c - mysql-pessimistic: who holds what, and ending another's hold. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_pessimistic_fixture.h"

TestSuite(mysql_pessimistic_admin, .init = set_up, .fini = tear_down, .timeout = 120);

Test(mysql_pessimistic_admin, a_forced_release_ends_the_holders_session_and_nobody_elses) {
    client_t a, b;
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    hold_t h = must_lock(&a, "orders", A, 1, 30000), other = must_lock(&a, "stock", A, 2, 30000);
    cr_assert_eq(force_name(&b, "order"), DL_ENOTOWNER);
    cr_assert_eq(force_name(&b, "orders"), DL_OK, "%s", b.err.message);
    cr_assert(!look(&b, "orders").held);
    cr_assert(is_row_free("orders"));
    cr_assert_eq(force_name(&b, "orders"), DL_ENOTOWNER);
    cr_assert_eq(renew_hold(&h, 30000), DL_ELOST);
    cr_assert_eq(free_hold(&h), DL_ELOST);
    cr_assert_eq(renew_hold(&other, 30000), DL_OK);
    drop_hold(&h);
    must_free(&other);
    shut(&a);
    shut(&b);
}

Test(mysql_pessimistic_admin, a_forced_release_of_another_accounts_hold_needs_the_right_to_it) {
    client_t a, b;
    char rights[80];
    must_open(&a, UUID_A);
    snprintf(rights, sizeof rights, "%s.*", database);
    mysql_user(server, "stranger", "SELECT, INSERT, UPDATE, DELETE", rights);
    prepare(&b, UUID_B);
    set_text(&b, DLI_MYSQL_OPT_USER, "stranger");
    open_prepared(&b);
    hold_t h = must_lock(&a, "orders", A, 1, 30000), theirs = new_hold(&b, "orders", B, 1);
    cr_assert_eq(try_hold(&theirs, 0), DL_EBUSY);
    cr_assert_eq(force_name(&b, "orders"), DL_EAUTH, "%s", b.err.message);
    dl_lock_info_t info = look(&b, "orders");
    cr_assert(info.held && (info.remaining_ms == -1 || info.remaining_ms > 20000),
              "its session is not shown");
    cr_assert_eq(renew_hold(&h, 30000), DL_OK);
    drop_hold(&theirs);
    must_free(&h);
    shut(&a);
    shut(&b);
    (void)mysql_ask(server, "DROP USER stranger");
}

/* Whenever it is looked at: a second of the server's clock may end at once. */
Test(mysql_pessimistic_admin, no_less_is_left_than_the_lease_less_the_time_that_has_passed) {
    client_t c;
    must_open(&c, UUID_A);
    uint64_t before_ms = now_ms(), passed_ms;
    hold_t h = must_lock(&c, "orders", A, 1, 30000);
    do {
        int64_t left_ms = look(&c, "orders").remaining_ms;
        passed_ms = now_ms() - before_ms + 1 + stood_ms();
        cr_assert_geq(left_ms, 30000 - (int64_t)passed_ms, "%ld after %lu ms", (long)left_ms,
                      (unsigned long)passed_ms);
    } while (passed_ms < 1100);
    must_free(&h);
    shut(&c);
}

Test(mysql_pessimistic_admin, what_is_left_counts_from_the_last_heartbeat) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t h = must_lock(&c, "orders", A, 1, 3000);
    (void)poll(NULL, 0, 2100);
    int64_t left_ms = look(&c, "orders").remaining_ms;
    cr_assert_geq(left_ms, 0, "%ld", (long)left_ms);
    cr_assert_leq(left_ms, 1000, "%ld", (long)left_ms);
    cr_assert_eq(renew_hold(&h, 3000), DL_OK);
    left_ms = look(&c, "orders").remaining_ms;
    cr_assert_gt(left_ms, 1900, "%ld", (long)left_ms);
    cr_assert_leq(left_ms, 3000, "%ld", (long)left_ms);
    must_free(&h);
    shut(&c);
}

typedef struct seen {
    int count, in_order, stop_after;
    char last[DL_NAME_MAX + 1];
} seen_t;

static int note_name(void *arg, const char *name, const dl_lock_info_t *info) {
    seen_t *seen = arg;
    seen->in_order += strcmp(name, seen->last) > 0 && info->held && info->hold_id > 0 && info->token > 0 &&
                      info->remaining_ms > 20000 && info->remaining_ms <= 30000;
    snprintf(seen->last, sizeof seen->last, "%s", name);
    return ++seen->count == seen->stop_after;
}

static seen_t list(client_t *c, const char *prefix, int stop_after) {
    seen_t seen = {.stop_after = stop_after};
    cr_assert_eq(driver->list(c->state, prefix, strlen(prefix), note_name, &seen, in_ms(5000), &c->err),
                 DL_OK, "%s", c->err.message);
    cr_assert_eq(seen.in_order, seen.count);
    return seen;
}

static int dawdle(void *arg, const char *name, const dl_lock_info_t *info) {
    const uint64_t *deadline_ns = arg;
    (void)name;
    (void)info;
    while (in_ms(0) < *deadline_ns) {
        (void)poll(NULL, 0, 10);
    }
    return 0;
}

Test(mysql_pessimistic_admin, a_list_longer_than_a_page_names_each_hold_with_the_prefix_once) {
    enum { MANY = 105 }; /* more than a page */
    static hold_t holds[MANY + 3];
    char names[MANY][16];
    client_t c;
    prepare(&c, UUID_A);
    set_number(&c, DLI_MYSQL_OPT_MAX_TOTAL, MANY + 3);
    open_prepared(&c);
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "job/%03d", i);
        holds[i] = must_lock(&c, names[i], A, (uint64_t)i + 1, 30000);
    }
    holds[MANY] = must_lock(&c, "job0", A, 1001, 30000);
    holds[MANY + 1] = must_lock(&c, "\xff\xff", A, 1002, 30000);
    holds[MANY + 2] = must_lock(&c, "JOB/1", A, 1003, 30000);
    cr_assert_eq(list(&c, "job/", 0).count, MANY);
    cr_assert_eq(list(&c, "", 0).count, MANY + 3);
    cr_assert_eq(list(&c, "\xff", 0).count, 1);
    cr_assert_eq(list(&c, "job/", 7).count, 7);
    cr_assert_eq(list(&c, "job/%", 0).count, 0);
    uint64_t deadline_ns = in_ms(2000); /* for a page, also on a busy machine */
    cr_assert_eq(driver->list(c.state, "", 0, dawdle, &deadline_ns, deadline_ns, &c.err), DL_EIO);
    cr_assert(strstr(c.err.message, "listing took longer than call_timeout"), "%s", c.err.message);
    for (int i = 0; i < MANY + 3; i++) {
        must_free(&holds[i]);
    }
    cr_assert_eq(list(&c, "", 0).count, 0);
    shut(&c);
}

Test(mysql_pessimistic_admin, a_list_leaves_out_what_cannot_be_a_name) {
    client_t c;
    must_open(&c, UUID_A);
    hold_t h = must_lock(&c, "a", A, 1, 30000);
    mysql_ask(server, "INSERT INTO %s." TABLE "(name,owner,hold_id) VALUES(x'610062','" A "',2)", database);
    cr_assert_eq(list(&c, "", 0).count, 1);
    cr_assert_eq(list(&c, "a", 0).count, 1);
    must_free(&h);
    shut(&c);
}
