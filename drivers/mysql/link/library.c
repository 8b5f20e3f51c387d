/* library.c - the options, the connecting and the signals of either client library. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "library.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
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

static void clear_nothing(void) {
}
static void (*clear_errors)(void) = clear_nothing; /* of OpenSSL's list of this thread */
static void (*stop_openssl)(void) = clear_nothing; /* in this thread */

/* Where the library uses OpenSSL. Threads of ours may still be talking while the program exits: OpenSSL must
 * stay until the end, and whoever is first to use it decides. 0x00080000 is OPENSSL_INIT_NO_ATEXIT; OpenSSL's
 * headers may not be there. */
static void start_openssl(void) {
    int (*init)(uint64_t options, const void *settings);
    void (*clear)(void), (*stop)(void);
    *(void **)&init = dlsym(RTLD_DEFAULT, "OPENSSL_init_crypto");
    *(void **)&clear = dlsym(RTLD_DEFAULT, "ERR_clear_error");
    *(void **)&stop = dlsym(RTLD_DEFAULT, "OPENSSL_thread_stop");
    clear_errors = clear != NULL ? clear : clear_nothing;
    stop_openssl = stop != NULL ? stop : clear_nothing;
    if (init != NULL) {
        (void)init(0x00080000, NULL);
    }
}

static void start(void) {
    struct sigaction before;
    bool known = sigaction(SIGPIPE, NULL, &before) == 0;
    dli_unforked_begin(DLI_UNFORKED_LIBRARY);
    start_openssl();
    start_failed = mysql_library_init(0, NULL, NULL);
    dli_unforked_end(DLI_UNFORKED_LIBRARY);
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

void dli_mysql_library_thread_end(void) {
    dli_unforked_begin(DLI_UNFORKED_LIBRARY);
    mysql_thread_end();
    stop_openssl();
    dli_unforked_end(DLI_UNFORKED_LIBRARY);
}

/* ---- SIGPIPE, and the errors of TLS -------------------------------------------------------------------- */

enum { MASKED_BY_US = 1, WAS_PENDING = 2 };

/* What it sends without TLS, the library sends so that no signal comes of it: Connector/C does from its
 * release 3.0 on (MSG_NOSIGNAL). */
#ifdef LIBMARIADB
#define IS_QUIET_IN_CLEAR true
#else
#define IS_QUIET_IN_CLEAR false
#endif

void dli_mysql_quiet_begin(dli_mysql_quiet_t *quiet, const MYSQL *mysql, dli_unforked_t what) {
    sigset_t pipe, before;
    quiet->masked = WAS_PENDING; /* nothing is undone */
    quiet->has_tls = mysql != NULL && mysql_get_ssl_cipher((MYSQL *)(uintptr_t)mysql) != NULL;
    if (quiet->has_tls) {
        quiet->what = what;
        dli_unforked_begin(what);
        clear_errors();
    } else if (mysql != NULL && IS_QUIET_IN_CLEAR) {
        return;
    }
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if (pthread_sigmask(SIG_BLOCK, &pipe, &before) != 0) {
        return;
    }
    quiet->masked = 0;
    if (sigismember(&before, SIGPIPE) == 0) {
        quiet->masked = MASKED_BY_US; /* it cannot be pending: it would have come */
    } else if (sigpending(&before) == 0 && sigismember(&before, SIGPIPE) == 1) {
        quiet->masked = WAS_PENDING;
    }
}

void dli_mysql_quiet_end(dli_mysql_quiet_t *quiet) {
    static const struct timespec at_once;
    sigset_t pipe;
    if (quiet->has_tls) {
        clear_errors();
        dli_unforked_end(quiet->what);
    }
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
/* Connector/C does not compare these with the certificate from 3.4 on: whoever has the other end of a tunnel
 * would pass for the server. Not only the two spellings that it knows now. */
static bool is_left_out(const char *host) {
    struct in_addr v4;
    struct in6_addr v6;
    bool is_loopback = (inet_aton(host, &v4) != 0 && ntohl(v4.s_addr) >> 24 == 127) ||
                       (inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
    return is_loopback && mysql_get_client_version() >= 30400;
}

static int set_mode(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint) {
    dli_mysql_tls_t mode = effective(endpoint);
    my_bool verify = mode == DLI_MYSQL_TLS_VERIFY;
    /* For TLS without verification over a network see dial.c. From 3.4 on both are on unless they are put
     * off. */
    my_bool tls = verify || (mode == DLI_MYSQL_TLS_REQUIRE && endpoint->socket != NULL);
    return mysql_options(mysql, MYSQL_OPT_SSL_ENFORCE, &tls) |
           mysql_options(mysql, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &verify);
}
#else
static bool is_left_out(const char *host) {
    (void)host;
    return false;
}

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
        if (is_left_out(endpoint->host)) {
            return dl_driver_fail(err, DL_ECONFIG, 0,
                                  "host: %s compares no loopback address with the server's certificate, as "
                                  "'tls: verify' demands; write a name that is in it",
                                  name);
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

/* ---- connecting ---------------------------------------------------------------------------------------- */

/* A TLS handshake or a login that went wrong has one number, whatever the reason. Did the network or the
 * server fail? Words of OpenSSL (which has none for a reset), of GnuTLS, of the system, of the libraries. */
static bool is_hang_up(const char *words) {
    static const char *const hang_ups[] = {"unexpected eof",     "reset by peer", "timed out",
                                           "roken pipe",         "reason(0)",     "non-properly terminated",
                                           "pull function",      "push function", "temporarily unavailable",
                                           "read RSA public key"};
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

/* The libraries tell neither the names that a certificate has nor, all of them, what is wrong with it: so
 * both that it has to be are said. Words about a file are of this client's own. */
static void hint_at(const dli_mysql_endpoint_t *endpoint, unsigned error, const char *words, char *hint,
                    size_t size) {
    bool is_distrust = error == DLI_MYSQL_TLS_FAILED && endpoint->tls == DLI_MYSQL_TLS_VERIFY &&
                       (strstr(words, "ertificate") != NULL || strstr(words, "ostname") != NULL) &&
                       strstr(words, "nable to get") == NULL;
    hint[0] = '\0';
    if (is_distrust) {
        (void)snprintf(hint, size,
                       "; 'tls: verify' wants one for host %.60s, signed by an authority in tls_ca%s",
                       endpoint->host, endpoint->tls_ca == NULL ? " (unset: the system's)" : "");
    }
}

static bool fail(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint, dl_error_t *err) {
    unsigned error = mysql_errno(mysql);
    if (error == 0 || dli_mysql_is_library_error(error)) {
        char hint[160];
        hint_at(endpoint, error, mysql_error(mysql), hint, sizeof hint);
        dl_driver_fail(err, judge(error, mysql_error(mysql)), (int)error, "%s: %s (%u)%s", endpoint->label,
                       mysql_error(mysql), error, hint);
    } else {
        char what[sizeof endpoint->label + 16];
        snprintf(what, sizeof what, "connecting to %s", endpoint->label);
        dli_mysql_refused(error, mysql_error(mysql), what, err);
    }
    return false;
}

bool dli_mysql_library_connect(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint, dl_error_t *err) {
    dli_mysql_quiet_t quiet;
    bool has_no_tls;
    dli_mysql_quiet_begin(&quiet, NULL, DLI_UNFORKED_LIBRARY);
    MYSQL *connected = dli_mysql_library_dial(mysql, endpoint, &has_no_tls);
    dli_mysql_quiet_end(&quiet);
    if (has_no_tls || strstr(mysql_error(mysql), "SSL is required") != NULL ||
        (connected != NULL && endpoint->tls >= DLI_MYSQL_TLS_REQUIRE &&
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
