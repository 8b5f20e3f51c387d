/* mysql_forks_test.c - children of a process whose threads are making connections connect as well. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_tls_fixture.h"

#include "openssl_locks.h"

#include "drivers/mysql/link/library.h"
#include "drivers/mysql/link/pool.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 3
#define CHILD_S 10

static void hear_nothing(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    (void)level;
    (void)text;
}

static void count_nothing(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    (void)what;
    (void)n;
}

static void set_up_forks(void) {
    set_up_tls();
    env.report = hear_nothing;
    env.count = count_nothing;
}

TestSuite(mysql_forks, .init = set_up_forks, .fini = tear_down_tls, .timeout = 300);

static dli_mysql_endpoint_t *endpoint;
static atomic_bool is_over;

static dli_mysql_pool_t *open_pool(dli_mysql_guard_t *with) {
    const dli_mysql_pool_options_t options = {.calls = DLI_MYSQL_ROLE_PLAIN,
                                              .max_total = THREADS,
                                              .max_idle = THREADS,
                                              .idle_timeout_ms = 60000,
                                              .idle_check_ms = 50};
    dli_mysql_pool_t *pool;
    dl_error_t why;
    return dli_mysql_pool_new(endpoint, &options, &env, with, &pool, &why) == DL_OK ? pool : NULL;
}

static dl_status_t connect_once(dli_mysql_pool_t *pool) {
    dli_mysql_member_t *member;
    dl_error_t why;
    uint64_t now_ns = env.now_ns(), until_ns = now_ns + (uint64_t)PATIENCE_MS * MS;
    dl_status_t status =
        dli_mysql_pool_borrow(pool, DLI_MYSQL_CALLS, now_ns, until_ns, until_ns, NULL, &member, &why);
    if (status == DL_OK) {
        dli_mysql_pool_drop(pool, member);
    }
    return status;
}

static void *connect_always(void *arg) {
    while (!atomic_load(&is_over)) {
        cr_assert_eq(connect_once(arg), DL_OK);
    }
    return NULL;
}

/* In a child, where nothing may be asserted. */
static int connect_anew(void) {
    dli_mysql_guard_t *own;
    dl_error_t why;
    alarm(CHILD_S);
    dli_mysql_pool_t *pool = dli_mysql_guard_open(&env, &own, &why) == DL_OK ? open_pool(own) : NULL;
    return pool != NULL && connect_once(pool) == DL_OK ? 0 : 1;
}

static void connect_in_children(int children) {
    pthread_t threads[THREADS];
    dli_mysql_pool_t *pool = NULL;
    cr_assert_eq(dli_mysql_endpoint_new(&parts, &endpoint, &err), DL_OK, "%s", err.message);
    cr_assert_not_null(pool = open_pool(guard));
    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, connect_always, pool), 0);
    }
    for (int i = 0; i < children; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            _exit(connect_anew());
        }
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert_eq(status, 0, "child %d", i);
    }
    atomic_store(&is_over, true);
    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    }
    dli_mysql_pool_close(pool, false);
    dli_mysql_endpoint_unref(endpoint);
}

Test(mysql_forks, while_others_prepare_tls) {
    start_with("here");
    parts.tls = "require";
    connect_in_children(30);
}

Test(mysql_forks, while_others_connect_without_tls) {
    use_server(mysql_server_any());
    parts.tls = "off";
    connect_in_children(300);
}

static atomic_int asked_in_openssl; /* which is for who does not wait for the server */

/* In place of the library's: who prepares a session asks by it. */
int STDCALL mysql_real_query(MYSQL *mysql, const char *sql, unsigned long len) {
    union {
        void *found;
        int(STDCALL *call)(MYSQL *, const char *, unsigned long);
    } real = {.found = dlsym(RTLD_NEXT, "mysql_real_query")};
    atomic_fetch_add(&asked_in_openssl, dli_is_unforked(DLI_UNFORKED_OPENSSL));
    return real.call(mysql, sql, len);
}

/* In a thread that has not used OpenSSL yet. */
static void *ask_and_close(void *conn) {
    cr_assert_eq(ask_within(conn, "DO 1", PATIENCE_MS, NULL), DL_OK, "%s", err.message);
    dli_mysql_conn_close(conn);
    cr_assert_not(dli_is_unforked(DLI_UNFORKED_OPENSSL));
    atomic_store(&is_counting, false); /* the end of the thread is OpenSSL's own */
    return NULL;
}

/* Its locks would stay locked in a child that is forked in the midst. */
Test(mysql_forks, openssl_is_used_where_fork_waits_for_us) {
    pthread_t thread;
    start_with("here");
    parts.tls = "require";
    atomic_store(&is_counting, true);
    dli_mysql_conn_t *first = connect_plain();
    dli_mysql_conn_t *conn = connect_plain();
    cr_assert_not(dli_is_unforked(DLI_UNFORKED_LIBRARY));
    cr_assert_eq(asked_in_openssl, 0);
    cr_assert_eq(pthread_create(&thread, NULL, ask_and_close, conn), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    dli_mysql_conn_close(first);
    if (atomic_load(&locked) == 0) {
        cr_skip_test("the client library does not use OpenSSL");
    }
    cr_assert_eq(atomic_load(&locked_cut_off), 0);
}

static int inside[2], over[2];

static void *stay_inside(void *arg) {
    const dli_unforked_t *what = arg;
    char byte;
    dli_unforked_begin(*what);
    cr_assert_eq(write(inside[1], "x", 1), 1);
    cr_assert_eq(read(over[0], &byte, 1), 1);
    dli_unforked_end(*what);
    return NULL;
}

static pthread_t begin_to_stay(const dli_unforked_t *what) {
    pthread_t thread;
    char byte;
    cr_assert_eq(pipe2(inside, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(over, O_CLOEXEC), 0);
    cr_assert_eq(pthread_create(&thread, NULL, stay_inside, (void *)(uintptr_t)what), 0);
    cr_assert_eq(read(inside[0], &byte, 1), 1);
    return thread;
}

static void end_staying(pthread_t thread) {
    cr_assert_eq(write(over[1], "x", 1), 1);
    cr_assert_eq(pthread_join(thread, NULL), 0);
}

/* One that waits for a server in there must not keep the program from forking. */
Test(mysql_forks, wait_for_nobody_who_stays) {
    static const dli_unforked_t what = DLI_UNFORKED_LIBRARY;
    int status;
    use_server(mysql_server_any());
    pthread_t thread = begin_to_stay(&what);
    for (int i = 0; i < 2; i++) { /* what the first left behind is in nobody's way */
        pid_t pid = fork();
        if (pid == 0) {
            alarm(CHILD_S);
            dli_unforked_begin(DLI_UNFORKED_LIBRARY);
            dli_unforked_end(DLI_UNFORKED_LIBRARY);
            _exit(0);
        }
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert_eq(status, 0);
    }
    end_staying(thread);
}

static atomic_int forks; /* the thread; once it is about to wait for others */

/* What was registered last is called first. */
static void note_fork(void) {
    atomic_store(&forks, gettid());
}

static bool forks_and_waits(void) {
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", atomic_load(&forks));
    FILE *stat = fopen(path, "re");
    bool is_read = stat != NULL && fgets(line, sizeof line, stat) != NULL;
    if (stat != NULL) {
        fclose(stat);
    }
    return is_read && strstr(line, ") S ") != NULL;
}

static void *fork_once(void *arg) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return arg;
}

/* Who comes meanwhile stands there until the fork() is over, and is late; nothing of its connection is. */
Test(mysql_forks, which_wait_end_no_connection) {
    static const dli_unforked_t what = DLI_UNFORKED_OPENSSL;
    pthread_t forker;
    start_with("here");
    parts.tls = "require";
    dli_mysql_conn_t *conn = connect_plain();
    pthread_t thread = begin_to_stay(&what);
    cr_assert_eq(pthread_atfork(note_fork, NULL, NULL), 0);
    cr_assert_eq(pthread_create(&forker, NULL, fork_once, NULL), 0);
    for (uint64_t end = now_ms() + PATIENCE_MS; !forks_and_waits();) {
        cr_assert_lt(now_ms(), end, "nobody forks");
        (void)poll(NULL, 0, 1);
    }
    dl_status_t status = ask_within(conn, "DO 1", 1, NULL);
    cr_assert(status == DL_OK || status == DL_ETIMEDOUT, "%s", err.message);
    cr_assert_not(dli_mysql_conn_is_broken(conn));
    cr_assert_eq(pthread_join(forker, NULL), 0);
    end_staying(thread);
    dli_mysql_conn_close(conn);
}
