/* redis_link_ends_test.c - the link to a Redis server: calls that are given up, and fork. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_link_fixture.h"

#include "support/entries.h"

TestSuite(redis_link_ends, .init = set_up, .fini = tear_down, .timeout = 60);

/* ---- giving up -------------------------------------------------------------------------------------- */

Test(redis_link_ends, a_call_ends_at_its_deadline_whatever_the_server_does) {
    open_link();
    warm_up(1);
    kill(server.pid, SIGSTOP);
    dl_error_t err;
    uint64_t begun = now_ms();
    cr_assert_eq(ask_full("PING", DLI_PLAIN, 60, NULL, &err), DL_EUNKNOWN);
    cr_assert_geq(now_ms() - begun, 59);
    cr_assert_lt(now_ms() - begun, 160);
    cr_assert_has(err.message, "no answer in time");
    /* The backlog takes a new connection, and nobody greets it: nothing of the caller's left. */
    begun = now_ms();
    cr_assert_eq(ask_full("PING", DLI_PLAIN, 60, NULL, &err), DL_EIO);
    cr_assert_geq(now_ms() - begun, 59);
    cr_assert_lt(now_ms() - begun, 160);
    cr_assert_has(err.message, "no connection in time");
    call_t late;
    prepare(&late, "PING", 0);
    cr_assert_eq(run(&late), DL_EIO);
    cr_assert_eq(late.x.sent_ns, 0);
    clear(&late);
    kill(server.pid, SIGCONT);
    cr_assert_eq(atomic_load(&warnings), 0, "%s",
                 reported); /* these deadlines say nothing about the server */
    cr_assert_eq(ask("PING"), DL_OK);
}

/* A network that forgot its connections says nothing on any of them, and each would cost a call. */
Test(redis_link_ends, after_a_long_silence_no_idle_connection_is_trusted) {
    open_link_over_relay();
    call_t renewal;
    prepare(&renewal, "PING", 2000);
    renewal.x.lane = DLI_LANE_RENEWALS;
    cr_assert_eq(run(&renewal), DL_OK);
    clear(&renewal);
    warm_up(4);
    for (int i = 0; i < 5; i++) {
        atomic_store(&relay_held[i], 1);
    }
    cr_assert_eq(ask_full("PING", DLI_PLAIN, 250, NULL, NULL), DL_EUNKNOWN);
    cr_assert_eq(ask("PING"), DL_OK);
    prepare(&renewal, "PING", 2000);
    renewal.x.lane = DLI_LANE_RENEWALS;
    cr_assert_eq(run(&renewal), DL_OK);
    clear(&renewal);
    cr_assert_eq(atomic_load(&relay_pairs), 7);
}

Test(redis_link_ends, a_short_silence_is_blamed_on_one_connection_only) {
    open_link_over_relay();
    warm_up(2);
    atomic_store(&relay_held[1], 1);
    cr_assert_eq(ask_full("PING", DLI_PLAIN, 50, NULL, NULL), DL_EUNKNOWN);
    cr_assert_eq(ask("PING"), DL_OK);
    cr_assert_eq(atomic_load(&relay_pairs), 2);
}

Test(redis_link_ends, a_connection_that_was_heard_of_during_the_silence_stays) {
    open_link_over_relay();
    warm_up(2);
    atomic_store(&relay_held[1], 1);
    call_t silent;
    prepare(&silent, "PING", 250);
    begin(&silent); /* on the one used last */
    cr_assert_eq(ask("PING"), DL_OK);
    cr_assert_eq(drive(&silent), DL_EUNKNOWN);
    clear(&silent);
    cr_assert_eq(ask("PING"), DL_OK);
    cr_assert_eq(atomic_load(&relay_pairs), 2);
}

/* ---- calls that are shorter than it takes to connect --------------------------------------------------- */

Test(redis_link_ends, a_connection_that_was_begun_in_vain_serves_the_next_call) {
    dl_error_t err;
    open_link_over_relay();
    atomic_store(&relay_held[0], 1);
    cr_assert_eq(ask_full("PING", DLI_PLAIN, 50, NULL, &err), DL_EIO);
    cr_assert_has(err.message, "no connection in time");
    cr_assert_eq(ask_full("PING", DLI_PLAIN, 50, NULL, &err), DL_EIO);
    atomic_store(&relay_held[0], 0);
    cr_assert_eq(ask("PING"), DL_OK);
    cr_assert_eq(atomic_load(&relay_pairs), 1);
    cr_assert_eq(atomic_load(&warnings), 0, "%s", reported);
}

Test(redis_link_ends, a_connection_begun_long_ago_is_not_gone_on_with) {
    open_link_over_relay();
    atomic_store(&relay_held[0], 1);
    cr_assert_eq(ask_full("PING", DLI_PLAIN, 50, NULL, NULL), DL_EIO);
    (void)poll(NULL, 0, 520); /* more than half of connect_timeout */
    cr_assert_eq(ask("PING"), DL_OK);
    cr_assert_eq(atomic_load(&relay_pairs), 2);
    atomic_store(&relay_held[0], 0); /* it holds back the hang-up, too */
    AWAIT_THAT(connections(), ==, 1);
}

static void *let_go(void *arg) {
    (void)arg;
    (void)poll(NULL, 0, 120);
    atomic_store(&relay_held[0], 0);
    return NULL;
}

/* The greeting shows how far the server is: what cannot be answered in time is better not claimed. */
Test(redis_link_ends, a_claim_whose_answer_would_come_too_late_is_not_sent) {
    pthread_t thread;
    call_t claim;
    open_link_over_relay();
    atomic_store(&relay_held[0], 1);
    cr_assert_eq(pthread_create(&thread, NULL, let_go, NULL), 0);
    prepare(&claim, "SET it mine", 200);
    claim.x.intent = DLI_CLAIM;
    cr_assert_eq(run(&claim), DL_EIO);
    cr_assert_eq(claim.x.sent_ns, 0);
    cr_assert_has(claim.err.message, "no time is left");
    clear(&claim);
    pthread_join(thread, NULL);
    cr_assert_eq(tell(&server, "EXISTS it"), 0);
    cr_assert_eq(ask_full("SET it mine", DLI_CLAIM, 100, NULL, NULL), DL_OK);
    cr_assert_eq(atomic_load(&relay_pairs), 1);
}

/* ---- and those that are stopped ------------------------------------------------------------------------ */

typedef struct stopper {
    int fd;
    uint64_t after_ms;
} stopper_t;

static void *trip(void *arg) {
    stopper_t *stopper = arg;
    (void)poll(NULL, 0, (int)stopper->after_ms);
    cr_assert_eq(write(stopper->fd, "x", 1), 1);
    return NULL;
}

/* Runs a call that is stopped after a while, by the descriptor at `which`. */
static dl_status_t run_stopped(int which) {
    int ends[2];
    pthread_t thread;
    dl_stop_t stop = {{-1, -1}};
    call_t call;
    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    stop.fd[which] = ends[0];
    stopper_t stopper = {.fd = ends[1], .after_ms = 50};
    prepare(&call, "PING", 5000);
    call.x.stop = &stop;
    cr_assert_eq(pthread_create(&thread, NULL, trip, &stopper), 0);
    uint64_t begun = now_ms();
    dl_status_t status = run(&call);
    cr_assert_lt(now_ms() - begun, 150, "%d", (int)(now_ms() - begun));
    pthread_join(thread, NULL);
    close(ends[0]);
    close(ends[1]);
    clear(&call);
    return status;
}

Test(redis_link_ends, a_stop_descriptor_ends_a_call_wherever_it_stands) {
    options.max_total = 1;
    open_link();
    warm_up(1);
    kill(server.pid, SIGSTOP);
    cr_assert_eq(run_stopped(0), DL_EUNKNOWN);  /* waiting for the reply */
    cr_assert_eq(run_stopped(1), DL_ECANCELED); /* waiting for the handshake */
    kill(server.pid, SIGCONT);
    warm_up(1);
    call_t busy;
    prepare(&busy, "PING", 2000);
    begin(&busy);
    cr_assert_eq(run_stopped(0), DL_ECANCELED); /* in the queue */
    cr_assert_eq(drive(&busy), DL_OK);
    clear(&busy);
}

Test(redis_link_ends, the_answer_to_a_call_given_up_is_never_taken_for_another) {
    open_link_over_relay();
    warm_up(1);
    atomic_store(&relay_held[0], 1);
    cr_assert_eq(ask_full("ECHO first", DLI_PLAIN, 40, NULL, NULL), DL_EUNKNOWN);
    call_t second;
    prepare(&second, "ECHO second", 2000);
    begin(&second);
    atomic_store(&relay_held[0], 0); /* now the answer to the first comes */
    cr_assert_eq(drive(&second), DL_OK, "%s", second.err.message);
    cr_assert_str_eq(second.replies[0]->str, "second");
    clear(&second);
    cr_assert_eq(atomic_load(&reconnects), 1);
}

/* ---- fork ------------------------------------------------------------------------------------------- */

Test(redis_link_ends, a_forked_child_closes_descriptors_and_disturbs_nobody) {
    options.max_total = 4;
    options.min_idle = 1;
    options.test_while_idle = true;
    int before = open_descriptors();
    open_link();
    call_t calls[6];
    begin_all(calls, 6, "ECHO parent", 5000); /* two of them queue */
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dli_link_close(link_, true);
        _exit(open_descriptors() == before ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status), "%d", status);
    cr_assert_eq(WEXITSTATUS(status), 0, "%d", status);
    for (int i = 0; i < 6; i++) {
        cr_assert_eq(drive(&calls[i]), DL_OK, "%s", calls[i].err.message);
        cr_assert_str_eq(calls[i].replies[0]->str, "parent");
        clear(&calls[i]);
    }
    cr_assert_eq(ask("PING"), DL_OK);
    cr_assert_eq(atomic_load(&reconnects), 0);
}
