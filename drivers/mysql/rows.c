/* rows.c - taking and freeing rows: what the statements of mysql-lease and mysql-optimistic are made of. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

#include <stdio.h>
#include <string.h>

#include "drivers/block.h"
#include "drivers/report.h"

/* Locks read by one statement. */
#define PAGE 500
/* A row with an owner whose lease is not over. */
#define IS_HELD "owner IS NOT NULL AND (expires_at IS NULL OR expires_at>UTC_TIMESTAMP(6))"

dl_status_t dli_mysql_run(dli_mysql_t *mysql, dli_mysql_exchange_t *exchange, const dli_mysql_sql_t *sql,
                          const char *doing, const char *name, dl_error_t *err) {
    char shown[DLI_NAME_SHOWN + 4], what[DLI_NAME_SHOWN + 32];
    if (sql->is_cut) {
        return dl_driver_fail(err, DL_ELIMIT, 0, "the statement is too long");
    }
    exchange->sql = sql->at;
    exchange->len = sql->len;
    dl_status_t status = dli_mysql_link_run(mysql->link, exchange, err);
    unsigned error = exchange->answer.error;
    if (status != DL_OK || error == 0) {
        return status;
    }
    dli_name_show(name, shown);
    (void)snprintf(what, sizeof what, name[0] != '\0' ? "%s '%s'" : "%s", doing, shown);
    if (exchange->was_ended) {
        /* That it could be ended shows that it waited for a lock: of its one row, or of what this is in. */
        status = dl_driver_fail(err, DL_EIO, (int)error,
                                "%s: another transaction keeps the row locked, or the table (%s)", what,
                                exchange->answer.message);
    } else if (dli_mysql_is_contention(error)) {
        status = dl_driver_fail(err, DL_EIO, (int)error, "%s: another transaction keeps the row locked (%s)",
                                what, exchange->answer.message);
    } else {
        status = dli_mysql_refused(error, exchange->answer.message, what, err);
    }
    dli_mysql_answer_free(&exchange->answer);
    return status;
}

/* ---- pieces of statements ---------------------------------------------------------------------------- */

static uint64_t block(const dl_request_t *request) {
    return dli_block(request, DLI_MYSQL_TOKEN_END - 1);
}

/* The assignments that make the row the request's; they use nothing of the row but its token, and the last of
 * the new ones goes into insert_id. */
static void add_hold(dli_mysql_sql_t *sql, const dli_mysql_t *mysql, const dl_request_t *r) {
    const char *token = mysql->kind->token_column;
    dli_mysql_sql_add(sql,
                      "$towner=$s,hold_id=$u,client=$s,acquired_at=UTC_TIMESTAMP(6),released_at=NULL,"
                      "expires_at=UTC_TIMESTAMP(6)+INTERVAL $i MICROSECOND,"
                      "$t=LAST_INSERT_ID(GREATEST($t,$u,CAST(" DLI_MYSQL_MICROS " AS UNSIGNED))+$u)",
                      mysql->kind->has_state ? "state='held'," : "", r->owner, r->hold_id,
                      mysql->env->client_label, r->lease_ms * 1000, token, token, r->token_floor, block(r));
}

void dli_mysql_rows_add_takeable(dli_mysql_sql_t *sql, const dli_mysql_t *mysql, const dl_request_t *r) {
    dli_mysql_sql_add(sql,
                      "$t<$u AND " DLI_MYSQL_WRITABLE "=0 AND (owner IS NULL OR expires_at<=UTC_TIMESTAMP(6)"
                      " OR (owner=$s AND hold_id<=$u))",
                      mysql->kind->token_column, DLI_MYSQL_TOKEN_END, r->owner, r->hold_id);
}

/* An owner that is not "uuid:..." was written by somebody else. */
void dli_mysql_rows_add_verdict(dli_mysql_sql_t *sql, const dli_mysql_t *mysql) {
    const char *token = mysql->kind->token_column;
    dli_mysql_sql_add(sql,
                      "CASE WHEN $t IS NULL OR $t>=$u THEN $u WHEN owner IS NULL THEN $u"
                      " ELSE $u+IF(owner LIKE '________-____-____-____-____________:_%',$u,0)"
                      "+COALESCE(GREATEST(0,TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),expires_at)),$u) END",
                      token, token, DLI_MYSQL_TOKEN_END, DLI_MYSQL_REFUSED + DLI_MYSQL_FOREIGN,
                      DLI_MYSQL_REFUSED, DLI_MYSQL_REFUSED, DLI_MYSQL_BY_DLOCK, DLI_MYSQL_ENDLESS);
}

/*
 * One statement. Its WHERE takes the row, or says why not, so that the assignments depend on nothing but the
 * row's token, in whatever order or however often they are evaluated. Rows found and insert_id:
 *   1, token      taken; the last of its tokens
 *   0, a verdict  busy or foreign (rows.h)
 *   0, 0          there is no row
 * The time is that of the statement's start. When it has to wait for the row, it errs on the safe side: an
 * expiry meanwhile is judged busy, and our own lease ends no later than counted from the start. A renewal
 * leaves the version as it is, so that the expiry is looked at beside it.
 */
dl_status_t dli_mysql_rows_take(dli_mysql_t *mysql, const dl_request_t *r, const uint64_t *version,
                                dli_mysql_exchange_t *exchange, dl_error_t *err) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql, "UPDATE $t SET ", mysql->table);
    add_hold(&sql, mysql, r);
    dli_mysql_sql_add(&sql, " WHERE name=$x AND CASE WHEN ", r->name, r->name_len);
    if (version != NULL) {
        dli_mysql_sql_add(&sql, "$t=$u AND ", mysql->kind->token_column, *version);
    }
    dli_mysql_rows_add_takeable(&sql, mysql, r);
    dli_mysql_sql_add(&sql, " THEN 1 ELSE LAST_INSERT_ID(");
    dli_mysql_rows_add_verdict(&sql, mysql);
    dli_mysql_sql_add(&sql, ")=0 END");
    *exchange = (dli_mysql_exchange_t){.lane = DLI_MYSQL_CALLS,
                                       .intent = DLI_MYSQL_CLAIM,
                                       .deadline_ns = r->deadline_ns,
                                       .stop = &r->stop,
                                       .may_be_ended = true};
    return dli_mysql_run(mysql, exchange, &sql, "taking", r->name, err);
}

/* ---- what came of it --------------------------------------------------------------------------------- */

static dl_status_t judge_refusal(const dli_mysql_t *mysql, const dl_request_t *r, uint64_t verdict,
                                 dl_grant_t *grant, dl_error_t *err) {
    const uint64_t left_us = verdict & (DLI_MYSQL_TOKEN_END - 1);
    if (left_us == DLI_MYSQL_FOREIGN) {
        char shown[DLI_NAME_SHOWN + 4];
        dli_name_show(r->name, shown);
        return dl_driver_fail(err, DL_EFOREIGN, 0, "'%s': its row in table '%s' has no %s that could be ours",
                              shown, mysql->table_shown, mysql->kind->token_column);
    }
    grant->busy_is_dlock = (verdict & DLI_MYSQL_BY_DLOCK) != 0;
    if (left_us == DLI_MYSQL_ENDLESS) {
        grant->busy_ms = -1;
        return dl_driver_fail(err, DL_EBUSY, 0, "held by another owner, without an expiry");
    }
    grant->busy_ms = (int64_t)((left_us + 999) / 1000);
    if (left_us == 0) {
        return dl_driver_fail(err, DL_EBUSY, 0, "another owner was faster");
    }
    return dl_driver_fail(err, DL_EBUSY, 0, "held by another owner for %s more",
                          dl_driver_duration(grant->busy_ms).text);
}

/* DL_OK with the grant, DL_EBUSY, DL_EFOREIGN. Frees the answer. */
static dl_status_t judge(dli_mysql_t *mysql, const dl_request_t *request, dli_mysql_exchange_t *exchange,
                         dl_grant_t *grant, dl_error_t *err) {
    const uint64_t affected = exchange->answer.affected, number = exchange->answer.insert_id;
    const uint64_t more = block(request) - 1; /* than one token */
    dli_mysql_answer_free(&exchange->answer);
    if (affected == 0 && (number & DLI_MYSQL_REFUSED) != 0) {
        return judge_refusal(mysql, request, number, grant, err);
    }
    if (affected == 0) {
        return dl_driver_fail(err, DL_EIO, 0, "the row was deleted while it was being taken");
    }
    if (number <= request->token_floor + more || number > DLI_MYSQL_TOKEN_END) {
        /* Something between us and the server keeps the number to itself, or it is no answer to what was
         * asked; what may be taken has to be freed. */
        return dl_driver_fail(err, DL_EUNKNOWN, 0, "taken, but no token above %llu came back",
                              (unsigned long long)request->token_floor);
    }
    atomic_fetch_add(&mysql->acquired, 1);
    grant->token = number - more;
    grant->tokens = more + 1;
    grant->sent_ns = exchange->sent_ns;
    grant->session_fd = -1;
    return DL_OK;
}

/* ---- rows that are not there yet --------------------------------------------------------------------- */

static dl_status_t insert(dli_mysql_t *mysql, const dl_request_t *r, const dli_mysql_sql_t *sql,
                          bool *is_there, dl_error_t *err) {
    /* A free row that comes late harms nobody, so that nothing has to be killed for it. */
    dli_mysql_exchange_t exchange = {.lane = DLI_MYSQL_CALLS,
                                     .intent = DLI_MYSQL_READ,
                                     .deadline_ns = r->deadline_ns,
                                     .stop = &r->stop,
                                     .may_be_ended = true};
    dl_status_t status = dli_mysql_run(mysql, &exchange, sql, "making a row for", r->name, err);
    *is_there = status == DL_OK && exchange.answer.affected > 0;
    dli_mysql_answer_free(&exchange.answer);
    return status;
}

/*
 * Makes a free row for a name that has none; DL_OK also if there is one by now. It begins at a token that is
 * no lower than any its name can have had (purge.c): the row with the empty name is read under a shared lock,
 * so that it cannot be raised before the new row is there. Without that row nothing is found or inserted:
 * then it is made first, once in the life of a table.
 */
static dl_status_t provide(dli_mysql_t *mysql, const dl_request_t *r, dl_error_t *err) {
    const char *token = mysql->kind->token_column;
    DLI_MYSQL_SQL(row);
    DLI_MYSQL_SQL(base);
    dli_mysql_sql_add(
        &row,
        "INSERT INTO $t(name,released_at,$t)"
        " SELECT $x,UTC_TIMESTAMP(6),base.$t+" DLI_MYSQL_WRITABLE " FROM $t AS base WHERE base.name=''"
        " LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE $t.name=$t.name",
        mysql->table, token, r->name, r->name_len, token, mysql->table, mysql->table, mysql->table);
    dli_mysql_sql_add(&base, "INSERT IGNORE INTO $t(name,$t) VALUES(''," DLI_MYSQL_WRITABLE ")", mysql->table,
                      token);
    bool is_there, is_based;
    dl_status_t status = insert(mysql, r, &row, &is_there, err);
    if (status == DL_OK && !is_there) {
        status = insert(mysql, r, &base, &is_based, err);
        if (status == DL_OK) {
            status = insert(mysql, r, &row, &is_there, err);
        }
    }
    return status;
}

/* ---- an attempt --------------------------------------------------------------------------------------- */

dl_status_t dli_mysql_rows_acquire(dli_mysql_t *mysql, dli_mysql_take_t take, const dl_request_t *request,
                                   dl_grant_t *grant, dl_error_t *err) {
    dli_mysql_exchange_t exchange = {.answer = {.affected = 0}};
    if (request->token_floor >= DLI_MYSQL_TOKEN_END - 1) {
        return dl_driver_fail(err, DL_ELIMIT, 0, "the token floor is larger than this driver's tokens");
    }
    dl_status_t status = take(mysql, request, &exchange, err);
    if (status == DL_OK && exchange.answer.affected == 0 && exchange.answer.insert_id == 0) {
        status = provide(mysql, request, err);
        if (status == DL_OK) {
            status = take(mysql, request, &exchange, err);
        }
    }
    return status == DL_OK ? judge(mysql, request, &exchange, grant, err) : status;
}

/* ---- freeing ----------------------------------------------------------------------------------------- */

/* The row of the request's hold, or whoever holds it where it has no owner. */
static dl_status_t free_row(dli_mysql_t *mysql, const dl_request_t *r, bool *freed, dl_error_t *err) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql,
                      "UPDATE $t SET $towner=NULL,expires_at=NULL,released_at=UTC_TIMESTAMP(6)"
                      " WHERE name=$x AND " DLI_MYSQL_WRITABLE "=0 AND ",
                      mysql->table, mysql->kind->has_state ? "state='free'," : "", r->name, r->name_len);
    if (r->owner != NULL) {
        dli_mysql_sql_add(&sql, "owner=$s AND hold_id=$u", r->owner, r->hold_id);
    } else {
        dli_mysql_sql_add(&sql, IS_HELD);
    }
    dli_mysql_exchange_t exchange = {.lane = DLI_MYSQL_CALLS,
                                     .intent = DLI_MYSQL_FREE,
                                     .deadline_ns = r->deadline_ns,
                                     .stop = &r->stop,
                                     .may_be_ended = true};
    const char *doing = r->owner != NULL ? "freeing" : "freeing by force";
    dl_status_t status = dli_mysql_run(mysql, &exchange, &sql, doing, r->name, err);
    *freed = status == DL_OK && exchange.answer.affected > 0;
    dli_mysql_answer_free(&exchange.answer);
    return status;
}

dl_status_t dli_mysql_rows_release(void *state, void *hold, const dl_request_t *request, dl_error_t *err) {
    (void)hold;
    dli_mysql_t *mysql = state;
    bool freed;
    dl_status_t status = free_row(mysql, request, &freed, err);
    if (status != DL_OK) {
        return status;
    }
    (void)dli_mysql_purge(mysql, NULL, request);
    return freed ? DL_OK
                 : dl_driver_fail(err, DL_ELOST, 0, "the lock was lost: this hold is no longer in table '%s'",
                                  mysql->table_shown);
}

dl_status_t dli_mysql_rows_force(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                 dl_error_t *err) {
    const dl_request_t r = {
        .name = name, .name_len = name_len, .deadline_ns = deadline_ns, .stop = {{-1, -1}}};
    bool freed;
    dl_status_t status = free_row(state, &r, &freed, err);
    return status != DL_OK || freed ? status : dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody held it");
}

/* ---- what others see --------------------------------------------------------------------------------- */

static void add_select(dli_mysql_sql_t *sql, const dli_mysql_t *mysql) {
    dli_mysql_sql_add(sql,
                      "SELECT name,owner,hold_id,client,$t,"
                      "(TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),expires_at)+999) DIV 1000"
                      " FROM $t WHERE " IS_HELD,
                      mysql->kind->token_column, mysql->table);
}

const dli_mysql_view_t dli_mysql_rows_view = {
    .lane = DLI_MYSQL_CALLS, .name = "name", .page = PAGE, .add_select = add_select};
