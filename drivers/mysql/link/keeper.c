/* keeper.c - a thread that looks after idle connections. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define NS_PER_MS ((uint64_t)1000000)
#define CHECK_MIN_MS 10
/* Servers have patience for a minute at least: kept connections are looked at in time. */
#define CHECK_MAX_MS 20000

/* Is the keeper to end? */
static bool is_over(const dli_mysql_keeper_t *keeper) {
    return atomic_load(&keeper->is_stopping);
}

/* Asks until one is deaf: the others are suspect then, and are tested by those who use them. */
static void test_idle(dli_mysql_keeper_t *keeper, dli_mysql_lane_t lane, uint64_t every_ns) {
    dli_mysql_pool_t *pool = keeper->pool;
    dl_stop_t stop = {{keeper->fd, -1}};
    /* A little less than a whole turn, since the clock is not that regular. */
    uint64_t since_ns = pool->env.now_ns() - (every_ns - every_ns / 8);
    dli_mysql_member_t *member;
    while (!is_over(keeper) && (member = dli_mysql_pool_take_neglected(pool, lane, since_ns)) != NULL) {
        uint64_t began_ns = pool->env.now_ns();
        uint64_t until_ns = began_ns + (uint64_t)pool->env.call_timeout_ms * NS_PER_MS;
        bool is_alive = !dli_mysql_conn_is_broken(member->conn) &&
                        dli_mysql_pool_test(pool, member, until_ns, &stop) == DL_OK;
        if (is_alive) {
            dli_mysql_pool_put_back(pool, member);
        } else {
            dli_mysql_pool_drop(pool, member);
        }
        if (!is_alive && pool->env.now_ns() >= until_ns) {
            break;
        }
    }
}

/* Until the next check, or until somebody writes to the descriptor. */
static void doze(dli_mysql_keeper_t *keeper, uint64_t until_ns) {
    struct pollfd fd = {.fd = keeper->fd, .events = POLLIN};
    uint64_t count;
    if (keeper->pool->env.poll(&fd, 1, until_ns) > 0) {
        ssize_t n = read(keeper->fd, &count, sizeof count);
        (void)n;
    }
}

static void look_after(dli_mysql_keeper_t *keeper, uint64_t idle_check_ns) {
    dli_mysql_pool_t *pool = keeper->pool;
    dli_mysql_pool_close_old(pool);
    for (dli_mysql_lane_t lane = 0; lane < DLI_MYSQL_LANES; lane++) {
        test_idle(keeper, lane, idle_check_ns);
        /* Where each comes to nothing at once, as without threads, the next turn is soon enough. */
        int64_t left = pool->lanes[lane].keep;
        while (left-- > 0 && !is_over(keeper) && dli_mysql_pool_is_short(pool, lane) &&
               dli_mysql_pool_make_spare(pool, lane)) {}
    }
    dli_mysql_pool_tell(pool);
}

static void *keep(void *arg) {
    dli_mysql_keeper_t *keeper = arg;
    dli_mysql_pool_t *pool = keeper->pool;
    int64_t check_ms =
        pool->options.idle_check_ms > CHECK_MIN_MS ? pool->options.idle_check_ms : CHECK_MIN_MS;
    int64_t turn_ms = check_ms < CHECK_MAX_MS ? check_ms : CHECK_MAX_MS;
    do { /* at least once, so that what woke it is read: later it would end a test */
        doze(keeper, DL_NO_DEADLINE);
    } while (!atomic_load(&keeper->is_awake) && !is_over(keeper));
    while (!is_over(keeper)) {
        look_after(keeper, (uint64_t)check_ms * NS_PER_MS);
        doze(keeper, pool->env.now_ns() + (uint64_t)turn_ms * NS_PER_MS);
    }
    dli_mysql_library_thread_end();
    return NULL;
}

dl_status_t dli_mysql_keeper_start(dli_mysql_keeper_t *keeper, dli_mysql_pool_t *pool, dl_error_t *err) {
    keeper->pool = pool;
    keeper->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (keeper->fd < 0) {
        return dl_driver_fail(err, DL_ELIMIT, errno,
                              "no descriptor for the thread that looks after connections: %s",
                              strerror(errno));
    }
    int error = pool->env.thread_start(&keeper->thread, keep, keeper);
    if (error != 0) {
        close(keeper->fd);
        return dl_driver_fail(err, DL_ELIMIT, error,
                              "cannot start the thread that looks after connections: %s", strerror(error));
    }
    keeper->is_running = true;
    return DL_OK;
}

static void poke(dli_mysql_keeper_t *keeper) {
    uint64_t one = 1;
    ssize_t n = write(keeper->fd, &one, sizeof one); /* fails only when it is readable already */
    (void)n;
}

void dli_mysql_keeper_wake(dli_mysql_keeper_t *keeper) {
    if (!atomic_load(&keeper->is_awake) && !atomic_exchange(&keeper->is_awake, true)) {
        poke(keeper);
    }
}

void dli_mysql_keeper_stop(dli_mysql_keeper_t *keeper, bool forked) {
    if (!keeper->is_running) {
        return;
    }
    if (!forked) {
        atomic_store(&keeper->is_stopping, true);
        poke(keeper);
        keeper->pool->env.thread_join(keeper->thread);
    }
    close(keeper->fd);
}
