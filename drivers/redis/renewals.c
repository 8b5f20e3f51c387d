/* renewals.c - renewing many holds by few exchanges. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "lock.h"

/* Holds renewed by one exchange: the server works on it for a few milliseconds, so nobody waits long behind
 * it. */
#define CHUNK 256
/* So few are renewed without memory of the heap. */
#define FEW 6
#define RENEW_WORDS 6

/* One entry on its way. */
typedef struct item {
    dl_renewal_t *entry;
    dli_key_t key, channel, peers;
    char hold_id[24], lease_ms[24];
    dli_slice_t argv[RENEW_WORDS];
} item_t;

/* What one exchange needs. */
typedef struct room {
    size_t size; /* entries that there is room for */
    item_t *items;
    dli_script_call_t *calls;
    redisReply **replies;
    uint64_t *sent_ns;
} room_t;

static void give_room(room_t *room) {
    free(room->items);
    free(room->calls);
    free(room->replies);
    free(room->sent_ns);
}

static bool make_room(room_t *room, size_t n) {
    *room = (room_t){
        .size = n,
        .items = calloc(n, sizeof *room->items),
        .calls = calloc(n, sizeof *room->calls),
        .replies = calloc(n, sizeof *room->replies),
        .sent_ns = calloc(n, sizeof *room->sent_ns),
    };
    if (room->items != NULL && room->calls != NULL && room->replies != NULL && room->sent_ns != NULL) {
        return true;
    }
    give_room(room);
    return false;
}

static void encode(const dli_redis_t *redis, dl_renewal_t *r, item_t *item, dli_script_call_t *call) {
    item->entry = r;
    dli_redis_key(redis, r->name, r->name_len, &item->key);
    redis->layout->channel(redis, r->name, r->name_len, &item->channel);
    redis->layout->peers(redis, r->name, r->name_len, &item->peers);
    item->argv[0] = (dli_slice_t){item->key.at, item->key.len};
    item->argv[1] = dli_slice(r->owner);
    item->argv[2] = dli_slice_int(item->hold_id, (int64_t)r->hold_id);
    item->argv[3] = dli_slice_int(item->lease_ms, r->lease_ms);
    item->argv[4] = (dli_slice_t){item->channel.at, item->channel.len};
    item->argv[5] = (dli_slice_t){item->peers.at, item->peers.len};
    *call = (dli_script_call_t){redis->layout->renew, 1, RENEW_WORDS, item->argv};
}

/* A lease below 1 ms would delete the key. */
static dl_status_t check_entry(const dl_renewal_t *r) {
    if (r->hold_id >= DLI_EXACT_END) {
        return DL_ELIMIT;
    }
    return r->lease_ms < 1 || r->lease_ms > DL_LEASE_MAX_MS ? DL_EINVAL : DL_OK;
}

static dl_status_t judge(const dli_redis_t *redis, const dli_key_t *key, const redisReply *reply) {
    int64_t number;
    dl_error_t err;
    if (dli_reply_int(reply, &number)) {
        return number == 1 ? DL_OK : number == 0 ? DL_ELOST : DL_EPROTO;
    }
    return dli_redis_is_foreign(reply) ? DL_ELOST : dli_redis_fail(redis, key, reply, &err);
}

/* What an exchange that ended like this means for an entry without an answer. */
static dl_status_t without_answer(dl_status_t status) {
    switch (status) {
    case DL_OK:
    case DL_EPROTO:
        return DL_EUNKNOWN;
    case DL_ECANCELED:
        return DL_EIO;
    default:
        return status;
    }
}

/* Renews as many as there is room for, by one exchange. False: nothing was sent, for lack of memory. */
static bool renew_chunk(dli_redis_t *redis, dl_renewal_t *renewals, size_t n, const room_t *room,
                        uint64_t deadline_ns) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        renewals[i].status = check_entry(&renewals[i]);
        if (renewals[i].status == DL_OK) {
            encode(redis, &renewals[i], &room->items[count], &room->calls[count]);
            room->sent_ns[count++] = 0;
        }
    }
    if (count == 0) {
        return true;
    }
    dl_error_t err;
    dli_exchange_t exchange = {
        .replies = room->replies, .lane = DLI_LANE_RENEWALS, .intent = DLI_PLAIN, .deadline_ns = deadline_ns};
    dl_status_t status = dli_scripts_run(redis->link, &exchange, room->calls, count, room->sent_ns, &err);
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        dl_renewal_t *r = room->items[i].entry;
        redisReply *reply = room->replies[i];
        any = any || reply != NULL;
        r->status = reply != NULL ? judge(redis, &room->items[i].key, reply) : without_answer(status);
        if (room->sent_ns[i] != 0) {
            r->sent_ns = room->sent_ns[i];
        }
        freeReplyObject(reply);
        room->replies[i] = NULL;
    }
    return any || status != DL_ENOMEM;
}

/* All of them, as many at once as there is room for; one by one where memory does not suffice for that. */
static void renew_all(dli_redis_t *redis, dl_renewal_t *renewals, size_t n, const room_t *room,
                      uint64_t deadline_ns) {
    for (size_t at = 0; at < n; at += room->size) {
        size_t some = n - at < room->size ? n - at : room->size;
        if (!renew_chunk(redis, renewals + at, some, room, deadline_ns) && some > 1) {
            for (size_t i = at; i < at + some; i++) {
                (void)renew_chunk(redis, &renewals[i], 1, room, deadline_ns);
            }
        }
    }
}

void dli_redis_renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    dli_redis_t *redis = state;
    item_t items[FEW];
    dli_script_call_t calls[FEW];
    redisReply *replies[FEW] = {NULL};
    uint64_t sent_ns[FEW], now = redis->env->now_ns();
    room_t few = {FEW, items, calls, replies, sent_ns}, many;
    for (size_t i = 0; i < n; i++) {
        renewals[i].sent_ns = now;
    }
    if (n > FEW && make_room(&many, n < CHUNK ? n : CHUNK)) {
        renew_all(redis, renewals, n, &many, deadline_ns);
        give_room(&many);
    } else {
        renew_all(redis, renewals, n, &few, deadline_ns);
    }
}
