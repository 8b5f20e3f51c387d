/* subscriber.c - keeps the connection that hears: makes it, makes it again, watches over silence. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "subscriber.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hearing.h"

/* A connection that lived so long was a good one. */
#define GOOD_NS (1000 * NS_PER_MS)
/* A connection without channels is kept so long. */
#define EMPTY_NS (10000 * NS_PER_MS)

dl_status_t dli_subscriber_open(const dli_endpoint_t *endpoint, const dl_driver_env_t *env,
                                dli_subscriber_t **subscriber, dl_error_t *err) {
    *subscriber = NULL;
    dli_subscriber_t *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    s->endpoint = endpoint;
    s->env = env;
    pthread_mutex_init(&s->mutex, NULL);
    dli_hearing_init(s);
    *subscriber = s;
    return DL_OK;
}

static void drop_connection(dli_subscriber_t *s) {
    dli_conn_t *conn = s->conn;
    s->conn = NULL; /* first: a forked child must not find one that is being freed */
    atomic_signal_fence(memory_order_release);
    dli_conn_close(conn, false);
    s->ready = s->pinged = false;
}

void dli_subscriber_close(dli_subscriber_t *s, bool forked) {
    if (s == NULL) {
        return;
    }
    if (forked) {
        /* Other threads of the parent may have been anywhere at the instant of the fork. */
        dli_conn_close(s->conn, true);
        return;
    }
    drop_connection(s);
    dli_hearing_reset(s);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

dl_status_t dli_subscriber_watch(dli_subscriber_t *s, const char *channel, size_t len, dli_watcher_t *watcher,
                                 dl_error_t *err) {
    pthread_mutex_lock(&s->mutex);
    bool joined = dli_hearing_join(s, channel, len, watcher);
    pthread_mutex_unlock(&s->mutex);
    return joined ? DL_OK : dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
}

void dli_subscriber_unwatch(dli_subscriber_t *s, dli_watcher_t *watcher) {
    pthread_mutex_lock(&s->mutex);
    dli_hearing_leave(s, watcher);
    pthread_mutex_unlock(&s->mutex);
}

/* ---- losing the connection -------------------------------------------------------------------------- */

/* Or it could not be made. Who heard is told, since a message may be missed from now on. */
static void lose(dli_subscriber_t *s, const dl_error_t *why) {
    uint64_t now = s->env->now_ns();
    bool was_ready = s->ready;
    s->why = *why;
    if (was_ready && now - s->ready_ns >= GOOD_NS) {
        (void)dli_breaker_mend(&s->breaker, now);
    }
    (void)dli_breaker_fail(&s->breaker, s->env, now, false, why);
    drop_connection(s);
    pthread_mutex_lock(&s->mutex);
    dli_hearing_reset(s);
    pthread_mutex_unlock(&s->mutex);
    if (was_ready) {
        char text[400];
        snprintf(text, sizeof text, "lost the connection that hears of releases: %s", why->message);
        s->env->report(s->env->core, DL_LOG_INFO, text);
    }
}

/* ---- hearing ---------------------------------------------------------------------------------------- */

static void become_ready(dli_subscriber_t *s) {
    s->ready = true;
    s->out = dli_conn_out(s->conn);
    s->ready_ns = s->heard_ns = s->env->now_ns();
    if (s->was_ready) {
        s->env->count(s->env->core, DL_COUNT_RECONNECT, 1);
    }
    s->was_ready = true;
}

/* Everything that has come. */
static dl_status_t hear(dli_subscriber_t *s, short revents, dl_error_t *err) {
    dl_status_t status = dli_conn_step(s->conn, revents, err);
    if (status == DL_OK && !s->ready && dli_conn_is_ready(s->conn)) {
        become_ready(s);
    }
    while (status == DL_OK && s->ready) {
        redisReply *reply = NULL;
        status = dli_conn_next(s->conn, &reply, err);
        if (status != DL_OK || reply == NULL) {
            return status;
        }
        pthread_mutex_lock(&s->mutex);
        status = dli_hearing_hear(s, reply, err);
        pthread_mutex_unlock(&s->mutex);
        freeReplyObject(reply);
    }
    return status;
}

static uint64_t patience_ns(const dli_subscriber_t *s) {
    return (uint64_t)s->env->call_timeout_ms * NS_PER_MS;
}

/* After hearing: the answer may have lain there all the time. */
static dl_status_t check_silence(const dli_subscriber_t *s, dl_error_t *err) {
    if (!dli_hearing_owes(s) || s->env->now_ns() < s->asked_ns + patience_ns(s)) {
        return DL_OK;
    }
    return dl_driver_fail(err, DL_EIO, ETIMEDOUT, "%s does not answer", s->endpoint->label);
}

static void warn_of_refusal(const dli_subscriber_t *s) {
    char text[400];
    snprintf(text, sizeof text, "the user may not subscribe to every lock's channel, so waits poll: %s",
             s->why.message);
    s->env->report(s->env->core, DL_LOG_WARNING, text);
}

void dli_subscriber_listen(dli_subscriber_t *s, short revents) {
    dl_error_t err = {0};
    bool was_refused = s->refused;
    if (s->conn == NULL) {
        return;
    }
    dl_status_t status = hear(s, revents, &err);
    if (status == DL_OK) {
        status = check_silence(s, &err);
    }
    if (status != DL_OK) {
        lose(s, &err);
    }
    if (s->refused && !was_refused) {
        warn_of_refusal(s);
    }
}

/* ---- what is to be done before a poll --------------------------------------------------------------- */

static dl_status_t begin_to_connect(dli_subscriber_t *s, dl_error_t *err) {
    dl_status_t status = dli_conn_start(s->endpoint, s->env, &s->conn, err);
    /* A server nearby may have answered already, and then nothing more comes of its own. */
    if (status == DL_OK && dli_conn_is_ready(s->conn)) {
        become_ready(s);
    }
    return status;
}

static dl_status_t speak(dli_subscriber_t *s, uint64_t now, dl_error_t *err) {
    pthread_mutex_lock(&s->mutex);
    dli_hearing_speak(s, now);
    pthread_mutex_unlock(&s->mutex);
    return dli_conn_flush(s->conn, err);
}

static dl_status_t prepare(dli_subscriber_t *s, uint64_t now, dl_error_t *err) {
    pthread_mutex_lock(&s->mutex);
    bool wanted = s->count > 0;
    pthread_mutex_unlock(&s->mutex);
    s->empty_ns = wanted ? 0 : s->empty_ns != 0 ? s->empty_ns : now;
    if (!wanted && s->ready && s->empty_ns + EMPTY_NS <= now) {
        drop_connection(s);
        (void)dli_breaker_mend(&s->breaker, now);
    }
    if (s->conn == NULL && !wanted) {
        s->was_ready = false; /* the next watcher begins anew */
    }
    dl_status_t status = DL_OK;
    if (s->conn == NULL && wanted && s->breaker.closed_until_ns <= now) {
        status = begin_to_connect(s, err);
    }
    return status == DL_OK && s->ready ? speak(s, now, err) : status;
}

/* When something is due even if nothing comes. */
static uint64_t next_ns(const dli_subscriber_t *s) {
    if (s->empty_ns != 0 && (s->ready || s->conn == NULL)) {
        return s->ready ? s->empty_ns + EMPTY_NS : DL_NO_DEADLINE;
    }
    if (!s->ready) {
        return s->conn != NULL ? dli_conn_until(s->conn) : s->breaker.closed_until_ns;
    }
    return dli_hearing_owes(s) ? s->asked_ns + patience_ns(s) : s->heard_ns + DLI_QUIET_NS;
}

/* Another server, by itself, says nothing: after a restart this connection may be the first that is made. But
 * when claims have just gone elsewhere, or it leads where they went before, it hears of no release. While it
 * is being made it is not known where it leads. */
void dli_subscriber_follow(dli_subscriber_t *s, const char *run_id) {
    if (run_id[0] == '\0' || (s->conn != NULL && !s->ready)) {
        return;
    }
    bool is_new = strcmp(s->server, run_id) != 0;
    if (is_new) {
        memcpy(s->left, s->server, sizeof s->left);
        snprintf(s->server, sizeof s->server, "%s", run_id);
    }
    const char *own = s->ready ? dli_conn_facts(s->conn)->run_id : "";
    if (own[0] != '\0' && strcmp(own, run_id) != 0 && (is_new || strcmp(own, s->left) == 0)) {
        dl_error_t err;
        (void)dl_driver_fail(&err, DL_EIO, 0, "another server is at %s now", s->endpoint->label);
        lose(s, &err);
    }
}

void dli_subscriber_fds(dli_subscriber_t *s, struct pollfd *fd, uint64_t *until_ns) {
    dl_error_t err = {0};
    *fd = (struct pollfd){.fd = -1};
    if (prepare(s, s->env->now_ns(), &err) != DL_OK) {
        lose(s, &err);
    }
    if (s->conn != NULL) {
        dli_conn_want(s->conn, fd);
    }
    *until_ns = next_ns(s);
}
