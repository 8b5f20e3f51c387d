/* redis_conn_names_test.c - names of Redis servers: several addresses, none, and lookups that never end. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_conn_fixture.h"

#include <netdb.h>
#include <semaphore.h>
#include <sys/resource.h>

#include "drivers/redis/link/dial.h"
#include "drivers/unforked.h"

TestSuite(redis_names, .init = set_up, .fini = tear_down, .timeout = 60);

/* ---- the C library's lookups, played --------------------------------------------------------------- */

static sem_t asked, go;       /* a lookup of "hangs" has begun; may end */
static atomic_int given_back; /* lists freed */
static atomic_int cut_off;    /* lookups that fork() does not wait for */
static int played_code, played_errno;

static struct addrinfo *make_address(const char *text, const char *port, struct addrinfo *next) {
    struct sockaddr_in *at = calloc(1, sizeof *at);
    struct addrinfo *made = calloc(1, sizeof *made);
    at->sin_family = AF_INET;
    at->sin_port = htons((uint16_t)atoi(port));
    inet_pton(AF_INET, text, &at->sin_addr);
    *made = (struct addrinfo){.ai_family = AF_INET,
                              .ai_socktype = SOCK_STREAM,
                              .ai_addr = (struct sockaddr *)at,
                              .ai_addrlen = sizeof *at,
                              .ai_next = next};
    return made;
}

/* In place of the C library's. "two" has two addresses, "ours" one, "hangs" comes when it is told to. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **list) {
    if (hints->ai_flags & AI_NUMERICHOST) {
        return EAI_NONAME;
    }
    atomic_fetch_add(&cut_off, !dli_is_unforked(DLI_UNFORKED_LOOKUP));
    if (strcmp(host, "hangs") == 0) {
        sem_post(&asked);
        sem_wait(&go);
    } else if (strcmp(host, "fails") == 0) {
        errno = played_errno;
        return played_code;
    }
    *list = make_address("127.0.0.1", port, NULL);
    if (strcmp(host, "two") == 0) {
        *list = make_address("127.0.0.2", port, *list);
    }
    return 0;
}

void freeaddrinfo(struct addrinfo *list) {
    while (list != NULL) {
        struct addrinfo *next = list->ai_next;
        free(list->ai_addr);
        free(list);
        list = next;
    }
    atomic_fetch_add(&given_back, 1);
}

static void await_given_back(int count) {
    uint64_t end = now_ms() + PATIENCE_MS;
    while (atomic_load(&given_back) < count) {
        cr_assert_lt(now_ms(), end, "a lookup was never given back");
        sched_yield();
    }
}

static void call_it(const char *name) {
    snprintf(place_host, sizeof place_host, "%s", name);
}

/* ---- tests ------------------------------------------------------------------------------------------- */

Test(redis_names, a_name_is_looked_up_by_a_thread) {
    serve_tcp();
    call_it("ours");
    dli_conn_t *conn = ready_with_peer();
    cr_assert(dli_conn_is_quiet(conn));
    await_given_back(1); /* not needed once connected */
    dli_conn_close(conn, false);
    cr_assert_eq(atomic_load(&given_back), 1);
}

Test(redis_names, a_refusing_address_is_passed_over) {
    serve_tcp();
    call_it("two");
    dli_conn_t *conn = ready_with_peer();
    cr_assert(dli_conn_is_quiet(conn));
    dli_conn_close(conn, false);
}

Test(redis_names, when_all_addresses_refuse_the_last_is_named) {
    serve_tcp();
    call_it("two");
    close(listener);
    listener = -1;
    must_fail(&place, DL_EIO, "127.0.0.1:");
    cr_assert_has(err.message, "Connection refused");
}

/* A clock that the test sets, so that nobody waits and a busy machine is not late. */
static uint64_t ahead_ns;

static uint64_t now_ahead(void) {
    return ran_ns() + ahead_ns;
}

static int poll_ahead(struct pollfd *fds, nfds_t n, uint64_t until_ns) {
    return poll_while_it_runs(fds, n, until_ns > ahead_ns ? until_ns - ahead_ns : 0);
}

/* A connection that has begun with the first of two addresses. */
static dli_conn_t *connect_to_first(void) {
    dli_conn_t *conn;
    uint64_t began_ns = now_ahead();
    cr_assert_eq(begin(&place, &conn), DL_OK, "%s", err.message);
    while (dli_conn_until(conn) > began_ns + 8 * PATIENCE_MS / 10 * MS) {
        cr_assert_eq(turn(conn, 1), DL_OK, "%s", err.message);
    }
    return conn;
}

Test(redis_names, a_silent_address_has_its_share_of_the_time_only) {
    int port = 0;
    serve_tcp();
    port = atoi(place.port);
    int silent = listen_tcp("127.0.0.2", 0, &port), crowd[8];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, "127.0.0.2", &at.sin_addr);
    for (int i = 0; i < 8; i++) { /* its queue is full then, and the kernel drops who comes */
        crowd[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        connect(crowd[i], (struct sockaddr *)&at, sizeof at);
    }
    call_it("two");
    place.connect_timeout_ms = PATIENCE_MS;
    env.now_ns = now_ahead;
    env.poll = poll_ahead;
    dli_conn_t *conn = connect_to_first();
    struct pollfd fd = {.fd = listener, .events = POLLIN};
    ahead_ns = 3 * PATIENCE_MS / 10 * MS;
    cr_assert_eq(turn(conn, 0), DL_OK, "%s", err.message);
    cr_assert_eq(poll(&fd, 1, 50), 0, "the first address had no third of the time");
    ahead_ns = 6 * PATIENCE_MS / 10 * MS;
    cr_assert_eq(turn(conn, 0), DL_OK, "%s", err.message);
    cr_assert_eq(poll(&fd, 1, PATIENCE_MS), 1, "the first address had more than half of the time");
    dli_conn_close(conn, false);
    stop_serving(); /* and with nobody at the other address */
    conn = connect_to_first();
    ahead_ns += 6 * PATIENCE_MS / 10 * MS;
    cr_assert_eq(drive(conn), DL_EIO, "%s", err.message);
    cr_assert_has(err.message, "Connection refused");
    dli_conn_close(conn, false);
    for (int i = 0; i < 8; i++) {
        close(crowd[i]);
    }
    close(silent);
}

/* Most lookups are short, and a child that is forked in the midst may never look up a name. */
Test(redis_names, fork_waits_for_a_lookup_but_not_for_long) {
    int status;
    serve_tcp();
    call_it("hangs");
    cr_assert_eq(sem_init(&asked, 0, 0), 0);
    cr_assert_eq(sem_init(&go, 0, 0), 0);
    dli_conn_t *conn = connect_to_first();
    sem_wait(&asked);
    cr_assert_eq(atomic_load(&cut_off), 0);
    pid_t pid = fork(); /* ends, although the lookup does not */
    if (pid == 0) {
        _exit(dli_is_unforked(DLI_UNFORKED_LOOKUP));
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    sem_post(&go);
    dli_conn_close(conn, false);
    await_given_back(1);
}

Test(redis_names, names_that_are_not_there) {
    set_place("fails", 1);
    played_code = EAI_NONAME;
    must_fail(&place, DL_EIO, "cannot look up 'fails'");
    cr_assert_eq(strncmp(err.message, place.label, strlen(place.label)), 0, "%s", err.message);
    played_code = EAI_AGAIN;
    must_fail(&place, DL_EIO, "cannot look up 'fails'");
    played_code = EAI_MEMORY;
    must_fail(&place, DL_ENOMEM, "cannot look up 'fails'");
    played_code = EAI_SYSTEM;
    played_errno = EIO;
    must_fail(&place, DL_EIO, strerror(EIO));
    played_errno = EMFILE;
    must_fail(&place, DL_ELIMIT, strerror(EMFILE));
    cr_assert_eq(atomic_load(&given_back), 0);
}

Test(redis_names, a_lookup_that_hangs_holds_nobody_up) {
    dli_conn_t *conn;
    sem_init(&asked, 0, 0);
    sem_init(&go, 0, 0);
    set_place("hangs", 1);
    place.connect_timeout_ms = 100;
    uint64_t before = now_ms();
    must_fail(&place, DL_EIO, "not found in time");
    cr_assert_lt(now_ms() - before, 100 + SLACK_MS);
    before = now_ms();
    cr_assert_eq(begin(&place, &conn), DL_OK);
    sem_wait(&asked);
    sem_wait(&asked);
    dli_conn_close(conn, false); /* nobody waits for the thread */
    cr_assert_lt(now_ms() - before, SLACK_MS);
    memset(&env, 0xff, sizeof env); /* and it asks nothing of us afterwards */
    sem_post(&go);
    sem_post(&go);
    await_given_back(2);
}

Test(redis_names, a_child_closes_while_a_lookup_hangs) {
    dli_conn_t *conn;
    int status = -1;
    sem_init(&asked, 0, 0);
    sem_init(&go, 0, 0);
    set_place("hangs", 1);
    cr_assert_eq(begin(&place, &conn), DL_OK);
    sem_wait(&asked);
    pid_t pid = fork();
    if (pid == 0) {
        struct pollfd fd;
        dli_conn_want(conn, &fd);
        dli_conn_close(conn, true);
        _exit(fcntl(fd.fd, F_GETFD) == -1 ? 0 : 1);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    sem_post(&go);
    cr_assert_eq(drive(conn), DL_EIO); /* the parent hears the answer: nobody listens there */
    cr_assert_has(err.message, "Connection refused");
    dli_conn_close(conn, false);
    await_given_back(1);
}

static int refuse_thread(pthread_t *thread, void *(*fn)(void *), void *arg) {
    (void)thread;
    (void)fn;
    (void)arg;
    return EAGAIN;
}

Test(redis_names, no_thread_and_no_descriptor_are_limits) {
    dli_conn_t *conn;
    struct rlimit old, none;
    set_place("ours", 1);
    getrlimit(RLIMIT_NOFILE, &old);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = old.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    dl_status_t status = dli_conn_start(&place, &env, &conn, &err);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    cr_assert_eq(status, DL_ELIMIT, "%s", err.message);
    env.thread_start = refuse_thread;
    cr_assert_eq(begin(&place, &conn), DL_ELIMIT, "%s", err.message);
    cr_assert_has(err.message, "cannot start a thread");
}

Test(redis_names, hanging_lookups_are_bounded_in_number) {
    enum { MANY = 256 };
    static char hangs_host[] = "hangs", ours_host[] = "ours";
    const dli_endpoint_t hangs = {.host = hangs_host, .port = "1"}, ours = {.host = ours_host, .port = "1"};
    static dli_resolve_t *hanging[MANY];
    dli_resolve_t *more;
    sem_init(&asked, 0, 0);
    sem_init(&go, 0, 0);
    for (int i = 0; i < MANY; i++) {
        cr_assert_eq(dli_resolve_start(&hangs, &env, &hanging[i], &err), DL_OK, "%s", err.message);
    }
    cr_assert_eq(dli_resolve_start(&hangs, &env, &more, &err), DL_ELIMIT);
    cr_assert_null(more);
    pid_t pid = fork();
    if (pid == 0) { /* has none of those threads, and may ask */
        int rc = dli_resolve_start(&ours, &env, &more, &err) == DL_OK ? 0 : 1;
        _exit(rc);
    }
    int status = -1;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    for (int i = 0; i < MANY; i++) {
        dli_resolve_close(hanging[i], false);
        sem_post(&go);
    }
    await_given_back(MANY);
    uint64_t end = now_ms() + PATIENCE_MS; /* the last thread may still be leaving */
    dl_status_t again;
    while ((again = dli_resolve_start(&ours, &env, &more, &err)) == DL_ELIMIT) {
        cr_assert_lt(now_ms(), end);
        sched_yield();
    }
    cr_assert_eq(again, DL_OK);
    dli_resolve_close(more, false);
    await_given_back(MANY + 1);
}
