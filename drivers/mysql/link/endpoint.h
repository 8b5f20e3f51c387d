/* endpoint.h - which server, as whom, and how: what a connection is made from. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_ENDPOINT_H
#define DLI_MYSQL_ENDPOINT_H

#include <stdbool.h>

#include "answer.h"

typedef enum dli_mysql_tls {
    DLI_MYSQL_TLS_OFF,     /* in clear */
    DLI_MYSQL_TLS_PREFER,  /* if the server can; nothing is verified */
    DLI_MYSQL_TLS_REQUIRE, /* or no connection; nothing is verified */
    DLI_MYSQL_TLS_VERIFY   /* the certificate is by a trusted authority and bears the host's name */
} dli_mysql_tls_t;

/* Strings are the endpoint's own; NULL: not given. Never changed once made, so that any thread may read it;
 * counted, because a connection that is being made may outlive its client. */
typedef struct dli_mysql_endpoint {
    char *host;
    int64_t port;
    char *socket; /* a path; then host and port say nothing */
    char *user, *password, *database;
    dli_mysql_tls_t tls;
    char *tls_ca, *tls_cert, *tls_key;
    int64_t connect_timeout_ms;
    dli_mysql_hidden_t table; /* in what servers say */
    char label[160];          /* "user@host:port/database", for people; no secret */
} dli_mysql_endpoint_t;

typedef struct dli_mysql_endpoint_parts {
    const char *host, *socket, *user, *password, *database, *tls, *tls_ca, *tls_cert, *tls_key;
    const char *tls_ca_shown, *tls_cert_shown, *tls_key_shown; /* in messages; NULL: as they are */
    dli_mysql_hidden_t table;
    int64_t port, connect_timeout_ms;
} dli_mysql_endpoint_parts_t;

/* Copies the parts. DL_ECONFIG where they contradict each other, name no readable file, or are too long. */
dl_status_t dli_mysql_endpoint_new(const dli_mysql_endpoint_parts_t *parts, dli_mysql_endpoint_t **endpoint,
                                   dl_error_t *err);
dli_mysql_endpoint_t *dli_mysql_endpoint_ref(dli_mysql_endpoint_t *endpoint);
/* The last one forgets the password before its memory is freed. NULL is fine. */
void dli_mysql_endpoint_unref(dli_mysql_endpoint_t *endpoint);

#endif
