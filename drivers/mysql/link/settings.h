/* settings.h - what a new session is told, and what it is asked about its server. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_SETTINGS_H
#define DLI_MYSQL_SETTINGS_H

#include "conn.h"

/* Why several servers that take writes grant no locks. Still fits an error's message behind a label. */
#define DLI_MYSQL_TWO_WRITERS \
    "row locks end at each node, so two nodes can grant the same lock; the commits clash later"

/* On a connection fresh from the library; blocks within its bounds. `label`: of the endpoint, for messages.
 * DL_OK: facts is filled. The statuses of dli_mysql_conn_make. */
dl_status_t dli_mysql_settings_apply(MYSQL *mysql, const char *label, dli_mysql_role_t role,
                                     int64_t wait_timeout_s, dli_mysql_facts_t *facts, dl_error_t *err);

#endif
