/* park.c - where a thread sleeps: a word of memory, or an eventfd beside other descriptors. From a pool. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core.h"

/* How many parks the pool keeps; more waiters than that open and close theirs. */
#define POOL_MAX 64u

void dli_eventfd_raise(int fd) {
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);
    (void)n;
}

void dli_eventfd_lower(int fd) {
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    (void)n;
}

dli_park_t *dli_park_get(dl_client_t *client) {
    dli_park_t *park = LIST_FIRST(&client->parks_free);
    if (park != NULL) {
        LIST_REMOVE(park, beside);
        client->parks_free_count--;
    } else {
        park = calloc(1, sizeof *park);
        if (park == NULL) {
            return NULL;
        }
        park->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (park->fd < 0) {
            free(park);
            return NULL;
        }
    }
    LIST_INSERT_HEAD(&client->parks_used, park, beside);
    return park;
}

void dli_park_put(dl_client_t *client, dli_park_t *park) {
    if (park == NULL) {
        return;
    }
    LIST_REMOVE(park, beside);
    if (client->parks_free_count < POOL_MAX) {
        (void)dli_park_drain(park); /* a late wake must not reach the next user */
        LIST_INSERT_HEAD(&client->parks_free, park, beside);
        client->parks_free_count++;
    } else {
        close(park->fd);
        free(park);
    }
}

void dli_park_wake(dl_client_t *client, dli_park_t *park) {
    if (atomic_exchange(&park->woken, 1) != 0 && !park->sleeps) {
        return; /* one that sleeps is woken again: who was to wake it may be stopped before that */
    }
    if (!park->sleeps) {
        dli_eventfd_raise(park->fd);
        park->raised = true;
    } else if (client->wake_count < DLI_WAKES_MAX) {
        client->wakes[client->wake_count++] = &park->woken;
    } else {
        dli_sys->word_wake(&park->woken);
    }
}

bool dli_park_drain(dli_park_t *park) {
    if (atomic_exchange(&park->woken, 0) == 0) {
        return false;
    }
    if (park->raised) {
        dli_eventfd_lower(park->fd);
        park->raised = false;
    }
    return true;
}

void dli_park_free_all(dl_client_t *client) {
    struct dli_parks *lists[2] = {&client->parks_used, &client->parks_free};
    for (int i = 0; i < 2; i++) {
        while (!LIST_EMPTY(lists[i])) {
            dli_park_t *park = LIST_FIRST(lists[i]);
            LIST_REMOVE(park, beside);
            close(park->fd);
            free(park);
        }
    }
}
