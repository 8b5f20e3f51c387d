/* ct_process.c - child processes of a case, and numbers sent to and fro. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/alloc_fail.h"
#include "support/ct.h"
#include "support/fault.h"

#define MESSAGE_TIMEOUT_MS 20000

/* What the child does; it never returns. */
static void child_main(ct_t *ct, ct_fn fn, void *arg, int fd, pid_t parent, int fresh) {
    /* A test that dies takes its children with it. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(CT_EXIT_FAILED);
    }
    signal(SIGALRM, SIG_DFL); /* the parent's patience covers us */
    ct->is_child = 1;
    ct->child_fd = fd;
    ct->processes = NULL;
    fn(ct, arg);
    if (fresh) {
        ct_end_threads(ct);
        ct_close_all(ct);
    }
    /* No exit handlers: they are the parent's. */
    _exit(0);
}

static ct_process_t *start(ct_t *ct, ct_fn fn, void *arg, int fresh) {
    int fds[2];
    CT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    pid_t parent = getpid();
    pid_t pid = fork();
    CT_CHECKF(pid >= 0, "fork failed: errno %d", errno);
    if (pid == 0) {
        close(fds[0]);
        child_main(ct, fn, arg, fds[1], parent, fresh);
    }
    close(fds[1]);
    ct_process_t *process = alloc_real(sizeof *process);
    process->pid = pid;
    process->fd = fds[0];
    process->next = ct->processes;
    ct->processes = process;
    return process;
}

ct_process_t *ct_process(ct_t *ct, ct_fn fn, void *arg) {
    CT_CHECKF(ct->traits & CT_PROCESSES, "ct_process needs the trait CT_PROCESSES");
    int open = ct->observer != NULL;
    for (int i = 0; i < ct->client_count; i++) {
        open = open || ct->clients[i].client != NULL;
    }
    CT_CHECKF(!open, "ct_process: a client is open here already; start the processes first");
    return start(ct, fn, arg, 1);
}

ct_process_t *ct_fork(ct_t *ct, ct_fn fn, void *arg) {
    return start(ct, fn, arg, 0);
}

int ct_pid(ct_process_t *process) {
    return (int)process->pid;
}

/* ---- messages ------------------------------------------------------------------------------------- */

static int peer(ct_t *ct, ct_process_t *process) {
    CT_CHECKF(process != NULL || ct->is_child, "no process given");
    return process == NULL ? ct->child_fd : process->fd;
}

void ct_send(ct_t *ct, ct_process_t *process, int64_t value) {
    ssize_t n = send(peer(ct, process), &value, sizeof value, MSG_NOSIGNAL);
    CT_CHECKF(n == (ssize_t)sizeof value, "the other process has ended (errno %d)", errno);
}

int64_t ct_recv(ct_t *ct, ct_process_t *process) {
    int fd = peer(ct, process);
    int64_t value = 0;
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    int rc;
    do {
        rc = poll(&entry, 1, MESSAGE_TIMEOUT_MS * ct->time_scale);
    } while (rc < 0 && errno == EINTR);
    CT_CHECKF(rc == 1, "no message from the other process");
    ssize_t n = recv(fd, &value, sizeof value, MSG_WAITALL);
    CT_CHECKF(n == (ssize_t)sizeof value, "the other process has ended without a message");
    return value;
}

/* ---- signals and ends ------------------------------------------------------------------------------ */

static int wait_for(ct_t *ct, ct_process_t *process, int flags) {
    int status = 0;
    pid_t rc;
    do {
        rc = waitpid(process->pid, &status, flags);
    } while (rc < 0 && errno == EINTR);
    CT_CHECKF(rc == process->pid, "waitpid failed: errno %d", errno);
    return status;
}

void ct_process_kill(ct_t *ct, ct_process_t *process) {
    CT_CHECK(!process->ended);
    CT_EQ(kill(process->pid, SIGKILL), 0);
    int status = wait_for(ct, process, 0);
    process->ended = 1;
    CT_CHECKF(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
              "the process had ended before it was killed");
}

void ct_process_stop(ct_t *ct, ct_process_t *process) {
    CT_EQ(kill(process->pid, SIGSTOP), 0);
    int status = wait_for(ct, process, WUNTRACED);
    process->ended = !WIFSTOPPED(status);
    CT_CHECKF(!process->ended, "the process ended before it was stopped");
}

void ct_process_continue(ct_t *ct, ct_process_t *process) {
    CT_EQ(kill(process->pid, SIGCONT), 0);
}

void ct_process_wait(ct_t *ct, ct_process_t *process) {
    CT_CHECK(!process->ended);
    int status = wait_for(ct, process, 0);
    process->ended = 1;
    CT_CHECKF(!WIFSIGNALED(status), "a child process died of signal %d", WTERMSIG(status));
    CT_CHECKF(WEXITSTATUS(status) == 0, "a child process failed (status %d)", WEXITSTATUS(status));
}

void ct_kill_processes(ct_t *ct) {
    for (ct_process_t *p = ct->processes; p != NULL; p = p->next) {
        if (!p->ended) {
            kill(p->pid, SIGKILL);
            (void)waitpid(p->pid, NULL, 0);
        }
    }
}

void ct_end_processes(ct_t *ct) {
    while (ct->processes != NULL) {
        ct_process_t *next = ct->processes->next;
        CT_CHECKF(ct->processes->ended, "a child process was neither waited for nor killed");
        close(ct->processes->fd);
        alloc_real_free(ct->processes);
        ct->processes = next;
    }
}
