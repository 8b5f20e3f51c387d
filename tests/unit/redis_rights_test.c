/* redis_rights_test.c - the rights that the Redis drivers need: no fewer, no more, and what a lack costs. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_check_fixture.h"

TestSuite(redis_rights, .init = set_up, .fini = tear_down, .timeout = 60);

/* ---- rights ----------------------------------------------------------------------------------------- */

#define LOGIN ", username: locker, password: opensesame"

/* What a rule depends on. */
static const struct wish {
    const char *driver, *more;
} wishes[] = {
    {"redis-string", LOGIN},
    {"redis-string", LOGIN ", also_publish: \"app-channel:\""},
    {"redis-hash-reentrant", LOGIN},
};
#define EACH_WISH(w) (const struct wish *w = wishes; w < wishes + sizeof wishes / sizeof wishes[0]; w++)

/* The rule that dlock init --print gives, with the password in it. */
static void read_rule(const char *yaml, char *rule, size_t size) {
    char path[96];
    findings_t found = {.n = 0};
    dl_error_t err;
    snprintf(path, sizeof path, "%s/dlock.yaml", server.folder);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    cr_assert_geq(fputs(yaml, file), 0);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(dl_backend_init(path, NULL, DL_INIT_PRINT, keep, &found, &err), DL_OK, "%s", err.message);
    const char *text = text_of(&found, "rule");
    cr_assert_not_null(text);
    const char *at = strstr(text, ">PASSWORD");
    cr_assert_not_null(at, "%s", text);
    snprintf(rule, size, "%.*s>opensesame%s", (int)(at - text), text, at + strlen(">PASSWORD"));
}

static void ask_rule(const char *driver, const char *more, char *rule, size_t size) {
    char yaml[1024];
    write_yaml(yaml, sizeof yaml, driver, more);
    read_rule(yaml, rule, size);
}

static void *lock_it(void *arg) {
    dl_error_t err;
    dl_status_t status = dl_trylock_for(arg, 5000, DL_LEASE_AUTO, &err);
    return (void *)(uintptr_t)(status == DL_OK && dl_unlock(arg, &err) == DL_OK);
}

static int count_one(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)name;
    *(int *)arg += info->held;
    return 0;
}

/* What users and administrators do with locks; the first failure, or NULL. */
static const char *use_everything(dl_client_t *client) {
    dl_lock_t *lock;
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    dl_error_t err;
    pthread_t waiter;
    void *got = NULL;
    int listed = 0;
    if (dl_lock_open(client, "orders {x}", &lock, &err) != DL_OK || dl_lock(lock, &err) != DL_OK) {
        return "lock";
    }
    if (dl_lock(lock, &err) != DL_OK || dl_extend(lock, 60000, &err) != DL_OK ||
        dl_unlock(lock, &err) != DL_OK) {
        return "enter again, extend, leave";
    }
    if (dl_inspect(lock, &info, &err) != DL_OK || !info.held || !info.ours) {
        return "inspect";
    }
    if (dl_list(client, NULL, count_one, &listed, &err) != DL_OK || listed != 1) {
        return "list";
    }
    cr_assert_eq(pthread_create(&waiter, NULL, lock_it, lock), 0);
    (void)poll(NULL, 0, 50); /* let it wait; no right is judged by it */
    dl_status_t status = dl_unlock(lock, &err);
    pthread_join(waiter, &got);
    if (status != DL_OK || got == NULL) {
        return "unlock, and the waiter's turn";
    }
    if (dl_lock(lock, &err) != DL_OK || dl_force_unlock(lock, &err) != DL_OK) {
        return "force";
    }
    (void)dl_unlock(lock, &err);
    dl_lock_close(lock);
    return NULL;
}

Test(redis_rights, a_user_with_exactly_the_printed_rule_may_do_everything) {
    for
        EACH_WISH(w) {
            char rule[4096];
            findings_t found;
            dl_client_t *client;
            dl_error_t err;
            tell(&server, "SCRIPT FLUSH");
            ask_rule(w->driver, w->more, rule, sizeof rule);
            type_in(&server, rule);
            cr_assert_eq(open_with(w->driver, w->more, &client, &err), DL_OK, "%s", err.message);
            const char *failed = use_everything(client);
            cr_expect_null(failed, "%s: %s with %s", w->driver, failed, rule);
            dl_client_close(client);
            check_with(w->driver, w->more, &found);
            EXPECT(&found, "rights", DL_FINDING_OK, "every command");
            EXPECT(&found, "locking", DL_FINDING_OK, "taken");
            EXPECT(&found, "wake-up", DL_FINDING_OK, "wakes");
            EXPECT(&found, "settings", DL_FINDING_NOTE, "CONFIG GET is refused");
            EXPECT(&found, "server clock", DL_FINDING_OK, "ran as ours");
        }
}

/* Is anything wrong for a user with this rule? */
static bool is_lacking(const char *driver, const char *more, const char *rule) {
    findings_t found = {.n = 0};
    dl_client_t *client;
    dl_error_t err;
    tell(&server, "SCRIPT FLUSH");
    /* What a check could not free may be of the other kind, and have the next one's name. */
    tell(&server, "FLUSHALL");
    type_in(&server, rule);
    if (open_with(driver, more, &client, &err) != DL_OK) {
        return true;
    }
    (void)dl_client_check(client, keep, &found, &err);
    dl_client_close(client);
    return level_of(&found, "rights") != DL_FINDING_OK || level_of(&found, "locking") != DL_FINDING_OK ||
           level_of(&found, "wake-up") != DL_FINDING_OK;
}

Test(redis_rights, without_any_part_of_the_printed_rule_something_is_missing_and_said) {
    for
        EACH_WISH(w) {
            char rule[4096], words[4096];
            ask_rule(w->driver, w->more, rule, sizeof rule);
            cr_expect_not(is_lacking(w->driver, w->more, rule), "%s", rule);
            snprintf(words, sizeof words, "%s", strstr(rule, ">opensesame") + strlen(">opensesame"));
            for (char *rest = words, *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
                char without[4096], spaced[256];
                if (word[0] == '&' && is_old(&server)) {
                    continue;
                }
                snprintf(spaced, sizeof spaced, " %s", word);
                const char *at = strstr(rule, spaced);
                while (at[strlen(spaced)] != ' ' && at[strlen(spaced)] != '\0') {
                    at = strstr(at + 1, spaced); /* "+set" is not the beginning of another word */
                }
                snprintf(without, sizeof without, "%.*s%s", (int)(at - rule), rule, at + strlen(spaced));
                cr_expect(is_lacking(w->driver, w->more, without), "%s: %s is not needed", w->driver, word);
            }
        }
}

Test(redis_rights, each_missing_right_is_named_with_its_cost) {
    static const struct {
        const char *take, *subject, *says;
        dl_finding_level_t level;
    } cases[] = {
        {"-publish", "PUBLISH", "waiters look again when", DL_FINDING_WARNING},
        {"-client|kill", "CLIENT KILL", "stay until its lease ends", DL_FINDING_WARNING},
        {"-info", "INFO", "cannot be told from the old one", DL_FINDING_WARNING},
        {"-scan", "SCAN", "cannot be listed", DL_FINDING_NOTE},
        {"-unsubscribe", "UNSUBSCRIBE", "nobody waits for", DL_FINDING_NOTE},
        {"-ping", "PING", "noticed later", DL_FINDING_WARNING},
        {"-pttl", "locking", "not told that it is busy", DL_FINDING_ERROR},
        {"-evalsha", "EVALSHA", "no lock can be taken", DL_FINDING_ERROR},
        {"-eval", "EVAL", "forgotten the scripts", DL_FINDING_ERROR},
        {"-wait", "WAIT", "no lock can be taken", DL_FINDING_ERROR},
        {"-subscribe", "wake-up", "may not subscribe", DL_FINDING_WARNING},
        {"-set", "locking", "could not be taken", DL_FINDING_ERROR},
        {"-del", "locking", "could not be freed", DL_FINDING_ERROR},
        {"-pexpire", "locking", "could not be renewed", DL_FINDING_ERROR},
    };
    char rule[4096];
    dl_client_t *client;
    dl_error_t err;
    const char *login = LOGIN ", min_replicas: 1, replica_shortfall: warn, replica_timeout: 50ms";
    ask_rule("redis-string", login, rule, sizeof rule);
    type_in(&server, rule);
    /* Opened with all rights: some are missed at once by an open. */
    cr_assert_eq(open_with("redis-string", login, &client, &err), DL_OK, "%s", err.message);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        findings_t found = {.n = 0};
        char give[32];
        if (strchr(cases[i].take, '|') != NULL && is_old(&server)) {
            continue;
        }
        tell(&server, "ACL SETUSER locker %s", cases[i].take);
        cr_assert_eq(dl_client_check(client, keep, &found, &err), DL_OK, "%s", err.message);
        EXPECT(&found, cases[i].subject, cases[i].level, cases[i].says);
        snprintf(give, sizeof give, "+%s", cases[i].take + 1);
        tell(&server, "ACL SETUSER locker %s", give);
    }
    dl_client_close(client);
}

/* A client whose prefix is this, as the user `locker`. */
static void write_prefixed(char *yaml, size_t size, const char *driver, const char *prefix) {
    snprintf(yaml, size,
             "use: b\nbackends:\n  b: {driver: %s, url: \"redis://127.0.0.1:%d/1\", prefix: '%s'%s}\n",
             driver, server.port, prefix, LOGIN);
}

Test(redis_rights, the_printed_rule_of_every_prefix_is_taken_by_a_server_and_enough) {
    static const char *const prefixes[] = {
        "", "app:", "a*[b]?c\\d^:", "with space \"quote:", "*", "\xc3\xa4{x}:"};
    for (size_t i = 0; i < 2 * sizeof prefixes / sizeof prefixes[0]; i++) {
        char yaml[1024], rule[4096];
        findings_t found = {.n = 0};
        dl_client_t *client;
        dl_error_t err;
        write_prefixed(yaml, sizeof yaml, drivers[i % 2], prefixes[i / 2]);
        read_rule(yaml, rule, sizeof rule);
        type_in(&server, rule);
        cr_assert_eq(dl_client_open_text(yaml, strlen(yaml), NULL, &client, &err), DL_OK, "%s: %s", rule,
                     err.message);
        cr_assert_eq(dl_client_check(client, keep, &found, &err), DL_OK, "%s", err.message);
        EXPECT(&found, "rights", DL_FINDING_OK, "every command");
        EXPECT(&found, "locking", DL_FINDING_OK, "taken");
        EXPECT(&found, "wake-up", DL_FINDING_OK, "wakes");
        cr_expect_eq(level_of(&found, "prefix"), i / 2 == 0 ? (int)DL_FINDING_NOTE : -1);
        const char *failed = use_everything(client);
        cr_expect_null(failed, "%s: %s with %s", drivers[i % 2], failed, rule);
        dl_client_close(client);
    }
}

/* Nothing that it does is refused. */
Test(redis_rights, the_printed_rule_lets_the_first_in_line_leave_it) {
    tell(&server, "SELECT 1");
    for (size_t i = 0; i < 2; i++) {
        dl_client_t *holds, *waits;
        dl_lock_t *held, *wanted;
        dl_queue_t *queue;
        dl_error_t err;
        char rule[4096];
        tell(&server, "FLUSHALL");
        ask_rule(drivers[i], LOGIN, rule, sizeof rule);
        type_in(&server, rule);
        tell(&server, "ACL SETUSER locker +script|load"); /* each connection tries that */
        tell(&server, "ACL LOG RESET");
        cr_assert_eq(open_with(drivers[i], LOGIN, &holds, &err), DL_OK, "%s", err.message);
        cr_assert_eq(open_with(drivers[i], LOGIN, &waits, &err), DL_OK, "%s", err.message);
        cr_assert_eq(dl_lock_open(holds, "orders", &held, &err), DL_OK);
        cr_assert_eq(dl_lock(held, &err), DL_OK, "%s", err.message);
        cr_assert_eq(dl_queue_new(&queue, &err), DL_OK);
        cr_assert_eq(dl_lock_open_owned(waits, "orders", 1, &wanted, &err), DL_OK);
        dl_acquire_opts_t how = DL_ACQUIRE_OPTS_INIT;
        cr_assert_eq(dl_acquire_begin(wanted, &how, queue, NULL, NULL, &err), DL_OK, "%s", err.message);
        AWAIT_THAT(tell(&server, "KEYS dlock_tokens:client:queue:*"), ==, 1);
        dl_lock_close(wanted);
        dl_client_close(waits);
        cr_expect_eq(tell(&server, "ACL LOG"), 0, "%s", drivers[i]);
        cr_assert_eq(dl_unlock(held, &err), DL_OK, "%s", err.message);
        dl_lock_close(held);
        dl_client_close(holds);
        dl_queue_free(queue);
        cr_expect_eq(tell(&server, "ACL LOG"), 0, "%s", drivers[i]);
    }
}

Test(redis_rights, keys_that_the_user_may_not_touch_are_named_and_nothing_else_is) {
    for (size_t i = 0; i < 2; i++) {
        findings_t found;
        type_in(&server, "ACL SETUSER locker reset on >opensesame ~zz:* ~dlock_tokens &* +@all");
        check_with(drivers[i], LOGIN, &found);
        EXPECT(&found, "keys", DL_FINDING_ERROR, "the user may not access keys 'app:*' and 'dlock_tokens'");
        EXPECT(&found, "locking", DL_FINDING_NOTE, "not tried");
        cr_expect_eq(level_of(&found, "EVALSHA"), -1);
        cr_expect_eq(level_of(&found, "rights"), -1);
    }
}

Test(redis_rights, init_connects_and_says_that_nothing_is_to_be_created) {
    char path[96], yaml[1024];
    findings_t found = {.n = 0};
    dl_error_t err;
    snprintf(path, sizeof path, "%s/dlock.yaml", server.folder);
    write_yaml(yaml, sizeof yaml, "redis-string", "");
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    cr_assert_geq(fputs(yaml, file), 0);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(dl_backend_init(path, NULL, 0, keep, &found, &err), DL_OK, "%s", err.message);
    EXPECT(&found, "init", DL_FINDING_OK, "nothing has to be created");
    kill(server.pid, SIGKILL);
    found.n = 0;
    cr_expect_eq(dl_backend_init(path, NULL, 0, keep, &found, &err), DL_EIO);
    cr_expect_eq(found.n, 0);
}

Test(redis_rights, a_rule_keeps_odd_prefixes_apart) {
    char path[96], yaml[1024];
    findings_t found = {.n = 0};
    dl_error_t err;
    snprintf(path, sizeof path, "%s/dlock.yaml", server.folder);
    snprintf(yaml, sizeof yaml,
             "use: b\nbackends:\n  b: {driver: redis-hash-reentrant, url: \"redis://127.0.0.1:1\","
             " prefix: \"a*[b] \"}\n");
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    cr_assert_geq(fputs(yaml, file), 0);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(dl_backend_init(path, NULL, DL_INIT_PRINT, keep, &found, &err), DL_OK, "%s", err.message);
    EXPECT(&found, "rule", DL_FINDING_NOTE,
           "~a\\*\\[b\\]?* ~dlock_tokens ~dlock_tokens:client:* ~redisson_lock_queue:a\\*\\[b\\]?* "
           "~redisson_lock_queue:{a\\*\\[b\\]?* &redisson_lock__channel:a\\*\\[b\\]?* "
           "&redisson_lock__channel:{a\\*\\[b\\]?* +");
}
