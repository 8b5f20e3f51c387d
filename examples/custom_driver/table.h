/* table.h - the file behind the driver: a header, then an array of records, one a lock. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TABLE_H
#define TABLE_H

#include <stddef.h>
#include <stdint.h>

#define TABLE_BOOT_ID_MAX 40

/* The first record of the file. */
typedef struct table_header {
    char magic[16];
    char boot_id[TABLE_BOOT_ID_MAX]; /* instants in the file are those of this boot */
    uint64_t token;                  /* the highest that was given out */
} table_header_t;

/* One lock. A record whose name_len is 0 is free for any name. */
typedef struct table_record {
    uint32_t name_len;
    char name[256];
    char owner[96];
    char client[64];
    uint64_t hold_id;
    uint64_t token;
    uint64_t ends_ns; /* CLOCK_BOOTTIME */
} table_record_t;

/* How long the file may be waited for. The table never sleeps on its own: `pause` does, for about 1 ms. */
typedef struct table_patience {
    int (*pause)(void *arg); /* 0: try again; else an errno to give up with */
    void *arg;
} table_patience_t;

/* Opens the file at `path`, creating it if there is none, and locks it for this caller alone: against other
 * processes and other threads. If the machine has restarted since the last time, all records are cleared
 * first. The descriptor, or -1 with errno (EINVAL: the file is something else). */
int table_begin(const char *path, const char *boot_id, const table_patience_t *patience);
/* Unlocks and closes. */
void table_end(int fd);

/* All of these return 0, or an errno. */
int table_read_header(int fd, table_header_t *header);
int table_write_header(int fd, const table_header_t *header);
/* Finds the record of `name`. *index is its place, or that of a free record if there is none (then
 * record->name_len is 0). */
int table_find(int fd, const char *name, size_t name_len, size_t *index, table_record_t *record);
/* ENOENT past the end. */
int table_read(int fd, size_t index, table_record_t *record);
int table_write(int fd, size_t index, const table_record_t *record);

#endif
