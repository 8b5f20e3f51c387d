/* chaos.h - what the processes of the chaos share: the log of holds, the settings, and the verdicts. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAOS_H
#define CHAOS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dlock/dlock.h"

#define CHAOS_NS_PER_MS ((uint64_t)1000000)
#define CHAOS_STATUSES 18
#define CHAOS_WIPES_MAX 4096
#define CHAOS_PROCESSES_MAX 16
#define CHAOS_THREADS_MAX 128
#define CHAOS_NAMES_MAX 256
#define CHAOS_LONGEST_LEASE_MS 2000
#define CHAOS_LONGEST_PAUSE_MS 1000 /* between two frees in the background */

/* One hold, as its holder knows it. Every part of it is claimed by dl_valid_ms alone. */
typedef struct chaos_hold {
    uint32_t name, who;
    atomic_bool is_claimed; /* the rest counts */
    uint64_t token;
    uint64_t asked_ns;         /* before the server gave it */
    uint64_t enter_ns;         /* dl_valid_ms was above 0 at or after this instant */
    _Atomic uint64_t until_ns; /* may act as the holder at least until here */
} chaos_hold_t;

/* The server lost its data between these instants; to_ns is 0 while it goes on. */
typedef struct chaos_wipe {
    _Atomic uint64_t from_ns, to_ns;
} chaos_wipe_t;

typedef enum chaos_op { CHAOS_ACQUIRE, CHAOS_REENTER, CHAOS_EXTEND, CHAOS_UNLOCK, CHAOS_OPS } chaos_op_t;

/* In memory that all processes share. */
typedef struct chaos_shared {
    atomic_bool is_over;     /* no new disturbances: the workers end their loops */
    atomic_int opened;       /* processes whose clients are there */
    atomic_int looped;       /* processes whose threads have all left their loops */
    atomic_bool may_inspect; /* all have */
    atomic_int idle;         /* processes that have looked at every lock and are quiet */
    atomic_bool may_close;
    atomic_ulong violations;
    atomic_ulong outcomes[CHAOS_OPS][CHAOS_STATUSES];
    _Atomic uint64_t
        longest_over_ns; /* a call past its promised end, what the machine took away not counted */
    atomic_ulong losses, unknown, frees, reconnects;
    atomic_uint wipe_count;
    chaos_wipe_t wipes[CHAOS_WIPES_MAX];
    atomic_ulong hold_count;
    size_t hold_room;
    chaos_hold_t holds[];
} chaos_shared_t;

typedef struct chaos_settings {
    int seconds, processes, threads, names;
    uint64_t seed;
    bool wipes, stops, forks, verbose;
    int64_t lease_ms, call_timeout_ms;
    int64_t freeze_ms; /* so long the server stands still; 0: drawn each time */
} chaos_settings_t;

extern chaos_settings_t chaos;
extern chaos_shared_t *shared;

/* ---- common.c --------------------------------------------------------------------------------------- */

uint64_t chaos_now_ns(void);
void chaos_sleep_ms(int64_t ms);
uint64_t chaos_draw(uint64_t *random, uint64_t bound);
/* Prints a line and counts it; the verdict is bad. */
void chaos_violated(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The program itself does not work here. */
void chaos_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Looks for up to within_ms; false: it did not come true. */
bool chaos_await_int(const atomic_int *number, int at_least, int64_t within_ms);
/* Of the command line; another ends the program. */
int chaos_number(const char *text, int min, int max);
void chaos_make_dir(char *dir, size_t size);

/* ---- record.c --------------------------------------------------------------------------------------- */

void chaos_make_shared(void);
/* Has the server lost its data, or was it losing it, between the two instants? */
bool chaos_was_wiped(uint64_t from_ns, uint64_t to_ns);
/* NULL: no room is left. */
chaos_hold_t *chaos_hold_new(void);
/* After everything: does any hold overlap another, is any token not larger than the one before? */
void chaos_judge_holds(void);

/* ---- timing.c --------------------------------------------------------------------------------------- */

typedef struct chaos_timing {
    uint64_t began_ns, stolen_ns, queued_ns;
} chaos_timing_t;

/* A thread that notices when this process is stopped, or does not get a processor. */
void chaos_start_ticking(void);
void chaos_stop_ticking(void);
chaos_timing_t chaos_begin_timing(void);
/* The call is over, which had to be by bound_ms and the promised 100 ms. */
void chaos_end_timing(const chaos_timing_t *timing, int64_t bound_ms, const char *what, dl_status_t status,
                      const dl_error_t *err);

/* ---- worker.c --------------------------------------------------------------------------------------- */

/* A process of threads that lock. `url` for both of its clients. Returns its exit status. */
int chaos_work(int number, const char *url);

#endif
