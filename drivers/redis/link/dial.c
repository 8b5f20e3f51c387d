/* dial.c - one socket of our own to one address, without blocking. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "dial.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int dli_dial_unix(const char *path, struct sockaddr_un *place, struct addrinfo *address) {
    size_t len = strlen(path);
    memset(place, 0, sizeof *place);
    if (len >= sizeof place->sun_path) {
        return ENAMETOOLONG;
    }
    place->sun_family = AF_UNIX;
    memcpy(place->sun_path, path, len + 1);
    *address = (struct addrinfo){.ai_family = AF_UNIX,
                                 .ai_socktype = SOCK_STREAM,
                                 .ai_addr = (struct sockaddr *)place,
                                 .ai_addrlen = sizeof *place};
    return 0;
}

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

int dli_dial_start(const struct addrinfo *address, const dli_endpoint_t *endpoint, const dl_driver_env_t *env,
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
        *fd = -1; /* first, as in dli_stream_hang_up */
        close(made);
    }
    return rc;
}

int dli_dial_finish(int fd) {
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

void dli_dial_name(const struct addrinfo *address, char name[DLI_DIAL_NAME_MAX]) {
    char host[80] = "?", port[8] = "?";
    if (address->ai_family == AF_UNIX) {
        const struct sockaddr_un *place = (const struct sockaddr_un *)(const void *)address->ai_addr;
        snprintf(name, DLI_DIAL_NAME_MAX, "%s", place->sun_path);
        return;
    }
    (void)getnameinfo(address->ai_addr, address->ai_addrlen, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(name, DLI_DIAL_NAME_MAX, address->ai_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}
