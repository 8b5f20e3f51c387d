/* sim.h - a simulated clock and scheduler in the place of dli_sys. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_H
#define SIM_H

#include <stdint.h>

/*
 * sim_install puts a dli_sys_t in place whose clock stands still while any known thread runs. Known are the
 * thread that called sim_install and every thread that dli_sys->thread_start made. Once all of them are
 * blocked in poll, cond_wait or thread_join, the descriptors that they poll are looked at; when none is
 * ready, the clock jumps to the earliest deadline. When there is no deadline either, nobody can ever wake:
 * the program says who waits for what and aborts.
 *
 * A thread that is blocked in anything else (a plain mutex, read, waitpid) counts as running. An unknown
 * thread that blocks through the table aborts the program.
 *
 * Serial mode: of the threads that could run, only one does, until it blocks; the seed chooses the next. One
 * seed gives one schedule, as long as nobody waits for time with a plain mutex held.
 */
typedef struct sim_options {
    uint64_t seed; /* of dli_sys->random, and of the schedule in serial mode */
    int serial;
} sim_options_t;

/* Before the first client is opened; once in a process. */
void sim_install(const sim_options_t *options);
/* The real table again. Only the installing thread may be left. */
void sim_uninstall(void);
/* 1 between the two. */
int sim_active(void);
/* The machine sleeps: the clock jumps by this much, and every resume descriptor becomes readable. */
void sim_suspend(uint64_t ns);
/* For how long it has, altogether. */
uint64_t sim_slept_ns(void);
/* Writes one line for each known thread to stderr. Takes no lock: for debuggers, timeouts and the deadlock
 * report. */
void sim_dump(void);
/* Called instead of abort() when nobody can ever wake; must not return. NULL: abort. */
void sim_on_deadlock(void (*fn)(const char *what));
/* Called where code has to run right before the clock moves, for tests of the clock itself; NULL: none. */
void sim_on_advance(void (*fn)(uint64_t from_ns, uint64_t to_ns));

#endif
