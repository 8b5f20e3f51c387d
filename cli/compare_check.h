/* compare_check.h - what the workers note in shared memory, to see whether a lock excludes. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_COMPARE_CHECK_H
#define CLI_COMPARE_CHECK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NO_HANDOFF UINT64_MAX

/*
 * One name, in memory that all processes share. The notes are kept by a mutex of its own, which survives the
 * death of a process; the counter is not: nothing but the lock under test keeps its updates apart.
 */
typedef struct place {
    _Alignas(128) pthread_mutex_t mutex;
    uint64_t entries;        /* how often it was entered; the number of the last entry */
    uint64_t holder;         /* the entry that has not left yet; 0: none */
    uint64_t valid_until_ns; /* of that entry, as it was last told */
    uint64_t overlapped;     /* the last entry during which, though valid, another came in */
    uint64_t token;          /* the largest so far; 0: none */
    uint64_t released_ns;    /* when a hold that others waited for began to end; 0: consumed, or nobody did */
    uint64_t released_by;    /* by which owner */
    uint64_t overlaps, fallen_tokens;
    atomic_int waiting;             /* lock calls in progress */
    atomic_uint_fast64_t completed; /* updates by holds that ended without a loss */
    volatile uint64_t counter;
} place_t;

/* A lock call that has returned with the lock. */
typedef struct grant {
    uint64_t owner;
    uint64_t returned_ns;
    uint64_t valid_until_ns; /* by its own arithmetic; 0: not any more */
    uint64_t token;          /* 0: none */
} grant_t;

/* From place_enter to place_leave. */
typedef struct stay {
    uint64_t owner;
    uint64_t entry;      /* 0: validity was over before it was noted */
    uint64_t handoff_ns; /* from the release that it waited for; or NO_HANDOFF */
} stay_t;

typedef struct violations {
    uint64_t overlaps;      /* holds, valid by their own arithmetic, during which another owner came in */
    uint64_t fallen_tokens; /* tokens not larger than an earlier one of the name */
    uint64_t lost_updates;  /* of the counters */
} violations_t;

/* 0 or an errno. The memory is zero before. */
int place_begin(place_t *place);
void place_enter(place_t *place, const grant_t *grant, stay_t *stay);
/* From time to time during a long hold, which renewals make valid for longer. */
void place_stay(place_t *place, const stay_t *stay, uint64_t valid_until_ns);
/* Just before the unlock call. valid_until_ns as in grant_t, as it is now. */
void place_leave(place_t *place, const stay_t *stay, uint64_t valid_until_ns);
uint64_t place_read(const place_t *place);
void place_write(place_t *place, uint64_t value);
/* The hold that has written the counter has ended without a loss. */
void place_complete(place_t *place);
/* What all names have seen. Nobody is in any of them any more. */
violations_t places_violations(const place_t *places, size_t count);
/* A token other than 0 was seen. A driver that has tokens gives none where they are switched off. */
bool places_had_tokens(const place_t *places, size_t count);
uint64_t violations_sum(const violations_t *violations);

#endif
