/* ct_client.c - the clients and locks of a case, their events, and the server behind the faults. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "core/sys.h"
#include "support/alloc_fail.h"
#include "support/ct.h"
#include "support/fault.h"

#define YAML_MAX 4096

/* ---- opening ------------------------------------------------------------------------------------- */

/* Does one of these lines set the key that `line` sets? */
static int sets_key_of(const char *lines, const char *line) {
    size_t key = strcspn(line, ":");
    for (const char *at = lines; at != NULL && *at != 0;) {
        if (strncmp(at, line, key + 1) == 0) {
            return 1;
        }
        at = strchr(at, '\n');
        at = at == NULL ? NULL : at + 1;
    }
    return 0;
}

static void add_line(char *yaml, size_t size, const char *extra, const char *line) {
    size_t len = strlen(yaml);
    if (!sets_key_of(extra, line)) {
        snprintf(yaml + len, size - len, "%s", line);
    }
}

static void make_options(ct_t *ct, const char *extra, char *yaml, size_t size) {
    char line[128], lines[1024] = "";
    yaml[0] = 0;
    snprintf(line, sizeof line, "lease: %lldms\n", (long long)ct_lease_ms(ct));
    add_line(yaml, size, extra, line);
    snprintf(line, sizeof line, "call_timeout: %lldms\n", (long long)ct_call_timeout_ms(ct));
    add_line(yaml, size, extra, line);
    if (ct->fixture->options != NULL) {
        ct->fixture->options(ct->dir, lines, sizeof lines);
    }
    for (char *at = lines; *at != 0;) {
        char *end = strchr(at, '\n');
        char one[1024];
        snprintf(one, sizeof one, "%.*s\n", (int)(end - at), at);
        add_line(yaml, size, extra, one);
        at = end + 1;
    }
    size_t len = strlen(yaml);
    snprintf(yaml + len, size - len, "%s", extra == NULL ? "" : extra);
}

static void expect_dead_nodes(ct_t *ct, dl_client_t *client);

dl_status_t ct_try_open(ct_t *ct, const char *extra, dl_client_t **client, dl_error_t *err) {
    char yaml[YAML_MAX];
    make_options(ct, extra, yaml, sizeof yaml);
    pthread_mutex_lock(&ct->mutex);
    int number = ct->client_count;
    if (number < CT_CLIENTS_MAX) {
        ct->client_count++; /* the place is taken, also by an open that fails */
    }
    pthread_mutex_unlock(&ct->mutex);
    CT_CHECKF(number < CT_CLIENTS_MAX, "more than %d clients in one case", CT_CLIENTS_MAX);
    fault_next_client(number);
    dl_status_t status = fault_open_client(ct->wrapped, yaml, client, err);
    pthread_mutex_lock(&ct->mutex);
    ct->clients[number].client = *client;
    ct->clients[number].pointer = *client;
    pthread_mutex_unlock(&ct->mutex);
    CT_CHECKF((status == DL_OK) == (*client != NULL), "opening gave %s and %s client", dl_status_name(status),
              *client == NULL ? "no" : "a");
    if (status == DL_OK) {
        expect_dead_nodes(ct, *client);
    }
    return status;
}

dl_client_t *ct_open(ct_t *ct, const char *extra) {
    dl_client_t *client;
    CT_OK(ct_try_open(ct, extra, &client, CT_ERR));
    return client;
}

ct_client_t *ct_find_client(ct_t *ct, const dl_client_t *client) {
    pthread_mutex_lock(&ct->mutex);
    ct_client_t *found = NULL;
    /* From the end: a closed client's address may have been used again. */
    for (int i = ct->client_count - 1; i >= 0 && found == NULL; i--) {
        found = ct->clients[i].pointer == client ? &ct->clients[i] : NULL;
    }
    pthread_mutex_unlock(&ct->mutex);
    CT_CHECKF(found != NULL, "not a client of ct_open");
    return found;
}

int ct_client_number(const dl_client_t *client) {
    ct_t *ct = ct_current();
    return (int)(ct_find_client(ct, client) - ct->clients);
}

const char *ct_config(ct_t *ct) {
    char yaml[YAML_MAX];
    make_options(ct, NULL, yaml, sizeof yaml);
    snprintf(ct->config, sizeof ct->config, "%s/dlock.yaml", ct->dir);
    FILE *file = fopen(ct->config, "we");
    CT_CHECKF(file != NULL, "cannot write %s", ct->config);
    fprintf(file, "use: case\nbackends:\n  case:\n    driver: %s\n", ct->inner->name);
    for (const char *at = yaml; *at != 0;) {
        int len = (int)strcspn(at, "\n");
        fprintf(file, "    %.*s\n", len, at);
        at += len + (at[len] == '\n');
    }
    CT_EQ(fclose(file), 0);
    return ct->config;
}

static dl_lock_t *keep_lock(ct_t *ct, dl_lock_t *lock) {
    ct_object_t *object = alloc_real(sizeof *object);
    object->lock = lock;
    pthread_mutex_lock(&ct->mutex);
    object->next = ct->locks;
    ct->locks = object;
    pthread_mutex_unlock(&ct->mutex);
    return lock;
}

dl_lock_t *ct_lock(ct_t *ct, dl_client_t *client, const char *name) {
    dl_lock_t *lock;
    CT_OK(ct_door_lock_open(client, name, &lock, CT_ERR));
    return keep_lock(ct, lock);
}

dl_lock_t *ct_lock_owned(ct_t *ct, dl_client_t *client, const char *name, uint64_t owner) {
    dl_lock_t *lock;
    CT_OK(dl_lock_open_owned(client, name, owner, &lock, CT_ERR));
    return keep_lock(ct, lock);
}

/* ---- closing ------------------------------------------------------------------------------------- */

void ct_forget(ct_t *ct, const void *object) {
    int found = 0;
    pthread_mutex_lock(&ct->mutex);
    for (int i = 0; i < ct->client_count; i++) {
        if (ct->clients[i].client == object) {
            ct->clients[i].client = NULL;
            found = 1;
        }
    }
    for (ct_object_t **at = &ct->locks; *at != NULL && !found;) {
        ct_object_t *here = *at;
        if (here->lock == object) {
            *at = here->next;
            alloc_real_free(here);
            found = 1;
        } else {
            at = &here->next;
        }
    }
    pthread_mutex_unlock(&ct->mutex);
    CT_CHECKF(found, "not a client or lock that the harness would close");
}

void ct_close(ct_t *ct, dl_client_t *client) {
    ct_forget(ct, client);
    dl_client_close(client);
}

void ct_lock_close(ct_t *ct, dl_lock_t *lock) {
    ct_forget(ct, lock);
    ct_door_lock_close(lock);
}

void ct_close_all(ct_t *ct) {
    while (ct->locks != NULL) {
        ct_object_t *next = ct->locks->next;
        ct_door_lock_close(ct->locks->lock);
        alloc_real_free(ct->locks);
        ct->locks = next;
    }
    for (int i = 0; i < ct->client_count; i++) {
        dl_client_close(ct->clients[i].client);
        ct->clients[i].client = NULL;
    }
    dl_client_close(ct->observer);
    ct->observer = NULL;
}

/* ---- looking at a client --------------------------------------------------------------------------- */

dl_client_stats_t ct_stats(ct_t *ct, dl_client_t *client) {
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    CT_OK(dl_client_stats(client, &stats));
    return stats;
}

void ct_await_waiting(ct_t *ct, dl_client_t *client, uint64_t n, int64_t within_ms) {
    CT_AWAIT_THAT(ct_stats(ct, client).waiting_now, >=, n, within_ms);
}

/* Moves what the client has to tell into the stash, at its end. */
static void read_events(ct_t *ct, ct_client_t *from) {
    ct_stash_t **end = &from->events;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    for (;;) {
        dl_event_t event = DL_EVENT_INIT;
        dl_status_t status = dl_event_next(from->client, &event);
        if (status == DL_ETIMEDOUT) {
            return;
        }
        CT_CHECKF(status == DL_OK, "dl_event_next is %s", dl_status_name(status));
        *end = alloc_real(sizeof **end);
        (*end)->event = event;
        end = &(*end)->next;
    }
}

/* Takes the first such event out of the stash. */
static int take_event(ct_client_t *from, dl_event_kind_t kind, const char *name, dl_event_t *event) {
    for (ct_stash_t **at = &from->events; *at != NULL; at = &(*at)->next) {
        ct_stash_t *here = *at;
        if ((kind == 0 || here->event.kind == kind) &&
            (name == NULL || strcmp(here->event.name, name) == 0)) {
            *event = here->event;
            *at = here->next;
            alloc_real_free(here);
            return 1;
        }
    }
    return 0;
}

/* 1: it came. 0: it did not within this time. */
static int await_event(ct_t *ct, dl_client_t *client, dl_event_kind_t kind, const char *name,
                       int64_t within_ms, dl_event_t *event) {
    ct_client_t *from = ct_find_client(ct, client);
    uint64_t before_ns = dli_sys->now_ns();
    int64_t stood_ms = ct_stood_ms(ct);
    for (;;) {
        uint64_t until = before_ns + (uint64_t)(within_ms + ct_stood_ms(ct) - stood_ms) * DLI_NS_PER_MS;
        int over = dli_sys->now_ns() >= until;
        read_events(ct, from);
        if (take_event(from, kind, name, event)) {
            return 1;
        }
        if (over) {
            return 0;
        }
        struct pollfd fd = {.fd = dl_event_fd(client), .events = POLLIN};
        CT_CHECKF(fd.fd >= 0, "dl_event_fd is %d", fd.fd);
        CT_GE(dli_sys->poll(&fd, 1, until), 0);
    }
}

/* What a client says of nodes that are dead from the beginning is no news to the case. It may have had no
 * memory to say it. */
static void expect_dead_nodes(ct_t *ct, dl_client_t *client) {
    for (int i = 0; (ct->traits & CT_DEAD_MINORITY) && i < CT_DEAD_NODES; i++) {
        dl_event_t event = DL_EVENT_INIT;
        int came = await_event(ct, client, DL_EVENT_WARNING, NULL, 0, &event);
        CT_CHECKF(came || ct_alloc_failed(ct) > 0, "not a word about a dead node");
        CT_CHECKF(!came || strstr(event.text, "is down") != NULL ||
                      strstr(event.text, "cannot be asked") != NULL,
                  "not about a dead node: %s", event.text);
    }
}

dl_event_t ct_expect_event(ct_t *ct, dl_client_t *client, dl_event_kind_t kind, const char *name,
                           int64_t within_ms) {
    dl_event_t event = DL_EVENT_INIT;
    int came = await_event(ct, client, kind, name, within_ms, &event);
    CT_CHECKF(came, "no event of kind %d for '%s' within %lld ms", (int)kind, name == NULL ? "" : name,
              (long long)within_ms);
    return event;
}

void ct_no_event(ct_t *ct, dl_client_t *client, dl_event_kind_t kind, const char *name, int64_t for_ms) {
    dl_event_t event = DL_EVENT_INIT;
    int came = await_event(ct, client, kind, name, for_ms, &event);
    CT_CHECKF(!came, "an event of kind %d for '%s': %s", (int)event.kind, event.name, event.text);
}

void ct_free_events(ct_t *ct) {
    for (int i = 0; i < ct->client_count; i++) {
        while (ct->clients[i].events != NULL) {
            ct_stash_t *next = ct->clients[i].events->next;
            alloc_real_free(ct->clients[i].events);
            ct->clients[i].events = next;
        }
    }
}

/* ---- the server ------------------------------------------------------------------------------------ */

dl_client_t *ct_observer(ct_t *ct) {
    if (ct->observer == NULL) {
        char yaml[YAML_MAX];
        /* What it tries, it has until it unlocks, though the machine may stand still meanwhile. */
        make_options(ct, "lease: 60s", yaml, sizeof yaml);
        CT_OK(fault_open_client(ct->inner, yaml, &ct->observer, CT_ERR));
    }
    return ct->observer;
}

dl_lock_info_t ct_server_info(ct_t *ct, const char *name) {
    CT_CHECKF(ct->traits & CT_CAN_INSPECT, "ct_server_info needs the trait CT_CAN_INSPECT");
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    dl_lock_t *lock;
    CT_OK(dl_lock_open(ct_observer(ct), name, &lock, CT_ERR));
    CT_OK(dl_inspect(lock, &info, CT_ERR));
    dl_lock_close(lock);
    return info;
}

static int is_held(ct_t *ct, const char *name) {
    if (ct->traits & CT_CAN_INSPECT) {
        return ct_server_info(ct, name).held;
    }
    dl_lock_t *lock;
    CT_OK(dl_lock_open(ct_observer(ct), name, &lock, CT_ERR));
    dl_status_t status = CT_EITHER(dl_trylock(lock, CT_ERR), DL_OK, DL_EBUSY);
    if (status == DL_OK) {
        CT_OK(dl_unlock(lock, CT_ERR));
    }
    dl_lock_close(lock);
    return status == DL_EBUSY;
}

void ct_expect_held(ct_t *ct, const char *name) {
    CT_CHECKF(is_held(ct, name), "the server holds no lock '%s'", name);
}

void ct_await_held(ct_t *ct, const char *name, int64_t within_ms) {
    int64_t until = ct_ran_ms(ct) + within_ms;
    /* To look may be to try, which must not meet the very claim that is awaited: on the fakes time goes on
     * only when everybody waits. */
    ct_sleep_ms(ct, 1);
    while (!is_held(ct, name)) {
        CT_CHECKF(ct_ran_ms(ct) < until, "the server holds no lock '%s' after %lld ms", name,
                  (long long)within_ms);
        ct_sleep_ms(ct, 1);
    }
}

void ct_expect_free(ct_t *ct, const char *name, int64_t within_ms) {
    int64_t until = ct_ran_ms(ct) + within_ms;
    while (is_held(ct, name)) {
        CT_CHECKF(ct_ran_ms(ct) < until, "the server still holds '%s' after %lld ms", name,
                  (long long)within_ms);
        ct_sleep_ms(ct, 1);
    }
}

void ct_wipe(ct_t *ct, const char *name) {
    CT_CHECKF(ct->traits & CT_CAN_FORCE, "ct_wipe needs the trait CT_CAN_FORCE");
    dl_lock_t *lock;
    CT_OK(dl_lock_open(ct_observer(ct), name, &lock, CT_ERR));
    CT_OK(dl_force_unlock(lock, CT_ERR));
    dl_lock_close(lock);
}
