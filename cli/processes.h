/* processes.h - finds and signals what descends from this process, by /proc. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_PROCESSES_H
#define CLI_PROCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * "Reached" are the living members of the process group and, in whatever group, the living descendants of
 * this process in its own session. Who has called setsid() has left on purpose. Zombies do not live. A group
 * that is not known, or is gone, is 0.
 */

/* Once, before anything is started: what descends from this process already is no part of that, and is not
 * reached. What it starts from then on, and leaves to this process by its end, is not told apart. */
void processes_spare_descendants(void);
/* Sends the signal to all that are reached: to the group at once, so that no fork escapes, to the others
 * one by one. 0 only counts. Returns how many were reached. */
size_t processes_signal(pid_t group, int number);
/* Is it one, dead or alive? As long as the parent has not reaped it, its number is its own. */
bool processes_is_child(pid_t pid, pid_t parent);
/* Is anything that is reached left? The group becomes 0 when no descendant is in it any more: from then on
 * its number may be another's. */
bool processes_left(pid_t *group);

#endif
