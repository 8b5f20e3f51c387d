/* check.c - says which guarantee this lock file gives, and what weakens it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The log may grow to 16 MiB before it is copied, and the file as much. */
#define SPACE_WANTED ((uint64_t)64 << 20)

typedef struct report {
    dl_finding_fn fn;
    void *arg;
} report_t;

static void say(const report_t *report, dl_finding_level_t level, const char *subject, const char *format,
                ...) __attribute__((format(printf, 4, 5)));

static void say(const report_t *report, dl_finding_level_t level, const char *subject, const char *format,
                ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    report->fn(report->arg, level, subject, text);
}

/* ---- asking the file -------------------------------------------------------------------------------- */

typedef struct answers {
    const dl_driver_env_t *env;
    uint64_t deadline_ns;
    char journal[32], damage[256];
    int synchronous;
    int64_t locks, pages, page_size;
} answers_t;

static int past_deadline(void *arg) {
    const answers_t *a = arg;
    return a->env->now_ns() >= a->deadline_ns;
}

static int ask(dli_connection_t *c, const char *sql, int64_t *value, char *text, size_t size) {
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(c->db, sql, -1, &s, NULL);
    c->now_ns = 0;
    if (rc == SQLITE_OK) {
        rc = sqlite3_step(s);
        if (rc == SQLITE_ROW && value != NULL) {
            *value = sqlite3_column_int64(s, 0);
        }
        if (rc == SQLITE_ROW && text != NULL) {
            snprintf(text, size, "%s", (const char *)sqlite3_column_text(s, 0));
        }
    }
    int end = sqlite3_finalize(s);
    return rc == SQLITE_ROW ? SQLITE_OK : end;
}

static int ask_once(dli_connection_t *c, void *arg) {
    answers_t *a = arg;
    int64_t synchronous = 0;
    if (dli_store_moved(c->store)) {
        return DLI_RC_MOVED;
    }
    int rc = ask(c, "PRAGMA journal_mode", NULL, a->journal, sizeof a->journal);
    if (rc == SQLITE_OK) {
        rc = ask(c, "PRAGMA synchronous", &synchronous, NULL, 0);
        a->synchronous = (int)synchronous;
    }
    if (rc == SQLITE_OK) {
        rc = ask(c, "SELECT count(*) FROM dlock_locks WHERE expires_ns > dl_now()", &a->locks, NULL, 0);
    }
    if (rc == SQLITE_OK) {
        rc = ask(c, "PRAGMA page_count", &a->pages, NULL, 0);
    }
    if (rc == SQLITE_OK) {
        rc = ask(c, "PRAGMA page_size", &a->page_size, NULL, 0);
    }
    if (rc == SQLITE_OK) {
        /* Reads the whole file; others go on meanwhile, and the deadline ends it. */
        sqlite3_progress_handler(c->db, 1000, past_deadline, a);
        rc = ask(c, "PRAGMA quick_check(1)", NULL, a->damage, sizeof a->damage);
        sqlite3_progress_handler(c->db, 0, NULL, NULL);
        if ((rc & 0xff) == SQLITE_INTERRUPT) {
            snprintf(a->damage, sizeof a->damage, "not checked to the end in the time allowed");
            rc = SQLITE_OK;
        }
    }
    return rc;
}

/* How long the right to write may be waited for before somebody is said to keep it. */
#define WRITE_PATIENCE_NS (300 * (uint64_t)NS_PER_MS)

static int write_once(dli_connection_t *c, void *arg) {
    (void)arg;
    int rc = dli_connection_do(c, DLI_SQL_BEGIN);
    return rc == SQLITE_OK ? dli_connection_do(c, DLI_SQL_ROLLBACK) : rc;
}

/* ---- the findings ----------------------------------------------------------------------------------- */

static void report_file(const report_t *report, const dli_store_t *store) {
    struct stat file;
    if (stat(store->path, &file) != 0) {
        say(report, DL_FINDING_ERROR, "file", "%s: %s", store->path, strerror(errno));
        return;
    }
    struct passwd entry, *user = NULL;
    char room[4096];
    (void)getpwuid_r(file.st_uid, &entry, room, sizeof room, &user);
    unsigned mode = file.st_mode & 07777;
    const char *reach = (mode & 07) != 0    ? "every user of this host can read it or stop the locks in it"
                        : (mode & 070) != 0 ? "its group can use it"
                                            : "only its owner can use it";
    say(report,
        (mode & 02) != 0   ? DL_FINDING_WARNING
        : (mode & 07) != 0 ? DL_FINDING_NOTE
                           : DL_FINDING_OK,
        "file", "%s, mode %04o, owner %s (%lu): %s", store->path, mode, user != NULL ? user->pw_name : "?",
        (unsigned long)file.st_uid, reach);
}

static void report_place(const report_t *report, const dli_store_t *store) {
    char type[64];
    dl_error_t err = {.status = DL_OK};
    struct statvfs fs;
    if (dli_place_local(store->path, type, sizeof type, &err) != DL_OK) {
        say(report, DL_FINDING_ERROR, "filesystem", "%s", err.message);
    } else {
        say(report, DL_FINDING_OK, "filesystem", "%s, of this host alone", type[0] != '\0' ? type : "local");
    }
    if (statvfs(store->path, &fs) == 0) {
        uint64_t space = (uint64_t)fs.f_bavail * fs.f_frsize;
        bool enough = space >= SPACE_WANTED;
        say(report, enough ? DL_FINDING_OK : DL_FINDING_WARNING, "space", "%llu MiB are free%s",
            (unsigned long long)(space >> 20),
            enough ? "" : ": when none is left, no lock can be taken or freed");
    }
}

static void report_database(const report_t *report, const answers_t *a) {
    say(report, DL_FINDING_OK, "sqlite", "SQLite %s", sqlite3_libversion());
    bool wal = strcmp(a->journal, "wal") == 0;
    say(report, wal ? DL_FINDING_OK : DL_FINDING_ERROR, "journal", "journal_mode is %s%s", a->journal,
        wal ? ", as it should be" : ", and it must be wal");
    say(report, DL_FINDING_OK, "synchronous",
        "%s: a power failure can take back the last holds, but it ends every hold anyway; "
        "tokens go on rising, because their reserve is written with a sync",
        a->synchronous == 1 ? "NORMAL" : "not NORMAL");
    bool sound = strcmp(a->damage, "ok") == 0;
    say(report, sound ? DL_FINDING_OK : DL_FINDING_WARNING, "integrity", "%s",
        sound ? "the file is sound" : a->damage);
    say(report, DL_FINDING_OK, "size", "%lld locks are held, the file has %lld KiB", (long long)a->locks,
        (long long)(a->pages * a->page_size / 1024));
}

static void report_writer(const report_t *report, dli_store_t *store, uint64_t deadline_ns) {
    dl_error_t err;
    int rc;
    uint64_t until_ns = store->env->now_ns() + WRITE_PATIENCE_NS;
    dli_limits_t limits = {.deadline_ns = until_ns < deadline_ns ? until_ns : deadline_ns};
    dl_status_t status = dli_connection_run(&store->calls, write_once, NULL, limits, &rc, &err);
    if (status == DL_OK && rc == SQLITE_OK) {
        say(report, DL_FINDING_OK, "writing", "the file can be written");
    } else if (status == DL_OK) {
        (void)dli_connection_fail(store, rc, false, &err);
        say(report, DL_FINDING_ERROR, "writing", "%s", err.message);
    } else {
        long writer = dli_host_writer(store->path);
        say(report, DL_FINDING_ERROR, "writing",
            "process %ld (0: not known) is in the middle of a write and does not go on; nobody can take or "
            "free a lock",
            writer);
    }
}

static void report_host(const report_t *report, const dli_store_t *store) {
    say(report, DL_FINDING_OK, "clock",
        "leases are counted by CLOCK_BOOTTIME, which no clock setting moves; a reboot frees every lock");
    if (store->offset_ns != 0) {
        say(report, DL_FINDING_NOTE, "time namespace",
            "this process sees a clock %lld s off the host's; taken into account",
            (long long)(store->offset_ns / 1000000000));
    } else {
        say(report, DL_FINDING_OK, "time namespace", "the clock is the host's own");
    }
    int fd = inotify_init1(IN_CLOEXEC);
    if (fd >= 0) {
        close(fd);
        say(report, DL_FINDING_OK, "wake-up", "a release wakes waiters by inotify");
    } else {
        say(report, DL_FINDING_WARNING, "wake-up",
            "no inotify instance can be had (%s): waiters poll; see fs.inotify.max_user_instances",
            strerror(errno));
    }
}

static void report_guarantee(const report_t *report) {
    say(report, DL_FINDING_NOTE, "guarantee",
        "at most one owner among the processes of this host that use this file, until its lease ends; each "
        "later "
        "holder of a name has a larger token, also after a power failure");
    say(report, DL_FINDING_NOTE, "limit",
        "a process that is stopped in the middle of a write holds up the writes of the others until it goes "
        "on or "
        "dies; replacing or restoring the file while it is in use splits its users");
}

dl_status_t dli_sqlite_check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns,
                             dl_error_t *err) {
    dli_store_t *store = state;
    report_t report = {.fn = fn, .arg = arg};
    answers_t answers = {.env = store->env, .deadline_ns = deadline_ns};
    int rc;
    dl_status_t status = dli_connection_run(&store->calls, ask_once, &answers,
                                            (dli_limits_t){.deadline_ns = deadline_ns}, &rc, err);
    if (status == DL_OK && rc != SQLITE_OK) {
        status = dli_connection_fail(store, rc, false, err);
    }
    report_file(&report, store);
    report_place(&report, store);
    if (status == DL_OK) {
        report_database(&report, &answers);
    } else {
        say(&report, DL_FINDING_ERROR, "database", "%s", err->message);
    }
    report_writer(&report, store, deadline_ns);
    report_host(&report, store);
    report_guarantee(&report);
    return status;
}
