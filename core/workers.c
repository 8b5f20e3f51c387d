/* workers.c - threads for what blocks: renewals, frees and what queues ask, claims that queues ask. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "core.h"

/*
 * One worker renews: a batch may hang, and a slow free or claim must not delay it. Some free, unlock, extend
 * and inspect. A bounded number claims. They start when they are needed and stay until the client closes.
 * Whoever is idle sleeps on a condition of its own, so that one thing to do wakes one thread.
 */

static const size_t worker_max[DLI_LANES] = {
    [DLI_LANE_RENEW] = 1, [DLI_LANE_FREE] = DLI_FREE_WORKERS, [DLI_LANE_CLAIM] = DLI_CLAIM_WORKERS};

/* A backend is asked by whoever releases the mutex next. */
static bool has_job(const dl_client_t *client, dli_lane_kind_t kind) {
    return client->lanes[kind].jobs != NULL && client->inner == NULL;
}

static bool has_work(const dl_client_t *client, dli_lane_kind_t kind) {
    return client->lanes[kind].first != NULL || has_job(client, kind) ||
           (kind == DLI_LANE_FREE && (client->unwatch != NULL || dli_has_chores(client)));
}

/* ---- a worker ----------------------------------------------------------------------------------- */

/* Asks the driver for the first operation of the lane. */
static void carry(dli_worker_t *worker) {
    dl_client_t *client = worker->client;
    dli_lane_t *lane = &client->lanes[worker->lane];
    dli_op_t *op = lane->first;
    if (!dli_op_leave_lane(op)) {
        return;
    }
    op->park = worker->park;
    if (lane->idle == NULL && lane->count == worker_max[worker->lane]) {
        op->wait_ms = 0; /* on the server it waits only while others could do what comes meanwhile */
    }
    worker->waits = op->ask == DLI_ASK_TRY && op->wait_ms > 0;
    dli_call_ask(op);
    worker->waits = false;
    op->park = NULL;
    dli_op_answered(op);
}

static void work(dli_worker_t *worker) {
    dl_client_t *client = worker->client;
    dli_lane_t *lane = &client->lanes[worker->lane];
    lane->was_job = has_job(client, worker->lane) && (lane->first == NULL || !lane->was_job);
    if (worker->lane == DLI_LANE_RENEW) {
        dli_renew_batch(client);
    } else if (lane->was_job) {
        dli_free_try(dli_lane_take_job(client, worker->lane), dli_call_deadline(client));
    } else if (lane->first != NULL) {
        carry(worker);
    }
    dli_tidy(client);
}

static void *worker_main(void *arg) {
    dli_worker_t *worker = arg;
    dl_client_t *client = worker->client;
    dli_lane_t *lane = &client->lanes[worker->lane];
    (void)dli_be_punctual(worker->lane == DLI_LANE_RENEW);
    dli_lock_client(client);
    while (!client->stop_threads) {
        if (has_work(client, worker->lane)) {
            work(worker);
            continue;
        }
        dli_before_wait(client);
        if (has_work(client, worker->lane)) {
            continue;
        }
        worker->is_idle = true;
        worker->next_idle = lane->idle;
        lane->idle = worker;
        while (worker->is_idle && !client->stop_threads) {
            (void)dli_sys->cond_wait(&worker->has_work, &client->mutex, DLI_NEVER);
        }
    }
    dli_unlock_client(client);
    return NULL;
}

/* 0 or an errno. */
static int start_worker(dl_client_t *client, dli_lane_kind_t kind) {
    dli_lane_t *lane = &client->lanes[kind];
    dli_worker_t *worker = &lane->workers[lane->count];
    worker->park = dli_park_get(client);
    if (worker->park == NULL) {
        return errno;
    }
    worker->client = client;
    worker->lane = kind;
    dli_sys->cond_init(&worker->has_work);
    int rc = dli_sys->thread_start(&worker->thread, worker_main, worker);
    if (rc == 0) {
        lane->count++;
    } else {
        pthread_cond_destroy(&worker->has_work);
        dli_park_put(client, worker->park);
    }
    return rc;
}

/* ---- who gives them work ------------------------------------------------------------------------ */

static bool wake_idle(dli_lane_t *lane) {
    dli_worker_t *worker = lane->idle;
    if (worker == NULL) {
        return false;
    }
    lane->idle = worker->next_idle;
    worker->is_idle = false;
    dli_sys->cond_broadcast(&worker->has_work);
    return true;
}

/* There is one thing more to do. Should no worker be had, the loop sees that there is none, and asks again.
 */
static void call_worker(dl_client_t *client, dli_lane_kind_t kind) {
    dli_lane_t *lane = &client->lanes[kind];
    if (wake_idle(lane) || client->stop_threads) {
        return;
    }
    if (lane->count < worker_max[kind]) {
        if (start_worker(client, kind) != 0 && lane->count == 0) {
            dli_loop_call_again(client);
        }
        return;
    }
    for (size_t i = 0; i < lane->count; i++) {
        if (lane->workers[i].waits) { /* on the server, for a holder: there is something better to do */
            lane->workers[i].waits = false;
            dli_park_wake(lane->workers[i].park);
            return;
        }
    }
}

bool dli_lanes_call_again(dl_client_t *client) {
    bool lacks = false;
    for (unsigned kind = 0; kind < DLI_LANES; kind++) {
        lacks |= client->lanes[kind].count == 0 && has_work(client, kind) && start_worker(client, kind) != 0;
    }
    return lacks;
}

void dli_lane_push(dli_op_t *op) {
    dli_lane_t *lane = &op->client->lanes[op->lane];
    op->place = DLI_OP_IN_LANE;
    op->next_in = NULL;
    op->prev_in = lane->last;
    *(lane->last != NULL ? &lane->last->next_in : &lane->first) = op;
    lane->last = op;
    call_worker(op->client, op->lane);
}

void dli_lane_remove(dli_op_t *op) {
    dli_lane_t *lane = &op->client->lanes[op->lane];
    dli_timer_clear(&op->client->loop.timers, &op->timer);
    *(op->prev_in != NULL ? &op->prev_in->next_in : &lane->first) = op->next_in;
    *(op->next_in != NULL ? &op->next_in->prev_in : &lane->last) = op->prev_in;
}

void dli_lane_job(dli_claim_t *claim, dli_lane_kind_t kind) {
    dli_lane_t *lane = &claim->client->lanes[kind];
    claim->next_job[kind] = NULL;
    *(lane->jobs != NULL ? &lane->jobs_last->next_job[kind] : &lane->jobs) = claim;
    lane->jobs_last = claim;
    if (has_job(claim->client, kind)) {
        call_worker(claim->client, kind);
    }
}

dli_claim_t *dli_lane_take_job(dl_client_t *client, dli_lane_kind_t kind) {
    dli_claim_t *claim = client->lanes[kind].jobs;
    if (claim != NULL) {
        client->lanes[kind].jobs = claim->next_job[kind];
    }
    return claim;
}

void dli_lane_chores(dl_client_t *client) {
    if (client->lanes[DLI_LANE_FREE].idle != NULL || client->lanes[DLI_LANE_FREE].count == 0) {
        call_worker(client, DLI_LANE_FREE);
    }
}

int dli_renewals_start(dl_client_t *client) {
    return client->inner != NULL || client->lanes[DLI_LANE_RENEW].count > 0
               ? 0
               : start_worker(client, DLI_LANE_RENEW);
}

void dli_workers_stop(dl_client_t *client) {
    for (unsigned kind = 0; kind < DLI_LANES; kind++) {
        dli_lane_t *lane = &client->lanes[kind];
        dli_lock_client(client);
        lane->idle = NULL;
        for (size_t i = 0; i < lane->count; i++) {
            dli_sys->cond_broadcast(&lane->workers[i].has_work);
        }
        dli_unlock_client(client);
        for (size_t i = 0; i < lane->count; i++) {
            dli_sys->thread_join(lane->workers[i].thread);
            pthread_cond_destroy(&lane->workers[i].has_work);
        }
        lane->count = 0;
    }
    dli_claim_t *claim;
    dli_lock_client(client);
    dli_renew_withdraw(client);
    while ((claim = dli_lane_take_job(client, DLI_LANE_RENEW)) != NULL) {
        claim->renew_queued = false;
        dli_claim_unref(claim);
    }
    dli_unlock_client(client);
}
