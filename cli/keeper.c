/* keeper.c - the process between dlock and the command; it ends the command in time, come what may. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "exits.h"
#include "note.h"
#include "processes.h"

/* Ends of processes that are nobody's news (their parent lives in another group) are looked for this
 * often. */
#define LOOK_AGAIN_NS (20u * (uint64_t)NS_PER_MS)
/* Where dlock is gone nobody waits for the keeper; it goes on for this long. */
#define ORPHAN_BOUND_NS (60u * UINT64_C(1000000000))

typedef enum phase { PHASE_IDLE, PHASE_RUNNING, PHASE_TERM, PHASE_KILL } phase_t;

typedef struct state {
    const launch_t *launch;
    int socket, child_fd, timer_fd, exec_fd;
    phase_t phase;
    end_cause_t cause;
    pid_t group;       /* 0: not started, or gone */
    bool leader_ended; /* and is reaped, or about to be */
    int exit_status;   /* of the leader, once it has ended; or of one that could not be started */
    note_t start;      /* not done yet; kind 0: none */
    uint64_t valid_until_ns, grace_ns, margin_ns;
    uint64_t kill_at_ns; /* PHASE_TERM */
    uint64_t give_up_ns; /* PHASE_KILL */
    bool left_told;
} state_t;

static void tell(const state_t *state, note_kind_t kind, int number) {
    note_t note = {.kind = kind, .number = number, .at_ns = now_ns()};
    if (state->cause != END_ORPHANED) {
        (void)note_send(state->socket, &note, false); /* a hang-up is seen by the loop */
    }
}

/* How it ended, or that it did not; false: there is no room for that now. */
static bool tell_outcome(const state_t *state, note_kind_t kind, size_t left, bool wait) {
    note_t note = {.kind = kind,
                   .number = (int)state->cause,
                   .at_ns = now_ns(),
                   .left = left,
                   .exit_status = state->exit_status};
    return note_send(state->socket, &note, wait);
}

/* The last act of the keeper. */
static _Noreturn void finish(const state_t *state) {
    if (state->cause != END_ORPHANED) {
        (void)tell_outcome(state, NOTE_ENDED, 0, true);
    }
    _exit(0);
}

static void begin_term(state_t *state, end_cause_t cause) {
    state->phase = PHASE_TERM;
    state->cause = cause;
    uint64_t now = now_ns();
    (void)processes_signal(state->group, SIGTERM);
    (void)processes_signal(state->group, SIGCONT); /* a stopped process would not hear it */
    state->kill_at_ns = now + state->grace_ns;
    tell(state, NOTE_TERM, (int)cause);
}

static void begin_kill(state_t *state, end_cause_t cause) {
    if (state->phase != PHASE_KILL) {
        state->phase = PHASE_KILL;
        state->give_up_ns = now_ns() + (cause == END_ORPHANED ? ORPHAN_BOUND_NS : KILL_BOUND_NS);
    }
    state->cause = cause > state->cause ? cause : state->cause;
    (void)processes_signal(state->group, SIGKILL);
    tell(state, NOTE_KILL, (int)state->cause);
}

/* We may have been stopped since we were told to. */
static void start_command(state_t *state) {
    if (state->start.kind == 0) {
        return;
    }
    if (now_ns() >= ns_before(state->valid_until_ns, state->margin_ns)) {
        state->cause = END_OF_VALIDITY;
        finish(state);
    }
    state->group = group_start(state->launch, state->start.token, state->start.number != 0, &state->exec_fd);
    state->start.kind = 0;
    if (state->group < 0) {
        tell(state, NOTE_NOT_STARTED, errno);
        finish(state);
    }
    state->phase = PHASE_RUNNING;
    tell(state, NOTE_STARTED, (int)state->group);
    /* Should dlock die, whoever reads the command's output need not wait for the keeper. */
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; null >= 0 && fd <= 2; fd++) {
        (void)dup2(null, fd);
    }
}

static void take_note(state_t *state, const note_t *note) {
    switch (note->kind) {
    case NOTE_START:
        state->start = *note;
        state->valid_until_ns = note->valid_until_ns;
        state->grace_ns = note->grace_ns;
        state->margin_ns = note->margin_ns;
        break;
    case NOTE_VALID:
        state->valid_until_ns = note->valid_until_ns;
        break;
    case NOTE_SIGNAL:
        if (state->phase != PHASE_IDLE && !state->leader_ended) {
            (void)kill(-state->group, note->number);
        }
        break;
    case NOTE_LOST:
        if (state->phase == PHASE_IDLE) {
            state->cause = END_LOST;
            finish(state);
        }
        begin_kill(state, END_LOST);
        break;
    default:
        break; /* what the keeper itself says */
    }
}

/* The start waits for what else there is: a later validity, or that the lock is gone. */
static void take_notes(state_t *state) {
    note_t note;
    note_got_t got = NOTE_NONE;
    while (state->cause != END_ORPHANED && (got = note_receive(state->socket, &note)) == NOTE_GOT) {
        take_note(state, &note);
    }
    if (got == NOTE_GONE) {
        if (state->phase == PHASE_IDLE) {
            _exit(0); /* dlock did not get the lock, or is gone again */
        }
        begin_kill(state, END_ORPHANED);
    }
    start_command(state);
}

static void take_exec_failure(state_t *state) {
    int failure;
    if (read(state->exec_fd, &failure, sizeof failure) == (ssize_t)sizeof failure) {
        tell(state, NOTE_NOT_STARTED, failure);
    }
    (void)close(state->exec_fd);
    state->exec_fd = -1;
}

/* Anything else is a stop, be it one of a process that has asked its parent to trace it. */
static bool is_end(const siginfo_t *news) {
    return news->si_code == CLD_EXITED || news->si_code == CLD_KILLED || news->si_code == CLD_DUMPED;
}

static void tell_of_leader(state_t *state, const siginfo_t *news) {
    if (!is_end(news)) {
        tell(state, NOTE_STOPPED, news->si_status);
        return;
    }
    if (state->exec_fd >= 0) {
        take_exec_failure(state); /* why it ended, before that it did */
    }
    state->leader_ended = true;
    state->exit_status = news->si_status + (news->si_code == CLD_EXITED ? 0 : EXIT_SIGNAL_BASE);
    tell(state, NOTE_EXITED, 0);
}

/* Reaps the command and whatever was adopted. */
static void reap(state_t *state) {
    struct signalfd_siginfo info;
    while (read(state->child_fd, &info, sizeof info) > 0) {}
    siginfo_t news = {.si_pid = 0};
    while (waitid(P_ALL, 0, &news, WEXITED | WSTOPPED | WNOHANG) == 0 && news.si_pid > 0) {
        if (news.si_pid == state->group && !state->leader_ended) {
            tell_of_leader(state, &news);
        }
        news.si_pid = 0;
    }
}

/* What is due now; returns the instant when something is due next. */
static uint64_t act(state_t *state, uint64_t now) {
    if (state->phase == PHASE_IDLE) {
        return NEVER_NS;
    }
    uint64_t kill_ns = ns_before(state->valid_until_ns, state->margin_ns);
    uint64_t term_ns = ns_before(kill_ns, state->grace_ns);
    if (state->phase == PHASE_KILL) {
        size_t left = processes_signal(state->group, SIGKILL);
        if (now < state->give_up_ns) {
            return now + LOOK_AGAIN_NS;
        }
        if (left == 0 || state->cause == END_ORPHANED) {
            finish(state);
        }
        state->left_told = state->left_told || tell_outcome(state, NOTE_LEFT, left, false);
        return now + LEFT_AGAIN_NS; /* dlock says how long it waits for that */
    }
    if (now >= kill_ns) {
        begin_kill(state, END_OF_VALIDITY);
        return now_ns() + LOOK_AGAIN_NS;
    }
    if (state->phase == PHASE_TERM && now >= state->kill_at_ns) {
        begin_kill(state, state->cause);
        return now_ns() + LOOK_AGAIN_NS;
    }
    if (state->phase == PHASE_RUNNING && now >= term_ns) {
        begin_term(state, END_OF_VALIDITY);
    } else if (state->phase == PHASE_RUNNING && state->leader_ended) {
        begin_term(state, END_OF_COMMAND);
    }
    if (state->phase == PHASE_RUNNING) {
        return term_ns;
    }
    uint64_t next_ns = ns_min(kill_ns, state->kill_at_ns);
    return state->leader_ended ? ns_min(next_ns, now + LOOK_AGAIN_NS) : next_ns;
}

static _Noreturn void keep(state_t *state) {
    uint64_t now = now_ns();
    for (;;) {
        timer_set(state->timer_fd, act(state, now));
        struct pollfd fds[] = {{.fd = state->cause == END_ORPHANED ? -1 : state->socket, .events = POLLIN},
                               {.fd = state->child_fd, .events = POLLIN},
                               {.fd = state->timer_fd, .events = POLLIN},
                               {.fd = state->exec_fd, .events = POLLIN}};
        /* After EINTR, or a passing lack of memory, it looks as well. */
        (void)poll(fds, sizeof fds / sizeof fds[0], -1);
        if (fds[3].revents != 0) {
            take_exec_failure(state);
        }
        reap(state);
        if (state->leader_ended && !processes_left(&state->group)) {
            finish(state);
        }
        now = now_ns(); /* before the notes: a stop behind them makes no end of what they say */
        take_notes(state);
    }
}

/* Of the words that dlock was called with, only its own name is replaced: the others say what is kept. */
static void take_name(void) {
    (void)prctl(PR_SET_NAME, KEEPER_NAME);
    (void)strncpy(program_invocation_name, "keep", strlen(program_invocation_name));
}

static _Noreturn void keeper_main(const launch_t *launch, int socket) {
    (void)setpgid(0, 0); /* what is sent to dlock's group is for dlock */
    take_name();
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    /* Should it be stopped when dlock dies, it ends the command all the same. */
    (void)prctl(PR_SET_PDEATHSIG, SIGCONT);
    sigset_t all;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
    sigset_t child;
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    state_t state = {.launch = launch, .socket = socket, .exec_fd = -1, .exit_status = EX_OSERR};
    state.child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    state.timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (state.child_fd < 0 || state.timer_fd < 0) {
        tell(&state, NOTE_NOT_STARTED, errno);
        finish(&state);
    }
    keep(&state);
}

bool keeper_start(keeper_t *keeper, const launch_t *launch) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return false;
    }
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(ends[0]);
        keeper_main(launch, ends[1]);
    }
    int failure = errno;
    (void)close(ends[1]);
    if (pid < 0) {
        (void)close(ends[0]);
        errno = failure;
        return false;
    }
    *keeper = (keeper_t){pid, (int)syscall(SYS_pidfd_open, pid, 0), ends[0]};
    /* Should we be the first process of a container, whatever loses its parent there comes to us; should the
     * keeper die, what it kept. None of that is news to us, and none is to stay as a zombie. */
    (void)signal(SIGCHLD, SIG_IGN);
    return true;
}

/* It has ended, and its number may be another's. */
static bool has_hung_up(const keeper_t *keeper) {
    struct pollfd end = {.fd = keeper->socket};
    return poll(&end, 1, 0) == 1 && (end.revents & POLLHUP) != 0;
}

void keeper_kill(const keeper_t *keeper) {
    if (keeper->pidfd >= 0) {
        (void)syscall(SYS_pidfd_send_signal, keeper->pidfd, SIGKILL, NULL, 0);
    } else if (!has_hung_up(keeper)) {
        (void)kill(keeper->pid, SIGKILL);
    }
}

void keeper_end(keeper_t *keeper) {
    note_t note;
    ssize_t n;
    (void)shutdown(keeper->socket, SHUT_WR);
    do {
        n = recv(keeper->socket, &note, sizeof note, 0); /* hangs up with the keeper */
    } while (n > 0 || (n < 0 && errno == EINTR));
    (void)close(keeper->socket);
    if (keeper->pidfd >= 0) {
        (void)close(keeper->pidfd);
    }
}
