/* run_watch.c - while the command runs: tells the keeper of the validity, and passes signals on. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "clock.h"
#include "dlock/driver.h"
#include "processes.h"
#include "report.h"
#include "run.h"
#include "terminal.h"

/* Validity comes in whole ms from an instant in between, so each look at the same end differs by up to
 * this. */
#define JITTER_NS (2u * (uint64_t)NS_PER_MS)
/* The shortest time between two looks: a renewal that is confirmed later than this before SIGTERM is due
 * comes too late. */
#define LOOK_MIN_NS (5u * (uint64_t)NS_PER_MS)
/* Without the keeper: the ends of processes that are not our children cannot be awaited. */
#define LOOK_AGAIN_NS (5u * (uint64_t)NS_PER_MS)
/* When the lock is lost already, the keeper has this long to act. */
#define HELP_MAX_NS (100u * (uint64_t)NS_PER_MS)
/* Once it has sent SIGKILL, this long after KILL_BOUND_NS to say what is left. */
#define KILL_TOLD_NS (1000u * (uint64_t)NS_PER_MS)

static uint64_t ms_of(uint64_t at_ns) {
    return at_ns / NS_PER_MS;
}

static void send_note(run_t *run, const note_t *note) {
    (void)note_send(run->keeper.socket, note, false);
}

static void send_signal(run_t *run, int number) {
    note_t note = {.kind = NOTE_SIGNAL, .number = number};
    send_note(run, &note);
}

/* Until when the command may run, from now on; rounded to the early side. 0: the lock is lost. */
static uint64_t valid_until(const run_t *run) {
    uint64_t now = now_ns(); /* before the question */
    int64_t valid_ms = dl_valid_ms(run->lock);
    return valid_ms > 0 ? ns_min(now + ns_of_ms(valid_ms), run->hold_end_ns) : 0;
}

/* The keeper was to kill the command, and has not even tried, or does not say how that ended: it was stopped,
 * or the machine is slow. Either way it is killed now. Without the keeper the command dies by
 * PR_SET_PDEATHSIG, and the rest is left to us.
 */
static void replace_keeper(run_t *run, uint64_t now) {
    run->keeper_replaced = true;
    if (run->group > 0 && processes_is_child(run->group, run->keeper.pid)) {
        (void)kill(-run->group, SIGKILL);
    }
    keeper_kill(&run->keeper);
    verbose_line("at %" PRIu64 " ms: sent SIGKILL in place of " KEEPER_NAME ", which is late", ms_of(now));
}

static void tell_lost(run_t *run, uint64_t now) {
    run->told_lost = true;
    note_t note = {.kind = NOTE_LOST};
    send_note(run, &note);
    verbose_line("at %" PRIu64 " ms: the lock is lost", ms_of(now));
    run->valid_until_ns = ns_min(run->valid_until_ns, now);
}

static void tell_validity(run_t *run, uint64_t until_ns, uint64_t now) {
    bool longer = until_ns > run->valid_until_ns;
    bool shorter = until_ns + JITTER_NS < run->valid_until_ns;
    if (!longer && !shorter) {
        return;
    }
    note_t note = {.kind = NOTE_VALID, .valid_until_ns = until_ns};
    /* More than a keeper that does not read was told counts for neither: it is replaced in time. */
    if (!note_send(run->keeper.socket, &note, false) && errno == EAGAIN && longer) {
        return;
    }
    if (shorter || until_ns > run->valid_until_ns + JITTER_NS) {
        verbose_line("at %" PRIu64 " ms: valid until %" PRIu64 " ms", ms_of(now), ms_of(until_ns));
    }
    run->valid_until_ns = until_ns;
}

/* Tells the keeper what is new about the validity; returns the instant for the next look. */
static uint64_t act(run_t *run) {
    uint64_t until_ns = valid_until(run);
    uint64_t now = now_ns();
    if (until_ns == 0 && !run->told_lost) {
        tell_lost(run, now);
    } else if (until_ns != 0) {
        tell_validity(run, until_ns, now);
    }
    if (run->left > 0) {
        run->leave_ns = ns_min(run->leave_ns, run->valid_until_ns); /* by renewals it would never be over */
    }
    if (run->keeper_died) {
        return ns_min(now + (run->left > 0 ? LEFT_AGAIN_NS : LOOK_AGAIN_NS), run->leave_ns);
    }
    if (run->keeper_replaced || run->left > 0) {
        return run->leave_ns;
    }
    if (run->kill_seen) {
        if (now >= run->give_up_ns) {
            replace_keeper(run, now);
        }
        return run->give_up_ns;
    }
    /* SIGKILL is due a margin before the end. A quarter of it is left to the keeper. */
    uint64_t margin_ns = ns_of_ms(run->margin_ms);
    uint64_t help_ns = run->told_lost ? run->valid_until_ns + ns_min(margin_ns, HELP_MAX_NS)
                                      : ns_before(run->valid_until_ns, margin_ns - margin_ns / 4);
    if (now >= help_ns) {
        replace_keeper(run, now);
        return NEVER_NS;
    }
    uint64_t term_ns = ns_before(run->valid_until_ns, margin_ns + ns_of_ms(run->grace_ms));
    if (now >= term_ns) {
        return help_ns;
    }
    /* Half of the time that is left until SIGTERM is due: renewals are seen early, whenever they come. */
    uint64_t look_ns = now + (term_ns - now) / 2;
    return look_ns > now + LOOK_MIN_NS ? look_ns : ns_min(now + LOOK_MIN_NS, help_ns);
}

/* We may have been stopped beyond the lease: the keeper hears of that before the command goes on. */
static void continue_run(run_t *run) {
    (void)act(run);
    if (run->terminal_given && terminal_is_ours(run->terminal)) {
        terminal_give(run->terminal, run->group);
    }
    send_signal(run, SIGCONT);
}

static void take_signals(run_t *run) {
    struct signalfd_siginfo info;
    while (read(run->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCONT) {
            continue_run(run);
        } else {
            send_signal(run, (int)info.ssi_signo);
        }
    }
}

/* The command was stopped. By the terminal: we follow it, as a job of the shell. By somebody else: that is
 * between the two of them, and the lock is kept. */
static void command_stopped(run_t *run, int number) {
    bool wants_terminal = number == SIGTTIN || number == SIGTTOU;
    if (run->terminal < 0 || (!wants_terminal && number != SIGTSTP)) {
        return;
    }
    if (wants_terminal && terminal_is_ours(run->terminal)) {
        run->terminal_given = true;
        terminal_give(run->terminal, run->group);
        send_signal(run, SIGCONT);
        return;
    }
    /* Others of our group, such as the shell of a script, have not heard of a Ctrl-Z that went to the command
     * alone, nor of the signal that a read from the background is for all of them. */
    bool whole_group = terminal_take_back(run->terminal, run->group) || wants_terminal;
    if (stop_ourselves(number, whole_group)) {
        return;
    }
    if (!wants_terminal) {
        (void)raise(SIGCONT); /* nobody else would continue the command */
    } else {
        /* Continued now, it would only stop again. */
        notice_line("'%s': the command wants the terminal from the background, and is stopped until SIGCONT",
                    run->name);
    }
}

/* They may act as if the lock were held. It is, for as long as the lease goes now: where its server knows of
 * no lease (a session), to leave would be to free it. */
static void begin_to_leave(run_t *run, uint64_t left) {
    uint64_t now = now_ns();
    run->left = left;
    run->leave_ns = valid_until(run);
    if (run->leave_ns > now) {
        error_line("'%s': %" PRIu64
                   " process%s of the command could not be ended; the lock is kept until %s, but "
                   "for %s at most",
                   run->name, left, left == 1 ? "" : "es", left == 1 ? "it ends" : "they end",
                   dl_driver_measured(run->leave_ns - now).text);
    }
}

static void take_note(run_t *run, const note_t *note) {
    uint64_t at_ms = ms_of(note->at_ns);
    switch (note->kind) {
    case NOTE_STARTED:
        run->group = note->number;
        verbose_line("at %" PRIu64 " ms: started process %d", at_ms, note->number);
        break;
    case NOTE_NOT_STARTED:
        run->start_errno = note->number;
        break;
    case NOTE_STOPPED:
        command_stopped(run, note->number);
        break;
    case NOTE_TERM:
        verbose_line("at %" PRIu64 " ms: sent SIGTERM", at_ms);
        break;
    case NOTE_KILL:
        run->kill_seen = true;
        run->cause = (end_cause_t)note->number;
        run->give_up_ns = now_ns() + KILL_BOUND_NS + KILL_TOLD_NS;
        verbose_line("at %" PRIu64 " ms: sent SIGKILL", at_ms);
        break;
    case NOTE_EXITED:
        verbose_line("at %" PRIu64 " ms: the command has ended", at_ms);
        break;
    case NOTE_LEFT:
        run->kill_seen = true; /* for that note there may have been no room */
        run->cause = (end_cause_t)note->number;
        run->exit_status = note->exit_status;
        begin_to_leave(run, note->left);
        break;
    case NOTE_ENDED:
        run->ended = true;
        run->ended_ns = note->at_ns;
        run->cause = (end_cause_t)note->number;
        run->exit_status = note->exit_status;
        verbose_line("at %" PRIu64 " ms: everything has ended", at_ms);
        break;
    default:
        break; /* what dlock itself says */
    }
}

/* Without the keeper the kernel has killed the command; what it has started was left to us (subreaper). */
static void end_without_keeper(run_t *run) {
    if (!processes_left(&run->rest)) {
        run->ended = true;
        run->ended_ns = now_ns();
        return;
    }
    uint64_t left = processes_signal(run->rest, SIGKILL);
    if (left > 0 && run->left == 0 && now_ns() >= run->give_up_ns) {
        begin_to_leave(run, left);
    }
}

static void take_notes(run_t *run) {
    note_t note;
    note_got_t got = NOTE_NONE;
    while (!run->ended && !run->keeper_died && (got = note_receive(run->keeper.socket, &note)) == NOTE_GOT) {
        take_note(run, &note);
    }
    if (!run->ended && got == NOTE_GONE) {
        run->keeper_died = true;
        run->rest = run->group; /* 0 where the keeper was stopped before it could tell it */
        run->give_up_ns = now_ns() + KILL_BOUND_NS;
        if (run->keeper_replaced && !run->kill_seen) {
            run->cause = run->told_lost ? END_LOST : END_OF_VALIDITY;
        }
    }
    if (!run->ended && run->keeper_died) {
        end_without_keeper(run);
    }
}

void take_events(run_t *run) {
    dl_event_t event = DL_EVENT_INIT;
    while (run->client != NULL && dl_event_next(run->client, &event) == DL_OK) {
        switch (event.kind) {
        case DL_EVENT_RENEWAL_FAILING:
            run->renewal_failing = true;
            notice_line(
                "'%s': renewal is failing: %s; trying again, the lock is valid for %s more", run->name,
                event.status == DL_EUNKNOWN ? "no answer from the server" : dl_status_text(event.status),
                dl_driver_measured(ns_of_ms(event.valid_ms)).text);
            break;
        case DL_EVENT_RENEWAL_RECOVERED:
            run->renewal_failing = false;
            notice_line("'%s': renewal works again", run->name);
            break;
        case DL_EVENT_LOST:
            (void)snprintf(run->loss, sizeof run->loss, "%s", event.text);
            break;
        case DL_EVENT_WARNING:
            notice_line("%s", event.text);
            break;
        case DL_EVENT_THREAD_EXITED:
            break; /* our holding thread is this one */
        }
        event = (dl_event_t)DL_EVENT_INIT;
    }
}

void watch_run(run_t *run) {
    run->terminal_given = terminal_is_for_command(run->terminal);
    run->valid_until_ns = valid_until(run);
    if (run->valid_until_ns == 0) {
        run->cause = END_LOST; /* so late that nothing is started */
        return;
    }
    note_t start = {.kind = NOTE_START,
                    .number = run->terminal_given,
                    .token = dl_token(run->lock),
                    .valid_until_ns = run->valid_until_ns,
                    .grace_ns = ns_of_ms(run->grace_ms),
                    .margin_ns = ns_of_ms(run->margin_ms)};
    verbose_line("at %" PRIu64 " ms: holding '%s', token %" PRIu64 ", valid until %" PRIu64 " ms",
                 ms_of(now_ns()), run->name, start.token, ms_of(run->valid_until_ns));
    (void)note_send(run->keeper.socket, &start, true);
    while (!run->ended && now_ns() < run->leave_ns) {
        timer_set(run->timer_fd, act(run));
        struct pollfd fds[] = {{.fd = run->keeper_died ? -1 : run->keeper.socket, .events = POLLIN},
                               {.fd = run->group > 0 ? run->signal_fd : -1, .events = POLLIN},
                               {.fd = dl_event_fd(run->client), .events = POLLIN},
                               {.fd = run->timer_fd, .events = POLLIN}};
        if (poll(fds, sizeof fds / sizeof fds[0], -1) < 0 && errno != EINTR) {
            (void)poll(NULL, 0, 1); /* no memory in the kernel: not a reason to spin */
        }
        take_events(run);
        take_notes(run); /* what the keeper did while we were stopped, before we act or kill by its numbers */
        if (!run->ended && run->group > 0) { /* until then the kernel keeps the signals for the command */
            take_signals(run);
        }
    }
    if (!run->ended) {
        run->ended_ns = now_ns();
        keeper_kill(&run->keeper); /* it would go on trying */
    }
    take_events(run); /* what came with the end */
    (void)terminal_take_back(run->terminal, run->group);
}
