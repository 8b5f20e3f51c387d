/* variables.c - the server's global variables that decide what a lock on it is worth. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "link/settings.h"
#include "setup.h"

/* SHOW needs no right and, unlike SELECT @@name, minds no name that a server does not know. */
static const char asked[] = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ("
                            "'binlog_format','log_bin','sync_binlog','innodb_flush_log_at_trx_commit',"
                            "'innodb_read_only','innodb_rollback_on_timeout'," DLI_MYSQL_WRITERS ","
                            "'group_replication_member_expel_timeout',"
                            "'max_connections','max_user_connections',"
                            "'rpl_semi_sync_master_enabled','rpl_semi_sync_source_enabled')";

dl_status_t dli_mysql_settings_ask(dli_mysql_t *mysql, uint64_t deadline_ns, dli_mysql_settings_t *settings,
                                   dl_error_t *err) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql, "$t", asked);
    dl_status_t status = dli_mysql_setup_ask(mysql, &sql, deadline_ns, &settings->answer, err);
    if (status == DL_OK && settings->answer.error != 0) {
        status = dli_mysql_refused(settings->answer.error, settings->answer.message,
                                   "asking for the server's settings", err);
    }
    return status;
}

void dli_mysql_settings_free(dli_mysql_settings_t *settings) {
    dli_mysql_answer_free(&settings->answer);
}

const char *dli_mysql_setting(const dli_mysql_settings_t *settings, const char *name) {
    return dli_mysql_value(settings->answer.rows, name);
}

bool dli_mysql_setting_is_on(const dli_mysql_settings_t *settings, const char *name) {
    return dli_mysql_is_on(dli_mysql_setting(settings, name));
}

int64_t dli_mysql_setting_number(const dli_mysql_settings_t *settings, const char *name, int64_t otherwise) {
    const char *value = dli_mysql_setting(settings, name);
    char *end = NULL;
    long long number = value != NULL ? strtoll(value, &end, 10) : 0;
    return value != NULL && end != value && *end == '\0' ? number : otherwise;
}
