/* run.c - dlock run: takes the lock, runs a command, and frees the lock when everything has ended. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "clock.h"
#include "commands.h"
#include "dlock/driver.h"
#include "exits.h"
#include "processes.h"
#include "report.h"
#include "run.h"
#include "terminal.h"
#include "waiting.h"

#define GRACE_MAX_MS 2000
/* The shortest margin where the lease is long enough: for the scheduler, and for the kernel to end
 * processes. */
#define MARGIN_MIN_MS 50

/* How early the command is ended, from the time it has (the lease or the longest hold), and whether that
 * fits. 0, or an exit status after a line. */
static int plan_end(run_t *run, const dl_client_info_t *info, int64_t max_hold_ms) {
    const options_t *options = run->options;
    bool automatic = options->lease_ms == DL_LEASE_AUTO;
    int64_t lease_ms = automatic ? info->lease_ms : options->lease_ms;
    int64_t window_ms = max_hold_ms > 0 && max_hold_ms < lease_ms ? max_hold_ms : lease_ms;
    int64_t least_ms = window_ms / 4 < MARGIN_MIN_MS ? window_ms / 4 : MARGIN_MIN_MS;
    run->margin_ms = window_ms / 20 > least_ms ? window_ms / 20 : least_ms;
    run->grace_ms = window_ms / 6 < GRACE_MAX_MS ? window_ms / 6 : GRACE_MAX_MS;
    if (options->grace_ms == GRACE_DEFAULT) {
        return 0;
    }
    /* With working renewals the time that is left falls to the lease less one period, and then some. */
    int64_t longest_ms = window_ms - run->margin_ms - window_ms / 20;
    if (automatic && window_ms == lease_ms) {
        longest_ms -= info->renew_every_ms;
    }
    if (options->grace_ms > longest_ms) {
        return usage_error("--grace: %s is too long for a lease of %s: at most %s",
                           dl_driver_duration(options->grace_ms).text, dl_driver_duration(window_ms).text,
                           dl_driver_duration(longest_ms > 0 ? longest_ms : 0).text);
    }
    run->grace_ms = options->grace_ms;
    return 0;
}

static void tell_events(void *arg) {
    take_events(arg);
}

/* Opens the client and gets the lock; signals end it. 0, or an exit status after a line. */
static int get_lock(run_t *run) {
    const options_t *options = run->options;
    waiting_t waiting;
    dl_error_t err = {.message = ""};
    dl_status_t status = waiting_begin(&waiting, &run->signals, run->keeper.socket, run->name, &err);
    if (status != DL_OK) {
        return report_failure(status, &err);
    }
    int failed = open_lock(options, &run->client, &run->lock);
    if (failed == 0) {
        dl_client_info_t info = DL_CLIENT_INFO_INIT;
        (void)dl_client_info(run->client, &info);
        int64_t max_hold_ms = options->max_hold_ms > 0 ? options->max_hold_ms : info.max_hold_ms;
        failed = plan_end(run, &info, max_hold_ms);
        if (failed == 0) {
            dl_acquire_opts_t how = DL_ACQUIRE_OPTS_INIT;
            how.wait_ms = options->wait_ms == WAIT_FOREVER ? DL_WAIT_FOREVER : options->wait_ms;
            how.lease_ms = options->lease_ms;
            how.max_hold_ms = options->max_hold_ms;
            how.cancel = waiting.cancel;
            lines_may_wait(false);
            verbose_line("at %" PRIu64 " ms: waiting for '%s'", now_ns() / NS_PER_MS, run->name);
            waiting_listen(&waiting, dl_event_fd(run->client), tell_events, run);
            holder_watch_begin(&run->holder_watch, run->options, run->name);
            status = dl_acquire(run->lock, &how, &err);
            run->hold_end_ns = max_hold_ms > 0 ? now_ns() + ns_of_ms(max_hold_ms) : NEVER_NS;
            (void)holder_watch_end(&run->holder_watch);
        }
    }
    int caught = waiting_end(&waiting);
    bool held = failed == 0 && status == DL_OK;
    if (caught != 0 && held) {
        (void)dl_unlock(run->lock, NULL); /* it came together with the signal */
        held = false;
    }
    lines_may_wait(!held);
    take_events(run); /* what is left of them, such as why there was no lock */
    if (caught != 0) {
        return waiting_tell_end(run->name, caught);
    }
    if (failed != 0 || held) {
        return failed;
    }
    if (status == DL_EBUSY || status == DL_ETIMEDOUT) {
        notice_line("'%s': the lock was not obtained, and nothing was run: %s", run->name,
                    err.message[0] != '\0' ? err.message : dl_status_text(status));
        return EX_TEMPFAIL;
    }
    return report_failure(status, &err);
}

/* Does the longest hold end it, and not the lease? The library's own count of it began a moment earlier. */
static bool ends_by_max_hold(const run_t *run) {
    return run->hold_end_ns <= run->valid_until_ns + 10u * (uint64_t)NS_PER_MS;
}

/* Why the command was ended, in words. */
static const char *loss_reason(const run_t *run) {
    if (run->cause == END_LOST) { /* else what was lost was lost after the end */
        return run->loss[0] != '\0' ? run->loss : "its validity is over";
    }
    if (ends_by_max_hold(run)) {
        return run->options->max_hold_ms > 0 ? "--max-hold is over" : "the backend's max_hold is over";
    }
    return run->options->lease_ms != DL_LEASE_AUTO
               ? "its lease (--lease) is over"
               : "it was not renewed in time, or dlock itself was stopped";
}

/* The lease was over before all that was started had ended. */
static bool is_left_behind(const run_t *run) {
    return run->left > 0 && !run->ended;
}

static int lost_at_end(const run_t *run) {
    error_line("'%s': the lock was lost as the command ended; another may have had it by then", run->name);
    return EXIT_LOST;
}

/* The exit status for what has happened, after a line where it is not the command's own. */
static int judge(run_t *run) {
    bool lost = run->cause == END_OF_VALIDITY || run->cause == END_LOST;
    if (is_left_behind(run)) {
        error_line("'%s': %" PRIu64
                   " process%s of the command could not be ended; the lock is not kept any longer",
                   run->name, run->left, run->left == 1 ? "" : "es");
    }
    if (run->group == 0 && run->start_errno == 0 && lost && !run->keeper_died) {
        error_line("'%s': the lock was lost before the command was started; nothing was run", run->name);
        return EXIT_LOST;
    }
    if (lost) {
        error_line(
            run->cause == END_LOST
                ? "'%s': the lock was lost: %s; the command was killed, but another may have had the lock by "
                  "then"
                : "'%s': the lock could not be kept: %s; the command was ended before another could get it",
            run->name, loss_reason(run));
        return EXIT_LOST;
    }
    if (is_left_behind(run)) {
        return EX_SOFTWARE;
    }
    if (!run->valid_at_end) {
        return lost_at_end(run);
    }
    if (run->keeper_died) {
        error_line("'%s': the process that watches the command (" KEEPER_NAME
                   ") was killed, and the command with it",
                   run->name);
        return EXIT_SIGNAL_BASE + SIGKILL;
    }
    if (run->start_errno != 0) {
        error_line("cannot run '%s': %s", plain(run->options->child[0]), strerror(run->start_errno));
        return run->group == 0 ? EX_OSERR : run->start_errno == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
    }
    return run->exit_status;
}

/* Says how the lock was freed. The exit status, which becomes EXIT_LOST when it turned out to be lost. */
static int judge_release(const run_t *run, int exit_status, dl_status_t status, const dl_error_t *err) {
    if (status == DL_ELOST && exit_status != EXIT_LOST) {
        return lost_at_end(run);
    }
    if (status != DL_OK && status != DL_ELOST) {
        notice_line("'%s': %s: %s", run->name,
                    status == DL_EUNKNOWN
                        ? "whether the lock was freed is not known; it ends with its lease at the latest"
                        : "the lock could not be freed, and ends with its lease",
                    err->message[0] != '\0' ? err->message : dl_status_text(status));
    }
    return exit_status;
}

/* The lock is freed, or was not had. */
static int close_run(run_t *run, int exit_status) {
    bool is_asking = !holder_watch_end(&run->holder_watch);
    dl_lock_close(run->lock);
    dl_client_close(run->client);
    if (is_asking) {
        /* A server that does not answer who holds it, or a terminal that takes no line: neither keeps us. */
        _exit(finish_stdout(exit_status));
    }
    return exit_status;
}

/* Is the lock left to its lease instead of being freed? */
static bool is_left_to_lease(const run_t *run) {
    if (is_left_behind(run)) {
        return true; /* it may still act as if it held it */
    }
    bool renewed = run->options->lease_ms == DL_LEASE_AUTO && !ends_by_max_hold(run);
    /* Asking the server once more would only keep us, and the lease ends now. Where a renewal came through
     * after SIGTERM was due, it does not: others would wait for a whole lease. */
    return run->cause == END_OF_VALIDITY && renewed && (run->renewal_failing || !run->valid_at_end);
}

/* After everything. The lock first: the lines wait for whoever reads them. */
static int finish_run(run_t *run) {
    dl_error_t err = {.message = ""};
    run->valid_at_end = dl_valid_ms(run->lock) > 0;
    bool left_to_lease = is_left_to_lease(run);
    bool is_late = !run->valid_at_end && run->ended_ns > run->valid_until_ns;
    if (run->cause == END_OF_VALIDITY && (is_late || is_left_behind(run))) {
        run->cause = END_LOST; /* whoever was to end it in time has been late itself */
    }
    dl_status_t status = left_to_lease ? DL_OK : dl_unlock(run->lock, &err);
    lines_may_wait(!left_to_lease); /* else the lock would go on being renewed meanwhile */
    int exit_status = judge(run);
    if (left_to_lease) {
        _exit(finish_stdout(exit_status)); /* at once, with everything open */
    }
    return close_run(run, judge_release(run, exit_status, status, &err));
}

static int with_keeper(run_t *run) {
    run->signal_fd = signalfd(-1, &run->signals.passed_on, SFD_CLOEXEC | SFD_NONBLOCK);
    run->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (run->signal_fd < 0 || run->timer_fd < 0) {
        error_line("cannot watch the command: %s", strerror(errno));
        return EX_OSERR;
    }
    run->terminal = terminal_open();
    int failed = get_lock(run);
    if (failed != 0) {
        return close_run(run, failed);
    }
    watch_run(run);
    return finish_run(run);
}

int command_run(const options_t *options) {
    run_t run = {
        .options = options, .name = plain(options->args[0]), .hold_end_ns = NEVER_NS, .leave_ns = NEVER_NS};
    char name[DL_NAME_MAX * 4 + 1]; /* plain() forgets */
    (void)snprintf(name, sizeof name, "%s", run.name);
    run.name = name;
    signals_begin(&run.signals);
    launch_t launch = {options->args[0], options->child, &run.signals};
    processes_spare_descendants(); /* of a shell that has become dlock by exec */
    (void)fflush(NULL);            /* the keeper must not write it once more */
    if (!keeper_start(&run.keeper, &launch)) {
        error_line("cannot start a process: %s", strerror(errno));
        return EX_OSERR;
    }
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* should the keeper die, what it kept comes to us */
    (void)signal(SIGPIPE, SIG_IGN);         /* the command has kept its own disposition */
    int exit_status = with_keeper(&run);
    keeper_kill(&run.keeper); /* nothing is left for it to do, but one that is stopped would keep us */
    keeper_end(&run.keeper);
    return exit_status;
}
