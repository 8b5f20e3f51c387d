/* lock.c - handles, and the lock calls of the public interface: what they demand of their arguments. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* ---- handles ----------------------------------------------------------------------------------- */

static dl_status_t check_name(dl_client_t *client, const char *name, size_t *len, dl_error_t *err) {
    *len = name != NULL ? strnlen(name, DL_NAME_MAX + 1) : 0;
    if (*len == 0 || *len > DL_NAME_MAX) {
        return dli_fail(err, DL_EINVAL, "a lock's name has 1 to %d bytes", DL_NAME_MAX);
    }
    if (client->driver->check_name == NULL) {
        return DL_OK;
    }
    dl_error_t inner = {.status = DL_OK};
    return dli_error_give(err, &inner, client->driver->check_name(client->state, name, *len, &inner));
}

/* NULL: no memory. */
static dl_lock_t *make_handle(dl_client_t *client, const char *name, size_t len) {
    dl_lock_t *lock = calloc(1, sizeof *lock);
    dli_gate_t *gate = lock != NULL ? dli_gate_get(client, name, len) : NULL;
    if (gate == NULL) {
        free(lock);
        return NULL;
    }
    lock->gate = gate;
    lock->client = client;
    lock->refs = 1;
    client->refs++;
    return lock;
}

static dl_status_t open_handle(dl_client_t *client, const char *name, bool owned, uint64_t owner,
                               dl_lock_t **lock, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    if (lock != NULL) {
        *lock = NULL;
    }
    if (client == NULL || lock == NULL) {
        return dli_fail(err, DL_EINVAL, "no client, or no place for the handle");
    }
    dl_status_t status = dli_call_enter(client);
    if (status != DL_OK) {
        return dli_fail_plain(err, status);
    }
    dli_unlock_client(client);
    size_t len;
    status = check_name(client, name, &len, err);
    dli_lock_client(client);
    if (status == DL_OK) {
        *lock = make_handle(client, name, len);
        status = *lock != NULL ? DL_OK : dli_fail_plain(err, DL_ENOMEM);
    }
    if (status == DL_OK) {
        (*lock)->owned = owned;
        (*lock)->owner_number = owner;
    }
    dli_call_leave_and_unlock(client);
    return status;
}

dl_status_t dl_lock_open(dl_client_t *client, const char *name, dl_lock_t **lock, dl_error_t *err) {
    return open_handle(client, name, false, 0, lock, err);
}

dl_status_t dl_lock_open_owned(dl_client_t *client, const char *name, uint64_t owner, dl_lock_t **lock,
                               dl_error_t *err) {
    return open_handle(client, name, true, owner, lock, err);
}

void dli_lock_unref(dl_lock_t *lock) {
    if (--lock->refs == 0) {
        dli_gate_unref(lock->gate);
        lock->client->refs--;
        free(lock);
    }
}

void dli_lock_unref_and_unlock(dl_lock_t *lock) {
    dl_client_t *client = lock->client;
    client->refs++;
    dli_lock_unref(lock);
    dli_client_unref_and_unlock(client);
}

void dl_lock_close(dl_lock_t *lock) {
    DLI_NO_THREAD_CANCEL;
    if (lock == NULL) {
        return;
    }
    dl_client_t *client = lock->client;
    if (dli_forked(client)) {
        return; /* the mutex may be locked for ever in this process; the little memory stays */
    }
    dli_lock_client(client);
    lock->closed = true;
    if (lock->refs > 1) {
        dli_op_poke_all(client, lock);
    }
    dli_lock_unref_and_unlock(lock);
}

bool dli_lock_owner(const dl_lock_t *lock, dli_owner_t *owner) {
    *owner = (dli_owner_t){.number = lock->owner_number};
    if (!lock->owned) {
        owner->thread = dli_thread_self();
        owner->number = owner->thread != NULL ? owner->thread->number : 0;
    }
    return lock->owned || owner->thread != NULL;
}

/* ---- arguments --------------------------------------------------------------------------------- */

dl_status_t dli_check_lease(int64_t lease_ms, dl_error_t *err) {
    if (lease_ms != DL_LEASE_AUTO && (lease_ms < DL_LEASE_MIN_MS || lease_ms > DL_LEASE_MAX_MS)) {
        return dli_fail(err, DL_EINVAL, "lease_ms is %lld; it must be 0 (automatic) or %d to %lld",
                        (long long)lease_ms, DL_LEASE_MIN_MS, (long long)DL_LEASE_MAX_MS);
    }
    return DL_OK;
}

dl_status_t dli_take_opts(const dl_acquire_opts_t *given, dl_acquire_opts_t *opts, dl_error_t *err) {
    if (given == NULL) {
        return dli_fail(err, DL_EINVAL, "no options");
    }
    if (!dli_layout_has(&dli_layout_acquire_opts, given->size)) {
        return dli_fail(err, DL_EINVAL, "the options were not made by DL_ACQUIRE_OPTS_INIT");
    }
    *opts = (dl_acquire_opts_t)DL_ACQUIRE_OPTS_INIT;
    memcpy(opts, given, given->size);
    if (opts->wait_ms < DL_WAIT_FOREVER || opts->wait_ms > DL_WAIT_MAX_MS) {
        return dli_fail(err, DL_EINVAL, "wait_ms is %lld; it must be -1 (for ever) or 0 to %lld",
                        (long long)opts->wait_ms, (long long)DL_WAIT_MAX_MS);
    }
    if (opts->cancel != NULL && dli_is_inherited(&opts->cancel->origin)) {
        return dli_fail(err, DL_EFORKED, "the cancel object is the parent process'");
    }
    dl_status_t status = dli_check_lease(opts->lease_ms, err);
    if (status == DL_OK && (opts->max_hold_ms < 0 || opts->max_hold_ms > DL_LEASE_MAX_MS)) {
        status = dli_fail(err, DL_EINVAL, "max_hold_ms is %lld; it must be 0 to %lld",
                          (long long)opts->max_hold_ms, (long long)DL_LEASE_MAX_MS);
    }
    return status;
}

/* ---- the blocking calls ---------------------------------------------------------------------------- */

dl_status_t dl_acquire(dl_lock_t *lock, const dl_acquire_opts_t *given, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    dli_asked_t asked = {.kind = DL_OP_ACQUIRE, .step = dli_acquire_step};
    dl_status_t status = dli_take_opts(given, &asked.opts, err);
    return status == DL_OK ? dli_op_call(&asked, lock, NULL, err) : status;
}

dl_status_t dl_lock(dl_lock_t *lock, dl_error_t *err) {
    return dl_trylock_for(lock, DL_WAIT_FOREVER, DL_LEASE_AUTO, err);
}

dl_status_t dl_trylock(dl_lock_t *lock, dl_error_t *err) {
    return dl_trylock_for(lock, 0, DL_LEASE_AUTO, err);
}

dl_status_t dl_trylock_for(dl_lock_t *lock, int64_t wait_ms, int64_t lease_ms, dl_error_t *err) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.wait_ms = wait_ms;
    opts.lease_ms = lease_ms;
    return dl_acquire(lock, &opts, err);
}

dl_status_t dl_unlock(dl_lock_t *lock, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    dli_asked_t asked = {.kind = DL_OP_UNLOCK, .step = dli_unlock_step};
    return dli_op_call(&asked, lock, NULL, err);
}

dl_status_t dl_extend(dl_lock_t *lock, int64_t lease_ms, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    dli_asked_t asked = {.kind = DL_OP_EXTEND, .step = dli_extend_step, .lease_ms = lease_ms};
    dl_status_t status = dli_check_lease(lease_ms, err);
    return status == DL_OK ? dli_op_call(&asked, lock, NULL, err) : status;
}
