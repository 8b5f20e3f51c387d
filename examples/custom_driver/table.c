/* table.c - reads and writes the file of locks; knows nothing of leases and owners. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define MAGIC "dlock file table"

/* Every piece has the size of a record and is written in one call, which a killed process completes or never
 * begins: so no reader sees half of one. */
static int read_at(int fd, size_t index, void *piece, size_t size) {
    ssize_t n = pread(fd, piece, size, (off_t)(index * sizeof(table_record_t)));

    if (n < 0)
        return errno;
    return (size_t)n == size ? 0 : ENOENT;
}

static int write_at(int fd, size_t index, const void *piece, size_t size) {
    ssize_t n = pwrite(fd, piece, size, (off_t)(index * sizeof(table_record_t)));

    if (n < 0)
        return errno;
    return (size_t)n == size ? 0 : ENOSPC;
}

int table_read_header(int fd, table_header_t *header) {
    int failed = read_at(fd, 0, header, sizeof *header);

    if (failed == 0 && memcmp(header->magic, MAGIC, sizeof header->magic) != 0)
        failed = EINVAL;
    return failed;
}

int table_write_header(int fd, const table_header_t *header) {
    return write_at(fd, 0, header, sizeof *header);
}

int table_read(int fd, size_t index, table_record_t *record) {
    int failed = read_at(fd, index + 1, record, sizeof *record);

    /* Whatever stands in the file, texts end. */
    record->name[sizeof record->name - 1] = '\0';
    record->owner[sizeof record->owner - 1] = '\0';
    record->client[sizeof record->client - 1] = '\0';
    return failed;
}

int table_write(int fd, size_t index, const table_record_t *record) {
    return write_at(fd, index + 1, record, sizeof *record);
}

int table_find(int fd, const char *name, size_t name_len, size_t *index, table_record_t *record) {
    size_t free_at = SIZE_MAX;

    for (size_t i = 0;; i++) {
        int failed = table_read(fd, i, record);
        if (failed == ENOENT) {
            *index = free_at == SIZE_MAX ? i : free_at;
            memset(record, 0, sizeof *record);
            return 0;
        }
        if (failed)
            return failed;
        if (record->name_len == name_len && memcmp(record->name, name, name_len) == 0) {
            *index = i;
            return 0;
        }
        if (record->name_len == 0 && free_at == SIZE_MAX)
            free_at = i;
    }
}

/* Brings the header up to date: a new file gets one, a restart of the machine empties the table. */
static int prepare(int fd, const char *boot_id) {
    table_header_t header;
    off_t size = lseek(fd, 0, SEEK_END);
    int failed = size > 0 ? table_read_header(fd, &header) : 0;

    if (failed || size < 0)
        return failed == ENOENT ? EINVAL : failed ? failed : errno;
    if (size > 0 && strncmp(header.boot_id, boot_id, sizeof header.boot_id) == 0)
        return 0;
    if (size == 0) {
        memset(&header, 0, sizeof header);
        memcpy(header.magic, MAGIC, sizeof header.magic);
    }
    /* The records go first: a crash in between leaves the old boot id, and this is done again. */
    if (size > (off_t)sizeof(table_record_t) && ftruncate(fd, (off_t)sizeof(table_record_t)) != 0)
        return errno;
    strncpy(header.boot_id, boot_id, sizeof header.boot_id - 1);
    return table_write_header(fd, &header);
}

void table_end(int fd) {
    /* A child that was forked just now may hold a copy of the descriptor: closing ours would not unlock. */
    flock(fd, LOCK_UN);
    close(fd);
}

int table_begin(const char *path, const char *boot_id, const table_patience_t *patience) {
    /* A descriptor of its own for each call: flock then also keeps the threads of one process apart. */
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int failed = fd < 0 ? errno : 0;

    while (!failed && flock(fd, LOCK_EX | LOCK_NB) != 0)
        failed = errno == EWOULDBLOCK ? patience->pause(patience->arg) : errno == EINTR ? 0 : errno;
    if (!failed)
        failed = prepare(fd, boot_id);
    if (failed && fd >= 0)
        table_end(fd);
    errno = failed;
    return failed ? -1 : fd;
}
