/* news_cases.c - faults of the network that lose the news of a release (rows 13 and 14). */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/redis_wire.h"

/* ---- rows 13 and 14: news ---------------------------------------------------------------------------- */

/* A waiter of a client behind the proxy, which hears of releases. */
static void start_waiter(ct_t *ct, caller_t *waiter) {
    start_caller(ct, waiter);
    CT_AWAIT(is_subscribed(ct), 5000);
    ct_await_hearing(ct, NULL, "row 13", 5000);
}

/* The number of the connection that is subscribed, or of the first of several; 0: none is. */
static long long subscriber(ct_t *ct) {
    long long id = 0;
    (void)sscanf(redis_ask(ct_redis(ct), "CLIENT LIST TYPE pubsub"), "id=%lld", &id);
    return id;
}

CT_CASE(faults, row13_subscribed_connection_dies, REDIS) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *a = ct_open(ct, NULL), *b = open_behind(ct, proxy);
    dl_lock_t *held = ct_lock(ct, a, "row 13"), *wanted = ct_lock(ct, b, "row 13");
    for (int i = 0; i < 4; i++) {
        take(ct, held, 20 * ct_lease_ms(ct));
        caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
        start_waiter(ct, &waiter);
        long long id = subscriber(ct);
        if (i % 2 == 0) {
            proxy_cut(ct, proxy);
        } else {
            proxy_reset(ct, proxy);
        }
        if (i >= 2) { /* else the news comes while nobody listens */
            CT_AWAIT(subscriber(ct) != 0 && subscriber(ct) != id, RETRY_MS + ct_tolerance_ms(ct));
        }
        int64_t before_ms = ct_now_ms(ct);
        CT_OK(dl_unlock(held, CT_ERR));
        end_caller(ct, &waiter, DL_OK);
        CT_LE(waiter.ended_ms - before_ms, (i >= 2 ? 0 : RETRY_MS) + ct_tolerance_ms(ct));
    }
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row13_release_while_the_subscription_is_made_anew, REDIS) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *a = ct_open(ct, NULL), *b = open_behind(ct, proxy);
    dl_lock_t *held = ct_lock(ct, a, "row 13"), *wanted = ct_lock(ct, b, "row 13");
    take(ct, held, 20 * ct_lease_ms(ct));
    caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
    start_waiter(ct, &waiter);
    /* Only this connection dies, and the next cannot be made yet. */
    int tries = ct_calls_of(ct, CT_OP_TRY, b, "row 13");
    proxy_refuse(ct, proxy, 1);
    CT_EQ(redis_number(ct_redis(ct), "CLIENT KILL TYPE pubsub"), 1);
    CT_AWAIT_THAT(ct_calls_of(ct, CT_OP_TRY, b, "row 13"), >, tries, 1000); /* looked at once */
    CT_AWAIT_THAT(ct_call(ct, CT_OP_TRY, -1).status, ==, DL_EBUSY, 1000);
    CT_OK(dl_unlock(held, CT_ERR));
    proxy_refuse(ct, proxy, 0);
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK); /* and again when subscribed */
    CT_LE(waiter.ended_ms - before_ms, RETRY_MS + ct_tolerance_ms(ct));
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row13_message_is_missed, REDIS) {
    proxy_t *proxy = start_proxy(ct);
    dl_client_t *a = ct_open(ct, NULL), *b = open_behind(ct, proxy);
    dl_lock_t *held = ct_lock(ct, a, "row 13"), *wanted = ct_lock(ct, b, "row 13");
    CT_OK(dl_lock(held, CT_ERR));
    /* All that follows the confirmation of the subscription is swallowed: type, channel, count. */
    char reply[256];
    int string = strcmp(ct_driver_name(ct), "redis-string") == 0;
    char channel[64];
    snprintf(channel, sizeof channel, "%s",
             string ? "dlock:released:dlock:row 13" : "redisson_lock__channel:{row 13}");
    /* Before it, the one of its process' own: with a colon and 36 characters more. */
    int len = snprintf(reply, sizeof reply,
                       "*3\r\n$9\r\nsubscribe\r\n$%zu\r\n%s:%36s\r\n:1\r\n"
                       "*3\r\n$9\r\nsubscribe\r\n$%zu\r\n%s\r\n:2\r\n",
                       strlen(channel) + 37, channel, "", strlen(channel), channel);
    proxy_plan_t plan = {
        .request = channel, .way = PROXY_REPLIES, .after = (size_t)len, .act = PROXY_SWALLOW};
    ct_pause_t *pause = ct_pause(ct, CT_OP_WATCH, CT_BEFORE, b, "row 13");
    caller_t waiter = CALLER(wanted, DL_WAIT_FOREVER);
    start_caller(ct, &waiter);
    ct_pause_await(ct, pause, 5000);
    proxy_plan(ct, proxy, &plan);
    ct_pause_go(ct, pause);
    ct_await_hearing(ct, b, "row 13", 5000);
    CT_CHECK(strstr(redis_ask(ct_redis(ct), "PUBSUB CHANNELS"), channel) != NULL);
    CT_OK(dl_unlock(held, CT_ERR));
    int64_t before_ms = ct_now_ms(ct);
    end_caller(ct, &waiter, DL_OK);
    CT_LE(waiter.ended_ms - before_ms, ct_lease_ms(ct) + ct_tolerance_ms(ct));
    CT_EQ(proxy_counts(ct, proxy).acts, 1);
    proxy_stop(ct, proxy);
}

CT_CASE(faults, row13_subscription_is_never_confirmed, REDIS) {
    proxy_t *proxy = start_proxy(ct);
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
    proxy_t *proxy = start_proxy(ct);
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
