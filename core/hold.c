/* hold.c - the life of one acquisition: begun, extended, lost, ended. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <sys/epoll.h>

#include "core.h"

dli_hold_t *dli_hold_new(dl_client_t *client, dli_gate_t *gate, const dli_owner_t *owner) {
    if (!dli_heap_room(&client->due, client->hold_count + 1) ||
        !dli_heap_room(&client->orphans, client->hold_count + 1)) {
        return NULL;
    }
    dli_hold_t *hold = calloc(1, sizeof *hold);
    if (hold == NULL) {
        return NULL;
    }
    if (client->driver->hold_size > 0) {
        hold->driver_hold = calloc(1, client->driver->hold_size);
        if (hold->driver_hold == NULL) {
            free(hold);
            return NULL;
        }
    }
    client->hold_count++;
    hold->client = client;
    hold->gate = gate;
    gate->refs++;
    hold->owner = *owner;
    if (owner->thread != NULL) {
        dli_thread_ref(owner->thread);
    }
    dli_owner_text(owner, client->uuid, hold->owner_text, sizeof hold->owner_text);
    hold->refs = 1;
    hold->state = DLI_HOLD_TRYING;
    hold->session_fd = -1;
    hold->max_hold_until_ns = DLI_NEVER;
    return hold;
}

void dli_hold_ref(dli_hold_t *hold) {
    hold->refs++;
}

void dli_hold_unref(dli_hold_t *hold) {
    if (--hold->refs > 0) {
        return;
    }
    dl_client_t *client = hold->client;
    if (hold->owner.thread != NULL) {
        dli_thread_unref(hold->owner.thread);
    }
    dli_gate_unref(client, hold->gate);
    client->hold_count--;
    hold->next_dead = client->dead;
    client->dead = hold;
}

uint64_t dli_valid_until(uint64_t sent_ns, int64_t lease_ms) {
    /* Redlock's allowance for clocks that run at different speeds: 1 % of the lease and 2 ms. */
    uint64_t lease_ns = dli_ms(lease_ms);
    uint64_t drift_ns = lease_ns / 100 + 2u * DLI_NS_PER_MS;
    return sent_ns + lease_ns - drift_ns;
}

/* Where the next renewal stands: a period from now, or later when an extension has made the lease so long
 * that a renewal would not lengthen it. */
static uint64_t renew_due(const dli_hold_t *hold, uint64_t now) {
    const dl_client_t *client = hold->client;
    uint64_t every_ns = dli_ms(dli_renew_every(client, hold));
    uint64_t lease_ns = dli_ms(client->lease_ms);
    if (client->session || hold->valid_until_ns <= now + lease_ns) {
        return now + every_ns;
    }
    return hold->valid_until_ns - lease_ns + every_ns;
}

static void watch_session(dli_hold_t *hold, int op) {
    if (hold->session_fd >= 0) {
        /* Hang-ups only, by their edge: answers to pings make the descriptor readable too. */
        struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.u64 = hold->hold_id};
        (void)epoll_ctl(hold->client->session_epoll_fd, op, hold->session_fd, &event);
    }
}

bool dli_hold_begin(dli_hold_t *hold, const dl_grant_t *grant, int64_t lease_ms, bool automatic,
                    uint64_t max_hold_until_ns, uint64_t now) {
    dl_client_t *client = hold->client;
    uint64_t valid_until_ns = dli_valid_until(grant->sent_ns, lease_ms);
    if (now >= valid_until_ns) {
        return false;
    }
    hold->state = DLI_HOLD_LIVE;
    hold->levels = 1;
    hold->auto_level = automatic ? 1 : 0;
    hold->token = grant->token;
    hold->valid_until_ns = valid_until_ns;
    hold->acquired_ns = now;
    hold->max_hold_until_ns = max_hold_until_ns;
    hold->lease_ms = lease_ms;
    hold->session_fd = grant->session_fd;
    hold->renew_due_ns = renew_due(hold, grant->sent_ns);
    watch_session(hold, EPOLL_CTL_ADD);
    dli_hold_ref(hold);
    hold->gate->current = hold;
    dli_watch_hold(hold);
    client->stats.acquired++;
    client->stats.held_now++;
    /* Other threads of this owner may be waiting behind this very call. */
    dli_gate_look_again(hold->gate, &hold->owner);
    return true;
}

static void count_end(dli_hold_t *hold, uint64_t now) {
    dl_client_stats_t *stats = &hold->client->stats;
    uint64_t held_us = (now - hold->acquired_ns) / DLI_NS_PER_US;
    stats->hold_us_sum += held_us;
    stats->hold_us_max = dli_max(stats->hold_us_max, held_us);
    stats->held_now--;
}

void dli_hold_disarm(dli_hold_t *hold) {
    hold->state = DLI_HOLD_RELEASING;
    dli_watch_hold(hold);
    watch_session(hold, EPOLL_CTL_DEL);
    hold->session_fd = -1;
}

void dli_hold_lose(dli_hold_t *hold, dl_status_t why, const char *text) {
    dl_client_t *client = hold->client;
    dli_gate_t *gate = hold->gate;
    uint64_t now = dli_now();
    dli_hold_disarm(hold);
    hold->state = DLI_HOLD_LOST;
    gate->current = NULL;
    hold->next_lost = gate->lost; /* the gate's reference goes along */
    gate->lost = hold;
    client->stats.lost++;
    count_end(hold, now);
    dli_event_lost(hold, why, text);
    if (why != DL_ELOST) {
        /* By our arithmetic only: the server may still keep it, or a late renewal may. */
        dli_orphan_add(hold, false, now + dli_ms(hold->lease_ms));
    }
    hold->valid_until_ns = dli_min(hold->valid_until_ns, now);
    dli_gate_look_again(gate, &hold->owner);
    dli_gate_next(client, gate);
}

void dli_hold_lose_as(dli_hold_t *hold, dl_loss_t loss) {
    static const char *const texts[] = {
        [DL_LOSS_NOT_OURS] = "the server says that another holds it or nobody does",
        [DL_LOSS_HANG_UP] = "the connection that held it has ended",
        [DL_LOSS_KILLED] = "the server says that it has ended the connection that held it",
        [DL_LOSS_EXPIRED] = "its lease was over before it was renewed",
    };
    bool is_known = (unsigned)loss < sizeof texts / sizeof texts[0];
    dli_hold_lose(hold, DL_ELOST, texts[is_known ? loss : DL_LOSS_NOT_OURS]);
}

bool dli_hold_expire(dli_hold_t *hold, uint64_t now) {
    if (hold->state != DLI_HOLD_LIVE || now < dli_hold_ends_ns(hold)) {
        return false;
    }
    dli_hold_lose(hold, DL_ETIMEDOUT, now >= hold->valid_until_ns ? "validity is over" : "max_hold is over");
    return true;
}

void dli_hold_end(dli_hold_t *hold) {
    dl_client_t *client = hold->client;
    dli_gate_t *gate = hold->gate;
    if (hold->state == DLI_HOLD_LOST) {
        dli_hold_t **at = &gate->lost;
        while (*at != hold) {
            at = &(*at)->next_lost;
        }
        *at = hold->next_lost;
    } else {
        if (hold->state == DLI_HOLD_LIVE) {
            dli_hold_disarm(hold);
        }
        gate->current = NULL;
        client->stats.released++;
        count_end(hold, dli_now());
    }
    hold->state = DLI_HOLD_ENDED;
    hold->levels = 0;
    dli_gate_look_again(gate, &hold->owner);
    dli_gate_next(client, gate);
    dli_hold_unref(hold); /* the gate's */
}

void dli_hold_extended(dli_hold_t *hold, uint64_t sent_ns, int64_t lease_ms, uint64_t now) {
    hold->valid_until_ns = dli_max(hold->valid_until_ns, dli_valid_until(sent_ns, lease_ms));
    hold->lease_ms = lease_ms > hold->lease_ms ? lease_ms : hold->lease_ms;
    /* It hung up after this ping was sent: ask again at once. */
    hold->renew_due_ns = hold->hung_up ? now : renew_due(hold, dli_min(sent_ns, now));
    dli_watch_hold(hold);
}

void dli_hold_enter_auto(dli_hold_t *hold, uint32_t level, uint64_t now) {
    if (hold->auto_level == 0) {
        hold->auto_level = level;
        hold->renew_due_ns = renew_due(hold, now);
        dli_watch_hold(hold);
    }
}

void dli_hold_left_level(dli_hold_t *hold, uint64_t now) {
    hold->levels--;
    if (hold->auto_level > hold->levels) {
        hold->auto_level = 0; /* the levels that are left have explicit leases */
        hold->renew_due_ns = renew_due(hold, now);
        dli_watch_hold(hold);
    }
}
