/* check.c - says which guarantee this lock file gives, and what weakens it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "drivers/report.h"

/* The log may grow to some 4 MiB before it is copied, and the file as much. */
#define SPACE_WANTED ((uint64_t)64 << 20)

/* ---- asking the file -------------------------------------------------------------------------------- */

typedef struct answers {
    char journal[32], damage[256];
    int64_t synchronous, locks, pages, page_size;
} answers_t;

/* Reads the whole file, in half of the time that is left; others go on meanwhile. */
static int look_for_damage(dli_connection_t *c, answers_t *a) {
    dli_guard_t *guard = dli_guard_here();
    uint64_t until_ns = guard->until_ns;
    guard->until_ns = c->store->env->now_ns() / 2 + until_ns / 2;
    int rc = dli_connection_ask(c, "PRAGMA quick_check(1)", NULL, a->damage, sizeof a->damage);
    guard->until_ns = until_ns;
    if (!guard->over) {
        return rc;
    }
    guard->over = false;
    snprintf(a->damage, sizeof a->damage, "not checked to the end in the time allowed");
    return SQLITE_OK;
}

static int ask_once(dli_connection_t *c, void *arg) {
    answers_t *a = arg;
    int rc = dli_connection_ask(c, "PRAGMA journal_mode", NULL, a->journal, sizeof a->journal);
    if (rc == SQLITE_OK) {
        rc = dli_connection_ask(c, "PRAGMA synchronous", &a->synchronous, NULL, 0);
    }
    if (rc == SQLITE_OK) {
        rc = dli_connection_ask(c, "SELECT count(*) FROM dlock_locks WHERE expires_ns > dl_now()", &a->locks,
                                NULL, 0);
    }
    if (rc == SQLITE_OK) {
        rc = dli_connection_ask(c, "PRAGMA page_count", &a->pages, NULL, 0);
    }
    if (rc == SQLITE_OK) {
        rc = dli_connection_ask(c, "PRAGMA page_size", &a->page_size, NULL, 0);
    }
    return rc == SQLITE_OK ? look_for_damage(c, a) : rc;
}

/* How long the right to write may be waited for before somebody is said to keep it. */
#define WRITE_PATIENCE_NS (300 * (uint64_t)NS_PER_MS)

static int write_once(dli_connection_t *c, void *arg) {
    (void)arg;
    int rc = dli_connection_do(c, DLI_SQL_BEGIN);
    return rc == SQLITE_OK ? dli_connection_do(c, DLI_SQL_ROLLBACK) : rc;
}

/* ---- the findings ----------------------------------------------------------------------------------- */

static const char *name_of_user(uid_t id, char *text, size_t size) {
    struct passwd entry, *user = NULL;
    char room[4096];
    (void)getpwuid_r(id, &entry, room, sizeof room, &user);
    snprintf(text, size, "%.64s (%lu)", user != NULL ? user->pw_name : "?", (unsigned long)id);
    return text;
}

/* Neither this user, nor root, who may do everything anyway. */
static bool is_stranger(uid_t id) {
    return id != 0 && id != geteuid();
}

static void report_file(const dli_report_t *report, const dli_store_t *store) {
    struct stat file;
    char owner[128];
    if (stat(store->place.path, &file) != 0) {
        dli_say(report, DL_FINDING_ERROR, "file", "%s: %s", dli_place_text(&store->place), strerror(errno));
        return;
    }
    unsigned mode = file.st_mode & 07777;
    bool bad = (mode & 02) != 0 || is_stranger(file.st_uid) || file.st_nlink > 1;
    const char *reach = (mode & 07) != 0    ? "every user of this host can read it or stop the locks in it"
                        : (mode & 070) != 0 ? "its group can use it"
                                            : "only its owner can use it";
    dli_say(report,
            bad                ? DL_FINDING_WARNING
            : (mode & 07) != 0 ? DL_FINDING_NOTE
                               : DL_FINDING_OK,
            "file", "%s, mode %04o, owner %s: %s%s%s", dli_place_text(&store->place), mode,
            name_of_user(file.st_uid, owner, sizeof owner), reach,
            is_stranger(file.st_uid) ? "; that is another user, who can free or forge every lock in it" : "",
            file.st_nlink > 1 ? "; it has more than one name, and is refused by whoever opens it now" : "");
}

/* What others can do by writing in a folder above the file; NULL: nothing. */
static const char *power_over(const struct stat *folder, bool of_the_file) {
    if (is_stranger(folder->st_uid)) {
        return "its owner, another user, can replace the lock file";
    }
    if ((folder->st_mode & S_ISVTX) != 0) {
        /* Each their own; what another user has in it is told of where it stands. */
        return of_the_file && (folder->st_mode & 022) != 0 ? "others can put files of theirs beside the lock "
                                                             "file, in the place of those that belong to it"
                                                           : NULL;
    }
    return (folder->st_mode & 02) != 0    ? "every user of this host can replace the lock file"
           : (folder->st_mode & 020) != 0 ? "its group can replace the lock file"
                                          : NULL;
}

/* The folder, and those above it: whoever can move one of them can put another file in our place. */
static void report_folders(const dli_report_t *report, const dli_store_t *store) {
    char path[DLI_PATH_LIMIT + 1], shown[DLI_PATH_LIMIT + 32], owner[128];
    struct stat folder;
    bool of_the_file = true, safe = true;
    int up = 0;
    snprintf(path, sizeof path, "%s", store->place.path);
    while (path[1] != '\0') {
        char *slash = strrchr(path, '/');
        slash[slash == path] = '\0'; /* the last one is "/" */
        if (stat(path, &folder) != 0) {
            return;
        }
        const char *power = power_over(&folder, of_the_file);
        up++;
        if (power != NULL) {
            /* Nobody knows what the variables of the configuration hold. */
            const char *text = dli_place_text(&store->place);
            if (text == store->place.path) {
                (void)snprintf(shown, sizeof shown, "%s", path);
            } else {
                (void)snprintf(shown, sizeof shown, "%s, folder %d above it", text, up);
            }
            bool group = (folder.st_mode & 02) == 0 && !is_stranger(folder.st_uid);
            dli_say(report, group ? DL_FINDING_NOTE : DL_FINDING_WARNING, "folder",
                    "%s, mode %04o, owner %s: %s", shown, (unsigned)folder.st_mode & 07777,
                    name_of_user(folder.st_uid, owner, sizeof owner), power);
            safe = false;
        }
        of_the_file = false;
    }
    if (safe) {
        dli_say(report, DL_FINDING_OK, "folder", "only this user and root can replace the lock file");
    }
}

static void report_place(const dli_report_t *report, const dli_store_t *store) {
    char type[64];
    dl_error_t err = {.status = DL_OK};
    struct statvfs fs;
    if (dli_place_local(&store->place, type, sizeof type, &err) != DL_OK) {
        dli_say(report, DL_FINDING_ERROR, "filesystem", "%s", err.message);
    } else {
        dli_say(report, DL_FINDING_OK, "filesystem", "%s, of this host alone",
                type[0] != '\0' ? type : "local");
    }
    if (statvfs(store->place.path, &fs) == 0) {
        uint64_t space = (uint64_t)fs.f_bavail * fs.f_frsize;
        bool enough = space >= SPACE_WANTED;
        dli_say(report, enough ? DL_FINDING_OK : DL_FINDING_WARNING, "space", "%llu MiB are free%s",
                (unsigned long long)(space >> 20),
                enough ? "" : ": when none is left, no lock can be taken or freed");
    }
}

static void report_database(const dli_report_t *report, const answers_t *a) {
    dli_say(report, DL_FINDING_OK, "sqlite", "SQLite %s", sqlite3_libversion());
    bool wal = strcmp(a->journal, "wal") == 0;
    dli_say(report, wal ? DL_FINDING_OK : DL_FINDING_ERROR, "journal", "journal_mode is %s%s", a->journal,
            wal ? ", as it should be" : ", and it must be wal");
    dli_say(report, DL_FINDING_OK, "synchronous",
            "%s: a power failure can take back the last holds, but it ends every hold anyway; "
            "tokens go on rising, because their reserve is written with a sync",
            a->synchronous == 1 ? "NORMAL" : "not NORMAL");
    bool sound = strcmp(a->damage, "ok") == 0;
    dli_say(report, sound ? DL_FINDING_OK : DL_FINDING_WARNING, "integrity", "%s",
            sound ? "the file is sound" : a->damage);
    dli_say(report, DL_FINDING_OK, "size", "%lld locks are held, the file has %lld KiB", (long long)a->locks,
            (long long)(a->pages * a->page_size / 1024));
}

static void report_writer(const dli_report_t *report, dli_store_t *store, uint64_t deadline_ns) {
    dl_error_t err;
    int rc;
    uint64_t until_ns = store->env->now_ns() + WRITE_PATIENCE_NS;
    dli_limits_t limits = {.deadline_ns = until_ns < deadline_ns ? until_ns : deadline_ns};
    dl_status_t status = dli_connection_run(&store->calls, write_once, NULL, limits, &rc, &err);
    if (status == DL_OK && rc == SQLITE_OK) {
        dli_say(report, DL_FINDING_OK, "writing", "the file can be written");
    } else if (status == DL_OK) {
        (void)dli_connection_fail(store, rc, false, &err);
        dli_say(report, DL_FINDING_ERROR, "writing", "%s", err.message);
    } else {
        long writer = dli_host_writer(store->place.path);
        dli_say(
            report, DL_FINDING_ERROR, "writing",
            "process %ld (0: not known) is in the middle of a write and does not go on; nobody can take or "
            "free a lock",
            writer);
    }
    if (status != DL_OK || rc != SQLITE_OK) {
        dli_say(report, DL_FINDING_NOTE, "locking", "not tried, since the file cannot be written");
    }
}

static void report_host(const dli_report_t *report, const dli_store_t *store) {
    dli_say(report, DL_FINDING_OK, "clock",
            "leases are counted by CLOCK_BOOTTIME, which no clock setting moves; a reboot frees every lock");
    if (store->offset_ns != 0) {
        dli_say(report, DL_FINDING_NOTE, "time namespace",
                "this process sees a clock %llds off the host's; taken into account",
                (long long)(store->offset_ns / 1000000000));
    } else {
        dli_say(report, DL_FINDING_OK, "time namespace", "the clock is the host's own");
    }
    if (dli_host_own_boot()) {
        dli_say(
            report, DL_FINDING_NOTE, "boot",
            "this container has a boot id of its own: nobody outside of it may use the file, or each would "
            "take "
            "the other for an earlier boot and clear its locks");
    }
}

static void report_guarantee(const dli_report_t *report) {
    dli_say(
        report, DL_FINDING_NOTE, "guarantee",
        "at most one owner among the processes of this host that use this file, until its lease ends; each "
        "later "
        "holder of a name has a larger token, also after a power failure");
    dli_say(
        report, DL_FINDING_NOTE, "limit",
        "a process that is stopped in the middle of a write holds up the writes of the others until it goes "
        "on or "
        "dies; replacing or restoring the file while it is in use splits its users");
}

dl_status_t dli_sqlite_check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns,
                             dl_error_t *err) {
    dli_store_t *store = state;
    dli_report_t report = {.fn = fn, .arg = arg};
    answers_t answers = {.journal = ""};
    int rc;
    dl_status_t status = dli_connection_run(&store->calls, ask_once, &answers,
                                            (dli_limits_t){.deadline_ns = deadline_ns}, &rc, err);
    if (status == DL_OK && rc != SQLITE_OK) {
        status = dli_connection_fail(store, rc, false, err);
    }
    report_file(&report, store);
    report_folders(&report, store);
    report_place(&report, store);
    if (status == DL_OK) {
        report_database(&report, &answers);
    } else {
        dli_say(&report, DL_FINDING_ERROR, "database", "%s", err->message);
    }
    report_writer(&report, store, deadline_ns);
    report_host(&report, store);
    report_guarantee(&report);
    return status;
}
