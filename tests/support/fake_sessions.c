/* fake_sessions.c - an in-memory server whose locks end with a connection. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/fake_sessions.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/alloc_fail.h"
#include "support/fake_net.h"

typedef struct session {
    struct session *next; /* in the order of connecting */
    uint64_t number;
    int fd;         /* the server's end */
    int granted_fd; /* our duplicate: written when a lock is granted to the waiter */
    int holds;
    uint64_t place;             /* in the queue; 0: not waiting */
    char name[DL_NAME_MAX + 1]; /* what it holds or waits for */
    char owner[DL_OWNER_MAX + 1];
    char client[64];
    uint64_t hold_id, token, tokens, token_floor;
    int64_t lease_ms; /* how long it may stay silent */
    uint64_t ends_ns; /* until when it may; only while it holds */
} session_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static session_t *sessions;
static uint64_t last_number, last_place, last_token;

/* ---- everything here with the mutex held ------------------------------------------------------------ */

static session_t *holder_of(const char *name) {
    session_t *s = sessions;
    while (s != NULL && !(s->holds && strcmp(s->name, name) == 0)) {
        s = s->next;
    }
    return s;
}

static session_t *by_number(uint64_t number) {
    session_t *s = sessions;
    while (s != NULL && s->number != number) {
        s = s->next;
    }
    return s;
}

static void give(session_t *s, uint64_t now_ns) {
    s->holds = 1;
    s->place = 0;
    s->ends_ns = now_ns + (uint64_t)s->lease_ms * FAKE_NS_PER_MS;
    if (last_token < s->token_floor) {
        last_token = s->token_floor;
    }
    s->token = last_token + 1;
    last_token += s->tokens;
}

/* The lock goes to the one that has waited longest. */
static void give_to_next(const char *name, uint64_t now_ns) {
    session_t *first = NULL;
    for (session_t *s = sessions; s != NULL; s = s->next) {
        if (s->place != 0 && strcmp(s->name, name) == 0 && (first == NULL || s->place < first->place)) {
            first = s;
        }
    }
    if (first != NULL) {
        give(first, now_ns);
        uint64_t one = 1;
        ssize_t n = write(first->granted_fd, &one, sizeof one);
        (void)n;
    }
}

/* Ends one connection. The client sees the hang-up; what it held goes to the next. */
static void end(session_t *gone, uint64_t now_ns) {
    session_t **at = &sessions;
    while (*at != gone) {
        at = &(*at)->next;
    }
    *at = gone->next;
    close(gone->fd);
    close(gone->granted_fd);
    if (gone->holds) {
        give_to_next(gone->name, now_ns);
    }
    alloc_real_free(gone);
}

static int has_ended(const session_t *s, uint64_t now_ns) {
    struct pollfd fd = {.fd = s->fd, .events = POLLIN};
    return (s->holds && s->ends_ns <= now_ns) || poll(&fd, 1, 0) != 0;
}

/* Ending one may give its lock to another one that has ended too: so begin again each time. */
static void notice(uint64_t now_ns) {
    session_t *s = sessions;
    while (s != NULL) {
        if (has_ended(s, now_ns)) {
            end(s, now_ns);
            s = sessions;
        } else {
            s = s->next;
        }
    }
}

/* ---- exchanges ---------------------------------------------------------------------------------------- */

int fake_sessions_connect(uint64_t *number, int *fd, int *granted_fd) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return errno;
    }
    int news = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int copy = news < 0 ? -1 : fcntl(news, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) {
        int why = errno;
        close(ends[0]);
        close(ends[1]);
        if (news >= 0) {
            close(news);
        }
        return why;
    }
    session_t *s = alloc_real(sizeof *s);
    s->fd = ends[1];
    s->granted_fd = copy;
    *fd = ends[0];
    *granted_fd = news;
    pthread_mutex_lock(&mutex);
    s->number = *number = ++last_number;
    session_t **at = &sessions;
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = s;
    pthread_mutex_unlock(&mutex);
    return 0;
}

static void note_request(session_t *s, const dl_request_t *request, const char *client) {
    snprintf(s->name, sizeof s->name, "%s", request->name);
    snprintf(s->owner, sizeof s->owner, "%s", request->owner);
    snprintf(s->client, sizeof s->client, "%s", client);
    s->hold_id = request->hold_id;
    s->lease_ms = request->lease_ms;
    s->token_floor = request->token_floor;
    s->tokens = request->tokens > 0 ? request->tokens : 1;
}

dl_status_t fake_sessions_lock(uint64_t number, const dl_request_t *request, const char *client, int queue,
                               uint64_t now_ns, dl_grant_t *grant) {
    dl_status_t status = DL_OK;
    pthread_mutex_lock(&mutex);
    notice(now_ns);
    session_t *me = by_number(number);
    session_t *holder = holder_of(request->name);
    if (me != NULL && holder != NULL && holder != me && strcmp(holder->owner, request->owner) == 0 &&
        holder->hold_id <= request->hold_id) {
        /* This owner's forgotten hold: its connection goes, and nobody of the queue is let in before us. */
        holder->holds = 0;
        end(holder, now_ns);
        holder = NULL;
    }
    if (me == NULL) {
        status = DL_ELOST;
    } else if (holder == NULL || holder == me) {
        note_request(me, request, client);
        give(me, now_ns);
        grant->token = me->token;
        grant->tokens = me->tokens;
    } else {
        note_request(me, request, client);
        me->place = queue ? ++last_place : 0;
        grant->busy_ms = (int64_t)((holder->ends_ns - now_ns + FAKE_NS_PER_MS - 1) / FAKE_NS_PER_MS);
        grant->busy_is_dlock = 1;
        status = DL_EBUSY;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

int fake_sessions_leave_queue(uint64_t number, uint64_t now_ns) {
    pthread_mutex_lock(&mutex);
    notice(now_ns);
    session_t *me = by_number(number);
    int holds = me != NULL && me->holds;
    if (me != NULL) {
        me->place = 0;
    }
    pthread_mutex_unlock(&mutex);
    return holds;
}

dl_status_t fake_sessions_ping(uint64_t number, int64_t lease_ms, uint64_t now_ns, dl_grant_t *grant) {
    pthread_mutex_lock(&mutex);
    notice(now_ns);
    session_t *me = by_number(number);
    dl_status_t status = DL_ELOST;
    if (me != NULL && me->holds) {
        uint64_t until = now_ns + (uint64_t)lease_ms * FAKE_NS_PER_MS;
        me->ends_ns = me->ends_ns > until ? me->ends_ns : until;
        grant->token = me->token;
        grant->tokens = me->tokens;
        status = DL_OK;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

dl_status_t fake_sessions_end_hold(const char *name, const char *owner, uint64_t hold_id, uint64_t now_ns) {
    pthread_mutex_lock(&mutex);
    notice(now_ns);
    session_t *holder = holder_of(name);
    dl_status_t status = DL_ELOST;
    if (holder != NULL && holder->hold_id == hold_id && strcmp(holder->owner, owner) == 0) {
        end(holder, now_ns);
        status = DL_OK;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

uint64_t fake_sessions_busy_until(const char *name, uint64_t now_ns) {
    pthread_mutex_lock(&mutex);
    notice(now_ns);
    session_t *holder = holder_of(name);
    uint64_t until = holder == NULL ? now_ns : holder->ends_ns;
    pthread_mutex_unlock(&mutex);
    return until;
}

void fake_sessions_notice(uint64_t now_ns) {
    pthread_mutex_lock(&mutex);
    notice(now_ns);
    pthread_mutex_unlock(&mutex);
}

/* ---- administration ------------------------------------------------------------------------------------ */

static void describe(const session_t *s, uint64_t now_ns, dl_lock_info_t *info) {
    info->held = 1;
    snprintf(info->owner, sizeof info->owner, "%s", s->owner);
    snprintf(info->client, sizeof info->client, "%s", s->client);
    info->hold_id = s->hold_id;
    info->holds = 1;
    info->token = s->token;
    info->remaining_ms = (int64_t)((s->ends_ns - now_ns) / FAKE_NS_PER_MS);
}

int fake_sessions_inspect(const char *name, uint64_t now_ns, dl_lock_info_t *info) {
    pthread_mutex_lock(&mutex);
    notice(now_ns);
    session_t *holder = holder_of(name);
    if (holder != NULL) {
        describe(holder, now_ns, info);
    }
    pthread_mutex_unlock(&mutex);
    return holder != NULL;
}

int fake_sessions_kill(const char *name, uint64_t now_ns) {
    pthread_mutex_lock(&mutex);
    notice(now_ns);
    session_t *holder = holder_of(name);
    if (holder != NULL) {
        end(holder, now_ns);
    }
    pthread_mutex_unlock(&mutex);
    return holder != NULL;
}

void fake_sessions_list(const char *prefix, size_t prefix_len, uint64_t now_ns, dl_list_fn fn, void *arg) {
    session_t *copies = NULL;
    pthread_mutex_lock(&mutex);
    notice(now_ns);
    for (session_t *s = sessions; s != NULL; s = s->next) {
        if (s->holds && strncmp(s->name, prefix, prefix_len) == 0) {
            session_t *copy = alloc_real(sizeof *copy);
            *copy = *s;
            copy->next = copies;
            copies = copy;
        }
    }
    pthread_mutex_unlock(&mutex);
    int stop = 0;
    while (copies != NULL) {
        session_t *copy = copies;
        dl_lock_info_t info = DL_LOCK_INFO_INIT;
        describe(copy, now_ns, &info);
        stop = stop || fn(arg, copy->name, &info) != 0;
        copies = copy->next;
        alloc_real_free(copy);
    }
}

void fake_sessions_reset(void) {
    pthread_mutex_lock(&mutex);
    while (sessions != NULL) {
        sessions->holds = 0;
        end(sessions, 0);
    }
    last_token = last_place = 0;
    pthread_mutex_unlock(&mutex);
}
