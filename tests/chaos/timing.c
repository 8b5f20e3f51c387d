/* timing.c - do calls end when they have to? What the machine took away meanwhile is not theirs. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>

#include "chaos.h"

#define TICK_MS 2
#define PROMISED_MS 100 /* past a call's own end */
#define OWN_MS 5        /* reading the clock around it and the like */

static pthread_t ticker;
/* Time in which this process did not run although it should have: it was stopped, or others had the
 * processors. */
static _Atomic uint64_t stolen_ns;
/* What was stolen before this instant is in stolen_ns. */
static _Atomic uint64_t looked_ns;
static atomic_bool stop_ticking;

static void *tick(void *arg) {
    (void)arg;
    uint64_t last = chaos_now_ns();
    while (!atomic_load(&stop_ticking)) {
        chaos_sleep_ms(TICK_MS);
        uint64_t now = chaos_now_ns(), took = now - last;
        last = now;
        if (took > TICK_MS * CHAOS_NS_PER_MS) {
            atomic_fetch_add(&stolen_ns, took - TICK_MS * CHAOS_NS_PER_MS);
        }
        atomic_store(&looked_ns, now);
    }
    return NULL;
}

/* How long the threads of this process, those of the library included, have waited for a processor. One that
 * was stopped did not wait. */
static uint64_t queued_ns(void) {
    uint64_t sum = 0;
    DIR *dir = opendir("/proc/self/task");
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char path[300];
        unsigned long long ran, queued;
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", entry->d_name);
        FILE *file = entry->d_name[0] != '.' ? fopen(path, "re") : NULL;
        if (file != NULL) {
            sum += fscanf(file, "%llu %llu", &ran, &queued) == 2 ? queued : 0;
            fclose(file);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return sum;
}

chaos_timing_t chaos_begin_timing(void) {
    uint64_t queued = queued_ns();
    return (chaos_timing_t){chaos_now_ns(), atomic_load(&stolen_ns), queued};
}

/* What both clocks of theft say, the one that says more. */
static uint64_t stolen_since(const chaos_timing_t *timing) {
    uint64_t stopped = atomic_load(&stolen_ns) - timing->stolen_ns, queued = queued_ns();
    queued = queued > timing->queued_ns ? queued - timing->queued_ns : 0;
    return stopped > queued ? stopped : queued;
}

void chaos_end_timing(const chaos_timing_t *timing, int64_t bound_ms, const char *what, dl_status_t status,
                      const dl_error_t *err) {
    uint64_t now = chaos_now_ns();
    uint64_t end_ns = timing->began_ns + (uint64_t)(bound_ms + OWN_MS) * CHAOS_NS_PER_MS;
    if (now <= end_ns) {
        return;
    }
    /* After a stop the ticker may be the last of all threads that gets a processor. */
    while (atomic_load(&looked_ns) < now) {
        chaos_sleep_ms(TICK_MS);
    }
    uint64_t over_ns = now - end_ns, stolen = stolen_since(timing);
    over_ns = over_ns > stolen ? over_ns - stolen : 0;
    uint64_t longest = atomic_load(&shared->longest_over_ns);
    while (over_ns > longest && !atomic_compare_exchange_weak(&shared->longest_over_ns, &longest, over_ns)) {}
    if (over_ns > PROMISED_MS * CHAOS_NS_PER_MS) {
        chaos_violated("%s of at most %lld ms took %.1f ms (up to %.1f taken away): %s %s", what,
                       (long long)bound_ms, (double)(now - timing->began_ns) / 1e6, (double)stolen / 1e6,
                       dl_status_name(status), status == DL_OK ? "" : err->message);
    }
}

void chaos_start_ticking(void) {
    if (pthread_create(&ticker, NULL, tick, NULL) != 0) {
        chaos_die("no thread");
    }
}

void chaos_stop_ticking(void) {
    atomic_store(&stop_ticking, true);
    pthread_join(ticker, NULL);
}
