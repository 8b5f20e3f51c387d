/* race.c - many processes with many threads sell one stock until each sees it empty. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stage.h"

/* What the threads count, in memory that the processes share: each has a place of its own. */
typedef struct tally {
    long sold, again;
} tally_t;

typedef struct worker {
    const stage_t *stage;
    dl_lock_t *lock;
    tally_t *tally;
    int failed;
} worker_t;

static void *sell_all(void *arg) {
    worker_t *worker = arg;
    seller_t seller = {.way = worker->stage->way, .lock = worker->lock, .lease_ms = DL_LEASE_AUTO};
    sale_t sale = FAILED;

    seller.shop = shop_open(worker->stage->options);
    while (seller.shop && (sale = sell(&seller, 1)) == SOLD)
        worker->tally->sold++;
    worker->tally->again = seller.again;
    worker->failed = sale != SOLD_OUT;
    shop_close(seller.shop);
    return NULL;
}

/* One process; its threads share a client and a handle, each thread is an owner of its own. */
static int run_process(const stage_t *stage, tally_t *tallies, int threads) {
    pthread_t ids[THREADS_MAX];
    worker_t workers[THREADS_MAX];
    dl_client_t *client = NULL;
    dl_lock_t *lock = NULL;
    int failed = shop_start() != 0 || stage_open_lock(stage, &client, &lock) != 0, started = 0;

    for (; !failed && started < threads; started++) {
        workers[started] = (worker_t){.stage = stage, .lock = lock, .tally = &tallies[started]};
        if (pthread_create(&ids[started], NULL, sell_all, &workers[started]) != 0) {
            fprintf(stderr, "reduce_stock_mysql: a thread cannot be started\n");
            failed = 1;
            break;
        }
    }
    for (int i = 0; i < started; i++) {
        pthread_join(ids[i], NULL);
        failed |= workers[i].failed;
    }
    dl_lock_close(lock);
    dl_client_close(client);
    return failed;
}

static int print_result(const stage_t *stage, const tally_t *tallies, int count, long stock) {
    long sold = 0, again = 0, left = stage_stock(stage);

    if (left < 0)
        return FAILURE;
    for (int i = 0; i < count; i++) {
        sold += tallies[i].sold;
        again += tallies[i].again;
    }
    long lost = sold - (stock - left);
    printf("%s: the stock went from %ld to %ld, and %ld were sold; sellers began anew %ld times\n",
           way_name(stage->way), stock, left, sold, again);
    if (lost == 0)
        printf("%s: no update was lost, nothing was oversold\n", way_name(stage->way));
    else
        printf("%s: %ld updates were lost: so many were sold that were not there\n", way_name(stage->way),
               lost);
    return lost == 0 ? KEPT : LOST;
}

int race(const stage_t *stage, long stock, int processes, int threads) {
    size_t size = (size_t)processes * (size_t)threads * sizeof(tally_t);
    tally_t *tallies = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failed = 0, status;

    if (tallies == MAP_FAILED) {
        fprintf(stderr, "reduce_stock_mysql: memory: %s\n", strerror(errno));
        return FAILURE;
    }
    if (stage_fill(stage, stock) != 0)
        return FAILURE;
    for (int i = 0; i < processes; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(run_process(stage, tallies + i * threads, threads));
        failed |= pid < 0;
    }
    while (wait(&status) > 0)
        failed |= status != 0;
    int result = failed ? FAILURE : print_result(stage, tallies, processes * threads, stock);
    munmap(tallies, size);
    return result;
}
