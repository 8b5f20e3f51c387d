/* forks.c - fork() while connections are open: the child can open the same file anew and is safe with it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <stdlib.h>

/*
 * A child never uses an inherited connection. But SQLite keeps, per process and file, which POSIX locks the
 * process has; the child inherits that book while the kernel gave it none of the locks. A new connection of
 * the child to the same file would find the shared lock "already held" and not take it: somebody else's
 * closing connection could then delete the log under the child. Two things keep this from happening:
 *
 * - fork() waits until none of our connections is inside SQLite, so that none of SQLite's own mutexes is
 *   left locked in the child by a thread that does not exist there.
 * - In the child, SQLite sees the inherited files under another device number and so opens a fresh book for
 *   them. Only files that we had open are renumbered; databases of the program are not touched.
 */
struct dli_fork_node {
    dli_store_t *store;
    dli_file_id_t file, index; /* the latter under list_mutex; 0: the former is not known so far */
    dli_fork_node_t *next;
};

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static dli_fork_node_t *live;
/* Written only in a new child, where there is one thread; read without a lock. */
static dli_fork_node_t *inherited;
static unsigned generation;

static int (*next_stat)(const char *, struct stat *);
static int (*next_fstat)(int, struct stat *);

/* ---- around fork() ---------------------------------------------------------------------------------- */

static void before_fork(void) {
    pthread_mutex_lock(&list_mutex);
    for (dli_fork_node_t *node = live; node != NULL; node = node->next) {
        dli_store_t *store = node->store;
        (void)dli_turn_take(&store->calls.turn, store->env, DL_NO_DEADLINE, NULL);
        (void)dli_turn_take(&store->renewals.turn, store->env, DL_NO_DEADLINE, NULL);
    }
    dli_files_before_fork();
}

static void after_fork_in_parent(void) {
    dli_files_after_fork(false);
    for (dli_fork_node_t *node = live; node != NULL; node = node->next) {
        dli_turn_give(&node->store->renewals.turn, node->store->env);
        dli_turn_give(&node->store->calls.turn, node->store->env);
    }
    pthread_mutex_unlock(&list_mutex);
}

static void after_fork_in_child(void) {
    dli_files_after_fork(true);
    generation += live != NULL;
    while (live != NULL) {
        dli_fork_node_t *node = live;
        live = node->next;
        node->store = NULL;
        node->next = inherited;
        inherited = node;
    }
    pthread_mutex_unlock(&list_mutex);
}

/* As the library is loaded, before a thread can fork: in the midst of it, a child would do it once more. */
__attribute__((constructor(101))) static void add_handlers(void) {
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- what SQLite sees of inherited files ------------------------------------------------------------ */

static void renumber(struct stat *file) {
    for (const dli_fork_node_t *node = inherited; node != NULL; node = node->next) {
        if (dli_file_is(file, node->file)) {
            file->st_dev += (dev_t)generation << 40;
            return;
        }
    }
}

static int stat_renumbered(const char *path, struct stat *file) {
    int rc = next_stat(path, file);
    if (rc == 0) {
        renumber(file);
    }
    return rc;
}

static int fstat_renumbered(int fd, struct stat *file) {
    int rc = next_fstat(fd, file);
    if (rc == 0) {
        renumber(file);
    }
    return rc;
}

static bool put_ours(void) {
    sqlite3_vfs *vfs = sqlite3_vfs_find("unix");
    if (vfs == NULL || vfs->iVersion < 3) {
        return false;
    }
    next_stat = (int (*)(const char *, struct stat *))vfs->xGetSystemCall(vfs, "stat");
    next_fstat = (int (*)(int, struct stat *))vfs->xGetSystemCall(vfs, "fstat");
    return next_stat != NULL && next_fstat != NULL &&
           vfs->xSetSystemCall(vfs, "stat", (sqlite3_syscall_ptr)stat_renumbered) == SQLITE_OK &&
           vfs->xSetSystemCall(vfs, "fstat", (sqlite3_syscall_ptr)fstat_renumbered) == SQLITE_OK;
}

/* ---- opening and closing ---------------------------------------------------------------------------- */

/*
 * A client of ours has this file open with another index of its log, or this index with another file; the
 * mutex is held. SQLite has one index for all connections of a process to a file, and other processes by now
 * another. Of the locks of its own process on an index it sees none: it would cut that index under the
 * other's mapping, and lose its own locks on it when that one closes.
 */
static bool is_in_use_otherwise(const dli_store_t *store) {
    struct stat file, index = {.st_ino = 0};
    if (!dli_store_stat(store, DLI_MAIN, &file)) {
        return false;
    }
    (void)dli_store_stat(store, DLI_INDEX, &index);
    const dli_fork_node_t *node = live;
    while (node != NULL &&
           (node->index.ino == 0 || dli_file_is(&file, node->file) == dli_file_is(&index, node->index))) {
        node = node->next;
    }
    return node != NULL;
}

dl_status_t dli_forks_enter(dli_store_t *store, dl_error_t *err) {
    dli_fork_node_t *node = calloc(1, sizeof *node);
    if (node == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    node->store = store;
    dl_status_t status = DL_OK;
    pthread_mutex_lock(&list_mutex);
    if (inherited != NULL && next_fstat == NULL && !put_ours()) {
        status =
            dl_driver_fail(err, DL_ENOTSUP, 0,
                           "this SQLite cannot open a lock file in a forked child whose parent had one open");
    } else if (is_in_use_otherwise(store)) {
        status = dl_driver_fail(
            err, DL_EIO, 0,
            "the lock file, or its log, was replaced while this process has it open; close the "
            "clients that use the old one first: %s",
            dli_place_text(&store->place));
    } else {
        dli_turn_try(&store->calls.turn);
        dli_turn_try(&store->renewals.turn);
        store->fork_node = node;
        node->next = live;
        live = node;
        node = NULL;
    }
    pthread_mutex_unlock(&list_mutex);
    free(node);
    return status;
}

void dli_forks_opened(dli_store_t *store) {
    store->fork_node->file = store->parts[DLI_MAIN];
    dli_turn_give(&store->renewals.turn, store->env);
    dli_turn_give(&store->calls.turn, store->env);
    pthread_mutex_lock(&list_mutex);
    store->fork_node->index = store->parts[DLI_INDEX];
    pthread_mutex_unlock(&list_mutex);
}

/* Whoever opens the file meanwhile waits: SQLite may take the log away, and then makes a new one for it. So
 * does fork(); nobody else wants the turns. */
void dli_forks_leave(dli_store_t *store, int forked, void (*close)(dli_store_t *store)) {
    dli_fork_node_t *node = store->fork_node;
    store->fork_node = NULL;
    /* In a child the node stays for good: it remembers what SQLite's book has. */
    if (node == NULL || forked) {
        return;
    }
    pthread_mutex_lock(&list_mutex);
    for (dli_fork_node_t **at = &live; *at != NULL; at = &(*at)->next) {
        if (*at == node) {
            *at = node->next;
            break;
        }
    }
    close(store);
    pthread_mutex_unlock(&list_mutex);
    free(node);
}
