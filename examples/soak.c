/* soak.c - one process, clients on several backends at once, threads that lock and check for long. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dlock/dlock.h"

/*
 * usage: soak CONFIG SECONDS BACKEND...
 *
 * For each backend (8 at most) there are a client, 2 locks and 4 threads. A thread takes a lock in one way
 * or another, adds one to a plain number that the lock guards, and looks: did anybody enter while the lock
 * was valid here? Did the token rise? Was there validity with each DL_OK? Does the number count every
 * addition? The time is divided into 4 rounds, and each opens its clients anew, so that leaks of a client
 * that lives long and leaks that a closed client leaves behind both show in descriptors, threads and memory.
 *
 * Some turns are long holds, of 1.5 renew_every, so that locks are renewed; but none is longer than a quarter
 * of a round. So in less than 24 renew_every (80 s where leases are of 10 s) few are renewed, or none.
 *
 * Prints what each backend did. Exit status: 0 if all was well, 1 after a violation, 2 for a mistake in the
 * call. SIGINT and SIGTERM end it early, with the same account.
 */
#define ROUNDS 4
#define SITES_MAX 8
#define LOCKS 2
#define THREADS 4
#define WAIT_MS 1000
#define LEASE_MS 5000
#define HOLD_US 2000
#define LONG_HOLD_EVERY 2000

/*
 * What may be more at the end than when all was warm, for each backend. With the clients closed: no
 * descriptor and no thread. While they are open, each thread of ours may just then have a connection that it
 * had not at the first look, and so may the client for renewals and for news (redlock asks a node that lags
 * anew before it has answered, over 64 connections at most: here for 3 nodes); one thread of the client may
 * be making a connection, and one be hearing of news. Memory: what these have, and what a client remembers
 * for a while, is less than half of it; a leak of 64 bytes an acquisition passes 1 MiB after 16,384 of them,
 * which is half a minute on a local server.
 */
#define MORE_DESCRIPTORS (THREADS + 2)
#define MORE_DESCRIPTORS_REDLOCK (3 * 64)
#define MORE_THREADS 2
#define MORE_KIB 256
#define MORE_KIB_A_DESCRIPTOR 48

typedef struct guarded {
    char name[32];
    unsigned long entries, number; /* plain: the lock is what guards them */
    uint64_t token;
} guarded_t;

typedef struct site {
    const char *backend;
    dl_client_t *client;
    dl_client_info_t info;
    guarded_t guarded[LOCKS];
    atomic_ulong acquired, added, busy, timed_out, failed, lost, violations;
    atomic_ulong wait_us, longest_us, renewed;
} site_t;

typedef struct worker {
    pthread_t thread;
    site_t *site;
    unsigned seed;
    unsigned long turns;
} worker_t;

typedef struct resources {
    long descriptors, threads, kib;
} resources_t;

static volatile sig_atomic_t interrupted;
static atomic_int round_over;
static long longest_hold_us; /* of this round */

static void interrupt(int signal) {
    (void)signal;
    interrupted = 1;
}

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static void sleep_us(long us) {
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

/* So long, or until the round is over. */
static void stay_us(long us) {
    int64_t end_us = now_us() + us;
    for (int64_t left = us; left > 0 && !round_over && !interrupted; left = end_us - now_us())
        sleep_us(left < 50000 ? (long)left : 50000);
}

static void violation(site_t *site, const char *lock, const char *what) {
    fprintf(stderr, "soak: VIOLATION on %s, lock %s: %s\n", site->backend, lock, what);
    site->violations++;
}

/* ---- one thread -------------------------------------------------------------------------------- */

/* What may happen while servers come and go is counted; anything else is a mistake of somebody's. */
static void count_outcome(site_t *site, const char *lock, dl_status_t status, const dl_error_t *err) {
    switch (status) {
    case DL_OK:
        break;
    case DL_EBUSY:
        site->busy++;
        break;
    case DL_ETIMEDOUT:
        site->timed_out++;
        break;
    case DL_ELOST:
        site->lost++;
        break;
    case DL_EIO:
    case DL_EUNKNOWN:
        site->failed++;
        break;
    default:
        violation(site, lock, err->message);
    }
}

static dl_status_t take(dl_lock_t *lock, unsigned way, dl_error_t *err) {
    switch (way % 4) {
    case 0:
        return dl_trylock(lock, err);
    case 1:
        return dl_trylock_for(lock, WAIT_MS, LEASE_MS, err);
    default:
        return dl_trylock_for(lock, WAIT_MS, DL_LEASE_AUTO, err);
    }
}

/* Now and then a holder enters again, asks for more time, or asks the server. */
static void do_more(site_t *site, dl_lock_t *lock, const char *name, unsigned way) {
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    dl_error_t err;
    if (way % 16 == 4) {
        dl_status_t status = dl_trylock(lock, &err);
        count_outcome(site, name, status, &err);
        if (status == DL_OK)
            count_outcome(site, name, dl_unlock(lock, &err), &err);
    } else if (way % 16 == 5) {
        count_outcome(site, name, dl_extend(lock, 2 * LEASE_MS, &err), &err);
    } else if (way % 16 == 6) {
        dl_status_t status = dl_inspect(lock, &info, &err);
        count_outcome(site, name, status, &err);
        if (status == DL_OK && !info.ours && dl_valid_ms(lock) > 0)
            violation(site, name, "the server says that another holds a lock that is valid here");
    }
}

static void work_as_holder(site_t *site, dl_lock_t *lock, guarded_t *guarded, unsigned way, long hold_us) {
    unsigned long entry = ++guarded->entries, number = guarded->number;
    uint64_t token = dl_token(lock);
    if ((site->info.caps & DL_CAP_FENCE) != 0 && token <= guarded->token)
        violation(site, guarded->name, "the token did not rise");
    guarded->token = token;
    do_more(site, lock, guarded->name, way);
    stay_us(hold_us);
    if (dl_valid_ms(lock) == 0)
        return; /* The lock was lost: it guards nothing any more. The unlock counts it. */
    guarded->number = number + 1;
    site->added++;
    if (guarded->entries != entry && dl_valid_ms(lock) > 0)
        violation(site, guarded->name, "another entered while the lock was valid here");
}

static void one_turn(worker_t *worker) {
    site_t *site = worker->site;
    unsigned way = (unsigned)rand_r(&worker->seed);
    long hold_us = (long)(way / 16 % HOLD_US);
    if (worker->turns++ % LONG_HOLD_EVERY == 0) {
        /* Long enough to be renewed, by a way that has renewals. */
        way |= 3;
        hold_us = (long)site->info.renew_every_ms * 1500;
        hold_us = hold_us < longest_hold_us ? hold_us : longest_hold_us;
    }
    guarded_t *guarded = &site->guarded[way / 4 % LOCKS];
    dl_lock_t *lock;
    dl_error_t err;
    if (dl_lock_open(site->client, guarded->name, &lock, &err) != DL_OK) {
        violation(site, guarded->name, err.message);
        return;
    }
    int64_t began = now_us();
    dl_status_t status = take(lock, way, &err);
    count_outcome(site, guarded->name, status, &err);
    if (status == DL_OK) {
        unsigned long took = (unsigned long)(now_us() - began);
        if (dl_valid_ms(lock) == 0)
            violation(site, guarded->name, "DL_OK without validity");
        site->acquired++;
        site->wait_us += took;
        if (took > site->longest_us)
            site->longest_us = took; /* nearly: it is for people */
        work_as_holder(site, lock, guarded, way, hold_us);
        count_outcome(site, guarded->name, dl_unlock(lock, &err), &err);
    } else if (status == DL_EIO || status == DL_EUNKNOWN) {
        sleep_us(10000); /* a server that refuses at once is not asked at full speed */
    }
    if (dl_hold_count(lock) != 0)
        violation(site, guarded->name, "still held after the unlock");
    dl_lock_close(lock);
}

static void *work(void *arg) {
    worker_t *worker = arg;
    while (!round_over)
        one_turn(worker);
    return NULL;
}

/* ---- what the process uses ------------------------------------------------------------------------ */

static long entries_of(const char *path) {
    long count = -2; /* . and .. */
    DIR *dir = opendir(path);
    if (dir == NULL) {
        perror(path);
        exit(2);
    }
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* What is allocated. The process has more: the C library keeps what was freed, in an arena for every few
 * threads, and how much of it depends on which of them met. */
static long allocated_kib(void) {
    struct mallinfo2 info = mallinfo2();
    return (long)((info.uordblks + info.hblkhd) / 1024);
}

static resources_t look(const char *when) {
    resources_t r = {entries_of("/proc/self/fd") - 1, entries_of("/proc/self/task"), allocated_kib()};
    printf("%-24s %3ld descriptors, %3ld threads, %6ld KiB\n", when, r.descriptors, r.threads, r.kib);
    fflush(stdout);
    return r;
}

static int grew(const char *what, long was, long is, long more) {
    if (is <= was + more)
        return 0;
    fprintf(stderr, "soak: VIOLATION: %s grew from %ld to %ld, more than %ld\n", what, was, is, more);
    return 1;
}

/* `sites`: those whose clients are open. */
static int compare(resources_t was, resources_t is, const site_t *sites, int count) {
    long more = 0, opened = is.descriptors > was.descriptors ? is.descriptors - was.descriptors : 0;
    for (int i = 0; i < count; i++)
        more += strcmp(sites[i].info.driver, "redlock") == 0 ? MORE_DESCRIPTORS_REDLOCK : MORE_DESCRIPTORS;
    return grew("descriptors", was.descriptors, is.descriptors, more) +
           grew("threads", was.threads, is.threads, count * MORE_THREADS) +
           grew("memory in KiB", was.kib, is.kib, MORE_KIB + opened * MORE_KIB_A_DESCRIPTOR);
}

/* ---- rounds ------------------------------------------------------------------------------------ */

static void wait_until(int64_t end_us) {
    while (!interrupted && now_us() < end_us) {
        int64_t left = end_us - now_us();
        if (left > 0)
            sleep_us(left < 100000 ? (long)left : 100000);
    }
}

static int open_clients(const char *config, site_t *sites, int count) {
    for (int i = 0; i < count; i++) {
        dl_error_t err;
        sites[i].info = (dl_client_info_t)DL_CLIENT_INFO_INIT;
        if (dl_client_open(config, sites[i].backend, &sites[i].client, &err) != DL_OK ||
            dl_client_info(sites[i].client, &sites[i].info) != DL_OK) {
            fprintf(stderr, "soak: %s: %s\n", sites[i].backend, err.message);
            return -1;
        }
    }
    return 0;
}

static void close_clients(site_t *sites, int count) {
    for (int i = 0; i < count; i++) {
        dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
        if (sites[i].client != NULL && dl_client_stats(sites[i].client, &stats) == DL_OK)
            sites[i].renewed += stats.renewed;
        dl_client_close(sites[i].client);
        sites[i].client = NULL;
    }
}

/* One round of `us`. Returns how many resources grew while the clients were open, or -1. */
static int run_round(const char *config, site_t *sites, int count, int64_t us) {
    worker_t workers[SITES_MAX * THREADS];
    int64_t began = now_us();
    int running = 0, leaks = -1;
    round_over = 0;
    longest_hold_us = (long)(us / 4);
    if (open_clients(config, sites, count) == 0) {
        for (; running < count * THREADS; running++) {
            workers[running] =
                (worker_t){.site = &sites[running / THREADS], .seed = (unsigned)(began + running)};
            if (pthread_create(&workers[running].thread, NULL, work, &workers[running]) != 0)
                break;
        }
        wait_until(began + us / 4);
        resources_t warm = look("  a quarter of the round");
        wait_until(began + us);
        leaks = compare(warm, look("  the end of the round"), sites, count);
    }
    round_over = 1;
    for (int i = 0; i < running; i++)
        pthread_join(workers[i].thread, NULL);
    close_clients(sites, count);
    return running == count * THREADS ? leaks : -1;
}

/* ---- the account ------------------------------------------------------------------------------- */

static int account_for(site_t *site, double seconds) {
    unsigned long number = 0, acquired = site->acquired;
    for (int i = 0; i < LOCKS; i++)
        number += site->guarded[i].number;
    /* A holder that loses its lock between its last look and its addition may spoil another's. */
    if (site->lost == 0 && number != site->added)
        violation(site, "all", "additions are missing");
    if (acquired == 0)
        violation(site, "all", "it was never taken");
    printf("%s (%s): %lu acquisitions, %.0f/s, wait %.2f ms, at most %.2f ms; renewed %lu time%s\n",
           site->backend, site->info.driver, acquired, (double)acquired / seconds,
           acquired > 0 ? (double)site->wait_us / 1000.0 / (double)acquired : 0,
           (double)site->longest_us / 1000.0, site->renewed, site->renewed == 1 ? "" : "s");
    printf("  busy %lu, timed out %lu, unreachable or unknown %lu, lost %lu, violations %lu\n", site->busy,
           site->timed_out, site->failed, site->lost, site->violations);
    return site->violations > 0;
}

int main(int argc, char **argv) {
    static site_t sites[SITES_MAX];
    int count = argc - 3, leaks = 0, failed = 0, rounds = 0;
    long seconds = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
    resources_t first = {0, 0, 0}, last = first;
    if (count < 1 || count > SITES_MAX || seconds < 1) {
        fprintf(stderr, "usage: %s CONFIG SECONDS BACKEND...\n", argv[0]);
        return 2;
    }
    for (int i = 0; i < count; i++) {
        sites[i].backend = argv[3 + i];
        for (int j = 0; j < LOCKS; j++)
            snprintf(sites[i].guarded[j].name, sizeof sites[i].guarded[j].name, "soak/%d", j);
    }
    sigaction(SIGINT, &(struct sigaction){.sa_handler = interrupt}, NULL);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = interrupt}, NULL);
    look("at the begin");
    int64_t began = now_us();
    for (; rounds < ROUNDS && !interrupted; rounds++) {
        int grown = run_round(argv[1], sites, count, seconds * 1000000LL / ROUNDS);
        if (grown < 0)
            return 2;
        leaks += grown;
        last = look("clients closed");
        first = rounds == 0 ? last : first;
    }
    double took = (double)(now_us() - began) / 1e6;
    leaks += compare(first, last, NULL, 0);
    for (int i = 0; i < count; i++)
        failed |= account_for(&sites[i], took);
    printf("%d round%s in %.1f s: %s\n", rounds, rounds == 1 ? "" : "s", took,
           failed || leaks > 0 ? "VIOLATIONS" : "all was well");
    return failed || leaks > 0;
}
