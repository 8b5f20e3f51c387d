/* borrowing.c - a caller's way to a connection: an idle one that works, one that is made, or the queue. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define NS_PER_MS ((uint64_t)1000000)
/* A sign of life comes within that, or not at all. */
#define FARTHEST_NS (250 * NS_PER_MS)
/* How often one whose time in the queue is over looks what became of the places in which others connect. */
#define LOOK_NS (10 * NS_PER_MS)

/* What a caller wants, and for how long. */
typedef struct want {
    dli_mysql_pool_t *pool;
    dli_mysql_lane_t at;
    uint64_t deadline_ns, borrow_until_ns, busy_from_ns; /* the last two: of a wait in the queue */
    const dl_stop_t *stop;
    dli_mysql_ticket_t *ticket; /* NULL: none was needed so far */
    bool has_place;             /* in the lane, for a connection that it may make */
} want_t;

/* ---- tickets ---------------------------------------------------------------------------------------- */

static dl_status_t make_ticket(want_t *want, dl_error_t *err) {
    dli_mysql_pool_t *pool = want->pool;
    dli_mysql_ticket_t *ticket = calloc(1, sizeof *ticket);
    if (ticket == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    ticket->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (ticket->fd < 0) {
        int error = errno;
        free(ticket);
        return dl_driver_fail(err, DL_ELIMIT, error, "no descriptor to wait for a connection: %s",
                              strerror(error));
    }
    pthread_mutex_lock(&pool->mutex);
    ticket->number = ++pool->last_number;
    ticket->next = pool->tickets;
    atomic_signal_fence(memory_order_release);
    if (ticket->next != NULL) {
        ticket->next->before = ticket;
    }
    pool->tickets = ticket;
    pthread_mutex_unlock(&pool->mutex);
    want->ticket = ticket;
    return DL_OK;
}

/* It was called, or is nowhere. */
static void free_ticket(want_t *want) {
    dli_mysql_pool_t *pool = want->pool;
    dli_mysql_ticket_t *ticket = want->ticket;
    if (ticket == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    *(ticket->before != NULL ? &ticket->before->next : &pool->tickets) = ticket->next;
    if (ticket->next != NULL) {
        ticket->next->before = ticket->before;
    }
    pthread_mutex_unlock(&pool->mutex);
    close(ticket->fd);
    free(ticket);
    want->ticket = NULL;
}

static void hear(dli_mysql_ticket_t *ticket) {
    uint64_t count;
    ssize_t n = read(ticket->fd, &count, sizeof count);
    (void)n;
}

/* So that it can be called once more. */
static void renew_ticket(dli_mysql_ticket_t *ticket) {
    hear(ticket);
    ticket->is_called = false;
    ticket->member = NULL;
}

/* With the mutex held. */
static void leave_queue(dli_mysql_lane_pool_t *lane, dli_mysql_ticket_t *mine) {
    dli_mysql_ticket_t *ahead = NULL;
    for (dli_mysql_ticket_t *ticket = lane->first; ticket != mine; ticket = ticket->behind) {
        ahead = ticket;
    }
    *(ahead != NULL ? &ahead->behind : &lane->first) = mine->behind;
    lane->last = lane->last == mine ? ahead : lane->last;
}

/* The caller waits no longer: what it was called to goes to the next, and one that is being made for it is
 * left to whoever comes. */
static void quit(want_t *want) {
    dli_mysql_pool_t *pool = want->pool;
    dli_mysql_lane_pool_t *lane = &pool->lanes[want->at];
    dli_mysql_ticket_t *ticket = want->ticket;
    dli_mysql_member_t *doomed = NULL;
    pthread_mutex_lock(&pool->mutex);
    if (ticket->member != NULL) {
        dli_mysql_pool_settle(pool, ticket->member, &doomed);
    } else if (ticket->is_called && ticket->status == DL_OK) {
        dli_mysql_pool_leave_locked(pool, lane);
    } else if (ticket->maker != NULL) {
        ticket->maker->ticket = NULL;
    } else if (!ticket->is_called) {
        leave_queue(lane, ticket);
    }
    pthread_mutex_unlock(&pool->mutex);
    dli_mysql_pool_close_all(doomed);
}

/* ---- waiting ---------------------------------------------------------------------------------------- */

/* With the mutex held: when to look again at the latest. */
static uint64_t look_until(const want_t *want, bool is_crowded, uint64_t now_ns) {
    const dli_mysql_maker_t *maker = want->ticket->maker;
    uint64_t connect_ns = (uint64_t)want->pool->endpoint->connect_timeout_ms * NS_PER_MS;
    uint64_t held_off_ns = dli_mysql_pool_held_off_until(want->pool, &want->pool->lanes[want->at], 0, now_ns);
    uint64_t until_ns = (maker != NULL ? maker->began_ns : now_ns) + connect_ns;
    if (maker == NULL) {
        uint64_t queue_ns =
            want->borrow_until_ns < want->busy_from_ns ? want->borrow_until_ns : want->busy_from_ns;
        queue_ns = is_crowded || queue_ns > now_ns ? queue_ns : now_ns + LOOK_NS;
        until_ns = queue_ns < until_ns ? queue_ns : until_ns;
    }
    if (maker == NULL && held_off_ns > 0 && held_off_ns < until_ns) {
        until_ns = held_off_ns;
    }
    return want->deadline_ns < until_ns ? want->deadline_ns : until_ns;
}

/* Has the caller to give up? crowd: so many are all that there can be, and in use. `ready`: what its poll
 * came to. */
static dl_status_t check_patience(const want_t *want, int64_t crowd, int ready, const struct pollfd *fds,
                                  dl_error_t *err) {
    const char *label = want->pool->endpoint->label;
    uint64_t now_ns = want->pool->env.now_ns();
    if (ready < 0) {
        return dl_driver_fail(err, DL_EIO, errno, "%s: cannot wait: %s", label, strerror(errno));
    }
    if (fds[1].revents != 0 || fds[2].revents != 0) {
        return dl_driver_fail(err, DL_ECANCELED, 0, "%s: cancelled", label);
    }
    bool is_again = now_ns >= want->busy_from_ns;
    bool is_over = now_ns >= want->borrow_until_ns || (now_ns >= want->deadline_ns && !is_again);
    if (crowd > 0 && (is_over || is_again)) {
        bool is_ours = crowd >= want->pool->lanes[want->at].max_total;
        return dl_driver_fail(err, is_over ? DL_ETIMEDOUT : DL_EBUSY, 0,
                              "%s: all %lld connections are in use (%s)", label, (long long)crowd,
                              is_ours ? "max_total" : "the server takes no more");
    }
    if (now_ns >= want->deadline_ns) {
        return dl_driver_fail(err, DL_EIO, 0, "%s: no connection in time", label);
    }
    return DL_OK;
}

/* Until the ticket is called. DL_OK: *member, or a place. */
static dl_status_t await(want_t *want, dli_mysql_member_t **member, dl_error_t *err) {
    dli_mysql_pool_t *pool = want->pool;
    dli_mysql_ticket_t *ticket = want->ticket;
    dli_mysql_lane_pool_t *lane = &pool->lanes[want->at];
    struct pollfd fds[3] = {{.fd = ticket->fd, .events = POLLIN}, {.fd = -1}, {.fd = -1}};
    nfds_t n = 1;
    for (int i = 0; i < 2 && want->stop != NULL; i++, n = 3) {
        fds[1 + i] = (struct pollfd){.fd = want->stop->fd[i], .events = POLLIN};
    }
    int ready = 0;
    for (;;) {
        pthread_mutex_lock(&pool->mutex);
        dli_mysql_pool_note_overdue(pool, want->at);
        dli_mysql_pool_let_in(pool, lane);
        bool is_called = ticket->is_called;
        int64_t crowd = dli_mysql_pool_crowd(pool, lane);
        uint64_t until_ns = look_until(want, crowd > 0, pool->env.now_ns());
        if (!is_called && ready > 0 && fds[0].revents != 0) {
            hear(ticket); /* it is in the queue again */
        }
        pthread_mutex_unlock(&pool->mutex);
        if (is_called) {
            break;
        }
        dl_status_t status = check_patience(want, crowd, ready, fds, err);
        if (status != DL_OK) {
            quit(want);
            return status;
        }
        ready = pool->env.poll(fds, n, until_ns);
    }
    *member = ticket->member;
    want->has_place = ticket->status == DL_OK && ticket->member == NULL;
    if (ticket->status != DL_OK) {
        *err = ticket->err;
    }
    return ticket->status;
}

/* ---- getting one ------------------------------------------------------------------------------------ */

/* With the mutex held. true: *member is an idle connection, or the caller has a place. */
static bool take(want_t *want, dli_mysql_member_t **member, dli_mysql_member_t **doomed) {
    dli_mysql_pool_t *pool = want->pool;
    dli_mysql_lane_pool_t *lane = &pool->lanes[want->at];
    *member = dli_mysql_pool_take_idle(pool, want->at, doomed);
    if (*member != NULL && want->has_place) {
        want->has_place = false;
        dli_mysql_pool_leave_locked(pool, lane);
    }
    return *member != NULL || want->has_place;
}

/* An idle connection, or one that somebody began and left, or a place for a new one, or the queue: so it is
 * too while another tries a server that was down. */
static void enter(want_t *want, dli_mysql_member_t **member) {
    dli_mysql_pool_t *pool = want->pool;
    dli_mysql_lane_pool_t *lane = &pool->lanes[want->at];
    dli_mysql_ticket_t *ticket = want->ticket;
    dli_mysql_member_t *doomed = NULL;
    pthread_mutex_lock(&pool->mutex);
    dli_mysql_pool_note_overdue(pool, want->at);
    if (!take(want, member, &doomed) && ticket != NULL) {
        ticket->maker = dli_mysql_pool_adopt(pool, want->at);
        if (ticket->maker != NULL) {
            ticket->maker->ticket = ticket;
        } else if (dli_mysql_pool_has_room(pool, lane)) {
            lane->total++;
            want->has_place = true;
        } else {
            dli_mysql_pool_join_queue(lane, ticket);
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    dli_mysql_pool_close_all(doomed);
}

/* The next connection for the caller, whatever it is worth. Its place, if it has one, is used up. */
static dl_status_t obtain(want_t *want, dli_mysql_member_t **member, dl_error_t *err) {
    enter(want, member); /* without a ticket: an idle connection needs none */
    while (*member == NULL) {
        dl_status_t status = DL_OK;
        if (want->ticket == NULL) {
            status = make_ticket(want, err);
        } else {
            renew_ticket(want->ticket);
        }
        if (status != DL_OK) {
            if (want->has_place) {
                dli_mysql_pool_leave(want->pool, want->at);
            }
            return status;
        }
        if (!want->has_place) {
            enter(want, member);
        }
        if (want->has_place) {
            want->has_place = false; /* make takes it */
            status = dli_mysql_pool_make(want->pool, want->at, want->ticket, err);
            if (status == DL_EBUSY) {
                continue; /* none is made for now: it is to queue */
            }
        }
        if (status == DL_OK && *member == NULL) {
            status = await(want, member, err);
        }
        if (status != DL_OK) {
            return status;
        }
    }
    return DL_OK;
}

/* ---- is it alive? ----------------------------------------------------------------------------------- */

dl_status_t dli_mysql_pool_test(dli_mysql_pool_t *pool, dli_mysql_member_t *member, uint64_t deadline_ns,
                                const dl_stop_t *stop) {
    static const char nothing[] = "DO 1";
    dl_error_t err;
    dli_mysql_answer_t answer = {0};
    dli_mysql_bounds_t bounds = {&pool->env, pool->guard, deadline_ns, stop};
    uint64_t began_ns = pool->env.now_ns();
    dl_status_t status =
        dli_mysql_conn_ask(member->conn, nothing, sizeof nothing - 1, &bounds, NULL, &answer, &err);
    bool is_alive = status == DL_OK && answer.error == 0;
    dli_mysql_answer_free(&answer);
    if (status != DL_EIO) {
        pool->env.count(pool->env.core, DL_COUNT_ROUND_TRIP, 1);
    }
    if (is_alive) {
        member->touched_ns = pool->env.now_ns();
        member->is_suspect = false;
        return DL_OK;
    }
    if (status == DL_ETIMEDOUT && pool->env.now_ns() - began_ns >= DLI_MYSQL_SILENCE_NS) {
        dli_mysql_pool_distrust(pool, began_ns);
        dli_mysql_pool_close_suspects(pool);
    }
    return status == DL_ECANCELED ? status : DL_EIO;
}

/* DL_OK; DL_EIO: it is of no use; DL_ECANCELED. */
static dl_status_t inspect(const want_t *want, dli_mysql_member_t *member) {
    dli_mysql_pool_t *pool = want->pool;
    if (member->is_fresh) {
        return DL_OK;
    }
    if (dli_mysql_conn_is_broken(member->conn)) {
        return DL_EIO;
    }
    if (!member->is_suspect && !pool->options.test_on_borrow) {
        return DL_OK;
    }
    uint64_t now_ns = pool->env.now_ns();
    uint64_t left_ns = want->deadline_ns > now_ns ? want->deadline_ns - now_ns : 0;
    uint64_t until_ns = now_ns + (left_ns / 2 < FARTHEST_NS ? left_ns / 2 : FARTHEST_NS);
    return dli_mysql_pool_test(pool, member, until_ns, want->stop);
}

static dl_status_t borrow(want_t *want, dli_mysql_member_t **member, dl_error_t *err) {
    const char *label = want->pool->endpoint->label;
    for (;;) {
        dl_status_t status = obtain(want, member, err);
        if (status != DL_OK) {
            return status;
        }
        status = inspect(want, *member);
        if (status == DL_OK) {
            return DL_OK;
        }
        /* Its place stays, so that nobody who came later goes ahead. */
        dli_mysql_pool_discard(want->pool, *member);
        *member = NULL;
        want->has_place = true;
        bool is_over = want->pool->env.now_ns() >= want->deadline_ns;
        if (status == DL_ECANCELED || is_over) {
            dli_mysql_pool_leave(want->pool, want->at);
            return status == DL_ECANCELED ? dl_driver_fail(err, status, 0, "%s: cancelled", label)
                                          : dl_driver_fail(err, DL_EIO, 0, "%s: no answer in time", label);
        }
    }
}

dl_status_t dli_mysql_pool_borrow(dli_mysql_pool_t *pool, dli_mysql_lane_t lane, uint64_t began_ns,
                                  uint64_t busy_from_ns, uint64_t deadline_ns, const dl_stop_t *stop,
                                  dli_mysql_member_t **member, dl_error_t *err) {
    want_t want = {.pool = pool,
                   .at = lane,
                   .deadline_ns = deadline_ns,
                   .borrow_until_ns = DL_NO_DEADLINE,
                   .busy_from_ns = busy_from_ns,
                   .stop = stop};
    if (lane == DLI_MYSQL_CALLS && pool->options.borrow_timeout_ms > 0) {
        want.borrow_until_ns = began_ns + (uint64_t)pool->options.borrow_timeout_ms * NS_PER_MS;
    }
    *member = NULL;
    if (pool->env.now_ns() >= deadline_ns) {
        return dl_driver_fail(err, DL_EIO, 0, "%s: no time is left", pool->endpoint->label);
    }
    dl_status_t status = borrow(&want, member, err);
    free_ticket(&want);
    dli_mysql_pool_tell(pool);
    return status;
}
