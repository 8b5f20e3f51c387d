/* answer.c - reads answers, and turns servers' error numbers into statuses. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "answer.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

void dli_mysql_answer_free(dli_mysql_answer_t *answer) {
    if (answer->rows != NULL) {
        mysql_free_result(answer->rows);
    }
    memset(answer, 0, sizeof *answer);
}

MYSQL_ROW dli_mysql_answer_row(dli_mysql_answer_t *answer, unsigned long **lengths) {
    /* Oracle's library does not bear NULL. */
    MYSQL_ROW row = answer->rows != NULL ? mysql_fetch_row(answer->rows) : NULL;
    if (lengths != NULL) {
        *lengths = row != NULL ? mysql_fetch_lengths(answer->rows) : NULL;
    }
    return row;
}

const char *dli_mysql_value(MYSQL_RES *rows, const char *name) {
    MYSQL_ROW row = NULL;
    if (rows != NULL) {
        mysql_data_seek(rows, 0);
        while ((row = mysql_fetch_row(rows)) != NULL && (row[0] == NULL || strcasecmp(row[0], name) != 0)) {}
    }
    return row == NULL ? NULL : row[1] != NULL ? row[1] : "";
}

bool dli_mysql_is_on(const char *value) {
    return value != NULL && strcmp(value, "0") != 0 && strcasecmp(value, "OFF") != 0 && value[0] != '\0';
}

uint64_t dli_mysql_number(const char *column) {
    uint64_t number = 0;
    if (column == NULL || *column == '\0') {
        return 0;
    }
    for (; *column != '\0'; column++) {
        unsigned digit = (unsigned)(unsigned char)*column - '0';
        if (digit > 9 || number > (UINT64_MAX - digit) / 10) {
            return 0;
        }
        number = number * 10 + digit;
    }
    return number;
}

static bool is_letter(char c) {
    return isalnum((unsigned char)c) != 0;
}

void dli_mysql_hide(const dli_mysql_hidden_t *hidden, const char *text, char *to, size_t size) {
    size_t len = strlen(hidden->name), used = 0;
    for (const char *at = text; *at != '\0' && used + 1 < size;) {
        bool begins = at == text || (at[-1] != '_' && !is_letter(at[-1]));
        /* Servers may change the case of a table's name. */
        if (len > 0 && begins && strncasecmp(at, hidden->name, len) == 0 && !is_letter(at[len])) {
            used += (size_t)snprintf(to + used, size - used, "%s", hidden->shown);
            at += len;
        } else {
            to[used++] = *at++;
        }
    }
    to[used < size ? used : size - 1] = '\0';
}

bool dli_mysql_is_library_error(unsigned error) {
    return (error >= 2000 && error < 3000) || (error >= 5000 && error < 6000);
}

bool dli_mysql_is_contention(unsigned error) {
    switch (error) {
    case DLI_MYSQL_LOCK_WAIT_TIMEOUT:
    case DLI_MYSQL_DEADLOCK:
    case DLI_MYSQL_LOCK_NOWAIT:
    case 1020: /* MariaDB: the row has changed since it was read */
    case 3101: /* MySQL: a member of the group changed it first */
        return true;
    default:
        return false;
    }
}

/* What to say besides the server's own words. */
typedef struct meaning {
    unsigned short error;
    dl_status_t status;
    const char *mend; /* NULL: nothing */
} meaning_t;

#define RUN_INIT "; `dlock init` makes what is missing"
#define GRANT "; the account lacks a right, or the name is wrong: `dlock init --print` shows what it needs"
#define READ_ONLY "; locks need a server that can be written to"

static const meaning_t meanings[] = {
    {DLI_MYSQL_NO_SUCH_TABLE, DL_ECONFIG, RUN_INIT},
    {DLI_MYSQL_NO_SUCH_COLUMN, DL_ECONFIG, "; the table is not of this library: see `dlock init`"},
    {DLI_MYSQL_NO_SUCH_DATABASE, DL_ECONFIG, "; make the database, then run `dlock init`"},
    {1046, DL_ECONFIG, "; name the database, then run `dlock init`"},
    {1109, DL_ECONFIG, RUN_INIT},
    {1153, DL_ECONFIG, "; the server's max_allowed_packet is too small"},
    {3159, DL_ECONFIG, "; the server wants TLS"},
    {1044, DL_EAUTH, GRANT},
    {1045, DL_EAUTH, "; look at user and password, and at what the account demands (host, TLS)"},
    {1129, DL_EAUTH, NULL}, /* this host is blocked */
    {1130, DL_EAUTH, NULL}, /* this host may not connect */
    {1142, DL_EAUTH, GRANT},
    {1143, DL_EAUTH, GRANT},
    {1227, DL_EAUTH, GRANT},
    {1251, DL_EAUTH, NULL},
    {1370, DL_EAUTH, GRANT},
    {1524, DL_EAUTH, NULL}, /* login plugin not loaded */
    {1698, DL_EAUTH, NULL},
    {1820, DL_EAUTH, NULL}, /* the password has to be changed */
    {1862, DL_EAUTH, NULL}, /* it has expired */
    {3118, DL_EAUTH, NULL}, /* account locked, MySQL */
    {3955, DL_EAUTH, NULL}, /* for a while */
    {4151, DL_EAUTH, NULL}, /* account locked, MariaDB */
    {DLI_MYSQL_READ_ONLY_OR_SO, DL_ENOTSUP, READ_ONLY},
    {1792, DL_ENOTSUP, READ_ONLY},
    {1836, DL_ENOTSUP, READ_ONLY},
    {3100, DL_ENOTSUP, READ_ONLY}, /* refused by replication */
    {DLI_MYSQL_OUT_OF_RANGE, DL_ENOTSUP, "; if it is about read_only, the server has become read-only"},
    {1021, DL_ELIMIT, NULL}, /* disk full */
    {1037, DL_ELIMIT, NULL},
    {1038, DL_ELIMIT, NULL},
    {1040, DL_ELIMIT, "; the server's max_connections is reached"},
    {1041, DL_ELIMIT, NULL},
    {1114, DL_ELIMIT, NULL}, /* table full */
    {1135, DL_ELIMIT, NULL}, /* no thread */
    {1203, DL_ELIMIT, "; the account's max_user_connections is reached"},
    {1206, DL_ELIMIT, NULL}, /* too many locks */
    {1226, DL_ELIMIT, NULL}, /* resources of the account */
    {DLI_MYSQL_STATEMENT_TIME, DL_EIO, NULL},
    {DLI_MYSQL_QUERY_TIMEOUT, DL_EIO, NULL},
    {DLI_MYSQL_INTERRUPTED, DL_EIO, NULL},
    {DLI_MYSQL_KILLED, DL_EIO, NULL},
    {DLI_MYSQL_IDLE_TOO_LONG, DL_EIO, NULL},
    {1047, DL_EIO, NULL}, /* a cluster's node that is not ready */
    {1053, DL_EIO, NULL}, /* shutting down */
    {1077, DL_EIO, NULL},
    {1079, DL_EIO, NULL},
    {1080, DL_EIO, NULL},
    {1152, DL_EIO, NULL},
    {1184, DL_EIO, NULL},
    {3032, DL_EIO, NULL}, /* offline mode */
    {3168, DL_EIO, NULL}, /* not available */
    {3169, DL_EIO, NULL}, /* session killed */
};

bool dli_mysql_is_wait_over(unsigned error) {
    return error == DLI_MYSQL_LOCK_WAIT_TIMEOUT || error == DLI_MYSQL_LOCK_NOWAIT ||
           error == DLI_MYSQL_STATEMENT_TIME || error == DLI_MYSQL_QUERY_TIMEOUT ||
           error == DLI_MYSQL_INTERRUPTED || error == DLI_MYSQL_DEADLOCK;
}

dl_status_t dli_mysql_refused(unsigned error, const char *message, const char *what, dl_error_t *err) {
    dl_status_t status = dli_mysql_is_contention(error) ? DL_EIO : DL_EPROTO;
    const char *mend = "";
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
        if (meanings[i].error == error) {
            status = meanings[i].status;
            mend = meanings[i].mend != NULL ? meanings[i].mend : "";
        }
    }
    return dl_driver_fail(err, status, (int)error, "%s: error %u: %s%s", what, error, message, mend);
}
