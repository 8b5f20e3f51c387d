/* compare_run.c - measures one backend: starts the workers, watches over them, and ends them in time. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "compare.h"
#include "signals.h"

/* The library bounds each call; this is for workers that are stopped. */
#define READY_BOUND_NS (60u * UINT64_C(1000000000))
/* Beside what an unlock and a close may take. */
#define END_BOUND_NS (3u * UINT64_C(1000000000))
#define PROGRESS_EVERY_NS (200u * (uint64_t)NS_PER_MS)

typedef enum phase { STARTING, MEASURING, ENDING } phase_t;

typedef struct child {
    pid_t pid;
    int fd;      /* a pidfd; -1: it has ended */
    bool killed; /* by us */
} child_t;

typedef struct trial {
    board_t board;
    const progress_t *progress;
    row_t *row;
    child_t *children;
    int alive;
    int signal_fd;
    int *caught;
    phase_t phase;
    uint64_t until_ns; /* of the phase */
    uint64_t ended_ns; /* of the measured time */
} trial_t;

static void __attribute__((format(printf, 2, 3))) fail(trial_t *trial, const char *format, ...) {
    if (trial->row->error[0] == '\0') {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(trial->row->error, sizeof trial->row->error, format, args);
        va_end(args);
    }
}

/* ---- the workers -------------------------------------------------------------------------------- */

static bool start_worker(trial_t *trial, int number) {
    child_t *child = &trial->children[number];
    pid_t parent = getpid();
    child->fd = -1;
    child->pid = fork();
    if (child->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(0);
        }
        hang_up(&trial->board.go_writer);
        hang_up(&trial->board.stop_writer);
        worker_run(&trial->board, number);
    }
    if (child->pid < 0) {
        fail(trial, "cannot start a worker process: %s", strerror(errno));
        return false;
    }
    child->fd = (int)syscall(SYS_pidfd_open, child->pid, 0);
    if (child->fd < 0) {
        fail(trial, "cannot watch over a worker process: %s", strerror(errno));
        (void)kill(child->pid, SIGKILL);
        (void)waitpid(child->pid, NULL, 0);
        return false;
    }
    trial->alive++;
    return true;
}

static void kill_worker(child_t *child) {
    if (child->fd >= 0 && !child->killed) {
        child->killed = true;
        (void)syscall(SYS_pidfd_send_signal, child->fd, SIGKILL, NULL, 0);
    }
}

static void reap(trial_t *trial, int number) {
    child_t *child = &trial->children[number];
    int status = 0;
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR) {}
    (void)close(child->fd);
    child->fd = -1;
    trial->alive--;
    if (child->killed) {
        return; /* what for has been said */
    }
    int of = trial->board.plan->processes;
    if (WIFSIGNALED(status)) {
        fail(trial, "worker process %d of %d was ended by %s", number + 1, of,
             signal_name(WTERMSIG(status)).text);
    } else if (WEXITSTATUS(status) != 0) {
        fail(trial, "worker process %d of %d ended with status %d", number + 1, of, WEXITSTATUS(status));
    }
}

static int count_state(const trial_t *trial, worker_state_t state) {
    int count = 0;
    for (int i = 0; i < trial->board.plan->processes; i++) {
        count += atomic_load(&trial->board.processes[i].state) == (int)state;
    }
    return count;
}

/* ---- the phases --------------------------------------------------------------------------------- */

static void begin_measuring(trial_t *trial) {
    orders_t *orders = trial->board.orders;
    orders->begin_ns = now_ns();
    orders->end_ns = orders->begin_ns + trial->board.plan->duration_ns;
    trial->phase = MEASURING;
    trial->until_ns = orders->end_ns;
    hang_up(&trial->board.go_writer);
}

/* All waits end, what is held is freed, the clients are closed. */
static void begin_ending(trial_t *trial) {
    orders_t *orders = trial->board.orders;
    trial->ended_ns = now_ns();
    if (trial->phase == MEASURING) {
        trial->ended_ns = ns_min(trial->ended_ns, orders->end_ns);
    }
    trial->phase = ENDING;
    atomic_store(&orders->stop, true);
    int64_t call_timeout_ms = 0;
    for (int i = 0; i < trial->board.plan->processes; i++) {
        int64_t its = atomic_load(&trial->board.processes[i].call_timeout_ms);
        call_timeout_ms = its > call_timeout_ms ? its : call_timeout_ms;
        if (atomic_load(&trial->board.processes[i].state) == WORKER_OPENING) {
            kill_worker(&trial->children[i]);
        }
    }
    trial->until_ns = now_ns() + 2 * ns_of_ms(call_timeout_ms) + END_BOUND_NS;
    hang_up(&trial->board.go_writer);
    hang_up(&trial->board.stop_writer);
}

static void kill_all(trial_t *trial) {
    for (int i = 0; i < trial->board.plan->processes; i++) {
        kill_worker(&trial->children[i]);
    }
    trial->until_ns = NEVER_NS;
}

static void step(trial_t *trial) {
    int processes = trial->board.plan->processes;
    bool is_over = now_ns() >= trial->until_ns;
    if (trial->phase == STARTING) {
        if (count_state(trial, WORKER_READY) == processes) {
            begin_measuring(trial);
        } else if (trial->alive < processes || count_state(trial, WORKER_FAILED) > 0) {
            begin_ending(trial);
        } else if (is_over) {
            fail(trial, "%d of %d worker processes did not begin in time", count_state(trial, WORKER_READY),
                 processes);
            begin_ending(trial);
        }
    } else if (trial->phase == MEASURING) {
        if (is_over || trial->alive == 0) {
            begin_ending(trial);
        }
    } else if (is_over) {
        fail(trial, "%d of %d worker processes did not end in time and were killed", trial->alive, processes);
        kill_all(trial);
    }
}

static void read_signals(trial_t *trial) {
    struct signalfd_siginfo info;
    while (read(trial->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (*trial->caught == 0) {
            *trial->caught = (int)info.ssi_signo;
            if (trial->phase != ENDING) {
                begin_ending(trial);
            }
        } else {
            kill_all(trial); /* somebody is impatient; the locks end with their leases */
        }
    }
}

static void show_progress(const trial_t *trial) {
    static const char *const names[] = {"opening", "measuring", "ending"};
    uint64_t left_ns = trial->phase == MEASURING ? ns_before(trial->until_ns, now_ns()) : 0;
    progress_show(trial->progress, trial->board.plan, names[trial->phase], left_ns,
                  board_acquired(&trial->board));
}

/* Milliseconds to the end of the phase, or to the next line of progress. */
static int patience_ms(const trial_t *trial) {
    uint64_t left_ns = trial->until_ns == NEVER_NS ? PROGRESS_EVERY_NS : ns_before(trial->until_ns, now_ns());
    /* Without a terminal too, since poll's clock stands still while the machine sleeps, and ours does not. */
    uint64_t most_ns = trial->progress->on ? PROGRESS_EVERY_NS : 5 * PROGRESS_EVERY_NS;
    return (int)((ns_min(left_ns, most_ns) + NS_PER_MS - 1) / NS_PER_MS);
}

static void watch(trial_t *trial, struct pollfd *fds) {
    int processes = trial->board.plan->processes;
    while (trial->alive > 0) {
        show_progress(trial);
        for (int i = 0; i < processes; i++) {
            fds[i] = (struct pollfd){.fd = trial->children[i].fd, .events = POLLIN};
        }
        fds[processes] = (struct pollfd){.fd = trial->signal_fd, .events = POLLIN};
        fds[processes + 1] = (struct pollfd){.fd = trial->board.news_fd, .events = POLLIN};
        if (poll(fds, (nfds_t)processes + 2, patience_ms(trial)) < 0) {
            continue;
        }
        eventfd_t count;
        (void)eventfd_read(trial->board.news_fd, &count);
        for (int i = 0; i < processes; i++) {
            if (fds[i].revents != 0) {
                reap(trial, i);
            }
        }
        if (fds[processes].revents != 0) {
            read_signals(trial);
        }
        step(trial);
    }
}

/* ---- one backend -------------------------------------------------------------------------------- */

static void run_workers(trial_t *trial) {
    int processes = trial->board.plan->processes;
    struct pollfd *fds = calloc((size_t)processes + 2, sizeof *fds);
    trial->children = calloc((size_t)processes, sizeof *trial->children);
    if (fds == NULL || trial->children == NULL) {
        fail(trial, "%s", dl_status_text(DL_ENOMEM));
    } else {
        for (int i = 0; i < processes; i++) {
            trial->children[i].fd = -1;
        }
        bool started = true;
        for (int i = 0; i < processes && started; i++) {
            started = start_worker(trial, i);
        }
        trial->until_ns = now_ns() + READY_BOUND_NS;
        watch(trial, fds);
        progress_clear(trial->progress);
    }
    free(fds);
    free(trial->children);
}

void measure(const plan_t *plan, const progress_t *progress, int signal_fd, int *caught, row_t *row) {
    trial_t trial = {.progress = progress, .row = row, .signal_fd = signal_fd, .caught = caught};
    if (*caught == 0) {
        if (!board_open(&trial.board, plan)) {
            fail(&trial, "no memory or descriptors to share with the workers: %s", strerror(errno));
            return;
        }
        run_workers(&trial);
        board_collect(&trial.board, trial.ended_ns, row);
        board_close(&trial.board);
    }
    if (*caught != 0 && !row->measured) {
        fail(&trial, "ended by %s before it began", signal_name(*caught).text);
    } else if (row->acquisitions == 0) {
        fail(&trial, "no lock was obtained%s%s", row->first_error[0] != '\0' ? ": " : "", row->first_error);
    }
}
