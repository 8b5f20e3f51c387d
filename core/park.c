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

static void put_in_front(dli_park_t **list, dli_park_t *park) {
    park->prev = NULL;
    park->next = *list;
    if (*list != NULL) {
        (*list)->prev = park;
    }
    *list = park;
}

static void take_out(dli_park_t **list, dli_park_t *park) {
    if (park->prev != NULL) {
        park->prev->next = park->next;
    } else {
        *list = park->next;
    }
    if (park->next != NULL) {
        park->next->prev = park->prev;
    }
}

dli_park_t *dli_park_get(dl_client_t *client) {
    dli_park_t *park = client->parks_free;
    if (park != NULL) {
        take_out(&client->parks_free, park);
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
    put_in_front(&client->parks_used, park);
    return park;
}

void dli_park_put(dl_client_t *client, dli_park_t *park) {
    if (park == NULL) {
        return;
    }
    take_out(&client->parks_used, park);
    if (client->parks_free_count < POOL_MAX) {
        (void)dli_park_drain(park); /* a late wake must not reach the next user */
        put_in_front(&client->parks_free, park);
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
    dli_park_t *lists[2] = {client->parks_used, client->parks_free};
    client->parks_used = client->parks_free = NULL;
    for (int i = 0; i < 2; i++) {
        while (lists[i] != NULL) {
            dli_park_t *park = lists[i];
            lists[i] = park->next;
            close(park->fd);
            free(park);
        }
    }
}
