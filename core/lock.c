/* lock.c - the lock calls of the public interface: arguments, re-entry, the last level. */
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
    dl_error_t inner;
    dli_error_clear(&inner);
    return dli_error_give(err, &inner, client->driver->check_name(client->state, name, *len, &inner));
}

static dl_status_t make_handle(dl_client_t *client, const char *name, size_t len, dl_lock_t **out) {
    dl_lock_t *lock = calloc(1, sizeof *lock);
    if (lock == NULL) {
        return DL_ENOMEM;
    }
    lock->gate = dli_gate_get(client, name, len);
    if (lock->gate == NULL) {
        free(lock);
        return DL_ENOMEM;
    }
    lock->client = client;
    lock->refs = 1;
    client->refs++;
    *out = lock;
    return DL_OK;
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
    if (dli_forked(client)) {
        return dli_fail_plain(err, DL_EFORKED);
    }
    dli_lock_client(client);
    dl_status_t status = dli_call_enter(client);
    if (status != DL_OK) {
        dli_unlock_client(client);
        return dli_fail_plain(err, status);
    }
    dli_unlock_client(client);
    size_t len;
    status = check_name(client, name, &len, err);
    dli_lock_client(client);
    if (status == DL_OK) {
        status = make_handle(client, name, len, lock);
        if (status != DL_OK) {
            dli_fail_plain(err, status);
        } else {
            (*lock)->owned = owned;
            (*lock)->owner_number = owner;
        }
    }
    dli_call_leave(client);
    dli_unlock_client(client);
    return status;
}

dl_status_t dl_lock_open(dl_client_t *client, const char *name, dl_lock_t **lock, dl_error_t *err) {
    return open_handle(client, name, false, 0, lock, err);
}

dl_status_t dl_lock_open_owned(dl_client_t *client, const char *name, uint64_t owner, dl_lock_t **lock,
                               dl_error_t *err) {
    return open_handle(client, name, true, owner, lock, err);
}

void dli_lock_unref_and_unlock(dl_lock_t *lock) {
    dl_client_t *client = lock->client;
    if (--lock->refs > 0) {
        dli_unlock_client(client);
        return;
    }
    dli_gate_unref(client, lock->gate);
    free(lock);
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
        dli_park_wake_all(client, lock);
    }
    dli_lock_unref_and_unlock(lock);
}

/* ---- entering and leaving a call --------------------------------------------------------------- */

static dl_status_t owner_of(const dl_lock_t *lock, dli_owner_t *owner) {
    if (lock->owned) {
        *owner = (dli_owner_t){.number = lock->owner_number};
        return DL_OK;
    }
    dli_thread_t *self = dli_thread_self();
    if (self == NULL) {
        return DL_ENOMEM;
    }
    *owner = (dli_owner_t){.number = self->number, .thread = self};
    return DL_OK;
}

/* DL_OK: the call is counted in and the mutex is held. */
static dl_status_t enter(dl_lock_t *lock, dli_owner_t *owner, dl_error_t *err) {
    if (lock == NULL) {
        return dli_fail(err, DL_EINVAL, "no lock");
    }
    if (dli_forked(lock->client)) {
        return dli_fail_plain(err, DL_EFORKED);
    }
    dl_status_t status = owner_of(lock, owner);
    if (status != DL_OK) {
        return dli_fail_plain(err, status);
    }
    dli_lock_client(lock->client);
    status = dli_call_enter(lock->client);
    if (status != DL_OK) {
        dli_unlock_client(lock->client);
        return dli_fail_plain(err, status);
    }
    lock->refs++;
    return DL_OK;
}

static void leave(dl_lock_t *lock) {
    dli_call_leave(lock->client);
    dli_lock_unref_and_unlock(lock);
}

/* ---- acquiring --------------------------------------------------------------------------------- */

/* Copies what the caller's options have; of what came later they keep the initial values. */
static dl_status_t take_opts(const dl_acquire_opts_t *given, dl_acquire_opts_t *opts, dl_error_t *err) {
    if (given == NULL || !dli_layout_has(&dli_layout_acquire_opts, given->size)) {
        return dli_fail(err, DL_EINVAL, "the options were not made by DL_ACQUIRE_OPTS_INIT");
    }
    *opts = (dl_acquire_opts_t)DL_ACQUIRE_OPTS_INIT;
    memcpy(opts, given, given->size);
    if (opts->wait_ms < DL_WAIT_FOREVER || opts->wait_ms > DL_WAIT_MAX_MS) {
        return dli_fail(err, DL_EINVAL, "wait_ms is %lld; it must be -1 (for ever) or 0 to %lld",
                        (long long)opts->wait_ms, (long long)DL_WAIT_MAX_MS);
    }
    if (opts->lease_ms != DL_LEASE_AUTO &&
        (opts->lease_ms < DL_LEASE_MIN_MS || opts->lease_ms > DL_LEASE_MAX_MS)) {
        return dli_fail(err, DL_EINVAL, "lease_ms is %lld; it must be 0 (automatic) or %d to %lld",
                        (long long)opts->lease_ms, DL_LEASE_MIN_MS, (long long)DL_LEASE_MAX_MS);
    }
    if (opts->max_hold_ms < 0 || opts->max_hold_ms > DL_LEASE_MAX_MS) {
        return dli_fail(err, DL_EINVAL, "max_hold_ms is %lld; it must be 0 to %lld",
                        (long long)opts->max_hold_ms, (long long)DL_LEASE_MAX_MS);
    }
    return DL_OK;
}

/* Tells the server of one more level, or makes the lease longer, or both. Mutex released meanwhile. *answer:
 * when it was sent, and what was seen of a loss. */
static dl_status_t tell_server(dli_hold_t *hold, uint32_t level, int64_t lease_ms, uint64_t deadline_ns,
                               dl_renewal_t *answer, dl_error_t *err) {
    dl_client_t *client = hold->client;
    *answer = (dl_renewal_t){.sent_ns = 0};
    if (!dli_op_begin(hold, deadline_ns)) {
        return dli_fail(err, DL_EUNKNOWN, "a renewal on the same connection is stuck");
    }
    if (hold->state != DLI_HOLD_LIVE) {
        dli_op_end(hold); /* it ended while we waited for its connection */
        return dli_fail_plain(err, DL_ELOST);
    }
    /* Noted before the answer: should it get lost, the server may keep the lock this long. */
    hold->lease_ms = lease_ms > hold->lease_ms ? lease_ms : hold->lease_ms;
    dli_unlock_client(client);
    dl_status_t status;
    if ((client->driver->caps & DL_CAP_SERVER_COUNT) != 0 && level > 1) {
        dl_stop_t stop = {{-1, -1}};
        dl_grant_t grant;
        status = dli_call_try(hold, level, lease_ms, 0, deadline_ns, &stop, &grant, err);
        answer->sent_ns = grant.sent_ns;
    } else {
        status = dli_call_renew_one(hold, lease_ms, deadline_ns, answer);
        dli_fail_plain(err, status);
    }
    dli_lock_client(client);
    dli_op_end(hold);
    return status;
}

/* Applies the answer to an extension. The hold may have ended or been lost while the server was asked. */
static dl_status_t apply_extension(dli_hold_t *hold, dl_status_t status, const dl_renewal_t *answer,
                                   int64_t lease_ms, dl_error_t *err) {
    uint64_t now = dli_now();
    if (hold->state == DLI_HOLD_LIVE) {
        if (dli_hold_expire(hold, now)) {
            return dli_fail_plain(err, DL_ELOST);
        }
        if (status == DL_ELOST) {
            dli_hold_lose_as(hold, answer->loss);
        } else if (status == DL_OK) {
            dli_hold_extended(hold, answer->sent_ns, lease_ms, now);
        }
    }
    if (hold->state != DLI_HOLD_LIVE) {
        return dli_fail_plain(err, DL_ELOST);
    }
    return status;
}

/* A level that did not come about. Another thread of the owner may have left all the others meanwhile. */
static void take_level_back(dli_hold_t *hold) {
    if (hold->levels == 0 || --hold->levels > 0) {
        return;
    }
    if (hold->state == DLI_HOLD_LOST) {
        dli_hold_end(hold);
    } else if (hold->state == DLI_HOLD_LIVE) {
        dl_error_t ignored;
        (void)dli_release(hold, dli_call_deadline(hold->client), &ignored);
    }
}

/* The owner already holds it: one level more, and a longer lease if it needs one. */
static dl_status_t reenter(dl_lock_t *lock, dli_hold_t *hold, const dli_asked_t *asked, dl_error_t *err) {
    dl_client_t *client = lock->client;
    if (hold->levels >= client->level_limit) {
        return dli_fail(err, DL_ELIMIT, "the lock was entered %u times already", (unsigned)hold->levels);
    }
    uint64_t now = dli_now();
    bool renewed_already = asked->automatic && hold->auto_level > 0;
    bool longer = !renewed_already && now + dli_ms(asked->lease_ms) > hold->valid_until_ns;
    bool counted = (client->driver->caps & DL_CAP_SERVER_COUNT) != 0;
    uint32_t level = ++hold->levels;
    if (longer || counted) {
        dl_error_t inner;
        dl_renewal_t answer;
        dli_hold_ref(hold);
        dl_status_t status =
            tell_server(hold, level, asked->lease_ms, dli_exchange_deadline(client, asked), &answer, &inner);
        status = apply_extension(hold, status, &answer, asked->lease_ms, &inner);
        bool gone = hold->state != DLI_HOLD_LIVE;
        /* The core's count decides; a count that could not be written is no error. */
        if (gone || (status != DL_OK && longer)) {
            take_level_back(hold);
            dli_hold_unref(hold);
            return dli_error_give(err, &inner, status);
        }
        dli_hold_unref(hold);
    }
    if (asked->automatic) {
        dli_hold_enter_auto(hold, level, now);
    }
    if (asked->opts->max_hold_ms > 0) {
        hold->max_hold_until_ns = dli_min(hold->max_hold_until_ns, now + dli_ms(asked->opts->max_hold_ms));
        dli_watch_hold(hold);
    }
    client->stats.reentered++;
    return DL_OK;
}

/* Until this call's owner holds, or the call has to end. With the mutex; released meanwhile. */
static dl_status_t pass_gate(dl_lock_t *lock, dli_asked_t *asked, dli_turn_t *turn, dl_error_t *err) {
    dl_client_t *client = lock->client;
    dli_gate_t *gate = lock->gate;
    for (;;) {
        dl_status_t status = dli_stop_reason(lock, asked->opts->cancel);
        if (status != DL_OK) {
            return dli_fail_plain(err, status);
        }
        /* Looked at again at every turn: another thread of this owner may have entered meanwhile. */
        dli_hold_t *hold = dli_gate_find(client, gate, &asked->owner);
        if (hold != NULL && hold->state == DLI_HOLD_LOST) {
            return dli_fail(err, DL_ELOST, "it was lost with %u level%s still entered; unlock %s first",
                            (unsigned)hold->levels, hold->levels == 1 ? "" : "s",
                            hold->levels == 1 ? "it" : "them");
        }
        if (hold != NULL) {
            return reenter(lock, hold, asked, err);
        }
        if (!turn->granted && !turn->queued && dli_gate_is_free(gate)) {
            dli_gate_take(gate, turn);
        }
        if (turn->granted) {
            return dli_acquire(lock, asked, err);
        }
        if (asked->opts->wait_ms == 0) {
            return dli_fail_plain(err, DL_EBUSY);
        }
        asked->queued = true;
        status = dli_gate_wait(lock, turn, asked->deadline_ns, asked->opts->cancel);
        if (status != DL_OK) {
            return dli_fail_plain(err, status);
        }
    }
}

dl_status_t dl_acquire(dl_lock_t *lock, const dl_acquire_opts_t *given, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    dl_acquire_opts_t opts;
    dl_status_t status = take_opts(given, &opts, err);
    if (status != DL_OK) {
        return status;
    }
    dli_asked_t asked = {.opts = &opts, .started_ns = dli_now()};
    status = enter(lock, &asked.owner, err);
    if (status != DL_OK) {
        return status;
    }
    dl_client_t *client = lock->client;
    asked.automatic = opts.lease_ms == DL_LEASE_AUTO;
    asked.lease_ms = asked.automatic ? client->lease_ms : opts.lease_ms;
    asked.deadline_ns = opts.wait_ms < 0 ? DLI_NEVER : asked.started_ns + dli_ms(opts.wait_ms);
    dli_turn_t turn = {.owner = asked.owner};
    status = pass_gate(lock, &asked, &turn, err);
    dli_gate_leave(client, lock->gate, &turn);
    client->stats.busy += status == DL_EBUSY;
    client->stats.timed_out += status == DL_ETIMEDOUT;
    leave(lock);
    return status;
}

dl_status_t dl_lock(dl_lock_t *lock, dl_error_t *err) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    return dl_acquire(lock, &opts, err);
}

dl_status_t dl_trylock(dl_lock_t *lock, dl_error_t *err) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.wait_ms = 0;
    return dl_acquire(lock, &opts, err);
}

dl_status_t dl_trylock_for(dl_lock_t *lock, int64_t wait_ms, int64_t lease_ms, dl_error_t *err) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.wait_ms = wait_ms;
    opts.lease_ms = lease_ms;
    return dl_acquire(lock, &opts, err);
}

/* ---- leaving ----------------------------------------------------------------------------------- */

/* Not the last level. A server that shows the count is told; only its "not yours" matters. */
static dl_status_t leave_level(dli_hold_t *hold, dl_error_t *err) {
    dl_client_t *client = hold->client;
    dli_hold_left_level(hold, dli_now());
    if ((client->driver->caps & DL_CAP_SERVER_COUNT) == 0) {
        return DL_OK;
    }
    dl_error_t inner;
    dl_status_t status = DL_EUNKNOWN;
    uint32_t level = hold->levels;
    uint64_t deadline_ns = dli_call_deadline(client);
    dli_hold_ref(hold);
    if (dli_op_begin(hold, deadline_ns)) {
        if (hold->state == DLI_HOLD_LIVE) {
            dli_unlock_client(client);
            status = dli_call_release(hold, level, deadline_ns, &inner);
            dli_lock_client(client);
        }
        dli_op_end(hold);
    }
    if (status == DL_ELOST && hold->state == DLI_HOLD_LIVE) {
        dli_hold_lose_as(hold, DL_LOSS_NOT_OURS);
    }
    bool lost = hold->state == DLI_HOLD_LOST;
    dli_hold_unref(hold);
    return lost ? dli_fail_plain(err, DL_ELOST) : DL_OK;
}

static dl_status_t leave_one(dli_hold_t *hold, dl_error_t *err) {
    if (hold == NULL) {
        return dli_fail_plain(err, DL_ENOTOWNER);
    }
    if (hold->state == DLI_HOLD_LOST) {
        if (--hold->levels == 0) {
            dli_hold_end(hold);
        }
        return dli_fail_plain(err, DL_ELOST);
    }
    if (hold->levels > 1) {
        return leave_level(hold, err);
    }
    dl_error_t inner;
    dl_status_t status = dli_release(hold, dli_call_deadline(hold->client), &inner);
    return dli_error_give(err, &inner, status);
}

dl_status_t dl_unlock(dl_lock_t *lock, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    dli_owner_t owner;
    dl_status_t status = enter(lock, &owner, err);
    if (status != DL_OK) {
        return status;
    }
    status = leave_one(dli_gate_find(lock->client, lock->gate, &owner), err);
    leave(lock);
    return status;
}

dl_status_t dl_extend(dl_lock_t *lock, int64_t lease_ms, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    if (lease_ms != DL_LEASE_AUTO && (lease_ms < DL_LEASE_MIN_MS || lease_ms > DL_LEASE_MAX_MS)) {
        return dli_fail(err, DL_EINVAL, "lease_ms is %lld; it must be 0 (automatic) or %d to %lld",
                        (long long)lease_ms, DL_LEASE_MIN_MS, (long long)DL_LEASE_MAX_MS);
    }
    dli_owner_t owner;
    dl_status_t status = enter(lock, &owner, err);
    if (status != DL_OK) {
        return status;
    }
    dl_client_t *client = lock->client;
    dli_hold_t *hold = dli_gate_find(client, lock->gate, &owner);
    if (hold == NULL) {
        status = dli_fail_plain(err, DL_ENOTOWNER);
    } else if (hold->state == DLI_HOLD_LOST) {
        status = dli_fail_plain(err, DL_ELOST);
    } else {
        int64_t wanted_ms = lease_ms == DL_LEASE_AUTO ? client->lease_ms : lease_ms;
        dl_error_t inner;
        dl_renewal_t answer;
        dli_hold_ref(hold);
        status = tell_server(hold, 1, wanted_ms, dli_call_deadline(client), &answer, &inner);
        status = apply_extension(hold, status, &answer, wanted_ms, &inner);
        dli_hold_unref(hold);
        (void)dli_error_give(err, &inner, status);
    }
    leave(lock);
    return status;
}
