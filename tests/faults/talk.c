/* talk.c - processes that talk over socket pairs. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/talk.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_S 10 /* a process that says nothing for this long has failed */

void die(const char *what) {
    perror(what);
    exit(2);
}

void say(int fd, int64_t value) {
    if (send(fd, &value, sizeof value, MSG_NOSIGNAL) != (ssize_t)sizeof value) {
        die("send");
    }
}

int64_t hear(int fd) {
    int64_t value;
    ssize_t n;
    do {
        n = recv(fd, &value, sizeof value, MSG_WAITALL);
    } while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof value) {
        fprintf(stderr, "%s\n", n == 0 ? "the other process has ended" : "the other process is silent");
        exit(2);
    }
    return value;
}

pid_t start(int *fd) {
    int fds[2];
    struct timeval patience = {.tv_sec = PATIENCE_S};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        die("socketpair");
    }
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) {
        die("fork");
    }
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(2);
        }
    }
    *fd = fds[pid == 0 ? 1 : 0];
    close(fds[pid == 0 ? 0 : 1]);
    if (pid != 0) {
        setsockopt(*fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    }
    return pid;
}
