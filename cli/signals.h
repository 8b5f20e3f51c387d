/* signals.h - which signals are passed on to the command, and how they were when dlock was started. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

typedef struct signals {
    sigset_t inherited_mask;          /* given back to the command */
    struct sigaction inherited_child; /* SIGCHLD may have been ignored by whoever started us */
    sigset_t passed_on;               /* go to the command's group; those that were ignored stay ignored */
    sigset_t ending;                  /* those of them that end the wait for the lock */
} signals_t;

/* Blocks what is passed on, before any thread or process is started, so that all of them inherit it. */
void signals_begin(signals_t *signals);
/* In the command's process, just before exec. */
void signals_restore(const signals_t *signals);
/* Stops this process, or its whole group, as the terminal does by that signal. True: until SIGCONT, which is
 * still to be read. False: the kernel ignores it where no shell could continue us, or it was ignored. */
bool stop_ourselves(int number, bool whole_group);

typedef struct signal_name {
    char text[32];
} signal_name_t;

signal_name_t signal_name(int number);

#endif
