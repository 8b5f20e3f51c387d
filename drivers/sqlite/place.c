/* place.c - where the lock file is: its path, its filesystem, and making it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#define FUSE_MAGIC 0x65735546ul

/* ---- the path --------------------------------------------------------------------------------------- */

static bool add(char *path, size_t size, const char *text) {
    size_t len = strlen(path);
    return (size_t)snprintf(path + len, size - len, "%s", text) < size - len;
}

static bool user_folder(char *path, size_t size) {
    path[0] = '\0';
    if (geteuid() == 0) {
        return add(path, size, "/var/lib/dlock");
    }
    const char *state = secure_getenv("XDG_STATE_HOME");
    if (state != NULL && state[0] == '/') {
        return add(path, size, state) && add(path, size, "/dlock");
    }
    const char *home = secure_getenv("HOME");
    struct passwd entry, *found = NULL;
    char text[4096];
    if (home == NULL || home[0] != '/') {
        home = getpwuid_r(geteuid(), &entry, text, sizeof text, &found) == 0 && found != NULL ? found->pw_dir
                                                                                              : NULL;
    }
    return home != NULL && home[0] == '/' && add(path, size, home) && add(path, size, "/.local/state/dlock");
}

dl_status_t dli_place_name(const dl_driver_env_t *env, const dl_option_value_t *values, char *path,
                           size_t size, const char **text, dl_error_t *err) {
    const char *value = values[DLI_SQLITE_OPT_PATH].string;
    const char *shown = dl_driver_shown(env, values, DLI_SQLITE_OPT_PATH);
    *text = strchr(shown, '$') != NULL ? shown : path;
    if (value != NULL) {
        /* A relative path would be another file, and so another lock, in each working directory, and an empty
         * one, as of a variable that is set to nothing, for each user. */
        if (value[0] != '/') {
            return dl_driver_fail(err, DL_ECONFIG, 0,
                                  "the path of the lock file must begin with '/', and is '%s'%s", shown,
                                  value[0] == '~' ? "; '~' is not expanded, write ${HOME}" : "");
        }
        path[0] = '\0';
        if (add(path, size, value)) {
            return DL_OK;
        }
    } else if (user_folder(path, size)) {
        if (add(path, size, "/locks.db")) {
            return DL_OK;
        }
    } else {
        return dl_driver_fail(err, DL_ECONFIG, 0, "this user has no home folder: give the lock file's path");
    }
    return dl_driver_fail(err, DL_ECONFIG, ENAMETOOLONG, "the path of the lock file is longer than %d bytes",
                          DLI_PATH_LIMIT);
}

/* Makes every missing folder above the file; only for the user's own path. 0, or why one is still missing, if
 * it is. */
static int make_folders(const char *path) {
    char folder[PATH_MAX] = "";
    int error = 0;
    for (const char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        memcpy(folder, path, (size_t)(slash - path));
        folder[slash - path] = '\0';
        if (mkdir(folder, 0700) != 0 && errno != EEXIST && error == 0) {
            error = errno;
        }
    }
    return error;
}

/* ---- the filesystem --------------------------------------------------------------------------------- */

const char *dli_place_refused(unsigned long magic, const char *mount_type) {
    static const struct {
        unsigned long magic;
        const char *name;
    } remote[] = {
        {0x6969ul, "NFS"},
        {0x517Bul, "SMB"},
        {0xFF534D42ul, "CIFS"},
        {0xFE534D42ul, "SMB2"},
        {0x01021997ul, "9p"},
        {0x00C36400ul, "Ceph"},
        {0x5346414Ful, "AFS"},
        {0x6B414653ul, "AFS"},
        {0x73757245ul, "Coda"},
        {0x564Cul, "NCP"},
        {0x0BD00BD0ul, "Lustre"},
        {0x01161970ul, "GFS2"},
        {0x7461636Ful, "OCFS2"},
        {0x47504653ul, "GPFS"},
        {0x19830326ul, "BeeGFS"},
        {0xAAD7AAEAul, "PanFS"},
        {0x20030528ul, "OrangeFS"},
        {0x786F4256ul, "a VirtualBox share"},
        {0xBACBACBCul, "a VMware share"},
        {0x7C7C6673ul, "a Parallels share"},
        {0x61636673ul, "ACFS"},
        {0xBEEFDEADul, "StorNext"},
    };
    /* fuseblk is a block device of this host, such as NTFS; any other FUSE may be anything. */
    if (magic == FUSE_MAGIC) {
        return strcmp(mount_type, "fuseblk") == 0 ? NULL : mount_type[0] != '\0' ? mount_type : "FUSE";
    }
    for (size_t i = 0; i < sizeof remote / sizeof remote[0]; i++) {
        if (remote[i].magic == magic) {
            return remote[i].name;
        }
    }
    return NULL;
}

/* The type of the mount with this device number, as /proc/self/mountinfo has it; "" when it is not there. */
static void mount_type(dev_t dev, char *type, size_t size) {
    type[0] = '\0';
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (file == NULL) {
        return;
    }
    char *line = NULL;
    size_t room = 0;
    while (type[0] == '\0' && getline(&line, &room, file) > 0) {
        unsigned major_number, minor_number;
        const char *dash = strstr(line, " - ");
        if (dash != NULL && sscanf(line, "%*d %*d %u:%u", &major_number, &minor_number) == 2 &&
            makedev(major_number, minor_number) == dev) {
            snprintf(type, size, "%.*s", (int)strcspn(dash + 3, " "), dash + 3);
        }
    }
    free(line);
    fclose(file);
}

dl_status_t dli_place_local(const dli_place_t *place, char *type, size_t size, dl_error_t *err) {
    struct statfs fs;
    struct stat folder;
    if (fstatfs(place->folder, &fs) != 0 || fstat(place->folder, &folder) != 0) {
        return dl_driver_fail(err, DL_EIO, errno, "cannot look at the lock file's folder (%s): %s",
                              strerror(errno), dli_place_text(place));
    }
    mount_type(folder.st_dev, type, size);
    /* The kernel's type has no fixed sign or width; the numbers are 32 bits. */
    const char *refused = dli_place_refused((unsigned long)(uint32_t)fs.f_type, type);
    if (refused != NULL) {
        return dl_driver_fail(
            err, DL_ENOTSUP, 0,
            "a lock file must be on a filesystem of this host alone, and this one is %s: %s", refused,
            dli_place_text(place));
    }
    return DL_OK;
}

/* ---- the file --------------------------------------------------------------------------------------- */

static void sync_folder(const dli_place_t *place) {
    int fd = openat(place->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd); /* only matters if the power fails within seconds; then the file is made again */
        close(fd);
    }
}

/* Makes an empty file, whole at once and without opening it: closing a descriptor of the database would drop
 * the POSIX locks of every connection of this process. 0, or an errno. */
static int make_file(const dli_place_t *place) {
    if (mknodat(place->folder, place->name, S_IFREG | 0600, 0) != 0) { /* follows no link */
        return errno;
    }
    sync_folder(place);
    return 0;
}

static dl_status_t cannot_make(int error, const char *text, dl_error_t *err) {
    dl_status_t status = error == EACCES || error == EPERM    ? DL_EAUTH
                         : error == EMFILE || error == ENFILE ? DL_ELIMIT
                                                              : DL_EIO;
    return dl_driver_fail(err, status, error, "cannot make the lock file (%s): %s", strerror(error), text);
}

/* Is it mounted by itself, without the folder that its log lies in? */
static bool is_mounted(const dli_place_t *place) {
    struct statx folder, file;
    return statx(place->folder, "", AT_EMPTY_PATH, STATX_MNT_ID, &folder) == 0 &&
           statx(place->folder, place->name, AT_SYMLINK_NOFOLLOW, STATX_MNT_ID, &file) == 0 &&
           (folder.stx_mask & file.stx_mask & STATX_MNT_ID) != 0 && folder.stx_mnt_id != file.stx_mnt_id;
}

static dl_status_t look_at_file(const dli_place_t *place, const struct stat *file, dl_error_t *err) {
    if (!S_ISREG(file->st_mode)) {
        return dl_driver_fail(err, DL_ECONFIG, 0,
                              "the path of the lock file names something that is no file: %s",
                              dli_place_text(place));
    }
    /* SQLite names its log after the path: each name would have a log of its own, for the same locks. */
    if (file->st_nlink > 1 || is_mounted(place)) {
        return dl_driver_fail(err, DL_ECONFIG, 0,
                              "the lock file is %s, so that it would have more than one log: %s",
                              file->st_nlink > 1 ? "known by several names (hard links)"
                                                 : "mounted by itself, without its folder",
                              dli_place_text(place));
    }
    return DL_OK;
}

bool dli_place_may_own(const dli_place_t *place, uid_t user) {
    struct stat file;
    return user == 0 || user == geteuid() ||
           (fstatat(place->folder, place->name, &file, AT_SYMLINK_NOFOLLOW) == 0 &&
            (user == file.st_uid || (file.st_mode & 022) != 0));
}

/* The file is there, or is made. */
static dl_status_t find_or_make(const dli_place_t *place, bool create, bool *made, dl_error_t *err) {
    struct stat file;
    if (fstatat(place->folder, place->name, &file, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno != ENOENT) {
            return cannot_make(errno, dli_place_text(place), err);
        }
        if (!create) {
            return dl_driver_fail(err, DL_ECONFIG, ENOENT,
                                  "the lock file is missing and `create` is off (dlock init makes it): %s",
                                  dli_place_text(place));
        }
        int error = make_file(place);
        if (error != 0 && error != EEXIST) {
            return cannot_make(error, dli_place_text(place), err);
        }
        *made = error == 0;
        if (fstatat(place->folder, place->name, &file, AT_SYMLINK_NOFOLLOW) != 0) {
            return cannot_make(errno, dli_place_text(place), err);
        }
    }
    return look_at_file(place, &file, err);
}

dl_status_t dli_place_provide(const dl_driver_env_t *env, const dl_option_value_t *values, dli_place_t *place,
                              bool *made, dl_error_t *err) {
    const char *value = values[DLI_SQLITE_OPT_PATH].string, *text;
    bool create = values[DLI_SQLITE_OPT_CREATE].number != 0;
    char named[DLI_PATH_LIMIT + 1], type[64];
    *made = false;
    dl_status_t status = dli_place_name(env, values, named, sizeof named, &text, err);
    if (status != DL_OK) {
        return status;
    }
    if (named[strlen(named) - 1] == '/') {
        return dl_driver_fail(err, DL_ECONFIG, EISDIR, "the path of the lock file names a folder: %s", text);
    }
    int error = create && value == NULL ? make_folders(named) : 0;
    status = dli_folder_open(named, text, place, err);
    if (status != DL_OK && err->native == ENOENT && error != 0) {
        return cannot_make(error, text, err);
    }
    if (status == DL_OK) {
        status = dli_place_local(place, type, sizeof type, err);
    }
    return status == DL_OK ? find_or_make(place, create, made, err) : status;
}
