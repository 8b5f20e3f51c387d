/* library.c - the options, the connecting and the signals of either client library. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "library.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "answer.h"

#ifdef LIBMARIADB
#include <ma_pvio.h>
#endif

#define MAX_PACKET (16ul * 1024 * 1024)

/* ---- the library itself -------------------------------------------------------------------------------- */

static pthread_once_t started = PTHREAD_ONCE_INIT;
static int start_failed;
static char name[80];

static void start(void) {
    struct sigaction before;
    bool known = sigaction(SIGPIPE, NULL, &before) == 0;
    start_failed = mysql_library_init(0, NULL, NULL);
    if (known) {
        (void)sigaction(SIGPIPE, &before, NULL);
    }
#ifdef LIBMARIADB
    snprintf(name, sizeof name, "MariaDB Connector/C %s", mysql_get_client_info());
#else
    snprintf(name, sizeof name, "MySQL client library %s", mysql_get_client_info());
#endif
}

dl_status_t dli_mysql_library_start(dl_error_t *err) {
    (void)pthread_once(&started, start);
    return start_failed == 0 ? DL_OK
                             : dl_driver_fail(err, DL_ENOMEM, 0, "the MySQL client library did not start");
}

const char *dli_mysql_library_name(void) {
    (void)pthread_once(&started, start);
    return name;
}

/* ---- SIGPIPE ------------------------------------------------------------------------------------------- */

enum { MASKED_BY_US = 1, WAS_PENDING = 2 };

void dli_mysql_quiet_begin(dli_mysql_quiet_t *quiet) {
    sigset_t pipe, before;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    quiet->masked = 0;
    if (pthread_sigmask(SIG_BLOCK, &pipe, &before) != 0) {
        quiet->masked = WAS_PENDING; /* nothing was changed, nothing is undone */
        return;
    }
    if (sigismember(&before, SIGPIPE) == 0) {
        quiet->masked = MASKED_BY_US; /* it cannot be pending: it would have come */
    } else if (sigpending(&before) == 0 && sigismember(&before, SIGPIPE) == 1) {
        quiet->masked = WAS_PENDING;
    }
}

void dli_mysql_quiet_end(dli_mysql_quiet_t *quiet) {
    static const struct timespec at_once;
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if ((quiet->masked & WAS_PENDING) == 0) {
        (void)sigtimedwait(&pipe, NULL, &at_once);
    }
    if ((quiet->masked & MASKED_BY_US) != 0) {
        (void)pthread_sigmask(SIG_UNBLOCK, &pipe, NULL);
    }
}

/* ---- options ------------------------------------------------------------------------------------------- */

/* Oracle's library verifies nothing unless it is told by whom, so that the system's have to be found. The
 * same file for both. */
static const char *find_authorities(const dli_mysql_endpoint_t *endpoint) {
    static const char *const usual[] = {
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    };
    if (endpoint->tls_ca != NULL) {
        return endpoint->tls_ca;
    }
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        if (access(usual[i], R_OK) == 0) {
            return usual[i];
        }
    }
    return NULL;
}

/* What travels over a unix socket never leaves this host, and neither library would encrypt it unasked. */
static dli_mysql_tls_t effective(const dli_mysql_endpoint_t *endpoint) {
    bool unasked = endpoint->socket != NULL && endpoint->tls == DLI_MYSQL_TLS_PREFER;
    return unasked ? DLI_MYSQL_TLS_OFF : endpoint->tls;
}

#ifdef LIBMARIADB
static int set_mode(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint) {
    dli_mysql_tls_t mode = effective(endpoint);
    my_bool verify = mode == DLI_MYSQL_TLS_VERIFY;
    /* For TLS without verification over a network see look_ahead. From 3.4 on both are on unless they are put
     * off. */
    my_bool tls = verify || (mode == DLI_MYSQL_TLS_REQUIRE && endpoint->socket != NULL);
    return mysql_options(mysql, MYSQL_OPT_SSL_ENFORCE, &tls) |
           mysql_options(mysql, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &verify);
}
#else
static int set_mode(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint) {
    static const unsigned modes[] = {[DLI_MYSQL_TLS_OFF] = SSL_MODE_DISABLED,
                                     [DLI_MYSQL_TLS_PREFER] = SSL_MODE_PREFERRED,
                                     [DLI_MYSQL_TLS_REQUIRE] = SSL_MODE_REQUIRED,
                                     [DLI_MYSQL_TLS_VERIFY] = SSL_MODE_VERIFY_IDENTITY};
    dli_mysql_tls_t mode = effective(endpoint);
    /* A login by caching_sha2_password without TLS encrypts the password with the server's key. */
    bool ask_key = mode == DLI_MYSQL_TLS_OFF || mode == DLI_MYSQL_TLS_PREFER;
    return mysql_options(mysql, MYSQL_OPT_SSL_MODE, &modes[mode]) |
           mysql_options(mysql, MYSQL_OPT_GET_SERVER_PUBLIC_KEY, &ask_key);
}
#endif

static dl_status_t set_tls(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint, dl_error_t *err) {
    int rc = set_mode(mysql, endpoint);
    if (endpoint->tls == DLI_MYSQL_TLS_VERIFY) {
        const char *authorities = find_authorities(endpoint);
        if (authorities == NULL) {
            return dl_driver_fail(err, DL_ECONFIG, 0,
                                  "tls_ca: the system's trusted certificates were not found; name a file");
        }
        rc |= mysql_options(mysql, MYSQL_OPT_SSL_CA, authorities);
    }
    if (endpoint->tls_cert != NULL) {
        rc |= mysql_options(mysql, MYSQL_OPT_SSL_CERT, endpoint->tls_cert);
        rc |= mysql_options(mysql, MYSQL_OPT_SSL_KEY, endpoint->tls_key);
    }
    return rc == 0 ? DL_OK : dl_driver_fail(err, DL_ECONFIG, 0, "tls: refused by %s", name);
}

static int refuse_file(void **at, const char *file, void *arg) {
    (void)file;
    (void)arg;
    *at = NULL;
    return 1;
}

static int read_no_file(void *at, char *buf, unsigned len) {
    (void)at;
    (void)buf;
    (void)len;
    return -1;
}

static void end_no_file(void *at) {
    (void)at;
}

static int explain_no_file(void *at, char *text, unsigned len) {
    (void)at;
    snprintf(text, len, "no server gets a local file");
    return 2000; /* unknown, as the libraries have it */
}

/* Oracle's library bounds a TLS handshake by nothing, once the server has greeted. */
static int set_plain(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint) {
    int64_t ms = endpoint->connect_timeout_ms;
    unsigned seconds = (unsigned)((ms + 999) / 1000), no = 0;
    unsigned protocol = endpoint->socket != NULL ? MYSQL_PROTOCOL_SOCKET : MYSQL_PROTOCOL_TCP;
    unsigned long packet = MAX_PACKET;
    int rc = mysql_options(mysql, MYSQL_OPT_CONNECT_TIMEOUT, &seconds);
    rc |= mysql_options(mysql, MYSQL_OPT_READ_TIMEOUT, &seconds);
    rc |= mysql_options(mysql, MYSQL_OPT_WRITE_TIMEOUT, &seconds);
    rc |= mysql_options(mysql, MYSQL_OPT_PROTOCOL, &protocol);
    rc |= mysql_options(mysql, MYSQL_OPT_MAX_ALLOWED_PACKET, &packet);
    rc |= mysql_options(mysql, MYSQL_SET_CHARSET_NAME, "utf8mb4");
    /* A server may ask for a file in answer to any statement. Should a library let the first pass, the second
     * has nothing to give. */
    rc |= mysql_options(mysql, MYSQL_OPT_LOCAL_INFILE, &no);
    mysql_set_local_infile_handler(mysql, refuse_file, read_no_file, end_no_file, explain_no_file, NULL);
    return rc;
}

MYSQL *dli_mysql_library_handle(const dli_mysql_endpoint_t *endpoint, dl_error_t *err) {
    if (dli_mysql_library_start(err) != DL_OK) {
        return NULL;
    }
    MYSQL *mysql = mysql_init(NULL);
    if (mysql == NULL || set_plain(mysql, endpoint) != 0) {
        mysql_close(mysql);
        dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
        return NULL;
    }
    if (set_tls(mysql, endpoint, err) != DL_OK) {
        mysql_close(mysql);
        return NULL;
    }
    return mysql;
}

/* ---- the server's greeting ----------------------------------------------------------------------------- */

#ifdef LIBMARIADB
/*
 * Told to use TLS, Connector/C goes on in clear when the server has none, believes that it has TLS, and so
 * lets caching_sha2_password send the password as it is. It must be told only when the server's greeting
 * offers TLS. The greeting is looked at in the library's own waits, before it reads: the first is the one for
 * the connection. Where it could not be looked at, the login is made in clear, with the password encrypted.
 */
static _Thread_local struct {
    MYSQL *mysql; /* being connected; NULL: nothing to look for any more */
    bool is_demanded, is_missed;
} ahead;

/* A packet's head, the protocol's number (an error has 255), the server's version, then what it can do. */
static bool offers_tls(const unsigned char *greeting, size_t len) {
    enum { HEAD = 4, TLS_BIT = 0x0800, BEFORE_BITS = 4 + 8 + 1 };
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

/* The library's wait for a socket of the connection that this thread is making. 0: in vain. */
static int look_ahead(my_socket fd, my_bool is_read, int timeout_ms) {
    unsigned char greeting[256];
    my_bool yes = 1;
    short events = wait_io(fd, is_read ? POLLIN : POLLOUT, timeout_ms);
    if (events == 0 || ahead.mysql == NULL || (events & POLLERR) != 0) {
        return events != 0; /* with POLLERR it goes on to the next address */
    }
    if (!is_read && wait_io(fd, POLLIN, timeout_ms) == 0) {
        return 0;
    }
    ssize_t len = recv(fd, greeting, sizeof greeting, MSG_PEEK | MSG_DONTWAIT);
    if (len > 0 && offers_tls(greeting, (size_t)len)) {
        (void)mysql_options(ahead.mysql, MYSQL_OPT_SSL_ENFORCE, &yes);
    } else if (len > 0 && greeting[len > 4 ? 4 : 0] != 255 && ahead.is_demanded) {
        ahead.is_missed = true;
        (void)shutdown(fd, SHUT_WR); /* it gets no login */
    }
    ahead.mysql = NULL;
    return 1;
}

static void begin_look(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint) {
    bool is_demanded = endpoint->tls == DLI_MYSQL_TLS_REQUIRE;
    ahead.is_missed = false;
    if (endpoint->socket == NULL && (is_demanded || endpoint->tls == DLI_MYSQL_TLS_PREFER)) {
        ahead.mysql = mysql;
        ahead.is_demanded = is_demanded;
        (void)mysql_options(mysql, MARIADB_OPT_IO_WAIT, (const void *)look_ahead);
    }
}

/* true: the server has no TLS, and was left for that. */
static bool end_look(MYSQL *connected) {
    ahead.mysql = NULL;
    if (connected != NULL) {
        (void)mysql_options(connected, MARIADB_OPT_IO_WAIT, NULL);
    }
    return ahead.is_missed;
}
#else
static void begin_look(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint) {
    (void)mysql; /* this library sees to it by itself */
    (void)endpoint;
}

static bool end_look(MYSQL *connected) {
    (void)connected;
    return false;
}
#endif

/* ---- connecting ---------------------------------------------------------------------------------------- */

/* A TLS handshake or a login that went wrong has one number, whatever the reason. Did the network or the
 * server fail? Words of OpenSSL (which has none for a reset), of GnuTLS, of the system, of the libraries. */
static bool is_hang_up(const char *words) {
    static const char *const hang_ups[] = {"unexpected eof", "reset by peer", "timed out",
                                           "roken pipe",     "reason(0)",     "non-properly terminated",
                                           "pull function",  "push function", "read RSA public key"};
    for (size_t i = 0; i < sizeof hang_ups / sizeof hang_ups[0]; i++) {
        if (strstr(words, hang_ups[i]) != NULL) {
            return true;
        }
    }
    return false;
}

/* Of the libraries' own errors; the servers' are in answer.c. */
static dl_status_t judge(unsigned error, const char *words) {
    switch (error) {
    case 2002: /* nobody listens */
    case 2003:
    case 2005: /* no such host */
    case 2012: /* it hung up while greeting */
    case DLI_MYSQL_GONE:
    case DLI_MYSQL_LOST:
        return DL_EIO;
    case 2001: /* no socket */
    case 2004:
        return DL_ELIMIT;
    case DLI_MYSQL_NO_MEMORY:
        return DL_ENOMEM;
    case DLI_MYSQL_TLS_FAILED:
        return is_hang_up(words) ? DL_EIO : DL_ECONFIG;
    case 2049: /* a login of a kind that is not safe */
    case 2059: /* of a kind that the library does not know */
        return DL_EAUTH;
    case 2061:
        return is_hang_up(words) ? DL_EIO : DL_EAUTH;
    default:
        return DL_EPROTO;
    }
}

static bool fail(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint, dl_error_t *err) {
    unsigned error = mysql_errno(mysql);
    if (error == 0 || dli_mysql_is_library_error(error)) {
        dl_driver_fail(err, judge(error, mysql_error(mysql)), (int)error, "%s: %s (%u)", endpoint->label,
                       mysql_error(mysql), error);
    } else {
        char what[sizeof endpoint->label + 16];
        snprintf(what, sizeof what, "connecting to %s", endpoint->label);
        dli_mysql_refused(error, mysql_error(mysql), what, err);
    }
    return false;
}

bool dli_mysql_library_connect(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint, dl_error_t *err) {
    dli_mysql_quiet_t quiet;
    bool is_unix = endpoint->socket != NULL;
    /* A password of NULL would be looked for in the environment. */
    const char *password = endpoint->password != NULL ? endpoint->password : "";
    dli_mysql_quiet_begin(&quiet);
    begin_look(mysql, endpoint);
    MYSQL *connected = mysql_real_connect(mysql, is_unix ? NULL : endpoint->host, endpoint->user, password,
                                          endpoint->database, is_unix ? 0 : (unsigned)endpoint->port,
                                          is_unix ? endpoint->socket : NULL, CLIENT_FOUND_ROWS);
    bool has_missed = end_look(connected) || strstr(mysql_error(mysql), "SSL is required") != NULL;
    dli_mysql_quiet_end(&quiet);
    if (has_missed || (connected != NULL && endpoint->tls >= DLI_MYSQL_TLS_REQUIRE &&
                       mysql_get_ssl_cipher(mysql) == NULL)) {
        dl_driver_fail(err, DL_ECONFIG, 0, "%s: the server has no TLS, and tls demands it", endpoint->label);
        return false;
    }
    return connected != NULL ? true : fail(mysql, endpoint, err);
}

int dli_mysql_library_fd(const MYSQL *mysql) {
    return (int)mysql->net.fd;
}

bool dli_mysql_library_has_more(const MYSQL *mysql) {
#ifdef LIBMARIADB
    /* It reads as much as there is, and takes what is left for the beginning of the next answer. */
    const MARIADB_PVIO *io = mysql->net.pvio;
    return io != NULL && io->cache != NULL && io->cache_pos < io->cache + io->cache_size;
#else
    (void)mysql;
    return false;
#endif
}
