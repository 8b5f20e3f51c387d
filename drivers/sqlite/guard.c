/* guard.c - what SQLite does for us ends in time, whatever is in the file and whoever locks it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

/*
 * Whoever may write the file can put things into it that keep SQLite busy for hours, and so can a process
 * that holds its locks. Three places see the deadline, and a cancel:
 *
 * - SQLite's virtual machine, every few steps (dli_guard_progress);
 * - every read of a file, for what is one step to the virtual machine: recovering or copying a long log,
 *   following long chains of pages, checking the whole file (files.c calls dli_guard_ended);
 * - the pauses that SQLite makes when it does not get a lock of the log's index, ten seconds in all: the one
 *   thing in which our VFS differs from SQLite's "unix".
 */

/* A try that begins when the deadline is over, or nearly, has this long. */
#define LEAST_NS (5 * (uint64_t)NS_PER_MS)
/* The stop descriptors are looked at this often: it costs a system call. */
#define LOOK_EVERY_NS (5 * (uint64_t)NS_PER_MS)

const char dli_guard_vfs[] = "dlock";

static _Thread_local dli_guard_t *here;
static sqlite3_vfs vfs;
static int (*next_sleep)(sqlite3_vfs *, int);

void dli_guard_enter(dli_guard_t *guard, dli_store_t *store, dli_limits_t limits) {
    uint64_t now_ns = store->env->now_ns();
    *guard = (dli_guard_t){.store = store,
                           .limits = limits,
                           .until_ns = now_ns + LEAST_NS,
                           .look_ns = now_ns + LOOK_EVERY_NS,
                           .made = -1};
    if (guard->until_ns < limits.deadline_ns) {
        guard->until_ns = limits.deadline_ns;
    }
    here = guard;
}

void dli_guard_leave(void) {
    here = NULL;
}

dli_guard_t *dli_guard_here(void) {
    return here;
}

bool dli_stop_wait(const dl_driver_env_t *env, const dl_stop_t *stop, uint64_t until_ns) {
    struct pollfd fds[2] = {{.fd = -1}, {.fd = -1}};
    for (int i = 0; i < 2 && stop != NULL; i++) {
        fds[i] = (struct pollfd){.fd = stop->fd[i], .events = POLLIN};
    }
    return env->poll(fds, 2, until_ns) > 0;
}

bool dli_guard_ended(dli_guard_t *guard) {
    if (guard->ending) {
        return false;
    }
    uint64_t now_ns = guard->store->env->now_ns();
    if (now_ns >= guard->look_ns) {
        const dl_stop_t *stop = guard->limits.stop;
        guard->stopped = stop != NULL && dli_stop_wait(guard->store->env, stop, 0);
        guard->look_ns = now_ns + LOOK_EVERY_NS;
    }
    guard->over |= guard->stopped || now_ns >= guard->until_ns;
    return guard->over;
}

int dli_guard_progress(void *unused) {
    (void)unused;
    return here != NULL && dli_guard_ended(here);
}

static int sleep_in_time(sqlite3_vfs *unused, int us) {
    dli_guard_t *guard = here;
    if (guard == NULL) {
        return next_sleep(unused, us);
    }
    const dl_driver_env_t *env = guard->store->env;
    uint64_t until_ns = env->now_ns() + (uint64_t)us * NS_PER_US;
    (void)dli_stop_wait(env, guard->limits.stop, until_ns < guard->until_ns ? until_ns : guard->until_ns);
    return us;
}

static void install(void) {
    sqlite3_vfs *found = sqlite3_vfs_find("unix");
    if (found == NULL || found->iVersion < 3 || !dli_files_install(found)) {
        return;
    }
    vfs = *found;
    vfs.pNext = NULL;
    vfs.zName = dli_guard_vfs;
    next_sleep = found->xSleep;
    vfs.xSleep = sleep_in_time;
    if (sqlite3_vfs_register(&vfs, 0) != SQLITE_OK) {
        vfs.zName = NULL;
    }
}

dl_status_t dli_guard_install(dl_error_t *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (sqlite3_initialize() != SQLITE_OK) { /* before what is tried once only */
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    pthread_once(&once, install);
    return vfs.zName != NULL
               ? DL_OK
               : dl_driver_fail(err, DL_ENOTSUP, 0, "this SQLite does not let its system calls be bounded");
}
