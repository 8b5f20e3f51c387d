/* wake_files.c - the files that waiters watch, in a folder that others may be able to write. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * No link is followed, everything goes on from descriptors, and what is there already is touched and watched,
 * but never opened or changed.
 */

typedef char name_t[3];

static void name_of(unsigned bucket, name_t name) {
    snprintf(name, sizeof(name_t), "%02x", (unsigned char)bucket);
}

/* ---- root beside others ----------------------------------------------------------------------------- */

/* Root makes and touches nothing that the lock file's owner could not, and what it makes is theirs. It looks
 * at what it has opened: setfsuid would clear the process's parent-death signal and change its capabilities.
 */
static bool acts_for_owner(const dli_store_t *store) {
    return store->user != 0 && geteuid() == 0;
}

/* Could they write there? With errno if not. */
static bool they_may_write(const dli_store_t *store, const struct stat *what) {
    bool may = what->st_uid == store->user || (what->st_mode & 002) != 0 ||
               (what->st_gid == store->group && (what->st_mode & 020) != 0);
    errno = may ? errno : EACCES;
    return may;
}

/* ---- the folder and a file in it -------------------------------------------------------------------- */

/* Some filesystems take long to find that there is no such name. */
static bool is_known_missing(dli_wake_files_t *wake, const dli_store_t *store) {
    struct stat beside;
    return wake->folder < 0 && fstat(store->place.folder, &beside) == 0 &&
           dli_seen_is_same(&wake->without, &beside, store->env);
}

/* The folder, good until the next call; or -1 with errno. */
static int folder_of(dli_wake_files_t *wake, const dli_store_t *store) {
    struct stat now;
    if (is_known_missing(wake, store)) {
        errno = ENOENT;
        return -1;
    }
    if (fstatat(store->place.folder, wake->name, &now, AT_SYMLINK_NOFOLLOW) != 0) {
        wake->without.settled &= errno == ENOENT;
        return -1;
    }
    wake->without.settled = false;
    if (wake->folder >= 0 && now.st_dev == wake->at.st_dev && now.st_ino == wake->at.st_ino) {
        return wake->folder;
    }
    int fd = openat(store->place.folder, wake->name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    if (fstat(fd, &now) != 0 || !dli_place_may_own(&store->place, now.st_uid)) {
        close(fd);
        errno = EPERM;
        return -1;
    }
    if (wake->folder >= 0) {
        close(wake->folder);
    }
    wake->folder = fd;
    wake->at = now;
    return fd;
}

/* Who may use the lock file may use what lies beside it. */
static void like_the_file(int fd, mode_t mode, const struct stat *file, const dli_store_t *store) {
    (void)fchmod(fd, mode);
    if (fchown(fd, acts_for_owner(store) ? store->user : (uid_t)-1, file->st_gid) != 0) {
        return; /* a group that we are not in; then the mode has to do */
    }
}

/* Another user's, or one with something in it, was not made for this: somebody has put it in its place. */
static bool is_new(int folder) {
    struct stat made;
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    int n = fstat(folder, &made) == 0 && made.st_uid == geteuid() ? 0 : 3;
    while (entries != NULL && n < 3 && readdir(entries) != NULL) {
        n++;
    }
    if (entries != NULL) {
        closedir(entries);
    } else if (fd >= 0) {
        close(fd);
    }
    return n == 2; /* . and .. */
}

/* Makes the folder unless it is there. 0, or an errno. */
static int make_folder(const dli_wake_files_t *wake, const dli_store_t *store, const struct stat *file) {
    struct stat at;
    int folder = store->place.folder;
    bool for_owner = acts_for_owner(store);
    if (fstat(folder, &at) != 0 || (for_owner && !they_may_write(store, &at))) {
        return errno;
    }
    /* Ours may be there since one died before the folder had its mode; one of root's may be anything. */
    if (mkdirat(folder, wake->name, 0700) != 0 && (errno != EEXIST || for_owner)) {
        return errno == EEXIST ? 0 : errno;
    }
    int fd = openat(folder, wake->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    if (is_new(fd)) {
        mode_t mode = file->st_mode & 0666;
        like_the_file(fd, mode | (mode & 0444) >> 2, file, store);
    }
    close(fd);
    return 0;
}

/* It has its name once it has its mode: one that dies before leaves nothing. Where the filesystem has no
 * files without a name, it may leave one that others cannot watch; then they poll. 0, or an errno. */
static int make_for_all(int folder, const char *name, const struct stat *file, const dli_store_t *store) {
    char unnamed[32];
    int fd = openat(folder, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
    bool is_named = fd < 0;
    if (is_named) {
        fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
    if (fd < 0) {
        return errno == EEXIST ? 0 : errno;
    }
    like_the_file(fd, file->st_mode & 0666, file, store);
    snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", fd);
    int rc = is_named ? 0 : linkat(AT_FDCWD, unnamed, folder, name, AT_SYMLINK_FOLLOW);
    int error = rc == 0 || errno == EEXIST ? 0 : errno;
    close(fd);
    return error;
}

/* 0, or -1 with errno. */
static int make_file(dli_wake_files_t *wake, const dli_store_t *store, const char *name) {
    struct stat file, at;
    if (fstatat(store->place.folder, store->place.name, &file, AT_SYMLINK_NOFOLLOW) != 0) {
        return -1;
    }
    int error = make_folder(wake, store, &file);
    int folder = folder_of(wake, store);
    if (folder < 0) {
        errno = errno == ENOENT && error != 0 ? error : errno; /* why it is not there */
        return -1;
    }
    if (fstat(folder, &at) != 0 || (acts_for_owner(store) && !they_may_write(store, &at))) {
        return -1;
    }
    if (fstatat(folder, name, &at, AT_SYMLINK_NOFOLLOW) == 0) {
        return 0;
    }
    errno = make_for_all(folder, name, &file, store);
    return errno == 0 ? 0 : -1;
}

/* ---- what wake.c asks for --------------------------------------------------------------------------- */

bool dli_wake_files_open(dli_wake_files_t *wake, const dli_store_t *store) {
    wake->folder = -1;
    return asprintf(&wake->name, "%s-wake", store->place.name) >= 0;
}

void dli_wake_files_close(dli_wake_files_t *wake) {
    if (wake->folder >= 0) {
        close(wake->folder);
    }
    free(wake->name);
}

int dli_wake_files_provide(dli_wake_files_t *wake, const dli_store_t *store, unsigned bucket, char *path,
                           size_t size) {
    name_t name;
    name_of(bucket, name);
    int rc = make_file(wake, store, name);
    snprintf(path, size, "/proc/self/fd/%d/%s", wake->folder, name);
    return rc;
}

/* A link to another file may come in its place at any time: it is opened, looked at, and then touched. */
static int touch_theirs(const dli_store_t *store, int folder, const char *name) {
    char path[32];
    struct stat file;
    int fd = openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int rc = fstat(fd, &file) == 0 && they_may_write(store, &file) ? utimensat(AT_FDCWD, path, NULL, 0) : -1;
    int error = errno;
    close(fd);
    errno = error;
    return rc;
}

int dli_wake_files_touch(dli_wake_files_t *wake, const dli_store_t *store, unsigned bucket) {
    int folder = folder_of(wake, store);
    if (folder < 0) {
        return -1;
    }
    name_t name;
    name_of(bucket, name);
    return acts_for_owner(store) ? touch_theirs(store, folder, name)
                                 : utimensat(folder, name, NULL, AT_SYMLINK_NOFOLLOW);
}
