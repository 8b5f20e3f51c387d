/* options.h - what the configuration may say of a single server, and blocks that redlock's table has too. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_OPTIONS_H
#define DLI_REDIS_OPTIONS_H

/* Options that lie side by side, in this order, in every table that has them: those of connections, of TLS.
 */
#define DLI_REDIS_SHARING_BLOCK(opt)                                                              \
    opt##_MAX_TOTAL, opt##_MAX_IDLE, opt##_MIN_IDLE, opt##_TEST_ON_BORROW, opt##_TEST_WHILE_IDLE, \
        opt##_BORROW_TIMEOUT, opt##_IDLE_TIMEOUT, opt##_IDLE_CHECK
#define DLI_REDIS_TLS_BLOCK(opt) \
    opt##_TLS_CA, opt##_TLS_CERT, opt##_TLS_KEY, opt##_TLS_SERVER_NAME, opt##_TLS_VERIFY

/* Places within a block. */
enum { DLI_REDIS_SHARING_BLOCK(DLI_BLOCK) };
enum { DLI_REDIS_TLS_BLOCK(DLI_BLOCK) };

enum {
    DLI_REDIS_OPT_URL,
    DLI_REDIS_OPT_USERNAME,
    DLI_REDIS_OPT_PASSWORD,
    DLI_REDIS_OPT_DATABASE,
    DLI_REDIS_OPT_PREFIX,
    DLI_REDIS_OPT_TOKEN_KEY,
    DLI_REDIS_OPT_CONNECT_TIMEOUT,
    DLI_REDIS_OPT_KEEPALIVE,
    DLI_REDIS_OPT_CONNECTIONS,
    DLI_REDIS_SHARING_BLOCK(DLI_REDIS_OPT),
    DLI_REDIS_OPT_MIN_REPLICAS,
    DLI_REDIS_OPT_REPLICA_TIMEOUT,
    DLI_REDIS_OPT_REPLICA_SHORTFALL,
    DLI_REDIS_TLS_BLOCK(DLI_REDIS_OPT),
    DLI_REDIS_OPT_ALSO_PUBLISH, /* of redis-string only, so the last */
    DLI_REDIS_OPT_COUNT
};

#define DLI_REDIS_TEXT(index, key, text, line) \
    [index] = {.name = key, .type = DL_OPTION_STRING, .default_text = text, .help = line}
#define DLI_REDIS_SECRET(index, key, line) [index] = {.name = key, .type = DL_OPTION_SECRET, .help = line}
#define DLI_REDIS_NUMBER(index, key, kind, text, low, high, line) \
    [index] = {.name = key, .type = kind, .default_text = text, .min = low, .max = high, .help = line}
#define DLI_REDIS_SWITCH(index, key, text, line) \
    [index] = {.name = key, .type = DL_OPTION_BOOL, .default_text = text, .help = line}

/* Parts of the initialisers; `opt` is what the names of the table's places begin with. */
#define DLI_REDIS_USER_OPTIONS(opt)                                                             \
    DLI_REDIS_TEXT(opt##_USERNAME, "username", NULL, "The user (ACL); unset: as the URL says"), \
        DLI_REDIS_SECRET(opt##_PASSWORD, "password", "The password; unset: as the URL says")

#define DLI_REDIS_KEY_OPTIONS(opt, default_prefix)                                   \
    DLI_REDIS_TEXT(opt##_PREFIX, "prefix", default_prefix,                           \
                   "Stands before every lock's name in its key, at most 128 bytes"), \
        DLI_REDIS_TEXT(                                                              \
            opt##_TOKEN_KEY, "token_key", "dlock_tokens",                            \
            "The key of the counter that fencing tokens are drawn from, the same for all clients")

#define DLI_REDIS_WAY_OPTIONS(opt)                                                                  \
    DLI_REDIS_NUMBER(opt##_CONNECT_TIMEOUT, "connect_timeout", DL_OPTION_DURATION, "1s", 10, 60000, \
                     "Bound of resolving the name, connecting and the handshake together"),         \
        DLI_REDIS_NUMBER(opt##_KEEPALIVE, "keepalive", DL_OPTION_DURATION, "15s", 0, 3600000,       \
                         "TCP keepalive: a connection idle for so long is probed; 0s: off")

/* Requests share connections. */
#define DLI_REDIS_BORROW_MS 1000 /* the default */
#define DLI_REDIS_WITHOUT_EFFECT "Accepted, and without effect: requests share connections"
#define DLI_REDIS_IDLE_OPTIONS(opt)                                                                        \
    DLI_REDIS_NUMBER(opt##_MAX_IDLE, "max_idle", DL_OPTION_INT, NULL, 0, 10000, DLI_REDIS_WITHOUT_EFFECT), \
        DLI_REDIS_NUMBER(opt##_MIN_IDLE, "min_idle", DL_OPTION_INT, "0", 0, 10000,                         \
                         DLI_REDIS_WITHOUT_EFFECT),                                                        \
        DLI_REDIS_SWITCH(opt##_TEST_ON_BORROW, "test_on_borrow", "false",                                  \
                         "PING a connection that was idle before it is used, which costs a round trip"),   \
        DLI_REDIS_SWITCH(opt##_TEST_WHILE_IDLE, "test_while_idle", "false", DLI_REDIS_WITHOUT_EFFECT),     \
        DLI_REDIS_NUMBER(opt##_BORROW_TIMEOUT, "borrow_timeout", DL_OPTION_DURATION, "1s", 1, 600000,      \
                         DLI_REDIS_WITHOUT_EFFECT),                                                        \
        DLI_REDIS_NUMBER(opt##_IDLE_TIMEOUT, "idle_timeout", DL_OPTION_DURATION, "1m", 1, 86400000,        \
                         "A connection idle for so long is made anew before it is used"),                  \
        DLI_REDIS_NUMBER(opt##_IDLE_CHECK, "idle_check", DL_OPTION_DURATION, "30s", 10, 3600000,           \
                         "A connection idle for so long gets a PING before it is used")
#define DLI_REDIS_SHARED_OPTIONS(opt)                                                            \
    DLI_REDIS_NUMBER(opt##_CONNECTIONS, "connections", DL_OPTION_INT, "2", 1, 4,                 \
                     "So many that the requests of all threads share, made as they are needed"), \
        DLI_REDIS_NUMBER(opt##_MAX_TOTAL, "max_total", DL_OPTION_INT, "64", 1, 10000,            \
                         "In place of connections, where it is less"),                           \
        DLI_REDIS_IDLE_OPTIONS(opt)
/* One to each node. */
#define DLI_REDIS_NODE_OPTIONS(opt)                                                               \
    DLI_REDIS_NUMBER(opt##_MAX_TOTAL, "max_total", DL_OPTION_INT, "64", 1, 10000,                 \
                     "Accepted, and without effect: requests share one connection to each node"), \
        DLI_REDIS_IDLE_OPTIONS(opt)

#define DLI_REDIS_TLS_OPTIONS(opt)                                                                   \
    DLI_REDIS_TEXT(opt##_TLS_CA, "tls_ca", NULL,                                                     \
                   "File of the certificates that are trusted (PEM); unset: the system's"),          \
        DLI_REDIS_TEXT(opt##_TLS_CERT, "tls_cert", NULL, "File of this client's certificate (PEM)"), \
        DLI_REDIS_TEXT(opt##_TLS_KEY, "tls_key", NULL, "File of this client's private key (PEM)"),   \
        DLI_REDIS_TEXT(opt##_TLS_SERVER_NAME, "tls_server_name", NULL,                               \
                       "The name that the server's certificate has to bear; unset: the host"),       \
        DLI_REDIS_SWITCH(opt##_TLS_VERIFY, "tls_verify", "true",                                     \
                         "Verify the server's certificate; off is for tests only")

/* Of a driver's table, the options that both have; they differ in the prefix. */
#define DLI_REDIS_OPTIONS(default_prefix)                                                              \
    [DLI_REDIS_OPT_URL] = {.name = "url",                                                              \
                           .type = DL_OPTION_STRING,                                                   \
                           .required = 1,                                                              \
                           .help = "The server: redis://host:port/database, rediss://... (TLS) or "    \
                                   "unix:///path?db=N"},                                               \
    DLI_REDIS_USER_OPTIONS(DLI_REDIS_OPT),                                                             \
    DLI_REDIS_NUMBER(DLI_REDIS_OPT_DATABASE, "database", DL_OPTION_INT, NULL, 0, 65535,                \
                     "The number of the database; unset: as the URL says, or 0"),                      \
    DLI_REDIS_KEY_OPTIONS(DLI_REDIS_OPT, default_prefix), DLI_REDIS_WAY_OPTIONS(DLI_REDIS_OPT),        \
    DLI_REDIS_SHARED_OPTIONS(DLI_REDIS_OPT),                                                           \
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
    DLI_REDIS_TLS_OPTIONS(DLI_REDIS_OPT)

#endif
