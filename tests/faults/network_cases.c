/* network_cases.c - faults of the network between client and server (row 10): refused, silent, cut, wrong. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "faults/wire.h"

/* ---- no connection ------------------------------------------------------------------------------ */

CT_CASE(faults, row10_connections_refused_at_open, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    proxy_refuse(ct, proxy, 1);
    dl_client_t *c;
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, proxy_url(proxy), &c, CT_ERR), DL_EIO);
    IN_TIME(watch, ct_call_timeout_ms(ct));
    CT_CHECKF(strstr(ct_last_err()->message, "127.0.0.1") != NULL, "does not say which server: %s",
              ct_last_err()->message);
    proxy_refuse(ct, proxy, 0);
    expect_works(ct, ct_open(ct, proxy_url(proxy)), "row 10");
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_connections_refused_later, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
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
    /* What cannot be renewed is lost in time. */
    ct_expect_event(ct, c, DL_EVENT_RENEWAL_FAILING, "row 10 held", ct_lease_ms(ct));
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
    CT_CHECK(fds[0] >= 0 && bind(fds[0], (struct sockaddr *)&address, len) == 0 && listen(fds[0], 0) == 0 &&
             getsockname(fds[0], (struct sockaddr *)&address, &len) == 0);
    for (int i = 1; i < 4; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        CT_CHECK(fds[i] >= 0);
        (void)connect(fds[i], (struct sockaddr *)&address, len);
    }
    return ntohs(address.sin_port);
}

CT_CASE(faults, row10_connections_black_holed, REDIS) {
    int fds[4];
    char url[64];
    snprintf(url, sizeof url, "url: \"redis://127.0.0.1:%d\"", full_port(ct, fds));
    dl_client_t *c;
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, url, &c, CT_ERR), DL_EIO);
    CT_GE(ct_now_ms(ct) - watch.began_ms, patience_ms(ct) - 1); /* else it was no black hole */
    IN_TIME(watch, patience_ms(ct));
    snprintf(url + strlen(url), sizeof url - strlen(url), "\nconnect_timeout: 100ms");
    watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, url, &c, CT_ERR), DL_EIO);
    CT_GE(ct_now_ms(ct) - watch.began_ms, 100 - 1);
    IN_TIME(watch, 100);
    for (int i = 0; i < 4; i++) {
        close(fds[i]);
    }
}

/* ---- a connection that is there, and silent ------------------------------------------------------- */

CT_CASE(faults, row10_server_silent_from_the_first_byte, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    proxy_swallow(ct, proxy, PROXY_REPLIES);
    dl_client_t *c;
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, proxy_url(proxy), &c, CT_ERR), DL_EIO);
    CT_GE(ct_now_ms(ct) - watch.began_ms, patience_ms(ct) - 1);
    IN_TIME(watch, patience_ms(ct));
    proxy_stop(ct, proxy);
}

/* All connections fall silent these ways, those that are made later too. */
static void fall_silent(ct_t *ct, int ways) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
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

CT_CASE(faults, row10_both_ways_black_holed, REDIS) {
    fall_silent(ct, PROXY_BOTH);
}

CT_CASE(faults, row10_only_the_replies_black_holed, REDIS) {
    fall_silent(ct, PROXY_REPLIES);
}

CT_CASE(faults, row10_half_open_and_idle, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "row 10");
    /* As after a firewall forgot the connection; new ones work. */
    proxy_swallow(ct, proxy, PROXY_BOTH);
    proxy_swallow(ct, proxy, 0);
    watch_t watch = start_watch(ct);
    CT_EITHER(dl_trylock(lock, CT_ERR), DL_EUNKNOWN, DL_EIO);
    IN_TIME(watch, ct_call_timeout_ms(ct));
    watch = start_watch(ct);
    CT_OK(dl_trylock(lock, CT_ERR)); /* the dead connection is not used again */
    IN_TIME(watch, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_half_open_connection_of_the_renewals, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    char options[160];
    snprintf(options, sizeof options, "%s\nlease: %lldms", proxy_url(proxy),
             (long long)(3 * ct_call_timeout_ms(ct)));
    dl_client_t *c = ct_open(ct, options);
    dl_lock_t *lock = ct_lock(ct, c, "row 10");
    CT_OK(dl_lock(lock, CT_ERR));
    int64_t lease_ms = 3 * ct_call_timeout_ms(ct);
    CT_AWAIT(ct_stats(ct, c).renewed == 1, lease_ms / 3 + ct_tolerance_ms(ct));
    proxy_swallow(ct, proxy, PROXY_BOTH);
    proxy_swallow(ct, proxy, 0);
    /* One renewal gets no answer, the next has another connection: in time. */
    ct_expect_event(ct, c, DL_EVENT_RENEWAL_FAILING, "row 10", lease_ms);
    ct_expect_event(ct, c, DL_EVENT_RENEWAL_RECOVERED, "row 10", lease_ms / 3 + ct_tolerance_ms(ct));
    CT_GT(dl_valid_ms(lock), 0);
    CT_EQ(ct_stats(ct, c).lost, 0);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_idle_connections_hung_up_meanwhile, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
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

/* ---- an answer that breaks off, or is none ---------------------------------------------------------- */

/* The reply to the first try goes wrong like this; the server has taken the lock. */
static void spoil_reply(ct_t *ct, proxy_t *proxy, dl_client_t *c, const proxy_plan_t *how) {
    proxy_plan_t plan = *how;
    int64_t acts = proxy_counts(ct, proxy).acts;
    const char *name = fresh_name("row 10");
    dl_lock_t *lock = ct_lock(ct, c, name);
    plan.request = name;
    plan.way = PROXY_REPLIES;
    proxy_plan(ct, proxy, &plan);
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    IN_TIME(watch, 0); /* that is clear without waiting for more */
    CT_EQ(proxy_counts(ct, proxy).acts, acts + 1);
    CT_EQ(dl_hold_count(lock), 0);
    ct_expect_free(ct, name, FREE_MS + ct_tolerance_ms(ct));
    expect_works(ct, c, name);
    /* The same with the answer to an unlock. */
    name = fresh_name("row 10");
    lock = ct_lock(ct, c, name);
    CT_OK(dl_lock(lock, CT_ERR));
    plan.request = name;
    proxy_plan(ct, proxy, &plan);
    watch = start_watch(ct);
    CT_STATUS(dl_unlock(lock, CT_ERR), DL_EUNKNOWN);
    IN_TIME(watch, 0);
    CT_EQ(dl_hold_count(lock), 0);
    ct_expect_free(ct, name, 0); /* it was carried out */
    expect_works(ct, c, name);
}

/* After each of its first bytes. */
static void break_off_replies(ct_t *ct, proxy_act_t act) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy);
    for (size_t after = 0; after <= 3; after++) {
        proxy_plan_t plan = {.act = act, .after = after};
        spoil_reply(ct, proxy, c, &plan);
    }
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_reset_mid_reply, REDIS) {
    break_off_replies(ct, PROXY_RESET);
}

CT_CASE(faults, row10_reply_truncated, REDIS) {
    break_off_replies(ct, PROXY_CUT);
}

CT_CASE(faults, row10_garbage_instead_of_a_reply, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy);
    static const char *const garbage[] = {"HTTP/1.1 400 Bad Request\r\n", "\x16\x03\x01\x02\x05\x01",
                                          ":12x4\r\n", "*1000000000\r\n", "\r\n"};
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        proxy_plan_t plan = {.act = PROXY_INSERT, .bytes = garbage[i], .len = strlen(garbage[i])};
        spoil_reply(ct, proxy, c, &plan);
    }
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_reply_that_announces_more_than_comes, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "row 10");
    proxy_plan_t plan = {.request = "row 10",
                         .way = PROXY_REPLIES,
                         .act = PROXY_INSERT,
                         .bytes = "$99999999999\r\n",
                         .len = 14};
    proxy_plan(ct, proxy, &plan);
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
    IN_TIME(watch, ct_call_timeout_ms(ct));
    ct_expect_free(ct, "row 10", FREE_MS + ct_tolerance_ms(ct));
    expect_works(ct, c, "row 10");
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_garbage_from_the_first_byte, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    proxy_plan_t plan = {.way = PROXY_REPLIES, .act = PROXY_INSERT, .bytes = "220 mail\r\n", .len = 10};
    proxy_plan(ct, proxy, &plan);
    dl_client_t *c;
    watch_t watch = start_watch(ct);
    CT_STATUS(ct_try_open(ct, proxy_url(proxy), &c, CT_ERR), DL_EPROTO);
    IN_TIME(watch, 0);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_answers_that_nobody_asked_for, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy), *direct = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 10"), *held = ct_lock(ct, direct, "row 10");
    CT_OK(dl_lock(held, CT_ERR));
    uint64_t token = dl_token(held);
    for (int i = 0; i < 3; i++) {
        ct_sleep_ms(ct, TRUST_MS);
        /* A number as the script would answer it, on every idle connection. */
        proxy_inject(ct, proxy, ":7\r\n", 4);
        CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    }
    CT_OK(dl_unlock(held, CT_ERR));
    ct_sleep_ms(ct, TRUST_MS);
    proxy_inject(ct, proxy, ":7\r\n", 4);
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_GT(dl_token(lock), token);
    ct_sleep_ms(ct, TRUST_MS);
    proxy_inject(ct, proxy, "$-1\r\n", 5); /* "not yours" */
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "row 10", 0);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row10_request_truncated, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy);
    for (size_t after = 0; after < 120; after += 30) {
        const char *name = fresh_name("row 10");
        dl_lock_t *lock = ct_lock(ct, c, name);
        proxy_plan_t plan = {.request = name, .way = PROXY_REQUESTS, .after = after, .act = PROXY_RESET};
        proxy_plan(ct, proxy, &plan);
        watch_t watch = start_watch(ct);
        CT_STATUS(dl_trylock(lock, CT_ERR), DL_EUNKNOWN);
        IN_TIME(watch, 0);
        ct_expect_free(ct, name, 0);
        expect_works(ct, c, name);
    }
    proxy_stop(ct, proxy);
}
