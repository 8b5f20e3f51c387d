/* files.c - which files SQLite may open and delete for us: those of the lock file, in its own folder. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Whoever may write in the folder can replace it, put links in it, and leave a rollback journal there that
 * names any file of the host as one to be deleted. A process of root would then open, give away or delete
 * files for them: SQLite goes by paths, and as root it hands the log to the owner of the lock file, made by
 * it or not. So SQLite's system calls are ours where they take a path or give a file away. While a guard of
 * this thread is entered (guard.c),
 *
 * - a path is one of the lock file's, or there is no such file; it is looked up in the folder that was opened
 *   in the beginning, without following a link;
 * - what is opened is a plain file that has this one name, and is not put there by somebody who may not write
 * the lock file itself;
 * - which log and index SQLite has is noted from the descriptors that it gets;
 * - the owner is changed of a file only that was made just now, and the group of an empty one of this user's;
 * - reading fails when the time is over.
 *
 * Databases of the program are not touched: no guard is entered then.
 */

static int (*next_open)(const char *, int, int);
static int (*next_close)(int);
static int (*next_unlink)(const char *);
static int (*next_fchown)(int, uid_t, gid_t);
static ssize_t (*next_read)(int, void *, size_t);
static ssize_t (*next_pread)(int, void *, size_t, int64_t);
static ssize_t (*next_pread64)(int, void *, size_t, int64_t);

/* The name in the folder, or NULL with errno; *part is DLI_PARTS for the journal. */
static const char *name_of(const dli_place_t *place, const char *path, dli_part_t *part) {
    static const char *const endings[] = {
        [DLI_MAIN] = "", [DLI_LOG] = "-wal", [DLI_INDEX] = "-shm", [DLI_PARTS] = "-journal"};
    size_t len = strlen(place->path);
    for (*part = DLI_MAIN; *part <= DLI_PARTS; (*part)++) {
        if (strncmp(path, place->path, len) == 0 && strcmp(path + len, endings[*part]) == 0) {
            return path + (place->name - place->path);
        }
    }
    errno = ENOENT;
    return NULL;
}

static bool is_folder(const dli_place_t *place, const char *path) {
    size_t len = (size_t)(place->name - place->path) - 1;
    return strncmp(path, place->path, len > 0 ? len : 1) == 0 && path[len > 0 ? len : 1] == '\0';
}

/* ---- the index of a file --------------------------------------------------------------------------- */

/* All connections of a process to a file share one index of its log: that which the first of them opened,
 * until the last one closes. It is noted here for as long. */
typedef struct index_note {
    dli_file_id_t file, index;
    int fd;
    struct index_note *next;
} index_note_t;

static pthread_mutex_t notes_mutex = PTHREAD_MUTEX_INITIALIZER;
static index_note_t *notes; /* the newest first */

static bool note_index(dli_file_id_t file, dli_file_id_t index, int fd) {
    index_note_t *note = malloc(sizeof *note);
    if (note == NULL) {
        return false;
    }
    pthread_mutex_lock(&notes_mutex);
    *note = (index_note_t){.file = file, .index = index, .fd = fd, .next = notes};
    notes = note;
    pthread_mutex_unlock(&notes_mutex);
    return true;
}

/* What a program does by SQLite with the lock file may be the last to use the index. */
static int close_noted(int fd) {
    pthread_mutex_lock(&notes_mutex);
    index_note_t **at = &notes;
    while (*at != NULL && (*at)->fd != fd) {
        at = &(*at)->next;
    }
    index_note_t *note = *at;
    if (note != NULL) {
        *at = note->next;
    }
    pthread_mutex_unlock(&notes_mutex);
    free(note);
    return next_close(fd);
}

dli_file_id_t dli_files_index(dli_file_id_t file) {
    pthread_mutex_lock(&notes_mutex);
    const index_note_t *note = notes;
    while (note != NULL && !dli_file_id_is(note->file, file)) {
        note = note->next;
    }
    dli_file_id_t index = note != NULL ? note->index : (dli_file_id_t){.ino = 0};
    pthread_mutex_unlock(&notes_mutex);
    return index;
}

/* Of a process's own locks on an index SQLite sees none: it would cut that index under the other's mapping,
 * and closing it would drop the other's locks. */
static bool is_of_another(dli_file_id_t index, dli_file_id_t file) {
    pthread_mutex_lock(&notes_mutex);
    const index_note_t *note = notes;
    while (note != NULL && (!dli_file_id_is(note->index, index) || dli_file_id_is(note->file, file))) {
        note = note->next;
    }
    pthread_mutex_unlock(&notes_mutex);
    return note != NULL;
}

void dli_files_before_fork(void) {
    pthread_mutex_lock(&notes_mutex);
}

void dli_files_after_fork(bool in_child) {
    while (in_child && notes != NULL) { /* SQLite begins a new book there */
        index_note_t *note = notes;
        notes = note->next;
        free(note);
    }
    pthread_mutex_unlock(&notes_mutex);
}

/* ---- opening and deleting ----------------------------------------------------------------------------- */

/* Another file came to the path since the first connection opened it, or its index is in use with another. */
static bool is_replaced(const dli_store_t *store, dli_part_t part, dli_file_id_t id) {
    dli_file_id_t file = store->parts[DLI_MAIN];
    return part == DLI_MAIN ? file.ino != 0 && !dli_file_id_is(id, file)
                            : part == DLI_INDEX && is_of_another(id, file);
}

/* What is there under the name. Looking at it by O_PATH does nothing to it, and closing that descriptor drops
 * no POSIX lock. A descriptor, or -1 with errno. */
static int open_plain(dli_guard_t *guard, const char *name, dli_part_t part, int flags) {
    const dli_place_t *place = &guard->store->place;
    struct stat file;
    char same[32];
    int fd = -1, at = openat(place->folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (at < 0) {
        return -1;
    }
    if (fstat(at, &file) != 0 || !S_ISREG(file.st_mode) || file.st_nlink > 1 ||
        !(part == DLI_MAIN || dli_place_may_own(place, file.st_uid))) {
        errno = ELOOP;
    } else if (is_replaced(guard->store, part, dli_file_id(&file))) {
        guard->replaced = true;
        errno = ELOOP;
    } else {
        /* Does not wait for somebody's lease to end. */
        snprintf(same, sizeof same, "/proc/self/fd/%d", at);
        fd = open(same, (flags & ~(O_CREAT | O_EXCL | O_NOFOLLOW)) | O_NONBLOCK | O_CLOEXEC);
    }
    int error = errno;
    close(at);
    errno = error;
    return fd;
}

static int open_one(dli_guard_t *guard, const char *name, dli_part_t part, int flags, mode_t mode) {
    const dli_place_t *place = &guard->store->place;
    int fd = -1;
    if (guard->leased) { /* nor is it opened for reading alone, as SQLite tries next */
        errno = EAGAIN;
        return -1;
    }
    do {
        if ((flags & O_EXCL) == 0) {
            fd = open_plain(guard, name, part, flags);
            guard->leased = fd < 0 && errno == EAGAIN;
            if (fd >= 0 || errno != ENOENT || (flags & O_CREAT) == 0) {
                return fd;
            }
        }
        fd = openat(place->folder, name, flags | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    } while (fd < 0 && errno == EEXIST && (flags & O_EXCL) == 0 && !dli_guard_ended(guard));
    guard->made = fd;
    return fd;
}

/* SQLite makes what lies beside the lock file with the same mode, which means something else in another
 * group. What root makes it gives away itself. Who is not in the group cannot; then the mode has to do. */
static void be_of_its_group(const dli_store_t *store, int fd, const struct stat *file) {
    if (file->st_uid == geteuid() && file->st_uid != 0) {
        (void)!fchown(fd, (uid_t)-1, store->group);
    }
}

static int open_ours(const char *path, int flags, int mode) {
    dli_guard_t *guard = dli_guard_here();
    /* SQLite fills the descriptors 0 to 2 with the one, and takes random numbers from the other. */
    if (guard == NULL || strcmp(path, "/dev/null") == 0 || strcmp(path, "/dev/urandom") == 0) {
        return next_open(path, flags, mode);
    }
    dli_store_t *store = guard->store;
    guard->made = -1;
    if (is_folder(&store->place, path)) {
        return openat(store->place.folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    dli_part_t part;
    struct stat file;
    const char *name = name_of(&store->place, path, &part);
    int fd = name != NULL ? open_one(guard, name, part, flags, (mode_t)mode) : -1;
    if (fd < 0) {
        return fd;
    }
    if (fstat(fd, &file) != 0 ||
        (part == DLI_INDEX && !note_index(store->parts[DLI_MAIN], dli_file_id(&file), fd))) {
        close(fd);
        errno = ENOMEM;
        return -1;
    }
    if (part < DLI_PARTS && store->parts[part].ino == 0) {
        store->parts[part] = dli_file_id(&file);
    }
    if (part != DLI_MAIN && file.st_size == 0) {
        be_of_its_group(store, fd, &file);
    }
    return fd;
}

static int unlink_ours(const char *path) {
    const dli_guard_t *guard = dli_guard_here();
    if (guard == NULL) {
        return next_unlink(path);
    }
    dli_part_t part;
    const char *name = name_of(&guard->store->place, path, &part);
    return name != NULL ? unlinkat(guard->store->place.folder, name, 0) : -1;
}

static int fchown_ours(int fd, uid_t user, gid_t group) {
    const dli_guard_t *guard = dli_guard_here();
    return guard == NULL || fd == guard->made ? next_fchown(fd, user, group) : 0;
}

/* Fails once: what SQLite reads to leave things in order is read. */
static bool too_late(void) {
    dli_guard_t *guard = dli_guard_here();
    if (guard == NULL || guard->over || !dli_guard_ended(guard)) {
        return false;
    }
    errno = ETIMEDOUT;
    return true;
}

static ssize_t read_ours(int fd, void *to, size_t n) {
    return too_late() ? -1 : next_read(fd, to, n);
}

static ssize_t pread_ours(int fd, void *to, size_t n, int64_t at) {
    return too_late() ? -1 : next_pread(fd, to, n, at);
}

static ssize_t pread64_ours(int fd, void *to, size_t n, int64_t at) {
    return too_late() ? -1 : next_pread64(fd, to, n, at);
}

bool dli_files_install(sqlite3_vfs *unix_vfs) {
    const struct {
        const char *name;
        sqlite3_syscall_ptr ours, *next;
    } calls[] = {
        {"open", (sqlite3_syscall_ptr)open_ours, (sqlite3_syscall_ptr *)&next_open},
        {"close", (sqlite3_syscall_ptr)close_noted, (sqlite3_syscall_ptr *)&next_close},
        {"unlink", (sqlite3_syscall_ptr)unlink_ours, (sqlite3_syscall_ptr *)&next_unlink},
        {"fchown", (sqlite3_syscall_ptr)fchown_ours, (sqlite3_syscall_ptr *)&next_fchown},
        {"read", (sqlite3_syscall_ptr)read_ours, (sqlite3_syscall_ptr *)&next_read},
        /* A build of SQLite uses one way of reading, and has no others. */
        {"pread", (sqlite3_syscall_ptr)pread_ours, (sqlite3_syscall_ptr *)&next_pread},
        {"pread64", (sqlite3_syscall_ptr)pread64_ours, (sqlite3_syscall_ptr *)&next_pread64},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        *calls[i].next = unix_vfs->xGetSystemCall(unix_vfs, calls[i].name);
        if (*calls[i].next != NULL &&
            unix_vfs->xSetSystemCall(unix_vfs, calls[i].name, calls[i].ours) != SQLITE_OK) {
            return false;
        }
    }
    return next_open != NULL && next_close != NULL && next_unlink != NULL && next_fchown != NULL &&
           next_read != NULL;
}
