/* dial.c - from the name of a server to a socket, without ever making the caller wait. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "dial.h"

#include "drivers/unforked.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- names ------------------------------------------------------------------------------------------- */

/* getaddrinfo has no bound in time. So many may hang at once in a process before the next is refused. */
#define LOOKUPS_MAX 256

/* Shared by the caller and the thread; whoever leaves last frees it. */
struct dli_resolve {
    atomic_int users;
    atomic_bool is_done; /* what follows is written before and not afterwards */
    int code, reason;    /* of getaddrinfo, and errno */
    struct addrinfo *addresses, of_unix;
    struct sockaddr_un place;
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
    if (resolve->addresses != NULL && resolve->addresses != &resolve->of_unix) {
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
    resolve->code = (flags & AI_NUMERICHOST) != 0
                        ? getaddrinfo(resolve->host, resolve->port, &hints, &resolve->addresses)
                        : dli_unforked_look_up(resolve->host, resolve->port, &hints, &resolve->addresses);
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

/* A unix socket in the shape of the addresses that a name has; its path is no longer than that. */
static void look_up_unix(dli_resolve_t *resolve, const char *path) {
    resolve->place.sun_family = AF_UNIX;
    strncat(resolve->place.sun_path, path, sizeof resolve->place.sun_path - 1);
    resolve->of_unix = (struct addrinfo){.ai_family = AF_UNIX,
                                         .ai_socktype = SOCK_STREAM,
                                         .ai_addr = (struct sockaddr *)&resolve->place,
                                         .ai_addrlen = sizeof resolve->place};
    resolve->addresses = &resolve->of_unix;
}

dl_status_t dli_resolve_start(const dli_endpoint_t *endpoint, const dl_driver_env_t *env, dli_resolve_t **out,
                              dl_error_t *err) {
    const char *host = endpoint->host != NULL ? endpoint->host : "";
    size_t len = strlen(host);
    dli_resolve_t *resolve = malloc(sizeof *resolve + len + 1);
    *out = NULL;
    if (resolve == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    *resolve = (dli_resolve_t){.fd = -1};
    atomic_init(&resolve->users, 1);
    atomic_init(&resolve->is_done, false);
    memcpy(resolve->port, endpoint->port, sizeof resolve->port);
    memcpy(resolve->host, host, len + 1);
    if (endpoint->host == NULL) {
        look_up_unix(resolve, endpoint->path);
    } else {
        look_up(resolve, AI_NUMERICHOST);
    }
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

/* ---- sockets ----------------------------------------------------------------------------------------- */

static void set(int fd, int level, int name, int64_t value) {
    int number = value > INT32_MAX ? INT32_MAX : (int)value;
    /* They make failures seen sooner and nothing else, so it goes without them too. */
    (void)setsockopt(fd, level, name, &number, sizeof number);
}

static void tune(int fd, const dli_endpoint_t *endpoint, const dl_driver_env_t *env) {
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, env->call_timeout_ms);
    if (endpoint->keepalive_s > 0) {
        /* The kernel refuses longer ones. */
        int64_t idle_s = endpoint->keepalive_s < 32767 ? endpoint->keepalive_s : 32767;
        set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
        set(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
        set(fd, IPPROTO_TCP, TCP_KEEPINTVL, idle_s >= 3 ? idle_s / 3 : 1);
        set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    }
}

/*
 * Where nobody listens on a port of this host that the kernel gives to clients, a socket may connect to
 * itself, and would keep the server from ever listening there.
 */
static bool is_own_echo(int fd) {
    struct sockaddr_storage here, there;
    socklen_t here_len = sizeof here, there_len = sizeof there;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    return getsockname(fd, (struct sockaddr *)&here, &here_len) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_len) == 0 && here.ss_family != AF_UNIX &&
           here_len == there_len && memcmp(&here, &there, here_len) == 0;
}

int dli_dial(const struct addrinfo *address, const dli_endpoint_t *endpoint, const dl_driver_env_t *env,
             int *fd) {
    *fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0) {
        return errno;
    }
    if (address->ai_family != AF_UNIX) {
        tune(*fd, endpoint, env);
    }
    int rc = connect(*fd, address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    if (rc == 0 && is_own_echo(*fd)) {
        rc = ECONNREFUSED;
    }
    if (rc == EINTR) {
        rc = EINPROGRESS; /* it goes on all the same */
    }
    if (rc != 0 && rc != EINPROGRESS) {
        int made = *fd;
        *fd = -1; /* first, as in hang_up of conn.c */
        close(made);
    }
    return rc;
}

int dli_dialled(int fd) {
    int rc = 0;
    socklen_t len = sizeof rc;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &rc, &len) != 0) {
        return errno;
    }
    if (rc != 0) {
        return rc;
    }
    struct sockaddr_storage there;
    len = sizeof there;
    if (getpeername(fd, (struct sockaddr *)&there, &len) != 0) {
        return errno == ENOTCONN ? EINPROGRESS : errno;
    }
    return is_own_echo(fd) ? ECONNREFUSED : 0;
}

void dli_address_show(const struct addrinfo *address, char text[DLI_ADDRESS_SHOWN]) {
    char host[80] = "?", port[8] = "?";
    if (address->ai_family == AF_UNIX) {
        const struct sockaddr_un *place = (const struct sockaddr_un *)(const void *)address->ai_addr;
        snprintf(text, DLI_ADDRESS_SHOWN, "%s", place->sun_path);
        return;
    }
    (void)getnameinfo(address->ai_addr, address->ai_addrlen, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(text, DLI_ADDRESS_SHOWN, address->ai_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}
