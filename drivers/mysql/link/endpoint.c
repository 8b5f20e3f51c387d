/* endpoint.c - checks and keeps what a connection is made from. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "endpoint.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_CONNECT_TIMEOUT_MS 1000
#define MAX_NAME 255
#define MAX_PASSWORD 1023
#define MAX_PATH_LEN 4095
#define HOST_BYTES "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:%"

typedef struct counted {
    dli_mysql_endpoint_t endpoint; /* the first, so that its address is ours */
    atomic_size_t references;
} counted_t;

static dl_status_t wrong(dl_error_t *err, const char *option, const char *what) {
    return dl_driver_fail(err, DL_ECONFIG, 0, "%s: %s", option, what);
}

static bool is_given(const char *text) {
    return text != NULL && text[0] != '\0';
}

static dl_status_t copy(const char *text, const char *option, size_t max, char **to, dl_error_t *err) {
    if (text == NULL) {
        return DL_OK;
    }
    if (strlen(text) > max) {
        return dl_driver_fail(err, DL_ECONFIG, 0, "%s: longer than %zu bytes", option, max);
    }
    *to = strdup(text);
    return *to != NULL ? DL_OK : dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
}

static dl_status_t copy_file(const char *path, const char *shown, const char *option, char **to,
                             dl_error_t *err) {
    if (!is_given(path)) {
        return DL_OK;
    }
    if (access(path, R_OK) != 0) {
        return dl_driver_fail(err, DL_ECONFIG, errno, "%s: %.120s: %s", option, shown != NULL ? shown : path,
                              strerror(errno));
    }
    return copy(path, option, MAX_PATH_LEN, to, err);
}

static dl_status_t read_place(dli_mysql_endpoint_t *endpoint, const dli_mysql_endpoint_parts_t *parts,
                              dl_error_t *err) {
    if (is_given(parts->socket)) {
        if (parts->socket[0] != '/') {
            return wrong(err, "socket", "the whole path is needed, which begins with '/'");
        }
        return copy(parts->socket, "socket", sizeof((struct sockaddr_un *)0)->sun_path - 1, &endpoint->socket,
                    err);
    }
    if (!is_given(parts->host)) {
        return wrong(err, "host", "it is missing");
    }
    /* More could be said in a host than a host: Connector/C takes lists and whole connection strings. */
    if (parts->host[0] == '/') {
        return wrong(err, "host", "it is a path; that of a unix socket belongs into socket");
    }
    const char *colon = strchr(parts->host, ':');
    if (colon != NULL && strchr(colon + 1, ':') == NULL) {
        return wrong(err, "host", "what follows the colon belongs into port");
    }
    if (parts->host[strspn(parts->host, HOST_BYTES)] != '\0') {
        return wrong(err, "host", "it has a byte that no host name and no address has");
    }
    if (parts->port < 1 || parts->port > 65535) {
        return wrong(err, "port", "it must be a number from 1 to 65535");
    }
    endpoint->port = parts->port;
    return copy(parts->host, "host", MAX_NAME, &endpoint->host, err);
}

static dl_status_t read_account(dli_mysql_endpoint_t *endpoint, const dli_mysql_endpoint_parts_t *parts,
                                dl_error_t *err) {
    /* Without one, the libraries would take the name of the process's user. */
    if (!is_given(parts->user)) {
        return wrong(err, "user", "it is missing");
    }
    if (parts->database != NULL && parts->database[0] == '\0') {
        return wrong(err, "database", "it is empty");
    }
    dl_status_t status = copy(parts->user, "user", MAX_NAME, &endpoint->user, err);
    if (status == DL_OK) {
        status = copy(parts->password, "password", MAX_PASSWORD, &endpoint->password, err);
    }
    if (status == DL_OK) {
        status = copy(parts->database, "database", MAX_NAME, &endpoint->database, err);
    }
    return status;
}

static dl_status_t read_mode(const char *text, dli_mysql_tls_t *mode, dl_error_t *err) {
    static const char *const names[] = {[DLI_MYSQL_TLS_OFF] = "off",
                                        [DLI_MYSQL_TLS_PREFER] = "prefer",
                                        [DLI_MYSQL_TLS_REQUIRE] = "require",
                                        [DLI_MYSQL_TLS_VERIFY] = "verify"};
    *mode = DLI_MYSQL_TLS_PREFER;
    if (text == NULL) {
        return DL_OK;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) == 0) {
            *mode = (dli_mysql_tls_t)i;
            return DL_OK;
        }
    }
    return wrong(err, "tls", "it must be off, prefer, require or verify");
}

/* Who names a certificate believes that it counts. */
static dl_status_t settle_tls(const dli_mysql_endpoint_parts_t *parts, dli_mysql_tls_t mode,
                              dl_error_t *err) {
    bool has_cert = is_given(parts->tls_cert), has_key = is_given(parts->tls_key);
    if (has_cert != has_key) {
        return wrong(err, has_cert ? "tls_cert" : "tls_key",
                     "tls_cert and tls_key are given together or not at all");
    }
    if (mode == DLI_MYSQL_TLS_OFF && (has_cert || is_given(parts->tls_ca))) {
        return wrong(err, has_cert ? "tls_cert" : "tls_ca", "it is given, but tls is off");
    }
    if (mode == DLI_MYSQL_TLS_PREFER && has_cert) {
        return wrong(err, "tls_cert",
                     "it is given, but 'tls: prefer' may go without; write require or verify");
    }
    if (mode != DLI_MYSQL_TLS_VERIFY && is_given(parts->tls_ca)) {
        return wrong(err, "tls_ca", "it is given, but only 'tls: verify' looks at the server's certificate");
    }
    if (mode == DLI_MYSQL_TLS_VERIFY && is_given(parts->socket)) {
        return wrong(err, "tls", "verify compares the host's name, and a unix socket has none");
    }
    return DL_OK;
}

static dl_status_t read_tls(dli_mysql_endpoint_t *endpoint, const dli_mysql_endpoint_parts_t *parts,
                            dl_error_t *err) {
    dl_status_t status = read_mode(parts->tls, &endpoint->tls, err);
    if (status == DL_OK) {
        status = settle_tls(parts, endpoint->tls, err);
    }
    if (status == DL_OK) {
        status = copy_file(parts->tls_ca, parts->tls_ca_shown, "tls_ca", &endpoint->tls_ca, err);
    }
    if (status == DL_OK) {
        status = copy_file(parts->tls_cert, parts->tls_cert_shown, "tls_cert", &endpoint->tls_cert, err);
    }
    if (status == DL_OK) {
        status = copy_file(parts->tls_key, parts->tls_key_shown, "tls_key", &endpoint->tls_key, err);
    }
    return status;
}

static void write_label(dli_mysql_endpoint_t *endpoint) {
    const char *database = endpoint->database != NULL ? endpoint->database : "";
    if (endpoint->socket != NULL) {
        snprintf(endpoint->label, sizeof endpoint->label, "%s@unix:%s/%s", endpoint->user, endpoint->socket,
                 database);
        return;
    }
    bool is_ipv6 = strchr(endpoint->host, ':') != NULL;
    snprintf(endpoint->label, sizeof endpoint->label, "%s@%s%s%s:%d/%s", endpoint->user, is_ipv6 ? "[" : "",
             endpoint->host, is_ipv6 ? "]" : "", (int)endpoint->port, database);
}

dl_status_t dli_mysql_endpoint_new(const dli_mysql_endpoint_parts_t *parts, dli_mysql_endpoint_t **endpoint,
                                   dl_error_t *err) {
    counted_t *counted = calloc(1, sizeof *counted);
    *endpoint = NULL;
    if (counted == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    dli_mysql_endpoint_t *made = &counted->endpoint;
    atomic_init(&counted->references, 1);
    made->connect_timeout_ms =
        parts->connect_timeout_ms > 0 ? parts->connect_timeout_ms : DEFAULT_CONNECT_TIMEOUT_MS;
    dl_status_t status = read_place(made, parts, err);
    if (status == DL_OK) {
        status = read_account(made, parts, err);
    }
    if (status == DL_OK) {
        status = read_tls(made, parts, err);
    }
    if (status != DL_OK) {
        dli_mysql_endpoint_unref(made);
        return status;
    }
    made->table = parts->table;
    write_label(made);
    *endpoint = made;
    return DL_OK;
}

dli_mysql_endpoint_t *dli_mysql_endpoint_ref(dli_mysql_endpoint_t *endpoint) {
    counted_t *counted = (counted_t *)(void *)endpoint;
    atomic_fetch_add_explicit(&counted->references, 1, memory_order_relaxed);
    return endpoint;
}

void dli_mysql_endpoint_unref(dli_mysql_endpoint_t *endpoint) {
    counted_t *counted = (counted_t *)(void *)endpoint;
    if (counted == NULL || atomic_fetch_sub_explicit(&counted->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (endpoint->password != NULL) {
        explicit_bzero(endpoint->password, strlen(endpoint->password));
    }
    free(endpoint->password);
    free(endpoint->host);
    free(endpoint->socket);
    free(endpoint->user);
    free(endpoint->database);
    free(endpoint->tls_ca);
    free(endpoint->tls_cert);
    free(endpoint->tls_key);
    free(counted);
}
