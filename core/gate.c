/* gate.c - my turn in this process: one queue a name, first come, first served. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* FNV-1a, 64 bits (Fowler, Noll, Vo). */
uint64_t dli_hash(const char *bytes, size_t len) {
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < len; i++) {
        h = (h ^ (unsigned char)bytes[i]) * 1099511628211u;
    }
    return h;
}

static bool grow_table(dl_client_t *client) {
    size_t count = client->bucket_count == 0 ? 64 : client->bucket_count * 2;
    dli_gate_t **buckets = calloc(count, sizeof(dli_gate_t *));
    if (buckets == NULL) {
        return client->bucket_count > 0; /* a full table is slow, not wrong */
    }
    for (size_t i = 0; i < client->bucket_count; i++) {
        for (dli_gate_t *gate = client->buckets[i], *next; gate != NULL; gate = next) {
            next = gate->next_in_bucket;
            gate->next_in_bucket = buckets[gate->hash & (count - 1)];
            buckets[gate->hash & (count - 1)] = gate;
        }
    }
    free(client->buckets);
    client->buckets = buckets;
    client->bucket_count = count;
    return true;
}

dli_gate_t *dli_gate_get(dl_client_t *client, const char *name, size_t len) {
    if (client->gate_count >= client->bucket_count && !grow_table(client)) {
        return NULL;
    }
    uint64_t hash = dli_hash(name, len);
    dli_gate_t **bucket = &client->buckets[hash & (client->bucket_count - 1)];
    for (dli_gate_t *gate = *bucket; gate != NULL; gate = gate->next_in_bucket) {
        if (gate->hash == hash && gate->name_len == len && memcmp(gate->name, name, len) == 0) {
            gate->refs++;
            return gate;
        }
    }
    dli_gate_t *gate = calloc(1, sizeof *gate + len + 1);
    if (gate == NULL) {
        return NULL;
    }
    memcpy(gate->name, name, len);
    gate->name_len = len;
    gate->hash = hash;
    gate->refs = 1;
    gate->next_in_bucket = *bucket;
    *bucket = gate;
    client->gate_count++;
    return gate;
}

void dli_gate_unref(dl_client_t *client, dli_gate_t *gate) {
    if (--gate->refs > 0) {
        return;
    }
    dli_gate_t **at = &client->buckets[gate->hash & (client->bucket_count - 1)];
    while (*at != gate) {
        at = &(*at)->next_in_bucket;
    }
    *at = gate->next_in_bucket;
    client->gate_count--;
    free(gate);
}

dli_hold_t *dli_gate_find(dl_client_t *client, dli_gate_t *gate, const dli_owner_t *owner) {
    (void)client;
    dli_hold_t *current = gate->current;
    /* Validity is looked at here too: a starved watchdog must not keep a dead hold alive. */
    if (current != NULL && dli_hold_expire(current, dli_now())) {
        current = gate->current;
    }
    for (dli_hold_t *hold = gate->lost; hold != NULL; hold = hold->next_lost) {
        if (dli_owner_equal(&hold->owner, owner)) {
            return hold;
        }
    }
    if (current != NULL && current->state == DLI_HOLD_LIVE && dli_owner_equal(&current->owner, owner)) {
        return current;
    }
    return NULL;
}

bool dli_gate_is_free(const dli_gate_t *gate) {
    return gate->active == NULL && gate->current == NULL && gate->first == NULL;
}

void dli_gate_take(dli_gate_t *gate, dli_turn_t *turn) {
    turn->granted = true;
    gate->active = turn;
}

static void enqueue(dli_gate_t *gate, dli_turn_t *turn) {
    turn->next = NULL;
    turn->queued = true;
    if (gate->last != NULL) {
        gate->last->next = turn;
    } else {
        gate->first = turn;
    }
    gate->last = turn;
}

static void dequeue(dli_gate_t *gate, dli_turn_t *turn) {
    dli_turn_t *before = NULL;
    for (dli_turn_t *at = gate->first; at != turn; at = at->next) {
        before = at;
    }
    if (before != NULL) {
        before->next = turn->next;
    } else {
        gate->first = turn->next;
    }
    if (gate->last == turn) {
        gate->last = before;
    }
    turn->queued = false;
}

void dli_gate_next(dl_client_t *client, dli_gate_t *gate) {
    (void)client;
    dli_turn_t *turn = gate->first;
    if (turn == NULL || gate->active != NULL || gate->current != NULL) {
        return;
    }
    dequeue(gate, turn);
    dli_gate_take(gate, turn);
    dli_park_wake(turn->park);
}

void dli_gate_look_again(dli_gate_t *gate, const dli_owner_t *owner) {
    for (dli_turn_t *turn = gate->first; turn != NULL; turn = turn->next) {
        if (dli_owner_equal(&turn->owner, owner)) {
            turn->look_again = true;
            dli_park_wake(turn->park);
        }
    }
}

void dli_gate_leave(dl_client_t *client, dli_gate_t *gate, dli_turn_t *turn) {
    if (turn->queued) {
        dequeue(gate, turn);
    }
    dli_park_put(client, turn->park);
    turn->park = NULL;
    if (gate->active == turn) {
        gate->active = NULL;
        turn->granted = false;
        dli_gate_next(client, gate);
    }
}

dl_status_t dli_gate_wait(dl_lock_t *lock, dli_turn_t *turn, uint64_t deadline_ns,
                          const dl_cancel_t *cancel) {
    dl_client_t *client = lock->client;
    if (turn->park == NULL) {
        turn->park = dli_park_get(lock);
        if (turn->park == NULL) {
            return errno == ENOMEM ? DL_ENOMEM : DL_ELIMIT;
        }
    }
    if (!turn->queued) {
        enqueue(lock->gate, turn);
    }
    client->stats.waiting_now++;
    dl_status_t status = DL_OK;
    while (!turn->granted && !turn->look_again) {
        status = dli_stop_reason(lock, cancel);
        if (status == DL_OK && dli_now() >= deadline_ns) {
            status = DL_ETIMEDOUT;
        }
        if (status != DL_OK) {
            break;
        }
        struct pollfd fds[2] = {{.fd = turn->park->fd, .events = POLLIN},
                                {.fd = cancel != NULL ? cancel->fd : -1, .events = POLLIN}};
        dli_unlock_client(client);
        (void)dli_sys->poll(fds, 2, deadline_ns);
        (void)dli_park_drain(turn->park);
        dli_lock_client(client);
    }
    turn->look_again = false;
    client->stats.waiting_now--;
    if (turn->granted) {
        dli_park_put(client, turn->park); /* it is at the head, and gets one for its own wait */
        turn->park = NULL;
    }
    return status;
}
