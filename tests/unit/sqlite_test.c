/* sqlite_test.c - the SQLite driver: who gets a lock, for how long, with which token. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "sqlite_fixture.h"

#include "drivers/sqlite/store.h"

TestSuite(sqlite, .init = set_up, .fini = tear_down, .timeout = 60);

/* ---- registry --------------------------------------------------------------------------------------- */

Test(sqlite, the_registry_knows_what_it_has_and_what_it_could_have) {
    cr_assert_eq(dli_registry_find("sqlite"), &dli_sqlite_driver);
    cr_assert_eq(dli_registry_at(0), &dli_sqlite_driver);
    /* What else is in the build is found by its name too. */
    const dl_driver_t *found;
    for (size_t i = 0; (found = dli_registry_at(i)) != NULL; i++) {
        cr_assert_eq(dli_registry_find(found->name), found);
    }
    cr_assert_null(dli_registry_find("redlok"));
    cr_assert_null(dli_registry_find(NULL));
    cr_assert(dli_registry_known("redlock"));
    cr_assert(!dli_registry_known("redlok"));
    cr_assert_str_eq(dli_registry_build_option("redlock"), "DLOCK_WITH_REDIS");
    cr_assert_str_eq(dli_registry_build_option("mysql-lease"), "DLOCK_WITH_MYSQL");
    cr_assert_null(dli_registry_build_option("redlok"));
    size_t known = 0;
    while (dli_registry_known_at(known) != NULL) {
        known++;
    }
    cr_assert_eq(known, 7);
    cr_assert_eq(driver()->caps, DL_CAP_LEASE | DL_CAP_FENCE | DL_CAP_NOTIFY);
}

/* ---- taking and freeing ----------------------------------------------------------------------------- */

Test(sqlite, a_free_lock_is_granted_and_freed_once) {
    client_t c;
    must_open(&c, UUID_A);
    dl_request_t r = request("orders", A, 1);
    dl_grant_t grant;
    uint64_t before_ns = now_shifted();
    unsigned long trips = atomic_load(&round_trips);
    cr_assert_eq(take_full(&c, &r, &grant), DL_OK, "%s", c.err.message);
    cr_assert_gt(grant.token, 0);
    cr_assert_geq(grant.sent_ns, before_ns);
    cr_assert_leq(grant.sent_ns, now_shifted());
    cr_assert_eq(atomic_load(&round_trips), trips + 1);
    dl_lock_info_t info = look(&c, "orders");
    cr_assert(info.held);
    cr_assert_str_eq(info.owner, A);
    cr_assert_str_eq(info.client, "host:1");
    cr_assert_eq(info.token, grant.token);
    cr_assert_eq(info.hold_id, 1);
    cr_assert_gt(info.remaining_ms, 29000);
    cr_assert_leq(info.remaining_ms, 30000);
    cr_assert_eq(drop(&c, "orders", A, 1), DL_OK);
    cr_assert_eq(drop(&c, "orders", A, 1), DL_ELOST);
    cr_assert(!look(&c, "orders").held);
    must_close(&c);
}

Test(sqlite, another_owner_is_told_how_long_and_changes_nothing) {
    client_t a, b;
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    uint64_t token;
    cr_assert_eq(take(&a, "orders", A, 1, 5000, &token), DL_OK);
    dl_request_t r = request("orders", B, 9);
    dl_grant_t grant;
    cr_assert_eq(take_full(&b, &r, &grant), DL_EBUSY);
    cr_assert_gt(grant.busy_ms, 4000, "%lld", (long long)grant.busy_ms);
    cr_assert_leq(grant.busy_ms, 5000, "%lld", (long long)grant.busy_ms);
    cr_assert_eq(grant.busy_is_dlock, 1);
    cr_assert_eq(drop(&b, "orders", B, 9), DL_ELOST);
    cr_assert_eq(renew(&b, "orders", B, 9, 5000), DL_ELOST);
    dl_lock_info_t info = look(&b, "orders");
    cr_assert(info.held);
    cr_assert_str_eq(info.owner, A);
    cr_assert_eq(info.token, token);
    must_close(&a);
    must_close(&b);
}

Test(sqlite, a_newer_hold_of_the_same_owner_replaces_an_older_one_never_the_reverse) {
    client_t c;
    must_open(&c, UUID_A);
    uint64_t first, second, again;
    cr_assert_eq(take(&c, "orders", A, 5, 30000, &first), DL_OK);
    cr_assert_eq(take(&c, "orders", A, 7, 1000, &second), DL_OK);
    cr_assert_gt(second, first);
    cr_assert_leq(look(&c, "orders").remaining_ms, 1000);
    cr_assert_eq(take(&c, "orders", A, 5, 30000, NULL), DL_EBUSY);
    cr_assert_eq(renew(&c, "orders", A, 5, 30000), DL_ELOST);
    cr_assert_eq(drop(&c, "orders", A, 5), DL_ELOST);
    cr_assert_eq(take(&c, "orders", A, 7, 30000, &again), DL_OK);
    cr_assert_gt(again, second);
    cr_assert_gt(look(&c, "orders").remaining_ms, 29000);
    cr_assert_eq(drop(&c, "orders", A, 7), DL_OK);
    must_close(&c);
}

Test(sqlite, an_expired_lock_goes_to_the_next_and_its_holder_cannot_touch_it) {
    client_t a, b;
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    uint64_t first, second;
    cr_assert_eq(take(&a, "orders", A, 1, 1000, &first), DL_OK);
    clock_ahead_ns += (int64_t)(1001 * MS);
    cr_assert(!look(&a, "orders").held);
    cr_assert_eq(renew(&a, "orders", A, 1, 30000), DL_ELOST);
    cr_assert(!look(&a, "orders").held, "revived");
    cr_assert_eq(take(&b, "orders", B, 1, 30000, &second), DL_OK);
    cr_assert_gt(second, first);
    cr_assert_eq(renew(&a, "orders", A, 1, 30000), DL_ELOST);
    cr_assert_eq(drop(&a, "orders", A, 1), DL_ELOST);
    cr_assert_str_eq(look(&a, "orders").owner, B);
    must_close(&a);
    must_close(&b);
}

Test(sqlite, an_expired_lock_that_nobody_took_can_be_freed) {
    client_t c;
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "orders", A, 1, 1000, NULL), DL_OK);
    clock_ahead_ns += (int64_t)(2000 * MS);
    cr_assert_eq(drop(&c, "orders", A, 1), DL_OK);
    cr_assert_eq(drop(&c, "orders", A, 1), DL_ELOST);
    must_close(&c);
}

Test(sqlite, names_are_compared_byte_by_byte) {
    char longest[DL_NAME_MAX + 1];
    memset(longest, 'x', DL_NAME_MAX);
    longest[DL_NAME_MAX] = '\0';
    const char *names[] = {
        "a",     "A",     "a ",        " a",       "a\n",       "'; DROP TABLE dlock_locks; --",
        "\"",    "{}",    "\xff\xfe",  "\xc3\xa4", "a\xcc\x88", "%",
        "_",     longest, longest + 1, "1",        "01",        "1.0",
        "x'61'", "a\t"};
    client_t c;
    must_open(&c, UUID_A);
    size_t n = sizeof names / sizeof names[0];
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(take(&c, names[i], A, i + 1, 30000, NULL), DL_OK, "%s", names[i]);
    }
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(look(&c, names[i]).hold_id, i + 1, "%s", names[i]);
        cr_assert_eq(drop(&c, names[i], A, i + 1), DL_OK, "%s", names[i]);
    }
    must_close(&c);
}

/* ---- renewing --------------------------------------------------------------------------------------- */

Test(sqlite, a_renewal_extends_and_never_shortens) {
    client_t c;
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "orders", A, 1, 60000, NULL), DL_OK);
    cr_assert_eq(renew(&c, "orders", A, 1, 1000), DL_OK);
    cr_assert_gt(look(&c, "orders").remaining_ms, 59000);
    cr_assert_eq(renew(&c, "orders", A, 1, 300000), DL_OK);
    cr_assert_gt(look(&c, "orders").remaining_ms, 299000);
    must_close(&c);
}

Test(sqlite, each_entry_of_a_batch_has_its_own_outcome) {
    enum { N = 1300 };
    static char names[N][16];
    static dl_renewal_t batch[N];
    client_t c;
    must_open(&c, UUID_A);
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "lock%d", i);
        batch[i] = renewal(names[i], A, 1, 90000);
        if (i % 3 != 0) {
            cr_assert_eq(take(&c, names[i], A, 1, i % 3 == 1 ? 30000 : 100, NULL), DL_OK);
        }
    }
    clock_ahead_ns += (int64_t)(1000 * MS);
    uint64_t before_ns = now_shifted();
    unsigned long trips = atomic_load(&round_trips);
    driver()->renew(c.state, batch, N, in_ms(2000));
    cr_assert_leq(atomic_load(&round_trips), trips + 10, "not one transaction for many");
    for (int i = 0; i < N; i++) {
        cr_assert_eq(batch[i].status, i % 3 == 1 ? DL_OK : DL_ELOST, "%d: %d", i, batch[i].status);
        cr_assert_geq(batch[i].sent_ns, before_ns);
        cr_assert_leq(batch[i].sent_ns, now_shifted());
    }
    cr_assert_gt(look(&c, names[1]).remaining_ms, 89000);
    cr_assert(!look(&c, names[2]).held);
    must_close(&c);
}

/* ---- tokens ----------------------------------------------------------------------------------------- */

Test(sqlite, tokens_rise_over_many_holders_and_names_leave_nothing_behind) {
    client_t c;
    must_open(&c, UUID_A);
    uint64_t last = 0, token = 0;
    char name[32];
    for (uint64_t i = 1; i <= 3000; i++) {
        cr_assert_eq(take(&c, "orders", A, i, 30000, &token), DL_OK);
        cr_assert_gt(token, last);
        last = token;
        cr_assert_eq(drop(&c, "orders", A, i), DL_OK);
        snprintf(name, sizeof name, "name %llu", (unsigned long long)i);
        cr_assert_eq(take(&c, name, A, i, 30000, NULL), DL_OK);
        cr_assert_eq(drop(&c, name, A, i), DL_OK);
    }
    must_close(&c);
    sql("CREATE TEMP TABLE t(n CHECK (n = 0)); INSERT INTO t SELECT count(*) FROM dlock_locks");
}

Test(sqlite, a_stopped_clock_cannot_repeat_a_token) {
    client_t c;
    must_open(&c, UUID_A);
    uint64_t last = 0, token = 0;
    for (uint64_t i = 1; i <= 20; i++) {
        uint64_t before_ns = dli_sys_real.now_ns();
        cr_assert_eq(take(&c, "orders", A, i, 30000, &token), DL_OK);
        cr_assert_gt(token, last);
        last = token;
        /* The clock falls back behind the whole hold: as good as standing still. */
        clock_ahead_ns -= (int64_t)(dli_sys_real.now_ns() - before_ns) + (int64_t)MS;
        cr_assert_eq(drop(&c, "orders", A, i), DL_OK);
    }
    must_close(&c);
}

Test(sqlite, a_token_is_above_the_floor_and_so_are_all_later_ones) {
    client_t a, b;
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    uint64_t token, later;
    cr_assert_eq(take(&a, "orders", A, 1, 30000, &token), DL_OK);
    cr_assert_eq(drop(&a, "orders", A, 1), DL_OK);
    dl_request_t r = request("orders", A, 2);
    dl_grant_t grant;
    r.token_floor = token + 1000 * (uint64_t)1000000000;
    cr_assert_eq(take_full(&a, &r, &grant), DL_OK, "%s", a.err.message);
    cr_assert_gt(grant.token, r.token_floor);
    cr_assert_eq(drop(&a, "orders", A, 2), DL_OK);
    cr_assert(!look(&a, "orders").held);
    cr_assert_eq(take(&b, "orders", B, 1, 30000, &later), DL_OK);
    cr_assert_gt(later, grant.token);
    cr_assert_eq(driver()->force_release(b.state, "orders", 6, in_ms(2000), &b.err), DL_OK);
    cr_assert_eq(take(&a, "orders", A, 3, 30000, &token), DL_OK);
    cr_assert_gt(token, later);
    r = request("orders", A, 4);
    r.token_floor = UINT64_MAX;
    cr_assert_eq(take_full(&a, &r, &grant), DL_ELIMIT);
    must_close(&a);
    must_close(&b);
}

static dl_grant_t take_block(client_t *c, uint64_t hold_id, uint64_t floor, uint64_t tokens) {
    dl_request_t r = request("orders", A, hold_id);
    dl_grant_t grant;
    r.token_floor = floor;
    r.tokens = tokens;
    cr_assert_eq(take_full(c, &r, &grant), DL_OK, "%s", c->err.message);
    cr_assert_gt(grant.token, floor);
    return grant;
}

Test(sqlite, a_row_keeps_the_last_token_of_a_block) {
    const uint64_t end = (uint64_t)INT64_MAX / 2, hour = (uint64_t)3600 * 1000000;
    client_t c;
    must_open(&c, UUID_A);
    dl_grant_t one = take_block(&c, 1, 0, 1);
    cr_assert_eq(one.tokens, 1);
    dl_grant_t many = take_block(&c, 2, one.token + hour, 33);
    cr_assert_eq(many.token, one.token + hour + 1);
    cr_assert_eq(many.tokens, 33);
    cr_assert_eq(look(&c, "orders").token, many.token + 32);
    cr_assert_eq(take_block(&c, 3, 0, 1).token, many.token + 33);
    /* Also when it is free, by a release or by force. */
    many = take_block(&c, 4, 0, 1000);
    cr_assert_eq(drop(&c, "orders", A, 4), DL_OK);
    cr_assert_eq(take_block(&c, 5, 0, 10).token, many.token + 1000);
    cr_assert_eq(driver()->force_release(c.state, "orders", 6, in_ms(2000), &c.err), DL_OK);
    cr_assert_eq(take_block(&c, 6, 0, 1).token, many.token + 1010);
    /* To the end of the numbers, and no further. */
    many = take_block(&c, 7, end - 3, 33);
    cr_assert_eq(many.token, end - 2);
    cr_assert_eq(many.tokens, 3);
    must_close(&c);
}

Test(sqlite, a_new_boot_begins_above_the_whole_block) {
    const uint64_t five_minutes = (uint64_t)300 * 1000000;
    client_t c;
    dli_sqlite_boot_for_test = "boot-1";
    must_open(&c, UUID_A);
    /* The block ends above the reserve that its first token has. */
    dl_grant_t one = take_block(&c, 1, 0, 1);
    dl_grant_t block = take_block(&c, 2, one.token + five_minutes - 2000, 60000);
    cr_assert_eq(block.tokens, 60000);
    must_close(&c);
    dli_sqlite_boot_for_test = "boot-2";
    clock_ahead_ns = (int64_t)(10 * SECOND) - (int64_t)dli_sys_real.now_ns();
    must_open(&c, UUID_A);
    cr_assert_geq(take_block(&c, 1, 0, 1).token, block.token + block.tokens);
    must_close(&c);
}

Test(sqlite, a_new_boot_frees_everything_and_tokens_go_on_rising) {
    client_t c;
    uint64_t token, last = 0;
    dl_grant_t grant;
    for (int boot = 0; boot < 4; boot++) {
        char id[16];
        snprintf(id, sizeof id, "boot-%d", boot);
        dli_sqlite_boot_for_test = id;
        /* CLOCK_BOOTTIME begins anew. */
        clock_ahead_ns = (int64_t)(10 * SECOND) - (int64_t)dli_sys_real.now_ns();
        must_open(&c, UUID_A);
        cr_assert(!look(&c, "orders").held);
        cr_assert_eq(take(&c, "orders", boot % 2 == 0 ? A : B, 1, 3600000, &token), DL_OK);
        cr_assert_gt(token, last);
        dl_request_t r = request("floor", A, 1);
        r.token_floor = token + 1000000000;
        cr_assert_eq(take_full(&c, &r, &grant), DL_OK);
        cr_assert_gt(grant.token, r.token_floor);
        last = grant.token;
        must_close(&c);
    }
}

static dli_store_t *stopping;
static int changes_before;

/* Five minutes pass once, as soon as the ceiling is raised. */
static uint64_t now_after_a_stop(void) {
    if (stopping != NULL && sqlite3_total_changes(stopping->calls.db) == changes_before + 2) {
        stopping = NULL;
        clock_ahead_ns += (int64_t)(301 * SECOND);
    }
    return now_shifted();
}

Test(sqlite, a_process_that_is_stopped_while_it_raises_the_ceiling_gets_its_lock) {
    client_t c;
    dl_grant_t grant;
    must_open(&c, UUID_A);
    dl_request_t r = request("orders", A, 1);
    r.deadline_ns = in_ms(3600000);
    stopping = c.state;
    changes_before = sqlite3_total_changes(stopping->calls.db);
    c.env.now_ns = now_after_a_stop;
    cr_assert_eq(take_full(&c, &r, &grant), DL_OK, "%s", c.err.message);
    cr_assert_null(stopping);
    must_close(&c);
}

/* ---- administration --------------------------------------------------------------------------------- */

typedef struct listing {
    client_t *client;
    int n, stop_after, wrong;
    char last[DL_NAME_MAX + 1];
} listing_t;

static int note_lock(void *arg, const char *name, const dl_lock_info_t *info) {
    listing_t *l = arg;
    l->wrong += !info->held || strcmp(name, l->last) <= 0;
    snprintf(l->last, sizeof l->last, "%s", name);
    if (l->n == 0) {
        /* No lock of the driver is held here: calls are possible. */
        l->wrong += take(l->client, "zz", B, 1, 30000, NULL) != DL_OK || drop(l->client, "zz", B, 1) != DL_OK;
    }
    return ++l->n == l->stop_after;
}

static int list(client_t *c, const char *prefix, int stop_after) {
    listing_t l = {.client = c, .stop_after = stop_after};
    cr_assert_eq(driver()->list(c->state, prefix, strlen(prefix), note_lock, &l, in_ms(2000), &c->err),
                 DL_OK);
    cr_assert_eq(l.wrong, 0);
    return l.n;
}

Test(sqlite, held_locks_are_listed_by_prefix) {
    client_t c;
    must_open(&c, UUID_A);
    char name[32];
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "job/%03d", i);
        cr_assert_eq(take(&c, name, A, 1, 30000, NULL), DL_OK);
    }
    cr_assert_eq(take(&c, "job0", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(take(&c, "\xff\xff", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(take(&c, "job/gone", A, 1, 100, NULL), DL_OK);
    cr_assert_eq(drop(&c, "job/000", A, 1), DL_OK);
    clock_ahead_ns += (int64_t)(200 * MS);
    cr_assert_eq(list(&c, "job/", 0), 199);
    cr_assert_eq(list(&c, "job/19", 0), 10);
    cr_assert_eq(list(&c, "", 0), 201);
    cr_assert_eq(list(&c, "", 65), 65);
    cr_assert_eq(list(&c, "\xff", 0), 1);
    cr_assert_eq(list(&c, "nothing", 0), 0);
    must_close(&c);
}

Test(sqlite, force_release_frees_whoever_holds_and_the_holder_learns_it) {
    client_t a, b;
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    cr_assert_eq(take(&a, "orders", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(driver()->force_release(b.state, "orders", 6, in_ms(2000), &b.err), DL_OK);
    cr_assert_eq(driver()->force_release(b.state, "orders", 6, in_ms(2000), &b.err), DL_ENOTOWNER);
    cr_assert_eq(renew(&a, "orders", A, 1, 30000), DL_ELOST);
    cr_assert_eq(drop(&a, "orders", A, 1), DL_ELOST);
    must_close(&a);
    must_close(&b);
}

Test(sqlite, what_dead_holders_left_is_cleared_away) {
    client_t c;
    must_open(&c, UUID_A);
    char name[32];
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "dead %d", i);
        cr_assert_eq(take(&c, name, A, 1, 100, NULL), DL_OK);
    }
    cr_assert_eq(take(&c, "alive", A, 1, 3600000, NULL), DL_OK);
    clock_ahead_ns += (int64_t)(120 * SECOND);
    for (uint64_t i = 1; i <= 1500; i++) {
        cr_assert_eq(take(&c, "orders", A, i, 30000, NULL), DL_OK);
        cr_assert_eq(drop(&c, "orders", A, i), DL_OK);
    }
    cr_assert(look(&c, "alive").held);
    must_close(&c);
    sql("CREATE TEMP TABLE t(n CHECK (n = 1)); INSERT INTO t SELECT count(*) FROM dlock_locks");
}

typedef struct report {
    int n, errors, warnings, sql_lines;
    char all[16384];
} report_t;

static void note_finding(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    report_t *r = arg;
    r->n++;
    r->errors += level == DL_FINDING_ERROR;
    r->warnings += level == DL_FINDING_WARNING;
    r->sql_lines += strcmp(subject, "sql") == 0;
    cr_assert_null(strchr(text, '\n'));
    size_t len = strlen(r->all);
    snprintf(r->all + len, sizeof r->all - len, "%s: %s\n", subject, text);
}

Test(sqlite, check_says_what_holds_and_what_weakens_it) {
    static report_t good, open_to_all;
    client_t c;
    must_open(&c, UUID_A);
    cr_assert_eq(driver()->check(c.state, note_finding, &good, in_ms(2000), &c.err), DL_OK);
    cr_assert_eq(good.errors + good.warnings, 0, "%s", good.all);
    cr_assert_has(good.all, "guarantee: at most one owner");
    cr_assert_has(good.all, "limit: a process that is stopped");
    cr_assert_has(good.all, "integrity: the file is sound");
    cr_assert_eq(chmod(path, 0666), 0);
    cr_assert_eq(driver()->check(c.state, note_finding, &open_to_all, in_ms(2000), &c.err), DL_OK);
    cr_assert_eq(open_to_all.warnings, 1, "%s", open_to_all.all);
    char text[256];
    driver()->describe(c.state, text, sizeof text);
    cr_assert_has(text, path);
    must_close(&c);
}

Test(sqlite, init_makes_the_file_or_says_what_it_would_do) {
    static report_t plan, made, again;
    client_t c;
    cr_assert_eq(open_options(&c, UUID_A, path, 0), DL_ECONFIG);
    cr_assert_has(c.err.message, "dlock init");
    must_close(&c);
    dl_option_value_t values[] = {{.is_set = 1, .string = path}, {.is_set = 1, .number = 0}};
    dl_error_t err;
    cr_assert_eq(driver()->init(values, &c.env, DL_INIT_PRINT, note_finding, &plan, in_ms(2000), &err),
                 DL_OK);
    cr_assert_gt(plan.sql_lines, 10);
    cr_assert_eq(access(path, F_OK), -1);
    cr_assert_eq(driver()->init(values, &c.env, 0, note_finding, &made, in_ms(2000), &err), DL_OK);
    cr_assert_has(made.all, "made the lock file");
    char log[160];
    snprintf(log, sizeof log, "%s-wal", path);
    cr_assert_neq(access(log, F_OK), 0, "what a change of the file's mode would not reach");
    cr_assert_eq(driver()->init(values, &c.env, 0, note_finding, &again, in_ms(2000), &err), DL_OK);
    cr_assert_has(again.all, "nothing to do");
    cr_assert_eq(open_options(&c, UUID_A, path, 0), DL_OK);
    must_close(&c);
}

/* ---- turns ------------------------------------------------------------------------------------------ */

static _Thread_local bool stands_still;
static int goes_on[2];

/* A thread that is not let run when it is woken, by a debugger for example. */
static int cond_wait_standing(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns) {
    int rc = cond_wait_shifted(cond, mutex, deadline_ns);
    if (stands_still) {
        char byte;
        pthread_mutex_unlock(mutex);
        (void)!read(goes_on[0], &byte, 1);
        pthread_mutex_lock(mutex);
        stands_still = false;
    }
    return rc;
}

typedef struct standing {
    client_t *c;
    dl_status_t (*call)(client_t *);
    dl_status_t status;
} standing_t;

static dl_status_t take_theirs(client_t *c) {
    return take(c, "theirs", A, 2, 30000, NULL);
}

static dl_status_t renew_orders(client_t *c) {
    return renew(c, "orders", A, 1, 30000);
}

static void *call_standing(void *arg) {
    standing_t *standing = arg;
    stands_still = true;
    standing->status = standing->call(standing->c);
    return NULL;
}

static int do_nothing(void *unused) {
    (void)unused;
    return 0;
}

/* The thread waits for the turn, and has waited for long when it is its turn. */
static pthread_t let_stand(standing_t *standing, dli_turn_t *turn) {
    pthread_t thread;
    bool waits = false;
    cr_assert(dli_turn_try(turn));
    cr_assert_eq(pthread_create(&thread, NULL, call_standing, standing), 0);
    while (!waits) {
        poll_shifted(NULL, 0, in_ms(5));
        pthread_mutex_lock(&turn->mutex);
        waits = turn->first != NULL;
        pthread_mutex_unlock(&turn->mutex);
    }
    poll_shifted(NULL, 0, in_ms(5));
    dli_turn_give(turn, &standing->c->env);
    return thread;
}

Test(sqlite, a_thread_that_does_not_run_when_its_turn_has_come_keeps_no_other_out) {
    client_t c;
    must_open(&c, UUID_A);
    cr_assert_eq(pipe(goes_on), 0);
    c.env.cond_wait = cond_wait_standing;
    dli_store_t *store = c.state;
    standing_t calls = {.c = &c, .call = take_theirs}, renewals = {.c = &c, .call = renew_orders};
    uint64_t from_ns = now_shifted();
    pthread_t caller = let_stand(&calls, &store->calls.turn);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_OK, "%s", c.err.message);
    pthread_t renewer = let_stand(&renewals, &store->renewals.turn);
    cr_assert_eq(renew_orders(&c), DL_OK);
    for (uint64_t hold_id = 3; hold_id < 100; hold_id++) { /* only once late */
        cr_assert_eq(take(&c, "orders", A, hold_id, 30000, NULL), DL_OK, "%s", c.err.message);
        poll_shifted(NULL, 0, in_ms(1));
    }
    cr_assert_eq(ended(spawn(do_nothing, NULL)), 0);
    cr_assert_lt(now_shifted() - from_ns, 1000 * MS);
    cr_assert_eq(write(goes_on[1], "xx", 2), 2);
    cr_assert_eq(pthread_join(caller, NULL), 0);
    cr_assert_eq(pthread_join(renewer, NULL), 0);
    cr_assert_eq(calls.status, DL_OK);
    cr_assert_eq(renewals.status, DL_ELOST, "that hold is over");
    must_close(&c);
    close(goes_on[0]);
    close(goes_on[1]);
}
