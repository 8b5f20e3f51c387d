/* shop.h - one product in a table of a MySQL or MariaDB server, reached by prepared statements. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REDUCE_STOCK_SHOP_H
#define REDUCE_STOCK_SHOP_H

/* One connection; one thread at a time. What goes wrong is written to stderr. */
typedef struct shop shop_t;

typedef struct product {
    long stock;
    unsigned long long version;
} product_t;

/* Once, before the first thread. 0, or -1. */
int shop_start(void);
/* options: an option file of the client library; of it the group [client] counts: host, port, socket, user,
 * password, database. NULL after a failure. */
shop_t *shop_open(const char *options);
/* Ends with the thread that used it. NULL is fine. */
void shop_close(shop_t *shop);
/* Makes the table if it is missing, and fills the product up: version and last_token begin at 0. 0, or -1. */
int shop_fill(shop_t *shop, long stock);

/* Each answers 1; 0 if there was no such row; -1 after a failure. */
int shop_read(shop_t *shop, product_t *product);
int shop_write(shop_t *shop, long stock);
/* Sells if nobody has since the version was read. */
int shop_sell_version(shop_t *shop, long quantity, unsigned long long version);
/* Shuts out every token smaller than this one. 0: a larger one was here. */
int shop_show_token(shop_t *shop, unsigned long long token);
int shop_write_fenced(shop_t *shop, long stock, unsigned long long token);

#endif
