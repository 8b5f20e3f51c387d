/* entries.h - how many descriptors and threads a process has, by counting files of proc(5). */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLOCK_TESTS_ENTRIES_H
#define DLOCK_TESTS_ENTRIES_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

/* What a folder has, itself and its parent not counted. Ends the program if it cannot be read. */
static inline int count_entries(const char *path) {
    int n = 0;
    DIR *folder = opendir(path);
    if (folder == NULL) {
        perror(path);
        abort();
    }
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        n += entry->d_name[0] != '.';
    }
    closedir(folder);
    return n;
}

/* Of this process; the one that counts them is among them each time. */
static inline int open_descriptors(void) {
    return count_entries("/proc/self/fd");
}

static inline int running_threads(void) {
    return count_entries("/proc/self/task");
}

#endif
