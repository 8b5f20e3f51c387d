/* workers.c - threads for what blocks: renewals, frees and what queues ask, claims that queues ask. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "core.h"

/*
 * One worker renews: a batch may hang, and a slow free or claim must not delay it. Some free in the
 * background. Some unlock, extend and inspect for queues. A bounded number claims. They start when they are
 * needed and stay until the client closes. Whoever is idle sleeps on a condition of its own, so that one
 * thing to do wakes one thread.
 */

static const size_t worker_max[DLI_LANES] = {
    [DLI_LANE_RENEW] = 1, [DLI_LANE_FREE] = 2, [DLI_LANE_UNLOCK] = 4, [DLI_LANE_CLAIM] = DLI_CLAIM_WORKERS};

static bool has_work(const dl_client_t *client, dli_lane_kind_t kind) {
    return !TAILQ_EMPTY(&client->lanes[kind].queue) ||
           (kind == DLI_LANE_FREE && (client->unwatch != NULL || dli_has_chores(client)));
}

/* ---- a worker ----------------------------------------------------------------------------------- */

static void carry(dl_client_t *client, dli_lane_t *lane, dli_worker_t *worker) {
    dli_request_t *request = TAILQ_FIRST(&lane->queue);
    dli_lane_remove(client, request);
    if (!request->start(request, worker->park)) {
        return;
    }
    /* It waits on the server only while others could do what comes meanwhile. Else for a moment. */
    bool is_full = lane->idle == NULL && (lane->count == worker_max[request->lane] || lane->is_short);
    worker->waits = request->with.wait_ms > 0 && !is_full;
    if (is_full && request->with.wait_ms > DLI_BRIEF_WAIT_MS) {
        request->with.wait_ms = DLI_BRIEF_WAIT_MS;
    }
    dl_status_t status = dli_request_carry_out(client, request);
    worker->waits = false;
    request->ended(request, status);
}

bool dli_lane_carry(dl_client_t *client, dli_lane_kind_t kind) {
    bool has_one = !TAILQ_EMPTY(&client->lanes[kind].queue);
    if (has_one) {
        dli_worker_t none = {.park = NULL};
        carry(client, &client->lanes[kind], &none);
    }
    return has_one;
}

static void *worker_main(void *arg) {
    dli_worker_t *worker = arg;
    dl_client_t *client = worker->client;
    dli_lane_t *lane = &client->lanes[worker->lane];
    (void)dli_be_punctual(worker->lane == DLI_LANE_RENEW);
    dli_lock_client(client);
    while (!client->stop_threads) {
        if (has_work(client, worker->lane)) {
            if (!TAILQ_EMPTY(&lane->queue)) {
                carry(client, lane, worker);
            }
            dli_tidy(client);
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

static int start_worker(dl_client_t *client, dli_lane_kind_t kind) {
    dli_lane_t *lane = &client->lanes[kind];
    dli_worker_t *worker = &lane->workers[lane->count];
    lane->is_short = true;
    worker->park = dli_park_get(client);
    if (worker->park == NULL) {
        return errno;
    }
    worker->client = client;
    worker->lane = kind;
    dli_sys->cond_init(&worker->has_work);
    int rc = dli_sys->thread_start(&worker->thread, worker_main, worker);
    if (rc == 0) {
        lane->is_short = false;
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

/* There is one thing more to do. Should no worker be had, the loop sees it, and asks again. */
static void call_worker(dl_client_t *client, dli_lane_kind_t kind) {
    dli_lane_t *lane = &client->lanes[kind];
    if (wake_idle(lane) || client->stop_threads) {
        return;
    }
    if (lane->count < worker_max[kind] && start_worker(client, kind) == 0) {
        return;
    }
    if (lane->count == 0) {
        dli_loop_call_again(client);
    }
    for (size_t i = 0; i < lane->count; i++) {
        if (lane->workers[i].waits) { /* on the server, for a holder: there is something better to do */
            lane->workers[i].waits = false;
            dli_park_wake(client, lane->workers[i].park);
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

void dli_lane_push(dl_client_t *client, dli_request_t *request) {
    request->in_lane = true;
    TAILQ_INSERT_TAIL(&client->lanes[request->lane].queue, request, turn);
    call_worker(client, request->lane);
}

void dli_lane_remove(dl_client_t *client, dli_request_t *request) {
    request->in_lane = false;
    TAILQ_REMOVE(&client->lanes[request->lane].queue, request, turn);
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
        size_t count = lane->count;
        lane->count = 0;
        lane->idle = NULL;
        for (size_t i = 0; i < count; i++) {
            dli_sys->cond_broadcast(&lane->workers[i].has_work);
        }
        dli_unlock_client(client);
        for (size_t i = 0; i < count; i++) {
            dli_sys->thread_join(lane->workers[i].thread);
            pthread_cond_destroy(&lane->workers[i].has_work);
        }
    }
}
