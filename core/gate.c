/* gate.c - my turn in this process: one queue a name, first come, first served. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* How long an operation may be late, with others behind it, until it is noted; then until its turn passes. */
#define LATE_NS (1000u * (uint64_t)DLI_NS_PER_MS)

dli_gate_t *dli_gate_after(dl_client_t *client, const dli_gate_t *gate) {
    return DLI_CONTAINER_OF(dli_gate_t, node,
                            dli_tree_after(client->gates, gate != NULL ? &gate->node : NULL));
}

dli_gate_t *dli_gate_find_name(dl_client_t *client, const char *name, size_t len) {
    uint64_t hash = dli_hash(name, len);
    dli_gate_t *gate = DLI_CONTAINER_OF(dli_gate_t, node, dli_tree_find(client->gates, hash));
    while (gate != NULL && (gate->name_len != len || memcmp(gate->name, name, len) != 0)) {
        gate = dli_gate_after(client, gate);
        gate = gate != NULL && gate->node.key == hash ? gate : NULL;
    }
    return gate;
}

bool dli_gate_is_wanted(const dli_gate_t *gate) {
    return gate->active != NULL || !TAILQ_EMPTY(&gate->queue);
}

/* A watch that was kept is kept no longer. */
static void end_watch(dli_gate_t *gate) {
    if (gate->left_ns != 0) {
        gate->left_ns = 0;
        gate->unwatch = true;
        gate->next_unwatch = gate->client->unwatch;
        gate->client->unwatch = gate;
    }
}

/*
 * Nobody's turn rests on another's thread: one that is stopped, or was left by a jump, while it is to go on
 * passes its turn. Looked at twice, so that a stop of the whole process is none of one thread.
 */
static void look_at_turn(dli_timer_t *timer, uint64_t now) {
    dli_gate_t *gate = DLI_CONTAINER_OF(dli_gate_t, timer, timer);
    if (!dli_gate_is_wanted(gate) && now >= gate->left_ns + LATE_NS) {
        end_watch(gate);
    }
    if (!dli_gate_is_wanted(gate) && !gate->polled && gate->left_ns == 0) {
        return;
    }
    gate->polled = false;
    dl_client_t *client = gate->client;
    dli_loop_at(client, timer, now + LATE_NS);
    dli_op_t *op = gate->active;
    if (op != NULL && now >= op->due_ns && gate->late == op && gate->late_ns == op->due_ns) {
        gate->active = NULL;
        gate->trouble_ns = 0; /* it may have been its thread's, and not the server's */
        dli_op_poke(op);
        dli_gate_next(gate);
    }
    gate->late = gate->active != NULL && now >= gate->active->due_ns ? gate->active : NULL;
    gate->late_ns = gate->late != NULL ? gate->late->due_ns : 0;
    if (gate->current != NULL && gate->current->state == DLI_HOLD_RELEASING &&
        now >= gate->current->claim->valid_until_ns) {
        /* A renewal whose answer was lost may have kept it there. One release of a hold is asked at a time.
         */
        dli_claim_t *claim = gate->current->claim;
        dli_request_t *release = &gate->current->unlock->request;
        if (client->inner != NULL && release->pending) {
            dli_request_give_up(client, release);
        }
        dli_free_add(claim, false);
        dli_hold_end(gate->current);
    }
}

dli_gate_t *dli_gate_get(dl_client_t *client, const char *name, size_t len) {
    dli_gate_t *gate = dli_gate_find_name(client, name, len);
    if (gate != NULL) {
        gate->refs++;
        return gate;
    }
    gate = calloc(1, sizeof *gate + len + 1);
    if (gate == NULL) {
        return NULL;
    }
    gate->client = client;
    gate->timer.fire = look_at_turn;
    memcpy(gate->name, name, len);
    gate->name_len = len;
    gate->refs = 1;
    TAILQ_INIT(&gate->queue);
    dli_tree_add(&client->gates, &gate->node, dli_hash(name, len));
    return gate;
}

void dli_gate_unref(dli_gate_t *gate) {
    if (--gate->refs == 0) {
        dli_tree_remove(&gate->client->gates, &gate->node);
        dli_timer_clear(&gate->client->loop.timers, &gate->timer);
        free(gate);
    }
}

dli_hold_t *dli_gate_find(dli_gate_t *gate, const dli_owner_t *owner, uint64_t now) {
    dli_hold_t *hold = gate->current;
    if (hold != NULL) {
        (void)dli_hold_expire(hold, now);
    }
    LIST_FOREACH(hold, &gate->lost, beside) {
        if (dli_owner_equal(&hold->owner, owner)) {
            return hold;
        }
    }
    hold = gate->current;
    return hold != NULL && hold->state == DLI_HOLD_LIVE && dli_owner_equal(&hold->owner, owner) ? hold : NULL;
}

void dli_gate_polled(dli_gate_t *gate) {
    gate->polled = true;
    if (gate->timer.node.key == 0) {
        dli_loop_at(gate->client, &gate->timer, dli_now() + LATE_NS);
    }
}

static uint64_t hash_of(const dli_gate_t *gate, const dli_owner_t *owner) {
    uint64_t key = gate->node.key ^ owner->number;
    return dli_hash(&key, sizeof key);
}

void dli_gate_enqueue(dli_gate_t *gate, dli_op_t *op) {
    op->queued = op->was_queued = true;
    TAILQ_INSERT_TAIL(&gate->queue, op, turn);
    dli_tree_add(&op->client->queued, &op->by_owner, hash_of(gate, &op->owner));
    dli_gate_polled(gate);
}

static void dequeue(dli_gate_t *gate, dli_op_t *op) {
    TAILQ_REMOVE(&gate->queue, op, turn);
    dli_tree_remove(&op->client->queued, &op->by_owner);
    op->queued = false;
}

void dli_gate_next(dli_gate_t *gate) {
    if (gate->active != NULL || gate->current != NULL) {
        return;
    }
    dli_op_t *op = TAILQ_FIRST(&gate->queue);
    if (gate->passed != NULL && (op == NULL || !dli_pass_suits(op))) {
        dli_pass_end(gate);
    }
    if (op != NULL) {
        dequeue(gate, op);
        gate->active = op;
        dli_op_poke(op);
    }
}

void dli_gate_look_again(const dli_hold_t *hold) {
    if (TAILQ_EMPTY(&hold->gate->queue)) {
        return;
    }
    dli_node_t *queued = hold->gate->client->queued;
    uint64_t hash = hash_of(hold->gate, &hold->owner);
    for (dli_node_t *at = dli_tree_find(queued, hash); at != NULL && at->key == hash;
         at = dli_tree_after(queued, at)) {
        dli_op_t *op = DLI_CONTAINER_OF(dli_op_t, by_owner, at);
        if (op->gate == hold->gate && dli_owner_equal(&op->owner, &hold->owner)) {
            dli_op_poke(op);
        }
    }
}

/* Nobody waits. A watch that hears is kept for LATE_NS at least: who comes soon hears from his first try. */
static void leave_watch(dl_client_t *client, dli_gate_t *gate) {
    if (gate->watch == NULL || gate->unwatch || dli_gate_is_wanted(gate)) {
        return;
    }
    gate->refs += gate->left_ns == 0;
    gate->left_ns = dli_now();
    if (client->closing || !gate->hears) {
        end_watch(gate);
    } else if (gate->timer.node.key == 0) {
        dli_loop_at(client, &gate->timer, gate->left_ns + LATE_NS);
    }
}

void dli_gates_end_watches(dl_client_t *client) {
    for (dli_gate_t *gate = dli_gate_after(client, NULL); gate != NULL; gate = dli_gate_after(client, gate)) {
        end_watch(gate);
    }
}

void dli_gate_leave(dli_gate_t *gate, dli_op_t *op) {
    if (op->queued) {
        dequeue(gate, op);
    }
    if (gate->active == op) {
        gate->active = NULL;
        dli_gate_next(gate);
    }
    leave_watch(op->client, gate);
    if (!dli_gate_is_wanted(gate)) {
        gate->rest_ns = gate->trouble_ns = 0;
    }
}

void dli_gate_wake(dli_gate_t *gate) {
    gate->woken = true;
    if (gate->active != NULL && gate->active->listens) {
        dli_op_poke(gate->active);
    }
}

void dli_gate_unwatch_next(dl_client_t *client) {
    dli_gate_t *gate = client->unwatch;
    client->unwatch = gate->next_unwatch;
    gate->unwatch = false;
    dl_watch_t *watch = dli_gate_is_wanted(gate) ? NULL : gate->watch;
    if (watch != NULL) {
        gate->watch = NULL;
        gate->watch_changes = true;
        dli_release_client(client);
        client->driver->unwatch(client->state, watch);
        pthread_mutex_lock(&client->mutex);
        gate->watch_changes = false;
        dli_gate_wake(gate);
    }
    dli_gate_unref(gate);
}
