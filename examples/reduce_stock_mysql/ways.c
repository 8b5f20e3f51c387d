/* ways.c - the four ways. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "ways.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *const names[WAYS] = {"unsafe", "lock", "version", "fenced"};

way_t way_named(const char *name) {
    int way = 0;

    while (way < WAYS && strcmp(name, names[way]) != 0)
        way++;
    return (way_t)way;
}

const char *way_name(way_t way) {
    return names[way];
}

int way_locks(way_t way) {
    return way == WAY_LOCK || way == WAY_FENCED;
}

__attribute__((format(printf, 2, 3))) static void tell(const seller_t *seller, const char *format, ...) {
    char line[400];
    va_list args;

    if (!seller->name)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    printf("  %-7s %s\n", seller->name, line);
}

static sale_t complain(const char *what, const char *why) {
    fprintf(stderr, "reduce_stock_mysql: %s: %s\n", what, why);
    return FAILED;
}

/* ---- the steps ---------------------------------------------------------------------------------- */

/* Reads the stock, and does the work that stands between reading and writing: a price, a payment. */
static sale_t look(const seller_t *seller, long quantity, product_t *product) {
    struct timespec work = {0, 300000};
    int found = shop_read(seller->shop, product);

    if (found != 1)
        return found == 0 ? complain("read", "the product is not there") : FAILED;
    if (product->stock < quantity)
        return SOLD_OUT;
    tell(seller, "reads stock %ld and wants to sell %ld", product->stock, quantity);
    nanosleep(&work, NULL);
    return SOLD;
}

/* What can happen to any program between any two of its steps: others need the processor or the memory, the
 * virtual machine is moved, the laptop is closed. Here it happens once, and the process stops itself. */
static void pause_here(seller_t *seller) {
    if (!seller->is_to_pause)
        return;
    seller->is_to_pause = 0;
    tell(seller, "is paused before it writes (SIGSTOP)");
    raise(SIGSTOP);
    tell(seller, "goes on, and does not know that it was paused");
}

static int enter(seller_t *seller) {
    dl_error_t err;

    if (dl_trylock_for(seller->lock, DL_WAIT_FOREVER, seller->lease_ms, &err) != DL_OK) {
        complain("lock", err.message);
        return -1;
    }
    tell(seller, "holds the lock, token %llu", (unsigned long long)dl_token(seller->lock));
    return 0;
}

/* What the unlock says about the whole time since the lock call. */
static dl_status_t leave(seller_t *seller) {
    dl_error_t err;
    dl_status_t status = dl_unlock(seller->lock, &err);

    tell(seller, "unlocks: %s, %s", dl_status_name(status),
         status == DL_OK ? "the lock was its own to the end" : err.message);
    if (status != DL_OK && status != DL_ELOST)
        complain("unlock", err.message);
    return status;
}

/* ---- the ways ----------------------------------------------------------------------------------- */

static sale_t sell_unsafe(seller_t *seller, long quantity) {
    product_t product;
    sale_t sale = look(seller, quantity, &product);

    if (sale != SOLD)
        return sale;
    pause_here(seller);
    tell(seller, "writes stock %ld", product.stock - quantity);
    return shop_write(seller->shop, product.stock - quantity) == 1 ? SOLD : FAILED;
}

static sale_t sell_by_version(seller_t *seller, long quantity) {
    product_t product;

    for (;;) {
        sale_t sale = look(seller, quantity, &product);
        if (sale != SOLD)
            return sale;
        pause_here(seller);
        int changed = shop_sell_version(seller->shop, quantity, product.version);
        if (changed != 0) {
            tell(seller, "takes %ld off: the version is still %llu", quantity, product.version);
            return changed == 1 ? SOLD : FAILED;
        }
        tell(seller, "is refused: the version is no longer %llu; it begins anew", product.version);
        seller->again++;
    }
}

/* One try under the lock. It looks whether the lock is still its own as late as it can: right before the
 * writing, which is not in the writing. */
static sale_t try_locked(seller_t *seller, long quantity, int *refused) {
    product_t product;
    sale_t sale = look(seller, quantity, &product);

    if (sale != SOLD)
        return sale;
    *refused = dl_valid_ms(seller->lock) == 0;
    if (*refused)
        return FAILED;
    tell(seller, "sees that its lock is valid");
    pause_here(seller);
    tell(seller, "writes stock %ld", product.stock - quantity);
    return shop_write(seller->shop, product.stock - quantity) == 1 ? SOLD : FAILED;
}

/* One try under the lock, with its token shown to the table. *refused: the table has seen a later holder. */
static sale_t try_fenced(seller_t *seller, long quantity, int *refused) {
    product_t product;
    unsigned long long token = dl_token(seller->lock);

    if (token == 0)
        return complain("fenced", "this backend gives no tokens");
    /* Before the reading: from here on no earlier holder can write behind our back. */
    int done = shop_show_token(seller->shop, token);
    if (done == 1) {
        sale_t sale = look(seller, quantity, &product);
        if (sale != SOLD)
            return sale;
        pause_here(seller);
        done = shop_write_fenced(seller->shop, product.stock - quantity, token);
    }
    *refused = done == 0;
    if (*refused)
        tell(seller, "is refused: the table has seen a later token");
    else if (done == 1)
        tell(seller, "writes stock %ld: its token is the latest", product.stock - quantity);
    return done == 1 ? SOLD : FAILED;
}

static sale_t sell_in_lock(seller_t *seller, long quantity, sale_t (*attempt)(seller_t *, long, int *)) {
    for (;;) {
        int refused = 0;
        if (enter(seller) != 0)
            return FAILED;
        sale_t sale = attempt(seller, quantity, &refused);
        dl_status_t status = leave(seller);
        if (!refused)
            return sale;
        /* The lock was its own to the end, and yet refused: the token in the table is of another lock. */
        if (status == DL_OK)
            return complain(way_name(seller->way), "the table has a larger token: was the backend changed?");
        seller->again++;
    }
}

sale_t sell(seller_t *seller, long quantity) {
    switch (seller->way) {
    case WAY_UNSAFE:
        return sell_unsafe(seller, quantity);
    case WAY_LOCK:
        return sell_in_lock(seller, quantity, try_locked);
    case WAY_VERSION:
        return sell_by_version(seller, quantity);
    case WAY_FENCED:
        return sell_in_lock(seller, quantity, try_fenced);
    case WAYS:
        break;
    }
    return FAILED;
}
