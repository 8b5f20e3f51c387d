/* sqlite_wake_test.c - the SQLite driver: waking waiters across threads and processes, and fork(). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "sqlite_fixture.h"

#include <dirent.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

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
    cr_assert_eq(driver()->wait(c.state, w, in_ms(50), &no_stop, &c.err), DL_ETIMEDOUT);
    pass_on(fds[3]);
    uint64_t before_ns = now_shifted();
    cr_assert_eq(driver()->wait(c.state, w, in_ms(20000), &no_stop, &c.err), DL_OK, "%s", c.err.message);
    cr_assert_lt(now_shifted() - before_ns, 2 * SECOND);
    cr_assert_eq(take(&c, "orders", A, 3, 30000, NULL), DL_OK);
    driver()->unwatch(c.state, w);
    cr_assert_eq(ended(child), 0);
    must_close(&c);
}

Test(sqlite_wake, a_release_between_watch_and_wait_is_not_missed) {
    client_t a, b;
    dl_watch_t *w;
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    cr_assert_eq(take(&b, "orders", B, 1, 30000, NULL), DL_OK);
    cr_assert_eq(watch(&a, "orders", &w), DL_OK);
    cr_assert_eq(drop(&b, "orders", B, 1), DL_OK);
    cr_assert_eq(driver()->wait(a.state, w, in_ms(0), &no_stop, &a.err), DL_OK, "%s", a.err.message);
    cr_assert_eq(take(&b, "orders", B, 2, 30000, NULL), DL_OK);
    cr_assert_eq(driver()->wait(a.state, w, in_ms(20), &no_stop, &a.err), DL_ETIMEDOUT);
    cr_assert_eq(driver()->force_release(b.state, "orders", 6, in_ms(2000), &b.err), DL_OK);
    cr_assert_eq(driver()->wait(a.state, w, in_ms(0), &no_stop, &a.err), DL_OK, "%s", a.err.message);
    driver()->unwatch(a.state, w);
    must_close(&a);
    must_close(&b);
}

Test(sqlite_wake, a_release_of_another_name_wakes_nobody_else) {
    client_t c;
    dl_watch_t *w;
    must_open(&c, UUID_A);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK);
    cr_assert_eq(take(&c, "invoices", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(drop(&c, "invoices", A, 1), DL_OK);
    cr_assert_eq(driver()->wait(c.state, w, in_ms(20), &no_stop, &c.err), DL_ETIMEDOUT);
    driver()->unwatch(c.state, w);
    must_close(&c);
}

Test(sqlite_wake, a_wait_ends_by_either_stop_descriptor) {
    client_t c;
    dl_watch_t *w;
    must_open(&c, UUID_A);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK);
    for (int which = 0; which < 2; which++) {
        dl_stop_t stop = {{-1, -1}};
        stop.fd[which] = eventfd(1, EFD_CLOEXEC);
        cr_assert_eq(driver()->wait(c.state, w, DL_NO_DEADLINE, &stop, &c.err), DL_ECANCELED);
        close(stop.fd[which]);
    }
    driver()->unwatch(c.state, w);
    must_close(&c);
}

typedef struct waiter {
    client_t *client;
    char name[16];
    dl_stop_t stop;
    uint64_t wait_ms;
    dl_status_t status;
    dl_error_t err;
    pthread_t thread;
    dl_watch_t *watch;
} waiter_t;

static void *wait_in_thread(void *arg) {
    waiter_t *w = arg;
    w->status = driver()->wait(w->client->state, w->watch, in_ms(w->wait_ms), &w->stop, &w->err);
    return NULL;
}

static void start_waiter(client_t *c, waiter_t *w, int i, uint64_t wait_ms) {
    *w = (waiter_t){.client = c, .stop = {{-1, eventfd(0, EFD_CLOEXEC)}}, .wait_ms = wait_ms};
    snprintf(w->name, sizeof w->name, "lock %d", i);
    cr_assert_eq(watch(c, w->name, &w->watch), DL_OK, "%s", c->err.message);
    cr_assert_eq(pthread_create(&w->thread, NULL, wait_in_thread, w), 0);
}

static void end_waiter(waiter_t *w, dl_status_t expected) {
    pthread_join(w->thread, NULL);
    cr_assert_eq(w->status, expected, "%s: %d %s", w->name, w->status, w->err.message);
    driver()->unwatch(w->client->state, w->watch);
    close(w->stop.fd[1]);
}

/* Whoever leads, and however a leader leaves, the others are still woken. Any of the eight may be the
 * leader, so each round ends one of them in another way. */
Test(sqlite_wake, the_threads_of_a_client_wait_together_and_survive_any_leader) {
    client_t a, b;
    waiter_t w[WAITERS];
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < WAITERS; i++) {
            start_waiter(&a, &w[i], i, i % 3 == 0 ? 5 : 20000);
        }
        for (int i = 0; i < WAITERS; i++) {
            if (i % 3 == 0) {
                end_waiter(&w[i], DL_ETIMEDOUT);
            } else if (i % 3 == 1) {
                uint64_t one = 1;
                cr_assert_eq(write(w[i].stop.fd[1], &one, sizeof one), (ssize_t)sizeof one);
                end_waiter(&w[i], DL_ECANCELED);
            } else {
                cr_assert_eq(take(&b, w[i].name, B, 1, 30000, NULL), DL_OK);
                cr_assert_eq(drop(&b, w[i].name, B, 1), DL_OK);
                end_waiter(&w[i], DL_OK);
            }
        }
    }
    must_close(&a);
    must_close(&b);
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
    struct rlimit limit = {.rlim_cur = (rlim_t)next + 1, .rlim_max = 4096}, old;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    limit.rlim_max = old.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(watch(&c, "orders", &w), DL_ENOTSUP, "%s", c.err.message);
    limit.rlim_cur = (rlim_t)next;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(watch(&c, "orders", &w), DL_ELIMIT, "%s", c.err.message);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK, "%s", c.err.message);
    driver()->unwatch(c.state, w);
    must_close(&c);
}

Test(sqlite_wake, a_deleted_wake_up_file_ends_the_wait_and_is_made_again) {
    client_t c;
    dl_watch_t *w;
    char command[256];
    must_open(&c, UUID_A);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK);
    snprintf(command, sizeof command, "rm -r '%s-wake'", path);
    cr_assert_eq(system(command), 0);
    dl_status_t status = DL_OK;
    for (int i = 0; i < 3 && status == DL_OK; i++) { /* the first events may be for nothing */
        status = driver()->wait(c.state, w, in_ms(5000), &no_stop, &c.err);
    }
    cr_assert_eq(status, DL_EIO);
    driver()->unwatch(c.state, w);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(drop(&c, "orders", A, 1), DL_OK);
    cr_assert_eq(driver()->wait(c.state, w, in_ms(5000), &no_stop, &c.err), DL_OK);
    driver()->unwatch(c.state, w);
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
    cr_assert_eq(driver()->wait(c.state, w, in_ms(5000), &no_stop, &c.err), DL_OK);
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
