/* sqlite_cases.c - faults of the lock file (row 34): locked, full, read-only, damaged, foreign, replaced. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "contract/callers.h"

/* The one fixture that is a file with notifications. */
#define ON_A_SERVER (CT_REDIS | CT_REDLOCK)
#define SQLITE .traits = CT_PROCESSES, .traits_not = ON_A_SERVER, .needs = DL_CAP_NOTIFY | DL_CAP_FENCE

#define PATH_SIZE 256

/* The path of the client's lock file. */
static void path_of(ct_t *ct, dl_client_t *c, char *path) {
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    CT_EQ(dl_client_info(c, &info), DL_OK);
    CT_STR_EQ(info.driver, "sqlite");
    const char *at = strstr(info.server, ", /");
    CT_CHECKF(at != NULL, "no path in '%s'", info.server);
    snprintf(path, PATH_SIZE, "%s", at + 2);
}

/* Another file in the folder of the case's own, which the harness removes. */
static void path_beside(ct_t *ct, const char *name, char *path) {
    dl_client_t *c = ct_open(ct, NULL);
    path_of(ct, c, path);
    ct_close(ct, c);
    char *slash = strrchr(path, '/');
    snprintf(slash + 1, PATH_SIZE - (size_t)(slash + 1 - path), "%s", name);
}

static dl_status_t open_path(ct_t *ct, const char *path, dl_client_t **c, dl_error_t *err) {
    char extra[PATH_SIZE + 16];
    snprintf(extra, sizeof extra, "path: \"%s\"", path);
    return ct_try_open(ct, extra, c, err);
}

static void write_file(ct_t *ct, const char *path, const void *bytes, size_t len) {
    FILE *file = fopen(path, "we");
    CT_CHECK(file != NULL);
    CT_EQ(fwrite(bytes, 1, len, file), len);
    CT_EQ(fclose(file), 0);
}

static void check_file(ct_t *ct, const char *path, const void *bytes, size_t len) {
    char now[8192];
    FILE *file = fopen(path, "re");
    CT_CHECKF(file != NULL, "the file is gone");
    size_t have = fread(now, 1, sizeof now, file);
    fclose(file);
    CT_EQ(have, len);
    CT_CHECKF(memcmp(now, bytes, len) == 0, "the file was changed");
}

/* ---- locked by others ------------------------------------------------------------------------ */

/* Bytes of the log's index that stand for a right, by SQLite's own format: what every writer locks first, and
 * what readers lock. */
typedef struct rights {
    char index[PATH_SIZE + 8];
    off_t first, n;
} rights_t;

static void keep(ct_t *ct, void *arg) {
    const rights_t *rights = arg;
    int fd = open(rights->index, O_RDWR | O_CLOEXEC);
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rights->first, .l_len = rights->n};
    CT_GE(fd, 0);
    CT_EQ(fcntl(fd, F_SETLKW, &lock), 0);
    ct_send(ct, NULL, 1);
    (void)ct_recv(ct, NULL);
}

static void keep_rights(ct_t *ct, off_t first, off_t n) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL), *closed = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "row 34"), *wanted = ct_lock(ct, b, "row 34");
    dl_lock_t *kept = ct_lock(ct, a, "row 34 kept"), *free_lock = ct_lock(ct, b, "row 34 free");
    rights_t rights = {.first = first, .n = n};
    path_of(ct, a, rights.index);
    strcat(rights.index, "-shm");
    take(ct, held, 10 * ct_lease_ms(ct));
    CT_OK(dl_lock(kept, CT_ERR));
    CT_OK(dl_lock(ct_lock(ct, closed, "row 34 closed"), CT_ERR));
    ct_process_t *keeper = ct_fork(ct, keep, &rights);
    (void)ct_recv(ct, keeper);
    int64_t timeout_ms = ct_call_timeout_ms(ct), before_ms = ct_now_ms(ct);
    CT_STATUS(dl_trylock(free_lock, CT_ERR), DL_EIO);
    CT_LE(ct_now_ms(ct) - before_ms, timeout_ms + ct_tolerance_ms(ct));
    CT_CHECKF(strstr(ct_last_err()->message, "busy") != NULL, "not a word of why: %s",
              ct_last_err()->message);
    before_ms = ct_now_ms(ct);
    dl_status_t status = dl_trylock_for(wanted, 100, DL_LEASE_AUTO, NULL);
    CT_CHECKF(status == DL_EIO || status == DL_ETIMEDOUT, "the wait was %s", dl_status_name(status));
    CT_LE(ct_now_ms(ct) - before_ms, 100 + ct_tolerance_ms(ct));
    before_ms = ct_now_ms(ct);
    CT_STATUS(dl_unlock(held, CT_ERR), DL_EIO);
    CT_LE(ct_now_ms(ct) - before_ms, timeout_ms + ct_tolerance_ms(ct));
    before_ms = ct_now_ms(ct);
    ct_close(ct, closed);
    CT_LE(ct_now_ms(ct) - before_ms, timeout_ms + ct_tolerance_ms(ct));
    /* What could not be renewed is lost in time. */
    ct_expect_event(ct, a, DL_EVENT_LOST, "row 34 kept", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(dl_valid_ms(kept), 0);
    ct_send(ct, keeper, 1);
    ct_process_wait(ct, keeper);
    /* And with the file back everything is freed and works. */
    CT_OK(dl_trylock_for(wanted, 1000 + ct_tolerance_ms(ct), DL_LEASE_AUTO, CT_ERR));
    CT_OK(dl_unlock(wanted, CT_ERR));
    CT_STATUS(dl_unlock(kept, CT_ERR), DL_ELOST);
    ct_expect_free(ct, "row 34 kept", 1000 + ct_tolerance_ms(ct));
    ct_expect_free(ct, "row 34", 0);
}

CT_CASE(faults, row34_file_kept_locked_by_another_process, SQLITE) {
    keep_rights(ct, 120, 1);
}

CT_CASE(faults, row34_readers_kept_out_by_another_process, SQLITE) {
    keep_rights(ct, 123, 5);
}

/* ---- no room --------------------------------------------------------------------------------- */

static struct rlimit limit_files(ct_t *ct, rlim_t max) {
    struct rlimit old, new;
    CT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
    new = old;
    new.rlim_cur = max;
    CT_EQ(setrlimit(RLIMIT_FSIZE, &new), 0);
    return old;
}

CT_CASE(faults, row34_disk_full, SQLITE) {
    dl_client_t *c = ct_open(ct, NULL), *other = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, c, "row 34"), *more = ct_lock(ct, c, "row 34 more");
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit fails as on a full disk */
    CT_OK(dl_lock(held, CT_ERR));
    struct rlimit old = limit_files(ct, 1);
    int64_t before_ms = ct_now_ms(ct);
    dl_error_t err = {.status = DL_OK};
    dl_status_t locked = dl_trylock(more, &err), unlocked = dl_unlock(held, NULL);
    int64_t took_ms = ct_now_ms(ct) - before_ms;
    CT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
    CT_CHECKF(locked == DL_EIO || locked == DL_EUNKNOWN, "the lock was %s", dl_status_name(locked));
    CT_EQ(err.status, locked);
    CT_CHECKF(unlocked == DL_EIO || unlocked == DL_EUNKNOWN, "the unlock was %s", dl_status_name(unlocked));
    CT_LE(took_ms, 2 * ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(dl_hold_count(more), 0);
    CT_EQ(dl_hold_count(held), 0);
    /* Room again: what was left is freed, and everything works. */
    ct_expect_free(ct, "row 34", 1000 + ct_tolerance_ms(ct));
    ct_expect_free(ct, "row 34 more", 1000 + ct_tolerance_ms(ct));
    CT_OK(dl_trylock(more, CT_ERR));
    CT_STATUS(dl_trylock(ct_lock(ct, other, "row 34 more"), CT_ERR), DL_EBUSY);
    CT_OK(dl_unlock(more, CT_ERR));
}

/* ---- not ours to write ----------------------------------------------------------------------- */

CT_CASE(faults, row34_file_read_only, SQLITE) {
    char path[PATH_SIZE], folder[PATH_SIZE];
    dl_client_t *c = ct_open(ct, NULL);
    path_of(ct, c, path);
    ct_close(ct, c);
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    struct stat before, after;
    uid_t user = geteuid();
    CT_EQ(stat("/", &before), 0);
    if (user == 0 && (before.st_mode & S_IXOTH) == 0) {
        return; /* a root folder of a chroot that only root may enter: nobody else can get as far as the file
                 */
    }
    CT_EQ(stat(path, &before), 0);
    CT_EQ(chmod(path, 0444), 0);
    CT_EQ(chmod(folder, 0555), 0);
    CT_CHECK(user != 0 || seteuid(65534) == 0); /* permissions are nothing to root */
    dl_error_t err = {.status = DL_OK};
    dl_status_t status = ct_try_open(ct, NULL, &c, &err);
    CT_CHECK(user != 0 || seteuid(0) == 0);
    CT_EQ(chmod(folder, 0700), 0);
    CT_CHECKF(status == DL_EAUTH, "a file that may only be read: %s: %s", dl_status_name(status),
              err.message);
    CT_CHECK(strstr(err.message, path) != NULL || strstr(err.message, folder) != NULL);
    CT_EQ(stat(path, &after), 0);
    CT_EQ(after.st_ino, before.st_ino);
    CT_EQ(after.st_size, before.st_size);
    CT_EQ(chmod(path, 0600), 0);
    CT_OK(dl_trylock(ct_lock(ct, ct_open(ct, NULL), "row 34"), CT_ERR));
}

CT_CASE(faults, row34_files_of_others_are_left_as_they_are, SQLITE) {
    char path[PATH_SIZE], text[] = "Dear diary, nobody but me shall ever write here.\n",
                          database[4096] = "SQLite format 3";
    dl_client_t *c;
    path_beside(ct, "diary.txt", path);
    write_file(ct, path, text, sizeof text - 1);
    CT_STATUS(open_path(ct, path, &c, CT_ERR), DL_ECONFIG);
    CT_HAS(ct_last_err()->message, path);
    check_file(ct, path, text, sizeof text - 1);
    database[16] = 16; /* pages of 4096 bytes, an application id of 0 */
    write_file(ct, path, database, sizeof database);
    CT_STATUS(open_path(ct, path, &c, CT_ERR), DL_ECONFIG);
    check_file(ct, path, database, sizeof database);
    write_file(ct, path, "x", 1);
    CT_STATUS(open_path(ct, path, &c, CT_ERR), DL_ECONFIG);
    check_file(ct, path, "x", 1);
    *strrchr(path, '/') = 0; /* a folder */
    CT_NE(open_path(ct, path, &c, CT_ERR), DL_OK);
    strcat(path, "/missing/locks.db");
    CT_STATUS(open_path(ct, path, &c, CT_ERR), DL_ECONFIG);
}

/* ---- prepared by somebody who may write it --------------------------------------------------- */

typedef struct script {
    char path[PATH_SIZE];
    const char *text;
} script_t;

/* In a process of its own: closing the file in this one would drop the locks that the clients have on it. */
static void run_sql(ct_t *ct, void *arg) {
    const script_t *script = arg;
    sqlite3 *db = NULL;
    CT_EQ(sqlite3_open(script->path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 2000);
    CT_EQ(sqlite3_exec(db, script->text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

#define NEVER_ENDS                               \
    " ON dlock_locks BEGIN SELECT count(*) FROM" \
    " (WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c); END;"

CT_CASE(faults, row34_file_with_triggers_that_never_end, SQLITE) {
    dl_client_t *a = ct_open(ct, NULL), *closed = ct_open(ct, NULL), *late = NULL;
    dl_lock_t *kept = ct_lock(ct, a, "row 34 kept"), *more = ct_lock(ct, a, "row 34 more");
    dl_lock_t *held = ct_lock(ct, a, "row 34");
    script_t script = {.text = "CREATE TRIGGER i BEFORE INSERT" NEVER_ENDS
                               "CREATE TRIGGER u BEFORE UPDATE" NEVER_ENDS
                               "CREATE TRIGGER d BEFORE DELETE" NEVER_ENDS};
    path_of(ct, a, script.path);
    CT_OK(dl_lock(kept, CT_ERR));
    take(ct, held, 10 * ct_lease_ms(ct));
    CT_OK(dl_lock(ct_lock(ct, closed, "row 34 closed"), CT_ERR));
    ct_process_wait(ct, ct_fork(ct, run_sql, &script));
    int64_t timeout_ms = ct_call_timeout_ms(ct), before_ms = ct_now_ms(ct);
    CT_STATUS(dl_trylock(more, CT_ERR), DL_EPROTO);
    CT_LE(ct_now_ms(ct) - before_ms, timeout_ms + ct_tolerance_ms(ct));
    CT_CHECKF(strstr(ct_last_err()->message, "trigger") != NULL, "not a word of why: %s",
              ct_last_err()->message);
    before_ms = ct_now_ms(ct);
    CT_NE(dl_trylock_for(more, 100, DL_LEASE_AUTO, NULL), DL_OK);
    CT_LE(ct_now_ms(ct) - before_ms, 100 + ct_tolerance_ms(ct));
    before_ms = ct_now_ms(ct);
    CT_NE(dl_unlock(held, NULL), DL_OK);
    CT_LE(ct_now_ms(ct) - before_ms, timeout_ms + ct_tolerance_ms(ct));
    before_ms = ct_now_ms(ct);
    ct_close(ct, closed);
    CT_LE(ct_now_ms(ct) - before_ms, timeout_ms + ct_tolerance_ms(ct));
    before_ms = ct_now_ms(ct);
    CT_STATUS(open_path(ct, script.path, &late, CT_ERR), DL_EPROTO);
    CT_LE(ct_now_ms(ct) - before_ms, timeout_ms + ct_tolerance_ms(ct));
    ct_expect_event(ct, a, DL_EVENT_LOST, "row 34 kept", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    script.text = "DROP TRIGGER i; DROP TRIGGER u; DROP TRIGGER d";
    ct_process_wait(ct, ct_fork(ct, run_sql, &script));
    CT_OK(dl_trylock(more, CT_ERR));
    CT_OK(dl_unlock(more, CT_ERR));
    CT_STATUS(dl_unlock(kept, CT_ERR), DL_ELOST);
    ct_expect_free(ct, "row 34", 1000 + ct_tolerance_ms(ct));
}

/* ---- damaged, replaced ----------------------------------------------------------------------- */

CT_CASE(faults, row34_file_damaged, SQLITE) {
    char path[PATH_SIZE];
    path_beside(ct, "damaged.db", path);
    dl_client_t *c;
    CT_OK(open_path(ct, path, &c, CT_ERR));
    ct_close(ct, c);
    char log[PATH_SIZE + 8];
    snprintf(log, sizeof log, "%s-wal", path);
    (void)unlink(log); /* so that nothing can mend it */
    struct stat before, after;
    CT_EQ(stat(path, &before), 0);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    char rubbish[8192];
    memset(rubbish, 0x5a, sizeof rubbish);
    CT_GT(before.st_size, 100);
    CT_GT(
        pwrite(fd, rubbish,
               (size_t)before.st_size - 100 < sizeof rubbish ? (size_t)before.st_size - 100 : sizeof rubbish,
               100),
        0);
    close(fd);
    int64_t before_ms = ct_now_ms(ct);
    dl_status_t status = open_path(ct, path, &c, NULL);
    if (status == DL_OK) {
        dl_lock_t *lock = ct_lock(ct, c, "row 34");
        status = dl_trylock(lock, NULL);
    }
    CT_CHECKF(status == DL_EPROTO || status == DL_ECONFIG, "a damaged file: %s", dl_status_name(status));
    CT_LE(ct_now_ms(ct) - before_ms, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(stat(path, &after), 0);
    CT_EQ(after.st_ino, before.st_ino);
    CT_EQ(after.st_size, before.st_size);
}

/* The file is taken away, or another one put in its place, while a lock is held. */
static void replace(ct_t *ct, int with_another) {
    char path[PATH_SIZE], aside[PATH_SIZE + 8];
    dl_client_t *a = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "row 34"), *more = ct_lock(ct, a, "row 34 more");
    path_of(ct, a, path);
    snprintf(aside, sizeof aside, "%s.old", path);
    CT_OK(dl_lock(held, CT_ERR));
    CT_EQ(rename(path, aside), 0);
    if (with_another) {
        write_file(ct, path, "another", 7);
    }
    int64_t before_ms = ct_now_ms(ct);
    CT_STATUS(dl_trylock(more, CT_ERR), DL_EIO);
    CT_CHECKF(strstr(ct_last_err()->message, path) != NULL, "does not name the file: %s",
              ct_last_err()->message);
    CT_LE(ct_now_ms(ct) - before_ms, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    /* Nobody else can see this hold any more: it must not go on for ever as if it were one. */
    ct_expect_event(ct, a, DL_EVENT_LOST, "row 34", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
    ct_close(ct, a);
    if (with_another) {
        check_file(ct, path, "another", 7);
    } else {
        CT_EQ(access(path, F_OK), -1); /* not made anew behind anybody's back */
    }
    CT_EQ(access(aside, F_OK), 0);
}

CT_CASE(faults, row34_file_moved_away_underneath, SQLITE) {
    replace(ct, 0);
}

CT_CASE(faults, row34_file_replaced_underneath, SQLITE) {
    replace(ct, 1);
}

static void take_as_another(ct_t *ct, void *status) {
    (void)ct_recv(ct, NULL);
    dl_client_t *c = ct_open(ct, NULL);
    CT_STATUS(dl_trylock(ct_lock(ct, c, "row 34"), CT_ERR), *(dl_status_t *)status);
}

/* The file stays, but not what is beside it. Another process makes that anew, and finds `seen`. */
static void remove_beside(ct_t *ct, const char *first, const char *second, dl_status_t seen) {
    char path[PATH_SIZE], beside[PATH_SIZE + 8];
    ct_process_t *another = ct_fork(ct, take_as_another, &seen);
    dl_client_t *a = ct_open(ct, NULL);
    dl_lock_t *held = ct_lock(ct, a, "row 34"), *more = ct_lock(ct, a, "row 34 more");
    path_of(ct, a, path);
    CT_OK(dl_lock(held, CT_ERR));
    snprintf(beside, sizeof beside, "%s%s", path, first);
    CT_EQ(unlink(beside), 0);
    snprintf(beside, sizeof beside, "%s%s", path, second);
    CT_CHECK(*second == '\0' || unlink(beside) == 0);
    ct_send(ct, another, 0);
    ct_process_wait(ct, another);
    CT_STATUS(dl_trylock(more, CT_ERR), DL_EIO);
    ct_expect_event(ct, a, DL_EVENT_LOST, "row 34", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
    ct_close(ct, a);
    CT_OK(dl_trylock(ct_lock(ct, ct_open(ct, NULL), "row 34 more"), CT_ERR));
}

CT_CASE(faults, row34_log_removed_underneath, SQLITE) {
    remove_beside(ct, "-wal", "-shm", DL_OK);
}

CT_CASE(faults, row34_index_removed_underneath, SQLITE) {
    remove_beside(ct, "-shm", "", DL_EBUSY); /* the log is read again */
}
