/* claim.c - what the server knows of one acquisition. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "core.h"

static void fire(dli_timer_t *timer, uint64_t now) {
    dli_claim_t *claim = DLI_CONTAINER_OF(dli_claim_t, timer, timer);
    if (claim->freeing) {
        dli_free_due(claim, now);
    } else if (!dli_hold_expire(claim->hold, now)) {
        dli_renew_queue(claim);
    }
}

dli_claim_t *dli_claim_new(dli_gate_t *gate, const dli_owner_t *owner) {
    size_t hold_size = gate->client->driver->hold_size;
    /* Not calloc: before 2.41, glibc's takes nothing of what its threads keep of what they freed. */
    dli_claim_t *claim = malloc(hold_size > 0 ? DLI_HOLD_AT + hold_size : sizeof *claim);
    if (claim == NULL) {
        return NULL;
    }
    *claim = (dli_claim_t){.gate = gate, .refs = 1, .session_fd = -1, .timer.fire = fire};
    if (hold_size > 0) {
        memset(dli_claim_driver_hold(claim), 0, hold_size);
    }
    TAILQ_INIT(&claim->users);
    gate->refs++;
    dli_owner_text(owner, gate->client->uuid, claim->owner_text);
    return claim;
}

void dli_claim_unref(dli_claim_t *claim) {
    if (claim == NULL || --claim->refs > 0) {
        return;
    }
    dl_client_t *client = claim->gate->client;
    dli_gate_unref(claim->gate);
    if (client->driver->hold_size == 0 || !claim->attempted) {
        free(claim); /* the driver has nothing to drop */
        return;
    }
    claim->next_due = client->dead;
    client->dead = claim;
}

void *dli_claim_driver_hold(dli_claim_t *claim) {
    return claim->gate->client->driver->hold_size > 0 ? (char *)claim + DLI_HOLD_AT : NULL;
}

uint64_t dli_valid_until(uint64_t sent_ns, int64_t lease_ms) {
    /* Redlock's allowance for clocks that run at different speeds: 1 % of the lease and 2 ms. */
    uint64_t lease_ns = dli_ms(lease_ms);
    uint64_t drift_ns = lease_ns / 100 + 2u * DLI_NS_PER_MS;
    return sent_ns + lease_ns - drift_ns;
}

void dli_claim_watch(dli_claim_t *claim) {
    dl_client_t *client = claim->gate->client;
    if (claim->freeing) {
        return; /* the timer is for its next try */
    }
    if (claim->hold == NULL) {
        dli_timer_clear(&client->loop.timers, &claim->timer);
        return;
    }
    uint64_t at_ns = dli_hold_ends_ns(claim->hold);
    if (dli_is_renewed(claim) && !claim->renew_queued) {
        at_ns = dli_min(at_ns, claim->renew_due_ns);
    }
    dli_loop_at(client, &claim->timer, at_ns);
}

void dli_claim_watch_session(dli_claim_t *claim, int fd) {
    int epoll_fd = claim->gate->client->loop.session_epoll_fd;
    if (claim->session_fd >= 0) {
        (void)epoll_ctl(epoll_fd, EPOLL_CTL_DEL, claim->session_fd, NULL);
    }
    claim->session_fd = fd;
    if (fd >= 0) {
        /* Hang-ups only, by their edge: answers to pings make the descriptor readable too. */
        struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.u64 = claim->hold_id};
        (void)epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

/* ---- one exchange of a claim at a time ----------------------------------------------------------- */

static void leave_users(dli_op_t *op) {
    if (op->is_user) {
        op->is_user = false;
        TAILQ_REMOVE(&op->claim->users, op, by_claim);
    }
}

dli_next_t dli_claim_use(dli_op_t *op) {
    dli_claim_t *claim = op->claim;
    dl_status_t stop = dli_op_stop_reason(op);
    if (!claim->busy && !op->cancelled) { /* which was told so, or nobody waits for it any more */
        leave_users(op);
        claim->busy = op->client->session;
        return DLI_STEP;
    }
    if (stop != DL_OK || dli_now() >= op->until_ns) {
        leave_users(op);
        op->answer = stop != DL_OK
                         ? dli_fail_plain(&op->err, stop)
                         : dli_fail(&op->err, DL_EUNKNOWN, "a renewal on the same connection is stuck");
        if (!claim->busy) {
            dli_claim_idle(claim);
        }
        return DLI_DONE;
    }
    if (!op->is_user) {
        if (dli_op_can_wait(op) != DL_OK) {
            dli_error_clear(&op->err); /* it hears of no cancel */
        }
        op->is_user = true;
        TAILQ_INSERT_TAIL(&claim->users, op, by_claim);
    }
    return DLI_WAIT;
}

/* Up to one that is carried on whatever becomes of its caller's thread; who has used it calls the next. */
void dli_claim_idle(dli_claim_t *claim) {
    claim->busy = false;
    dli_op_t *op;
    TAILQ_FOREACH(op, &claim->users, by_claim) {
        dli_op_poke(op);
        if (op->async) {
            return;
        }
    }
}
