/* listener.c - the thread of a subscriber: keeps the connection, connects again, watches over silence. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "listener.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Pauses before an attempt to connect: exponential backoff with full jitter. */
#define RETRY_FIRST_NS (20 * DLI_ONE_MS_NS)
#define RETRY_MAX_NS (500 * DLI_ONE_MS_NS)
/* A connection that lived so long was a good one. */
#define GOOD_NS (1000 * DLI_ONE_MS_NS)
/* Down for so long, and waits are woken now and then, since they hear of nothing. */
#define PATIENCE_NS (1000 * DLI_ONE_MS_NS)
#define WAKE_EVERY_NS (500 * DLI_ONE_MS_NS)
/* A connection without channels is kept so long. */
#define EMPTY_NS (10000 * DLI_ONE_MS_NS)

void dli_listener_poke(const dli_subscriber_t *s) {
    uint64_t one = 1;
    ssize_t n = write(s->poke_fd, &one, sizeof one); /* only fails when it is readable already */
    (void)n;
}

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t pause_ns(const dli_subscriber_t *s) {
    uint64_t cap_ns = RETRY_FIRST_NS;
    for (unsigned i = 0; i < s->attempts && cap_ns < RETRY_MAX_NS; i++) {
        cap_ns *= 2;
    }
    cap_ns = earlier(cap_ns, RETRY_MAX_NS);
    uint64_t draw = 0;
    return s->env->random(&draw, sizeof draw) == 0 ? draw % (cap_ns + 1) : cap_ns;
}

/* A forked child must not find a connection that is being freed. */
static void drop_connection(dli_subscriber_t *s) {
    dli_conn_close(atomic_exchange(&s->conn, NULL), false);
    dli_commands_clear(&s->commands);
    s->dues.len = 0;
    s->broke = (dl_error_t){0};
}

/* ---- losing the connection -------------------------------------------------------------------------- */

/* Wakes those who sleep, since they hear of nothing; and those who make a watch, if waiting is no cure. */
static void wake_all(dli_subscriber_t *s, bool wake_sleepers) {
    bool hopeless = s->why.status != DL_EIO;
    for (dl_watch_t *watch = atomic_load(&s->channels.watches); watch != NULL;
         watch = atomic_load(&watch->next_of_all)) {
        if (watch->pending && hopeless) {
            atomic_store(&watch->broken, (int)s->why.status);
        }
        if (watch->pending ? hopeless : wake_sleepers) {
            dli_watch_wake(watch);
        }
    }
}

/* True: there was one that was ready. */
static bool lose(dli_subscriber_t *s, const dl_error_t *why) {
    uint64_t now = s->env->now_ns();
    pthread_mutex_lock(&s->mutex);
    bool lost = s->ready;
    s->ready = false;
    s->why = *why;
    if (lost) {
        s->down_ns = now;
        s->failures = 0;
        s->attempts = now - s->ready_ns >= GOOD_NS ? 0 : s->attempts + 1;
    } else {
        s->failures++;
        s->attempts++;
    }
    bool wake_sleepers = lost || (s->down_ns + PATIENCE_NS <= now && s->woke_ns + WAKE_EVERY_NS <= now);
    if (wake_sleepers) {
        s->woke_ns = now;
    }
    dli_channels_reset(&s->channels);
    wake_all(s, wake_sleepers);
    if (s->leader != NULL) {
        /* Even one whose watch is in the making: the descriptor that it polls may soon be another file's.
         * Until it wakes no harm is done: it only polls it, and reads nothing but a connection that is
         * ready. */
        dli_watch_wake(s->leader);
    }
    pthread_mutex_unlock(&s->mutex);
    drop_connection(s);
    s->retry_ns = now + pause_ns(s);
    return lost;
}

/* ---- a connection that is ready --------------------------------------------------------------------- */

static void become_ready(dli_subscriber_t *s) {
    uint64_t now = s->env->now_ns();
    s->ready_ns = s->heard_ns = now;
    struct pollfd fd;
    dli_conn_want(atomic_load(&s->conn), &fd);
    pthread_mutex_lock(&s->mutex);
    s->ready = true;
    s->fd = fd.fd;
    s->failures = 0;
    s->why = (dl_error_t){0};
    pthread_mutex_unlock(&s->mutex);
    if (s->was_ready) {
        s->env->count(s->env->core, DL_COUNT_RECONNECT, 1);
    }
    s->was_ready = true;
}

static void warn_of_refusal(dli_subscriber_t *s) {
    char text[256];
    pthread_mutex_lock(&s->mutex);
    bool warn = s->refused && !s->warned_of_refusal;
    snprintf(text, sizeof text, "the user may not subscribe to every lock's channel, so waits poll: %s",
             s->refusal);
    pthread_mutex_unlock(&s->mutex);
    if (warn) {
        s->warned_of_refusal = true;
        s->env->report(s->env->core, DL_LOG_WARNING, text);
    }
}

/* Everything that has come. */
static dl_status_t hear(dli_subscriber_t *s, dl_error_t *err) {
    for (;;) {
        redisReply *reply = NULL;
        dl_status_t status = dli_conn_next(atomic_load(&s->conn), &reply, err);
        if (status != DL_OK || reply == NULL) {
            return status;
        }
        pthread_mutex_lock(&s->mutex);
        status = dli_hearing_hear(s, reply, err);
        pthread_mutex_unlock(&s->mutex);
        freeReplyObject(reply);
        if (status != DL_OK) {
            return status;
        }
    }
}

bool dli_listener_read(dli_subscriber_t *s) {
    pthread_mutex_lock(&s->io);
    bool ready = s->ready && s->broke.status == DL_OK;
    if (ready) {
        dli_conn_t *conn = atomic_load(&s->conn);
        dl_error_t err = {0};
        struct pollfd fd;
        size_t dues = s->dues.len;
        dl_status_t status = dli_conn_step(conn, POLLIN, &err);
        status = status == DL_OK ? hear(s, &err) : status;
        if (status != DL_OK) {
            s->broke = err;
            s->broke.status = status;
        }
        dli_conn_want(conn, &fd);
        if (status != DL_OK || s->dues.len != dues || (fd.events & POLLOUT) != 0) {
            dli_listener_poke(s); /* to lose it, to say what follows from the answers, to write the rest */
        }
    }
    pthread_mutex_unlock(&s->io);
    return ready;
}

static dl_status_t check_silence(const dli_subscriber_t *s, dl_error_t *err) {
    uint64_t patience_ns = (uint64_t)s->env->call_timeout_ms * DLI_ONE_MS_NS;
    if (s->dues.len == 0 || s->env->now_ns() < s->asked_ns + patience_ns) {
        return DL_OK;
    }
    return dl_driver_fail(err, DL_EIO, ETIMEDOUT, "%s does not answer", s->endpoint->label);
}

static dl_status_t speak(dli_subscriber_t *s, dl_error_t *err) {
    dli_commands_t *commands = &s->commands;
    pthread_mutex_lock(&s->mutex);
    dli_hearing_speak(s, s->env->now_ns());
    pthread_mutex_unlock(&s->mutex);
    if (commands->out_of_memory) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    dl_status_t status = DL_OK;
    if (commands->len > 0) {
        status = dli_conn_send(atomic_load(&s->conn), commands->bytes, commands->len, err);
        dli_commands_clear(commands);
    }
    return status;
}

/* One turn of a connection that is there. */
static dl_status_t go_on(dli_subscriber_t *s, short revents, dl_error_t *err) {
    dli_conn_t *conn = atomic_load(&s->conn);
    if (s->broke.status != DL_OK) {
        *err = s->broke;
        return err->status;
    }
    /* Whoever was to read may not have come to it, and is not to be taken for a silent server. */
    dl_status_t status = dli_conn_step(conn, s->ready ? POLLIN : revents, err);
    if (status != DL_OK || !dli_conn_is_ready(conn)) {
        return status;
    }
    if (!s->ready) {
        become_ready(s);
    }
    status = hear(s, err);
    if (status == DL_OK) {
        status = check_silence(s, err); /* after hearing: the answer may have lain there all the time */
    }
    return status == DL_OK ? speak(s, err) : status;
}

/* ---- the thread ------------------------------------------------------------------------------------- */

static void begin_to_connect(dli_subscriber_t *s) {
    dl_error_t err = {0};
    dli_conn_t *conn = NULL;
    int64_t own_ms = s->endpoint->connect_timeout_ms;
    uint64_t allowed_ms = (uint64_t)(own_ms > 0 ? own_ms : s->env->call_timeout_ms);
    uint64_t until_ns = s->env->now_ns() + allowed_ms * DLI_ONE_MS_NS;
    if (dli_conn_start(s->endpoint, s->env, until_ns, &conn, &err) != DL_OK) {
        (void)lose(s, &err);
        return;
    }
    atomic_store(&s->conn, conn);
}

/* Nobody has waited for long: the connection goes, and the next watch begins anew, whatever failed before. */
static void retire(dli_subscriber_t *s) {
    pthread_mutex_lock(&s->mutex);
    bool unused = s->channels.count == 0 && s->wanted_until_ns <= s->env->now_ns();
    if (unused) {
        s->ready = false;
        s->failures = 0;
    }
    pthread_mutex_unlock(&s->mutex);
    if (unused) {
        drop_connection(s);
        s->attempts = 0;
        s->was_ready = false;
    }
}

/* When to look again even if nothing happens; brings about what is due now. */
static uint64_t plan(dli_subscriber_t *s, size_t channels, uint64_t wanted_until_ns) {
    uint64_t now = s->env->now_ns();
    s->empty_ns = channels > 0 ? 0 : s->empty_ns != 0 ? s->empty_ns : now;
    bool wanted = channels > 0 || now < wanted_until_ns;
    uint64_t keep_until_ns = later(s->empty_ns + EMPTY_NS, wanted_until_ns);
    if (!wanted && (atomic_load(&s->conn) == NULL || (s->ready && keep_until_ns <= now))) {
        retire(s);
    }
    if (atomic_load(&s->conn) == NULL && wanted && s->retry_ns <= now) {
        begin_to_connect(s);
    }
    dli_conn_t *conn = atomic_load(&s->conn);
    if (conn == NULL) {
        return wanted ? s->retry_ns : DL_NO_DEADLINE;
    }
    if (!s->ready) {
        /* A server nearby may have answered already, and then nothing more comes of its own. */
        return dli_conn_is_ready(conn) ? now : dli_conn_until(conn);
    }
    if (channels == 0) {
        return keep_until_ns;
    }
    /* Channels that become idle meanwhile are noticed at the next look; that is soon enough. */
    uint64_t patience_ns = (uint64_t)s->env->call_timeout_ms * DLI_ONE_MS_NS;
    return earlier(now + DLI_QUIET_NS, s->dues.len > 0 ? s->asked_ns + patience_ns : DL_NO_DEADLINE);
}

static bool look(dli_subscriber_t *s, size_t *channels, uint64_t *wanted_until_ns) {
    pthread_mutex_lock(&s->mutex);
    bool closing = s->closing;
    *channels = s->channels.count;
    *wanted_until_ns = s->wanted_until_ns;
    pthread_mutex_unlock(&s->mutex);
    return !closing;
}

/* Once nobody leads, the next leader is awaited until the next look, if nobody sleeps and no answer is due.
 * Messages cannot pile up for longer. */
static bool leaves_reading(dli_subscriber_t *s) {
    pthread_mutex_lock(&s->mutex);
    bool led = s->leader != NULL;
    bool leaves = led || (s->was_led && s->sleepers == 0 && s->dues.len == 0);
    s->was_led = led;
    pthread_mutex_unlock(&s->mutex);
    return leaves;
}

/* Everything up to the next sleep. */
static uint64_t prepare(dli_subscriber_t *s, size_t channels, uint64_t wanted_until_ns, struct pollfd *fd) {
    pthread_mutex_lock(&s->io);
    uint64_t until_ns = plan(s, channels, wanted_until_ns);
    *fd = (struct pollfd){.fd = -1};
    if (atomic_load(&s->conn) != NULL) {
        dli_conn_want(atomic_load(&s->conn), fd);
        if (s->ready && leaves_reading(s)) {
            fd->events &= POLLOUT;
            fd->fd = fd->events != 0 ? fd->fd : -1;
        }
    }
    pthread_mutex_unlock(&s->io);
    return until_ns;
}

static void take_turn(dli_subscriber_t *s, short revents) {
    dl_error_t err = {0};
    pthread_mutex_lock(&s->io);
    bool lost = atomic_load(&s->conn) != NULL && go_on(s, revents, &err) != DL_OK && lose(s, &err);
    pthread_mutex_unlock(&s->io);
    if (lost) {
        char text[400];
        snprintf(text, sizeof text, "lost the connection that hears of releases: %s", err.message);
        s->env->report(s->env->core, DL_LOG_INFO, text);
    }
    warn_of_refusal(s);
}

void *dli_listener_main(void *arg) {
    dli_subscriber_t *s = arg;
    size_t channels;
    uint64_t wanted_until_ns;
    while (look(s, &channels, &wanted_until_ns)) {
        struct pollfd fds[2] = {{.fd = s->poke_fd, .events = POLLIN}};
        uint64_t until_ns = prepare(s, channels, wanted_until_ns, &fds[1]);
        if (s->env->poll(fds, 2, until_ns) < 0) {
            fds[0].revents = fds[1].revents = 0;
        }
        if (fds[0].revents != 0) {
            uint64_t count;
            ssize_t n = read(s->poke_fd, &count, sizeof count);
            (void)n;
        }
        take_turn(s, fds[1].revents);
    }
    drop_connection(s);
    dli_commands_free(&s->commands);
    free(s->dues.ring);
    return NULL;
}
