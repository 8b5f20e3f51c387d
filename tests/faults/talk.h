/* talk.h - processes that talk over socket pairs, in 64 bits; what fails ends the process with 2. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLOCK_TESTS_FAULTS_TALK_H
#define DLOCK_TESTS_FAULTS_TALK_H

#include <stdint.h>
#include <sys/types.h>

/* Says `what`, and why, as perror does. */
_Noreturn void die(const char *what);

/* A child that dies with us; 0 in the child. *fd: to the other side. */
pid_t start(int *fd);

void say(int fd, int64_t value);

/* The parent waits for so long only; the child for as long as the parent lives. */
int64_t hear(int fd);

#endif
