/* thread_cancel_cases.c - contract: pthread_cancel ends a thread between calls, never inside one. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/sys.h"
#include "dlock/driver.h"

#include "callers.h"

/* What the calls are made with. One for each thread; the clients are shared. */
typedef struct user {
    ct_t *ct;
    const char *inside;  /* the call that runs now; NULL: none */
    dl_client_t *client; /* nobody closes it meanwhile */
    dl_lock_t *held;     /* by another client, all the time */
    const char *path;    /* of a configuration */
    void (*step)(struct user *);
} user_t;

/* From here to leave() a pthread_cancel may end the thread, if the call lets it. */
static void enter(user_t *u, const char *call) {
    u->inside = call;
    (void)pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
}

static void leave(user_t *u) {
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    u->inside = NULL;
}

#define CALL(u, call)      \
    do {                   \
        enter((u), #call); \
        call;              \
        leave(u);          \
    } while (0)

/* The cleanup handler of a thread that is cancelled. */
static void on_cancel(void *arg) {
    user_t *u = arg;
    ct_t *ct = u->ct;
    CT_CHECKF(u->inside == NULL, "%s is a cancellation point", u->inside);
}

/* ---- a step makes one call, in a state in which it has something to do ----------------------------------
 */

#define NAME "cancelled thread"

static dl_lock_t *handle(user_t *u) {
    ct_t *ct = u->ct;
    dl_lock_t *lock;
    CT_OK(dl_lock_open(u->client, NAME, &lock, CT_ERR));
    return lock;
}

/* The other threads of the case may have it for a moment. */
static dl_lock_t *handle_held(user_t *u) {
    ct_t *ct = u->ct;
    dl_lock_t *lock = handle(u);
    CT_OK(dl_lock(lock, CT_ERR));
    return lock;
}

static void give_back(user_t *u, dl_lock_t *lock) {
    ct_t *ct = u->ct;
    CT_OK(dl_unlock(lock, CT_ERR));
    dl_lock_close(lock);
}

static void ignore_finding(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    (void)arg;
    (void)level;
    (void)subject;
    (void)text;
}

static int ignore_lock(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)arg;
    (void)name;
    (void)info;
    return 0;
}

static int ignore_driver(void *arg, const char *name, uint32_t caps, const char *summary) {
    (void)arg;
    (void)name;
    (void)caps;
    (void)summary;
    return 0;
}

static int ignore_backend(void *arg, const char *backend, const char *driver, int compiled_in, int selected) {
    (void)arg;
    (void)backend;
    (void)driver;
    (void)compiled_in;
    (void)selected;
    return 0;
}

static void ignore_log(void *arg, dl_log_level_t level, const char *line) {
    (void)arg;
    (void)level;
    (void)line;
}

static void ignore_event(void *arg, const dl_event_t *event) {
    (void)arg;
    (void)event;
}

/* A driver that a test brings is not built in: DL_ECONFIG then, after the file was read. */
static void close_opened(user_t *u, dl_status_t status, dl_client_t *client) {
    ct_t *ct = u->ct;
    dl_lock_t *lock = NULL;
    CT_CHECKF(status == DL_OK || (status == DL_ECONFIG && !ct_built_in(ct)), "opening gave %s",
              dl_status_name(status));
    if (status == DL_OK) {
        CT_OK(dl_lock_open(client, NAME " too", &lock, CT_ERR));
        CT_OK(dl_lock(lock, CT_ERR));
    }
    CALL(u, dl_client_close(client));
    dl_lock_close(lock);
}

static void client_open(user_t *u) {
    dl_client_t *client = NULL;
    dl_status_t status = DL_OK;
    CALL(u, status = dl_client_open(u->path, NULL, &client, NULL));
    close_opened(u, status, client);
}

static void client_open_text(user_t *u) {
    char yaml[4096];
    FILE *file = fopen(u->path, "re");
    size_t len = file != NULL ? fread(yaml, 1, sizeof yaml, file) : 0;
    (void)(file != NULL && fclose(file));
    dl_client_t *client = NULL;
    dl_status_t status = DL_OK;
    CALL(u, status = dl_client_open_text(yaml, len, NULL, &client, NULL));
    close_opened(u, status, client);
}

/* By dl_client_open_driver; the harness remembers every such client, and has not room for many. */
static void client_open_driver(user_t *u) {
    ct_t *ct = u->ct;
    dl_client_t *client = NULL;
    dl_status_t status = DL_OK;
    CALL(u, status = ct_try_open(ct, NULL, &client, NULL));
    ct_forget(ct, client);
    close_opened(u, status, client);
}

static void client_info(user_t *u) {
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    CALL(u, (void)dl_client_info(u->client, &info));
}

static void client_stats(user_t *u) {
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    CALL(u, (void)dl_client_stats(u->client, &stats));
}

static void client_set_log(user_t *u) {
    CALL(u, (void)dl_client_set_log(u->client, ignore_log, NULL));
}

static void client_on_event(user_t *u) {
    CALL(u, (void)dl_client_on_event(u->client, ignore_event, NULL));
}

static void client_check(user_t *u) {
    CALL(u, (void)dl_client_check(u->client, ignore_finding, NULL, NULL));
}

static void backends(user_t *u) {
    CALL(u, (void)dl_backends(u->path, NULL, 0, ignore_backend, NULL, NULL));
}

static void backend_init(user_t *u) {
    CALL(u, (void)dl_backend_init(u->path, NULL, 0, ignore_finding, NULL, NULL));
}

static void drivers(user_t *u) {
    CALL(u, dl_drivers(ignore_driver, NULL));
}

static void event_next(user_t *u) {
    dl_event_t event = DL_EVENT_INIT;
    CALL(u, (void)dl_event_fd(u->client));
    CALL(u, (void)dl_event_next(u->client, &event));
}

static void lock_open(user_t *u) {
    dl_lock_t *lock = NULL;
    CALL(u, (void)!dl_lock_open(u->client, NAME, &lock, NULL));
    dl_lock_close(lock);
}

static void lock_open_owned(user_t *u) {
    dl_lock_t *lock = NULL;
    CALL(u, (void)!dl_lock_open_owned(u->client, NAME, 1, &lock, NULL));
    dl_lock_close(lock);
}

static void lock_close(user_t *u) {
    dl_lock_t *lock = handle(u);
    CALL(u, dl_lock_close(lock));
}

static void lock_free(user_t *u) {
    ct_t *ct = u->ct;
    dl_lock_t *lock = handle(u);
    dl_status_t status = DL_OK;
    CALL(u, status = dl_lock(lock, NULL));
    CT_EQ(status, DL_OK);
    give_back(u, lock);
}

static void trylock(user_t *u) {
    ct_t *ct = u->ct;
    dl_status_t status = DL_OK;
    CALL(u, status = dl_trylock(u->held, NULL));
    CT_EQ(status, DL_EBUSY);
}

static void trylock_for(user_t *u) {
    ct_t *ct = u->ct;
    dl_status_t status = DL_OK;
    CALL(u, status = dl_trylock_for(u->held, 2, DL_LEASE_AUTO, NULL));
    /* The server may not have answered by then. */
    int is_unanswered = ct_traits(ct) & CT_REAL_TIME && (status == DL_EIO || status == DL_EUNKNOWN);
    CT_CHECKF(status == DL_ETIMEDOUT || is_unanswered, "it is %s", dl_status_name(status));
}

static void acquire_again(user_t *u) {
    ct_t *ct = u->ct;
    dl_lock_t *lock = handle_held(u);
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    dl_status_t status = DL_OK;
    CALL(u, status = dl_acquire(lock, &opts, NULL));
    CT_EQ(status, DL_OK);
    CALL(u, status = dl_unlock(lock, NULL));
    CT_EQ(status, DL_OK);
    give_back(u, lock);
}

static void unlock(user_t *u) {
    ct_t *ct = u->ct;
    dl_lock_t *lock = handle_held(u);
    dl_status_t status = DL_OK;
    CALL(u, status = dl_unlock(lock, NULL));
    CT_EQ(status, DL_OK);
    dl_lock_close(lock);
}

static void extend(user_t *u) {
    dl_lock_t *lock = handle_held(u);
    CALL(u, (void)!dl_extend(lock, DL_LEASE_AUTO, NULL));
    give_back(u, lock);
}

static void ask_locally(user_t *u) {
    dl_lock_t *lock = handle_held(u);
    CALL(u, (void)dl_valid_ms(lock));
    CALL(u, (void)dl_token(lock));
    CALL(u, (void)dl_hold_count(lock));
    give_back(u, lock);
}

static void inspect(user_t *u) {
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    CALL(u, (void)dl_inspect(u->held, &info, NULL));
}

static void list(user_t *u) {
    CALL(u, (void)dl_list(u->client, NULL, ignore_lock, NULL, NULL));
}

static void force_unlock(user_t *u) {
    dl_lock_t *lock = NULL;
    CALL(u, (void)!dl_lock_open(u->client, NAME " free", &lock, NULL));
    CALL(u, (void)dl_force_unlock(lock, NULL));
    dl_lock_close(lock);
}

static void cancel_all(user_t *u) {
    ct_t *ct = u->ct;
    dl_cancel_t *cancel = NULL;
    CALL(u, (void)!dl_cancel_new(&cancel, NULL));
    CALL(u, dl_cancel_trigger(cancel));
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.cancel = cancel;
    CT_EQ(dl_acquire(u->held, &opts, NULL), DL_ECANCELED);
    struct pollfd woken = {.fd = dl_cancel_fd(cancel), .events = POLLIN};
    CT_EQ(poll(&woken, 1, 0), 1);
    CALL(u, dl_cancel_free(cancel));
}

static void take_one(user_t *u, dl_queue_t *queue, dl_op_kind_t kind) {
    ct_t *ct = u->ct;
    struct pollfd ready = {.events = POLLIN};
    CALL(u, ready.fd = dl_queue_fd(queue));
    CT_EQ(dli_sys->poll(&ready, 1, dli_sys->now_ns() + 20000u * (uint64_t)DLI_NS_PER_MS), 1);
    dl_completion_t done = {.status = DL_EINVAL};
    size_t n = 0;
    CALL(u, n = dl_queue_take(queue, &done, sizeof done, 1));
    CT_EQ(n, 1u);
    CT_EQ(done.kind, kind);
    CT_CHECKF(done.status == DL_OK || done.status == DL_ENOTSUP, "it was %s", dl_status_name(done.status));
}

static void by_queue(user_t *u) {
    ct_t *ct = u->ct;
    dl_queue_t *queue = NULL;
    dl_lock_t *lock = NULL;
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    dl_status_t status = DL_OK;
    uint64_t id = 0;
    CALL(u, status = dl_queue_new(&queue, NULL));
    CT_EQ(status, DL_OK);
    CALL(u, (void)dl_queue_events(NULL, u->client));
    CT_OK(dl_lock_open_owned(u->client, NAME, 1, &lock, CT_ERR));
    CALL(u, status = dl_acquire_begin(lock, &opts, queue, NULL, NULL, NULL));
    CT_EQ(status, DL_OK);
    take_one(u, queue, DL_OP_ACQUIRE);
    CALL(u, status = dl_extend_begin(lock, DL_LEASE_AUTO, queue, NULL, NULL, NULL));
    CT_EQ(status, DL_OK);
    take_one(u, queue, DL_OP_EXTEND);
    CALL(u, status = dl_inspect_begin(lock, queue, NULL, NULL, NULL));
    CT_EQ(status, DL_OK);
    take_one(u, queue, DL_OP_INSPECT);
    CALL(u, status = dl_unlock_begin(lock, queue, NULL, &id, NULL));
    CT_EQ(status, DL_OK);
    take_one(u, queue, DL_OP_UNLOCK);
    CALL(u, status = dl_op_cancel(queue, id));
    CT_EQ(status, DL_EINVAL);
    CALL(u, dl_queue_free(queue));
    dl_lock_close(lock);
}

/* One is cancelled, the other under way when the queue is freed. */
static void waits_by_queue(user_t *u) {
    ct_t *ct = u->ct;
    dl_queue_t *queue = NULL;
    dl_lock_t *lock = NULL;
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    dl_status_t status = DL_OK;
    uint64_t id = 0;
    CT_OK(dl_queue_new(&queue, CT_ERR));
    CT_OK(dl_lock_open_owned(u->client, "held", 1, &lock, CT_ERR));
    CT_OK(dl_acquire_begin(lock, &opts, queue, NULL, &id, CT_ERR));
    CT_OK(dl_acquire_begin(lock, &opts, queue, NULL, NULL, CT_ERR));
    CALL(u, status = dl_op_cancel(queue, id));
    CT_EQ(status, DL_OK);
    CALL(u, dl_queue_free(queue));
    dl_lock_close(lock);
}

static void (*const steps[])(user_t *) = {
    client_open,     client_open_text, client_info,    client_stats, client_check, client_set_log,
    client_on_event, backends,         backend_init,   drivers,      event_next,   lock_open,
    lock_open_owned, lock_close,       lock_free,      trylock,      trylock_for,  acquire_again,
    unlock,          extend,           ask_locally,    inspect,      list,         force_unlock,
    cancel_all,      by_queue,         waits_by_queue,
};
#define STEPS (sizeof steps / sizeof steps[0])

/* ---- the cases ------------------------------------------------------------------------------------------
 */

static user_t new_user(ct_t *ct) {
    /* Past the faults: of what is asked by way of them, the harness keeps a record. */
    user_t u = {.ct = ct, .client = ct_observer(ct), .path = ct_config(ct)};
    CT_OK(dl_lock_open(u.client, "held", &u.held, CT_ERR));
    take(ct, ct_lock(ct, ct_open(ct, NULL), "held"), 3600000);
    return u;
}

static void step_with_a_cancel_pending(ct_t *ct, void *arg) {
    (void)ct;
    user_t *u = arg;
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_cleanup_push(on_cancel, u);
    (void)pthread_cancel(pthread_self());
    client_open_driver(u);
    for (size_t i = 0; i < STEPS; i++) {
        steps[i](u);
    }
    pthread_cleanup_pop(0);
}

CT_CASE(thread_cancel, that_is_pending_ends_no_call, .traits = CT_BLOCKING) {
    user_t u = new_user(ct);
    ct_join(ct, ct_thread(ct, step_with_a_cancel_pending, &u));
    dl_lock_close(u.held);
    ct_expect_free(ct, NAME, 0);
}

static void *step_until_cancelled(void *arg) {
    user_t *u = arg;
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_cleanup_push(on_cancel, u);
    for (;;) {
        u->step(u);
        (void)pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
        pthread_testcancel();
        (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    }
    pthread_cleanup_pop(0);
    return NULL;
}

/* Cancels a thread that makes this call again and again, at a random instant of its first milliseconds. */
static void cancel_in(user_t *u, void (*step)(user_t *), unsigned *seed) {
    ct_t *ct = u->ct;
    pthread_t thread;
    void *result = NULL;
    u->step = step;
    CT_EQ(pthread_create(&thread, NULL, step_until_cancelled, u), 0);
    struct timespec pause = {.tv_nsec = (long)(rand_r(seed) % 3000000)};
    (void)nanosleep(&pause, NULL);
    CT_EQ(pthread_cancel(thread), 0);
    CT_EQ(pthread_join(thread, &result), 0);
    CT_EQ(result, PTHREAD_CANCELED);
}

static void do_nothing(ct_t *ct, void *arg) {
    (void)ct;
    (void)arg;
}

/* $DLOCK_CANCEL_INSTANTS of each call, 3 unless set. Descriptors and threads that are left behind fail every
 * case, and LeakSanitizer sees leaks. Who sets it is also told how much memory was in use; with the caches of
 * threads, unless GLIBC_TUNABLES=glibc.malloc.tcache_count=0. */
CT_CASE(thread_cancel, at_any_instant_leaves_nothing_behind, .traits = CT_BLOCKING | CT_REAL_TIME,
        .timeout_s = 1200) {
    const char *asked = getenv("DLOCK_CANCEL_INSTANTS");
    int instants = asked != NULL ? atoi(asked) : 3;
    user_t u = new_user(ct);
    unsigned seed = 1;
    size_t before = 0;
    for (int i = 0; i <= instants; i++) {
        for (size_t k = 0; k < STEPS; k++) {
            cancel_in(&u, steps[k], &seed);
        }
        if (i == 0) {
            before = mallinfo2().uordblks; /* what libraries keep for good is there now */
        }
    }
    if (asked != NULL) {
        printf("%s: %d times %zu steps: %zu bytes in use before, %zu after\n", ct_driver_name(ct), instants,
               STEPS, before, mallinfo2().uordblks);
    }
    ct_process_wait(ct, ct_fork(ct, do_nothing, NULL));
    dl_lock_close(u.held);
    ct_expect_free(ct, NAME, 0);
    ct_expect_free(ct, NAME " too", 0);
}
