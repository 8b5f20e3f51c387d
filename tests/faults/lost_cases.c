/* lost_cases.c - faults of the network that lose replies, requests and news for a while (rows 11 to 14). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/wire.h"

/* ---- row 11: the server did it, and nobody heard ------------------------------------------------------ */

static void lose_reply(ct_t *ct, proxy_t *proxy, const char *request, proxy_act_t act) {
    proxy_plan_t plan = {.request = request, .way = PROXY_REPLIES, .act = act};
    proxy_plan(ct, proxy, &plan);
}

CT_CASE(faults, row11_reply_to_a_lock_lost, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy);
    for (int i = 0; i < 6; i++) {
        const char *name = fresh_name("row 11");
        dl_lock_t *lock = ct_lock(ct, c, name);
        lose_reply(ct, proxy, name, i % 2 == 0 ? PROXY_CUT : PROXY_RESET);
        watch_t watch = start_watch(ct);
        CT_OK(dl_trylock_for(lock, 10 * ct_lease_ms(ct), 20 * ct_lease_ms(ct), CT_ERR));
        IN_TIME(watch, 100); /* it does not wait for the lease of the hold that it knows nothing of */
        CT_EQ(proxy_counts(ct, proxy).acts, i + 1);
        CT_CHECK(ct_server_info(ct, name).hold_id == ct_call(ct, CT_OP_TRY, -1).hold_id);
        CT_OK(dl_unlock(lock, CT_ERR));
        ct_expect_free(ct, name, 0);
    }
    CT_EQ(ct_stats(ct, c).contended, 0);
    CT_EQ(ct_stats(ct, c).unknown_outcomes, 6);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row11_reply_to_a_lock_swallowed, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "row 11"), *another = ct_lock(ct, c, "row 11 again");
    lose_reply(ct, proxy, "row 11", PROXY_SWALLOW);
    watch_t watch = start_watch(ct);
    CT_STATUS(dl_trylock_for(lock, 50, 20 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN);
    IN_TIME(watch, 50);
    watch = start_watch(ct);
    CT_OK(dl_trylock(lock, CT_ERR)); /* not busy with itself */
    IN_TIME(watch, 0);
    CT_OK(dl_unlock(lock, CT_ERR));
    /* And when it is not asked for again, it is given back. */
    lose_reply(ct, proxy, "row 11 again", PROXY_SWALLOW);
    CT_STATUS(dl_trylock_for(another, 50, 20 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN);
    ct_expect_free(ct, "row 11 again", FREE_MS + ct_tolerance_ms(ct));
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row11_reply_to_an_unlock_lost, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy), *other = ct_open(ct, NULL);
    for (int i = 0; i < 4; i++) {
        const char *name = fresh_name("row 11");
        dl_lock_t *lock = ct_lock(ct, c, name), *next = ct_lock(ct, other, name);
        CT_OK(dl_lock(lock, CT_ERR));
        lose_reply(ct, proxy, name, i % 2 == 0 ? PROXY_CUT : PROXY_RESET);
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_EUNKNOWN);
        CT_STATUS(dl_unlock(lock, CT_ERR), DL_ENOTOWNER);
        CT_OK(dl_trylock(next, CT_ERR));
        uint64_t hold_id = ct_server_info(ct, name).hold_id;
        CT_AWAIT(ct_stats(ct, c).background_frees >= (uint64_t)i + 1, FREE_MS + ct_tolerance_ms(ct));
        CT_CHECK(ct_server_info(ct, name).hold_id == hold_id); /* the free of the first harms nobody */
        CT_OK(dl_unlock(next, CT_ERR));
    }
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row11_reply_to_a_renewal_lost, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "row 11");
    CT_OK(dl_lock(lock, CT_ERR));
    for (int i = 0; i < 2; i++) {
        lose_reply(ct, proxy, "row 11", PROXY_CUT);
        ct_expect_event(ct, c, DL_EVENT_RENEWAL_FAILING, "row 11", ct_lease_ms(ct));
        ct_expect_event(ct, c, DL_EVENT_RENEWAL_RECOVERED, "row 11", ct_lease_ms(ct));
    }
    CT_GT(dl_valid_ms(lock), 0);
    CT_EQ(ct_stats(ct, c).lost, 0);
    lose_reply(ct, proxy, "row 11", PROXY_CUT);
    int64_t valid_ms = dl_valid_ms(lock);
    CT_STATUS(dl_extend(lock, 10 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN);
    CT_LE(dl_valid_ms(lock),
          valid_ms > ct_lease_ms(ct) ? valid_ms : ct_lease_ms(ct)); /* only a yes extends */
    CT_GT(ct_server_info(ct, "row 11").remaining_ms, 9 * ct_lease_ms(ct));
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "row 11", 0);
    proxy_stop(ct, proxy);
}

/* ---- row 12: a request arrives when nobody waits for it any more --------------------------------------- */

/* ":" and a token, which is a time in microseconds, and the line's end. */
#define TOKEN_BYTES 19

/* A lock call whose request is held back on its way, and which gives up. */
static void lock_without_arriving(ct_t *ct, proxy_t *proxy, dl_lock_t *lock) {
    proxy_plan_t plan = {.request = "row 12", .way = PROXY_REQUESTS, .act = PROXY_HOLD};
    int64_t acts = proxy_counts(ct, proxy).acts;
    proxy_plan(ct, proxy, &plan);
    CT_STATUS(dl_trylock_for(lock, 50, 20 * ct_lease_ms(ct), CT_ERR), DL_EUNKNOWN);
    CT_EQ(proxy_counts(ct, proxy).acts, acts + 1);
}

CT_CASE(faults, row12_late_request_after_the_background_free, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "row 12");
    lock_without_arriving(ct, proxy, lock);
    CT_AWAIT(ct_stats(ct, c).background_frees >= 1, FREE_MS + ct_tolerance_ms(ct));
    ct_sleep_ms(ct, ct_tolerance_ms(ct)); /* it has had its answer */
    /* The connection that carries it was killed before: it is never carried out. */
    CT_EQ(proxy_deliver(ct, proxy, 0), 0);
    ct_expect_free(ct, "row 12", 0);
    CT_EQ(redis_number(ct_redis(ct), "EXISTS %s", key_of(ct, "row 12")), 0);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row12_late_request_replaces_and_frees_no_newer_hold, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy);
    dl_lock_t *lock = ct_lock(ct, c, "row 12");
    lock_without_arriving(ct, proxy, lock);
    CT_OK(dl_trylock(lock, CT_ERR));
    dl_lock_info_t before = ct_server_info(ct, "row 12");
    CT_GT(proxy_deliver(ct, proxy, 1),
          TOKEN_BYTES); /* busy; on another connection, as a proxy that tries again would */
    dl_lock_info_t after = ct_server_info(ct, "row 12");
    CT_CHECK(after.held && after.hold_id == before.hold_id && after.remaining_ms <= ct_lease_ms(ct));
    CT_OK(dl_extend(lock, ct_lease_ms(ct), CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "row 12", 0);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row12_late_request_takes_the_lock_for_nobody, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *c = open_behind(ct, proxy), *other = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, c, "row 12"), *theirs = ct_lock(ct, other, "row 12");
    lock_without_arriving(ct, proxy, lock);
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_EQ(proxy_deliver(ct, proxy, 1), TOKEN_BYTES); /* it was given the lock */
    CT_EQ(dl_hold_count(lock), 0);
    CT_EQ(ct_stats(ct, c).held_now, 0);
    CT_EQ(ct_calls(ct, CT_OP_RENEW), 0);
    /* Its client's next hold replaces it at once; for others it is freed in the background. */
    CT_OK(dl_trylock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
    CT_OK(dl_trylock_for(theirs, FREE_MS, DL_LEASE_AUTO, CT_ERR));
    CT_OK(dl_unlock(theirs, CT_ERR));
    proxy_stop(ct, proxy);
}

/* ---- rows 13 and 14: news ---------------------------------------------------------------------------- */

/* A waiter of a client behind the proxy, which hears of releases. */
static void start_waiter(ct_t *ct, caller_t *waiter) {
    start_caller(ct, waiter);
    CT_AWAIT(is_subscribed(ct), 5000);
    CT_AWAIT(ct_calls(ct, CT_OP_WAIT) >= 1, 5000); /* it has looked once more, and sleeps */
}

CT_CASE(faults, row13_subscribed_connection_dies, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *a = ct_open(ct, NULL), *b = open_behind(ct, proxy);
    dl_lock_t *held = ct_lock(ct, a, "row 13"), *wanted = ct_lock(ct, b, "row 13");
    for (int i = 0; i < 4; i++) {
        take(ct, held, 20 * ct_lease_ms(ct));
        caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
        start_waiter(ct, &waiter);
        if (i % 2 == 0) {
            proxy_cut(ct, proxy);
        } else {
            proxy_reset(ct, proxy);
        }
        if (i >= 2) { /* else the news comes while nobody listens */
            CT_AWAIT(!is_subscribed(ct), 1000);
            CT_AWAIT(is_subscribed(ct), RETRY_MS + ct_tolerance_ms(ct));
        }
        int64_t before_ms = ct_now_ms(ct);
        CT_OK(dl_unlock(held, CT_ERR));
        end_caller(ct, &waiter, DL_OK);
        CT_LE(waiter.ended_ms - before_ms, (i >= 2 ? 0 : RETRY_MS) + ct_tolerance_ms(ct));
    }
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row13_release_while_the_subscription_is_made_anew, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *a = ct_open(ct, NULL), *b = open_behind(ct, proxy);
    dl_lock_t *held = ct_lock(ct, a, "row 13"), *wanted = ct_lock(ct, b, "row 13");
    take(ct, held, 20 * ct_lease_ms(ct));
    caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
    start_waiter(ct, &waiter);
    /* Only this connection dies, and the next cannot be made yet. */
    int tries = ct_calls_of(ct, CT_OP_TRY, b, "row 13");
    proxy_refuse(ct, proxy, 1);
    CT_EQ(redis_number(ct_redis(ct), "CLIENT KILL TYPE pubsub"), 1);
    CT_AWAIT(ct_calls_of(ct, CT_OP_TRY, b, "row 13") > tries, 1000); /* looked at once */
    CT_AWAIT(ct_call(ct, CT_OP_TRY, -1).status == DL_EBUSY, 1000);
    CT_OK(dl_unlock(held, CT_ERR));
    proxy_refuse(ct, proxy, 0);
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK); /* and again when subscribed */
    CT_LE(waiter.ended_ms - before_ms, RETRY_MS + ct_tolerance_ms(ct));
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row13_message_is_missed, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *a = ct_open(ct, NULL), *b = open_behind(ct, proxy);
    dl_lock_t *held = ct_lock(ct, a, "row 13"), *wanted = ct_lock(ct, b, "row 13");
    CT_OK(dl_lock(held, CT_ERR));
    /* All that follows the confirmation of the subscription is swallowed: type, channel, count. */
    char reply[256];
    int string = strcmp(ct_driver_name(ct), "redis-string") == 0;
    char channel[64];
    snprintf(channel, sizeof channel, "%s",
             string ? "dlock:released:dlock:row 13" : "redisson_lock__channel:{row 13}");
    int len = snprintf(reply, sizeof reply, "*3\r\n$9\r\nsubscribe\r\n$%zu\r\n%s\r\n:1\r\n", strlen(channel),
                       channel);
    proxy_plan_t plan = {
        .request = "row 13", .way = PROXY_REPLIES, .after = (size_t)len, .act = PROXY_SWALLOW};
    ct_pause_t *pause = ct_pause(ct, CT_OP_WATCH, CT_BEFORE, b, "row 13");
    caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    ct_pause_await(ct, pause, 5000);
    proxy_plan(ct, proxy, &plan);
    ct_pause_go(ct, pause);
    CT_AWAIT(ct_calls(ct, CT_OP_WAIT) >= 1, 5000);
    CT_STR_EQ(redis_ask(ct_redis(ct), "PUBSUB CHANNELS"), channel);
    CT_OK(dl_unlock(held, CT_ERR));
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK);
    CT_LE(waiter.ended_ms - before_ms, ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(proxy_counts(ct, proxy).acts, 1);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row13_subscription_is_never_confirmed, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *a = ct_open(ct, NULL), *b = open_behind(ct, proxy);
    dl_lock_t *held = ct_lock(ct, a, "row 13"), *wanted = ct_lock(ct, b, "row 13");
    take(ct, held, 20 * ct_lease_ms(ct));
    lose_reply(ct, proxy, "SUBSCRIBE", PROXY_SWALLOW);
    caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    proxy_await_act(ct, proxy, 1, 5000);
    CT_OK(dl_unlock(held, CT_ERR));
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK);
    /* Nobody may wait longer for that than for any other answer. */
    CT_LE(waiter.ended_ms - before_ms, ct_call_timeout_ms(ct) + ct_tolerance_ms(ct));
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row14_release_while_the_subscription_is_on_its_way, REDIS) {
    proxy_t *proxy = proxy_start(ct, ct_redis(ct)->port);
    dl_client_t *a = ct_open(ct, NULL), *b = open_behind(ct, proxy);
    dl_lock_t *held = ct_lock(ct, a, "row 14"), *wanted = ct_lock(ct, b, "row 14");
    int64_t delay_ms = 60;
    proxy_delay(ct, proxy, PROXY_BOTH, delay_ms);
    /* From before the first answer until after the subscription is confirmed. */
    for (int at = 1; at <= 6; at++) {
        take(ct, held, 20 * ct_lease_ms(ct));
        caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
        start_caller(ct, &waiter);
        ct_sleep_ms(ct, at * delay_ms - delay_ms / 2);
        int64_t before_ms = ct_now_ms(ct);
        CT_OK(dl_unlock(held, CT_ERR));
        end_caller(ct, &waiter, DL_OK);
        /* At worst the try just made, a connection with its handshake, a subscription, another try. */
        CT_LE(waiter.ended_ms - before_ms, 8 * delay_ms + ct_tolerance_ms(ct));
    }
    proxy_stop(ct, proxy);
}
