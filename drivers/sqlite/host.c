/* host.c - what the kernel says about this host: its boot, its clock, who holds a file lock. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define BOOT_FOLDER "/proc/sys/kernel/random"
#define BOOT_ID BOOT_FOLDER "/boot_id"

const char *dli_sqlite_boot_for_test;

/* A process without descriptors is no host without /proc. */
static dl_status_t unreadable(int reason) {
    return reason == EMFILE || reason == ENFILE || reason == ENOMEM ? DL_ELIMIT : DL_ENOTSUP;
}

static dl_status_t read_boot(char *boot, size_t size, dl_error_t *err) {
    boot[0] = '\0';
    if (dli_sqlite_boot_for_test != NULL) {
        strncat(boot, dli_sqlite_boot_for_test, size - 1);
        return DL_OK;
    }
    FILE *file = fopen(BOOT_ID, "re");
    int reason = file == NULL ? errno : ENODATA;
    if (file != NULL) {
        if (fgets(boot, (int)size, file) == NULL) {
            boot[0] = '\0';
        }
        fclose(file);
    }
    boot[strcspn(boot, "\n")] = '\0';
    if (boot[0] == '\0') {
        return dl_driver_fail(err, unreadable(reason), reason,
                              "cannot tell this boot from the next: " BOOT_ID ": %s", strerror(reason));
    }
    return DL_OK;
}

/*
 * A time namespace shifts CLOCK_BOOTTIME by a constant, which cannot change once a process is inside. With
 * it taken off, all namespaces of the host count alike, and a holder in a container is not taken for
 * expired.
 */
static dl_status_t read_offset(int64_t *offset_ns, dl_error_t *err) {
    char ours[64] = "", children[64] = "";
    *offset_ns = 0;
    if (readlink("/proc/self/ns/time", ours, sizeof ours - 1) < 0) {
        return DL_OK; /* a kernel without them */
    }
    /* The offsets that can be read are those of our future children. */
    if (readlink("/proc/self/ns/time_for_children", children, sizeof children - 1) < 0 ||
        strcmp(ours, children) != 0) {
        return dl_driver_fail(
            err, DL_ENOTSUP, 0,
            "this process has left its time namespace for its children only, so that its clock"
            " cannot be compared with others'");
    }
    FILE *file = fopen("/proc/self/timens_offsets", "re");
    if (file == NULL) {
        int reason = errno;
        return dl_driver_fail(err, unreadable(reason), reason, "/proc/self/timens_offsets: %s",
                              strerror(reason));
    }
    char line[128];
    while (fgets(line, sizeof line, file) != NULL) {
        int64_t seconds, nanoseconds;
        if (sscanf(line, "boottime %" SCNd64 " %" SCNd64, &seconds, &nanoseconds) == 2) {
            *offset_ns = seconds * 1000000000 + nanoseconds;
        }
    }
    fclose(file);
    return DL_OK;
}

dl_status_t dli_host_identify(char *boot, size_t size, int64_t *offset_ns, dl_error_t *err) {
    dl_status_t status = read_boot(boot, size, err);
    return status == DL_OK ? read_offset(offset_ns, err) : status;
}

bool dli_host_own_boot(void) {
    struct statx folder, id;
    return statx(AT_FDCWD, BOOT_FOLDER, 0, STATX_MNT_ID, &folder) == 0 &&
           statx(AT_FDCWD, BOOT_ID, 0, STATX_MNT_ID, &id) == 0 &&
           (folder.stx_mask & id.stx_mask & STATX_MNT_ID) != 0 && folder.stx_mnt_id != id.stx_mnt_id;
}

/* Reading /proc/locks makes every lock of the host wait for the kernel's readers for some milliseconds, far
 * more on a busy machine. So only an administrator's question leads here, never a failing call. */

/* The byte of the shared memory file that stands for the right to write, by SQLite's published WAL format. */
#define WRITE_LOCK_BYTE 120

long dli_host_writer(const char *path) {
    char name[PATH_MAX];
    struct stat shm;
    if (snprintf(name, sizeof name, "%s-shm", path) >= (int)sizeof name || stat(name, &shm) != 0) {
        return 0;
    }
    FILE *file = fopen("/proc/locks", "re");
    if (file == NULL) {
        return 0;
    }
    char line[256];
    long found = 0;
    while (found == 0 && fgets(line, sizeof line, file) != NULL) {
        long pid;
        unsigned major_number, minor_number;
        uint64_t inode, first;
        if (sscanf(line, "%*s POSIX ADVISORY WRITE %ld %x:%x:%" SCNu64 " %" SCNu64, &pid, &major_number,
                   &minor_number, &inode, &first) == 5 &&
            inode == shm.st_ino && makedev(major_number, minor_number) == shm.st_dev &&
            first == WRITE_LOCK_BYTE) {
            found = pid;
        }
    }
    fclose(file);
    return found > 0 ? found : 0;
}
