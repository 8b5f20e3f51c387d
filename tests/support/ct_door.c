/* ct_door.c - the lock calls of a case: blocking, or through a completion queue and waited for here. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/ct_door.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/layout.h"
#include "core/sys.h"
#include "support/alloc_fail.h"
#include "support/ct.h"

/* Of the owners that threads are given; cases number their own from 0. */
#define FIRST_OWNER ((uint64_t)1 << 62)
#define BUCKETS 4096u

/* The owned handle that one thread uses instead of a handle of threads. */
typedef struct standin {
    struct standin *next;
    uint64_t thread;
    dl_lock_t *lock;
} standin_t;

/* A handle of threads. Guarded by ct->mutex, as the table is. */
typedef struct handle {
    struct handle *next;
    dl_lock_t *lock;
    dl_client_t *client;
    standin_t *standins;
    char name[DL_NAME_MAX + 1];
} handle_t;

static handle_t *buckets[BUCKETS];
static atomic_uint_fast64_t last_thread;
static _Thread_local uint64_t this_thread;

/* NULL: the calls block, as they are. */
static ct_t *queue_door(void) {
    ct_t *ct = ct_current();
    return ct != NULL && ct->door == CT_DOOR_QUEUE ? ct : NULL;
}

/* ---- handles -------------------------------------------------------------------------------------- */

static handle_t **bucket_of(const dl_lock_t *lock) {
    return &buckets[((uintptr_t)lock >> 4) % BUCKETS];
}

static handle_t **find(const dl_lock_t *lock) {
    handle_t **at = bucket_of(lock);
    while (*at != NULL && (*at)->lock != lock) {
        at = &(*at)->next;
    }
    return at;
}

static void keep_handle(ct_t *ct, dl_client_t *client, const char *name, dl_lock_t *lock) {
    handle_t *handle = alloc_real(sizeof *handle);
    handle->lock = lock;
    handle->client = client;
    handle->standins = NULL;
    snprintf(handle->name, sizeof handle->name, "%s", name);
    pthread_mutex_lock(&ct->mutex);
    handle->next = *bucket_of(lock);
    *bucket_of(lock) = handle;
    pthread_mutex_unlock(&ct->mutex);
}

dl_status_t ct_door_lock_open(dl_client_t *client, const char *name, dl_lock_t **lock, dl_error_t *err) {
    dl_status_t status = dl_lock_open(client, name, lock, err);
    ct_t *ct = queue_door();
    if (status == DL_OK && ct != NULL) {
        keep_handle(ct, client, name, *lock);
    }
    return status;
}

void ct_door_lock_close(dl_lock_t *lock) {
    ct_t *ct = queue_door();
    if (ct != NULL) {
        pthread_mutex_lock(&ct->mutex);
        handle_t **at = find(lock), *handle = *at;
        if (handle != NULL) {
            *at = handle->next;
        }
        pthread_mutex_unlock(&ct->mutex);
        while (handle != NULL && handle->standins != NULL) {
            standin_t *standin = handle->standins;
            handle->standins = standin->next;
            dl_lock_close(standin->lock);
            alloc_real_free(standin);
        }
        alloc_real_free(handle);
    }
    dl_lock_close(lock);
}

static dl_lock_t *find_standin(ct_t *ct, const dl_lock_t *lock, handle_t **handle) {
    dl_lock_t *found = NULL;
    pthread_mutex_lock(&ct->mutex);
    *handle = *find(lock);
    for (standin_t *at = *handle == NULL ? NULL : (*handle)->standins; at != NULL; at = at->next) {
        found = at->thread == this_thread ? at->lock : found;
    }
    pthread_mutex_unlock(&ct->mutex);
    return found;
}

/* Replaces a handle of threads by the calling thread's own. */
static dl_status_t stand_in(ct_t *ct, dl_lock_t **lock, dl_error_t *err) {
    this_thread = this_thread == 0 ? atomic_fetch_add(&last_thread, 1) + 1 : this_thread;
    handle_t *handle;
    dl_lock_t *owned = find_standin(ct, *lock, &handle);
    if (handle == NULL) {
        return DL_OK; /* an owned one, or none at all */
    }
    if (owned == NULL) {
        dl_status_t status =
            dl_lock_open_owned(handle->client, handle->name, FIRST_OWNER + this_thread, &owned, err);
        if (status != DL_OK) {
            return status;
        }
        standin_t *standin = alloc_real(sizeof *standin);
        standin->thread = this_thread;
        standin->lock = owned;
        pthread_mutex_lock(&ct->mutex);
        standin->next = handle->standins;
        handle->standins = standin;
        pthread_mutex_unlock(&ct->mutex);
    }
    *lock = owned;
    return DL_OK;
}

/* ---- operations ------------------------------------------------------------------------------------ */

/* One operation on a queue of its own. */
typedef struct call {
    dl_lock_t *lock;
    dl_queue_t *queue;
    uint64_t id;
    dl_completion_t done;
} call_t;

/* DL_OK: it can be begun. */
static dl_status_t prepare(ct_t *ct, call_t *call, dl_lock_t *lock, dl_error_t *err) {
    *call = (call_t){.lock = lock};
    dl_status_t status = stand_in(ct, &call->lock, err);
    return status == DL_OK ? dl_queue_new(&call->queue, err) : status;
}

static int is_readable(const dl_queue_t *queue) {
    struct pollfd fd = {.fd = dl_queue_fd(queue), .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

static void await_completion(ct_t *ct, call_t *call, dl_cancel_t *cancel) {
    struct pollfd fds[2] = {{.fd = dl_queue_fd(call->queue), .events = POLLIN},
                            {.fd = dl_cancel_fd(cancel), .events = POLLIN}};
    while (dl_queue_take(call->queue, &call->done, sizeof call->done, 1) == 0) {
        CT_GE(dli_sys->poll(fds, 2, DLI_NEVER), 0);
        if (fds[1].revents != 0) {
            dl_status_t status = dl_op_cancel(call->queue, call->id);
            CT_CHECKF(status == DL_OK || status == DL_EBUSY, "dl_op_cancel is %s", dl_status_name(status));
            fds[1].fd = -1;
        }
    }
}

/* What a completion promises, whatever the case looks at. */
static void check(ct_t *ct, const call_t *call, dl_op_kind_t kind) {
    const dl_completion_t *done = &call->done;
    dl_completion_t second;
    CT_EQ(done->kind, kind);
    CT_EQ(done->id, call->id);
    CT_CHECK(done->tag == call && done->lock == call->lock);
    CT_CHECKF(done->err.status == done->status, "the completion is %s, and its err says %s",
              dl_status_name(done->status), dl_status_name(done->err.status));
    CT_CHECKF(dl_queue_take(call->queue, &second, sizeof second, 1) == 0, "completed twice");
    CT_CHECKF(!is_readable(call->queue), "nothing waits in the queue, and it is readable");
    CT_EQ(dl_op_cancel(call->queue, call->id), DL_EINVAL);
}

/* `status`: of the begin. */
static dl_status_t finish(ct_t *ct, call_t *call, dl_op_kind_t kind, dl_cancel_t *cancel, dl_status_t status,
                          dl_error_t *err) {
    if (status == DL_OK) {
        await_completion(ct, call, cancel);
        check(ct, call, kind);
        status = call->done.status;
        if (status != DL_OK && err != NULL) {
            *err = call->done.err;
        }
    }
    dl_queue_free(call->queue);
    return status;
}

dl_status_t ct_door_acquire(dl_lock_t *lock, const dl_acquire_opts_t *given, dl_error_t *err) {
    ct_t *ct = queue_door();
    if (ct == NULL) {
        return dl_acquire(lock, given, err);
    }
    call_t call;
    dl_status_t status = prepare(ct, &call, lock, err);
    if (status != DL_OK) {
        return status;
    }
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    dl_cancel_t *cancel = NULL;
    if (given != NULL && dli_layout_has(&dli_layout_acquire_opts, given->size)) {
        memcpy(&opts, given, given->size);
        cancel = opts.cancel;
        opts.cancel = NULL;
        given = &opts;
    }
    status = dl_acquire_begin(call.lock, given, call.queue, &call, &call.id, err);
    return finish(ct, &call, DL_OP_ACQUIRE, cancel, status, err);
}

dl_status_t ct_door_lock(dl_lock_t *lock, dl_error_t *err) {
    return ct_door_trylock_for(lock, DL_WAIT_FOREVER, DL_LEASE_AUTO, err);
}

dl_status_t ct_door_trylock(dl_lock_t *lock, dl_error_t *err) {
    return ct_door_trylock_for(lock, 0, DL_LEASE_AUTO, err);
}

dl_status_t ct_door_trylock_for(dl_lock_t *lock, int64_t wait_ms, int64_t lease_ms, dl_error_t *err) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.wait_ms = wait_ms;
    opts.lease_ms = lease_ms;
    return ct_door_acquire(lock, &opts, err);
}

dl_status_t ct_door_unlock(dl_lock_t *lock, dl_error_t *err) {
    ct_t *ct = queue_door();
    if (ct == NULL) {
        return dl_unlock(lock, err);
    }
    call_t call;
    dl_status_t status = prepare(ct, &call, lock, err);
    if (status != DL_OK) {
        return status;
    }
    status = dl_unlock_begin(call.lock, call.queue, &call, &call.id, err);
    return finish(ct, &call, DL_OP_UNLOCK, NULL, status, err);
}

dl_status_t ct_door_extend(dl_lock_t *lock, int64_t lease_ms, dl_error_t *err) {
    ct_t *ct = queue_door();
    if (ct == NULL) {
        return dl_extend(lock, lease_ms, err);
    }
    call_t call;
    dl_status_t status = prepare(ct, &call, lock, err);
    if (status != DL_OK) {
        return status;
    }
    status = dl_extend_begin(call.lock, lease_ms, call.queue, &call, &call.id, err);
    return finish(ct, &call, DL_OP_EXTEND, NULL, status, err);
}

dl_status_t ct_door_inspect(dl_lock_t *lock, dl_lock_info_t *info, dl_error_t *err) {
    ct_t *ct = queue_door();
    if (ct == NULL || info == NULL || !dli_layout_has(&dli_layout_lock_info, info->size)) {
        return dl_inspect(lock, info, err);
    }
    call_t call;
    dl_status_t status = prepare(ct, &call, lock, err);
    if (status != DL_OK) {
        return status;
    }
    status = dl_inspect_begin(call.lock, call.queue, &call, &call.id, err);
    bool begun = status == DL_OK;
    status = finish(ct, &call, DL_OP_INSPECT, NULL, status, err);
    if (begun) {
        dli_layout_give(info, info->size, &call.done.with.info);
    }
    return status;
}

/* ---- what a holder asks without I/O ----------------------------------------------------------------- */

/* The handle to ask with. */
static dl_lock_t *own(dl_lock_t *lock) {
    ct_t *ct = queue_door();
    if (ct != NULL && stand_in(ct, &lock, NULL) != DL_OK) {
        return NULL;
    }
    return lock;
}

int64_t ct_door_valid_ms(dl_lock_t *lock) {
    return dl_valid_ms(own(lock));
}

uint64_t ct_door_token(dl_lock_t *lock) {
    return dl_token(own(lock));
}

uint32_t ct_door_hold_count(dl_lock_t *lock) {
    return dl_hold_count(own(lock));
}
