/* redlock_release_test.c - frees of what is lost or may be, and attempts that are stopped. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redlock_clients.h"

#include <linux/sockios.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

/* The suites are declared in redlock_test.c; `redlock` has this many nodes. */
#define NODES 5

Test(redlock, an_attempt_that_is_stopped_leaves_nothing) {
    connect_all();
    long long before[NODES];
    int fd = eventfd(1, EFD_CLOEXEC);
    dl_request_t request = request_of(7);
    request.stop.fd[1] = fd;
    for (size_t i = 0; i < NODES; i++) {
        before[i] = runs(i);
        set_trap(i, &dli_script_redlock_acquire, REPLIES);
    }
    uint64_t before_ns = show_ns();
    cr_assert_eq(try_with(request), DL_EUNKNOWN, "%s", err.message);
    cr_assert_lt(show_ns() - before_ns, 400 * MS);
    for (size_t i = 0; i < NODES; i++) {
        AWAIT(atomic_load(&relays[i].sprung) != 0 && runs(i) > before[i]);
    }
    AWAIT(is_free());
    close(fd);
}

/* ---- losses --------------------------------------------------------------------------------------- */

Test(redlock_three, a_lock_that_a_majority_has_lost_is_lost_and_freed_all_the_same) {
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 3);
    tell(&servers[0], "DEL " KEY);
    cr_assert_eq(free_it(7), DL_OK, "a majority had it: %s", err.message);
    AWAIT(is_free());
    cr_assert_eq(try_it(8), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":8"), ==, 3);
    tell(&servers[0], "DEL " KEY);
    tell(&servers[1], "DEL " KEY);
    kill_server(&servers[2]);
    cr_assert_eq(free_it(8), DL_ELOST, "%s", err.message);
}

/* All that the nodes said has been read by the client. */
static bool is_read(size_t i) {
    relay_t *r = &relays[i];
    for (int at = 0; at < atomic_load(&r->pairs); at++) {
        int unread = 0;
        if (atomic_load(&r->open[at])) {
            cr_assert_eq(ioctl(r->fds[at][REQUESTS], SIOCOUTQ, &unread), 0);
        }
        if (unread > 0) {
            return false;
        }
    }
    return true;
}

/* Who releases, how often it has slept through a whole slice, and that it sleeps no more. */
static pthread_t caller;
static atomic_int long_sleeps;
static atomic_bool has_returned;

static int poll_and_tell(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    for (;;) {
        uint64_t slice_ns = show_ns() + 5 * MS;
        if (slice_ns >= deadline_ns) {
            return poll_in_slices(fds, n, deadline_ns);
        }
        int ready = poll_in_slices(fds, n, slice_ns);
        if (ready != 0) {
            return ready;
        }
        atomic_fetch_add(&long_sleeps, pthread_equal(pthread_self(), caller) != 0);
    }
}

/* When the client has the answers of the others, and goes on waiting or has done with it, those of 1 and 2
 * pass. */
static void *let_pass(void *arg) {
    const long long *before = arg;
    for (size_t i = 0; i < NODES; i++) {
        AWAIT_THAT(runs(i), >, before[i]);
    }
    AWAIT(atomic_load(&relays[1].sprung) != 0 && atomic_load(&relays[2].sprung) != 0);
    await_relays();
    AWAIT(is_read(0) && is_read(3) && is_read(4));
    int slept = atomic_load(&long_sleeps);
    AWAIT(atomic_load(&long_sleeps) > slept || atomic_load(&has_returned));
    for (size_t i = 1; i <= 2; i++) {
        atomic_store(&relays[i].held[atomic_load(&relays[i].sprung) - 1][REPLIES], 0);
    }
    return NULL;
}

Test(redlock, a_loss_is_told_though_slow_nodes_have_to_say_it) {
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 5);
    long long before[NODES];
    for (size_t i = 0; i < NODES; i++) {
        before[i] = runs(i);
    }
    for (size_t i = 0; i <= 2; i++) {
        tell(&servers[i], "DEL " KEY);
    }
    set_trap(1, &dli_script_redlock_release, REPLIES);
    set_trap(2, &dli_script_redlock_release, REPLIES);
    client.node_timeout_ms = 60000;
    caller = pthread_self();
    env.poll = poll_and_tell;
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, let_pass, before), 0);
    dl_request_t request = make_request(NAME, OWNER, 7, in_ms(20000));
    dl_status_t status = dli_redlock_release(&client, NULL, &request, &err);
    atomic_store(&has_returned, true);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(status, DL_ELOST, "%s", err.message);
}

Test(redlock, a_loss_that_nobody_can_tell_is_not_waited_for) {
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 5);
    tell(&servers[0], "DEL " KEY);
    kill_server(&servers[1]);
    set_trap(2, &dli_script_redlock_release, REPLIES);
    uint64_t before_ns = show_ns();
    cr_assert_eq(free_it(7), DL_EUNKNOWN, "two of five had it, one had not: %s", err.message);
    cr_assert_has(err.message, "it may have been lost before");
    cr_assert_lt(show_ns() - before_ns, 1500 * MS);
    atomic_store(&relays[2].held[atomic_load(&relays[2].sprung) - 1][REPLIES], 0);
    AWAIT(is_free());
}

/* ---- what was not heard --------------------------------------------------------------------------- */

/* Lets what was caught by the trap of this node pass. */
static void let_go_of(size_t i) {
    atomic_store(&relays[i].held[atomic_load(&relays[i].sprung) - 1][REQUESTS], 0);
}

Test(redlock, a_free_that_was_lost_is_sent_again) {
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 5);
    set_trap(0, &dli_script_redlock_release, REQUESTS);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(atomic_load(&relays[0].sprung), !=, 0);
    AWAIT(is_free()); /* the lease is longer than this waits */
}

Test(redlock, force_harms_nobody_who_comes_after_it) {
    connect_all();
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 5);
    set_trap(0, &dli_script_redlock_force, REQUESTS);
    cr_assert_eq(dli_redlock_force_release(&client, NAME, strlen(NAME), in_ms(2000), &err), DL_OK, "%s",
                 err.message);
    AWAIT(is_free()); /* it was sent again, by another connection */
    occupy(0, OTHER ":1", 20000);
    long long before = runs(0);
    let_go_of(0);
    AWAIT_THAT(runs(0), >, before);
    cr_assert(node_has(0, KEY, OTHER ":1"));
}

/* Reads what a server tells of the lock; NULL: nothing within five seconds. */
static redisReply *hear(redisContext *c) {
    redisReply *reply = NULL;
    return redisGetReply(c, (void **)&reply) == REDIS_OK ? reply : NULL;
}

Test(redlock, a_majority_that_is_given_back_is_told_of) {
    connect_all();
    redisContext *c = redisConnectUnix(servers[4].path);
    cr_assert_not_null(c);
    cr_assert_eq(c->err, 0);
    cr_assert_eq(redisSetTimeout(c, (struct timeval){.tv_sec = 5}), REDIS_OK);
    freeReplyObject(redisCommand(c, "SUBSCRIBE " CHANNEL NAME));
    for (size_t i = 0; i < 3; i++) {
        set_trap(i, &dli_script_redlock_raise, REQUESTS);
    }
    cr_assert_eq(try_it(7), DL_EIO, "%s", err.message);
    redisReply *reply = hear(c);
    cr_assert_not_null(reply, "who saw the majority waits for the holder's lease to end");
    cr_assert_str_eq(reply->element[0]->str, "message");
    freeReplyObject(reply);
    redisFree(c);
}

/* The answers to the claim come late from two nodes of five, so that the free follows them there. */
static void *let_answers_pass(void *arg) {
    (void)arg;
    for (size_t i = 0; i < 2; i++) {
        AWAIT_THAT(atomic_load(&relays[i].sprung), !=, 0);
    }
    AWAIT_THAT(have(OWNER ":7"), ==, 2); /* the others are free already */
    for (size_t i = 0; i < 2; i++) {
        atomic_store(&relays[i].held[atomic_load(&relays[i].sprung) - 1][REPLIES], 0);
    }
    return NULL;
}

Test(redlock, an_unlock_hears_those_whose_claim_was_late) {
    connect_all();
    for (size_t i = 0; i < 2; i++) {
        set_trap(i, &dli_script_redlock_acquire, REPLIES);
    }
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(have(OWNER ":7"), ==, 5);
    tell(&servers[4], "DEL " KEY);
    client.node_timeout_ms = 60000;
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, let_answers_pass, NULL), 0);
    dl_request_t request = make_request(NAME, OWNER, 7, in_ms(20000));
    cr_assert_eq(dli_redlock_release(&client, NULL, &request, &err), DL_OK, "%s", err.message);
    cr_assert_eq(pthread_join(thread, NULL), 0);
}

/* ---- what is on its way ---------------------------------------------------------------------------- */

/* Two nodes of three have it; the third hears the claim when the trap lets it go. */
static void hold_on_two(int way) {
    connect_all();
    client.node_timeout_ms = 60000;
    set_trap(2, &dli_script_redlock_acquire, way);
    cr_assert_eq(try_it(7), DL_OK, "%s", err.message);
    AWAIT_THAT(atomic_load(&relays[2].sprung), !=, 0);
}

Test(redlock_three, a_claim_on_its_way_is_ended_when_a_renewal_finds_the_hold_lost) {
    hold_on_two(REQUESTS);
    tell(&servers[1], "DEL " KEY);
    dl_renewal_t r = {
        .name = NAME, .name_len = strlen(NAME), .owner = OWNER, .hold_id = 7, .lease_ms = 20000};
    dli_redlock_renew(&client, &r, 1, in_ms(20000));
    cr_assert_eq(r.status, DL_ELOST);
    AWAIT_THAT(info(&servers[2], "commandstats", "cmdstat_client|kill:calls="), >, 0);
    let_go_of(2);
    await_relays();
    cr_assert(is_free(), "the claim came behind what should clear away");
}

/* The free follows the claim to the third node; it is carried out, and its answer is lost. */
static void *lose_the_answer(void *arg) {
    (void)arg;
    int claim = atomic_load(&relays[2].sprung) - 1;
    AWAIT_THAT(have(OWNER ":7"), ==, 1); /* on the third only */
    atomic_store(&relays[2].sprung, 0);
    set_trap(2, &dli_script_redlock_release, REPLIES);
    atomic_store(&relays[2].held[claim][REPLIES], 0);
    AWAIT(atomic_load(&relays[2].sprung) != 0 && is_free());
    cr_assert_eq(shutdown(relays[2].fds[atomic_load(&relays[2].sprung) - 1][REQUESTS], SHUT_RDWR), 0);
    return NULL;
}

Test(redlock_three, a_free_that_was_sent_again_does_not_tell_of_a_loss) {
    hold_on_two(REPLIES);
    tell(&servers[1], "DEL " KEY);
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, lose_the_answer, NULL), 0);
    dl_request_t request = make_request(NAME, OWNER, 7, in_ms(20000));
    cr_assert_eq(dli_redlock_release(&client, NULL, &request, &err), DL_EUNKNOWN,
                 "one had it, one had not, and one cannot tell: %s", err.message);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    AWAIT(is_free());
}

Test(redlock_three, a_free_that_found_no_connection_is_tried_again) {
    char away[128];
    hold_on_two(REPLIES);
    AWAIT_THAT(have(OWNER ":7"), ==, 3);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    snprintf(away, sizeof away, "%s.away", relays[2].path);
    cr_assert_eq(rename(relays[2].path, away), 0);
    cut_all(&relays[2]);
    cr_assert_eq(try_it(8), DL_OK, "%s", err.message);
    cr_assert_eq(free_it(8), DL_OK, "%s", err.message);
    cr_assert(node_has(2, KEY, OWNER ":7"));
    cr_assert_eq(rename(away, relays[2].path), 0);
    AWAIT(is_free());
}

Test(redlock_three, a_free_that_found_the_server_full_is_tried_again) {
    hold_on_two(REPLIES);
    AWAIT_THAT(have(OWNER ":7"), ==, 3);
    cr_assert_eq(free_it(7), DL_OK, "%s", err.message);
    tell(&servers[2], "CONFIG SET maxclients 1"); /* which is the test's own connection */
    cut_all(&relays[2]);
    AWAIT_THAT(info(&servers[2], "stats", "rejected_connections:"), >, 0);
    cr_assert(node_has(2, KEY, OWNER ":7"));
    tell(&servers[2], "CONFIG SET maxclients 100");
    AWAIT(is_free());
}

/* ---- frees that wait ------------------------------------------------------------------------------- */

static atomic_int polls, failures;

static int poll_and_count(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    int ready = poll_in_slices(fds, n, deadline_ns);
    atomic_fetch_add(&polls, 1);
    atomic_fetch_add(&failures, ready < 0);
    return ready;
}

/* poll(2) takes no more entries than a process may have descriptors, and these frees have none. */
Test(redlock_three, frees_that_wait_have_no_place_among_what_is_polled) {
    enum { FREES = 20 };
    char away[128];
    struct rlimit usual, low;
    connect_all();
    env.poll = poll_and_count;
    snprintf(away, sizeof away, "%s.away", relays[2].path);
    cr_assert_eq(rename(relays[2].path, away), 0);
    cut_all(&relays[2]);
    for (uint64_t hold_id = 10; hold_id < 10 + FREES; hold_id++) {
        dl_request_t request = request_of(hold_id);
        cr_assert_eq(dli_redlock_give_back(&client, &request, 1u << 2), 1);
    }
    cr_assert_eq(atomic_load(&client.nodes[2].backlog), FREES);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &usual), 0);
    low = usual;
    low.rlim_cur = FREES / 2;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
    int before = atomic_load(&polls);
    AWAIT_THAT(atomic_load(&polls) - before, >=, 5);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &usual), 0);
    cr_assert_eq(rename(away, relays[2].path), 0);
    AWAIT_THAT(atomic_load(&client.nodes[2].backlog), ==, 0);
    cr_assert_eq(atomic_load(&failures), 0);
}
