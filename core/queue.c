/* queue.c - completion queues: operations that nobody waits for, and what became of them, in one order. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core.h"

dl_status_t dl_queue_new(dl_queue_t **out, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    if (out == NULL) {
        return dli_fail(err, DL_EINVAL, "no place for the queue");
    }
    *out = NULL;
    dl_queue_t *queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        return dli_fail_plain(err, DL_ENOMEM);
    }
    queue->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (queue->fd < 0) {
        dl_driver_fail(err, DL_ELIMIT, errno, "no descriptor for a queue: %s", strerror(errno));
        free(queue);
        return DL_ELIMIT;
    }
    pthread_mutex_init(&queue->taking, NULL);
    pthread_mutex_init(&queue->mutex, NULL);
    TAILQ_INIT(&queue->entries);
    queue->limit = DL_QUEUE_MAX;
    queue->origin = dli_origin();
    *out = queue;
    return DL_OK;
}

int dl_queue_fd(const dl_queue_t *queue) {
    return queue == NULL || dli_is_inherited(&queue->origin) ? -1 : queue->fd;
}

/* ---- entries: with the queue's mutex --------------------------------------------------------------- */

static void append(dl_queue_t *queue, dli_entry_t *entry) {
    if (TAILQ_EMPTY(&queue->entries)) {
        dli_eventfd_raise(queue->fd);
    }
    TAILQ_INSERT_TAIL(&queue->entries, entry, turn);
}

static void take_out(dl_queue_t *queue, dli_entry_t *entry) {
    TAILQ_REMOVE(&queue->entries, entry, turn);
    if (TAILQ_EMPTY(&queue->entries)) {
        dli_eventfd_lower(queue->fd);
    }
}

/* The newest is the first, so that the end of a queue gives none the turn of another that has just lost it.
 */
static uint64_t key_of(uint64_t id) {
    return ~id;
}

void dli_queue_put_op(dli_op_t *op) {
    pthread_mutex_lock(&op->queue->mutex);
    append(op->queue, &op->entry);
    pthread_mutex_unlock(&op->queue->mutex);
}

void dli_queue_put_event(dl_queue_t *queue, dli_event_t *event) {
    dl_client_t *client = event->client;
    client->refs++;
    client->event_count++;
    pthread_mutex_lock(&queue->mutex);
    append(queue, &event->entry);
    pthread_mutex_unlock(&queue->mutex);
}

/* ---- begin ------------------------------------------------------------------------------------------ */

static dl_status_t check(const dl_lock_t *lock, const dl_queue_t *queue, dl_error_t *err) {
    if (lock == NULL || queue == NULL) {
        return dli_fail(err, DL_EINVAL, "no lock or no queue");
    }
    if (dli_is_inherited(&queue->origin)) {
        return dli_fail_plain(err, DL_EFORKED);
    }
    if (!lock->owned) {
        return dli_fail(err, DL_EINVAL,
                        "a queue needs a handle of dl_lock_open_owned: its operations belong to no thread");
    }
    return DL_OK;
}

/* With the client's mutex. */
static dl_status_t admit(dl_queue_t *queue, dli_op_t *op, dl_error_t *err) {
    int rc = dli_loop_start(op->client);
    if (rc != 0) {
        return dl_driver_fail(err, DL_ELIMIT, rc, "no thread for a queue's operations: %s", strerror(rc));
    }
    pthread_mutex_lock(&queue->mutex);
    bool has_room = queue->op_count < queue->limit;
    if (has_room) {
        op->queue = queue;
        queue->op_count++;
        dli_tree_add(&queue->ops, &op->by_id, key_of(++queue->last_id));
    }
    pthread_mutex_unlock(&queue->mutex);
    if (!has_room) {
        return dli_fail(err, DL_ELIMIT, "%zu operations of this queue are under way or wait to be taken",
                        queue->limit);
    }
    return DL_OK;
}

static dl_status_t begin(const dli_asked_t *asked, dl_lock_t *lock, dl_queue_t *queue, uint64_t *id,
                         dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    DLI_PUNCTUAL;
    dl_status_t status = check(lock, queue, err);
    if (status != DL_OK) {
        return status;
    }
    dli_op_t *op = dli_op_new(asked);
    if (op == NULL) {
        return dli_fail_plain(err, DL_ENOMEM);
    }
    status = dli_op_enter(op, lock, err);
    if (status != DL_OK) {
        free(op);
        return status;
    }
    dl_client_t *client = op->client;
    status = admit(queue, op, err);
    if (status == DL_OK) {
        if (id != NULL) {
            *id = key_of(op->by_id.key);
        }
        dli_op_start(op);
    } else {
        dli_op_leave(op);
        dli_lock_unref(lock);
        free(op);
    }
    dli_unlock_client(client);
    return status;
}

dl_status_t dl_acquire_begin(dl_lock_t *lock, const dl_acquire_opts_t *opts, dl_queue_t *queue, void *tag,
                             uint64_t *id, dl_error_t *err) {
    dli_asked_t asked = {.kind = DL_OP_ACQUIRE, .step = dli_acquire_step, .tag = tag};
    dl_status_t status = dli_take_opts(opts, &asked.opts, err);
    if (status == DL_OK && asked.opts.cancel != NULL) {
        status = dli_fail(err, DL_EINVAL, "an operation of a queue is cancelled by dl_op_cancel");
    }
    return status == DL_OK ? begin(&asked, lock, queue, id, err) : status;
}

dl_status_t dl_unlock_begin(dl_lock_t *lock, dl_queue_t *queue, void *tag, uint64_t *id, dl_error_t *err) {
    dli_asked_t asked = {.kind = DL_OP_UNLOCK, .step = dli_unlock_step, .tag = tag};
    return begin(&asked, lock, queue, id, err);
}

dl_status_t dl_extend_begin(dl_lock_t *lock, int64_t lease_ms, dl_queue_t *queue, void *tag, uint64_t *id,
                            dl_error_t *err) {
    dli_asked_t asked = {.kind = DL_OP_EXTEND, .step = dli_extend_step, .lease_ms = lease_ms, .tag = tag};
    dl_status_t status = dli_check_lease(lease_ms, err);
    return status == DL_OK ? begin(&asked, lock, queue, id, err) : status;
}

dl_status_t dl_inspect_begin(dl_lock_t *lock, dl_queue_t *queue, void *tag, uint64_t *id, dl_error_t *err) {
    dli_asked_t asked = {.kind = DL_OP_INSPECT, .step = dli_query_step, .tag = tag};
    return begin(&asked, lock, queue, id, err);
}

/* ---- take ------------------------------------------------------------------------------------------- */

static void give_op(dli_op_t *op, dl_completion_t *out) {
    dl_client_t *client = op->client;
    dli_lock_client(client);
    dli_op_judge(op);
    *out = (dl_completion_t){.kind = op->kind,
                             .status = op->status,
                             .tag = op->tag,
                             .id = key_of(op->by_id.key),
                             .lock = op->lock,
                             .client = client};
    if (op->status != DL_OK) {
        out->err = op->err;
    } else if (op->hold != NULL) {
        out->valid_ms = dli_hold_valid_ms(op->hold);
        out->token = op->kind == DL_OP_ACQUIRE ? op->hold->token : 0;
    }
    if (op->kind == DL_OP_ACQUIRE && op->hold != NULL) {
        out->hold_id = op->hold->hold_id;
    }
    if (op->info != NULL) {
        out->with.info = *op->info;
    }
    dli_op_free_and_unlock(op);
}

/* False: its client was closed meanwhile. */
static bool give_event(dli_event_t *event, dl_completion_t *out) {
    dl_client_t *client = event->client;
    *out = (dl_completion_t){.kind = DL_OP_EVENT, .client = client, .with.event = DL_EVENT_INIT};
    dli_lock_client(client);
    bool is_open = !client->closed;
    dli_event_give(event, &out->with.event);
    out->status = out->with.event.status;
    client->event_count--;
    dli_client_unref_and_unlock(client);
    return is_open;
}

/* NULL: nothing waits. */
static dli_entry_t *take(dl_queue_t *queue) {
    pthread_mutex_lock(&queue->mutex);
    dli_entry_t *entry = TAILQ_FIRST(&queue->entries);
    if (entry != NULL) {
        take_out(queue, entry);
    }
    if (entry != NULL && !entry->is_event) {
        queue->op_count--;
        dli_tree_remove(&queue->ops, &((dli_op_t *)(void *)entry)->by_id);
    }
    pthread_mutex_unlock(&queue->mutex);
    return entry;
}

size_t dl_queue_take(dl_queue_t *queue, dl_completion_t *array, size_t size, size_t max) {
    DLI_NO_THREAD_CANCEL;
    DLI_PUNCTUAL;
    bool is_known = dli_layout_has(&dli_layout_completion, size) || size > dli_layout_completion.now;
    if (queue == NULL || array == NULL || !is_known || dli_is_inherited(&queue->origin)) {
        return 0;
    }
    size_t n = 0;
    dli_entry_t *entry;
    pthread_mutex_lock(&queue->taking);
    while (n < max && (entry = take(queue)) != NULL) {
        dl_completion_t whole;
        if (!entry->is_event) {
            give_op((dli_op_t *)(void *)entry, &whole);
        } else if (!give_event((dli_event_t *)(void *)entry, &whole)) {
            continue;
        }
        dli_layout_give_any(&dli_layout_completion, (char *)array + n++ * size, size, &whole);
    }
    pthread_mutex_unlock(&queue->taking);
    return n;
}

/* ---- cancel ----------------------------------------------------------------------------------------- */

static dli_op_t *find(dl_queue_t *queue, uint64_t id) {
    pthread_mutex_lock(&queue->mutex);
    dli_node_t *at = dli_tree_find(queue->ops, key_of(id));
    pthread_mutex_unlock(&queue->mutex);
    return DLI_CONTAINER_OF(dli_op_t, by_id, at);
}

/* With the client's mutex. */
static dl_status_t cancel(dli_op_t *op) {
    bool may_end = op->kind == DL_OP_ACQUIRE && op->ask != DLI_ASK_LEVEL && op->ask != DLI_ASK_RENEW;
    bool asks = op->place == DLI_OP_ASKED && !op->request.in_lane;
    bool is_late = (asks || op->place == DLI_OP_READY) && !may_end; /* READY: it may have its answer */
    if (op->place == DLI_OP_ENDED || op->kind == DL_OP_UNLOCK || is_late) {
        return DL_EBUSY;
    }
    op->cancelled = true;
    dli_op_poke(op);
    return DL_OK;
}

dl_status_t dl_op_cancel(dl_queue_t *queue, uint64_t id) {
    DLI_NO_THREAD_CANCEL;
    DLI_PUNCTUAL;
    if (queue == NULL) {
        return DL_EINVAL;
    }
    if (dli_is_inherited(&queue->origin)) {
        return DL_EFORKED;
    }
    dl_status_t status = DL_EINVAL;
    pthread_mutex_lock(&queue->taking);
    dli_op_t *op = find(queue, id);
    if (op != NULL) {
        dl_client_t *client = op->client;
        dli_lock_client(client);
        status = cancel(op);
        dli_unlock_client(client);
    }
    pthread_mutex_unlock(&queue->taking);
    return status;
}

/* ---- events of clients ------------------------------------------------------------------------------ */

/* With the client's mutex, as what follows. Events that wait here stay. */
void dli_queue_leave(dl_client_t *client) {
    dl_queue_t *queue = client->event_queue;
    client->event_queue = NULL;
    if (queue == NULL) {
        return;
    }
    pthread_mutex_lock(&queue->mutex);
    dl_client_t **at = &queue->clients;
    while (*at != NULL && *at != client) {
        at = &(*at)->next_of_queue;
    }
    if (*at != NULL) { /* else the queue is being freed, and has it already */
        *at = client->next_of_queue;
        client->refs--;
    }
    pthread_mutex_unlock(&queue->mutex);
}

static void link_client(dl_queue_t *queue, dl_client_t *client) {
    dli_entries_t waiting = TAILQ_HEAD_INITIALIZER(waiting);
    TAILQ_CONCAT(&waiting, &client->events, turn);
    client->event_fn = NULL;
    dli_events_show(client);
    client->refs++;
    client->event_queue = queue;
    pthread_mutex_lock(&queue->mutex);
    client->next_of_queue = queue->clients;
    queue->clients = client;
    pthread_mutex_unlock(&queue->mutex);
    dli_entry_t *entry;
    while ((entry = TAILQ_FIRST(&waiting)) != NULL) {
        TAILQ_REMOVE(&waiting, entry, turn);
        client->event_count--;
        dli_queue_put_event(queue, (dli_event_t *)(void *)entry);
    }
}

dl_status_t dl_queue_events(dl_queue_t *queue, dl_client_t *client) {
    DLI_NO_THREAD_CANCEL;
    if (queue != NULL && dli_is_inherited(&queue->origin)) {
        return DL_EFORKED;
    }
    dl_status_t status = dli_call_enter(client);
    if (status == DL_OK) {
        dli_queue_leave(client);
        if (queue != NULL) {
            link_client(queue, client);
        }
        dli_call_leave_and_unlock(client);
    }
    return status;
}

/* What waits of a client, in its order. */
static void take_events(dl_queue_t *queue, const dl_client_t *client, dli_entries_t *taken) {
    pthread_mutex_lock(&queue->mutex);
    dli_entry_t *next;
    for (dli_entry_t *entry = TAILQ_FIRST(&queue->entries); entry != NULL; entry = next) {
        next = TAILQ_NEXT(entry, turn);
        if (entry->is_event && ((dli_event_t *)(void *)entry)->client == client) {
            take_out(queue, entry);
            TAILQ_INSERT_TAIL(taken, entry, turn);
        }
    }
    pthread_mutex_unlock(&queue->mutex);
}

/* To who reads the client's events now, or to nobody. */
static void give_back(dli_entry_t *entry, bool discard) {
    dli_event_t *event = (dli_event_t *)(void *)entry;
    dl_client_t *client = event->client;
    client->refs--; /* not the last: the caller has one, or the client is not closed */
    client->event_count--;
    if (discard) {
        dli_event_discard(event);
    } else {
        dli_event_route(event);
    }
}

static void give_back_all(dl_queue_t *queue, const dl_client_t *client, bool discard) {
    dli_entries_t taken = TAILQ_HEAD_INITIALIZER(taken);
    take_events(queue, client, &taken);
    dli_entry_t *entry;
    while ((entry = TAILQ_FIRST(&taken)) != NULL) {
        TAILQ_REMOVE(&taken, entry, turn);
        give_back(entry, discard);
    }
}

void dli_queue_forget_client(dl_client_t *client) {
    dl_queue_t *queue = client->event_queue;
    if (queue == NULL) {
        return;
    }
    give_back_all(queue, client, true);
    dli_queue_leave(client);
}

/* ---- the end of a queue ----------------------------------------------------------------------------- */

static void drop_entries(dl_queue_t *queue) {
    dli_entry_t *entry;
    while ((entry = take(queue)) != NULL) {
        if (entry->is_event) { /* it had waited here when its client was given to another queue */
            dl_client_t *client = ((dli_event_t *)(void *)entry)->client;
            dli_lock_client(client);
            client->refs++;
            give_back(entry, client->closed);
            dli_client_unref_and_unlock(client);
        } else {
            dli_op_t *op = (dli_op_t *)(void *)entry;
            dl_client_t *client = op->client;
            dli_lock_client(client);
            dli_op_give_up(op);
            dli_op_free_and_unlock(op);
        }
    }
}

/* Unless it has completed meanwhile, and waits. */
static void abandon(dli_op_t *op) {
    dl_client_t *client = op->client;
    dli_lock_client(client);
    if (op->place != DLI_OP_ENDED) {
        dli_tree_remove(&op->queue->ops, &op->by_id);
        op->queue = NULL;
        op->cancelled = true;
        dli_op_poke(op);
    }
    dli_unlock_client(client);
}

static dl_client_t *take_client(dl_queue_t *queue) {
    pthread_mutex_lock(&queue->mutex);
    dl_client_t *client = queue->clients;
    if (client != NULL) {
        queue->clients = client->next_of_queue;
    }
    pthread_mutex_unlock(&queue->mutex);
    return client;
}

void dl_queue_free(dl_queue_t *queue) {
    DLI_NO_THREAD_CANCEL;
    DLI_PUNCTUAL;
    if (queue == NULL) {
        return;
    }
    if (dli_is_inherited(&queue->origin)) {
        close(queue->fd); /* the mutexes may be locked for ever in this process; the little memory stays */
        return;
    }
    pthread_mutex_lock(&queue->taking); /* the last of the others' calls may not be back */
    dl_client_t *client;
    while ((client = take_client(queue)) != NULL) {
        dli_lock_client(client);
        if (client->event_queue == queue) {
            client->event_queue = NULL;
            give_back_all(queue, client, false);
        }
        dli_client_unref_and_unlock(client);
    }
    dli_node_t *next;
    for (dli_node_t *at = dli_tree_after(queue->ops, NULL); at != NULL; at = next) {
        next = dli_tree_after(queue->ops, at);
        abandon(DLI_CONTAINER_OF(dli_op_t, by_id, at));
    }
    drop_entries(queue);
    close(queue->fd);
    pthread_mutex_unlock(&queue->taking);
    pthread_mutex_destroy(&queue->mutex);
    pthread_mutex_destroy(&queue->taking);
    free(queue);
}
