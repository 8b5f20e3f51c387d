/* resolve.c - turns a host's name into addresses without ever making the caller wait. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "resolve.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* getaddrinfo has no bound in time. So many may hang at once in a process before the next is refused. */
#define LOOKUPS_MAX 256

/* Shared by the caller and the thread; whoever leaves last frees it. */
struct dli_resolve {
    atomic_int users;
    atomic_bool is_done; /* what follows is written before and not afterwards */
    int code, reason;    /* of getaddrinfo, and errno */
    struct addrinfo *addresses;
    int fd; /* an eventfd; -1: none */
    char port[6];
    char host[];
};

/* The process in the upper half, since its threads are not there after a fork; their number in the lower. */
static _Atomic uint64_t lookups;

static bool count_one(void) {
    uint64_t mine = (uint64_t)(uint32_t)getpid() << 32;
    uint64_t old = atomic_load(&lookups), now;
    do {
        now = (old >> 32 == mine >> 32 ? old : mine) + 1;
        if ((uint32_t)now > LOOKUPS_MAX) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&lookups, &old, now));
    return true;
}

static void leave(dli_resolve_t *resolve) {
    if (atomic_fetch_sub(&resolve->users, 1) > 1) {
        return;
    }
    if (resolve->addresses != NULL) {
        freeaddrinfo(resolve->addresses);
    }
    if (resolve->fd >= 0) {
        close(resolve->fd);
    }
    free(resolve);
}

static void look_up(dli_resolve_t *resolve, int flags) {
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    errno = 0;
    resolve->code = getaddrinfo(resolve->host, resolve->port, &hints, &resolve->addresses);
    resolve->reason = errno;
    if (resolve->code != 0) {
        resolve->addresses = NULL;
    }
}

/* Knows nothing but its own resolve: the client may be gone before it ends. */
static void *run(void *arg) {
    dli_resolve_t *resolve = arg;
    pthread_detach(pthread_self());
    look_up(resolve, 0);
    atomic_store(&resolve->is_done, true);
    uint64_t one = 1;
    /* An eventfd that nobody has written to takes one always. */
    ssize_t n = write(resolve->fd, &one, sizeof one);
    (void)n;
    atomic_fetch_sub(&lookups, 1);
    leave(resolve);
    return NULL;
}

static dl_status_t start_thread(dli_resolve_t *resolve, const dl_driver_env_t *env, dl_error_t *err) {
    pthread_t thread;
    resolve->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (resolve->fd < 0) {
        return dl_driver_fail(err, errno == ENOMEM ? DL_ENOMEM : DL_ELIMIT, errno,
                              "cannot look up '%.100s': %s", resolve->host, strerror(errno));
    }
    if (!count_one()) {
        return dl_driver_fail(
            err, DL_ELIMIT, 0,
            "cannot look up '%.100s': %d lookups of names are waiting for an answer already", resolve->host,
            LOOKUPS_MAX);
    }
    atomic_store(&resolve->users, 2);
    int rc = env->thread_start(&thread, run, resolve);
    if (rc != 0) {
        atomic_store(&resolve->users, 1);
        atomic_fetch_sub(&lookups, 1);
        return dl_driver_fail(err, rc == ENOMEM ? DL_ENOMEM : DL_ELIMIT, rc,
                              "cannot start a thread that looks up '%.100s': %s", resolve->host,
                              strerror(rc));
    }
    return DL_OK;
}

dl_status_t dli_resolve_start(const char *host, const char *port, const dl_driver_env_t *env,
                              dli_resolve_t **out, dl_error_t *err) {
    size_t len = strlen(host);
    dli_resolve_t *resolve = malloc(sizeof *resolve + len + 1);
    *out = NULL;
    if (resolve == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    *resolve = (dli_resolve_t){.fd = -1};
    atomic_init(&resolve->users, 1);
    atomic_init(&resolve->is_done, false);
    strncat(resolve->port, port, sizeof resolve->port - 1);
    memcpy(resolve->host, host, len + 1);
    look_up(resolve, AI_NUMERICHOST);
    if (resolve->code == EAI_NONAME) {
        dl_status_t status = start_thread(resolve, env, err);
        if (status != DL_OK) {
            leave(resolve);
            return status;
        }
    } else {
        atomic_store(&resolve->is_done, true);
    }
    *out = resolve;
    return DL_OK;
}

int dli_resolve_fd(const dli_resolve_t *resolve) {
    return resolve->fd;
}

static dl_status_t status_of(const dli_resolve_t *resolve) {
    if (resolve->code == EAI_MEMORY || (resolve->code == EAI_SYSTEM && resolve->reason == ENOMEM)) {
        return DL_ENOMEM;
    }
    /* Without a descriptor the library cannot ask, and calls it what it likes. */
    return resolve->reason == EMFILE || resolve->reason == ENFILE ? DL_ELIMIT : DL_EIO;
}

dl_status_t dli_resolve_take(const dli_resolve_t *resolve, const struct addrinfo **addresses,
                             dl_error_t *err) {
    *addresses = NULL;
    if (!atomic_load(&resolve->is_done)) {
        return DL_OK;
    }
    if (resolve->code != 0) {
        const char *why =
            resolve->code == EAI_SYSTEM ? strerror(resolve->reason) : gai_strerror(resolve->code);
        return dl_driver_fail(err, status_of(resolve), resolve->code, "cannot look up '%.100s': %s",
                              resolve->host, why);
    }
    *addresses = resolve->addresses;
    return DL_OK;
}

void dli_resolve_close(dli_resolve_t *resolve, bool forked) {
    if (resolve == NULL) {
        return;
    }
    if (!forked) {
        leave(resolve);
    } else if (resolve->fd >= 0) {
        close(resolve->fd); /* the thread is the parent's, and so is all that it writes to */
    }
}
