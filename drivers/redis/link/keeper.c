/* keeper.c - a thread that looks after idle connections, where the configuration asks for it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define NS_PER_MS 1000000u
#define CHECK_MIN_MS 10

static const char ping[] = "*1\r\n$4\r\nPING\r\n";

dl_status_t dli_keeper_read_owed(dli_member_t *member, short revents, dl_error_t *err) {
    dl_status_t status = dli_conn_step(member->conn, revents, err);
    while (status == DL_OK && member->owed > 0) {
        redisReply *reply = NULL;
        status = dli_conn_next(member->conn, &reply, err);
        if (reply == NULL) {
            break;
        }
        freeReplyObject(reply);
        member->owed--;
    }
    return status;
}

bool dli_keeper_is_late(const dli_pool_t *pool, const dli_member_t *member, uint64_t now_ns) {
    return member->owed > 0 && now_ns > member->tested_ns &&
           now_ns - member->tested_ns > (uint64_t)pool->env->call_timeout_ms * NS_PER_MS;
}

/* Does not block. false: the connection is of no use. */
static bool test(const dli_pool_t *pool, dli_member_t *member, uint64_t now_ns) {
    dl_error_t err;
    member->looked_ns = now_ns;
    if (member->owed > 0) {
        if (dli_keeper_read_owed(member, POLLIN, &err) != DL_OK || dli_keeper_is_late(pool, member, now_ns)) {
            return false;
        }
        if (member->owed > 0) {
            return true;
        }
    }
    if (!dli_conn_is_quiet(member->conn) ||
        dli_conn_send(member->conn, ping, sizeof ping - 1, &err) != DL_OK) {
        return false;
    }
    member->owed++;
    member->tested_ns = now_ns;
    return true;
}

static void test_idle(dli_pool_t *pool, uint64_t every_ns) {
    dli_member_t *member;
    uint64_t now_ns = pool->env->now_ns();
    /* A little less than a whole turn, since the clock is not that regular. */
    uint64_t since_ns = now_ns - (every_ns - every_ns / 8);
    for (dli_lane_t lane = DLI_LANE_CALLS; lane <= DLI_LANE_RENEWALS; lane++) {
        while ((member = dli_pool_take_neglected(pool, lane, since_ns)) != NULL) {
            if (test(pool, member, now_ns)) {
                dli_pool_put_back(pool, member);
            } else {
                dli_pool_drop(pool, member, true);
            }
        }
    }
}

static void drain(const dli_keeper_t *keeper) {
    uint64_t count;
    ssize_t n = read(keeper->fd, &count, sizeof count);
    (void)n;
}

/* true: made one more. */
static bool add_one(dli_keeper_t *keeper) {
    dli_pool_t *pool = keeper->pool;
    dli_member_t *member;
    dl_error_t err;
    if (dli_pool_connect(pool, DLI_LANE_CALLS, false, &member, &err) != DL_OK) {
        return false;
    }
    while (!dli_conn_is_ready(member->conn)) {
        struct pollfd fds[2] = {{.fd = -1}, {.fd = keeper->fd, .events = POLLIN}};
        dli_conn_want(member->conn, &fds[0]);
        int n = pool->env->poll(fds, 2, dli_conn_until(member->conn));
        if (n < 0 || atomic_load(&keeper->is_stopping)) {
            dli_pool_connect_cut(pool, member);
            return false;
        }
        if (fds[1].revents != 0) {
            drain(keeper);
        }
        dl_status_t status = dli_conn_step(member->conn, fds[0].revents, &err);
        if (status != DL_OK) {
            dli_pool_connect_failed(pool, member, status, &err);
            return false;
        }
    }
    dli_pool_connected(pool, member);
    dli_pool_give_back(pool, member);
    return true;
}

/* Until the next check, or until somebody writes to the descriptor. */
static void doze(dli_keeper_t *keeper, uint64_t until_ns) {
    struct pollfd fd = {.fd = keeper->fd, .events = POLLIN};
    if (keeper->pool->env->poll(&fd, 1, until_ns) > 0) {
        drain(keeper);
    }
}

static void *keep(void *arg) {
    dli_keeper_t *keeper = arg;
    dli_pool_t *pool = keeper->pool;
    int64_t every_ms = pool->options.idle_check_ms;
    uint64_t every_ns = (uint64_t)(every_ms < CHECK_MIN_MS ? CHECK_MIN_MS : every_ms) * NS_PER_MS;
    while (!atomic_load(&keeper->is_awake) && !atomic_load(&keeper->is_stopping)) {
        doze(keeper, DL_NO_DEADLINE);
    }
    while (!atomic_load(&keeper->is_stopping)) {
        dli_pool_close_old(pool);
        if (pool->options.test_while_idle) {
            test_idle(pool, every_ns);
        }
        while (!atomic_load(&keeper->is_stopping) && dli_pool_is_short(pool) && add_one(keeper)) {}
        doze(keeper, pool->env->now_ns() + every_ns);
    }
    return NULL;
}

dl_status_t dli_keeper_start(dli_keeper_t *keeper, dli_pool_t *pool, dl_error_t *err) {
    keeper->pool = pool;
    keeper->fd = -1;
    if (pool->options.min_idle <= 0 && !pool->options.test_while_idle) {
        return DL_OK;
    }
    keeper->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (keeper->fd < 0) {
        return dl_driver_fail(err, DL_ELIMIT, errno,
                              "no descriptor for the thread that tests connections: %s", strerror(errno));
    }
    int error = pool->env->thread_start(&keeper->thread, keep, keeper);
    if (error != 0) {
        close(keeper->fd);
        return dl_driver_fail(err, DL_ELIMIT, error, "cannot start the thread that tests connections: %s",
                              strerror(error));
    }
    keeper->is_running = true;
    return DL_OK;
}

static void poke(dli_keeper_t *keeper) {
    uint64_t one = 1;
    ssize_t n = write(keeper->fd, &one, sizeof one); /* fails only when it is readable already */
    (void)n;
}

void dli_keeper_wake(dli_keeper_t *keeper) {
    if (keeper->is_running && !atomic_exchange(&keeper->is_awake, true)) {
        poke(keeper);
    }
}

void dli_keeper_stop(dli_keeper_t *keeper, bool forked) {
    if (!keeper->is_running) {
        return;
    }
    if (!forked) {
        atomic_store(&keeper->is_stopping, true);
        poke(keeper);
        keeper->pool->env->thread_join(keeper->thread);
    }
    close(keeper->fd);
}
