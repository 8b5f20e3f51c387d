/* options.h - what the configuration may say of a single server, and what redlock's has too. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_OPTIONS_H
#define DLI_REDIS_OPTIONS_H

/* Places in every driver's table: first what one server has and several have not, or several (redlock.h), as
 * many; from USERNAME on what all have. */
enum {
    DLI_REDIS_OPT_URL,
    DLI_REDIS_OPT_DATABASE,
    DLI_REDIS_OPT_CONNECTIONS,
    DLI_REDIS_OPT_MIN_REPLICAS,
    DLI_REDIS_OPT_REPLICA_TIMEOUT,
    DLI_REDIS_OPT_REPLICA_SHORTFALL,
    DLI_REDIS_OPT_USERNAME,
    DLI_REDIS_OPT_PASSWORD,
    DLI_REDIS_OPT_PREFIX,
    DLI_REDIS_OPT_TOKEN_KEY,
    DLI_REDIS_OPT_CONNECT_TIMEOUT,
    DLI_REDIS_OPT_KEEPALIVE,
    DLI_REDIS_OPT_MAX_TOTAL,
    DLI_REDIS_OPT_MAX_IDLE,
    DLI_REDIS_OPT_MIN_IDLE,
    DLI_REDIS_OPT_TEST_ON_BORROW,
    DLI_REDIS_OPT_TEST_WHILE_IDLE,
    DLI_REDIS_OPT_BORROW_TIMEOUT,
    DLI_REDIS_OPT_IDLE_TIMEOUT,
    DLI_REDIS_OPT_IDLE_CHECK,
    DLI_REDIS_OPT_TLS_CA,
    DLI_REDIS_OPT_TLS_CERT,
    DLI_REDIS_OPT_TLS_KEY,
    DLI_REDIS_OPT_TLS_SERVER_NAME,
    DLI_REDIS_OPT_TLS_VERIFY,
    DLI_REDIS_OPT_ALSO_PUBLISH, /* of redis-string only, so the last */
    DLI_REDIS_OPT_COUNT
};

#define DLI_REDIS_TEXT(index, key, text, line) \
    [index] = {.name = key, .type = DL_OPTION_STRING, .default_text = text, .help = line}
#define DLI_REDIS_NUMBER(index, key, kind, text, low, high, line) \
    [index] = {.name = key, .type = kind, .default_text = text, .min = low, .max = high, .help = line}
#define DLI_REDIS_SWITCH(index, key, text, line) \
    [index] = {.name = key, .type = DL_OPTION_BOOL, .default_text = text, .help = line}

#define DLI_REDIS_BORROW_MS 1000 /* the default */
#define DLI_REDIS_WITHOUT_EFFECT "Accepted, and without effect: requests share "

/* Those of all; they differ in the prefix, and in what max_total means. */
#define DLI_REDIS_COMMON_OPTIONS(default_prefix, max_total)                                                  \
    DLI_REDIS_TEXT(DLI_REDIS_OPT_USERNAME, "username", NULL, "The user (ACL); unset: as the URL says"),      \
        [DLI_REDIS_OPT_PASSWORD] = {.name = "password",                                                      \
                                    .type = DL_OPTION_SECRET,                                                \
                                    .help = "The password; unset: as the URL says"},                         \
        DLI_REDIS_TEXT(DLI_REDIS_OPT_PREFIX, "prefix", default_prefix,                                       \
                       "Stands before every lock's name in its key, at most 128 bytes"),                     \
        DLI_REDIS_TEXT(                                                                                      \
            DLI_REDIS_OPT_TOKEN_KEY, "token_key", "dlock_tokens",                                            \
            "The key of the counter that fencing tokens are drawn from, the same for all clients"),          \
        DLI_REDIS_NUMBER(DLI_REDIS_OPT_CONNECT_TIMEOUT, "connect_timeout", DL_OPTION_DURATION, "1s", 10,     \
                         60000, "Bound of resolving the name, connecting and the handshake together"),       \
        DLI_REDIS_NUMBER(DLI_REDIS_OPT_KEEPALIVE, "keepalive", DL_OPTION_DURATION, "15s", 0, 3600000,        \
                         "TCP keepalive: a connection idle for so long is probed; 0s: off"),                 \
        DLI_REDIS_NUMBER(DLI_REDIS_OPT_MAX_TOTAL, "max_total", DL_OPTION_INT, "64", 1, 10000, max_total),    \
        DLI_REDIS_NUMBER(DLI_REDIS_OPT_MAX_IDLE, "max_idle", DL_OPTION_INT, NULL, 0, 10000,                  \
                         DLI_REDIS_WITHOUT_EFFECT "connections"),                                            \
        DLI_REDIS_NUMBER(DLI_REDIS_OPT_MIN_IDLE, "min_idle", DL_OPTION_INT, "0", 0, 10000,                   \
                         DLI_REDIS_WITHOUT_EFFECT "connections"),                                            \
        DLI_REDIS_SWITCH(DLI_REDIS_OPT_TEST_ON_BORROW, "test_on_borrow", "false",                            \
                         "PING a connection that was idle before it is used, which costs a round trip"),     \
        DLI_REDIS_SWITCH(DLI_REDIS_OPT_TEST_WHILE_IDLE, "test_while_idle", "false",                          \
                         DLI_REDIS_WITHOUT_EFFECT "connections"),                                            \
        DLI_REDIS_NUMBER(DLI_REDIS_OPT_BORROW_TIMEOUT, "borrow_timeout", DL_OPTION_DURATION, "1s", 1,        \
                         600000, DLI_REDIS_WITHOUT_EFFECT "connections"),                                    \
        DLI_REDIS_NUMBER(DLI_REDIS_OPT_IDLE_TIMEOUT, "idle_timeout", DL_OPTION_DURATION, "1m", 1, 86400000,  \
                         "A connection idle for so long is made anew before it is used"),                    \
        DLI_REDIS_NUMBER(DLI_REDIS_OPT_IDLE_CHECK, "idle_check", DL_OPTION_DURATION, "30s", 10, 3600000,     \
                         "A connection idle for so long gets a PING before it is used"),                     \
        DLI_REDIS_TEXT(DLI_REDIS_OPT_TLS_CA, "tls_ca", NULL,                                                 \
                       "File of the certificates that are trusted (PEM); unset: the system's"),              \
        DLI_REDIS_TEXT(DLI_REDIS_OPT_TLS_CERT, "tls_cert", NULL, "File of this client's certificate (PEM)"), \
        DLI_REDIS_TEXT(DLI_REDIS_OPT_TLS_KEY, "tls_key", NULL, "File of this client's private key (PEM)"),   \
        DLI_REDIS_TEXT(DLI_REDIS_OPT_TLS_SERVER_NAME, "tls_server_name", NULL,                               \
                       "The name that the server's certificate has to bear; unset: the host"),               \
        DLI_REDIS_SWITCH(DLI_REDIS_OPT_TLS_VERIFY, "tls_verify", "true",                                     \
                         "Verify the server's certificate; off is for tests only")

/* Of a driver of one server. */
#define DLI_REDIS_OPTIONS(default_prefix)                                                              \
    [DLI_REDIS_OPT_URL] = {.name = "url",                                                              \
                           .type = DL_OPTION_STRING,                                                   \
                           .required = 1,                                                              \
                           .help = "The server: redis://host:port/database, rediss://... (TLS) or "    \
                                   "unix:///path?db=N"},                                               \
    DLI_REDIS_NUMBER(DLI_REDIS_OPT_DATABASE, "database", DL_OPTION_INT, NULL, 0, 65535,                \
                     "The number of the database; unset: as the URL says, or 0"),                      \
    DLI_REDIS_NUMBER(DLI_REDIS_OPT_CONNECTIONS, "connections", DL_OPTION_INT, "1", 1, 4,               \
                     "So many that the requests of all threads share, made as they are needed; with "  \
                     "min_replicas twice as many more"),                                               \
    DLI_REDIS_NUMBER(DLI_REDIS_OPT_MIN_REPLICAS, "min_replicas", DL_OPTION_INT, "0", 0, 100,           \
                     "So many replicas have to acknowledge a lock before it counts as taken (WAIT)"),  \
    DLI_REDIS_NUMBER(DLI_REDIS_OPT_REPLICA_TIMEOUT, "replica_timeout", DL_OPTION_DURATION, "500ms", 1, \
                     60000, "How long they may take; less than call_timeout"),                         \
    [DLI_REDIS_OPT_REPLICA_SHORTFALL] =                                                                \
        {.name = "replica_shortfall",                                                                  \
         .type = DL_OPTION_STRING,                                                                     \
         .default_text = "refuse",                                                                     \
         .choices = "refuse|warn",                                                                     \
         .help = "When too few acknowledge: refuse the lock, or take it and warn"},                    \
    DLI_REDIS_COMMON_OPTIONS(default_prefix, "In place of connections, where it is less")

#endif
