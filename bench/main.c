/* main.c - runs the measurements that are named, or all. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#ifdef DLOCK_BENCH_MYSQL
#include "mysql_floor.h"
#endif
#ifdef DLOCK_BENCH_REDIS
#include "redis.h"
#endif

static const struct {
    const char *name;
    void (*run)(const char *folder, unsigned scale);
} benches[] = {
    {"pair", bench_pair},
    {"handoff", bench_handoff},
    {"crowd", bench_crowd},
    {"crowd-passing", bench_crowd_passing},
    {"many", bench_many},
    {"queue-pair", bench_queue_pair},
    {"queue-scale", bench_queue_scale},
#ifdef DLOCK_BENCH_REDIS
    {"redis-pair", bench_redis_pair},
    {"redis-handoff", bench_redis_handoff},
    {"redis-crowd", bench_redis_crowd},
    {"redis-crowd-passing", bench_redis_crowd_passing},
    {"redis-crowd-turns", bench_redis_crowd_turns},
    {"redis-many", bench_redis_many},
    {"redis-threads", bench_redis_threads},
    {"redis-behind", bench_redis_behind},
    {"redis-queue-pair", bench_redis_queue_pair},
    {"redis-queue-scale", bench_redis_queue_scale},
    {"redlock-pair", bench_redlock_pair},
    {"redlock-crowd", bench_redlock_crowd},
#endif
#ifdef DLOCK_BENCH_MYSQL
    {"mysql-pair", bench_mysql_pair},
    {"mysql-many", bench_mysql_many},
    {"mysql-queue-scale", bench_mysql_queue_scale},
    {"mysql-wake", bench_mysql_wake},
    {"mysql-crowd", bench_mysql_crowd},
    {"mysql-crowd-passing", bench_mysql_crowd_passing},
#endif
};

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static int is_known(const char *name) {
    for (size_t i = 0; i < sizeof benches / sizeof benches[0]; i++) {
        if (strcmp(name, benches[i].name) == 0) {
            return 1;
        }
    }
    return 0;
}

static int usage(void) {
    fprintf(stderr, "usage: dlock_bench [--scale N]");
    for (size_t i = 0; i < sizeof benches / sizeof benches[0]; i++) {
        fprintf(stderr, " [%s]", benches[i].name);
    }
    fprintf(stderr, "\n");
    return 64;
}

int main(int argc, char **argv) {
    unsigned scale = 1;
    int first = 1;
    if (argc > 2 && strcmp(argv[1], "--scale") == 0) {
        scale = (unsigned)strtoul(argv[2], NULL, 10);
        first = 3;
    }
    for (int i = first; i < argc; i++) {
        if (!is_known(argv[i])) {
            return usage();
        }
    }
    const char *base = getenv("TMPDIR");
    char folder[4096];
    (void)snprintf(folder, sizeof folder, "%s/dlock-bench-XXXXXX", base != NULL ? base : "/tmp");
    if (scale == 0 || mkdtemp(folder) == NULL) {
        die("no folder to measure in, or a scale of 0", NULL);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t k = 0; k < sizeof benches / sizeof benches[0]; k++) {
        int wanted = argc <= first;
        for (int i = first; i < argc; i++) {
            wanted |= strcmp(argv[i], benches[k].name) == 0;
        }
        if (wanted) {
            benches[k].run(folder, scale);
        }
    }
    (void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}
