/* query.c - what a holder asks without I/O, and what an administrator asks the server. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "core.h"

/* What the calling owner's hold says. */
typedef struct standing {
    int64_t valid_ms;
    uint64_t token;
    uint32_t levels;
} standing_t;

static standing_t look(dl_lock_t *lock) {
    DLI_NO_THREAD_CANCEL;
    DLI_PUNCTUAL;
    standing_t standing = {0, 0, 0};
    dli_owner_t owner;
    /* Without memory for its record the thread cannot hold anything. */
    if (lock == NULL || !dli_lock_owner(lock, &owner) || dli_call_enter_always(lock->client) != DL_OK) {
        return standing;
    }
    dli_hold_t *hold = dli_gate_find(lock->gate, &owner, dli_now());
    if (hold != NULL) {
        standing.levels = hold->levels;
        standing.valid_ms = dli_hold_valid_ms(hold);
        standing.token = hold->state == DLI_HOLD_LIVE ? hold->token : 0;
    }
    dli_call_leave_and_unlock(lock->client);
    return standing;
}

int64_t dl_valid_ms(dl_lock_t *lock) {
    return look(lock).valid_ms;
}

uint64_t dl_token(dl_lock_t *lock) {
    return look(lock).token;
}

uint32_t dl_hold_count(dl_lock_t *lock) {
    return look(lock).levels;
}

/* ---- administration: the driver's optional ops ------------------------------------------------- */

static dl_status_t cannot(const dl_client_t *client, const char *what, dl_error_t *err) {
    return dli_fail(err, DL_ENOTSUP, "driver '%s' cannot %s", client->driver->name, what);
}

/* DL_OK: the call is counted in. */
static dl_status_t enter(dl_client_t *client, bool has_op, const char *what, dl_error_t *err) {
    dl_status_t status = dli_call_enter(client);
    if (status != DL_OK) {
        return dli_fail_plain(err, status);
    }
    if (!has_op) {
        dli_call_leave_and_unlock(client);
        return cannot(client, what, err);
    }
    dli_unlock_client(client);
    return DL_OK;
}

static dl_status_t leave(dl_client_t *client, dl_error_t *err, const dl_error_t *inner, dl_status_t status) {
    dli_lock_client(client);
    dli_call_leave_and_unlock(client);
    return dli_error_give(err, inner, status);
}

static int is_ours(const dl_client_t *client, const char *owner) {
    return strncmp(owner, client->uuid, 36) == 0 && owner[36] == ':';
}

/* Of a claim that may be passed on the server has the first owner, and perhaps the last token. */
static void tell_who_has_it(const dli_gate_t *gate, dl_lock_info_t *info) {
    const dli_hold_t *hold = gate != NULL ? gate->current : NULL;
    if (hold != NULL && hold->claim->hold_id == info->hold_id &&
        strcmp(hold->claim->owner_text, info->owner) == 0) {
        dli_owner_text(&hold->owner, hold->gate->client->uuid, info->owner);
        info->hold_id = hold->hold_id;
        info->token = info->token != 0 ? hold->token : 0;
    }
}

static dli_next_t asked_step(dli_op_t *op) {
    if (op->ask == DLI_ASK_INSPECT) {
        op->info->ours = op->answer == DL_OK && op->info->held && is_ours(op->client, op->info->owner);
        if (op->info->ours) {
            tell_who_has_it(op->gate, op->info);
        }
    }
    return dli_op_end(op, op->answer);
}

dli_next_t dli_query_step(dli_op_t *op) {
    bool inspects = op->kind == DL_OP_INSPECT;
    const dl_driver_t *driver = op->client->driver;
    bool has_op = inspects ? driver->inspect != NULL : driver->force_release != NULL;
    bool can = op->client->inner != NULL || has_op; /* a backend takes both */
    const char *what = inspects ? "inspect" : "free another's lock";
    dl_status_t status = can ? dli_op_stop_reason(op) : cannot(op->client, what, &op->err);
    if (status != DL_OK) {
        return dli_op_end(op, status);
    }
    op->ask = inspects ? DLI_ASK_INSPECT : DLI_ASK_FORCE;
    op->until_ns = dli_call_deadline(op->client);
    op->step = asked_step;
    return DLI_ASK;
}

dl_status_t dl_inspect(dl_lock_t *lock, dl_lock_info_t *info, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    if (lock == NULL || info == NULL || !dli_layout_has(&dli_layout_lock_info, info->size)) {
        return dli_fail(err, DL_EINVAL, "no lock, or an info that was not made by DL_LOCK_INFO_INIT");
    }
    dl_lock_info_t whole = DL_LOCK_INFO_INIT;
    dli_asked_t asked = {.kind = DL_OP_INSPECT, .step = dli_query_step};
    dl_status_t status = dli_op_call(&asked, lock, &whole, err);
    dli_layout_give(info, info->size, &whole);
    return status;
}

typedef struct listing {
    dl_client_t *client;
    dl_list_fn fn;
    void *arg;
} listing_t;

static int list_one(void *arg, const char *name, const dl_lock_info_t *info) {
    const listing_t *listing = arg;
    dl_lock_info_t copy = *info;
    copy.ours = copy.held && is_ours(listing->client, copy.owner);
    if (copy.ours) {
        dli_lock_client(listing->client);
        tell_who_has_it(dli_gate_find_name(listing->client, name, strlen(name)), &copy);
        dli_unlock_client_at_once(listing->client);
    }
    return listing->fn(listing->arg, name, &copy);
}

dl_status_t dl_list(dl_client_t *client, const char *prefix, dl_list_fn fn, void *arg, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    if (client == NULL || fn == NULL) {
        return dli_fail(err, DL_EINVAL, "no client or no function");
    }
    dl_status_t status = enter(client, client->driver->list != NULL, "list", err);
    if (status != DL_OK) {
        return status;
    }
    listing_t listing = {client, fn, arg};
    dl_error_t inner = {.status = DL_OK};
    const char *from = prefix != NULL ? prefix : "";
    status = client->driver->list(client->state, from, strlen(from), list_one, &listing,
                                  dli_call_deadline(client), &inner);
    return leave(client, err, &inner, status);
}

dl_status_t dl_force_unlock(dl_lock_t *lock, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    dli_asked_t asked = {.kind = DL_OP_FORCE, .step = dli_query_step};
    return dli_op_call(&asked, lock, NULL, err);
}

typedef struct checking {
    dl_finding_fn fn;
    void *arg;
    bool has_no_trial; /* the driver has said all that there is to be said */
} checking_t;

static void pass_finding(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    checking_t *checking = arg;
    checking->has_no_trial |= strcmp(subject, "locking") == 0;
    checking->fn(checking->arg, level, subject, text);
}

dl_status_t dl_client_check(dl_client_t *client, dl_finding_fn fn, void *arg, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    if (client == NULL || fn == NULL) {
        return dli_fail(err, DL_EINVAL, "no client or no function");
    }
    dl_status_t status = enter(client, client->driver->check != NULL, "be checked", err);
    if (status != DL_OK) {
        return status;
    }
    dl_error_t inner = {.status = DL_OK};
    checking_t checking = {fn, arg, false};
    status = client->driver->check(client->state, pass_finding, &checking, dli_call_deadline(client), &inner);
    status = leave(client, err, &inner, status);
    if (status == DL_OK && !checking.has_no_trial) {
        dli_trial(client, fn, arg);
    }
    return status;
}

static void fill_info(dl_client_t *client, dl_client_info_t *info) {
    (void)snprintf(info->backend, sizeof info->backend, "%s", client->backend);
    (void)snprintf(info->driver, sizeof info->driver, "%s", client->driver->name);
    memcpy(info->uuid, client->uuid, sizeof info->uuid);
    info->caps = client->driver->caps;
    if (client->driver->caps_off != NULL) {
        info->caps &= ~(client->driver->caps_off(client->state) & DL_CAP_FENCE);
    }
    info->lease_ms = client->lease_ms;
    info->renew_every_ms = client->renew_every_ms;
    info->max_hold_ms = client->max_hold_ms;
    info->call_timeout_ms = client->call_timeout_ms;
    if (client->driver->describe != NULL) {
        client->driver->describe(client->state, info->server, sizeof info->server);
        info->server[sizeof info->server - 1] = '\0';
    }
}

dl_status_t dl_client_info(dl_client_t *client, dl_client_info_t *info) {
    DLI_NO_THREAD_CANCEL;
    if (client == NULL || info == NULL || !dli_layout_has(&dli_layout_client_info, info->size)) {
        return DL_EINVAL;
    }
    dl_status_t status = dli_call_enter_always(client);
    if (status == DL_OK) {
        dl_client_info_t whole = DL_CLIENT_INFO_INIT;
        dli_unlock_client(client);
        fill_info(client, &whole);
        dli_lock_client(client);
        dli_call_leave_and_unlock(client);
        dli_layout_give(info, info->size, &whole);
    }
    return status;
}

dl_status_t dl_client_stats(dl_client_t *client, dl_client_stats_t *stats) {
    DLI_NO_THREAD_CANCEL;
    if (client == NULL || stats == NULL || !dli_layout_has(&dli_layout_client_stats, stats->size)) {
        return DL_EINVAL;
    }
    dl_status_t status = dli_call_enter_always(client);
    if (status == DL_OK) {
        dl_client_stats_t whole = client->stats;
        whole.round_trips = atomic_load(&client->round_trips);
        whole.reconnects = atomic_load(&client->reconnects);
        dli_call_leave_and_unlock(client);
        dli_layout_give(stats, stats->size, &whole);
    }
    return status;
}
