/* reduce_stock.c - many processes sell one stock: read it, think, write it back, with and without a lock. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: reduce_stock fill  INVENTORY STOCK                      a new inventory with that many items
 *        reduce_stock sell  INVENTORY                            one sale; exit status 3 when sold out
 *        reduce_stock race  INVENTORY STOCK PROCESSES none|CONFIG
 *
 * `race` lets PROCESSES processes sell until each sees an empty stock, under the lock of the backend that the
 * configuration file CONFIG selects, or under none. It prints one line:
 *     sold=N oversold=N seconds=S wait_p50_us=N wait_p99_us=N
 * and ends with 0 also when more was sold than there was: that is what it is here to show.
 *
 * The sale is unsafe by itself on purpose, as it is in programs that keep their data where no transaction
 * reaches: two sellers who read the same number sell the same item twice.
 */
#include <errno.h>
#include <sqlite3.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dlock/dlock.h"

enum { SOLD = 0, FAILED = 1, SOLD_OUT = 3, THINK_US = 300, MAX_PROCESSES = 64 };

/* What the processes tell the parent, in shared memory. */
typedef struct report {
    long sold[MAX_PROCESSES];
    long waits_max; /* room a process has in waits_us; later sales are counted, but not timed */
    uint32_t waits_us[];
} report_t;

static int64_t now_us(void) {
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
}

static int complain(const char *what, const char *why) {
    fprintf(stderr, "reduce_stock: %s: %s\n", what, why);
    return FAILED;
}

/* ---- the inventory ----------------------------------------------------------------------------- */

static sqlite3 *open_inventory(const char *path) {
    sqlite3 *db = NULL;

    if (sqlite3_open(path, &db) != SQLITE_OK || sqlite3_busy_timeout(db, 60000) != SQLITE_OK ||
        sqlite3_exec(db, "PRAGMA synchronous=NORMAL", NULL, NULL, NULL) != SQLITE_OK) {
        complain(path, db ? sqlite3_errmsg(db) : "out of memory");
        sqlite3_close(db);
        return NULL;
    }
    return db;
}

static int fill(const char *path, long stock) {
    char sql[200];
    sqlite3 *db = open_inventory(path);

    if (!db)
        return FAILED;
    snprintf(sql, sizeof sql,
             "PRAGMA journal_mode=WAL;"
             "CREATE TABLE IF NOT EXISTS stock(item INTEGER PRIMARY KEY, quantity INTEGER NOT NULL);"
             "INSERT OR REPLACE INTO stock VALUES(1, %ld)",
             stock);
    int rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        complain(path, sqlite3_errmsg(db));
    sqlite3_close(db);
    return rc == SQLITE_OK ? 0 : FAILED;
}

static int keep_number(void *arg, int columns, char **values, char **names) {
    (void)columns;
    (void)names;
    *(long *)arg = values[0] ? atol(values[0]) : -1;
    return 0;
}

/* Reads, thinks, writes: the three steps that a lock has to keep together. */
static int sell_one(sqlite3 *db) {
    struct timespec think = {0, THINK_US * 1000};
    char sql[100];
    long quantity = -1;

    if (sqlite3_exec(db, "SELECT quantity FROM stock WHERE item = 1", keep_number, &quantity, NULL) !=
        SQLITE_OK)
        return complain("read", sqlite3_errmsg(db));
    if (quantity <= 0)
        return quantity == 0 ? SOLD_OUT : complain("read", "the inventory was not filled");
    /* Stands for the work between the reading and the writing: a price, a payment. */
    nanosleep(&think, NULL);
    snprintf(sql, sizeof sql, "UPDATE stock SET quantity = %ld WHERE item = 1", quantity - 1);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        return complain("write", sqlite3_errmsg(db));
    return SOLD;
}

static int sell(const char *path) {
    sqlite3 *db = open_inventory(path);
    int result = db ? sell_one(db) : FAILED;

    sqlite3_close(db);
    return result;
}

/* ---- the race ---------------------------------------------------------------------------------- */

/* Sells until the stock is empty. lock NULL: without one. */
static int sell_all(sqlite3 *db, dl_lock_t *lock, report_t *report, int self) {
    uint32_t *waits_us = report->waits_us + self * report->waits_max;
    dl_error_t err;
    int result;

    do {
        int64_t began_us = now_us();
        if (lock && dl_lock(lock, &err) != DL_OK)
            return complain("lock", err.message);
        int64_t wait_us = now_us() - began_us;
        result = sell_one(db);
        if (lock && dl_unlock(lock, &err) != DL_OK)
            return complain("unlock", err.message);
        if (result == SOLD && report->sold[self] < report->waits_max)
            waits_us[report->sold[self]] = (uint32_t)wait_us;
        report->sold[self] += result == SOLD;
    } while (result == SOLD);
    return result;
}

/* One process of the race. Each opens a client of its own: nothing of it survives a fork. */
static int seller(const char *path, const char *config, report_t *report, int self) {
    dl_client_t *client = NULL;
    dl_lock_t *lock = NULL;
    dl_error_t err;
    sqlite3 *db = open_inventory(path);
    int result = FAILED;

    if (db && config && dl_client_open(config, NULL, &client, &err) != DL_OK)
        complain("open", err.message);
    else if (db && config && dl_lock_open(client, "stock/1", &lock, &err) != DL_OK)
        complain("open", err.message);
    else if (db)
        result = sell_all(db, lock, report, self);
    dl_lock_close(lock);
    dl_client_close(client);
    sqlite3_close(db);
    return result == SOLD_OUT ? 0 : 1;
}

static int by_number(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static void print_result(report_t *report, long stock, int processes, int64_t took_us) {
    long sold = 0, timed = 0;

    /* Packs the waits of all processes one after the other, then sorts them. */
    for (int i = 0; i < processes; i++) {
        long n = report->sold[i] < report->waits_max ? report->sold[i] : report->waits_max;
        memmove(report->waits_us + timed, report->waits_us + i * report->waits_max,
                (size_t)n * sizeof(uint32_t));
        timed += n;
        sold += report->sold[i];
    }
    qsort(report->waits_us, (size_t)timed, sizeof(uint32_t), by_number);
    printf("sold=%ld oversold=%ld seconds=%.3f wait_p50_us=%u wait_p99_us=%u\n", sold, sold - stock,
           (double)took_us / 1e6, timed ? report->waits_us[timed / 2] : 0,
           timed ? report->waits_us[timed * 99 / 100] : 0);
}

static int race(const char *path, long stock, int processes, const char *config) {
    /* Without a lock a process can believe to have sold far more than the stock. */
    long waits_max = stock * 4;
    size_t size = sizeof(report_t) + (size_t)waits_max * (size_t)processes * sizeof(uint32_t);
    report_t *report = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failed = 0;

    if (report == MAP_FAILED)
        return complain("memory", strerror(errno));
    report->waits_max = waits_max;
    if (fill(path, stock) != 0)
        return FAILED;
    int64_t began_us = now_us();
    for (int i = 0; i < processes; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(seller(path, config, report, i));
        if (pid < 0)
            failed = complain("fork", strerror(errno));
    }
    int status;
    while (wait(&status) > 0)
        failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    print_result(report, stock, processes, now_us() - began_us);
    munmap(report, size);
    return failed ? FAILED : 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[1] : "";

    if (argc == 4 && strcmp(what, "fill") == 0)
        return fill(argv[2], atol(argv[3]));
    if (argc == 3 && strcmp(what, "sell") == 0)
        return sell(argv[2]);
    if (argc == 6 && strcmp(what, "race") == 0) {
        long stock = atol(argv[3]);
        int processes = atoi(argv[4]);
        if (stock > 0 && stock <= 1000000 && processes > 0 && processes <= MAX_PROCESSES)
            return race(argv[2], stock, processes, strcmp(argv[5], "none") == 0 ? NULL : argv[5]);
    }
    fprintf(stderr, "usage: reduce_stock fill INVENTORY STOCK | sell INVENTORY |\n"
                    "       race INVENTORY STOCK PROCESSES none|CONFIG\n");
    return 2;
}
