/* answer.h - what a server said to one statement, and what its error numbers mean. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_ANSWER_H
#define DLI_MYSQL_ANSWER_H

#include <mysql.h>
#include <stdbool.h>

#include "dlock/driver.h"

/* Error numbers of servers and of client libraries. Written out, because each library's header lacks some. */
enum {
    DLI_MYSQL_LOCK_WAIT_TIMEOUT = 1205, /* also MariaDB's answer to NOWAIT */
    DLI_MYSQL_DEADLOCK = 1213,          /* the transaction was rolled back */
    DLI_MYSQL_LOCK_NOWAIT = 3572,       /* MySQL's answer to NOWAIT */
    DLI_MYSQL_STATEMENT_TIME = 1969,    /* MariaDB: max_statement_time is over */
    DLI_MYSQL_QUERY_TIMEOUT = 3024,     /* MySQL: MAX_EXECUTION_TIME is over */
    DLI_MYSQL_INTERRUPTED = 1317,       /* KILL QUERY */
    DLI_MYSQL_KILLED = 1927,            /* MariaDB: KILL CONNECTION */
    DLI_MYSQL_NO_SUCH_THREAD = 1094,
    DLI_MYSQL_NOT_YOURS = 1095, /* the thread is another account's */
    DLI_MYSQL_NO_SUCH_TABLE = 1146,
    DLI_MYSQL_NO_SUCH_DATABASE = 1049,
    DLI_MYSQL_NO_SUCH_COLUMN = 1054,
    DLI_MYSQL_IDLE_TOO_LONG = 4031,   /* MySQL: wait_timeout was over */
    DLI_MYSQL_OUT_OF_RANGE = 1690,    /* by DLI_MYSQL_WRITABLE: the server only reads */
    DLI_MYSQL_READ_ONLY_OR_SO = 1290, /* an option of the server prevents it; read_only is one */
    /* of the libraries */
    DLI_MYSQL_GONE = 2006, /* before it was sent */
    DLI_MYSQL_NO_MEMORY = 2008,
    DLI_MYSQL_LOST = 2013, /* while it was on its way */
    DLI_MYSQL_TLS_FAILED = 2026,
    DLI_MYSQL_MALFORMED = 2027,
};

/* Is it a library's own, and not a server's? */
bool dli_mysql_is_library_error(unsigned error);

/* A name that messages show in other words, since a variable holds it; servers repeat it in their errors. */
typedef struct dli_mysql_hidden {
    char name[64]; /* "": none. Of letters, digits and _ */
    char shown[96];
} dli_mysql_hidden_t;

/* Copies the text, with `shown` wherever the name stands or another begins with it and '_'; cuts it. */
void dli_mysql_hide(const dli_mysql_hidden_t *hidden, const char *text, char *to, size_t size);

/* Zeroed: nothing yet. */
typedef struct dli_mysql_answer {
    MYSQL_RES *rows;    /* of a SELECT or SHOW, all here; NULL otherwise; dli_mysql_answer_free frees */
    uint64_t affected;  /* rows found by UPDATE and DELETE, changed or not (CLIENT_FOUND_ROWS) */
    uint64_t insert_id; /* LAST_INSERT_ID(expr) of this statement; 0: none */
    unsigned error;     /* 0, or the server's error number: the statement did nothing */
    char message[256];  /* of the error */
} dli_mysql_answer_t;

void dli_mysql_answer_free(dli_mysql_answer_t *answer);
/* The next row, or NULL; *lengths (may be NULL) are of its columns. */
MYSQL_ROW dli_mysql_answer_row(dli_mysql_answer_t *answer, unsigned long **lengths);
/* Of the rows that SHOW VARIABLES and SHOW STATUS answer with: the value beside a name, or NULL. */
const char *dli_mysql_value(MYSQL_RES *rows, const char *name);
/* Does a server mean by this value that something is on? NULL is not. */
bool dli_mysql_is_on(const char *value);
/* A column as a number; 0 where it is NULL or none. */
uint64_t dli_mysql_number(const char *column);

/* Did another transaction have the row (or the rollback of a deadlock hit us), so that trying again helps? */
bool dli_mysql_is_contention(unsigned error);
/* Was a wait for a row over before that was free? */
bool dli_mysql_is_wait_over(unsigned error);
/*
 * The status for a server's error, with err filled: `what` is what was tried ("taking 'x'"). No table, column
 * or database: DL_ECONFIG, and the text names `dlock init`. Rights and logins: DL_EAUTH. Read-only server,
 * replica: DL_ENOTSUP. Too many connections, resources: DL_ELIMIT. Contention: DL_EIO. Shutting down: DL_EIO.
 * Anything else: DL_EPROTO.
 */
dl_status_t dli_mysql_refused(unsigned error, const char *message, const char *what, dl_error_t *err);

#endif
