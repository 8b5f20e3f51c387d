/* compare.h - one run of dlock compare: what is asked for, what the processes share, what came of it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_COMPARE_H
#define CLI_COMPARE_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "compare_check.h"
#include "compare_numbers.h"
#include "dlock/dlock.h"
#include "options.h"

/* ---- what is asked for -------------------------------------------------------------------------- */

typedef struct plan {
    const options_t *options;
    const char *backend;
    int processes, threads, names;
    uint64_t hold_ns, duration_ns;
    char prefix[48]; /* of the locks' names: no other program has them */
} plan_t;

/* ---- what the processes share ------------------------------------------------------------------- */

typedef enum worker_state {
    WORKER_OPENING, /* holds no lock, so that it may be killed */
    WORKER_WARMING,
    WORKER_READY, /* waits for the beginning */
    WORKER_DONE,
    WORKER_FAILED /* `error` says why */
} worker_state_t;

/* Of one worker process. Text is complete once the process has ended. */
typedef struct process_notes {
    atomic_int state; /* worker_state_t */
    atomic_int_fast64_t call_timeout_ms;
    char driver[32], server[128];
    atomic_bool has_error;
    char error[256]; /* the first one */
    /* Of the measured time, by the client's own statistics. */
    uint64_t pairs, round_trips;
} process_notes_t;

/* Of one thread. */
typedef struct owner_notes {
    atomic_uint_fast64_t acquired;
    uint64_t lost;
    uint64_t unfinished, unfinished_max_ns; /* calls that the end cut off, and the longest until then */
    uint64_t errors[DL_STATUS_COUNT];
    histogram_t waits, handoffs;
} owner_notes_t;

typedef struct orders {
    atomic_bool stop;            /* at once */
    atomic_uint_fast64_t warmed; /* locks taken before the beginning */
    uint64_t begin_ns, end_ns;
} orders_t;

/* All of it is made before the workers are forked, and of shared memory where they write. */
typedef struct board {
    const plan_t *plan;
    orders_t *orders;
    place_t *places;
    process_notes_t *processes;
    owner_notes_t *owners; /* plan->threads of each process */
    /* Ends of pipes of which the parent has the other: that hangs up when it says so, or dies. */
    int go_fd, go_writer, stop_fd, stop_writer;
    int news_fd; /* an eventfd by which workers say that their state has changed */
} board_t;

/* compare_worker.c: all that a worker process does. */
void worker_run(const board_t *board, int number) __attribute__((noreturn));

/* ---- what came of it ---------------------------------------------------------------------------- */

typedef struct row {
    const char *backend;
    char driver[32], server[128];
    bool measured;
    char error[320]; /* "": none */
    uint64_t measured_ns, planned_ns;
    uint64_t acquisitions;
    histogram_t waits, handoffs;
    double fairness;
    uint64_t pairs, round_trips;
    bool tokens_checked; /* there were any */
    violations_t violations;
    uint64_t lost, unfinished, unfinished_max_ns;
    uint64_t errors[DL_STATUS_COUNT];
    char first_error[256]; /* of the lock calls; "": none */
} row_t;

typedef struct progress {
    bool on; /* the standard error is a terminal, and not --quiet */
    size_t number, count;
} progress_t;

/* compare_run.c: measures one backend. `signal_fd` reads the signals that end it; *caught is set by
 * one, and then no server is asked. */
void measure(const plan_t *plan, const progress_t *progress, int signal_fd, int *caught, row_t *row);
/* compare_board.c: false with errno. */
bool board_open(board_t *board, const plan_t *plan);
void board_close(board_t *board);
/* Closes a writer, once. */
void hang_up(int *writer);
uint64_t board_acquired(const board_t *board);
/* Sums up what the workers have noted. */
void board_collect(const board_t *board, uint64_t ended_ns, row_t *row);

/* ---- what is printed (compare_print.c) ---------------------------------------------------------- */

typedef struct widths {
    int backend, driver;
} widths_t;

void print_head(const plan_t *plan, const widths_t *widths);
void print_row(const row_t *row, const widths_t *widths);
/* Below the table: losses, errors, calls without an end, kinds of violations. */
bool has_notes(const row_t *row);
void print_notes(const row_t *row);
void print_head_json(const plan_t *plan);
void print_row_json(const row_t *row);
void print_end_json(int signal); /* 0: no signal ended it; it is out when this returns */
void progress_show(const progress_t *progress, const plan_t *plan, const char *phase, uint64_t left_ns,
                   uint64_t acquired);
void progress_clear(const progress_t *progress);

#endif
