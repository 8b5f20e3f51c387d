/* tokens.c - mysql-pessimistic: what is committed beside a claim: tokens, and rows of new names. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/block.h"
#include "session.h"

/* On a connection of their own, so that no end of the holder's session takes a token back. */
static dl_status_t run(dli_mysql_t *mysql, const dl_request_t *request, const dli_mysql_sql_t *sql,
                       const char *doing, dli_mysql_answer_t *answer, dl_error_t *err) {
    dli_mysql_exchange_t exchange = {.lane = DLI_MYSQL_TOKENS,
                                     .intent = DLI_MYSQL_PLAIN,
                                     .deadline_ns = request->deadline_ns,
                                     .stop = &request->stop};
    dl_status_t status = dli_mysql_run(mysql, &exchange, sql, doing, request->name, err);
    if (status == DL_OK) {
        *answer = exchange.answer;
    } else if (status == DL_EUNKNOWN || status == DL_ETIMEDOUT) {
        /* A token that nobody got, or a row without a hold, does no harm: worth another try. */
        err->status = status = DL_EIO;
    }
    return status;
}

/*
 * The row lock is held, so nobody else draws for this name. A token is above the server's clock and above
 * those of all names that were ever deleted (the row with the empty name), so that deleting a row takes no
 * token back. Not only a name's first one: a draw that is still under way although its row lock was lost may
 * make the row anew and not see the deletion. The row with the empty name is read without a lock: who deletes
 * has it locked, and may be stopped there. Without that row nothing is drawn. The outcome comes back as the
 * insert id, whether the row was there or not: the last of the tokens, which is the one that the row keeps.
 */
static dl_status_t draw(dli_mysql_t *mysql, const dl_request_t *request, uint64_t count,
                        dli_mysql_answer_t *answer, dl_error_t *err) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_sql_add(&sql,
                      "INSERT INTO $t(name,token,drawn_at)"
                      " SELECT $x,"
                      "LAST_INSERT_ID(GREATEST(base.token,$u," DLI_MYSQL_MICROS "," DLI_MYSQL_WRITABLE
                      ")+$u),"
                      "UTC_TIMESTAMP(6) FROM $t AS base WHERE base.name=''"
                      " ON DUPLICATE KEY UPDATE drawn_at=UTC_TIMESTAMP(6),"
                      "token=LAST_INSERT_ID(GREATEST($t.token,base.token,$u," DLI_MYSQL_MICROS ")+$u)",
                      mysql->tokens, request->name, request->name_len, request->token_floor, count,
                      mysql->tokens, mysql->tokens, request->token_floor, count);
    return run(mysql, request, &sql, "drawing a token for", answer, err);
}

/* Once in the life of a table. */
static dl_status_t make_base(dli_mysql_t *mysql, const dl_request_t *request, dl_error_t *err) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_answer_t answer = {0};
    dli_mysql_sql_add(&sql,
                      "INSERT IGNORE INTO $t(name,token,drawn_at)"
                      " VALUES(''," DLI_MYSQL_WRITABLE ",UTC_TIMESTAMP(6))",
                      mysql->tokens);
    dl_status_t status = run(mysql, request, &sql, "drawing a token for", &answer, err);
    dli_mysql_answer_free(&answer);
    return status;
}

dl_status_t dli_mysql_token_draw(dli_mysql_t *mysql, const dl_request_t *request, dl_grant_t *grant,
                                 dl_error_t *err) {
    if (request->token_floor >= (uint64_t)INT64_MAX) {
        return dl_driver_fail(err, DL_ELIMIT, 0, "no token is larger than the floor");
    }
    const uint64_t count = dli_block(request, INT64_MAX);
    dli_mysql_answer_t answer;
    dl_status_t status = draw(mysql, request, count, &answer, err);
    if (status == DL_OK && answer.affected == 0) {
        dli_mysql_answer_free(&answer);
        status = make_base(mysql, request, err);
        status = status == DL_OK ? draw(mysql, request, count, &answer, err) : status;
    }
    if (status != DL_OK) {
        return status;
    }
    const uint64_t drawn = answer.affected, last = answer.insert_id,
                   before = request->token_floor + count - 1;
    dli_mysql_answer_free(&answer);
    if (drawn == 0) {
        return dl_driver_fail(err, DL_EIO, 0, "there is no row with the empty name in table '%s'",
                              mysql->tokens);
    }
    if (last <= before) {
        return dl_driver_fail(err, DL_EPROTO, 0, "the server gave %llu as a token above %llu",
                              (unsigned long long)last, (unsigned long long)before);
    }
    grant->token = last - (count - 1);
    grant->tokens = count;
    return DL_OK;
}

dl_status_t dli_mysql_name_provide(dli_mysql_t *mysql, const dl_request_t *request, dl_error_t *err) {
    DLI_MYSQL_SQL(sql);
    dli_mysql_answer_t answer;
    /* Looks first, without a lock: IGNORE alone would wait for whoever has locked the row by now. */
    dli_mysql_sql_add(&sql,
                      "INSERT IGNORE INTO $t(name) SELECT $x FROM DUAL"
                      " WHERE " DLI_MYSQL_WRITABLE "=0 AND NOT EXISTS(SELECT 1 FROM $t l WHERE l.name=$x)",
                      mysql->table, request->name, request->name_len, mysql->table, request->name,
                      request->name_len);
    dl_status_t status = run(mysql, request, &sql, "making a row for", &answer, err);
    if (status == DL_OK) {
        dli_mysql_answer_free(&answer);
    }
    return status;
}
