/* client.c - opening a client: the one file that brings configuration, registry and core together. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "config/config.h"
#include "core.h"
#include "drivers/registry.h"
#include "options.h"

/* The backend that needs no configuration: an SQLite file of the calling user. */
#define LOCAL_BACKEND "local"
#define LOCAL_DRIVER "sqlite"

/* ---- which backend ----------------------------------------------------------------------------- */

/* What the configuration says about one backend. */
typedef struct choice {
    char backend[64];
    dl_driver_t driver;
    const dli_backend_t *inner; /* NULL: the driver is a whole one */
    dli_values_t driver_values;
    dli_values_t core_values;
} choice_t;

static void free_choice(choice_t *choice) {
    dli_values_free(&choice->driver_values);
    dli_values_free(&choice->core_values);
}

static const dl_option_t no_options[1] = {{.name = NULL}};

static const dl_option_t *options_of(const dl_driver_t *driver) {
    return driver->options != NULL ? driver->options : no_options;
}

static const dl_option_t *look_up_options(const char *name, int *compiled_in, int *known) {
    const dl_driver_t *driver = dli_registry_find(name);
    *compiled_in = driver != NULL;
    *known = dli_registry_known(name);
    return driver != NULL ? options_of(driver) : NULL;
}

static const dli_driver_lookup_t lookup = {look_up_options, dli_registry_known_at};

static dl_status_t find_driver(const char *name, dl_driver_t *driver, dl_error_t *err) {
    const dl_driver_t *found = dli_registry_find(name);
    if (found == NULL) {
        return dli_fail(
            err, DL_ECONFIG,
            "driver '%s' is not in this build of libdlock; it comes with -D%s=ON where the version has it",
            name, dli_registry_build_option(name));
    }
    return dli_driver_take(found, NULL, driver, err);
}

/* config NULL: there is none. */
static dl_status_t choose_builtin(const dli_config_t *config, choice_t *choice, dl_error_t *err) {
    dl_status_t status = find_driver(LOCAL_DRIVER, &choice->driver, err);
    if (status != DL_OK) {
        return status;
    }
    (void)snprintf(choice->backend, sizeof choice->backend, "%s", LOCAL_BACKEND);
    if (config != NULL) {
        /* Not defined there, but its `defaults` apply. */
        return dli_config_resolve(config, LOCAL_BACKEND, options_of(&choice->driver), &choice->driver_values,
                                  dli_core_options, &choice->core_values, err);
    }
    return dli_config_resolve_mapping("", 0, "<local>", options_of(&choice->driver), &choice->driver_values,
                                      dli_core_options, &choice->core_values, err);
}

static const char *selected_by_environment(void) {
    const char *name = secure_getenv("DLOCK_BACKEND");
    return name != NULL && name[0] != '\0' ? name : NULL;
}

static dl_status_t choose(const dli_config_t *config, const char *backend, choice_t *choice,
                          dl_error_t *err) {
    if (backend == NULL) {
        backend = dli_config_use(config);
    }
    const char *driver_name;
    if (backend == NULL || !dli_config_has_backend(config, backend, &driver_name)) {
        if (backend != NULL && strcmp(backend, LOCAL_BACKEND) == 0) {
            return choose_builtin(config, choice, err);
        }
        return dli_config_no_backend(config, backend, err);
    }
    dl_status_t status = find_driver(driver_name, &choice->driver, err);
    if (status != DL_OK) {
        return status;
    }
    (void)snprintf(choice->backend, sizeof choice->backend, "%s", backend);
    return dli_config_resolve(config, backend, options_of(&choice->driver), &choice->driver_values,
                              dli_core_options, &choice->core_values, err);
}

/* The configuration of a path, or of the place where it is by default. *config NULL with DL_OK: none is
 * needed. */
static dl_status_t load(const char *path, const char *backend, char *found, size_t found_size,
                        dli_config_t **config, dl_error_t *err) {
    *config = NULL;
    if (path == NULL) {
        dl_error_t inner;
        dli_error_clear(&inner);
        dl_status_t status = dli_config_find(found, found_size, &inner);
        const char *asked = secure_getenv("DLOCK_CONFIG");
        bool nothing_asked = asked == NULL || asked[0] == '\0';
        if (status == DL_ECONFIG && nothing_asked && backend != NULL && strcmp(backend, LOCAL_BACKEND) == 0) {
            found[0] = '\0';
            return DL_OK;
        }
        if (status != DL_OK) {
            return dli_error_give(err, &inner, status);
        }
        path = found;
    } else {
        (void)snprintf(found, found_size, "%s", path);
    }
    return dli_config_load_file(path, dli_core_options, &lookup, config, err);
}

static dl_status_t choose_from_file(const char *path, const char *backend, choice_t *choice,
                                    dl_error_t *err) {
    if (backend == NULL) {
        backend = selected_by_environment();
    }
    char found[4096];
    dli_config_t *config;
    dl_status_t status = load(path, backend, found, sizeof found, &config, err);
    if (status == DL_OK) {
        status = config != NULL ? choose(config, backend, choice, err) : choose_builtin(NULL, choice, err);
    }
    dli_config_free(config);
    return status;
}

/* ---- making the client ------------------------------------------------------------------------- */

static dl_status_t apply_core_options(dl_client_t *client, const dl_option_value_t *v, dl_error_t *err) {
    client->lease_ms = v[DLI_OPT_LEASE].number;
    client->renew_every_ms =
        v[DLI_OPT_RENEW_EVERY].is_set ? v[DLI_OPT_RENEW_EVERY].number : client->lease_ms / 3;
    client->max_hold_ms = v[DLI_OPT_MAX_HOLD].number;
    client->call_timeout_ms = v[DLI_OPT_CALL_TIMEOUT].number;
    client->backoff_min_ms = v[DLI_OPT_BACKOFF_MIN].number;
    client->backoff_max_ms = v[DLI_OPT_BACKOFF_MAX].number;
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

static void fill_env(dl_driver_env_t *env, void *core, const char *uuid, const char *label) {
    *env = (dl_driver_env_t){
        .size = sizeof *env,
        .core = core,
        .client_uuid = uuid,
        .client_label = label,
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

static void make_label(char *label, size_t size) {
    char host[48] = "";
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') {
        (void)snprintf(host, sizeof host, "localhost");
    }
    (void)snprintf(label, size, "%s:%ld", host, (long)getpid());
}

static void env_lock(void *core) {
    dl_client_t *client = core;
    pthread_mutex_lock(&client->mutex);
}

/* Whoever flushes or listens carries on what has become ready. */
static void env_unlock(void *core) {
    dl_client_t *client = core;
    pthread_mutex_unlock(&client->mutex);
}

/* NULL: *why says why. */
static dl_client_t *allocate(const choice_t *choice, dl_status_t *why, dl_error_t *err) {
    const dl_driver_t *driver = &choice->driver;
    dl_client_t *client = calloc(1, sizeof *client);
    if (client == NULL) {
        *why = dli_fail_plain(err, DL_ENOMEM);
        return NULL;
    }
    pthread_mutex_init(&client->mutex, NULL);
    pthread_rwlock_init(&client->log_lock, NULL);
    dli_sys->cond_init(&client->changed);
    dli_sys->cond_init(&client->callbacks_changed);
    client->pid = getpid();
    client->fork_generation = dli_fork_generation();
    client->table = *driver;
    client->driver = &client->table;
    client->inner = choice->inner;
    client->inner_env = (dli_backend_env_t){.core = client, .lock = env_lock, .unlock = env_unlock};
    client->session = (driver->caps & DL_CAP_SESSION) != 0;
    client->refs = 1;
    client->level_limit = DL_LEVEL_MAX;
    client->loop.tend_ns = DLI_NEVER;
    client->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    client->loop.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    client->loop.session_epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    client->loop.resume_fd = dli_sys->resume_fd();
    client->state = calloc(1, driver->state_size);
    client->batch = calloc(DLI_RENEW_BATCH, sizeof *client->batch);
    client->batch_claims = calloc(DLI_RENEW_BATCH, sizeof(dli_claim_t *));
    dl_status_t status = DL_OK;
    if (client->event_fd < 0 || client->loop.wake_fd < 0 || client->loop.session_epoll_fd < 0) {
        status = dli_fail(err, DL_ELIMIT, "no descriptor is left for a client");
    } else if (client->state == NULL || client->batch == NULL || client->batch_claims == NULL ||
               !dli_heap_reserve(&client->loop.timers)) { /* batch_timer */
        status = dli_fail_plain(err, DL_ENOMEM);
    } else if (dli_uuid_new(client->uuid) != 0) {
        status =
            dl_driver_fail(err, DL_ELIMIT, errno, "no randomness for a client's uuid: %s", strerror(errno));
    }
    if (status != DL_OK) {
        dli_client_free(client);
        *why = status;
        return NULL;
    }
    make_label(client->label, sizeof client->label);
    fill_env(&client->env, client, client->uuid, client->label);
    return client;
}

/* A driver's word on the configuration names an option at most: says of which backend. */
static dl_status_t give_of(const char *backend, dl_error_t *to, const dl_error_t *from, dl_status_t status) {
    if (status == DL_ECONFIG && from->status == status && from->message[0] != '\0') {
        return dl_driver_fail(to, status, from->native, "backend '%s': %s", backend, from->message);
    }
    return dli_error_give(to, from, status);
}

static dl_status_t open_state(dl_client_t *client, const dli_values_t *values, dl_error_t *err) {
    dl_error_t inner;
    dli_error_clear(&inner);
    client->env.call_timeout_ms = client->call_timeout_ms;
    client->env.lease_ms = client->lease_ms;
    client->env.written = values->written;
    if (client->inner != NULL) {
        client->inner->attach(client->state, &client->inner_env);
    }
    dl_status_t status =
        client->driver->open(client->state, values->values, &client->env, dli_call_deadline(client), &inner);
    client->env.written = NULL;
    if (status == DL_EUNKNOWN) {
        status = inner.status =
            DL_EIO; /* a reply was lost, but nothing was asked for that could now be held */
    }
    return give_of(client->backend, err, &inner, status);
}

static dl_status_t open_chosen(const choice_t *choice, dl_client_t **out, dl_error_t *err) {
    dl_status_t status = DL_OK;
    dl_client_t *client = allocate(choice, &status, err);
    if (client == NULL) {
        return status;
    }
    memcpy(client->backend, choice->backend, sizeof client->backend);
    status = apply_core_options(client, choice->core_values.values, err);
    if (status != DL_OK) {
        dli_client_free(client);
        return status;
    }
    status = open_state(client, &choice->driver_values, err);
    if (status != DL_OK) {
        client->driver->close(client->state, 0);
        dli_lock_client(client);
        dli_events_free(client);
        dli_unlock_client(client);
        dli_client_free(client);
        return status;
    }
    client->exit_hook.heard = dli_hear_thread_exit;
    int rc = dli_exit_hook_add(&client->exit_hook);
    client->hooked = rc == 0;
    if (rc != 0) {
        dli_env_report(client, DL_LOG_WARNING,
                       "threads that end while they hold will not be noticed before their "
                       "lease is over: no hook for thread ends");
    }
    *out = client;
    return DL_OK;
}

/* ---- the public side --------------------------------------------------------------------------- */

static dl_status_t no_place(dl_client_t **client, dl_error_t *err) {
    if (client == NULL) {
        return dli_fail(err, DL_EINVAL, "no place for the client");
    }
    *client = NULL;
    return DL_OK;
}

dl_status_t dl_client_open(const char *path, const char *backend, dl_client_t **client, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    dl_status_t status = no_place(client, err);
    if (status != DL_OK) {
        return status;
    }
    choice_t choice = {.backend = ""};
    status = choose_from_file(path, backend, &choice, err);
    if (status == DL_OK) {
        status = open_chosen(&choice, client, err);
    }
    free_choice(&choice);
    return status;
}

dl_status_t dl_client_open_text(const char *yaml, size_t len, const char *backend, dl_client_t **client,
                                dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    dl_status_t status = no_place(client, err);
    if (status == DL_OK && yaml == NULL) {
        status = dli_fail(err, DL_EINVAL, "no text");
    }
    if (status != DL_OK) {
        return status;
    }
    choice_t choice = {.backend = ""};
    dli_config_t *config = NULL;
    status = dli_config_load_text(yaml, len, "<text>", dli_core_options, &lookup, &config, err);
    if (status == DL_OK) {
        status = choose(config, backend != NULL ? backend : selected_by_environment(), &choice, err);
    }
    if (status == DL_OK) {
        status = open_chosen(&choice, client, err);
    }
    free_choice(&choice);
    dli_config_free(config);
    return status;
}

static dl_status_t open_table(const dl_driver_t *driver, const dli_backend_t *inner, const char *options,
                              size_t len, dl_client_t **client, dl_error_t *err) {
    dl_status_t status = no_place(client, err);
    choice_t choice = {.backend = "", .inner = inner};
    if (status == DL_OK) {
        status = dli_driver_take(driver, inner, &choice.driver, err);
    }
    if (status != DL_OK) {
        return status;
    }
    (void)snprintf(choice.backend, sizeof choice.backend, "%s", choice.driver.name);
    status = dli_config_resolve_mapping(options != NULL ? options : "", options != NULL ? len : 0,
                                        "<options>", options_of(&choice.driver), &choice.driver_values,
                                        dli_core_options, &choice.core_values, err);
    if (status == DL_OK) {
        status = open_chosen(&choice, client, err);
    }
    free_choice(&choice);
    return status;
}

dl_status_t dl_client_open_driver(const dl_driver_t *driver, const char *options, size_t len,
                                  dl_client_t **client, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    return open_table(driver, NULL, options, len, client, err);
}

dl_status_t dli_client_open_backend(const dli_backend_t *backend, const char *options, size_t len,
                                    dl_client_t **client, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    return open_table(backend->driver, backend, options, len, client, err);
}

static void drop_report(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    (void)level;
    (void)text;
}

static void drop_woken(void *core, const char *name, size_t name_len, int hears) {
    (void)core;
    (void)name;
    (void)name_len;
    (void)hears;
}

static void drop_count(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    (void)what;
    (void)n;
}

dl_status_t dl_backend_init(const char *path, const char *backend, unsigned flags, dl_finding_fn fn,
                            void *arg, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    if (fn == NULL || (flags & ~DL_INIT_PRINT) != 0) {
        return dli_fail(err, DL_EINVAL, "no function, or an unknown flag");
    }
    choice_t choice = {.backend = ""};
    dl_status_t status = choose_from_file(path, backend, &choice, err);
    if (status == DL_OK && choice.driver.init == NULL) {
        status = dli_fail(err, DL_ENOTSUP, "driver '%s' needs nothing to be created", choice.driver.name);
    }
    char uuid[37], label[64];
    if (status == DL_OK && dli_uuid_new(uuid) != 0) {
        status = dl_driver_fail(err, DL_ELIMIT, errno, "no randomness: %s", strerror(errno));
    }
    if (status == DL_OK) {
        dl_driver_env_t env;
        make_label(label, sizeof label);
        fill_env(&env, NULL, uuid, label);
        env.report = drop_report;
        env.count = drop_count;
        env.woken = drop_woken;
        env.call_timeout_ms = choice.core_values.values[DLI_OPT_CALL_TIMEOUT].number;
        env.lease_ms = choice.core_values.values[DLI_OPT_LEASE].number;
        env.written = choice.driver_values.written;
        dl_error_t inner;
        dli_error_clear(&inner);
        status = choice.driver.init(choice.driver_values.values, &env, flags, fn, arg,
                                    dli_now() + dli_ms(env.call_timeout_ms), &inner);
        (void)give_of(choice.backend, err, &inner, status);
    }
    free_choice(&choice);
    return status;
}

void dl_drivers(dl_driver_fn fn, void *arg) {
    DLI_NO_THREAD_CANCEL;
    if (fn == NULL) {
        return;
    }
    const dl_driver_t *driver;
    for (size_t i = 0; (driver = dli_registry_at(i)) != NULL; i++) {
        if (fn(arg, driver->name, driver->caps, driver->summary) != 0) {
            return;
        }
    }
}

dl_status_t dl_backends(const char *path, char *source, size_t source_size, dl_backend_fn fn, void *arg,
                        dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    if (fn == NULL) {
        return dli_fail(err, DL_EINVAL, "no function");
    }
    char found[4096];
    dli_config_t *config;
    dl_status_t status = load(path, NULL, found, sizeof found, &config, err);
    if (source != NULL && source_size > 0) {
        (void)snprintf(source, source_size, "%s", found);
    }
    if (status != DL_OK) {
        return status;
    }
    const char *selected = selected_by_environment();
    selected = selected != NULL ? selected : dli_config_use(config);
    const char *backend, *driver;
    for (size_t i = 0; dli_config_backend_at(config, i, &backend, &driver); i++) {
        int is_selected = selected != NULL && strcmp(selected, backend) == 0;
        if (fn(arg, backend, driver, dli_registry_find(driver) != NULL, is_selected) != 0) {
            break;
        }
    }
    dli_config_free(config);
    return DL_OK;
}
