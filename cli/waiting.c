/* waiting.c - lets signals end the wait for the lock, and news be told meanwhile. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "waiting.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "exits.h"
#include "keeper.h"
#include "report.h"

int waiting_tell_end(const char *name, int number) {
    if (number == SIGKILL) {
        error_line("'%s': the process that is to watch the command (" KEEPER_NAME
                   ") was killed; nothing was run",
                   name);
    } else {
        notice_line("'%s': the wait for the lock was ended by %s", name, signal_name(number).text);
    }
    return EXIT_SIGNAL_BASE + number;
}

static void end_wait(waiting_t *waiting, int number) {
    int opens = WAITING_OPENS;
    if (atomic_compare_exchange_strong(&waiting->phase, &opens, WAITING_LEAVES)) {
        _exit(waiting_tell_end(waiting->name, number));
    }
    if (atomic_load(&waiting->caught) == 0) {
        atomic_store(&waiting->caught, number);
        dl_cancel_trigger(waiting->cancel);
    }
}

static void *read_signals(void *arg) {
    waiting_t *waiting = arg;
    for (;;) {
        struct pollfd fds[] = {{.fd = waiting->stop_fd, .events = POLLIN},
                               {.fd = waiting->signal_fd, .events = POLLIN},
                               {.fd = atomic_load(&waiting->news_fd), .events = POLLIN},
                               {.fd = atomic_load(&waiting->caught) == 0 ? waiting->keeper_fd : -1}};
        if (poll(fds, sizeof fds / sizeof fds[0], -1) < 0) {
            continue;
        }
        struct signalfd_siginfo info;
        while (fds[1].revents != 0 && read(waiting->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
            int number = (int)info.ssi_signo;
            if (number == SIGTSTP) {
                (void)stop_ourselves(number, false);
            } else if (sigismember(&waiting->signals->ending, number) == 1) {
                end_wait(waiting, number);
            } /* the others are for a command that has not begun, and could not expect them */
        }
        if (fds[3].revents != 0) { /* it has hung up: nothing could be run */
            end_wait(waiting, SIGKILL);
        }
        if (fds[2].revents != 0) {
            waiting->on_news(waiting->arg);
        }
        eventfd_t count;
        if (fds[0].revents != 0 && eventfd_read(waiting->stop_fd, &count) == 0 &&
            atomic_load(&waiting->over)) {
            return NULL;
        }
    }
}

static void close_both(const waiting_t *waiting) {
    if (waiting->signal_fd >= 0) {
        (void)close(waiting->signal_fd);
    }
    if (waiting->stop_fd >= 0) {
        (void)close(waiting->stop_fd);
    }
}

dl_status_t waiting_begin(waiting_t *waiting, const signals_t *signals, int keeper_fd, const char *name,
                          dl_error_t *err) {
    dl_status_t status = dl_cancel_new(&waiting->cancel, err);
    if (status != DL_OK) {
        return status;
    }
    waiting->signals = signals;
    waiting->keeper_fd = keeper_fd;
    waiting->name = name;
    atomic_init(&waiting->phase, WAITING_OPENS);
    atomic_init(&waiting->caught, 0);
    atomic_init(&waiting->over, false);
    atomic_init(&waiting->news_fd, -1);
    waiting->signal_fd = signalfd(-1, &signals->passed_on, SFD_CLOEXEC | SFD_NONBLOCK);
    waiting->stop_fd = eventfd(0, EFD_CLOEXEC);
    int failure = errno;
    if (waiting->signal_fd >= 0 && waiting->stop_fd >= 0) {
        failure = pthread_create(&waiting->thread, NULL, read_signals, waiting);
        if (failure == 0) {
            return DL_OK;
        }
    }
    close_both(waiting);
    dl_cancel_free(waiting->cancel);
    *err = (dl_error_t){.status = DL_ELIMIT, .native = failure};
    (void)snprintf(err->message, sizeof err->message, "cannot watch for signals: %s", strerror(failure));
    return DL_ELIMIT;
}

static void look_up(waiting_t *waiting) {
    eventfd_t one = 1;
    (void)eventfd_write(waiting->stop_fd, one);
}

void waiting_listen(waiting_t *waiting, int news_fd, void (*on_news)(void *arg), void *arg) {
    int opens = WAITING_OPENS;
    if (!atomic_compare_exchange_strong(&waiting->phase, &opens, WAITING_ACQUIRES)) {
        for (;;) {
            (void)pause(); /* the other thread ends the process */
        }
    }
    waiting->on_news = on_news;
    waiting->arg = arg;
    atomic_store(&waiting->news_fd, news_fd);
    look_up(waiting);
}

int waiting_end(waiting_t *waiting) {
    atomic_store(&waiting->over, true);
    look_up(waiting);
    (void)pthread_join(waiting->thread, NULL);
    close_both(waiting);
    dl_cancel_free(waiting->cancel);
    return atomic_load(&waiting->caught);
}
