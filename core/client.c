/* client.c - making a client, or what its backend needs, once a backend is chosen. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client.h"
#include "core.h"
#include "options.h"

static dl_status_t apply_core_options(dl_client_t *client, const dl_option_value_t *v, dl_error_t *err) {
    client->lease_ms = v[DLI_OPT_LEASE].number;
    client->renew_every_ms =
        v[DLI_OPT_RENEW_EVERY].is_set ? v[DLI_OPT_RENEW_EVERY].number : client->lease_ms / 3;
    client->max_hold_ms = v[DLI_OPT_MAX_HOLD].number;
    client->call_timeout_ms = v[DLI_OPT_CALL_TIMEOUT].number;
    client->backoff_min_ms = v[DLI_OPT_BACKOFF_MIN].number;
    client->backoff_max_ms = v[DLI_OPT_BACKOFF_MAX].number;
    client->passes = v[DLI_OPT_PASS].number != 0;
    client->spin.most = v[DLI_OPT_SPIN].number != 0 ? dli_sys->processors() / 2 : 0;
    if (client->renew_every_ms * 2 > client->lease_ms) {
        return dli_fail(err, DL_ECONFIG,
                        "backend '%s': renew_every is %s; it must be at most half of the lease of %s",
                        client->backend, dl_driver_duration(client->renew_every_ms).text,
                        dl_driver_duration(client->lease_ms).text);
    }
    if (client->backoff_min_ms > client->backoff_max_ms) {
        return dli_fail(err, DL_ECONFIG, "backend '%s': backoff_min is %s, more than backoff_max of %s",
                        client->backend, dl_driver_duration(client->backoff_min_ms).text,
                        dl_driver_duration(client->backoff_max_ms).text);
    }
    return DL_OK;
}

static void make_label(char *label, size_t size) {
    char host[65] = "";
    if (gethostname(host, sizeof host) != 0 || host[0] == '\0') {
        (void)snprintf(host, sizeof host, "localhost");
    }
    (void)snprintf(label, size, "%.47s:%ld", host, (long)getpid());
}

static void fill_env(dl_driver_env_t *env, void *core, const char *uuid, const char *label,
                     const dli_chosen_t *chosen) {
    *env = (dl_driver_env_t){
        .size = sizeof *env,
        .core = core,
        .client_uuid = uuid,
        .client_label = label,
        .call_timeout_ms = chosen->core_values[DLI_OPT_CALL_TIMEOUT].number,
        .lease_ms = chosen->core_values[DLI_OPT_LEASE].number,
        .written = chosen->written,
        .now_ns = dli_sys->now_ns,
        .poll = dli_sys->poll,
        .random = dli_sys->random,
        .thread_start = dli_sys->thread_start,
        .thread_join = dli_sys->thread_join,
        .cond_wait = dli_sys->cond_wait,
        .cond_init = dli_sys->cond_init,
        .cond_broadcast = dli_sys->cond_broadcast,
        .report = dli_env_report,
        .count = dli_env_count,
        .woken = dli_env_woken,
    };
}

static void env_lock(void *core) {
    dl_client_t *client = core;
    pthread_mutex_lock(&client->mutex);
}

/* Whoever flushes or listens carries on what has become ready. */
static void env_unlock(void *core) {
    dl_client_t *client = core;
    dli_release_for_a_moment(client);
}

static void env_look_again(void *core, dli_request_t *request) {
    dli_park_wake(core, DLI_CONTAINER_OF(dli_op_t, request, request)->park);
}

static void env_settled(void *core, void *hold) {
    (void)core;
    dli_free_settled(dli_container_of(hold, DLI_HOLD_AT));
}

/* It is held for moments: who wants it looks again before it sleeps. */
static void init_mutex(pthread_mutex_t *mutex) {
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(mutex, &attr);
    pthread_mutexattr_destroy(&attr);
}

static dl_status_t prepare(dl_client_t *client, const dli_chosen_t *chosen, dl_error_t *err) {
    const dl_driver_t *driver = &chosen->driver;
    init_mutex(&client->mutex);
    pthread_rwlock_init(&client->log_lock, NULL);
    dli_sys->cond_init(&client->changed);
    dli_sys->cond_init(&client->callbacks_changed);
    client->origin = dli_origin();
    client->table = *driver;
    client->driver = &client->table;
    client->inner = chosen->inner;
    memcpy(client->backend, chosen->backend, sizeof client->backend);
    client->inner_env = (dli_backend_env_t){.core = client,
                                            .lock = env_lock,
                                            .unlock = env_unlock,
                                            .look_again = env_look_again,
                                            .settled = env_settled,
                                            .report = dli_inner_report};
    client->session = (driver->caps & DL_CAP_SESSION) != 0;
    client->refs = 1;
    client->level_limit = DL_LEVEL_MAX;
    TAILQ_INIT(&client->ready);
    TAILQ_INIT(&client->to_watch);
    TAILQ_INIT(&client->loop.sleepers);
    TAILQ_INIT(&client->events);
    for (int lane = 0; lane < DLI_LANES; lane++) {
        TAILQ_INIT(&client->lanes[lane].queue);
    }
    client->loop.tend_ns = client->loop.sleeps_to_ns = DLI_NEVER;
    client->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    client->loop.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    client->loop.session_epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    client->loop.resume_fd = dli_sys->resume_fd();
    client->loop.slept_ns = dli_sys->resume_rearm(client->loop.resume_fd);
    client->state = calloc(1, driver->state_size);
    client->batch = calloc(DLI_RENEW_BATCH, sizeof *client->batch);
    client->batch_claims = calloc(DLI_RENEW_BATCH, sizeof(dli_claim_t *));
    if (client->event_fd < 0 || client->loop.wake_fd < 0 || client->loop.session_epoll_fd < 0) {
        return dli_fail(err, DL_ELIMIT, "no descriptor is left for a client");
    }
    if (client->state == NULL || client->batch == NULL || client->batch_claims == NULL) {
        return dli_fail_plain(err, DL_ENOMEM);
    }
    if (dli_uuid_new(client->uuid) != 0) {
        return dl_driver_fail(err, DL_ELIMIT, errno, "no randomness for a client's uuid: %s",
                              strerror(errno));
    }
    make_label(client->label, sizeof client->label);
    fill_env(&client->env, client, client->uuid, client->label, chosen);
    return apply_core_options(client, chosen->core_values, err);
}

/* A driver's word on the configuration names an option at most: says of which backend. */
static dl_status_t give_of(const char *backend, dl_error_t *to, const dl_error_t *from, dl_status_t status) {
    if (status == DL_ECONFIG && from->status == status && from->message[0] != '\0') {
        return dl_driver_fail(to, status, from->native, "backend '%s': %s", backend, from->message);
    }
    return dli_error_give(to, from, status);
}

static dl_status_t open_state(dl_client_t *client, const dl_option_value_t *values, dl_error_t *err) {
    dl_error_t inner = {.status = DL_OK};
    if (client->inner != NULL) {
        client->inner->attach(client->state, &client->inner_env);
    }
    dl_status_t status =
        client->driver->open(client->state, values, &client->env, dli_call_deadline(client), &inner);
    client->env.written = NULL;
    if (status == DL_EUNKNOWN) { /* nothing was asked for that could now be held */
        status = inner.status = DL_EIO;
    }
    if (status != DL_OK) {
        client->driver->close(client->state, 0);
        dli_lock_client(client);
        dli_events_free(client);
        dli_unlock_client(client);
    }
    return give_of(client->backend, err, &inner, status);
}

dl_status_t dli_client_make(const dli_chosen_t *chosen, dl_client_t **out, dl_error_t *err) {
    dl_client_t *client = calloc(1, sizeof *client);
    if (client == NULL) {
        return dli_fail_plain(err, DL_ENOMEM);
    }
    dl_status_t status = prepare(client, chosen, err);
    if (status == DL_OK) {
        status = open_state(client, chosen->driver_values, err);
    }
    if (status != DL_OK) {
        dli_client_free(client);
        return status;
    }
    dli_exit_hook_add(&client->exit_hook);
    *out = client;
    return DL_OK;
}

dl_status_t dli_driver_init(const dli_chosen_t *chosen, unsigned flags, dl_finding_fn fn, void *arg,
                            dl_error_t *err) {
    if (chosen->driver.init == NULL) {
        return dli_fail(err, DL_ENOTSUP, "driver '%s' needs nothing to be created", chosen->driver.name);
    }
    char uuid[37], label[64];
    if (dli_uuid_new(uuid) != 0) {
        return dl_driver_fail(err, DL_ELIMIT, errno, "no randomness: %s", strerror(errno));
    }
    make_label(label, sizeof label);
    dl_driver_env_t env;
    fill_env(&env, NULL, uuid, label, chosen);
    dl_error_t inner = {.status = DL_OK};
    dl_status_t status = chosen->driver.init(chosen->driver_values, &env, flags, fn, arg,
                                             dli_now() + dli_ms(env.call_timeout_ms), &inner);
    return give_of(chosen->backend, err, &inner, status);
}
