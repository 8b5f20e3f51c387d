/* library.h - the two client libraries, MariaDB Connector/C and Oracle's libmysqlclient, made alike. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_LIBRARY_H
#define DLI_MYSQL_LIBRARY_H

#include <mysql.h>

#include "drivers/unforked.h"
#include "endpoint.h"

/* Nothing else of this tree branches on the library but library.c and dial.c. */

/* Begins the library's use, once a process. The disposition of SIGPIPE, which both libraries change for the
 * whole process, is left as it was. DL_OK, DL_ENOMEM. Any thread. */
dl_status_t dli_mysql_library_start(dl_error_t *err);
/* "MariaDB Connector/C 3.3.8" or "MySQL client library 9.7.0". */
const char *dli_mysql_library_name(void);

/* A new handle with everything set that has to be before connecting: bounds in whole seconds (at least what
 * is asked for; the real deadlines are elsewhere), no LOCAL INFILE, no reconnect, utf8mb4, packets of at most
 * 16 MiB, TLS. NULL with err: DL_ENOMEM, DL_ECONFIG. */
MYSQL *dli_mysql_library_handle(const dli_mysql_endpoint_t *endpoint, dl_error_t *err);
/* Connects; blocks for as long as the bounds let it. true: connected, and as safely as the endpoint wants.
 * false: err says why, mysql_errno is in err->native. In a thread of ours: what is in OpenSSL's list of the
 * thread could be taken for the library's, and its errors stay there. */
bool dli_mysql_library_connect(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint, dl_error_t *err);
/* dial.c: its part that connects. *has_no_tls: the server was left because it has none, and it is demanded.
 */
MYSQL *dli_mysql_library_dial(MYSQL *mysql, const dli_mysql_endpoint_t *endpoint, bool *has_no_tls);
/* The socket's descriptor. */
int dli_mysql_library_fd(const MYSQL *mysql);
/* Has the library read on, beyond the end of an answer? As far as it lets us see. */
bool dli_mysql_library_has_more(const MYSQL *mysql);

/* Before a thread ends that used the library. */
void dli_mysql_library_thread_end(void);

/* Around each call that may use a socket: a broken one must not send SIGPIPE to a program that did not ask
 * for it. Nothing else of the thread's signals changes. And over TLS the program's errors in OpenSSL's list
 * of the thread are none of the library's, nor are its errors the program's: the list is emptied. A fork()
 * waits meanwhile. */
typedef struct dli_mysql_quiet {
    int masked; /* by us, to be undone */
    bool has_tls;
    dli_unforked_t what;
} dli_mysql_quiet_t;
/* mysql: connected; NULL: it is not yet. what: DLI_UNFORKED_OPENSSL, or LIBRARY of who waits for the server
 * there. */
void dli_mysql_quiet_begin(dli_mysql_quiet_t *quiet, const MYSQL *mysql, dli_unforked_t what);
void dli_mysql_quiet_end(dli_mysql_quiet_t *quiet);

#endif
