/* group.c - starts the command in a process group of its own. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "group.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "exits.h"
#include "terminal.h"

/* The new process, up to exec. Nothing of the library exists in it: the keeper was forked before. */
static _Noreturn void become_command(const launch_t *launch, uint64_t token, bool take_terminal, pid_t keeper,
                                     int exec_fd) {
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != keeper) {
        _exit(EXIT_CANNOT_RUN); /* the keeper died before it could be watched */
    }
    if (take_terminal) {
        int terminal = terminal_open();
        terminal_give(terminal, getpid());
    }
    char token_text[24];
    (void)snprintf(token_text, sizeof token_text, "%" PRIu64, token);
    int failure = 0;
    if (setenv("DLOCK_NAME", launch->lock_name, 1) != 0 || setenv("DLOCK_TOKEN", token_text, 1) != 0) {
        failure = errno;
    } else {
        signals_restore(launch->signals);
        (void)execvp(launch->argv[0], launch->argv);
        failure = errno;
    }
    ssize_t written = write(exec_fd, &failure, sizeof failure);
    (void)written; /* the exit status says it too */
    _exit(failure == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN);
}

pid_t group_start(const launch_t *launch, uint64_t token, bool take_terminal, int *exec_fd) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return -1;
    }
    pid_t keeper = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        become_command(launch, token, take_terminal, keeper, ends[1]);
    }
    int failure = errno;
    (void)close(ends[1]);
    if (pid < 0) {
        (void)close(ends[0]);
        errno = failure;
        return -1;
    }
    (void)setpgid(pid, pid); /* both sides, so that the group exists whoever runs first */
    *exec_fd = ends[0];
    return pid;
}
