/* mysql_schema_test.c - the lock tables: missing, wrong, made; and `dlock init`. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_setup_fixture.h"

TestSuite(mysql_schema, .init = set_up, .fini = tear_down, .timeout = 120);

/* ---- tables that are not there -------------------------------------------------------------------- */

Test(mysql_schema, a_missing_table_is_an_error_that_names_the_mend) {
    dl_error_t err;
    for (size_t i = 0; i < DRIVERS; i++) {
        EXPECT_REFUSED(try_open(drivers[i], "", &err), DL_ECONFIG, err, "is missing");
        EXPECT_REFUSED(try_open(drivers[i], "", &err), DL_ECONFIG, err, "dlock init");
        EXPECT_REFUSED(try_open(drivers[i], "", &err), DL_ECONFIG, err, tables[i]);
        cr_expect_eq(err.native, 1146);
    }
    cr_expect_eq(mysql_number(server,
                              "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = '%s'",
                              database),
                 0);
}

Test(mysql_schema, of_two_tables_the_missing_one_is_named) {
    dl_error_t err;
    make_tables("mysql-pessimistic", "");
    mysql_ask(server, "DROP TABLE `%s`.dlock_pessimistic_tokens", database);
    EXPECT_REFUSED(try_open("mysql-pessimistic", "", &err), DL_ECONFIG, err,
                   "'dlock_pessimistic_tokens' is missing");
    make_tables("mysql-pessimistic", "");
    cr_expect_eq(try_open("mysql-pessimistic", "", &err), DL_OK, "%s", err.message);
}

Test(mysql_schema, a_missing_database_is_an_error_that_names_it) {
    dl_error_t err;
    findings_t found;
    snprintf(database, sizeof database, "dlock_nowhere");
    for (size_t i = 0; i < DRIVERS; i++) {
        EXPECT_REFUSED(try_open(drivers[i], ", create: true", &err), DL_ECONFIG, err, "dlock_nowhere");
        EXPECT_REFUSED(init_with(drivers[i], "", 0, &found, &err), DL_ECONFIG, err, "dlock_nowhere");
    }
}

Test(mysql_schema, create_makes_the_tables_at_open) {
    dl_error_t err;
    for (size_t i = 0; i < DRIVERS; i++) {
        cr_expect_eq(try_open(drivers[i], ", create: true", &err), DL_OK, "%s", err.message);
        cr_expect_eq(try_open(drivers[i], "", &err), DL_OK, "%s", err.message);
    }
}

/* ---- tables that are wrong ------------------------------------------------------------------------ */

static const struct {
    const char *change, *words;
} changes[] = {
    {"DROP COLUMN owner", "has no column 'owner'"},
    {"MODIFY owner VARCHAR(20)", "'owner' of type varchar(20)"},
    {"MODIFY name VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL", "'name' of type varchar(255)"},
    {"MODIFY hold_id INT", "'hold_id' of type int"},
    {"ENGINE = MyISAM", "MyISAM"},
    {"DROP PRIMARY KEY", "no primary key"},
    {"DROP PRIMARY KEY, ADD UNIQUE KEY (name)", "no primary key"},
    {"DROP PRIMARY KEY, ADD PRIMARY KEY (name(20))", "something else than the whole name"},
    {"DROP PRIMARY KEY, MODIFY hold_id BIGINT UNSIGNED NOT NULL, ADD PRIMARY KEY (name, hold_id)",
     "primary or unique key on something else than the whole name"},
    {"ADD UNIQUE KEY (owner)", "something else than the whole name"},
    {"ADD COLUMN extra INT NOT NULL", "'extra' that rows cannot be made without"},
    {"ADD COLUMN extra INT NOT NULL DEFAULT 3, ADD COLUMN id INT NOT NULL AUTO_INCREMENT, ADD KEY (id),"
     " ADD COLUMN length INT AS (LENGTH(name)) STORED",
     NULL},
    {"ADD COLUMN extra INT NOT NULL DEFAULT 3, ADD COLUMN more INT NULL, ADD KEY (owner)", NULL},
};

Test(mysql_schema, a_wrong_table_is_refused_and_left_as_it_is) {
    dl_error_t err;
    findings_t found;
    for (size_t d = 0; d < DRIVERS; d++) {
        for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
            make_tables(drivers[d], "");
            mysql_ask(server, "ALTER TABLE `%s`.%s %s", database, tables[d], changes[i].change);
            char before[2048];
            snprintf(before, sizeof before, "%s",
                     mysql_ask(server, "SHOW CREATE TABLE `%s`.%s", database, tables[d]));
            if (changes[i].words == NULL) {
                cr_expect_eq(try_open(drivers[d], ", create: true", &err), DL_OK, "%s", err.message);
            } else {
                EXPECT_REFUSED(try_open(drivers[d], ", create: true", &err), DL_ECONFIG, err,
                               changes[i].words);
                EXPECT_REFUSED(init_with(drivers[d], "", 0, &found, &err), DL_ECONFIG, err, changes[i].words);
                EXPECT_REFUSED(try_open(drivers[d], "", &err), DL_ECONFIG, err, "dlock init --print");
            }
            cr_expect_str_eq(mysql_ask(server, "SHOW CREATE TABLE `%s`.%s", database, tables[d]), before);
            mysql_ask(server, "DROP TABLE `%s`.%s", database, tables[d]);
        }
    }
}

/* What was drawn is told by the number that the server tells of a row that is made. */
Test(mysql_schema, numbers_of_the_servers_own_are_refused_where_tokens_are_drawn) {
    dl_error_t err;
    make_tables("mysql-pessimistic", "");
    mysql_ask(
        server,
        "ALTER TABLE `%s`.dlock_pessimistic_tokens ADD COLUMN id INT NOT NULL AUTO_INCREMENT, ADD KEY (id)",
        database);
    EXPECT_REFUSED(try_open("mysql-pessimistic", "", &err), DL_ECONFIG, err, "in place of tokens");
}

/* Renewals and the purge name the primary key. */
Test(mysql_schema, a_unique_key_in_place_of_the_primary_key_is_refused_for_every_table) {
    static const struct {
        const char *driver, *table;
    } of[] = {{"mysql-lease", "dlock_lease"},
              {"mysql-optimistic", "dlock_optimistic"},
              {"mysql-pessimistic", "dlock_pessimistic"},
              {"mysql-pessimistic", "dlock_pessimistic_tokens"}};
    dl_error_t err;
    findings_t found;
    dl_client_t *client;
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        make_tables(of[i].driver, "");
        cr_assert_eq(open_with(of[i].driver, "", &client, &err), DL_OK, "%s", err.message);
        mysql_ask(server, "ALTER TABLE `%s`.%s DROP PRIMARY KEY, ADD UNIQUE KEY name_is_unique(name)",
                  database, of[i].table);
        memset(&found, 0, sizeof found);
        (void)dl_client_check(client, keep, &found, &err);
        EXPECT(&found, "table", DL_FINDING_ERROR, "has no primary key");
        dl_client_close(client);
        EXPECT_REFUSED(try_open(of[i].driver, "", &err), DL_ECONFIG, err, "has no primary key");
        EXPECT_REFUSED(init_with(of[i].driver, "", 0, &found, &err), DL_ECONFIG, err, of[i].table);
        mysql_ask(server, "DROP TABLE `%s`.%s", database, of[i].table);
    }
}

Test(mysql_schema, a_view_or_a_table_with_history_is_refused) {
    dl_error_t err;
    make_tables("mysql-lease", ", table: base");
    mysql_ask(server, "CREATE VIEW `%s`.dlock_lease AS SELECT * FROM `%s`.base", database, database);
    EXPECT_REFUSED(try_open("mysql-lease", "", &err), DL_ECONFIG, err, "table 'dlock_lease'");
    if (mysql_is_mariadb()) {
        mysql_ask(server, "ALTER TABLE `%s`.base ADD SYSTEM VERSIONING", database);
        EXPECT_REFUSED(try_open("mysql-lease", ", table: base", &err), DL_ECONFIG, err, "no ordinary table");
    }
}

/* ---- the name of the table ------------------------------------------------------------------------ */

Test(mysql_schema, a_name_that_is_no_name_is_refused) {
    static const char *const plain[] = {
        "\"a b\"", "\"a`b\"", "\"a;b\"",  "\"\"",
        "\"a.b\"", "\"ä\"",   "\"a$$b\"", "a2345678901234567890123456789012345678901234567890"};
    static const char *const words[] = {"\"select\"", "\"123\"", "\"1e5\"", "\"table\""};
    dl_error_t err;
    findings_t found;
    char more[128];
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        snprintf(more, sizeof more, ", create: true, table: %s", plain[i]);
        EXPECT_REFUSED(try_open("mysql-lease", more, &err), DL_ECONFIG, err, "1 to 48");
        EXPECT_REFUSED(init_with("mysql-lease", more, DL_INIT_PRINT, &found, &err), DL_ECONFIG, err,
                       "1 to 48");
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        snprintf(more, sizeof more, ", create: true, table: %s", words[i]);
        EXPECT_REFUSED(try_open("mysql-lease", more, &err), DL_ECONFIG, err, "choose another");
    }
}

Test(mysql_schema, the_longest_name_works_on_every_driver) {
    static const char longest[] = ", table: a23456789012345678901234567890123456789012345678";
    dl_error_t err;
    for (size_t i = 0; i < DRIVERS; i++) {
        make_tables(drivers[i], longest);
        cr_expect_eq(try_open(drivers[i], longest, &err), DL_OK, "%s", err.message);
        mysql_ask(server, "DROP TABLE `%s`.%s", database, strchr(longest, 'a') + strlen("able: "));
    }
}

Test(mysql_schema, pool_options_that_contradict_each_other_are_refused) {
    dl_error_t err;
    for (size_t i = 0; i < DRIVERS; i++) {
        make_tables(drivers[i], "");
        EXPECT_REFUSED(try_open(drivers[i], ", max_total: 4, max_idle: 5", &err), DL_ECONFIG, err,
                       "max_idle (5)");
        EXPECT_REFUSED(try_open(drivers[i], ", max_idle: 2, min_idle: 3", &err), DL_ECONFIG, err,
                       "min_idle (3)");
        cr_expect_eq(try_open(drivers[i], ", max_total: 3, max_idle: 3, min_idle: 3", &err), DL_OK);
    }
}

/* ---- init ----------------------------------------------------------------------------------------- */

Test(mysql_schema, init_makes_the_tables_once_and_says_so) {
    findings_t found;
    dl_error_t err;
    for (size_t i = 0; i < DRIVERS; i++) {
        cr_assert_eq(init_with(drivers[i], "", 0, &found, &err), DL_OK, "%s", err.message);
        EXPECT(&found, "table", DL_FINDING_OK, "made ");
        EXPECT(&found, "init", DL_FINDING_OK, "can be used");
        cr_assert_eq(init_with(drivers[i], "", 0, &found, &err), DL_OK, "%s", err.message);
        EXPECT(&found, "table", DL_FINDING_OK, "nothing to do: ");
        cr_expect(!is_said(&found, "table", "made "));
        cr_expect_eq(try_open(drivers[i], "", &err), DL_OK, "%s", err.message);
    }
}

Test(mysql_schema, what_init_prints_makes_a_server_ready_for_an_account_that_may_nothing_else) {
    findings_t found;
    dl_error_t err;
    user = "limited";
    mysql_try(server, "DROP USER limited@'%%'");
    for (size_t d = 0; d < DRIVERS; d++) {
        dl_status_t status = init_with(drivers[d], "", DL_INIT_PRINT, &found, &err);
        cr_assert_eq(status, DL_OK, "%s", err.message);
        mysql_hand_t *root = mysql_hand(server, database);
        for (size_t i = 0; i < found.n; i++) {
            if (strcmp(found.at[i].subject, "sql") == 0 || strcmp(found.at[i].subject, "account") == 0) {
                char sql[2048];
                const char *secret = strstr(found.at[i].text, "PASSWORD'");
                snprintf(sql, sizeof sql, "%.*s%s%s",
                         (int)(secret != NULL ? secret - found.at[i].text : (long)strlen(found.at[i].text)),
                         found.at[i].text, secret != NULL ? MYSQL_SECRET : "",
                         secret != NULL ? secret + strlen("PASSWORD") : "");
                mysql_hand_ask(root, "%s", sql);
            }
        }
        mysql_hand_close(root);
        check_with(drivers[d], "", &found);
        EXPECT(&found, "rights", DL_FINDING_OK, "may do all that locks need");
        EXPECT(&found, "locking", DL_FINDING_OK, "taken, renewed and freed");
        cr_expect_null(complaint(&found), "%s", complaint(&found));
    }
    mysql_ask(server, "DROP USER limited@'%%'");
    user = MYSQL_USER;
}

Test(mysql_schema, printing_needs_no_server) {
    findings_t found;
    dl_error_t err;
    mysql_server_t nowhere = {.port = 1};
    mysql_server_t *real = server;
    server = &nowhere;
    for (size_t i = 0; i < DRIVERS; i++) {
        dl_status_t status = init_with(drivers[i], "", DL_INIT_PRINT, &found, &err);
        cr_expect_eq(status, DL_OK, "%s", err.message);
        EXPECT(&found, "sql", DL_FINDING_NOTE, "CREATE TABLE IF NOT EXISTS");
        EXPECT(&found, "sql", DL_FINDING_NOTE, "GRANT SELECT, INSERT, UPDATE, DELETE ON");
    }
    server = real;
}

/* Another name would be printed, which is that of another account. */
Test(mysql_schema, no_statement_is_printed_about_a_name_that_cannot_be_read) {
    findings_t found;
    dl_error_t err;
    char real[MYSQL_DATABASE_MAX];
    snprintf(real, sizeof real, "%s", database);
    user = "\"app\\tone\"";
    EXPECT_REFUSED(init_with("mysql-lease", "", DL_INIT_PRINT, &found, &err), DL_ECONFIG, err, "user: ");
    cr_expect_eq(found.n, 0);
    user = MYSQL_USER;
    snprintf(database, sizeof database, "\"a\\nb\"");
    EXPECT_REFUSED(init_with("mysql-lease", "", DL_INIT_PRINT, &found, &err), DL_ECONFIG, err, "database: ");
    snprintf(database, sizeof database, "%s", real);
}

/* ---- rights --------------------------------------------------------------------------------------- */

Test(mysql_schema, an_account_without_rights_is_told_so) {
    dl_error_t err;
    findings_t found;
    char on[MYSQL_DATABASE_MAX + 32];
    make_tables("mysql-lease", "");
    mysql_try(server, "DROP USER poor@'%%'");
    snprintf(on, sizeof on, "`%s`.other", database);
    mysql_ask(server, "CREATE TABLE %s (a INT)", on);
    mysql_user(server, "poor", "SELECT", on);
    user = "poor";
    EXPECT_REFUSED(try_open("mysql-lease", "", &err), DL_EAUTH, err, "denied");
    EXPECT_REFUSED(try_open("mysql-optimistic", ", create: true", &err), DL_EAUTH, err, "denied");
    user = "dlock_nobody";
    EXPECT_REFUSED(try_open("mysql-lease", "", &err), DL_EAUTH, err, "dlock_nobody");
    user = "poor";
    mysql_ask(server, "GRANT SELECT ON `%s`.* TO poor@'%%'", database);
    EXPECT_REFUSED(init_with("mysql-optimistic", "", 0, &found, &err), DL_EAUTH, err, "dlock init --print");
    mysql_ask(server, "DROP USER poor@'%%'");
    user = MYSQL_USER;
}

/* ---- servers that fold names --------------------------------------------------------------------- */

Test(mysql_schema, a_server_that_folds_the_names_of_tables_finds_them) {
    dl_error_t err;
    if (!mysql_is_mariadb()) {
        /* Oracle's servers fold only if their data folder was made so; what they keep apart stays apart. */
        make_tables("mysql-lease", ", table: Folded");
        EXPECT_REFUSED(try_open("mysql-lease", ", table: folded", &err), DL_ECONFIG, err, "is missing");
        return;
    }
    tear_down();
    server = mysql_server_start(NULL, NULL, "--lower-case-table-names=1", NULL);
    mysql_database(server, database);
    for (size_t i = 0; i < DRIVERS; i++) {
        make_tables(drivers[i], ", table: Folded");
        cr_expect_eq(try_open(drivers[i], ", table: Folded", &err), DL_OK, "%s", err.message);
        cr_expect_eq(try_open(drivers[i], ", table: FOLDED", &err), DL_OK, "%s", err.message);
        mysql_ask(server, "DROP TABLE `%s`.folded", database);
    }
}
