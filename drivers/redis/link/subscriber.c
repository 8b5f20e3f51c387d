/* subscriber.c - the callers' side: making, sleeping on and ending watches. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "listener.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

dl_status_t dli_subscriber_open(const dli_endpoint_t *endpoint, const dl_driver_env_t *env,
                                dli_subscriber_t **subscriber, dl_error_t *err) {
    *subscriber = NULL;
    dli_subscriber_t *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    s->endpoint = endpoint;
    s->env = env;
    s->poke_fd = -1;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_mutex_init(&s->io, NULL);
    *subscriber = s;
    return DL_OK;
}

/* Other threads of the parent may have been anywhere at the instant of the fork, so nothing but descriptors
 * is looked at, and no memory is given back. */
static void close_in_child(dli_subscriber_t *s) {
    dli_conn_close(atomic_load(&s->conn), true);
    for (dl_watch_t *watch = atomic_load(&s->channels.watches); watch != NULL;
         watch = atomic_load(&watch->next_of_all)) {
        close(watch->fd);
    }
    if (s->poke_fd >= 0) {
        close(s->poke_fd);
    }
}

void dli_subscriber_close(dli_subscriber_t *s, bool forked) {
    if (s == NULL) {
        return;
    }
    if (forked) {
        close_in_child(s);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    s->closing = true;
    bool started = s->started;
    pthread_mutex_unlock(&s->mutex);
    if (started) {
        dli_listener_poke(s);
        s->env->thread_join(s->thread);
    }
    if (s->poke_fd >= 0) {
        close(s->poke_fd);
    }
    dli_channels_free(&s->channels);
    pthread_mutex_destroy(&s->mutex);
    pthread_mutex_destroy(&s->io);
    free(s);
}

/* ---- joining a channel: the mutex is held ----------------------------------------------------------- */

static dl_status_t start(dli_subscriber_t *s, dl_error_t *err) {
    if (s->started) {
        return DL_OK;
    }
    if (s->poke_fd < 0) {
        s->poke_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (s->poke_fd < 0) {
            return dl_driver_fail(err, DL_ELIMIT, errno, "no descriptor to listen with: %s", strerror(errno));
        }
    }
    int error = s->env->thread_start(&s->thread, dli_listener_main, s);
    if (error != 0) {
        return dl_driver_fail(err, DL_ELIMIT, error, "no thread to listen with: %s", strerror(error));
    }
    s->started = true;
    return DL_OK;
}

static dl_status_t fail_with_reason(const dli_subscriber_t *s, dl_status_t status, dl_error_t *err) {
    /* It may have become ready again, and the reason forgotten. */
    const char *why = s->why.status != DL_OK ? s->why.message : "the connection failed";
    return dl_driver_fail(err, status, s->why.native, "cannot hear of releases: %s", why);
}

static dl_status_t fail_broken(const dli_subscriber_t *s, const dl_watch_t *watch, dl_error_t *err) {
    if (watch->channel != NULL) {
        return fail_with_reason(s, (dl_status_t)atomic_load(&watch->broken), err);
    }
    return dl_driver_fail(err, DL_ENOTSUP, 0, "the server refuses the subscription: %s", s->refusal);
}

static dl_status_t join(dli_subscriber_t *s, const char *channel, size_t len, dl_watch_t *watch,
                        dl_error_t *err) {
    dl_status_t status = start(s, err);
    if (status != DL_OK) {
        return status;
    }
    s->wanted_until_ns = s->env->now_ns() + DLI_INTEREST_NS;
    if (!s->ready && s->failures > 0) {
        /* The server is known to be down. The thread goes on trying for a while, since somebody asked. */
        dli_listener_poke(s);
        return fail_with_reason(s, s->why.status, err);
    }
    if (!dli_channels_join(&s->channels, channel, len, watch)) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    if (watch->channel->state == DLI_CHANNEL_WANTED) {
        dli_listener_poke(s);
    }
    return DL_OK;
}

/* ---- in steps --------------------------------------------------------------------------------------- */

dl_status_t dli_subscriber_ask(dli_subscriber_t *s, const char *channel, size_t len, dl_watch_t **watch,
                               dl_error_t *err) {
    *watch = NULL;
    dl_watch_t *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    made->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (made->fd < 0) {
        free(made);
        return dl_driver_fail(err, DL_ELIMIT, errno, "no descriptor for a wait: %s", strerror(errno));
    }
    /* What has come before this watch shall not wake it. */
    (void)dli_listener_read(s);
    pthread_mutex_lock(&s->mutex);
    made->pending = true;
    dl_status_t status = join(s, channel, len, made, err);
    pthread_mutex_unlock(&s->mutex);
    if (status != DL_OK) {
        close(made->fd);
        free(made);
        return status;
    }
    *watch = made;
    return DL_OK;
}

dl_status_t dli_subscriber_state(dli_subscriber_t *s, dl_watch_t *watch, dl_error_t *err) {
    dl_status_t status = DL_ETIMEDOUT;
    pthread_mutex_lock(&s->mutex);
    if (atomic_load(&watch->broken) != DL_OK) {
        status = fail_broken(s, watch, err);
    } else if (watch->channel->state == DLI_CHANNEL_LIVE) {
        if (watch->pending) {
            dli_watch_drain(watch); /* what woke it until now comes before the next try */
        }
        watch->pending = false;
        status = DL_OK;
    }
    pthread_mutex_unlock(&s->mutex);
    return status;
}

dl_status_t dli_subscriber_fail_late(dli_subscriber_t *s, dl_error_t *err) {
    pthread_mutex_lock(&s->mutex);
    dl_status_t status =
        !s->ready && s->why.status != DL_OK
            ? fail_with_reason(s, DL_EIO, err)
            : dl_driver_fail(err, DL_EIO, ETIMEDOUT, "%s did not confirm a subscription in time",
                             s->endpoint->label);
    pthread_mutex_unlock(&s->mutex);
    return status;
}

void dli_subscriber_sleep(dli_subscriber_t *s, dl_watch_t *watch, struct pollfd fds[2]) {
    pthread_mutex_lock(&s->mutex);
    bool leads = s->ready && s->leader == NULL;
    if (leads) {
        s->leader = watch;
        s->was_led = true;
    } else {
        s->sleepers++;
    }
    fds[0] = (struct pollfd){.fd = watch->fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = leads ? s->fd : -1, .events = POLLIN};
    pthread_mutex_unlock(&s->mutex);
}

void dli_subscriber_hear(dli_subscriber_t *s, struct pollfd fds[2]) {
    if (fds[1].revents != 0 && !dli_listener_read(s)) {
        fds[1].fd = -1;
    }
}

bool dli_subscriber_rise(dli_subscriber_t *s, const dl_watch_t *watch, const struct pollfd fds[2]) {
    pthread_mutex_lock(&s->mutex);
    bool led = s->leader == watch;
    if (led) {
        s->leader = NULL;
    } else {
        s->sleepers--;
    }
    bool others = s->sleepers > 0;
    pthread_mutex_unlock(&s->mutex);
    if (led && others) {
        dli_listener_poke(s); /* they rely on somebody who reads */
    }
    if (fds[0].revents == 0) {
        return false;
    }
    dli_watch_drain(watch);
    return true;
}

void dli_subscriber_unwatch(dli_subscriber_t *s, dl_watch_t *watch) {
    pthread_mutex_lock(&s->mutex);
    dli_channels_leave(&s->channels, watch, s->env->now_ns());
    pthread_mutex_unlock(&s->mutex);
    close(watch->fd);
    free(watch);
}

/* ---- at one go -------------------------------------------------------------------------------------- */

/* As poll; reads the connection meanwhile. The watch's two entries come first. */
static int sleep_and_read(dli_subscriber_t *s, struct pollfd fds[4], uint64_t deadline_ns) {
    for (;;) {
        int n = s->env->poll(fds, 4, deadline_ns);
        if (n != 1 || fds[1].revents == 0) {
            return n;
        }
        dli_subscriber_hear(s, fds);
        /* A flood of messages for others does not put off the end. */
        if (s->env->now_ns() >= deadline_ns) {
            fds[1].fd = -1;
        }
    }
}

dl_status_t dli_subscriber_wait(dli_subscriber_t *s, dl_watch_t *watch, uint64_t deadline_ns,
                                const dl_stop_t *stop, dl_error_t *err) {
    struct pollfd fds[4] = {
        [2] = {.fd = stop->fd[0], .events = POLLIN},
        [3] = {.fd = stop->fd[1], .events = POLLIN},
    };
    dli_subscriber_sleep(s, watch, fds);
    int n = sleep_and_read(s, fds, deadline_ns);
    int reason = errno;
    bool was_woken = dli_subscriber_rise(s, watch, fds);
    if (n < 0) {
        return dl_driver_fail(err, DL_EIO, reason, "cannot wait: %s", strerror(reason));
    }
    if (n == 0) {
        return dl_driver_fail(err, DL_ETIMEDOUT, 0, "the wait is over");
    }
    if (!was_woken) {
        return dl_driver_fail(err, DL_ECANCELED, 0, "the wait was cancelled");
    }
    if (atomic_load(&watch->broken) == DL_OK) {
        return DL_OK;
    }
    dli_watch_wake(watch); /* it stays broken, and nobody is to sleep on it */
    return dli_subscriber_state(s, watch, err);
}

/* Until the server has confirmed it. */
static dl_status_t await(dli_subscriber_t *s, dl_watch_t *watch, uint64_t deadline_ns, const dl_stop_t *stop,
                         dl_error_t *err) {
    dl_status_t status;
    while ((status = dli_subscriber_state(s, watch, err)) == DL_ETIMEDOUT) {
        status = dli_subscriber_wait(s, watch, deadline_ns, stop, err);
        if (status != DL_OK) {
            return status == DL_ETIMEDOUT ? dli_subscriber_fail_late(s, err) : status;
        }
    }
    return status;
}

dl_status_t dli_subscriber_watch(dli_subscriber_t *s, const char *channel, size_t len, uint64_t deadline_ns,
                                 const dl_stop_t *stop, dl_watch_t **watch, dl_error_t *err) {
    dl_status_t status = dli_subscriber_ask(s, channel, len, watch, err);
    if (status != DL_OK) {
        return status;
    }
    status = await(s, *watch, deadline_ns, stop, err);
    if (status != DL_OK) {
        dli_subscriber_unwatch(s, *watch);
        *watch = NULL;
    }
    return status;
}
