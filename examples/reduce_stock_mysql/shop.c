/* shop.c - the statements, prepared once a connection. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "shop.h"

#include <mysql.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PARAMS_MAX 3 /* the most question marks in a statement */

enum { READ, WRITE, SELL_VERSION, SHOW_TOKEN, WRITE_FENCED, STATEMENTS };

static const char *const texts[STATEMENTS] = {
    [READ] = "SELECT stock, version FROM demo_product WHERE id = 1",
    [WRITE] = "UPDATE demo_product SET stock = ? WHERE id = 1",
    [SELL_VERSION] = ("UPDATE demo_product SET stock = stock - ?, version = version + 1"
                      " WHERE id = 1 AND version = ? AND stock >= ?"),
    [SHOW_TOKEN] = "UPDATE demo_product SET last_token = ? WHERE id = 1 AND last_token <= ?",
    [WRITE_FENCED] = "UPDATE demo_product SET stock = ?, last_token = ? WHERE id = 1 AND last_token <= ?",
};

struct shop {
    MYSQL *mysql;
    MYSQL_STMT *statements[STATEMENTS];
};

int shop_start(void) {
    return mysql_library_init(0, NULL, NULL) == 0 ? 0 : -1;
}

static int complain(const char *what, const char *why) {
    fprintf(stderr, "reduce_stock_mysql: %s: %s\n", what, why);
    return -1;
}

shop_t *shop_open(const char *options) {
    shop_t *shop = calloc(1, sizeof *shop);
    unsigned seconds = 10;

    if (access(options, R_OK) != 0) {
        /* The client library would go on without it, as another user to another server. */
        complain(options, "cannot be read");
        free(shop);
        return NULL;
    }
    if (!shop || !(shop->mysql = mysql_init(NULL))) {
        complain("connect", "out of memory");
        free(shop);
        return NULL;
    }
    mysql_options(shop->mysql, MYSQL_READ_DEFAULT_FILE, options);
    mysql_options(shop->mysql, MYSQL_READ_DEFAULT_GROUP, "client");
    mysql_options(shop->mysql, MYSQL_OPT_CONNECT_TIMEOUT, &seconds);
    mysql_options(shop->mysql, MYSQL_SET_CHARSET_NAME, "utf8mb4");
    /* FOUND_ROWS: a row that an UPDATE finds counts, also when it had these values already. */
    if (!mysql_real_connect(shop->mysql, NULL, NULL, NULL, NULL, 0, NULL, CLIENT_FOUND_ROWS) ||
        mysql_autocommit(shop->mysql, 1) != 0) {
        complain("connect", mysql_error(shop->mysql));
        shop_close(shop);
        return NULL;
    }
    return shop;
}

void shop_close(shop_t *shop) {
    if (!shop)
        return;
    for (int i = 0; i < STATEMENTS; i++)
        if (shop->statements[i])
            mysql_stmt_close(shop->statements[i]);
    mysql_close(shop->mysql);
    free(shop);
    mysql_thread_end();
}

int shop_fill(shop_t *shop, long stock) {
    static const char create[] = "CREATE TABLE IF NOT EXISTS demo_product ("
                                 " id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,"
                                 " name VARCHAR(255) NOT NULL,"
                                 " stock INT NOT NULL,"
                                 " version INT NOT NULL DEFAULT 0,"
                                 " last_token BIGINT UNSIGNED NOT NULL DEFAULT 0"
                                 ") ENGINE=InnoDB";
    char fill[160];

    snprintf(fill, sizeof fill,
             "REPLACE INTO demo_product (id, name, stock, version, last_token) VALUES (1, 'lamp', %ld, 0, 0)",
             stock);
    if (mysql_query(shop->mysql, create) != 0 || mysql_query(shop->mysql, fill) != 0)
        return complain("fill", mysql_error(shop->mysql));
    return 0;
}

/* ---- prepared statements ------------------------------------------------------------------------ */

static int fail(shop_t *shop, int which) {
    MYSQL_STMT *statement = shop->statements[which];

    return complain(texts[which], statement ? mysql_stmt_error(statement) : mysql_error(shop->mysql));
}

static int prepare(shop_t *shop, int which) {
    MYSQL_STMT **statement = &shop->statements[which];

    if (*statement)
        return 0;
    *statement = mysql_stmt_init(shop->mysql);
    return *statement && mysql_stmt_prepare(*statement, texts[which], strlen(texts[which])) == 0 ? 0 : -1;
}

/* Runs an UPDATE of the row with these numbers in place of its question marks. */
static int update(shop_t *shop, int which, unsigned long long *numbers) {
    MYSQL_BIND params[PARAMS_MAX];

    memset(params, 0, sizeof params);
    for (int i = 0; i < PARAMS_MAX; i++) {
        params[i].buffer_type = MYSQL_TYPE_LONGLONG;
        params[i].buffer = &numbers[i];
        params[i].is_unsigned = 1;
    }
    if (prepare(shop, which) != 0 || mysql_stmt_bind_param(shop->statements[which], params) != 0 ||
        mysql_stmt_execute(shop->statements[which]) != 0)
        return fail(shop, which);
    return mysql_stmt_affected_rows(shop->statements[which]) == 1;
}

int shop_read(shop_t *shop, product_t *product) {
    MYSQL_BIND columns[2];
    long long stock = 0;

    memset(columns, 0, sizeof columns);
    columns[0].buffer_type = columns[1].buffer_type = MYSQL_TYPE_LONGLONG;
    columns[0].buffer = &stock;
    columns[1].buffer = &product->version;
    columns[1].is_unsigned = 1;
    if (prepare(shop, READ) != 0)
        return fail(shop, READ);
    MYSQL_STMT *statement = shop->statements[READ];
    if (mysql_stmt_execute(statement) != 0 || mysql_stmt_bind_result(statement, columns) != 0 ||
        mysql_stmt_store_result(statement) != 0)
        return fail(shop, READ);
    int fetched = mysql_stmt_fetch(statement);
    if (fetched != 0 && fetched != MYSQL_NO_DATA)
        return fail(shop, READ);
    mysql_stmt_free_result(statement);
    product->stock = (long)stock;
    return fetched == 0;
}

int shop_write(shop_t *shop, long stock) {
    return update(shop, WRITE, (unsigned long long[PARAMS_MAX]){(unsigned long long)stock});
}

int shop_sell_version(shop_t *shop, long quantity, unsigned long long version) {
    unsigned long long count = (unsigned long long)quantity;

    return update(shop, SELL_VERSION, (unsigned long long[PARAMS_MAX]){count, version, count});
}

int shop_show_token(shop_t *shop, unsigned long long token) {
    return update(shop, SHOW_TOKEN, (unsigned long long[PARAMS_MAX]){token, token});
}

int shop_write_fenced(shop_t *shop, long stock, unsigned long long token) {
    return update(shop, WRITE_FENCED,
                  (unsigned long long[PARAMS_MAX]){(unsigned long long)stock, token, token});
}
