/* sqlite_faults_test.c - the SQLite driver on files that are busy, moved, foreign, full or damaged. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "sqlite_fixture.h"

#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/syscall.h>

#include "drivers/sqlite/store.h"

TestSuite(sqlite_faults, .init = set_up, .fini = tear_down, .timeout = 60);

static void copy_file(const char *from, const char *to) {
    char command[512];
    snprintf(command, sizeof command, "cp '%s' '%s'", from, to);
    cr_assert_eq(system(command), 0);
}

static void write_file(const char *name, const char *text) {
    FILE *file = fopen(name, "w");
    cr_assert_not_null(file);
    fputs(text, file);
    fclose(file);
}

static dl_status_t open_at(const char *file, char *message, size_t size) {
    client_t c;
    dl_status_t status = open_options(&c, UUID_A, file, 1);
    snprintf(message, size, "%s", c.err.message);
    must_close(&c);
    return status;
}

/* ---- transactions that do not end ---------------------------------------------------------------------- */

Test(sqlite_faults, a_transaction_that_could_not_be_ended_keeps_nobody_out) {
    client_t a, b;
    must_open(&a, UUID_A);
    must_open(&b, UUID_B);
    dli_store_t *store = a.state;
    /* Ending one takes no memory. */
    cr_assert_not_null(store->calls.statements[DLI_SQL_ROLLBACK]);
    cr_assert_not_null(store->renewals.statements[DLI_SQL_ROLLBACK]);
    cr_assert_eq(dli_connection_exec(&store->calls, "BEGIN IMMEDIATE"), SQLITE_OK);
    cr_assert_eq(take(&a, "orders", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(take(&b, "orders", B, 1, 30000, NULL), DL_EBUSY, "what a took was not committed: %s",
                 b.err.message);
    cr_assert_eq(dli_connection_exec(&store->renewals, "BEGIN IMMEDIATE"), SQLITE_OK);
    dl_renewal_t r = {
        .name = "orders", .name_len = 6, .owner = A, .hold_id = 1, .lease_ms = 60000, .status = DL_EPROTO};
    driver()->renew(a.state, &r, 1, a.env.now_ns() + SECOND);
    cr_assert_eq(r.status, DL_OK);
    cr_assert_eq(take(&b, "others", B, 1, 30000, NULL), DL_OK, "the file is still locked: %s", b.err.message);
    must_close(&a);
    must_close(&b);
}

/* ---- a file that is busy ---------------------------------------------------------------------------- */

static int write_and_stop(void *arg) {
    (void)arg;
    sqlite3 *db = NULL;
    if (sqlite3_open(path, &db) != SQLITE_OK ||
        sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK) {
        return 1;
    }
    raise(SIGSTOP);
    return 0;
}

typedef struct findings {
    char all[16384];
} findings_t;

static void note_finding(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    findings_t *f = arg;
    (void)level;
    size_t len = strlen(f->all);
    snprintf(f->all + len, sizeof f->all - len, "%s: %s\n", subject, text);
}

Test(sqlite_faults, a_process_stopped_in_a_write_delays_until_the_deadline_and_check_names_it) {
    client_t c;
    int status;
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "orders", A, 1, 3600000, NULL), DL_OK);
    pid_t child = spawn(write_and_stop, NULL);
    cr_assert_eq(waitpid(child, &status, WUNTRACED), child);
    cr_assert(WIFSTOPPED(status));
    dl_request_t r = request("invoices", A, 2);
    dl_grant_t grant;
    uint64_t before_ns = now_shifted();
    r.deadline_ns = in_ms(300);
    cr_assert_eq(take_full(&c, &r, &grant), DL_EIO);
    uint64_t took_ns = now_shifted() - before_ns;
    cr_assert_geq(took_ns, 290 * MS, "%llu", (unsigned long long)took_ns);
    cr_assert_lt(took_ns, 2000 * MS, "%llu", (unsigned long long)took_ns);
    cr_assert_has(c.err.message, "keeps the lock file busy");
    static findings_t findings;
    char expected[64];
    snprintf(expected, sizeof expected, "process %d (0: not known) is in the middle", (int)child);
    cr_assert_eq(driver()->check(c.state, note_finding, &findings, in_ms(2000), &c.err), DL_OK);
    cr_assert_has(findings.all, expected);
    dl_renewal_t renewal_ = renewal("orders", A, 1, 30000);
    driver()->renew(c.state, &renewal_, 1, in_ms(100));
    cr_assert_eq(renewal_.status, DL_EIO);
    /* A cancel ends it, and reading goes on. */
    r.deadline_ns = in_ms(20000);
    r.stop.fd[1] = eventfd(1, EFD_CLOEXEC);
    cr_assert_eq(take_full(&c, &r, &grant), DL_ECANCELED);
    close(r.stop.fd[1]);
    cr_assert(look(&c, "orders").held);
    kill(child, SIGKILL);
    cr_assert_eq(ended(child), 128 + SIGKILL);
    cr_assert_eq(take(&c, "invoices", A, 3, 30000, NULL), DL_OK);
    cr_assert_eq(renew(&c, "orders", A, 1, 30000), DL_OK);
    must_close(&c);
}

/* ---- a file that is not what it was ----------------------------------------------------------------- */

static void expect_moved(client_t *c) {
    cr_assert_eq(take(c, "invoices", A, 2, 30000, NULL), DL_EIO);
    cr_assert_has(c->err.message, "moved, replaced or deleted");
    cr_assert_eq(renew(c, "orders", A, 1, 30000), DL_ELOST);
}

/* A client that holds a lock, and a copy of its file that has it. */
static void hold_and_copy(client_t *c, const char *copy) {
    must_open(c, UUID_A);
    cr_assert_eq(take(c, "orders", A, 1, 30000, NULL), DL_OK);
    sql("PRAGMA wal_checkpoint(TRUNCATE)");
    copy_file(path, copy);
}

/* By another process. */
static int take_anew(void *unused) {
    client_t fresh;
    (void)unused;
    dl_status_t status = open_options(&fresh, UUID_B, path, 1);
    status = status == DL_OK ? take(&fresh, "orders", B, 1, 30000, NULL) : status;
    driver()->close(fresh.state, 0);
    return (int)status;
}

Test(sqlite_faults, a_file_moved_deleted_or_replaced_is_noticed) {
    client_t c;
    char away[256], copy[256];
    snprintf(away, sizeof away, "%s/away", folder);
    snprintf(copy, sizeof copy, "%s/copy", folder);
    hold_and_copy(&c, copy);
    cr_assert_eq(rename(path, away), 0);
    expect_moved(&c); /* nothing is there: nobody knows of this hold any more */
    cr_assert_eq(rename(copy, path), 0);
    expect_moved(&c); /* a copy has the hold, but not for longer */
    cr_assert_eq(unlink(path), 0);
    write_file(path, ""); /* nobody has filled it yet */
    expect_moved(&c);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(ended(spawn(take_anew, NULL)), 0);
    expect_moved(&c);
    must_close(&c);
    must_open(&c, UUID_A);
    cr_assert(look(&c, "orders").held, "by the one who came after the file was replaced");
    must_close(&c);
}

/* Nothing in the folder of the file has changed. */
Test(sqlite_faults, what_is_held_is_freed_where_a_folder_above_was_moved) {
    client_t c;
    char above[256], away[256], file[300];
    snprintf(above, sizeof above, "%s/above", folder);
    snprintf(away, sizeof away, "%s/away", folder);
    snprintf(file, sizeof file, "%s/below", above);
    cr_assert(mkdir(above, 0700) == 0 && mkdir(file, 0700) == 0);
    snprintf(file, sizeof file, "%s/below/lock.db", above);
    cr_assert_eq(open_options(&c, UUID_A, file, 1), DL_OK);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(take(&c, "other", A, 2, 30000, NULL), DL_OK);
    cr_assert_eq(rename(above, away), 0);
    cr_assert_eq(drop(&c, "orders", A, 1), DL_OK);
    cr_assert_eq(driver()->force_release(c.state, "other", 5, in_ms(2000), &c.err), DL_EIO);
    expect_moved(&c);
    cr_assert_eq(rename(away, above), 0);
    cr_assert(!look(&c, "orders").held);
    cr_assert(look(&c, "other").held);
    must_close(&c);
}

/* SQLite sees no locks of its own process: it takes the log's index of a client of ours for left over. */
Test(sqlite_faults, the_log_of_a_file_that_was_replaced_is_left_alone) {
    client_t c;
    char index[256], copy[256], message[256];
    struct stat before, after;
    snprintf(copy, sizeof copy, "%s/copy", folder);
    snprintf(index, sizeof index, "%s-shm", path);
    hold_and_copy(&c, copy);
    cr_assert_eq(rename(copy, path), 0);
    cr_assert_eq(stat(index, &before), 0);
    expect_moved(&c);
    cr_assert_eq(drop(&c, "orders", A, 1), DL_EIO);
    cr_assert_has(c.err.message, "moved, replaced or deleted");
    cr_assert_eq(open_at(path, message, sizeof message), DL_EIO);
    cr_assert_has(message, "replaced while this process has it open");
    cr_assert_eq(stat(index, &after), 0);
    cr_assert_eq(after.st_ino, before.st_ino);
    cr_assert_eq(after.st_mtim.tv_sec, before.st_mtim.tv_sec, "the index was written");
    cr_assert_eq(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec, "the index was written");
    must_close(&c);
    must_open(&c, UUID_B); /* nobody has the old one any more */
    cr_assert_eq(take(&c, "orders", B, 2, 30000, NULL), DL_EBUSY);
    must_close(&c);
}

/* However long the folder was quiet before; and the client that finds out is in the way of none that comes.
 */
Test(sqlite_faults, a_log_that_was_removed_is_noticed) {
    static const char *const endings[] = {"-wal", "-shm"};
    for (unsigned which = 1; which <= 3; which++) {
        client_t c;
        char message[256], beside[256];
        must_open(&c, UUID_A);
        for (uint64_t hold_id = 1; hold_id <= 300; hold_id++) { /* a log that closing would copy */
            cr_assert_eq(take(&c, "orders", A, hold_id, 30000, NULL), DL_OK);
            clock_ahead_ns += 20 * (int64_t)MS;
        }
        for (size_t i = 0; i < 2; i++) {
            snprintf(beside, sizeof beside, "%s%s", path, endings[i]);
            cr_assert((which >> i & 1) == 0 || unlink(beside) == 0);
        }
        cr_assert_eq(take(&c, "invoices", A, 2, 30000, NULL), DL_EIO);
        cr_assert_has(c.err.message, "moved, replaced or deleted");
        cr_assert_eq(renew(&c, "orders", A, 300, 30000), DL_ELOST);
        cr_assert_eq(take(&c, "invoices", A, 2, 30000, NULL), DL_EIO, "once more");
        if (which >= 2) { /* SQLite has one index for all of a process */
            cr_assert_eq(open_at(path, message, sizeof message), DL_EIO);
            cr_assert_has(message, "replaced while this process has it open");
        }
        if (which == 3) {
            cr_assert_eq(ended(spawn(take_anew, NULL)), 0, "the lock is not free to others");
        }
        must_close(&c);
        must_open(&c, UUID_A);
        cr_assert_eq(take(&c, "orders", A, 301, 30000, NULL), which == 3 ? DL_EBUSY : DL_OK, "%u", which);
        must_close(&c);
        delete_all();
    }
}

/* What happens while the client opens: in the midst of this call of SQLite's with this file, or after it. */
static int (*next_stat)(const char *, struct stat *);
static int (*next_open)(const char *, int, int);
static const char *ending_of_call;
static int calls_until_it;
static void (*it)(void);

static void perhaps_now(const char *name) {
    size_t len = strlen(path);
    if (strncmp(name, path, len) == 0 && strcmp(name + len, ending_of_call) == 0 && --calls_until_it == 0) {
        it();
    }
}

static int stat_and_then(const char *name, struct stat *file) {
    int rc = next_stat(name, file);
    perhaps_now(name);
    return rc;
}

static int open_and_then(const char *name, int flags, int mode) {
    int fd = next_open(name, flags, mode);
    perhaps_now(name);
    return fd;
}

static int taker, tell[2];
static bool taken; /* by another process, of what is at the path then */

/* And copies the log, so that the file alone has it. */
static int take_when_told(void *unused) {
    static char copy[] = "PRAGMA wal_checkpoint(TRUNCATE)";
    char byte;
    int status = read(tell[0], &byte, 1) == 1 ? take_anew(unused) : -1;
    return status == DL_OK ? sql_in_child(copy) : status;
}

static void let_them_take(void) {
    cr_assert_eq(write(tell[1], "x", 1), 1);
    taken = ended(taker) == DL_OK;
    taker = 0;
}

static void replace_file(void) {
    cr_assert_eq(unlink(path), 0);
    let_them_take();
}

static void remove_log(void) {
    static const char *const endings[] = {"-wal", "-shm"};
    for (int i = 0; i < 2; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s%s", path, endings[i]);
        (void)unlink(name);
    }
}

static void replace_log(void) {
    remove_log();
    let_them_take();
}

static void replace_all(void) {
    remove_log();
    replace_file();
}

/* No second holder, at whichever of these calls it happens. How often the other one had the lock. */
static int open_while(void (*what)(void), const char *ending) {
    int theirs = 0;
    ending_of_call = ending;
    it = what;
    for (int which = 1; taker == 0; which++) {
        client_t c;
        must_open(&c, UUID_A); /* and leaves a log */
        must_close(&c);
        taken = false;
        cr_assert_eq(pipe(tell), 0);
        taker = spawn(take_when_told, NULL);
        calls_until_it = which;
        dl_status_t status = open_options(&c, UUID_A, path, 1);
        status = status == DL_OK ? take(&c, "orders", A, 1, 30000, NULL) : status;
        cr_assert_neq((int)status, taken ? DL_OK : -1, "two holders: %s, call %d", ending, which);
        calls_until_it = 0;
        theirs += taken;
        must_close(&c);
        close(tell[0]);
        close(tell[1]);
        delete_all();
    }
    kill(taker, SIGKILL); /* so many calls there are not */
    cr_assert_eq(ended(taker), 128 + SIGKILL);
    taker = 0;
    return theirs;
}

Test(sqlite_faults, what_is_replaced_while_a_client_opens_it_is_noticed) {
    char message[256];
    cr_assert_eq(open_at(path, message, sizeof message), DL_OK);
    sqlite3_vfs *vfs = sqlite3_vfs_find("unix");
    next_stat = (int (*)(const char *, struct stat *))vfs->xGetSystemCall(vfs, "stat");
    next_open = (int (*)(const char *, int, int))vfs->xGetSystemCall(vfs, "open");
    cr_assert_eq(vfs->xSetSystemCall(vfs, "stat", (sqlite3_syscall_ptr)stat_and_then), SQLITE_OK);
    cr_assert_gt(open_while(replace_file, ""), 0);
    cr_assert_gt(open_while(replace_all, ""), 0);
    cr_assert_eq(vfs->xSetSystemCall(vfs, "stat", (sqlite3_syscall_ptr)next_stat), SQLITE_OK);
    cr_assert_eq(vfs->xSetSystemCall(vfs, "open", (sqlite3_syscall_ptr)open_and_then), SQLITE_OK);
    cr_assert_gt(open_while(replace_all, ""), 0);
    cr_assert_gt(open_while(replace_log, "-wal"), 0);
    cr_assert_gt(open_while(replace_log, "-shm"), 0);
}

static int told[2];

/* And stays, with a log and an index of its own. */
static int take_and_stay(void *unused) {
    client_t fresh;
    char byte;
    (void)unused;
    dl_status_t status = read(tell[0], &byte, 1) == 1 ? open_options(&fresh, UUID_B, path, 1) : DL_EIO;
    status = status == DL_OK ? take(&fresh, "orders", B, 1, 30000, NULL) : status;
    byte = (char)status;
    return write(told[1], &byte, 1) == 1 ? pause() : 1;
}

static void let_them_stay(void) {
    char byte = -1;
    remove_log();
    cr_assert_eq(write(tell[1], "x", 1), 1);
    cr_assert_eq(read(told[0], &byte, 1), 1);
    taken = byte == DL_OK;
}

static client_t other;
static bool closes_other;

static void *close_the_other(void *unused) {
    (void)unused;
    must_close(&other);
    return NULL;
}

/* The file comes once more, for the second connection, when the first has the index. */
static int open_behind(const char *name, int flags, int mode) {
    perhaps_now(name);
    if (taken && closes_other && strcmp(name, path) == 0) {
        pthread_t thread;
        closes_other = false;
        cr_assert_eq(pthread_create(&thread, NULL, close_the_other, NULL), 0);
        cr_assert_eq(pthread_join(thread, NULL), 0);
    }
    return next_open(name, flags, mode);
}

/* SQLite has one index for all of a process: the newcomer would use the log that is there now by the index of
 * the one that was, also if the client that has opened that is closed meanwhile. */
Test(sqlite_faults, beside_a_client_of_the_process_another_log_is_not_opened) {
    sqlite3_vfs *vfs = sqlite3_vfs_find("unix");
    client_t c;
    for (int closes = 0; closes < 2; closes++) {
        cr_assert_eq(pipe(tell), 0);
        cr_assert_eq(pipe(told), 0);
        taker = spawn(take_and_stay, NULL);
        taken = false;
        must_open(&other, UUID_A);
        next_open =
            closes == 0 ? (int (*)(const char *, int, int))vfs->xGetSystemCall(vfs, "open") : next_open;
        cr_assert_eq(vfs->xSetSystemCall(vfs, "open", (sqlite3_syscall_ptr)open_behind), SQLITE_OK);
        ending_of_call = "-wal";
        it = let_them_stay;
        calls_until_it = 1;
        closes_other = closes;
        dl_status_t status = open_options(&c, UUID_A, path, 1);
        status = status == DL_OK ? take(&c, "orders", A, 1, 30000, NULL) : status;
        cr_assert(taken);
        cr_assert_not(closes_other);
        cr_assert_eq(status, DL_EIO, "%s", c.err.message);
        cr_assert_has(c.err.message, "was moved, replaced or deleted while in use");
        must_close(&c);
        if (closes == 0) {
            must_close(&other);
        }
        kill(taker, SIGKILL);
        cr_assert_eq(ended(taker), 128 + SIGKILL);
        delete_all();
    }
}

static void put_the_copy_there(void) {
    char copy[256];
    snprintf(copy, sizeof copy, "%s/copy", folder);
    cr_assert_eq(rename(copy, path), 0);
}

/* As another process sees it, which would begin the index anew. */
static int index_is_unlocked(void *unused) {
    (void)unused;
    char index[256];
    snprintf(index, sizeof index, "%s-shm", path);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open(index, O_RDWR | O_CLOEXEC);
    return fd < 0 || fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK;
}

/* Another file by now, beside the log and the index that the first client has open. To open that index once
 * more, and close it, would drop this process's locks on it. */
Test(sqlite_faults, beside_a_client_of_the_process_another_file_is_not_opened) {
    sqlite3_vfs *vfs = sqlite3_vfs_find("unix");
    client_t c;
    char command[512];
    for (int connection = 1; connection <= 2; connection++) {
        must_open(&other, UUID_A);
        next_open =
            connection == 1 ? (int (*)(const char *, int, int))vfs->xGetSystemCall(vfs, "open") : next_open;
        snprintf(command, sizeof command, "cat '%s' >'%s/copy'", path, folder);
        cr_assert_eq(system(command), 0);
        cr_assert_eq(vfs->xSetSystemCall(vfs, "open", (sqlite3_syscall_ptr)open_behind), SQLITE_OK);
        ending_of_call = "";
        it = put_the_copy_there;
        calls_until_it = connection;
        cr_assert_eq(open_options(&c, UUID_B, path, 1), DL_EIO, "%s", c.err.message);
        cr_assert_has(c.err.message, "was moved, replaced or deleted while in use");
        must_close(&c);
        cr_assert_eq(ended(spawn(index_is_unlocked, NULL)), 0);
        must_close(&other);
        delete_all();
    }
}

/* It has opened the index for all of the process. */
Test(sqlite_faults, a_program_may_have_the_lock_file_open_by_the_same_sqlite) {
    client_t c;
    sqlite3 *db;
    must_open(&c, UUID_A);
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    cr_assert_eq(sqlite3_exec(db, "SELECT * FROM dlock_locks", NULL, NULL, NULL), SQLITE_OK);
    must_close(&c);
    must_open(&c, UUID_B);
    cr_assert_eq(take(&c, "orders", B, 1, 30000, NULL), DL_OK, "%s", c.err.message);
    cr_assert_eq(sqlite3_close(db), SQLITE_OK);
    cr_assert_eq(drop(&c, "orders", B, 1), DL_OK, "%s", c.err.message);
    must_close(&c);
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    cr_assert_eq(sqlite3_exec(db, "SELECT * FROM dlock_locks", NULL, NULL, NULL), SQLITE_OK);
    must_open(&c, UUID_B);
    must_close(&c);
    cr_assert_eq(sqlite3_close(db), SQLITE_OK);
}

static dli_file_id_t id_of(const char *ending) {
    char name[256];
    struct stat file;
    snprintf(name, sizeof name, "%s%s", path, ending);
    cr_assert_eq(stat(name, &file), 0);
    return dli_file_id(&file);
}

static int index_is_known(void *unused) {
    (void)unused;
    return dli_files_index(id_of("")).ino != 0;
}

Test(sqlite_faults, an_index_is_known_for_as_long_as_the_process_has_it_open) {
    client_t one;
    must_open(&one, UUID_A);
    must_open(&other, UUID_B);
    cr_assert(dli_file_id_is(dli_files_index(id_of("")), id_of("-shm")));
    cr_assert_eq(ended(spawn(index_is_known, NULL)), 0);
    must_close(&one);
    cr_assert(index_is_known(NULL));
    must_close(&other);
    cr_assert_not(index_is_known(NULL));
}

static int (*next_unlink)(const char *);
static atomic_bool opens, opened;
static pthread_t opener;
static client_t newcomer;

static void *open_meanwhile(void *unused) {
    (void)open_options(&newcomer, UUID_B, path, 1);
    atomic_store(&opened, true);
    return unused;
}

/* The log is about to go; it is opened now, or once that is over. */
static int unlink_slowly(const char *name) {
    if (strstr(name, "-wal") != NULL && !atomic_exchange(&opens, true)) {
        cr_assert_eq(pthread_create(&opener, NULL, open_meanwhile, NULL), 0);
        for (uint64_t end_ns = in_ms(100); !atomic_load(&opened) && ran_ns() < end_ns;) {
            (void)sched_yield();
        }
    }
    return next_unlink(name);
}

Test(sqlite_faults, a_client_opens_while_the_last_one_of_its_process_takes_the_log_away) {
    client_t c;
    must_open(&c, UUID_A);
    sqlite3_vfs *vfs = sqlite3_vfs_find("unix");
    next_unlink = (int (*)(const char *))vfs->xGetSystemCall(vfs, "unlink");
    cr_assert_eq(vfs->xSetSystemCall(vfs, "unlink", (sqlite3_syscall_ptr)unlink_slowly), SQLITE_OK);
    for (uint64_t i = 1; i <= 200; i++) { /* so many that it is taken away */
        cr_assert_eq(take(&c, "orders", A, i, 30000, NULL), DL_OK, "%s", c.err.message);
        cr_assert_eq(drop(&c, "orders", A, i), DL_OK, "%s", c.err.message);
    }
    must_close(&c);
    cr_assert(atomic_load(&opens));
    pthread_join(opener, NULL);
    cr_assert_eq(take(&newcomer, "orders", B, 1, 30000, NULL), DL_OK, "%s", newcomer.err.message);
    must_close(&newcomer);
}

static int (*next_fcntl)(int, int, ...);

/* SQLite's first lock of the file. */
static int take_before_fcntl(int fd, int op, void *arg) {
    if (--calls_until_it == 0) {
        let_them_take();
    }
    return next_fcntl(fd, op, arg);
}

Test(sqlite_faults, a_file_that_another_process_fills_meanwhile_is_used) {
    client_t c;
    must_open(&c, UUID_A); /* all that is done once */
    must_close(&c);
    delete_all();
    sqlite3_vfs *vfs = sqlite3_vfs_find("unix");
    next_fcntl = (int (*)(int, int, ...))vfs->xGetSystemCall(vfs, "fcntl");
    cr_assert_eq(vfs->xSetSystemCall(vfs, "fcntl", (sqlite3_syscall_ptr)take_before_fcntl), SQLITE_OK);
    cr_assert_eq(pipe(tell), 0);
    taker = spawn(take_when_told, NULL);
    calls_until_it = 1;
    must_open(&c, UUID_A);
    cr_assert(taken);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_EBUSY, "%s", c.err.message);
    must_close(&c);
}

static ssize_t (*next_pread)(int, void *, size_t, off_t);
static ssize_t (*next_read)(int, void *, size_t);
static int looks_before_it;
static bool is_filled_again;

/* SQLite has looked at the header as it opened the file; now the driver does. */
static bool roll_back(size_t size) {
    bool is_it = size == 100 && looks_before_it-- == 0;
    cr_assert_eq(is_it ? truncate(path, 0) : 0, 0);
    return is_it && is_filled_again;
}

static void fill_again(void) {
    char command[512];
    snprintf(command, sizeof command, "cat '%s/full' >'%s'", folder, path);
    cr_assert_eq(system(command), 0);
}

static ssize_t roll_back_then_pread(int fd, void *buffer, size_t size, off_t at) {
    bool fills = roll_back(size);
    ssize_t n = next_pread(fd, buffer, size, at);
    if (fills) {
        fill_again();
    }
    return n;
}

static ssize_t roll_back_then_read(int fd, void *buffer, size_t size) {
    bool fills = roll_back(size);
    ssize_t n = next_read(fd, buffer, size);
    if (fills) {
        fill_again();
    }
    return n;
}

/* Somebody has begun to fill it, and others take that back, between the look at its size and that at it. */
Test(sqlite_faults, a_file_that_is_empty_again_is_filled) {
    client_t c;
    static const char *const names[] = {"pread", "pread64"};
    sqlite3_vfs *vfs = sqlite3_vfs_find("unix");
    char command[512];
    must_open(&c, UUID_A); /* all that is done once */
    must_close(&c);
    sql("PRAGMA wal_checkpoint(TRUNCATE)");
    snprintf(command, sizeof command, "cat '%s' >'%s/full'", path, folder);
    cr_assert_eq(system(command), 0);
    next_read = (ssize_t(*)(int, void *, size_t))vfs->xGetSystemCall(vfs, "read");
    cr_assert_eq(vfs->xSetSystemCall(vfs, "read", (sqlite3_syscall_ptr)roll_back_then_read), SQLITE_OK);
    for (int i = 0; i < 2; i++) { /* it uses one of them, or none */
        sqlite3_syscall_ptr next = vfs->xGetSystemCall(vfs, names[i]);
        if (next != NULL) {
            next_pread = (ssize_t(*)(int, void *, size_t, off_t))next;
            cr_assert_eq(vfs->xSetSystemCall(vfs, names[i], (sqlite3_syscall_ptr)roll_back_then_pread),
                         SQLITE_OK);
        }
    }
    for (int fills = 0; fills < 2; fills++) { /* by us, or by others at once */
        delete_all();
        write_file(path, "SQLite format 3");
        is_filled_again = fills;
        looks_before_it = 1;
        must_open(&c, UUID_A);
        cr_assert_lt(looks_before_it, 0);
        must_close(&c);
    }
}

Test(sqlite_faults, what_is_not_a_lock_file_is_refused_and_left_alone) {
    char message[256], command[512];
    write_file(path,
               "this is somebody's letter, and it is longer than the header of an SQLite file would be; "
               "it goes on for a while and then it ends.");
    cr_assert_eq(open_at(path, message, sizeof message), DL_ECONFIG, "%s", message);
    cr_assert_has(message, "not an SQLite database");
    write_file(path, "x");
    cr_assert_eq(open_at(path, message, sizeof message), DL_ECONFIG, "%s", message);
    unlink(path);

    sql("PRAGMA journal_mode = WAL; CREATE TABLE t(a); INSERT INTO t VALUES (1)");
    snprintf(command, sizeof command, "cat '%s'* | md5sum > '%s/before'", path, folder);
    cr_assert_eq(system(command), 0);
    cr_assert_eq(open_at(path, message, sizeof message), DL_ECONFIG);
    cr_assert_has(message, "another program's database");
    snprintf(command, sizeof command, "cat '%s'* | md5sum | cmp - '%s/before'", path, folder);
    cr_assert_eq(system(command), 0, "the file was changed");
}

Test(sqlite_faults, another_programs_log_is_not_copied) {
    char message[256];
    char log[256];
    struct stat before, after;
    snprintf(log, sizeof log, "%s-wal", path);
    sqlite3 *db = NULL; /* stays open: its log is in use */
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    cr_assert_eq(sqlite3_exec(db, "PRAGMA journal_mode = WAL; CREATE TABLE t(a)", NULL, NULL, NULL),
                 SQLITE_OK);
    cr_assert_eq(stat(log, &before), 0);
    cr_assert_eq(open_at(path, message, sizeof message), DL_ECONFIG);
    cr_assert_eq(stat(log, &after), 0);
    cr_assert_eq(before.st_size, after.st_size);
    cr_assert_eq(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    sqlite3_close(db);
}

Test(sqlite_faults, a_newer_format_and_a_file_without_tables_are_refused) {
    client_t c;
    char message[256];
    must_open(&c, UUID_A);
    must_close(&c);
    sql("PRAGMA user_version = 2");
    sql("PRAGMA wal_checkpoint(TRUNCATE)");
    cr_assert_eq(open_at(path, message, sizeof message), DL_ECONFIG);
    cr_assert_has(message, "format 2");
    sql("PRAGMA user_version = 1; DROP TABLE dlock_locks; PRAGMA wal_checkpoint(TRUNCATE)");
    cr_assert_eq(open_at(path, message, sizeof message), DL_EPROTO, "%s", message);
}

Test(sqlite_faults, paths_that_lead_nowhere_are_refused_in_one_line) {
    char message[256], name[600];
    snprintf(name, sizeof name, "%s/missing/locks.db", folder);
    cr_assert_eq(open_at(name, message, sizeof message), DL_ECONFIG);
    cr_assert_has(message, "No such file");
    /* A path that fills the message leaves room for the reason. */
    snprintf(name, sizeof name, "%s/%0250d/locks.db", folder, 0);
    cr_assert_eq(open_at(name, message, sizeof message), DL_ECONFIG);
    cr_assert_has(message, "No such file");
    snprintf(name, sizeof name, "/proc/%0240d", 0);
    cr_assert_neq(open_at(name, message, sizeof message), DL_OK);
    cr_assert_has(message, "No such file");
    /* There is a name for it, and none for its log. */
    snprintf(name, sizeof name, "%s/%0252d", folder, 0);
    cr_assert_eq(open_at(name, message, sizeof message), DL_ECONFIG, "%s", message);
    cr_assert_has(message, "name too long");
    cr_assert_neq(access(name, F_OK), 0, "it was made");
    cr_assert_eq(open_at("", message, sizeof message), DL_ECONFIG, "%s", message);
    cr_assert_has(message, "must begin with '/', and is ''");
    cr_assert_eq(open_at(folder, message, sizeof message), DL_ECONFIG, "%s", message);
    snprintf(name, sizeof name, "%s/", folder);
    cr_assert_eq(open_at(name, message, sizeof message), DL_ECONFIG, "%s", message);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(open_at(path, message, sizeof message), DL_ECONFIG, "%s", message);
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    cr_assert_eq(open_at(name, message, sizeof message), DL_ECONFIG, "%s", message);
    snprintf(name, sizeof name, "%s/link", folder);
    cr_assert_eq(symlink("/nonexistent/locks.db", name), 0);
    cr_assert_neq(open_at(name, message, sizeof message), DL_OK);
}

Test(sqlite_faults, an_empty_file_is_filled_and_keeps_its_mode) {
    client_t c;
    struct stat file;
    write_file(path, "");
    cr_assert_eq(chmod(path, 0660), 0);
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(stat(path, &file), 0);
    cr_assert_eq(file.st_mode & 0777, 0660);
    must_close(&c);
}

/* ---- who may see it --------------------------------------------------------------------------------- */

Test(sqlite_faults, files_are_the_owners_and_descriptors_end_at_exec) {
    client_t c;
    dl_watch_t *w;
    umask(0);
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(renew(&c, "orders", A, 1, 30000), DL_OK);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK);
    const char *endings[] = {"", "-wal", "-shm"};
    for (int i = 0; i < 3; i++) {
        char name[256];
        struct stat file;
        snprintf(name, sizeof name, "%s%s", path, endings[i]);
        cr_assert_eq(stat(name, &file), 0);
        cr_assert_eq(file.st_mode & 0777, 0600, "%s", name);
    }
    int ours = 0;
    for (int fd = 3; fd < 256; fd++) {
        char link[64], target[256] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (readlink(link, target, sizeof target - 1) > 0 &&
            (strncmp(target, path, strlen(path)) == 0 || strstr(target, "inotify") != NULL)) {
            ours++;
            cr_assert_neq(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0, "%s", target);
        }
    }
    cr_assert_geq(ours, 4);
    driver()->unwatch(c.state, w);
    must_close(&c);
}

static int open_as_nobody(void *arg) {
    client_t c;
    if (setgid(65534) != 0 || setuid(65534) != 0) {
        return 1;
    }
    dl_status_t status = open_options(&c, UUID_B, path, 1);
    driver()->close(c.state, 0);
    return status == *(dl_status_t *)arg ? 0 : 2;
}

Test(sqlite_faults, a_file_that_may_not_be_written_is_a_matter_of_permission) {
    client_t c;
    dl_status_t expected = DL_EAUTH;
    struct stat top;
    if (geteuid() != 0) {
        cr_skip("needs root to become somebody else");
    }
    if (stat("/", &top) != 0 || (top.st_mode & S_IXOTH) == 0) {
        cr_skip("only root may enter this root folder");
    }
    must_open(&c, UUID_A);
    cr_assert_eq(chmod(folder, 0755), 0);
    cr_assert_eq(ended(spawn(open_as_nobody, &expected)), 0); /* no reading either */
    cr_assert_eq(chmod(path, 0644), 0);
    cr_assert_eq(ended(spawn(open_as_nobody, &expected)), 0);
    must_close(&c);
    cr_assert_eq(chmod(folder, 0700), 0);
    cr_assert_eq(ended(spawn(open_as_nobody, &expected)), 0);
}

/* What a daemon does after it has opened its files. 0, or where it went wrong. */
static int see_less_after(int (*change)(void)) {
    client_t c;
    if (open_options(&c, UUID_A, path, 1) != DL_OK || take(&c, "orders", A, 1, 30000, NULL) != DL_OK) {
        return 1;
    }
    if (change() != 0) {
        return 2;
    }
    if (take(&c, "invoices", A, 2, 30000, NULL) != DL_EAUTH ||
        strstr(c.err.message, "another user, or another root") == NULL) {
        fprintf(stderr, "%s\n", c.err.message);
        return 3;
    }
    return renew(&c, "orders", A, 1, 30000) == DL_EAUTH ? 0 : 4;
}

static int become_nobody(void) {
    return setuid(65534);
}

static int change_root(void) {
    char root[128];
    snprintf(root, sizeof root, "%s/root", folder);
    return mkdir(root, 0755) != 0 ? -1 : chroot(root);
}

static int drop_user(void *unused) {
    (void)unused;
    return see_less_after(become_nobody);
}

static int drop_root(void *unused) {
    (void)unused;
    return see_less_after(change_root);
}

Test(sqlite_faults, a_folder_that_cannot_be_looked_at_any_more_is_not_taken_for_moved) {
    if (geteuid() != 0) {
        cr_skip("needs root to become somebody else");
    }
    cr_assert_eq(ended(spawn(drop_user, NULL)), 0);
    cr_assert_eq(ended(spawn(drop_root, NULL)), 0);
}

Test(sqlite_faults, two_clients_of_a_process_do_not_drop_each_others_locks) {
    client_t a, b;
    must_open(&a, UUID_A);
    cr_assert_eq(take(&a, "orders", A, 1, 30000, NULL), DL_OK);
    for (int i = 0; i < 3; i++) {
        must_open(&b, UUID_B);
        cr_assert_eq(take(&b, "orders", B, 1, 30000, NULL), DL_EBUSY);
        must_close(&b);
    }
    /* The kernel still knows of our lock on the file: nobody can be the last one. */
    char line[256], expected[64];
    struct stat file;
    cr_assert_eq(stat(path, &file), 0);
    snprintf(expected, sizeof expected, ":%lu ", (unsigned long)file.st_ino);
    FILE *locks = fopen("/proc/locks", "re");
    int found = 0;
    while (fgets(line, sizeof line, locks) != NULL) {
        long pid = 0;
        found += sscanf(line, "%*s %*s %*s %*s %ld", &pid) == 1 && pid == getpid() &&
                 strstr(line, expected) != NULL;
    }
    fclose(locks);
    cr_assert_geq(found, 1);
    must_close(&a);
}

Test(sqlite_faults, filesystems_of_other_hosts_are_refused) {
    cr_assert_str_eq(dli_place_refused(0x6969, "nfs4"), "NFS");
    cr_assert_str_eq(dli_place_refused(0xFF534D42, "cifs"), "CIFS");
    cr_assert_str_eq(dli_place_refused(0x01021997, "9p"), "9p");
    cr_assert_str_eq(dli_place_refused(0x00C36400, "ceph"), "Ceph");
    cr_assert_str_eq(dli_place_refused(0x65735546, "fuse.sshfs"), "fuse.sshfs");
    cr_assert_str_eq(dli_place_refused(0x65735546, "virtiofs"), "virtiofs");
    cr_assert_str_eq(dli_place_refused(0x65735546, ""), "FUSE");
    cr_assert_null(dli_place_refused(0x65735546, "fuseblk"));
    cr_assert_null(dli_place_refused(0xEF53, "ext4"));
    cr_assert_null(dli_place_refused(0x01021994, "tmpfs"));
}

/* ---- a disk that fails ------------------------------------------------------------------------------ */

/* A small filesystem in a mount namespace of this test's process, gone with it. */
static void small_disk(const char *options) {
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder, "tmpfs", 0, options) != 0) {
        cr_skip("needs the right to mount");
    }
}

static void fill(const char *name) {
    char block[4096] = "";
    int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    while (write(fd, block, sizeof block) > 0) {}
    close(fd);
}

Test(sqlite_faults, a_full_disk_is_said_in_time_and_gets_well) {
    client_t c;
    char filler[256];
    small_disk("size=1m");
    snprintf(filler, sizeof filler, "%s/filler", folder);
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_OK);
    fill(filler);
    dl_status_t status = DL_OK;
    uint64_t i;
    for (i = 0; i < 2000 && status == DL_OK; i++) {
        char name[32];
        snprintf(name, sizeof name, "lock %llu", (unsigned long long)i);
        status = take(&c, name, A, i + 2, 30000, NULL);
    }
    cr_assert_eq(status, DL_EIO, "%d", status);
    cr_assert_has(c.err.message, "no space left");
    cr_assert_eq(drop(&c, "orders", A, 1), DL_EIO, "%s", c.err.message);
    cr_assert(look(&c, "orders").held);
    cr_assert_eq(unlink(filler), 0);
    cr_assert_eq(drop(&c, "orders", A, 1), DL_OK, "%s", c.err.message);
    cr_assert_eq(take(&c, "orders", A, 5000, 30000, NULL), DL_OK, "%s", c.err.message);
    must_close(&c);
    umount(folder);
}

Test(sqlite_faults, a_full_disk_at_open_is_said) {
    char message[256], filler[256];
    small_disk("size=64k");
    snprintf(filler, sizeof filler, "%s/filler", folder);
    fill(filler);
    dl_status_t status = open_at(path, message, sizeof message);
    cr_assert_eq(status, DL_EIO, "%s", message);
    umount(folder);
}

Test(sqlite_faults, a_read_only_disk_is_said) {
    client_t c;
    char message[256];
    small_disk("size=1m");
    must_open(&c, UUID_A);
    must_close(&c);
    cr_assert_eq(mount(NULL, folder, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    cr_assert_eq(open_at(path, message, sizeof message), DL_EAUTH, "%s", message);
    snprintf(path, sizeof path, "%s/other.db", folder);
    cr_assert_eq(open_at(path, message, sizeof message), DL_EIO, "%s", message);
    cr_assert_has(message, "Read-only");
    umount(folder);
}

Test(sqlite_faults, a_damaged_file_is_said_and_never_deleted) {
    client_t c;
    char message[256], noise[1024];
    must_open(&c, UUID_A);
    for (int i = 0; i < 200; i++) {
        char name[32];
        snprintf(name, sizeof name, "lock %d", i);
        cr_assert_eq(take(&c, name, A, 1, 30000, NULL), DL_OK);
    }
    must_close(&c);
    sql("PRAGMA wal_checkpoint(TRUNCATE)");
    memset(noise, 0xa5, sizeof noise);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    for (off_t at = 1024; at < 20 * 1024; at += 1024) {
        cr_assert_eq(pwrite(fd, noise, sizeof noise, at), (ssize_t)sizeof noise);
    }
    close(fd);
    dl_status_t status = open_options(&c, UUID_A, path, 1);
    if (status == DL_OK) {
        status = take(&c, "lock 50", B, 1, 30000, NULL);
    }
    cr_assert_eq(status, DL_EPROTO, "%d", status);
    cr_assert_has(c.err.message, "damaged");
    must_close(&c);
    cr_assert_eq(truncate(path, 700), 0);
    cr_assert_eq(open_at(path, message, sizeof message), DL_EPROTO, "%s", message);
    cr_assert_eq(access(path, F_OK), 0);
}

/* ---- clocks ----------------------------------------------------------------------------------------- */

#define HOUR_MS 3600000

typedef struct clocks {
    int to_outside[2], to_test[2];
} clocks_t;

/* In the host's own time: holds a lock, then finds the one that was taken in the other. */
static int outside(void *arg) {
    const clocks_t *clocks = arg;
    client_t c;
    char byte;
    if (open_options(&c, UUID_A, path, 1) != DL_OK || take(&c, "orders", A, 1, HOUR_MS, NULL) != DL_OK ||
        write(clocks->to_test[1], "x", 1) != 1 || read(clocks->to_outside[0], &byte, 1) != 1) {
        return 1;
    }
    dl_request_t r = request("theirs", A, 2);
    dl_grant_t grant;
    return take_full(&c, &r, &grant) == DL_EBUSY && grant.busy_ms > HOUR_MS / 2 && grant.busy_ms <= HOUR_MS
               ? 0
               : 2;
}

static int inside(void *arg) {
    (void)arg;
    client_t c;
    dl_grant_t grant;
    if (open_options(&c, UUID_B, path, 1) != DL_OK) {
        return 1;
    }
    dl_request_t r = request("orders", B, 1);
    if (take_full(&c, &r, &grant) != DL_EBUSY || grant.busy_ms <= HOUR_MS / 2 || grant.busy_ms > HOUR_MS) {
        return 2;
    }
    uint64_t before_ns = now_shifted();
    r = request("theirs", B, 1);
    r.lease_ms = HOUR_MS;
    bool ok =
        take_full(&c, &r, &grant) == DL_OK && grant.sent_ns >= before_ns && grant.sent_ns <= now_shifted();
    return ok ? 0 : 3;
}

Test(sqlite_faults, a_time_namespace_does_not_make_a_hold_look_expired) {
    client_t c;
    clocks_t clocks;
    char byte;
    cr_assert_eq(pipe(clocks.to_outside), 0);
    cr_assert_eq(pipe(clocks.to_test), 0);
    pid_t out = spawn(outside, &clocks);
    cr_assert_eq(read(clocks.to_test[0], &byte, 1), 1);
    beat_begin(); /* outside: the clock of a namespace can be set as long as nobody was started in it */
    if (unshare(CLONE_NEWTIME) != 0) {
        kill(out, SIGKILL);
        ended(out);
        cr_skip("needs the right to make a time namespace");
    }
    cr_assert_eq(open_options(&c, UUID_A, path, 1), DL_ENOTSUP); /* neither in nor out */
    must_close(&c);
    FILE *offsets = fopen("/proc/self/timens_offsets", "w");
    cr_assert_not_null(offsets);
    fputs("boottime 1000000 0\n", offsets); /* 11 days ahead */
    cr_assert_eq(fclose(offsets), 0);
    cr_assert_eq(ended(spawn(inside, NULL)), 0);
    cr_assert_eq(write(clocks.to_outside[1], "x", 1), 1);
    cr_assert_eq(ended(out), 0);
}
