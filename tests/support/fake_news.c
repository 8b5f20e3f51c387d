/* fake_news.c - how clients of an in-memory server hear of releases. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/fake_news.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "support/fake_net.h"

/* A subscription of one client, known to the server: it is told of every release of the name. */
struct dl_watch {
    dl_watch_t *next;
    fake_client_t *state;
    uint64_t confirmed_ns; /* when the client knows that the server has it; DL_NO_DEADLINE: it does */
    int news;              /* there was a release, and nobody has read of it */
    size_t name_len;
    char name[DL_NAME_MAX + 1];
};

static dl_watch_t *watches; /* of all clients */
static pthread_mutex_t watches_mutex = PTHREAD_MUTEX_INITIALIZER;

void fake_client_open(fake_client_t *client, const dl_option_value_t *options, const dl_driver_env_t *env) {
    client->env = env;
    client->half_way_ns = (uint64_t)options[FAKE_OPT_LATENCY].number * FAKE_NS_PER_MS / 2;
    client->news_fd = -1;
}

void fake_client_close(fake_client_t *client) {
    if (client->env != NULL && client->news_fd >= 0) {
        close(client->news_fd);
    }
}

void fake_notify(const char *name) {
    pthread_mutex_lock(&watches_mutex);
    for (dl_watch_t *w = watches; w != NULL; w = w->next) {
        if (strcmp(w->name, name) != 0) {
            continue;
        }
        if (!w->state->connected) {
            w->state->env->woken(w->state->env->core, w->name, w->name_len, 1);
        } else {
            uint64_t one = 1;
            ssize_t n = write(w->state->news_fd, &one, sizeof one);
            (void)n;
            w->news = 1;
        }
    }
    pthread_mutex_unlock(&watches_mutex);
}

/* With the mutex held. Tells of the watches that have been confirmed by now, or of which there is news. */
static void tell(const fake_client_t *state) {
    uint64_t now_ns = state->env->now_ns();
    for (dl_watch_t *w = watches; w != NULL; w = w->next) {
        if (w->state == state && (w->confirmed_ns <= now_ns || w->news)) {
            w->confirmed_ns = w->confirmed_ns <= now_ns ? DL_NO_DEADLINE : w->confirmed_ns;
            w->news = 0;
            state->env->woken(state->env->core, w->name, w->name_len, 1);
        }
    }
}

dl_status_t fake_watch(void *state_, const char *name, size_t name_len, dl_watch_t **watch, dl_error_t *err) {
    fake_client_t *state = state_;
    dl_watch_t *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "no memory for a watch");
    }
    w->state = state;
    w->confirmed_ns = state->env->now_ns() + 2 * state->half_way_ns;
    w->name_len = name_len;
    memcpy(w->name, name, name_len);
    pthread_mutex_lock(&watches_mutex);
    if (state->connected && state->news_fd < 0) {
        state->news_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    }
    if (state->connected && state->news_fd < 0) {
        pthread_mutex_unlock(&watches_mutex);
        free(w);
        return dl_driver_fail(err, DL_ELIMIT, 0, "no descriptor for the news");
    }
    *watch = w;
    w->next = watches;
    watches = w;
    tell(state);
    pthread_mutex_unlock(&watches_mutex);
    return DL_OK;
}

void fake_unwatch(void *state, dl_watch_t *watch) {
    (void)state;
    pthread_mutex_lock(&watches_mutex);
    dl_watch_t **at = &watches;
    while (*at != watch) {
        at = &(*at)->next;
    }
    *at = watch->next;
    pthread_mutex_unlock(&watches_mutex);
    free(watch);
}

size_t fake_listen_fds(void *state_, struct pollfd *fds, size_t max, uint64_t *until_ns) {
    (void)max;
    const fake_client_t *state = state_;
    size_t n = 0;
    *until_ns = DL_NO_DEADLINE;
    pthread_mutex_lock(&watches_mutex);
    for (const dl_watch_t *w = watches; w != NULL; w = w->next) {
        if (w->state == state) {
            n = (size_t)state->connected;
            *until_ns = w->confirmed_ns < *until_ns ? w->confirmed_ns : *until_ns;
        }
    }
    fds[0] = (struct pollfd){.fd = state->news_fd, .events = POLLIN};
    pthread_mutex_unlock(&watches_mutex);
    return n;
}

void fake_listen(void *state_, const struct pollfd *fds, size_t n) {
    const fake_client_t *state = state_;
    pthread_mutex_lock(&watches_mutex);
    if (n > 0 && fds[0].revents != 0) {
        uint64_t count;
        ssize_t got = read(state->news_fd, &count, sizeof count); /* fails if it was read before */
        (void)got;
    }
    tell(state);
    pthread_mutex_unlock(&watches_mutex);
}
