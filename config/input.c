/* input.c - reading a file that somebody else wrote: regular files only, bounded, never waiting. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static dl_status_t refuse(dli_input_fault_t *fault, const char *why) {
    fault->native = 0;
    snprintf(fault->why, sizeof fault->why, "%s", why);
    return DL_ECONFIG;
}

static dl_status_t refuse_errno(dli_input_fault_t *fault, const char *what, int code) {
    char text[64];
    fault->native = code;
    snprintf(fault->why, sizeof fault->why, "%s: %s", what, strerror_r(code, text, sizeof text));
    if (code == ENOMEM) {
        return DL_ENOMEM;
    }
    return code == EMFILE || code == ENFILE ? DL_ELIMIT : DL_ECONFIG;
}

/* Without O_NONBLOCK the open of a FIFO would wait for a writer. */
static dl_status_t open_regular(const char *path, int *fd, dli_input_fault_t *fault) {
    struct stat info;
    int opened;
    do {
        opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    } while (opened < 0 && errno == EINTR);
    if (opened < 0) {
        /* How opening a socket fails. */
        return errno == ENXIO ? refuse(fault, "is not a regular file")
                              : refuse_errno(fault, "cannot be opened", errno);
    }
    if (fstat(opened, &info) != 0) {
        dl_status_t status = refuse_errno(fault, "cannot be examined", errno);
        close(opened);
        return status;
    }
    if (!S_ISREG(info.st_mode)) {
        close(opened);
        return refuse(fault, S_ISDIR(info.st_mode) ? "is a directory" : "is not a regular file");
    }
    *fd = opened;
    return DL_OK;
}

/* Reads to the end or until `room` is full. The size that fstat told is not relied on: files of /proc have
 * none. */
static int read_all(int fd, char *data, size_t room, size_t *len) {
    *len = 0;
    while (*len < room) {
        ssize_t n = read(fd, data + *len, room - *len);
        if (n == 0) {
            return 0;
        }
        if (n < 0 && errno != EINTR) {
            return -1;
        }
        *len += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

dl_status_t dli_input_read(const char *path, size_t limit, dli_input_t *input, dli_input_fault_t *fault) {
    int fd = -1;
    memset(input, 0, sizeof *input);
    dl_status_t status = open_regular(path, &fd, fault);
    if (status != DL_OK) {
        return status;
    }
    /* One byte more than allowed tells a file that is too large from one that just fits. */
    char *data = malloc(limit + 1);
    if (data == NULL) {
        status = refuse_errno(fault, "cannot be read", ENOMEM);
    } else if (read_all(fd, data, limit + 1, &input->len) != 0) {
        status = refuse_errno(fault, "cannot be read", errno);
    } else if (input->len > limit) {
        char why[64];
        snprintf(why, sizeof why, "is larger than %zu KiB", limit / 1024);
        status = refuse(fault, why);
    }
    close(fd);
    input->data = data;
    if (status != DL_OK) {
        dli_input_free(input);
    }
    return status;
}

void dli_input_free(dli_input_t *input) {
    if (input->data != NULL) {
        explicit_bzero(input->data, input->len);
        free(input->data);
    }
    memset(input, 0, sizeof *input);
}
