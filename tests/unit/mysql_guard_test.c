/* mysql_guard_test.c - what keeps the client libraries in bounds: their deadlines and their signal. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/mysql/link/guard.h"
#include "drivers/mysql/link/library.h"
#include "driver_env.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

TestSuite(mysql_guard, .timeout = 60);
TestSuite(mysql_quiet, .timeout = 60);

static dl_error_t err;

/* ---- the guard --------------------------------------------------------------------------------------- */

static dl_driver_env_t env;
static atomic_int broadcasts;

static void broadcast(pthread_cond_t *cond) {
    atomic_fetch_add(&broadcasts, 1);
    dli_sys_real.cond_broadcast(cond);
}

static int no_thread(pthread_t *thread, void *(*fn)(void *), void *arg) {
    (void)thread;
    (void)fn;
    (void)arg;
    return EAGAIN;
}

static dli_mysql_guard_t *open_guard(void) {
    dli_mysql_guard_t *guard;
    env = make_env("", NULL, NULL);
    env.cond_broadcast = broadcast;
    cr_assert_eq(dli_mysql_guard_open(&env, &guard, &err), DL_OK, "%s", err.message);
    return guard;
}

/* Blocks until the socket is shut down. */
static void await_end(int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    char byte;
    cr_assert_eq(poll(&entry, 1, 20000), 1, "nobody ended it");
    cr_assert_eq(recv(fd, &byte, 1, 0), 0);
}

Test(mysql_guard, ends_what_is_late_and_nothing_else) {
    enum { N = 20 };
    dli_mysql_guard_t *guard = open_guard();
    dli_mysql_guarded_t calls[N];
    int fds[N][2];
    uint64_t now = env.now_ns();
    for (int i = 0; i < N; i++) {
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds[i]), 0);
        /* Every other one is late soon; the rest never, or not for a long time. */
        uint64_t late = i % 4 == 1 ? DL_NO_DEADLINE : now + 3600000 * MS;
        calls[i] = (dli_mysql_guarded_t){.fd = fds[i][0],
                                         .deadline_ns = i % 2 == 0 ? now + (uint64_t)(40 + i) * MS : late};
        dli_mysql_guard_arm(guard, &calls[i]);
    }
    for (int i = 0; i < N; i += 2) {
        await_end(fds[i][1]);
        cr_assert_geq(env.now_ns(), calls[i].deadline_ns);
    }
    for (int i = 0; i < N; i++) {
        cr_assert_eq(dli_mysql_guard_disarm(guard, &calls[i]), i % 2 == 0, "%d", i);
        cr_assert_eq(send(fds[i][1], "x", 1, MSG_NOSIGNAL), i % 2 == 0 ? -1 : 1);
    }
    dli_mysql_guard_close(guard, false);
}

Test(mysql_guard, does_not_touch_what_was_disarmed) {
    dli_mysql_guard_t *guard = open_guard();
    dli_mysql_guarded_t first, second;
    int fds[2], others[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, others), 0);
    first = (dli_mysql_guarded_t){.fd = fds[0], .deadline_ns = env.now_ns() + 20 * MS};
    second = (dli_mysql_guarded_t){.fd = others[0], .deadline_ns = env.now_ns() + 40 * MS};
    dli_mysql_guard_arm(guard, &first);
    cr_assert_not(dli_mysql_guard_disarm(guard, &first));
    dli_mysql_guard_arm(guard, &second);
    await_end(others[1]); /* so that the first's time is over too */
    cr_assert(dli_mysql_guard_disarm(guard, &second));
    cr_assert_eq(send(fds[1], "x", 1, MSG_NOSIGNAL), 1);
    dli_mysql_guard_close(guard, false);
}

Test(mysql_guard, is_woken_only_for_what_is_due_earlier) {
    dli_mysql_guard_t *guard = open_guard();
    dli_mysql_guarded_t call;
    int fds[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    for (int i = 0; i < 1000; i++) {
        call = (dli_mysql_guarded_t){.fd = fds[0], .deadline_ns = env.now_ns() + 3600000 * MS};
        dli_mysql_guard_arm(guard, &call);
        cr_assert_not(dli_mysql_guard_disarm(guard, &call));
    }
    cr_assert_eq(atomic_load(&broadcasts), 1);
    call.deadline_ns = env.now_ns() + 10 * MS;
    dli_mysql_guard_arm(guard, &call);
    await_end(fds[1]);
    cr_assert(dli_mysql_guard_disarm(guard, &call));
    cr_assert_eq(atomic_load(&broadcasts), 2);
    dli_mysql_guard_close(guard, false);
    dli_mysql_guard_close(NULL, false);
}

Test(mysql_guard, without_a_thread_it_does_not_open) {
    dli_mysql_guard_t *guard;
    env = make_env("", NULL, NULL);
    env.thread_start = no_thread;
    cr_assert_eq(dli_mysql_guard_open(&env, &guard, &err), DL_ELIMIT);
    cr_assert_null(guard);
    cr_assert_eq(err.native, EAGAIN);
}

/* ---- SIGPIPE ----------------------------------------------------------------------------------------- */

static atomic_int signals;

static void count_signal(int number) {
    (void)number;
    atomic_fetch_add(&signals, 1);
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = count_signal};
    cr_assert_eq(sigaction(SIGPIPE, &action, NULL), 0);
}

static void write_to_nobody(void) {
    int fds[2];
    cr_assert_eq(pipe(fds), 0);
    close(fds[0]);
    cr_assert_eq(write(fds[1], "x", 1), -1);
    cr_assert_eq(errno, EPIPE);
    close(fds[1]);
}

static bool is_pending(void) {
    sigset_t set;
    cr_assert_eq(sigpending(&set), 0);
    return sigismember(&set, SIGPIPE) == 1;
}

static bool block_pipe(int how) {
    sigset_t pipe, before;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    cr_assert_eq(pthread_sigmask(how, &pipe, &before), 0);
    return sigismember(&before, SIGPIPE) == 1;
}

Test(mysql_quiet, swallows_its_own_signal_only) {
    dli_mysql_quiet_t quiet;
    catch_signals();
    dli_mysql_quiet_begin(&quiet, NULL, DLI_UNFORKED_OPENSSL);
    write_to_nobody();
    dli_mysql_quiet_end(&quiet);
    cr_assert_eq(atomic_load(&signals), 0);
    cr_assert_not(block_pipe(SIG_BLOCK), "it was left blocked");
    block_pipe(SIG_UNBLOCK);
    write_to_nobody();
    cr_assert_eq(atomic_load(&signals), 1);
}

Test(mysql_quiet, leaves_a_thread_that_blocks_it_as_it_was) {
    dli_mysql_quiet_t quiet;
    catch_signals();
    block_pipe(SIG_BLOCK);
    dli_mysql_quiet_begin(&quiet, NULL, DLI_UNFORKED_OPENSSL);
    write_to_nobody();
    dli_mysql_quiet_end(&quiet);
    cr_assert_not(is_pending(), "ours was left to the program");
    cr_assert(block_pipe(SIG_BLOCK), "it was unblocked");
    write_to_nobody(); /* the program's own */
    cr_assert(is_pending());
    dli_mysql_quiet_begin(&quiet, NULL, DLI_UNFORKED_OPENSSL);
    write_to_nobody();
    dli_mysql_quiet_end(&quiet);
    cr_assert(is_pending(), "the program's was taken");
    block_pipe(SIG_UNBLOCK);
    cr_assert_eq(atomic_load(&signals), 1);
}

Test(mysql_quiet, the_library_starts_without_changing_the_disposition) {
    struct sigaction action;
    catch_signals();
    cr_assert_eq(dli_mysql_library_start(&err), DL_OK);
    cr_assert_eq(dli_mysql_library_start(&err), DL_OK);
    cr_assert_eq(sigaction(SIGPIPE, NULL, &action), 0);
    cr_assert_eq(action.sa_handler, count_signal);
    cr_assert(strncmp(dli_mysql_library_name(), "MariaDB Connector/C 3.", 22) == 0 ||
                  strncmp(dli_mysql_library_name(), "MySQL client library ", 21) == 0,
              "%s", dli_mysql_library_name());
}
