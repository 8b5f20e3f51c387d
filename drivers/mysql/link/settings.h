/* settings.h - what a new session is told, and what it is asked about its server. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_SETTINGS_H
#define DLI_MYSQL_SETTINGS_H

#include "conn.h"

/* The global variables that tell who else takes writes, now or once a group has fallen apart. */
#define DLI_MYSQL_WRITERS                                                     \
    "'wsrep_on','wsrep_cluster_address','wsrep_provider',"                    \
    "'group_replication_group_name','group_replication_single_primary_mode'," \
    "'group_replication_unreachable_majority_timeout'"

/* On a connection fresh from the library; blocks within its bounds. `label`: of the endpoint, for messages.
 * DL_OK: facts is filled. The statuses of dli_mysql_conn_make. */
dl_status_t dli_mysql_settings_apply(MYSQL *mysql, const char *label, dli_mysql_role_t role,
                                     int64_t wait_timeout_s, dli_mysql_facts_t *facts, dl_error_t *err);
/* On a server that is refused a granted lock would be none; with DLI_MYSQL_ROLE_HOLDING: one that is a row
 * lock. DL_OK, DL_ENOTSUP. */
dl_status_t dli_mysql_judge_writers(MYSQL_RES *variables, const char *label, dli_mysql_role_t role,
                                    dl_error_t *err);

#endif
