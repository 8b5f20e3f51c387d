/* client.c - opening and closing a client: options, connections, what no lock can live on. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "link/settings.h"
#include "setup.h"

/* ---- options ---------------------------------------------------------------------------------------- */

static dl_status_t read_table(dli_mysql_t *mysql, const dl_option_value_t *values, dl_error_t *err) {
    const char *table = values[DLI_MYSQL_OPT_TABLE].string;
    const char *shown = dl_driver_shown(mysql->env, values, DLI_MYSQL_OPT_TABLE);
    size_t len = table != NULL ? strlen(table) : 0;
    bool is_plain = len >= 1 && len <= DLI_MYSQL_TABLE_MAX;
    for (size_t i = 0; is_plain && i < len; i++) {
        is_plain = isascii((unsigned char)table[i]) && (isalnum((unsigned char)table[i]) || table[i] == '_');
    }
    if (!is_plain) {
        return dl_driver_fail(err, DL_ECONFIG, 0, "table: '%.60s' is not 1 to %d of letters, digits and _",
                              shown, DLI_MYSQL_TABLE_MAX);
    }
    (void)snprintf(mysql->table_shown, sizeof mysql->table_shown, "%s", shown);
    memcpy(mysql->table, table, len + 1);
    for (const dli_mysql_table_t *t = mysql->kind->tables; t->suffix != NULL; t++) {
        if (t->suffix[0] != '\0') {
            dli_mysql_table_name(mysql, t, mysql->tokens, sizeof mysql->tokens);
        }
    }
    return DL_OK;
}

static dl_status_t read_pool(dli_mysql_pool_options_t *pool, const dl_option_value_t *values,
                             dl_error_t *err) {
    const dl_option_value_t *max_idle = &values[DLI_MYSQL_OPT_MAX_IDLE];
    pool->max_total = values[DLI_MYSQL_OPT_MAX_TOTAL].number;
    pool->max_idle = max_idle->is_set ? max_idle->number : pool->max_total;
    pool->min_idle = values[DLI_MYSQL_OPT_MIN_IDLE].number;
    pool->test_on_borrow = values[DLI_MYSQL_OPT_TEST_ON_BORROW].number != 0;
    pool->test_while_idle = values[DLI_MYSQL_OPT_TEST_WHILE_IDLE].number != 0;
    pool->borrow_timeout_ms = values[DLI_MYSQL_OPT_BORROW_TIMEOUT].number;
    pool->idle_timeout_ms = values[DLI_MYSQL_OPT_IDLE_TIMEOUT].number;
    pool->idle_check_ms = values[DLI_MYSQL_OPT_IDLE_CHECK].number;
    if (pool->min_idle > pool->max_idle || pool->max_idle > pool->max_total) {
        return dl_driver_fail(err, DL_ECONFIG, 0,
                              "min_idle (%lld), max_idle (%lld), max_total (%lld): none may be larger than "
                              "the one after it",
                              (long long)pool->min_idle, (long long)pool->max_idle,
                              (long long)pool->max_total);
    }
    return DL_OK;
}

static dl_status_t make_endpoint(dli_mysql_t *mysql, const dl_option_value_t *values, dl_error_t *err) {
    dli_mysql_endpoint_parts_t parts = {
        .host = values[DLI_MYSQL_OPT_HOST].string,
        .port = values[DLI_MYSQL_OPT_PORT].number,
        .socket = values[DLI_MYSQL_OPT_SOCKET].string,
        .user = values[DLI_MYSQL_OPT_USER].string,
        .password = values[DLI_MYSQL_OPT_PASSWORD].string,
        .database = values[DLI_MYSQL_OPT_DATABASE].string,
        .tls = values[DLI_MYSQL_OPT_TLS].string,
        .tls_ca = values[DLI_MYSQL_OPT_TLS_CA].string,
        .tls_cert = values[DLI_MYSQL_OPT_TLS_CERT].string,
        .tls_key = values[DLI_MYSQL_OPT_TLS_KEY].string,
        .tls_ca_shown = dl_driver_shown(mysql->env, values, DLI_MYSQL_OPT_TLS_CA),
        .tls_cert_shown = dl_driver_shown(mysql->env, values, DLI_MYSQL_OPT_TLS_CERT),
        .tls_key_shown = dl_driver_shown(mysql->env, values, DLI_MYSQL_OPT_TLS_KEY),
        .connect_timeout_ms = values[DLI_MYSQL_OPT_CONNECT_TIMEOUT].number,
    };
    if (strcmp(mysql->table, mysql->table_shown) != 0) {
        memcpy(parts.table.name, mysql->table, sizeof mysql->table);
        memcpy(parts.table.shown, mysql->table_shown, sizeof mysql->table_shown);
    }
    return dli_mysql_endpoint_new(&parts, &mysql->endpoint, err);
}

dl_status_t dli_mysql_prepare(dli_mysql_t *mysql, const dli_mysql_kind_t *kind,
                              const dl_option_value_t *options, const dl_driver_env_t *env, dl_error_t *err) {
    dli_mysql_pool_options_t pool = {.calls = kind->calls};
    mysql->env = env;
    mysql->kind = kind;
    mysql->purge_after_ms = options[DLI_MYSQL_OPT_PURGE_AFTER].number;
    atomic_init(&mysql->acquired, 0);
    atomic_init(&mysql->extending, 0);
    atomic_flag_clear(&mysql->purging);
    dl_status_t status = read_table(mysql, options, err);
    if (status == DL_OK) {
        status = read_pool(&pool, options, err);
        mysql->max_total = pool.max_total;
    }
    if (status == DL_OK) {
        status = make_endpoint(mysql, options, err);
    }
    if (status == DL_OK) {
        status = dli_mysql_link_open(mysql->endpoint, &pool, env, &mysql->link, err);
    }
    return status;
}

/* ---- the first exchanges ----------------------------------------------------------------------------- */

/* The lane that a client asks on before any lock is held: one that a held lock needs too, so that its
 * connection is there by then, whether or not descriptors and memory are left. */
static dli_mysql_lane_t steady_lane(const dli_mysql_t *mysql) {
    return mysql->kind->calls == DLI_MYSQL_ROLE_HOLDING ? DLI_MYSQL_TOKENS : DLI_MYSQL_RENEWALS;
}

dl_status_t dli_mysql_setup_ask(dli_mysql_t *mysql, const dli_mysql_sql_t *sql, uint64_t deadline_ns,
                                dli_mysql_answer_t *answer, dl_error_t *err) {
    *answer = (dli_mysql_answer_t){.rows = NULL};
    if (sql->is_cut) {
        return dl_driver_fail(err, DL_ELIMIT, 0, "the statement is too long");
    }
    dli_mysql_exchange_t exchange = {.sql = sql->at,
                                     .len = sql->len,
                                     .lane = steady_lane(mysql),
                                     .intent = DLI_MYSQL_READ,
                                     .deadline_ns = deadline_ns};
    dl_status_t status = dli_mysql_link_run(mysql->link, &exchange, err);
    if (status == DL_OK) {
        *answer = exchange.answer;
    }
    return status;
}

/* SHOW needs no right and, unlike SELECT @@name, minds no name that a server does not know. */
dl_status_t dli_mysql_variables_ask(dli_mysql_t *mysql, uint64_t deadline_ns, dli_mysql_answer_t *answer,
                                    dl_error_t *err) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ("
                            "'binlog_format','log_bin','sync_binlog','innodb_flush_log_at_trx_commit',"
                            "'innodb_read_only','innodb_rollback_on_timeout'," DLI_MYSQL_WRITERS ","
                            "'group_replication_member_expel_timeout',"
                            "'max_connections','max_user_connections',"
                            "'rpl_semi_sync_master_enabled','rpl_semi_sync_source_enabled')");
    dl_status_t status = dli_mysql_setup_ask(mysql, &sql, deadline_ns, answer, err);
    return status != DL_OK || answer->error == 0
               ? status
               : dli_mysql_refused(answer->error, answer->message, "asking for the server's settings", err);
}

static dl_status_t refuse(const dli_mysql_t *mysql, dl_status_t status, const char *why, dl_error_t *err) {
    return dl_driver_fail(err, status, 0, "%.80s: %s", mysql->endpoint->label, why);
}

dl_status_t dli_mysql_refuse_unfit(const dli_mysql_t *mysql, MYSQL_RES *variables, dl_error_t *err) {
    dli_mysql_facts_t facts;
    dli_mysql_link_facts(mysql->link, &facts);
    const char *format = dli_mysql_value(variables, "binlog_format");
    dl_status_t status = dli_mysql_judge_writers(variables, mysql->endpoint->label, mysql->kind->calls, err);
    if (status != DL_OK) {
        return status;
    }
    if (facts.is_read_only || dli_mysql_is_on(dli_mysql_value(variables, "innodb_read_only"))) {
        return refuse(mysql, DL_ENOTSUP,
                      "the server is read-only, as replicas are; locks need the server that takes the writes",
                      err);
    }
    if (dli_mysql_is_on(dli_mysql_value(variables, "log_bin")) && format != NULL &&
        strcmp(format, "STATEMENT") == 0) {
        return refuse(mysql, DL_ECONFIG,
                      "binlog_format=STATEMENT: InnoDB then refuses writes at READ COMMITTED, which locks "
                      "need (error 1665); set ROW or MIXED",
                      err);
    }
    return DL_OK;
}

dl_status_t dli_mysql_connect(dli_mysql_t *mysql, uint64_t deadline_ns, dl_error_t *err) {
    dli_mysql_answer_t answer;
    dl_status_t status = dli_mysql_variables_ask(mysql, deadline_ns, &answer, err);
    if (status == DL_OK) {
        status = dli_mysql_refuse_unfit(mysql, answer.rows, err);
    }
    dli_mysql_answer_free(&answer);
    return status;
}

/* A connection of the lane CONTROL, if a held lock will need one. */
static dl_status_t connect_control(dli_mysql_t *mysql, uint64_t deadline_ns, dl_error_t *err) {
    if (mysql->kind->calls != DLI_MYSQL_ROLE_HOLDING) {
        return DL_OK;
    }
    dli_mysql_exchange_t exchange = {.sql = "DO 1",
                                     .len = 4,
                                     .lane = DLI_MYSQL_CONTROL,
                                     .intent = DLI_MYSQL_READ,
                                     .deadline_ns = deadline_ns};
    dl_status_t status = dli_mysql_link_run(mysql->link, &exchange, err);
    dli_mysql_answer_free(&exchange.answer);
    return status;
}

/* ---- the ops ---------------------------------------------------------------------------------------- */

dl_status_t dli_mysql_open(dli_mysql_t *mysql, const dli_mysql_kind_t *kind, const dl_option_value_t *options,
                           const dl_driver_env_t *env, uint64_t deadline_ns, dl_error_t *err) {
    dl_status_t status = dli_mysql_prepare(mysql, kind, options, env, err);
    if (status == DL_OK) {
        status = dli_mysql_connect(mysql, deadline_ns, err);
    }
    for (const dli_mysql_table_t *t = kind->tables; status == DL_OK && t->suffix != NULL; t++) {
        bool made;
        status = options[DLI_MYSQL_OPT_CREATE].number != 0
                     ? dli_mysql_table_provide(mysql, t, deadline_ns, &made, err)
                     : dli_mysql_table_verify(mysql, t, deadline_ns, err);
    }
    if (status == DL_OK) {
        status = connect_control(mysql, deadline_ns, err);
    }
    return status;
}

void dli_mysql_close(void *state, int forked) {
    dli_mysql_t *mysql = state;
    if (mysql->env == NULL) {
        return;
    }
    dli_mysql_link_close(mysql->link, forked != 0);
    dli_mysql_endpoint_unref(mysql->endpoint);
    mysql->link = NULL;
    mysql->endpoint = NULL;
    mysql->env = NULL;
}

void dli_mysql_describe(void *state, char *text, size_t size) {
    const dli_mysql_t *mysql = state;
    dli_mysql_facts_t facts = {.version_number = 0};
    if (mysql->link != NULL) {
        dli_mysql_link_facts(mysql->link, &facts);
    }
    (void)snprintf(text, size, "%s%s%s at %s",
                   facts.is_mariadb            ? "MariaDB"
                   : facts.version_number == 0 ? "MySQL or MariaDB"
                                               : "MySQL",
                   facts.version[0] != '\0' ? " " : "", facts.version,
                   mysql->endpoint != NULL ? mysql->endpoint->label : "?");
}
