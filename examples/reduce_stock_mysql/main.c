/* main.c - four ways to reduce a product's stock in MySQL or MariaDB, and what each loses. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: reduce_stock_mysql setup OPTIONS STOCK      makes the table demo_product, and fills it
 *        reduce_stock_mysql race  OPTIONS WAY STOCK PROCESSES THREADS [CONFIG]
 *        reduce_stock_mysql pause OPTIONS WAY [CONFIG]
 *
 * OPTIONS is an option file of the client library (its group [client]: host, port, socket, user, password,
 * database). WAY is unsafe, lock, version or fenced. CONFIG is a configuration of dlock, for lock and fenced:
 * the lock may be of any backend, it need not be in this database.
 *
 * race    lets PROCESSES x THREADS sell until each sees an empty stock, and counts what was sold
 * pause   lets a seller be paused between reading and writing until its lease is over, and another sell
 *
 * Exit status: 0 no update was lost, 4 updates were lost, 1 something failed, 2 wrong usage.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stage.h"

int stage_open_lock(const stage_t *stage, dl_client_t **client, dl_lock_t **lock) {
    dl_error_t err;

    *client = NULL;
    *lock = NULL;
    if (!way_locks(stage->way))
        return 0;
    if (dl_client_open(stage->config, NULL, client, &err) == DL_OK &&
        dl_lock_open(*client, "stock/1", lock, &err) == DL_OK)
        return 0;
    fprintf(stderr, "reduce_stock_mysql: open: %s\n", err.message);
    dl_client_close(*client);
    *client = NULL;
    return -1;
}

int stage_fill(const stage_t *stage, long stock) {
    shop_t *shop = shop_open(stage->options);
    int result = shop ? shop_fill(shop, stock) : -1;

    shop_close(shop);
    return result;
}

long stage_stock(const stage_t *stage) {
    product_t product;
    shop_t *shop = shop_open(stage->options);
    int found = shop ? shop_read(shop, &product) : -1;

    shop_close(shop);
    return found == 1 ? product.stock : -1;
}

/* A number from 1 to max, or -1. */
static long number(const char *text, long max) {
    char *end;
    long n = strtol(text, &end, 10);

    return *text != '\0' && *end == '\0' && n >= 1 && n <= max ? n : -1;
}

static int usage(void) {
    fprintf(stderr, "usage: reduce_stock_mysql setup OPTIONS STOCK\n"
                    "       reduce_stock_mysql race  OPTIONS WAY STOCK PROCESSES THREADS [CONFIG]\n"
                    "       reduce_stock_mysql pause OPTIONS WAY [CONFIG]\n"
                    "WAY: unsafe, version; with a CONFIG also lock, fenced\n");
    return USAGE;
}

/* args: WAY STOCK PROCESSES THREADS [CONFIG]. */
static int run_race(stage_t *stage, int count, char **args) {
    long stock = count >= 4 ? number(args[1], 1000000) : -1;
    long processes = count >= 4 ? number(args[2], PROCESSES_MAX) : -1;
    long threads = count >= 4 ? number(args[3], THREADS_MAX) : -1;

    stage->config = count == 5 ? args[4] : NULL;
    if (count > 5 || stock < 0 || processes < 0 || threads < 0 || (way_locks(stage->way) && !stage->config))
        return usage();
    return race(stage, stock, (int)processes, (int)threads);
}

/* args: WAY [CONFIG]. */
static int run_pause(stage_t *stage, int count, char **args) {
    stage->config = count == 2 ? args[1] : NULL;
    if (count > 2 || (way_locks(stage->way) && !stage->config))
        return usage();
    return pauses(stage);
}

int main(int argc, char **argv) {
    stage_t stage = {.options = argc > 3 ? argv[2] : NULL};

    /* Whole lines, also of the processes that are forked later. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 4 || shop_start() != 0)
        return usage();
    if (strcmp(argv[1], "setup") == 0) {
        long stock = argc == 4 ? number(argv[3], 1000000) : -1;
        return stock < 0 ? usage() : stage_fill(&stage, stock) == 0 ? KEPT : FAILURE;
    }
    stage.way = way_named(argv[3]);
    if (stage.way == WAYS)
        return usage();
    if (strcmp(argv[1], "race") == 0)
        return run_race(&stage, argc - 3, argv + 3);
    if (strcmp(argv[1], "pause") == 0)
        return run_pause(&stage, argc - 3, argv + 3);
    return usage();
}
