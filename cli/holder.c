/* holder.c - tells a person who waits for a lock who holds it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "holder.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
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

static bool is_over(holder_watch_t *watch) {
    pthread_mutex_lock(&watch->mutex);
    bool over = watch->over;
    pthread_mutex_unlock(&watch->mutex);
    return over;
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
    if (!is_news || is_over(watch)) {
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

/* With the mutex. False: the wait is over. */
static bool pause_for(holder_watch_t *watch, time_t seconds) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    while (!watch->over && pthread_cond_timedwait(&watch->changed, &watch->mutex, &until) == 0) {}
    return !watch->over;
}

static void *watch_holder(void *arg) {
    holder_watch_t *watch = arg;
    told_t told = {.owner = ""};
    time_t pause_s = FIRST_PAUSE_S;
    pthread_mutex_lock(&watch->mutex);
    while (pause_for(watch, pause_s)) {
        watch->asking = true;
        pthread_mutex_unlock(&watch->mutex);
        if (ask(watch, &told) && pause_s < PAUSE_MAX_S) {
            pause_s *= 2;
        }
        pthread_mutex_lock(&watch->mutex);
        watch->asking = false;
    }
    pthread_mutex_unlock(&watch->mutex);
    dl_lock_close(watch->lock);
    dl_client_close(watch->client);
    return NULL;
}

void holder_watch_begin(holder_watch_t *watch, const options_t *options, const char *name) {
    *watch = (holder_watch_t){.options = options, .name = name};
    if (isatty(STDERR_FILENO) != 1 || !notices_are_wanted()) {
        return;
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&watch->mutex, NULL);
    pthread_cond_init(&watch->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    watch->started =
        pthread_create(&watch->thread, NULL, watch_holder, watch) == 0; /* else it waits unsaid */
}

bool holder_watch_end(holder_watch_t *watch) {
    if (!watch->started) {
        return true;
    }
    pthread_mutex_lock(&watch->mutex);
    watch->over = true;
    bool asking = watch->asking;
    pthread_cond_signal(&watch->changed);
    pthread_mutex_unlock(&watch->mutex);
    if (!asking) {
        (void)pthread_join(watch->thread, NULL);
        watch->started = false;
    }
    return !asking;
}
