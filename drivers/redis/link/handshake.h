/* handshake.h - what is said first on a connection, and what the answers tell about the server. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_HANDSHAKE_H
#define DLI_REDIS_HANDSHAKE_H

#include "conn.h"

/* The reply that comes next. */
typedef enum dli_handshake {
    DLI_HANDSHAKE_HELLO,
    DLI_HANDSHAKE_SELECT, /* passed over for database 0 */
    DLI_HANDSHAKE_SERVER,
    DLI_HANDSHAKE_SCRIPT, /* a server that holds back writes leaves it unanswered until then */
    DLI_HANDSHAKE_ROLE,   /* what it is after that */
    DLI_HANDSHAKE_DONE
} dli_handshake_t;

/* The whole of it, as one pipeline. `label` says who we are, for people. */
void dli_handshake_write(const dli_endpoint_t *endpoint, const char *label, dli_commands_t *commands);
/* Takes the next reply in, from DLI_HANDSHAKE_HELLO to DLI_HANDSHAKE_DONE. Statuses as dli_conn_step. */
dl_status_t dli_handshake_read(dli_handshake_t *at, const dli_endpoint_t *endpoint, const redisReply *reply,
                               dli_facts_t *facts, dl_error_t *err);

#endif
