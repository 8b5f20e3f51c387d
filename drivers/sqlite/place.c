/* place.c - where the lock file is: its path, its folder, its filesystem, and making it. */
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

/* SQLite takes 512 bytes and adds endings to the name. */
#define PATH_LIMIT 480
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

dl_status_t dli_place_name(const char *option, char *path, size_t size, dl_error_t *err) {
    if (option != NULL && option[0] != '\0') {
        /* A relative path would be another file, and so another lock, in each working directory. */
        if (option[0] != '/') {
            return dl_driver_fail(err, DL_ECONFIG, 0,
                                  "the path of the lock file must begin with '/', and is '%s'%s", option,
                                  option[0] == '~' ? "; '~' is not expanded, write ${HOME}" : "");
        }
        path[0] = '\0';
        if (add(path, size, option)) {
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
                          PATH_LIMIT);
}

/* Makes every missing folder above the file; only for the user's own path. */
static void make_folders(const char *path) {
    char folder[PATH_MAX] = "";
    for (const char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        memcpy(folder, path, (size_t)(slash - path));
        folder[slash - path] = '\0';
        (void)mkdir(folder, 0700); /* what is missing in the end is reported by whoever needs it */
    }
}

/* The resolved folder of `path` and the file's own name. */
static dl_status_t split(const char *path, char *folder, const char **name, dl_error_t *err) {
    char parent[PATH_MAX] = ".";
    const char *slash = strrchr(path, '/');
    *name = slash != NULL ? slash + 1 : path;
    if (slash != NULL) {
        size_t len = slash == path ? 1 : (size_t)(slash - path);
        memcpy(parent, path, len);
        parent[len] = '\0';
    }
    if (**name == '\0') {
        return dl_driver_fail(err, DL_ECONFIG, EISDIR, "the path of the lock file names a folder: %s", path);
    }
    if (realpath(parent, folder) == NULL) {
        return errno == EACCES
                   ? dl_driver_fail(err, DL_EAUTH, errno,
                                    "no permission to look into the lock file's folder %s", parent)
                   : dl_driver_fail(err, errno == EIO ? DL_EIO : DL_ECONFIG, errno,
                                    "the folder of the lock file, %s: %s", parent, strerror(errno));
    }
    return DL_OK;
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

dl_status_t dli_place_local(const char *path, char *type, size_t size, dl_error_t *err) {
    struct statfs fs;
    struct stat file;
    if (statfs(path, &fs) != 0 || stat(path, &file) != 0) {
        return dl_driver_fail(err, errno == EACCES ? DL_EAUTH : DL_EIO, errno, "cannot look at %s: %s", path,
                              strerror(errno));
    }
    mount_type(file.st_dev, type, size);
    /* The kernel's type has no fixed sign or width; the numbers are 32 bits. */
    const char *refused = dli_place_refused((unsigned long)(uint32_t)fs.f_type, type);
    if (refused != NULL) {
        return dl_driver_fail(
            err, DL_ENOTSUP, 0,
            "a lock file must be on a filesystem of this host alone, and this one is %s: %s", refused, path);
    }
    return DL_OK;
}

/* ---- the file --------------------------------------------------------------------------------------- */

/* Gives the file its name only if that is free. 0, or an errno. */
static int publish(const char *from, const char *to) {
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) {
        return 0;
    }
    if (errno == EINVAL || errno == ENOSYS) {
        /* A filesystem that does not know this kind of renaming. */
        if (link(from, to) == 0) {
            unlink(from);
            return 0;
        }
    }
    return errno;
}

static void sync_folder(const char *folder) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd); /* only matters if the power fails within seconds; then the file is made again */
        close(fd);
    }
}

/*
 * Makes an empty file under another name and publishes it when its descriptor is closed: closing a
 * descriptor of the database drops the POSIX locks of every connection of this process, so none of ours may
 * ever be open on a file that somebody can already see. 0, or an errno.
 */
static int make_file(const char *folder, const char *path) {
    char draft[PATH_MAX];
    if (snprintf(draft, sizeof draft, "%s.new-XXXXXX", path) >= (int)sizeof draft) {
        return ENAMETOOLONG;
    }
    int fd = mkostemp(draft, O_CLOEXEC); /* mode 0600 */
    if (fd < 0) {
        return errno;
    }
    (void)fsync(fd);
    close(fd);
    int error = publish(draft, path);
    if (error != 0) {
        unlink(draft);
    } else {
        sync_folder(folder);
    }
    return error;
}

static dl_status_t cannot_make(int error, const char *path, dl_error_t *err) {
    dl_status_t status = error == EACCES || error == EPERM    ? DL_EAUTH
                         : error == EMFILE || error == ENFILE ? DL_ELIMIT
                                                              : DL_EIO;
    return dl_driver_fail(err, status, error, "cannot make the lock file %s: %s", path, strerror(error));
}

/* The file is there, or is made. `path` is its path with a resolved folder. */
static dl_status_t find_or_make(const char *folder, const char *path, bool create, bool *made,
                                dl_error_t *err) {
    struct stat file;
    char type[64];
    dl_status_t status = dli_place_local(folder, type, sizeof type, err);
    if (status == DL_OK && stat(path, &file) != 0) {
        if (errno != ENOENT) {
            return cannot_make(errno, path, err);
        }
        if (!create) {
            return dl_driver_fail(err, DL_ECONFIG, ENOENT,
                                  "the lock file is missing and `create` is off (dlock init makes it): %s",
                                  path);
        }
        int error = make_file(folder, path);
        if (error != 0 && error != EEXIST) {
            return cannot_make(error, path, err);
        }
        *made = error == 0;
        if (stat(path, &file) != 0) {
            return cannot_make(errno, path, err); /* such as a link that leads nowhere */
        }
    }
    if (status == DL_OK && !S_ISREG(file.st_mode)) {
        return dl_driver_fail(err, DL_ECONFIG, 0,
                              "the path of the lock file names something that is no file: %s", path);
    }
    return status;
}

dl_status_t dli_place_provide(const char *option, bool create, char **path, bool *made, dl_error_t *err) {
    char named[PATH_LIMIT + 1], folder[PATH_MAX], file[PATH_MAX + PATH_LIMIT + 2], type[64];
    const char *name;
    *made = false;
    *path = NULL;
    dl_status_t status = dli_place_name(option, named, sizeof named, err);
    if (status != DL_OK) {
        return status;
    }
    if (create && (option == NULL || option[0] == '\0')) {
        make_folders(named);
    }
    status = split(named, folder, &name, err);
    if (status != DL_OK) {
        return status;
    }
    snprintf(file, sizeof file, "%s/%s", strcmp(folder, "/") == 0 ? "" : folder, name);
    status = find_or_make(folder, file, create, made, err);
    if (status != DL_OK) {
        return status;
    }
    *path = realpath(file, NULL);
    if (*path == NULL) {
        return cannot_make(errno, file, err);
    }
    if (strlen(*path) > PATH_LIMIT) {
        return dl_driver_fail(err, DL_ECONFIG, ENAMETOOLONG,
                              "the path of the lock file is longer than %d bytes", PATH_LIMIT);
    }
    /* A link may have led to another filesystem. */
    return dli_place_local(*path, type, sizeof type, err);
}
