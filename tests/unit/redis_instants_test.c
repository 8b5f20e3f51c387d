/* redis_instants_test.c - when a request counts as sent, whom it delays, what its answer cannot be. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_driver_fixture.h"

#include <pthread.h>

#include "drivers/redis/link/pipe.h"
#include "drivers/redis/lock.h"

TestSuite(redis_instants, .init = set_up, .fini = tear_down, .timeout = 60);

/* ---- when it was sent ------------------------------------------------------------------------------- */

static uint64_t first_poll_ns; /* 0: nobody has waited yet */

/* A driver waits only for what it has sent. The server is stopped until then. */
static int poll_noted(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    if (first_poll_ns == 0) {
        first_poll_ns = ran_ns();
        cr_assert_eq(kill(server.pid, SIGCONT), 0);
    }
    return poll_while_it_runs(fds, n, deadline_ns);
}

/* So that the next request has to be waited for. */
static uint64_t stop_server(void) {
    cr_assert_eq(kill(server.pid, SIGSTOP), 0);
    first_poll_ns = 0;
    return ran_ns();
}

static void expect_between(uint64_t before_ns, uint64_t sent_ns, const char *what) {
    cr_assert_gt(first_poll_ns, 0, "%s: nobody waited", what);
    cr_assert_geq(sent_ns, before_ns, "%s: counts from before the call", what);
    cr_assert_leq(sent_ns, first_poll_ns, "%s: counts from the reply", what);
}

Test(redis_instants, a_request_counts_from_before_the_server_had_it) {
    for (int i = 0; i < 4; i++) {
        client_t c;
        dl_grant_t grant;
        prepare(&c, drivers[i % 2], UUID_A);
        c.env.poll = poll_noted;
        if (i >= 2) {
            set_number(&c, DLI_REDIS_OPT_MIN_REPLICAS, 1);
            set_number(&c, DLI_REDIS_OPT_REPLICA_TIMEOUT, 10);
            set_text(&c, DLI_REDIS_OPT_REPLICA_SHORTFALL, "warn");
        }
        cr_assert_eq(open_prepared(&c), DL_OK, "%s", c.err.message);
        cr_assert_eq(lock_name(&c, "warm", A, 1), DL_OK); /* there is a connection now */
        dl_request_t r = request("orders", A, 2);
        uint64_t before_ns = stop_server();
        cr_assert_eq(lock_full(&c, &r, &grant), DL_OK, "%s", c.err.message);
        expect_between(before_ns, grant.sent_ns, "a lock");
        dl_renewal_t renewal = {.name = "orders", .name_len = 6, .owner = A, .hold_id = 2, .lease_ms = 30000};
        before_ns = stop_server();
        c.driver->renew(c.state, &renewal, 1, in_ms(2000));
        cr_assert_eq(renewal.status, DL_OK);
        expect_between(before_ns, renewal.sent_ns, "a renewal");
        ask("FLUSHALL", NULL);
        shut(&c);
    }
}

/* ---- who waits for whom ----------------------------------------------------------------------------- */

static void *lock_slowly(void *arg) {
    client_t *c = arg;
    dl_request_t r = request("orders", A, 1);
    dl_grant_t grant = {.session_fd = -1, .busy_ms = -1};
    dl_error_t err;
    cr_assert_eq(c->driver->try_acquire(c->state, NULL, &r, &grant, &err), DL_OK, "%s", err.message);
    return NULL;
}

Test(redis_instants, a_renewal_does_not_wait_for_a_connection_of_the_calls) {
    client_t c;
    pthread_t thread;
    prepare(&c, drivers[0], UUID_A);
    set_number(&c, DLI_REDIS_OPT_MAX_TOTAL, 1);
    set_number(&c, DLI_REDIS_OPT_MIN_REPLICAS, 1);
    set_number(&c, DLI_REDIS_OPT_REPLICA_TIMEOUT, 800);
    set_text(&c, DLI_REDIS_OPT_REPLICA_SHORTFALL, "warn");
    cr_assert_eq(open_prepared(&c), DL_OK, "%s", c.err.message);
    /* The only connection for calls waits for a replica that is not there. */
    cr_assert_eq(pthread_create(&thread, NULL, lock_slowly, &c), 0);
    uint64_t until_ns = in_ms(2000);
    while (strcmp(ask("EXISTS", LOCK, NULL), "1") != 0) {
        cr_assert_lt(ran_ns(), until_ns);
    }
    dl_renewal_t renewal = {.name = "orders", .name_len = 6, .owner = A, .hold_id = 1, .lease_ms = 60000};
    c.driver->renew(c.state, &renewal, 1, in_ms(400));
    cr_assert_eq(renewal.status, DL_OK, "%d", (int)renewal.status);
    cr_assert_gt(left_ms(), 59000);
    pthread_join(thread, NULL);
    shut(&c);
}

/* A caller who reads its own replies, where nobody else does. */
typedef struct asker {
    dli_request_t request; /* first */
    dl_grant_t grant;
    dl_error_t err;
    dl_status_t status;
    uint64_t term;
    int told; /* so often, to look anew for what to read */
} asker_t;

static pthread_mutex_t core_mutex = PTHREAD_MUTEX_INITIALIZER;

static void lock_core(void *mutex) {
    pthread_mutex_lock(mutex);
}

static void unlock_core(void *mutex) {
    pthread_mutex_unlock(mutex);
}

static void tell_asker(void *core, dli_request_t *request) {
    (void)core;
    ((asker_t *)(void *)request)->told++;
}

static void asker_ended(dli_request_t *request, dl_status_t status) {
    request->pending = false;
    ((asker_t *)(void *)request)->status = status;
}

static void begin_to_ask(dli_redis_t *redis, asker_t *asker, const char *name, uint64_t hold_id) {
    *asker = (asker_t){.request = {.kind = DLI_ASK_TRY,
                                   .with = request(name, A, hold_id),
                                   .grant = &asker->grant,
                                   .err = &asker->err,
                                   .ended = asker_ended,
                                   .leads = true,
                                   .pending = true}};
    lock_core(&core_mutex);
    dli_redis_begin(redis, &asker->request);
    (void)dli_redis_flush(redis);
    unlock_core(&core_mutex);
}

/* Reads once. It goes on to lead. */
static void read_for_all(dli_redis_t *redis, asker_t *asker) {
    struct pollfd fds[DL_LISTEN_MAX];
    uint64_t until_ns = in_ms(2000), due_ns = until_ns;
    lock_core(&core_mutex);
    int n = dli_redis_lead_fds(redis, &asker->request, fds, false, &asker->term, &due_ns);
    unlock_core(&core_mutex);
    cr_assert_gt(n, 0, "another reads there");
    (void)redis->env->poll(fds, (nfds_t)n, due_ns < until_ns ? due_ns : until_ns);
    lock_core(&core_mutex);
    (void)dli_redis_lead(redis, asker->term, fds, (size_t)n);
    unlock_core(&core_mutex);
}

Test(redis_instants, who_is_refused_by_what_another_reads_is_told_to_read_on) {
    static const dli_backend_env_t core = {.core = &core_mutex,
                                           .lock = lock_core,
                                           .unlock = unlock_core,
                                           .look_again = tell_asker,
                                           .report = note_report};
    client_t c;
    asker_t mine, theirs;
    prepare(&c, drivers[0], UUID_A);
    set_number(&c, DLI_REDIS_OPT_MIN_REPLICAS, 1);
    set_number(&c, DLI_REDIS_OPT_REPLICA_TIMEOUT, 1);
    dli_redis_t *redis = calloc(1, dli_redis_string_driver.state_size);
    dli_redis_attach(redis, &core);
    cr_assert_eq(dli_redis_string_driver.open(redis, c.values, &c.env, in_ms(2000), &c.err), DL_OK, "%s",
                 c.err.message);
    begin_to_ask(redis, &mine, "mine", 1);
    begin_to_ask(redis, &theirs, "theirs", 2);
    /* What frees the lock that is refused is answered elsewhere, where nobody reads. */
    for (uint64_t until_ns = in_ms(5000); !dli_pipe_owes(&redis->mux.pipes[0]);) {
        cr_assert_lt(ran_ns(), until_ns);
        read_for_all(redis, &theirs);
    }
    cr_assert(mine.request.pending);
    cr_assert_eq(mine.told, 1);
    while (mine.request.pending) {
        read_for_all(redis, &mine);
    }
    cr_assert_eq(mine.status, DL_EIO, "%s", mine.err.message);
    cr_assert(mine.request.refused);
    lock_core(&core_mutex);
    (void)(theirs.request.pending && dli_redis_withdraw(redis, &theirs.request));
    unlock_core(&core_mutex);
    dli_redis_close(redis, 0);
    free(redis);
}

/* ---- an answer that cannot be its own ---------------------------------------------------------------- */

static const dli_pipe_t *under_way;

/* Until the answer comes the client has seen a larger token: so it is the answer to something older. */
static int poll_while_tokens_rise(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    for (uint64_t at = under_way->head; at != under_way->tail; at++) {
        under_way->slots[at & (under_way->cap - 1)].request->asked->with.token_floor = UINT64_C(1) << 52;
    }
    return poll_while_it_runs(fds, n, deadline_ns);
}

Test(redis_instants, after_an_answer_to_something_else_no_idle_connection_is_used) {
    for (int i = 0; i < 2; i++) {
        client_t c;
        dl_grant_t grant;
        prepare(&c, drivers[i], UUID_A);
        cr_assert_eq(open_prepared(&c), DL_OK, "%s", c.err.message);
        cr_assert_eq(lock_name(&c, "warm", A, 1), DL_OK, "%s", c.err.message);
        cr_assert_eq(free_name(&c, "warm", A, 1), DL_OK, "%s", c.err.message);
        under_way = &((const dli_redis_t *)drive_inner(c.state))->mux.pipes[0];
        int64_t before = under_way->facts.client_id;
        c.env.poll = poll_while_tokens_rise;
        dl_request_t asked = request("orders", A, 2);
        cr_assert_eq(lock_full(&c, &asked, &grant), DL_EUNKNOWN, "%s", c.err.message);
        c.env.poll = poll_while_it_runs;
        cr_assert_null(under_way->conn, "its connection is still there");
        cr_assert_eq(free_name(&c, "orders", A, 2), DL_OK, "%s", c.err.message);
        cr_assert_gt(under_way->facts.client_id, before, "its connection was used again");
        shut(&c);
    }
}
