/* sqlite_hostile_test.c - the SQLite driver on files prepared to keep it busy or to break it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "sqlite_fixture.h"

#include <sys/eventfd.h>

#include "drivers/sqlite/store.h"

TestSuite(sqlite_hostile, .init = set_up, .fini = tear_down, .timeout = 60);

#define ENDLESS \
    "SELECT count(*) FROM (WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c)"
#define ENDLESS_TRIGGER(when) "CREATE TRIGGER t BEFORE " when " BEGIN " ENDLESS "; END"
#define ROWS                                                                                  \
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) INSERT INTO dlock_locks" \
    " SELECT CAST('row ' || n AS BLOB), 'o:1', 1, 'c', 0, 1, 1 FROM c LIMIT "
#define MANY_ROWS ROWS "20000"

static void make_file(void) {
    client_t c;
    must_open(&c, UUID_A);
    must_close(&c);
}

/* An hour passes while somebody looks at the clock often enough. */
static uint64_t ticking_now(void) {
    clock_ahead_ns += (int64_t)MS;
    return now_shifted();
}

/* ---- definitions ------------------------------------------------------------------------------------ */

Test(sqlite_hostile, a_file_with_definitions_that_are_not_ours_is_refused_and_left_alone) {
    static const char *const definitions[] = {
        ENDLESS_TRIGGER("INSERT ON dlock_locks"),
        ENDLESS_TRIGGER("DELETE ON dlock_locks"),
        ENDLESS_TRIGGER("UPDATE ON dlock_meta"),
        "CREATE VIEW v AS " ENDLESS,
        "DROP TABLE dlock_locks; CREATE VIEW dlock_locks AS " ENDLESS " AS name",
        "CREATE TABLE t(a)",
        "CREATE INDEX i ON dlock_locks(owner)",
        "CREATE INDEX i ON dlock_locks(printf('%1000000d', token))",
        "CREATE UNIQUE INDEX i ON dlock_meta(id) WHERE boot LIKE '%a%a%a%a%a%b'",
        "ALTER TABLE dlock_locks ADD COLUMN g AS (printf('%1000000d', token))",
        "ALTER TABLE dlock_locks ADD COLUMN d DEFAULT 'x'",
        "ALTER TABLE dlock_locks RENAME COLUMN client TO cliént",
        "ALTER TABLE dlock_meta RENAME TO m; CREATE TABLE dlock_meta(id, boot, base_us, ceiling, reserved)",
        "ANALYZE",
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = replace(sql, 'token       INTEGER NOT "
        "NULL',"
        " 'token INTEGER NOT NULL CHECK (length(printf(''%1000000d'', token)) > 1)')",
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = sql || '/* */'",
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET tbl_name = 'dlock_meta'",
    };
    for (size_t i = 0; i < sizeof definitions / sizeof definitions[0]; i++) {
        client_t c;
        struct stat before, after;
        make_file();
        sql(definitions[i]);
        cr_assert_eq(stat(path, &before), 0);
        uint64_t before_ns = now_shifted();
        dl_status_t status = open_options(&c, UUID_A, path, 1);
        cr_assert_lt(now_shifted() - before_ns, 2100 * MS, "%s", definitions[i]);
        cr_assert_eq(status, DL_EPROTO, "%s: %d %s", definitions[i], status, c.err.message);
        cr_assert(strstr(c.err.message, "definitions that are not dlock's") != NULL ||
                      strstr(c.err.message, "damaged") != NULL,
                  "%s: %s", definitions[i], c.err.message);
        must_close(&c);
        cr_assert_eq(stat(path, &after), 0);
        cr_assert_eq(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec, "%s", definitions[i]);
        delete_all();
    }
}

static void expect_refused(dl_status_t status, const client_t *c, uint64_t before_ns, const char *what) {
    cr_assert_lt(now_shifted() - before_ns, 2100 * MS, "%s", what);
    cr_assert_eq(status, DL_EPROTO, "%s: %d %s", what, status, c->err.message);
}

static int note_lock(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)arg;
    (void)name;
    (void)info;
    return 0;
}

static void note_finding(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    (void)level;
    char *all = arg;
    size_t len = strlen(all);
    snprintf(all + len, 16384 - len, "%s: %s\n", subject, text);
}

/* SQLite compiles statements anew, by definitions that nobody has looked at. */
Test(sqlite_hostile, definitions_that_change_while_the_file_is_open_are_not_used) {
    client_t c;
    static char said[16384];
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "held", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(renew(&c, "held", A, 1, 30000), DL_OK);
    sql(ENDLESS_TRIGGER("INSERT ON dlock_locks"));
    sql("CREATE TRIGGER u BEFORE UPDATE ON dlock_locks BEGIN " ENDLESS "; END");
    sql("CREATE TRIGGER d BEFORE DELETE ON dlock_locks BEGIN " ENDLESS "; END");
    uint64_t from_ns = now_shifted();
    expect_refused(take(&c, "orders", A, 2, 30000, NULL), &c, from_ns, "acquire");
    expect_refused(renew(&c, "held", A, 1, 30000), &c, from_ns, "renew");
    expect_refused(drop(&c, "held", A, 1), &c, from_ns, "release");
    expect_refused(driver()->inspect(c.state, "held", 4, in_ms(2000), &info, &c.err), &c, from_ns, "inspect");
    expect_refused(driver()->list(c.state, "", 0, note_lock, NULL, in_ms(2000), &c.err), &c, from_ns, "list");
    expect_refused(driver()->force_release(c.state, "held", 4, in_ms(2000), &c.err), &c, from_ns, "force");
    expect_refused(driver()->check(c.state, note_finding, said, in_ms(2000), &c.err), &c, from_ns, "check");
    cr_assert_has(said, "database: the lock file has definitions that are not dlock's");
    sql("DROP TRIGGER t; DROP TRIGGER u; DROP TRIGGER d");
    cr_assert_eq(take(&c, "orders", A, 3, 30000, NULL), DL_OK, "%s", c.err.message);
    dl_status_t renewed = renew(&c, "held", A, 1, 30000);
    cr_assert_eq(renewed, DL_OK, "%d", renewed);
    cr_assert_eq(drop(&c, "held", A, 1), DL_OK);
    /* Somebody tidies up: the same definitions, new to SQLite. */
    sql("VACUUM");
    cr_assert_eq(take(&c, "held", A, 4, 30000, NULL), DL_OK, "%s", c.err.message);
    must_close(&c);
}

/* The definition that SQLite has read is not the one that is in the file when it is looked at; no new schema
 * version goes with either. */
Test(sqlite_hostile, a_definition_that_comes_and_goes_is_not_taken_for_ours) {
    client_t c;
    must_open(&c, UUID_A);
    dli_store_t *store = c.state;
    dli_guard_t guard;
    dli_guard_enter(&guard, store, (dli_limits_t){.deadline_ns = in_ms(20000)});
    sql("PRAGMA writable_schema = ON;"
        " UPDATE sqlite_master SET sql = replace(sql, 'client      TEXT', 'other       TEXT')");
    cr_assert_eq(dli_schema_look(&store->calls), DLI_RC_FOREIGN);
    cr_assert_eq(dli_connection_exec(&store->calls, "SELECT other FROM dlock_locks"), SQLITE_OK, "not read");
    sql("PRAGMA writable_schema = ON;"
        " UPDATE sqlite_master SET sql = replace(sql, 'other       TEXT', 'client      TEXT')");
    cr_assert_eq(dli_connection_exec(&store->calls, "SELECT other FROM dlock_locks"), SQLITE_OK,
                 "read again");
    cr_assert_eq(dli_schema_look(&store->calls), SQLITE_OK);
    cr_assert_neq(dli_connection_exec(&store->calls, "SELECT other FROM dlock_locks"), SQLITE_OK,
                  "looked at what it does not go by");
    dli_guard_leave();
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_OK, "%s", c.err.message);
    must_close(&c);
}

/* ---- time ------------------------------------------------------------------------------------------- */

Test(sqlite_hostile, rows_without_end_are_left_at_the_deadline) {
    client_t c;
    make_file();
    sql(MANY_ROWS);
    must_open(&c, UUID_A);
    /* Now it has all of the file in memory, and reads nothing. */
    cr_assert_eq(driver()->list(c.state, "row", 3, note_lock, NULL, in_ms(20000), &c.err), DL_OK);
    c.env.now_ns = ticking_now;
    uint64_t deadline_ns = in_ms(100);
    cr_assert_eq(driver()->list(c.state, "row", 3, note_lock, NULL, deadline_ns, &c.err), DL_EIO);
    cr_assert_has(c.err.message, "takes longer");
    cr_assert_lt(now_shifted(), deadline_ns + 100 * MS);
    c.env.now_ns = now_shifted;
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_OK, "%s", c.err.message);
    must_close(&c);
}

/* What there is to do takes longer than the 100 ms that opening has; with more time it is done. */
static void expect_no_time_to_open(void) {
    client_t c = {.env = make_env(UUID_A, note_report, note_count), .state = calloc(1, driver()->state_size)};
    c.env.now_ns = ticking_now;
    c.env.poll = poll_shifted;
    c.env.cond_wait = cond_wait_shifted;
    dl_option_value_t values[] = {{.is_set = 1, .string = path}, {.is_set = 1, .number = 1}};
    uint64_t deadline_ns = in_ms(100);
    cr_assert_eq(driver()->open(c.state, values, &c.env, deadline_ns, &c.err), DL_EIO);
    cr_assert_has(c.err.message, "takes longer");
    cr_assert_lt(now_shifted(), deadline_ns + 100 * MS);
    must_close(&c);
    must_open(&c, UUID_A);
    must_close(&c);
}

Test(sqlite_hostile, a_new_boot_is_not_begun_for_longer_than_there_is_time) {
    make_file();
    sql(MANY_ROWS);
    dli_sqlite_boot_for_test = "another";
    expect_no_time_to_open();
}

Test(sqlite_hostile, a_cancel_ends_what_is_in_the_file) {
    client_t c;
    must_open(&c, UUID_A);
    sql("PRAGMA writable_schema = ON; WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
        " INSERT INTO sqlite_master SELECT 'table', 't' || n, 't' || n, 2, 'CREATE TABLE t' || n || '(a)'"
        " FROM c LIMIT 20000; PRAGMA schema_version = 99");
    dl_request_t r = request("orders", A, 1);
    dl_grant_t grant;
    c.env.now_ns = ticking_now;
    r.deadline_ns = in_ms(100);
    cr_assert_eq(take_full(&c, &r, &grant), DL_EIO);
    cr_assert_has(c.err.message, "takes longer");
    cr_assert_lt(now_shifted(), r.deadline_ns + 100 * MS);
    /* The definitions are looked at in the first try, so that no pause between two hears of the cancel. */
    dli_connection_forget(&((dli_store_t *)c.state)->calls);
    r.deadline_ns = in_ms(3600000);
    r.stop.fd[0] = eventfd(1, EFD_CLOEXEC);
    cr_assert_eq(take_full(&c, &r, &grant), DL_ECANCELED, "%s", c.err.message);
    close(r.stop.fd[0]);
    must_close(&c);
}

/* What is not ended keeps all others out. */
Test(sqlite_hostile, a_transaction_is_rolled_back_whatever_the_time) {
    client_t c;
    must_open(&c, UUID_A);
    dli_store_t *store = c.state;
    for (int i = 0; i < 500; i++) { /* SQLite asks every 200 steps; this is three */
        dli_guard_t guard;
        dli_guard_enter(&guard, store, (dli_limits_t){.deadline_ns = in_ms(2000)});
        cr_assert_eq(dli_connection_do(&store->calls, DLI_SQL_BEGIN), SQLITE_OK);
        guard.until_ns = 0;
        cr_assert_eq(dli_connection_do(&store->calls, DLI_SQL_ROLLBACK), SQLITE_OK, "round %d", i);
        dli_guard_leave();
    }
    must_close(&c);
}

static int calls_until_late;

/* The time is up in the middle of a statement: the third to look at the clock is the statement itself. */
static uint64_t late_now(void) {
    if (--calls_until_late == 0) {
        clock_ahead_ns += (int64_t)(10 * SECOND);
    }
    return now_shifted();
}

/* SQLite says of a statement that it was interrupted even when it was done in the same moment. */
Test(sqlite_hostile, what_was_ended_by_the_deadline_was_not_done) {
    client_t c;
    int ended_by_it = 0;
    must_open(&c, UUID_A);
    c.env.now_ns = late_now;
    for (uint64_t i = 1; i <= 600; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%llu", (unsigned long long)i);
        dl_request_t r = request(name, A, i);
        dl_grant_t grant;
        r.lease_ms = 3600000 * 10;
        calls_until_late = 3;
        dl_status_t status = take_full(&c, &r, &grant);
        cr_assert(status == DL_OK || status == DL_EIO, "%d %s", status, c.err.message);
        cr_assert_eq(look(&c, name).held, status == DL_OK, "round %d: %d", (int)i, status);
        ended_by_it += status == DL_EIO;
        r = request(name, A, i);
        if (status == DL_OK) {
            calls_until_late = 2;
            status = driver()->release(c.state, NULL, &r, &c.err);
            cr_assert(status == DL_OK || status == DL_EIO, "%d %s", status, c.err.message);
            cr_assert_eq(look(&c, name).held, status == DL_EIO, "round %d: %d", (int)i, status);
            ended_by_it += status == DL_EIO;
        }
    }
    cr_assert_gt(ended_by_it, 0);
    must_close(&c);
}

/* Dies with a log, which the next to open the file has to read. */
static int leave_log(void *rows) {
    char text[512];
    sqlite3 *db = NULL;
    snprintf(text, sizeof text, "PRAGMA wal_autocheckpoint = 0; %s %d", ROWS, *(int *)rows);
    return sqlite3_open(path, &db) == SQLITE_OK && sqlite3_exec(db, text, NULL, NULL, NULL) == SQLITE_OK ? 0
                                                                                                         : 1;
}

Test(sqlite_hostile, a_long_log_is_not_read_for_longer_than_there_is_time) {
    char name[160];
    make_file();
    int rows = 20000;
    cr_assert_eq(ended(spawn(leave_log, &rows)), 0);
    snprintf(name, sizeof name, "%s-shm", path);
    cr_assert_eq(unlink(name), 0);
    expect_no_time_to_open();
}

/* The locks that readers of the log take; by SQLite's published format. */
static int keep_readers_out(void *ready) {
    char name[160];
    snprintf(name, sizeof name, "%s-shm", path);
    int fd = open(name, O_RDWR | O_CLOEXEC);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 123, .l_len = 5};
    if (fd < 0 || fcntl(fd, F_SETLKW, &lock) != 0 || write(*(int *)ready, "x", 1) != 1) {
        return 1;
    }
    return pause();
}

Test(sqlite_hostile, locks_that_keep_readers_out_are_waited_for_until_the_deadline) {
    client_t c;
    char byte;
    int ready[2];
    must_open(&c, UUID_A);
    cr_assert_eq(pipe(ready), 0);
    pid_t child = spawn(keep_readers_out, &ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    dl_request_t r = request("orders", A, 1);
    dl_grant_t grant;
    r.deadline_ns = in_ms(300);
    cr_assert_eq(take_full(&c, &r, &grant), DL_EIO);
    cr_assert_lt(now_shifted(), r.deadline_ns + 100 * MS);
    cr_assert_has(c.err.message, "busy");
    r.deadline_ns = in_ms(20000);
    r.stop.fd[1] = eventfd(1, EFD_CLOEXEC);
    uint64_t before_ns = now_shifted();
    cr_assert_eq(take_full(&c, &r, &grant), DL_ECANCELED, "%s", c.err.message);
    cr_assert_lt(now_shifted() - before_ns, 100 * MS);
    close(r.stop.fd[1]);
    kill(child, SIGKILL);
    cr_assert_eq(ended(child), 128 + SIGKILL);
    cr_assert_eq(take(&c, "orders", A, 2, 30000, NULL), DL_OK, "%s", c.err.message);
    must_close(&c);
}

Test(sqlite_hostile, check_says_what_it_had_no_time_for) {
    client_t c;
    static char said[16384];
    make_file();
    sql(MANY_ROWS);
    must_open(&c, UUID_A);
    c.env.now_ns = ticking_now;
    cr_assert_eq(driver()->check(c.state, note_finding, said, in_ms(1500), &c.err), DL_OK, "%s",
                 c.err.message);
    cr_assert_has(said, "integrity: not checked to the end");
    said[0] = '\0';
    cr_assert_eq(driver()->check(c.state, note_finding, said, in_ms(100), &c.err), DL_EIO);
    cr_assert_has(said, "database: what is in the lock file takes longer");
    must_close(&c);
}

/* ---- settings and numbers --------------------------------------------------------------------------- */

static int64_t setting(dli_connection_t *c, const char *name) {
    char text[64];
    sqlite3_stmt *s;
    snprintf(text, sizeof text, "PRAGMA %s", name);
    cr_assert_eq(dli_connection_prepare(c, text, &s), SQLITE_OK);
    cr_assert_eq(sqlite3_step(s), SQLITE_ROW, "%s", name);
    int64_t value = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return value;
}

Test(sqlite_hostile, the_file_does_not_choose_how_much_memory_is_used) {
    client_t c;
    make_file();
    sql("PRAGMA default_cache_size = 1000000000");
    must_open(&c, UUID_A);
    dli_store_t *store = c.state;
    dli_connection_t *both[] = {&store->calls, &store->renewals};
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(setting(both[i], "cache_size"), -2000);
        cr_assert_eq(setting(both[i], "mmap_size"), 0);
        cr_assert_eq(setting(both[i], "trusted_schema"), 0);
    }
    must_close(&c);
}

/* Uses all there is; whatever it answers. */
static void use_all(client_t *c) {
    static char said[16384];
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    dl_grant_t grant;
    dl_request_t r = request("orders", A, 7);
    said[0] = '\0';
    if (take_full(c, &r, &grant) == DL_EBUSY) {
        cr_assert_geq(grant.busy_ms, -1);
    }
    (void)take(c, "more", A, 1, 30000, NULL);
    (void)renew(c, "orders", A, 7, 30000);
    (void)driver()->inspect(c->state, "orders", 6, in_ms(2000), &info, &c->err);
    cr_assert_geq(info.remaining_ms, -1);
    (void)driver()->list(c->state, "", 0, note_lock, NULL, in_ms(2000), &c->err);
    (void)driver()->check(c->state, note_finding, said, in_ms(2000), &c->err);
    (void)drop(c, "orders", A, 7);
    (void)driver()->force_release(c->state, "orders", 6, in_ms(2000), &c->err);
}

Test(sqlite_hostile, values_out_of_all_range_break_nothing) {
    static const char *const values[] = {
        "-9223372036854775808", "9223372036854775807", "4611686018427387904", "1e300", "'text'", "x'00ff'",
        "zeroblob(100000)"};
    static const char *const places[] = {
        "dlock_meta SET base_us =",     "dlock_meta SET ceiling =", "dlock_meta SET reserved =",
        "dlock_meta SET boot =",        "dlock_locks SET token =",  "dlock_locks SET expires_ns =",
        "dlock_locks SET hold_id =",    "dlock_locks SET owner =",  "dlock_locks SET client =",
        "dlock_locks SET acquired_ns ="};
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            client_t c;
            char text[256];
            must_open(&c, UUID_A);
            cr_assert_eq(take(&c, "orders", B, 1, 30000, NULL), DL_OK);
            snprintf(text, sizeof text, "UPDATE %s %s", places[p], values[v]);
            sql(text);
            use_all(&c);
            must_close(&c);
            if (open_options(&c, UUID_A, path, 1) == DL_OK) {
                use_all(&c);
            }
            must_close(&c);
            delete_all();
        }
    }
}

static int note_name(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)info;
    char *all = arg;
    size_t len = strlen(all);
    snprintf(all + len, 1024 - len, "%.9s;", name);
    return 0;
}

/* As no lock has them; those with one beginning would be the same page for ever. */
Test(sqlite_hostile, names_that_are_none_are_not_listed) {
    client_t c;
    char names[1024] = "";
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "a", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(take(&c, "z", A, 2, 30000, NULL), DL_OK);
    sql("INSERT INTO dlock_locks SELECT x'', owner, hold_id, client, expires_ns, token, acquired_ns FROM "
        "dlock_locks"
        " WHERE name = CAST('a' AS BLOB)");
    sql("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 200) INSERT INTO dlock_locks "
        "SELECT"
        " CAST(printf('long/%0256d/%04d', 0, n) AS BLOB), owner, hold_id, client, expires_ns, token, "
        "acquired_ns"
        " FROM c, dlock_locks WHERE name = CAST('a' AS BLOB)");
    cr_assert_eq(driver()->list(c.state, "", 0, note_name, names, in_ms(2000), &c.err), DL_OK, "%s",
                 c.err.message);
    cr_assert_str_eq(names, "a;z;");
    must_close(&c);
}

/* ---- damage ----------------------------------------------------------------------------------------- */

static int use_damaged(void *unused) {
    (void)unused;
    client_t c;
    alarm(20);
    if (open_options(&c, UUID_A, path, 1) == DL_OK) {
        use_all(&c);
    }
    must_close(&c);
    return 0;
}

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Bytes here and there in the file or in its log are others. */
Test(sqlite_hostile, a_file_with_random_damage_breaks_nothing) {
    char sound[160], command[700];
    uint32_t seed = 20240229;
    snprintf(sound, sizeof sound, "%s/sound", folder);
    make_file();
    int rows = 300;
    cr_assert_eq(ended(spawn(leave_log, &rows)), 0);
    snprintf(command, sizeof command, "cp '%s' '%s' && cp '%s-wal' '%s-wal'", path, sound, path, sound);
    cr_assert_eq(system(command), 0);
    for (int round = 0; round < 150; round++) {
        char name[170];
        struct stat file;
        delete_all();
        snprintf(command, sizeof command, "cp '%s' '%s' && cp '%s-wal' '%s-wal'", sound, path, sound, path);
        cr_assert_eq(system(command), 0);
        snprintf(name, sizeof name, "%s%s", path, round % 3 == 2 ? "-wal" : "");
        int fd = open(name, O_RDWR | O_CLOEXEC);
        cr_assert_eq(fstat(fd, &file), 0);
        for (uint32_t n = next_random(&seed) % 30 + 1; n > 0; n--) {
            uint8_t byte = (uint8_t)next_random(&seed);
            off_t at = next_random(&seed) % (uint32_t)file.st_size;
            if (round % 3 == 1) {
                at %= 2048; /* the header, and the root of the locks */
            }
            cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
        }
        close(fd);
        cr_assert_eq(ended(spawn(use_damaged, NULL)), 0, "round %d", round);
    }
}
