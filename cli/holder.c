/* holder.c - tells a person who waits for a lock who holds it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "holder.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "commands.h"
#include "dlock/driver.h"
#include "report.h"

#define FIRST_PAUSE_S 1
/* The pause doubles with each line: a lock that changes hands all the time is no reason for a stream of them.
 */
#define PAUSE_MAX_S 64

/* What a person knows by now. */
typedef struct told {
    bool anything;
    char owner[DL_OWNER_MAX + 1];
} told_t;

/* Waits so long for that. */
static bool is_over(const holder_watch_t *watch, int wait_s) {
    struct pollfd over = {.fd = watch->over_fd, .events = POLLIN};
    return poll(&over, 1, wait_s * 1000) > 0;
}

/* A question may take as long as a call does, and the waiter's client must not wait for it when it closes. */
static bool open_own(holder_watch_t *watch) {
    dl_error_t err;
    return watch->lock != NULL ||
           ((watch->client != NULL ||
             try_client(watch->options, watch->options->backend, &watch->client, &err) == DL_OK) &&
            dl_lock_open(watch->client, watch->options->args[0], &watch->lock, &err) == DL_OK);
}

/* True: there was something to tell. */
static bool ask(holder_watch_t *watch, told_t *told) {
    dl_error_t err;
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    bool held = open_own(watch) && dl_inspect(watch->lock, &info, &err) == DL_OK && info.held;
    bool is_news = held ? strcmp(info.owner, told->owner) != 0 : !told->anything;
    if (!is_news || is_over(watch, 0)) {
        return false;
    }
    told->anything = true;
    if (!held) {
        notice_line("waiting for '%s'", watch->name); /* who holds it cannot be had, or is just changing */
        return true;
    }
    memcpy(told->owner, info.owner, sizeof told->owner);
    const char *who = plain(info.client[0] != '\0' ? info.client : info.owner);
    if (info.remaining_ms < 0) {
        notice_line("waiting for '%s', held by %s, no known expiry", watch->name, who);
    } else {
        notice_line("waiting for '%s', held by %s, lease ends in %s unless renewed", watch->name, who,
                    dl_driver_measured(ns_of_ms(info.remaining_ms)).text);
    }
    return true;
}

static void *watch_holder(void *arg) {
    holder_watch_t *watch = arg;
    told_t told = {.owner = ""};
    int pause_s = FIRST_PAUSE_S;
    while (!is_over(watch, pause_s)) {
        atomic_store(&watch->asking, true);
        /* Looked at again: who has ended the wait since sees that this asks, or this sees the end. */
        if (!is_over(watch, 0) && ask(watch, &told) && pause_s < PAUSE_MAX_S) {
            pause_s *= 2;
        }
        atomic_store(&watch->asking, false);
    }
    dl_lock_close(watch->lock);
    dl_client_close(watch->client);
    return NULL;
}

void holder_watch_begin(holder_watch_t *watch, const options_t *options, const char *name) {
    *watch = (holder_watch_t){.options = options, .name = name};
    if (isatty(STDERR_FILENO) != 1 || !notices_are_wanted()) {
        return;
    }
    watch->over_fd = eventfd(0, EFD_CLOEXEC);
    watch->started = watch->over_fd >= 0 && pthread_create(&watch->thread, NULL, watch_holder, watch) == 0;
}

bool holder_watch_end(holder_watch_t *watch) {
    if (!watch->started) {
        return true;
    }
    eventfd_t one = 1;
    (void)eventfd_write(watch->over_fd, one);
    bool asking = atomic_load(&watch->asking);
    if (!asking) {
        (void)pthread_join(watch->thread, NULL);
        (void)close(watch->over_fd);
        watch->started = false;
    }
    return !asking;
}
