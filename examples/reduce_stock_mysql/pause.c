/* pause.c - a seller is paused until its lease is over, another sells meanwhile, the first comes back. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stage.h"

enum { STOCK = 10, FIRST_SELLS = 3, SECOND_SELLS = 4, LEASE_MS = 2000 };

/* One seller, in a process of its own, so that all its threads stop with it. */
static int run_seller(const stage_t *stage, const char *name, long quantity, int is_to_pause) {
    dl_client_t *client = NULL;
    seller_t seller = {.way = stage->way, .lease_ms = LEASE_MS, .name = name, .is_to_pause = is_to_pause};
    int failed = shop_start() != 0 || stage_open_lock(stage, &client, &seller.lock) != 0;

    if (!failed) {
        seller.shop = shop_open(stage->options);
        failed = !seller.shop || sell(&seller, quantity) != SOLD;
    }
    shop_close(seller.shop);
    dl_lock_close(seller.lock);
    dl_client_close(client);
    return failed;
}

static pid_t start_seller(const stage_t *stage, const char *name, long quantity, int is_to_pause) {
    pid_t parent = getpid(), pid = fork();

    if (pid == 0) {
        /* A stopped process would outlive this program. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(getppid() == parent ? run_seller(stage, name, quantity, is_to_pause) : 1);
    }
    return pid;
}

/* Waits until the seller has stopped itself. */
static int await_stop(pid_t pid) {
    int status;

    return waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status) ? 0 : -1;
}

static int await_end(pid_t pid) {
    int status;

    return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : -1;
}

/* A seller that is let go on (unless it has ended) and awaited. */
static int finish(pid_t pid) {
    return kill(pid, SIGCONT) == 0 ? await_end(pid) : -1;
}

/* The first comes back after the second has sold, or while that, too, stands between reading and writing. */
static int play(const stage_t *stage, int second_pauses) {
    if (stage_fill(stage, STOCK) != 0)
        return -1;
    pid_t first = start_seller(stage, "first", FIRST_SELLS, 1);
    if (first < 0 || await_stop(first) != 0)
        return -1;
    /* Under a lock, the second has to wait until the lease of the first is over. */
    pid_t second = start_seller(stage, "second", SECOND_SELLS, second_pauses);
    int failed = second < 0 || (second_pauses ? await_stop(second) : await_end(second)) != 0;
    failed |= finish(first) != 0;
    if (second_pauses && second > 0)
        failed |= finish(second) != 0;
    return failed ? -1 : 0;
}

static int judge(const stage_t *stage, int second_pauses) {
    static const char *const titles[] = {"the first comes back after the second has sold",
                                         "the first comes back between the second's reading and writing"};
    long right = STOCK - FIRST_SELLS - SECOND_SELLS;

    printf("%s, %s\n", way_name(stage->way), titles[second_pauses]);
    if (play(stage, second_pauses) != 0)
        return FAILURE;
    long left = stage_stock(stage);
    if (left < 0)
        return FAILURE;
    printf("%s: %d - %d - %d is %ld, and the stock is %ld: %s\n", way_name(stage->way), STOCK, FIRST_SELLS,
           SECOND_SELLS, right, left,
           left == right                  ? "no update was lost"
           : left == STOCK - FIRST_SELLS  ? "the second's update was lost"
           : left == STOCK - SECOND_SELLS ? "the first's update was lost"
                                          : "wrong");
    return left == right ? KEPT : LOST;
}

int pauses(const stage_t *stage) {
    int after = judge(stage, 0);

    if (after == FAILURE)
        return FAILURE;
    int between = judge(stage, 1);
    return between == FAILURE ? FAILURE : after == LOST || between == LOST ? LOST : KEPT;
}
