/* endpoint.h - where a server is and who we are there. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_ENDPOINT_H
#define DLI_REDIS_ENDPOINT_H

#include <stdbool.h>

#include "dlock/driver.h"

#define NS_PER_MS ((uint64_t)1000000)

/* Read-only once it is made. The strings are its own; NULL: not given. */
typedef struct dli_endpoint {
    bool tls;
    char *host; /* NULL: a unix socket */
    char port[6];
    char *path; /* of the unix socket */
    char *username, *password;
    char *username_shown; /* in messages; NULL: the URL has it, and who forgets the ':' has the password there
                           */
    int database;
    char *tls_ca, *tls_cert, *tls_key, *tls_server_name; /* files; the name to verify, NULL: host */
    char *tls_ca_shown, *tls_cert_shown, *tls_key_shown; /* in messages; NULL: as they are */
    bool tls_verify;
    int64_t connect_timeout_ms; /* of resolving, connecting and the handshake together */
    int64_t keepalive_s;        /* 0: off */
    char label[160];            /* "redis://cache:6379/0": for people, without secrets */
} dli_endpoint_t;

/* What stands beside the URL in the configuration; NULL, of the database -1: not given, the URL decides. */
typedef struct dli_endpoint_extras {
    const char *username, *password;
    const char *username_shown; /* in messages; NULL: as it is */
    int64_t database;
    const char *tls_ca, *tls_cert, *tls_key, *tls_server_name;
    const char *tls_ca_shown, *tls_cert_shown, *tls_key_shown; /* in messages; NULL: as they are */
    bool tls_verify;
    int64_t connect_timeout_ms, keepalive_ms; /* keepalive 0: off */
} dli_endpoint_extras_t;

/*
 * url: redis://[user[:password]@]host[:port][/database], rediss:// (TLS), unix:///path[?db=N].
 * Percent-encoding in user and password; IPv6 hosts in brackets. What both the URL and the extras give has to
 * be the same; an empty user or password beside the URL takes away its own. DL_ECONFIG says what is wrong
 * without printing the password; DL_ENOTSUP for rediss:// where the build has no TLS; DL_ENOMEM.
 */
dl_status_t dli_endpoint_make(dli_endpoint_t *endpoint, const char *url, const dli_endpoint_extras_t *extras,
                              dl_error_t *err);
/* Who we are there, for messages: "user 'ann'". */
#define DLI_ENDPOINT_USER_MAX 48
void dli_endpoint_show_user(const dli_endpoint_t *endpoint, char text[DLI_ENDPOINT_USER_MAX]);
/* Safe on a zeroed one; wipes the password. */
void dli_endpoint_free(dli_endpoint_t *endpoint);

#endif
