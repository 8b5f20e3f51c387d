/* network_cases.c - faults of the network between client and server (row 10): refused, silent, cut. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "contract/queues.h"
#include "faults/wire.h"
#include "support/entries.h"

/* ---- no connection ------------------------------------------------------------------------------ */

CT_CASE(faults, row10_connections_refused_at_open, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    proxy_refuse(ct, proxy, 1);
    dl_client_t *c;
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, address_of(ct, proxy), &c, CT_ERR), DL_EIO);
    IN_TIME(watch, ct_call_timeout_ms(ct));
    CT_CHECKF(strstr(ct_last_err()->message, "127.0.0.1") != NULL, "does not say which server: %s",
              ct_last_err()->message);
    proxy_refuse(ct, proxy, 0);
    expect_works(ct, ct_open(ct, address_of(ct, proxy)), "row 10");
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_connections_refused_later, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *held = ct_lock(ct, c, "row 10 held"), *wanted = ct_lock(ct, c, "row 10");
    int64_t timeout_ms = ct_call_timeout_ms(ct);
    CT_OK(dl_lock(held, CT_ERR));
    proxy_refuse(ct, proxy, 1);
    proxy_cut(ct, proxy);
    ct_sleep_ms(ct, TRUST_MS);
    watch_t lost = start_watch(ct), watch = start_watch(ct);
    CT_STATUS(dl_trylock(wanted, CT_ERR), DL_EIO);
    IN_TIME(watch, 0); /* that nobody is there is known at once */
    watch = start_watch(ct);
    CT_STATUS(dl_trylock_for(wanted, 150, DL_LEASE_AUTO, CT_ERR), DL_EIO);
    CT_GE(ct_now_ms(ct) - watch.began_ms, 150 - 1);
    IN_TIME(watch, 150);
    /* What cannot be renewed is lost in time; what ended with its connection at once. */
    if (!is_session(ct)) {
        ct_expect_event(ct, c, DL_EVENT_RENEWAL_FAILING, "row 10 held", ct_lease_ms(ct));
    }
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 10 held", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    IN_TIME(lost, ct_lease_ms(ct));
    CT_EQ(dl_valid_ms(held), 0);
    watch = start_watch(ct);
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
    IN_TIME(watch, 0);
    watch = start_watch(ct);
    CT_STATUS(dl_lock(wanted, CT_ERR), DL_EIO);
    CT_GE(ct_now_ms(ct) - watch.began_ms, timeout_ms - 1);
    IN_TIME(watch, timeout_ms);
    proxy_refuse(ct, proxy, 0);
    expect_back(ct, wanted);
    proxy_stop(ct, proxy);
}

/* How long an open tries: call_timeout, and no longer than the default of connect_timeout. */
static int64_t patience_ms(ct_t *ct) {
    return ct_call_timeout_ms(ct) < 1000 ? ct_call_timeout_ms(ct) : 1000;
}

/* A port whose kernel answers no connection any more: its queue is full. The descriptors hold it so. */
static int full_port(ct_t *ct, int fds[4]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CT_GE(fds[0], 0);
    CT_EQ(bind(fds[0], (struct sockaddr *)&address, len), 0);
    CT_EQ(listen(fds[0], 0), 0);
    CT_EQ(getsockname(fds[0], (struct sockaddr *)&address, &len), 0);
    for (int i = 1; i < 4; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        CT_GE(fds[i], 0);
        (void)connect(fds[i], (struct sockaddr *)&address, len);
    }
    return ntohs(address.sin_port);
}

CT_CASE(faults, row10_connections_black_holed, WIRE) {
    int fds[4], descriptors = open_descriptors();
    char options[128];
    snprintf(options, sizeof options, "%s", address_at(ct, full_port(ct, fds)));
    dl_client_t *c;
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, options, &c, CT_ERR), DL_EIO);
    CT_GE(ct_now_ms(ct) - watch.began_ms, patience_ms(ct) - 1); /* else it was no black hole */
    IN_TIME(watch, patience_ms(ct));
    snprintf(options + strlen(options), sizeof options - strlen(options), "\nconnect_timeout: 100ms");
    watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, options, &c, CT_ERR), DL_EIO);
    CT_GE(ct_now_ms(ct) - watch.began_ms, 100 - 1);
    /* The client libraries of MySQL count whole seconds. */
    IN_TIME(watch, is_mysql(ct) ? patience_ms(ct) : 100);
    for (int i = 0; i < 4; i++) {
        close(fds[i]);
    }
    /* A client library that still connects is left to itself. */
    CT_AWAIT_THAT(open_descriptors(), <=, descriptors, 2000);
}

/* ---- a connection that is there, and silent ------------------------------------------------------- */

CT_CASE(faults, row10_server_silent_from_the_first_byte, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    proxy_swallow(ct, proxy, PROXY_REPLIES);
    dl_client_t *c;
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, address_of(ct, proxy), &c, CT_ERR), DL_EIO);
    CT_GE(ct_now_ms(ct) - watch.began_ms, patience_ms(ct) - 1);
    IN_TIME(watch, patience_ms(ct));
    proxy_stop(ct, proxy);
}

/* All connections fall silent these ways, those that are made later too. */
static void fall_silent(ct_t *ct, int ways) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *held = ct_lock(ct, c, "row 10 held"), *wanted = ct_lock(ct, c, "row 10");
    int64_t timeout_ms = ct_call_timeout_ms(ct);
    CT_OK(dl_lock(held, CT_ERR));
    proxy_swallow(ct, proxy, ways);
    watch_t lost = start_watch(ct), watch = start_watch(ct);
    /* A renewal may have used the connection up. */
    CT_EITHER(dl_trylock_for(wanted, 50, DL_LEASE_AUTO, CT_ERR), DL_EUNKNOWN, DL_EIO);
    IN_TIME(watch, 50);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 10 held", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    IN_TIME(lost, ct_lease_ms(ct));
    CT_STATUS(dl_unlock(held, CT_ERR), DL_ELOST);
    watch = start_watch(ct);
    CT_EITHER(dl_trylock(wanted, CT_ERR), DL_EUNKNOWN, DL_EIO);
    IN_TIME(watch, timeout_ms);
    watch = start_watch(ct);
    CT_EITHER(dl_lock(wanted, CT_ERR), DL_EUNKNOWN, DL_EIO);
    IN_TIME(watch, timeout_ms);
    CT_EQ(dl_hold_count(wanted), 0);
    proxy_swallow(ct, proxy, 0);
    /* What the server did without our hearing of it is freed, although its leases would last longer. */
    ct_expect_free(ct, "row 10", timeout_ms + FREE_MS + ct_tolerance_ms(ct));
    expect_back(ct, wanted);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_both_ways_black_holed, WIRE) {
    fall_silent(ct, PROXY_BOTH);
}

CT_CASE(faults, row10_only_the_replies_black_holed, WIRE) {
    fall_silent(ct, PROXY_REPLIES);
}

/* ---- many outstanding on one connection -------------------------------------------------------------- */

#define OUTSTANDING 200
/* Of the replies to them, some 20 bytes each. */
#define HEARD_BYTES 1500

/* The server has done all of it, and some of that is heard. Every second one waits, and asks again; the
 * others learn that nobody knows. */
CT_CASE(faults, row10_connection_cut_in_the_midst_of_200_outstanding,
        .traits = CT_REDIS | CT_NETWORK | CT_CAN_INSPECT) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    dl_queue_t *queue = new_queue(ct);
    dl_lock_t *locks[OUTSTANDING];
    char names[OUTSTANDING][16];
    uint64_t hold_ids[OUTSTANDING]; /* 0: it has none */
    int unheard = 0;
    int64_t timeout_ms = ct_call_timeout_ms(ct);
    for (int i = 0; i < OUTSTANDING; i++) {
        snprintf(names[i], sizeof names[i], "row 10 %d", i);
        locks[i] = ct_lock_owned(ct, c, names[i], (uint64_t)i + 1);
    }
    proxy_delay(ct, proxy, PROXY_REPLIES, 50); /* so that all are asked before any is answered */
    proxy_plan_t plan = {.way = PROXY_REPLIES, .after = HEARD_BYTES, .act = PROXY_CUT};
    plan.request = name_of(ct, names[0]);
    int64_t acts = proxy_counts(ct, proxy).acts;
    proxy_plan(ct, proxy, &plan);
    watch_t watch = start_watch(ct);
    for (int i = 0; i < OUTSTANDING; i++) {
        (void)begin_acquire(ct, queue, locks[i], i % 2 == 0 ? 0 : DL_WAIT_FOREVER, 60000);
    }
    for (int i = 0; i < OUTSTANDING; i++) {
        dl_completion_t done = take_next(ct, queue, SOON_MS);
        int at = 0;
        while (locks[at] != done.lock) {
            at++;
        }
        hold_ids[at] = done.status == DL_OK ? done.hold_id : 0;
        unheard += done.status != DL_OK;
        CT_CHECKF(done.status == DL_OK ||
                      (at % 2 == 0 && (done.status == DL_EUNKNOWN || done.status == DL_EIO)),
                  "%s: %s", names[at], done.err.message);
    }
    IN_TIME(watch, 2 * timeout_ms);
    proxy_await_act(ct, proxy, (int)acts + 1, 0);
    proxy_delay(ct, proxy, PROXY_REPLIES, 0);
    CT_GT(unheard, 0);
    CT_LT(unheard, OUTSTANDING / 2);
    for (int i = 0; i < OUTSTANDING; i++) {
        if (hold_ids[i] == 0) {
            ct_expect_free(ct, names[i], timeout_ms + FREE_MS + ct_tolerance_ms(ct));
            continue;
        }
        dl_lock_info_t info = ct_server_info(ct, names[i]);
        CT_CHECK(info.held);
        CT_EQ(info.hold_id, hold_ids[i]);
        unlock_by(ct, queue, locks[i]);
        ct_expect_free(ct, names[i], 0);
    }
    dl_queue_free(queue);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_half_open_and_idle, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "row 10");
    /* As after a firewall forgot the connection; new ones work. */
    proxy_swallow(ct, proxy, PROXY_BOTH);
    proxy_swallow(ct, proxy, 0);
    watch_t watch = start_watch(ct);
    CT_EITHER(dl_trylock(lock, CT_ERR), DL_EUNKNOWN, DL_EIO);
    IN_TIME(watch, ct_call_timeout_ms(ct));
    watch = start_watch(ct);
    CT_OK(dl_trylock(lock, CT_ERR)); /* no dead connection is used again */
    IN_TIME(watch, sign_of_life_ms(ct));
    CT_OK(dl_unlock(lock, CT_ERR));
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_half_open_connection_of_the_renewals, WIRE, .needs = DL_CAP_LEASE) {
    proxy_t *proxy = start_proxy(ct);
    char options[160];
    snprintf(options, sizeof options, "%s\nlease: %lldms", address_of(ct, proxy),
             (long long)(3 * ct_call_timeout_ms(ct)));
    dl_client_t *c = ct_open(ct, options);
    dl_lock_t *lock = ct_lock(ct, c, "row 10");
    CT_OK(dl_lock(lock, CT_ERR));
    int64_t lease_ms = 3 * ct_call_timeout_ms(ct);
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, ==, 1, lease_ms / 3 + ct_tolerance_ms(ct));
    proxy_swallow(ct, proxy, PROXY_BOTH);
    proxy_swallow(ct, proxy, 0);
    /* One renewal gets no answer, the next has another connection: in time. */
    ct_expect_event(ct, c, DL_EVENT_RENEWAL_FAILING, "row 10", lease_ms);
    ct_expect_event(ct, c, DL_EVENT_RENEWAL_RECOVERED, "row 10", lease_ms / 3 + ct_tolerance_ms(ct));
    CT_GT(dl_valid_ms(lock), 0);
    CT_EQ(ct_stats(ct, c).lost, 0);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_half_open_connection_of_a_holder, WIRE, .needs = DL_CAP_SESSION) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 10"), *next = ct_lock(ct, other, "row 10");
    CT_OK(dl_lock(lock, CT_ERR));
    uint64_t token = dl_token(lock);
    CT_AWAIT_THAT(ct_stats(ct, c).renewed, >=, 1, ct_lease_ms(ct));
    watch_t watch = start_watch(ct);
    proxy_swallow(ct, proxy, PROXY_BOTH);
    proxy_swallow(ct, proxy, 0);
    ct_expect_event(ct, c, DL_EVENT_LOST, "row 10", ct_lease_ms(ct) + ct_tolerance_ms(ct));
    IN_TIME(watch, ct_lease_ms(ct));
    CT_EQ(dl_valid_ms(lock), 0);
    /* The server's patience with a silent holder is its lease, in whole seconds. */
    CT_OK(dl_trylock_for(next, ct_lease_ms(ct) + 1000 + ct_tolerance_ms(ct), DL_LEASE_AUTO, CT_ERR));
    CT_GT(dl_token(next), token);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_ELOST);
    CT_EQ(ct_stats(ct, c).lost, 1);
    CT_OK(dl_unlock(next, CT_ERR));
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_idle_connections_hung_up_meanwhile, WIRE) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *c = open_behind(ct, proxy);
    for (int i = 0; i < 4; i++) {
        if (i % 2 == 0) {
            proxy_cut(ct, proxy);
        } else {
            proxy_reset(ct, proxy);
        }
        ct_sleep_ms(ct, TRUST_MS);
        expect_works(ct, c, "row 10");
    }
    CT_GE(ct_stats(ct, c).reconnects, 4);
    proxy_stop(ct, proxy);
}
