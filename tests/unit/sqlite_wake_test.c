/* sqlite_wake_test.c - the SQLite driver: waking waiters across threads and processes, and fork(). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "sqlite_fixture.h"

#include <dirent.h>
#include <sys/resource.h>

#include "drivers/sqlite/store.h"

TestSuite(sqlite_wake, .init = set_up, .fini = tear_down, .timeout = 60);

#define WAITERS 8

static void pass_on(int fd) {
    char byte = 'x';
    if (write(fd, &byte, 1) != 1) {
        abort();
    }
}

static void await(int fd) {
    char byte;
    if (read(fd, &byte, 1) != 1) {
        abort();
    }
}

/* ---- waking ----------------------------------------------------------------------------------------- */

static int hold_until_told(void *arg) {
    client_t c;
    int *fds = arg;
    if (open_options(&c, UUID_B, path, 1) != DL_OK || take(&c, "orders", B, 1, 30000, NULL) != DL_OK) {
        return 1;
    }
    pass_on(fds[1]);
    await(fds[2]);
    return drop(&c, "orders", B, 1) == DL_OK ? 0 : 2;
}

Test(sqlite_wake, a_release_in_another_process_wakes_the_waiter) {
    client_t c;
    dl_watch_t *w;
    int fds[4];
    cr_assert_eq(pipe(fds), 0);
    cr_assert_eq(pipe(fds + 2), 0);
    pid_t child = spawn(hold_until_told, fds); /* fds: from the child 0 and 1, to the child 2 and 3 */
    await(fds[0]);
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_EBUSY);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK, "%s", c.err.message);
    cr_assert_eq(take(&c, "orders", A, 2, 30000, NULL), DL_EBUSY);
    cr_assert_eq(heard(&c, "orders", 0), 1); /* that it hears from now on */
    cr_assert_eq(heard(&c, "orders", 50), -1);
    pass_on(fds[3]);
    uint64_t before_ns = now_shifted();
    cr_assert_eq(heard(&c, "orders", 20000), 1);
    cr_assert_lt(now_shifted() - before_ns, 2 * SECOND);
    cr_assert_eq(take(&c, "orders", A, 3, 30000, NULL), DL_OK);
    driver()->unwatch(c.state, w);
    cr_assert_eq(ended(child), 0);
    must_close(&c);
}

Test(sqlite_wake, a_release_while_nobody_listens_is_not_missed) {
    client_t a, b;
    dl_watch_t *w;
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    cr_assert_eq(take(&b, "orders", B, 1, 30000, NULL), DL_OK);
    cr_assert_eq(watch(&a, "orders", &w), DL_OK);
    cr_assert_eq(heard(&a, "orders", 0), 1);
    cr_assert_eq(drop(&b, "orders", B, 1), DL_OK);
    cr_assert_eq(heard(&a, "orders", 0), 1);
    cr_assert_eq(take(&b, "orders", B, 2, 30000, NULL), DL_OK);
    cr_assert_eq(heard(&a, "orders", 20), -1);
    cr_assert_eq(driver()->force_release(b.state, "orders", 6, in_ms(2000), &b.err), DL_OK);
    cr_assert_eq(heard(&a, "orders", 0), 1);
    driver()->unwatch(a.state, w);
    must_close(&a);
    must_close(&b);
}

Test(sqlite_wake, a_release_of_another_name_wakes_nobody_else) {
    client_t c;
    dl_watch_t *w;
    must_open(&c, UUID_A);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK);
    cr_assert_eq(heard(&c, "orders", 0), 1);
    cr_assert_eq(take(&c, "invoices", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(drop(&c, "invoices", A, 1), DL_OK);
    cr_assert_eq(heard(&c, "orders", 20), -1);
    driver()->unwatch(c.state, w);
    must_close(&c);
}

/* What happens in the folder from here on has another time than what happened before. */
static void await_another_time(void) {
    struct stat of_file, of_folder;
    do {
        cr_assert_eq(utimensat(AT_FDCWD, path, NULL, 0), 0);
        cr_assert_eq(stat(path, &of_file), 0);
        cr_assert_eq(stat(folder, &of_folder), 0);
    } while (of_file.st_ctim.tv_sec == of_folder.st_ctim.tv_sec &&
             of_file.st_ctim.tv_nsec == of_folder.st_ctim.tv_nsec);
}

/* Until then it does not look for the folder anew. */
Test(sqlite_wake, the_first_that_waits_after_a_long_time_is_woken) {
    client_t a, b;
    dl_watch_t *w;
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    for (uint64_t i = 1; i <= 4; i++) {
        cr_assert_eq(take(&b, "orders", B, i, 30000, NULL), DL_OK);
        cr_assert_eq(drop(&b, "orders", B, i), DL_OK);
        clock_ahead_ns += 4 * (int64_t)SECOND;
    }
    cr_assert_eq(take(&b, "orders", B, 5, 30000, NULL), DL_OK);
    await_another_time();
    cr_assert_eq(watch(&a, "orders", &w), DL_OK);
    cr_assert_eq(heard(&a, "orders", 0), 1);
    cr_assert_eq(heard(&a, "orders", 20), -1);
    cr_assert_eq(drop(&b, "orders", B, 5), DL_OK);
    cr_assert_eq(heard(&a, "orders", 0), 1);
    driver()->unwatch(a.state, w);
    must_close(&a);
    must_close(&b);
}

/* More than there are wake-up files: some of them share one. */
#define NAMES 300

Test(sqlite_wake, whoever_listens_hears_of_every_name_that_is_watched) {
    client_t a, b;
    dl_watch_t *w[NAMES];
    char name[16];
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "lock %d", i);
        cr_assert_eq(watch(&a, name, &w[i]), DL_OK, "%s", a.err.message);
        cr_assert_eq(heard(&a, name, 0), 1);
    }
    for (int i = 0; i < NAMES; i += 2) {
        driver()->unwatch(a.state, w[i]);
    }
    for (int i = 1; i < NAMES; i += 2) {
        snprintf(name, sizeof name, "lock %d", i);
        cr_assert_eq(take(&b, name, B, 1, 30000, NULL), DL_OK);
        cr_assert_eq(drop(&b, name, B, 1), DL_OK);
        cr_assert_eq(heard(&a, name, 5000), 1, "%s", name);
        driver()->unwatch(a.state, w[i]);
    }
    must_close(&a);
    must_close(&b);
}

/* However many come: whoever listens is kept for no longer than one look. */
Test(sqlite_wake, what_is_more_than_one_look_is_left_to_the_next) {
    client_t c;
    dl_watch_t *watches[2];
    struct pollfd fd;
    uint64_t until_ns;
    must_open(&c, UUID_A);
    cr_assert_eq(watch(&c, "orders", &watches[0]), DL_OK, "%s", c.err.message);
    cr_assert_eq(watch(&c, "stock", &watches[1]), DL_OK, "%s", c.err.message);
    cr_assert_eq(heard(&c, "stock", 1000), 1);
    for (int i = 0; i < 300; i++) { /* of the same file they would be one */
        dli_wake_all(c.state, i % 2 == 0 ? "orders" : "stock", i % 2 == 0 ? 6 : 5);
    }
    cr_assert_eq(driver()->listen_fds(c.state, &fd, 1, &until_ns), 1);
    for (int looks = 0; looks < 2; looks++) {
        cr_assert_eq(poll(&fd, 1, 0), 1, "after %d", looks);
        driver()->listen(c.state, &fd, 1);
    }
    cr_assert_eq(poll(&fd, 1, 0), 0);
    driver()->unwatch(c.state, watches[0]);
    driver()->unwatch(c.state, watches[1]);
    must_close(&c);
}

Test(sqlite_wake, without_a_watch_there_is_nothing_to_listen_to) {
    client_t c;
    dl_watch_t *w;
    struct pollfd fds[DL_LISTEN_MAX];
    uint64_t until_ns = 0;
    must_open(&c, UUID_A);
    cr_assert_eq(driver()->listen_fds(c.state, fds, DL_LISTEN_MAX, &until_ns), 0);
    cr_assert_eq(until_ns, DL_NO_DEADLINE);
    driver()->listen(c.state, fds, 0);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK);
    cr_assert_eq(driver()->listen_fds(c.state, fds, DL_LISTEN_MAX, &until_ns), 1);
    cr_assert_eq(until_ns, DL_NO_DEADLINE);
    driver()->unwatch(c.state, w);
    cr_assert_eq(driver()->listen_fds(c.state, fds, DL_LISTEN_MAX, &until_ns), 0);
    must_close(&c);
}

Test(sqlite_wake, a_client_has_one_inotify_instance_for_all_its_waits) {
    client_t c;
    dl_watch_t *w[WAITERS];
    must_open(&c, UUID_A);
    for (int i = 0; i < WAITERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "lock %d", i);
        cr_assert_eq(watch(&c, name, &w[i]), DL_OK);
    }
    int instances = 0;
    for (int fd = 0; fd < 64; fd++) {
        char link[64], target[64] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (readlink(link, target, sizeof target - 1) > 0) {
            instances += strcmp(target, "anon_inode:inotify") == 0;
        }
    }
    cr_assert_eq(instances, 1);
    for (int i = 0; i < WAITERS; i++) {
        driver()->unwatch(c.state, w[i]);
    }
    must_close(&c);
}

Test(sqlite_wake, without_inotify_or_descriptors_the_core_is_told_to_poll) {
    client_t c;
    dl_watch_t *w;
    must_open(&c, UUID_A);
    int next = dup(0);
    close(next);
    struct rlimit limit, old;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    for (int more = 0; more <= 1; more++) { /* none for inotify, and none for the folder */
        limit = (struct rlimit){.rlim_cur = (rlim_t)(next + more), .rlim_max = old.rlim_max};
        cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        cr_assert_eq(watch(&c, "orders", &w), DL_ENOTSUP, "%s", c.err.message);
    }
    cr_assert_eq(c.said_count, 0);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK, "%s", c.err.message);
    driver()->unwatch(c.state, w);
    must_close(&c);
}

/* A command in which $d is the folder of the wake-up files. */
static void shell(const char *text) {
    char command[400];
    snprintf(command, sizeof command, "d='%s-wake'; %s", path, text);
    cr_assert_eq(system(command), 0, "%s", command);
}

static void release_and_hear(client_t *c, const char *name) {
    cr_assert_eq(take(c, name, A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(drop(c, name, A, 1), DL_OK);
    cr_assert_eq(heard(c, name, 5000), 1);
}

Test(sqlite_wake, a_wake_up_file_that_went_away_wakes_and_is_made_again) {
    static const char *const ways[] = {"rm -r \"$d\"", "mv \"$d\"/?? \"$d\"/moved"};
    client_t c;
    dl_watch_t *w;
    must_open(&c, UUID_A);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK);
    cr_assert_eq(heard(&c, "orders", 0), 1);
    for (int i = 0; i < 2; i++) {
        shell(ways[i]);
        cr_assert_eq(heard(&c, "orders", 5000), 1);
        cr_assert_eq(heard(&c, "orders", 20), -1);
        release_and_hear(&c, "orders");
    }
    driver()->unwatch(c.state, w);
    must_close(&c);
}

Test(sqlite_wake, a_wake_up_file_that_cannot_be_made_again_leaves_polling_until_it_can) {
    client_t c;
    dl_watch_t *w, *other;
    char twin[16]; /* a name with the same file */
    must_open(&c, UUID_A);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK);
    cr_assert_eq(heard(&c, "orders", 0), 1);
    for (int i = 0, found = 0; !found; i++) {
        snprintf(twin, sizeof twin, "lock %d", i);
        cr_assert_eq(take(&c, twin, A, 1, 30000, NULL), DL_OK);
        cr_assert_eq(drop(&c, twin, A, 1), DL_OK);
        found = heard(&c, "orders", 0) == 1;
    }
    shell("rm -r \"$d\" && : >\"$d\"");
    cr_assert_eq(heard(&c, "orders", 5000), 0);
    cr_assert_eq(heard(&c, "orders", 20), -1);
    shell("rm \"$d\"");
    cr_assert_eq(watch(&c, twin, &other), DL_OK, "%s", c.err.message);
    cr_assert_eq(heard(&c, "orders", 0), 1);
    release_and_hear(&c, "orders");
    driver()->unwatch(c.state, w);
    driver()->unwatch(c.state, other);
    must_close(&c);
}

Test(sqlite_wake, wake_up_files_are_for_those_who_may_use_the_lock_file) {
    client_t c;
    dl_watch_t *w;
    struct stat file;
    char name[300];
    must_open(&c, UUID_A);
    cr_assert_eq(chmod(path, 0660), 0);
    umask(077);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK);
    snprintf(name, sizeof name, "%s-wake", path);
    cr_assert_eq(stat(name, &file), 0);
    cr_assert_eq(file.st_mode & 0777, 0770);
    DIR *dir = opendir(name);
    cr_assert_not_null(dir);
    int files = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] != '.') {
            cr_assert_eq(fstatat(dirfd(dir), entry->d_name, &file, 0), 0);
            cr_assert_eq(file.st_mode & 0777, 0660);
            files++;
        }
    }
    closedir(dir);
    cr_assert_eq(files, 1);
    driver()->unwatch(c.state, w);
    must_close(&c);
}

/* ---- fork() ----------------------------------------------------------------------------------------- */

static int close_inherited(void *arg) {
    driver()->close(((client_t *)arg)->state, 1);
    return 0;
}

Test(sqlite_wake, a_child_that_closes_the_inherited_client_harms_nothing) {
    client_t c, other;
    dl_watch_t *w;
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK);
    cr_assert_eq(ended(spawn(close_inherited, &c)), 0);
    must_open(&other, UUID_B);
    cr_assert_eq(take(&other, "orders", B, 1, 30000, NULL), DL_EBUSY);
    cr_assert_eq(renew(&c, "orders", A, 1, 30000), DL_OK);
    cr_assert_eq(drop(&c, "orders", A, 1), DL_OK);
    cr_assert_eq(heard(&c, "orders", 5000), 1);
    cr_assert_eq(take(&other, "orders", B, 2, 30000, NULL), DL_OK);
    driver()->unwatch(c.state, w);
    must_close(&other);
    must_close(&c);
}

/* SQLite's last connection deletes the log. A child with a client of its own counts as a connection,
 * although SQLite's book, inherited from the parent, says that its locks are taken already. */
static int live_on_in_child(void *arg) {
    int *fds = arg;
    client_t c;
    if (open_options(&c, UUID_B, path, 1) != DL_OK || take(&c, "orders", B, 1, 30000, NULL) != DL_OK) {
        return 1;
    }
    pass_on(fds[1]);
    await(fds[2]);
    if (take(&c, "invoices", B, 1, 30000, NULL) != DL_OK || renew(&c, "orders", B, 1, 60000) != DL_OK) {
        return 2;
    }
    pass_on(fds[1]);
    await(fds[2]);
    driver()->close(c.state, 0);
    return 0;
}

static ino_t inode_of_log(void) {
    char name[256];
    struct stat file;
    snprintf(name, sizeof name, "%s-wal", path);
    return stat(name, &file) == 0 ? file.st_ino : 0;
}

static int open_and_close(void *arg) {
    (void)arg;
    sqlite3 *db = NULL; /* plain SQLite: as the last one, it deletes the log */
    int rc = sqlite3_open(path, &db);
    if (rc == SQLITE_OK) {
        rc = sqlite3_exec(db, "SELECT count(*) FROM dlock_locks", NULL, NULL, NULL);
    }
    sqlite3_close(db);
    return rc;
}

Test(sqlite_wake, a_child_of_a_client_can_open_its_own_and_outlive_the_parents) {
    client_t c;
    int fds[4];
    cr_assert_eq(pipe(fds), 0);
    cr_assert_eq(pipe(fds + 2), 0);
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "first", A, 1, 30000, NULL), DL_OK);
    pid_t child = spawn(live_on_in_child, fds);
    await(fds[0]);
    ino_t log = inode_of_log();
    cr_assert_neq(log, 0);
    must_close(&c);
    /* No other process is left that could keep the log: only the child's own locks do. */
    cr_assert_eq(ended(spawn(open_and_close, NULL)), 0);
    cr_assert_eq(inode_of_log(), log, "the log was deleted under the child");
    pass_on(fds[3]);
    await(fds[0]);
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "orders", A, 9, 30000, NULL), DL_EBUSY);
    cr_assert_eq(take(&c, "invoices", A, 9, 30000, NULL), DL_EBUSY);
    cr_assert_gt(look(&c, "orders").remaining_ms, 50000);
    pass_on(fds[3]);
    cr_assert_eq(ended(child), 0);
    must_close(&c);
}

static atomic_bool hammering;

static void *hammer(void *arg) {
    client_t own = *(client_t *)arg; /* an error of its own */
    client_t *c = &own;
    char name[32];
    snprintf(name, sizeof name, "busy %p", (void *)&name);
    for (uint64_t i = 1; atomic_load(&hammering); i++) {
        if (take(c, name, A, i, 30000, NULL) != DL_OK || renew(c, name, A, i, 30000) != DL_OK ||
            drop(c, name, A, i) != DL_OK) {
            return arg;
        }
    }
    return NULL;
}

static int one_hold_in_child(void *arg) {
    (void)arg;
    client_t c;
    alarm(20); /* a mutex left locked would hang for ever */
    if (open_options(&c, UUID_B, path, 1) != DL_OK || take(&c, "orders", B, 1, 30000, NULL) != DL_OK ||
        drop(&c, "orders", B, 1) != DL_OK) {
        return 1;
    }
    driver()->close(c.state, 0);
    return 0;
}

Test(sqlite_wake, fork_in_the_midst_of_calls_leaves_the_child_able) {
    client_t c;
    pthread_t threads[3];
    must_open(&c, UUID_A);
    atomic_store(&hammering, true);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, hammer, &c), 0);
    }
    for (int i = 0; i < 30; i++) {
        cr_assert_eq(ended(spawn(one_hold_in_child, NULL)), 0);
    }
    atomic_store(&hammering, false);
    for (int i = 0; i < 3; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        cr_assert_null(failed);
    }
    must_close(&c);
}
