/* dial.c - makes the connection, with TLS or without, for which Connector/C has to be helped. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "library.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

static MYSQL *real_connect(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint, const char *host,
                           unsigned long flags) {
    bool is_unix = endpoint->socket != NULL;
    /* A password of NULL would be looked for in the environment. */
    const char *password = endpoint->password != NULL ? endpoint->password : "";
    return mysql_real_connect(mysql, is_unix ? NULL : host, endpoint->user, password, endpoint->database,
                              is_unix ? 0 : (unsigned)endpoint->port, endpoint->socket,
                              flags | CLIENT_FOUND_ROWS);
}

#ifdef LIBMARIADB
/*
 * Told to use TLS, Connector/C goes on in clear when the server has none, believes that it has TLS, and so
 * lets caching_sha2_password send the password as it is. It must be told only when the server's greeting
 * offers TLS. The greeting is looked at in the library's own waits, before it reads: the first is the one for
 * the connection. Where it is cut, nobody logs in.
 */
enum { HEAD = 4, GREETING_MAX = 256 };
static _Thread_local struct {
    MYSQL *mysql; /* being connected; NULL: nothing to look for any more */
    bool is_demanded, is_missed;
} ahead;

/* A packet's head, the protocol's number (an error has 255), the server's version, then what it can do. */
static bool offers_tls(const unsigned char *greeting, size_t len) {
    enum { TLS_BIT = 0x0800, BEFORE_BITS = 4 + 8 + 1 };
    const unsigned char *end = len > HEAD + 1 ? memchr(greeting + HEAD + 1, '\0', len - HEAD - 1) : NULL;
    size_t at = end != NULL ? (size_t)(end - greeting) + 1 + BEFORE_BITS : len;
    return at + 2 <= len && greeting[HEAD] != 255 && ((greeting[at] | greeting[at + 1] << 8) & TLS_BIT) != 0;
}

static short wait_io(int fd, short events, int timeout_ms) {
    struct pollfd entry = {.fd = fd, .events = events};
    int rc;
    do {
        rc = poll(&entry, 1, timeout_ms > 0 ? timeout_ms : -1);
    } while (rc < 0 && errno == EINTR);
    if (rc == 0) {
        errno = ETIMEDOUT;
    }
    return rc > 0 ? entry.revents : 0;
}

/* Leaves the bytes where they are. true: so many are there. */
static bool peek(int fd, unsigned char *bytes, int n, int timeout_ms) {
    const int one = 1;
    /* It is readable once all of them are there, or no more can come. */
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n);
    (void)wait_io(fd, POLLIN, timeout_ms);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
    return recv(fd, bytes, (size_t)n, MSG_PEEK | MSG_DONTWAIT) >= n;
}

/* As much of the whole greeting as there is room for. 0: it is cut. */
static size_t peek_greeting(int fd, unsigned char *greeting, int timeout_ms) {
    if (!peek(fd, greeting, HEAD, timeout_ms)) {
        return 0;
    }
    int len = HEAD + (greeting[0] | greeting[1] << 8 | greeting[2] << 16);
    len = len < GREETING_MAX ? len : GREETING_MAX;
    return peek(fd, greeting, len, timeout_ms) ? (size_t)len : 0;
}

/* 0: in vain. */
static int look_ahead(my_socket fd, my_bool is_read, int timeout_ms) {
    unsigned char greeting[GREETING_MAX] = {0};
    my_bool yes = 1;
    short events = wait_io(fd, is_read ? POLLIN : POLLOUT, timeout_ms);
    if (events == 0 || ahead.mysql == NULL || (events & POLLERR) != 0) {
        return events != 0; /* with POLLERR it goes on to the next address */
    }
    if (!is_read && wait_io(fd, POLLIN, timeout_ms) == 0) {
        return 0;
    }
    size_t len = peek_greeting(fd, greeting, timeout_ms);
    if (offers_tls(greeting, len)) {
        (void)mysql_options(ahead.mysql, MYSQL_OPT_SSL_ENFORCE, &yes);
    } else if (len == 0) {
        (void)shutdown(fd, SHUT_RDWR); /* nor is the rest waited for */
    } else if (greeting[HEAD] != 255 && ahead.is_demanded) {
        ahead.is_missed = true;
        (void)shutdown(fd, SHUT_WR); /* it gets no login */
    }
    ahead.mysql = NULL;
    return 1;
}

/* The library's wait for a socket of the connection that this thread is making. */
static int wait_outside(my_socket fd, my_bool is_read, int timeout_ms) {
    dli_unforked_end_lookup();
    dli_unforked_end(DLI_UNFORKED_LIBRARY);
    int rc = look_ahead(fd, is_read, timeout_ms);
    int error = errno;
    dli_unforked_begin(DLI_UNFORKED_LIBRARY);
    errno = error;
    return rc;
}

/* is_looking: for a greeting with TLS. */
static MYSQL *connect_waiting(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint, const char *host,
                              bool is_looking) {
    ahead.mysql = is_looking ? mysql : NULL;
    ahead.is_demanded = endpoint->tls == DLI_MYSQL_TLS_REQUIRE;
    ahead.is_missed = false;
    (void)mysql_options(mysql, MARIADB_OPT_IO_WAIT, (const void *)wait_outside);
    /* It looks for a host first, until it waits for a socket. */
    dli_unforked_begin(endpoint->socket != NULL ? DLI_UNFORKED_LIBRARY : DLI_UNFORKED_LOOKUP);
    MYSQL *connected = real_connect(mysql, endpoint, host, CLIENT_REMEMBER_OPTIONS);
    dli_unforked_end_lookup();
    dli_unforked_end(DLI_UNFORKED_LIBRARY);
    ahead.mysql = NULL;
    if (connected != NULL) {
        (void)mysql_options(connected, MARIADB_OPT_IO_WAIT, NULL);
    }
    return connected;
}

/*
 * After an address that refuses, the library leaves the socket for the next one blocking: it waits neither
 * for that connection nor for a greeting that is fast, and nobody looks ahead. So each address is tried by
 * itself.
 */
static MYSQL *connect_each(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    MYSQL *connected = NULL;
    if (dli_unforked_look_up(endpoint->host, NULL, &hints, &list) != 0) {
        return connect_waiting(mysql, endpoint, endpoint->host, true); /* which says what is wrong with it */
    }
    for (struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        char host[NI_MAXHOST];
        bool is_only = list->ai_next == NULL;
        if (!is_only &&
            getnameinfo(a->ai_addr, a->ai_addrlen, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0) {
            continue;
        }
        connected = connect_waiting(mysql, endpoint, is_only ? endpoint->host : host, true);
        unsigned error = mysql_errno(mysql);
        if (connected != NULL || ahead.is_missed || (error != 2002 && error != 2003)) {
            break; /* somebody was there */
        }
    }
    freeaddrinfo(list);
    return connected;
}

MYSQL *dli_mysql_library_dial(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint, bool *has_no_tls) {
    bool may_have_tls = endpoint->tls == DLI_MYSQL_TLS_PREFER || endpoint->tls == DLI_MYSQL_TLS_REQUIRE;
    bool is_looking = endpoint->socket == NULL && may_have_tls;
    MYSQL *connected =
        is_looking ? connect_each(mysql, endpoint) : connect_waiting(mysql, endpoint, endpoint->host, false);
    *has_no_tls = ahead.is_missed;
    return connected;
}
#else
/* This library sees to it by itself. */
MYSQL *dli_mysql_library_dial(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint, bool *has_no_tls) {
    *has_no_tls = false;
    dli_unforked_begin(DLI_UNFORKED_LIBRARY);
    MYSQL *connected = real_connect(mysql, endpoint, endpoint->host, 0);
    dli_unforked_end(DLI_UNFORKED_LIBRARY);
    return connected;
}
#endif
