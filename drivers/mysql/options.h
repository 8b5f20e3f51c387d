/* options.h - what the configuration may say of a MySQL or MariaDB server: for all three drivers. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_OPTIONS_H
#define DLI_MYSQL_OPTIONS_H

enum {
    DLI_MYSQL_OPT_HOST,
    DLI_MYSQL_OPT_PORT,
    DLI_MYSQL_OPT_SOCKET,
    DLI_MYSQL_OPT_USER,
    DLI_MYSQL_OPT_PASSWORD,
    DLI_MYSQL_OPT_DATABASE,
    DLI_MYSQL_OPT_TABLE,
    DLI_MYSQL_OPT_CREATE,
    DLI_MYSQL_OPT_PURGE_AFTER,
    DLI_MYSQL_OPT_CONNECT_TIMEOUT,
    DLI_MYSQL_OPT_MAX_TOTAL,
    DLI_MYSQL_OPT_MAX_IDLE,
    DLI_MYSQL_OPT_MIN_IDLE,
    DLI_MYSQL_OPT_TEST_ON_BORROW,
    DLI_MYSQL_OPT_TEST_WHILE_IDLE,
    DLI_MYSQL_OPT_BORROW_TIMEOUT,
    DLI_MYSQL_OPT_IDLE_TIMEOUT,
    DLI_MYSQL_OPT_IDLE_CHECK,
    DLI_MYSQL_OPT_TLS,
    DLI_MYSQL_OPT_TLS_CA,
    DLI_MYSQL_OPT_TLS_CERT,
    DLI_MYSQL_OPT_TLS_KEY,
    DLI_MYSQL_OPT_COUNT
};

#define DLI_MYSQL_TEXT(index, key, text, line) \
    [index] = {.name = key, .type = DL_OPTION_STRING, .default_text = text, .help = line}
#define DLI_MYSQL_NUMBER(index, key, kind, text, low, high, line) \
    [index] = {.name = key, .type = kind, .default_text = text, .min = low, .max = high, .help = line}
#define DLI_MYSQL_SWITCH(index, key, text, line) \
    [index] = {.name = key, .type = DL_OPTION_BOOL, .default_text = text, .help = line}

/* The initialiser of a driver's table; the drivers differ in the name of their table and in what fills the
 * pool. */
#define DLI_MYSQL_OPTIONS(default_table, max_total_line)                                                    \
    DLI_MYSQL_TEXT(DLI_MYSQL_OPT_HOST, "host", "localhost",                                                 \
                   "The server's name or address; the network is used for localhost too"),                  \
        DLI_MYSQL_NUMBER(DLI_MYSQL_OPT_PORT, "port", DL_OPTION_INT, "3306", 1, 65535, "Its TCP port"),      \
        DLI_MYSQL_TEXT(DLI_MYSQL_OPT_SOCKET, "socket", NULL,                                                \
                       "Path of the server's unix socket; host and port are not looked at then"),           \
        [DLI_MYSQL_OPT_USER] = {.name = "user",                                                             \
                                .type = DL_OPTION_STRING,                                                   \
                                .required = 1,                                                              \
                                .help = "The account to log in with"},                                      \
        [DLI_MYSQL_OPT_PASSWORD] = {.name = "password",                                                     \
                                    .type = DL_OPTION_SECRET,                                               \
                                    .help = "Its password; unset: none"},                                   \
        [DLI_MYSQL_OPT_DATABASE] = {.name = "database",                                                     \
                                    .type = DL_OPTION_STRING,                                               \
                                    .required = 1,                                                          \
                                    .help = "The database (schema) that the lock table is in"},             \
        DLI_MYSQL_TEXT(DLI_MYSQL_OPT_TABLE, "table", default_table,                                         \
                       "The lock table: 1 to 48 of letters, digits and _; the same for all clients"),       \
        DLI_MYSQL_SWITCH(DLI_MYSQL_OPT_CREATE, "create", "false",                                           \
                         "Make the table at open when it is missing; otherwise `dlock init` does"),         \
        DLI_MYSQL_NUMBER(                                                                                   \
            DLI_MYSQL_OPT_PURGE_AFTER, "purge_after", DL_OPTION_DURATION, "7d", 0, 31536000000,             \
            "Rows of names that nobody has locked for so long are deleted now and then; 0s: never"),        \
        DLI_MYSQL_NUMBER(                                                                                   \
            DLI_MYSQL_OPT_CONNECT_TIMEOUT, "connect_timeout", DL_OPTION_DURATION, "1s", 10, 60000,          \
            "Bound of making a connection, in whole seconds where the client library counts so"),           \
        DLI_MYSQL_NUMBER(DLI_MYSQL_OPT_MAX_TOTAL, "max_total", DL_OPTION_INT, "64", 1, 10000,               \
                         max_total_line),                                                                   \
        DLI_MYSQL_NUMBER(DLI_MYSQL_OPT_MAX_IDLE, "max_idle", DL_OPTION_INT, NULL, 0, 10000,                 \
                         "At most so many connections are kept while idle; unset: as many as max_total"),   \
        DLI_MYSQL_NUMBER(DLI_MYSQL_OPT_MIN_IDLE, "min_idle", DL_OPTION_INT, "0", 0, 10000,                  \
                         "So many connections are kept ready although idle_timeout is over"),               \
        DLI_MYSQL_SWITCH(DLI_MYSQL_OPT_TEST_ON_BORROW, "test_on_borrow", "false",                           \
                         "Ask a connection for a sign of life before each use, which costs a round trip"),  \
        DLI_MYSQL_SWITCH(DLI_MYSQL_OPT_TEST_WHILE_IDLE, "test_while_idle", "false",                         \
                         "Ask idle connections for a sign of life every idle_check"),                       \
        DLI_MYSQL_NUMBER(DLI_MYSQL_OPT_BORROW_TIMEOUT, "borrow_timeout", DL_OPTION_DURATION, "0s", 0,       \
                         600000,                                                                            \
                         "How long a call waits for a free connection when max_total are in use; "          \
                         "0s: as long as the call may take"),                                               \
        DLI_MYSQL_NUMBER(DLI_MYSQL_OPT_IDLE_TIMEOUT, "idle_timeout", DL_OPTION_DURATION, "1m", 1, 86400000, \
                         "A connection idle for so long is closed"),                                        \
        DLI_MYSQL_NUMBER(DLI_MYSQL_OPT_IDLE_CHECK, "idle_check", DL_OPTION_DURATION, "30s", 10, 3600000,    \
                         "How often idle connections are looked at"),                                       \
        [DLI_MYSQL_OPT_TLS] = {.name = "tls",                                                               \
                               .type = DL_OPTION_STRING,                                                    \
                               .default_text = "prefer",                                                    \
                               .choices = "off|prefer|require|verify",                                      \
                               .help =                                                                      \
                                   "off: in clear; prefer: if the server can; require: or no connection; "  \
                                   "verify: and only to the host that the certificate names"},              \
        DLI_MYSQL_TEXT(                                                                                     \
            DLI_MYSQL_OPT_TLS_CA, "tls_ca", NULL,                                                           \
            "With tls: verify, file of the certificates that are trusted (PEM); unset: the system's"),      \
        DLI_MYSQL_TEXT(DLI_MYSQL_OPT_TLS_CERT, "tls_cert", NULL,                                            \
                       "File of this client's certificate (PEM), with tls_key and tls: require or verify"), \
        DLI_MYSQL_TEXT(DLI_MYSQL_OPT_TLS_KEY, "tls_key", NULL, "File of its private key (PEM)"), {          \
        .name = NULL                                                                                        \
    }

#endif
