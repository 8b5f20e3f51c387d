/* admin.c - what the answers to questions about holders mean; lists of the locks that are held. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lock.h"

/* How many keys the server looks at for one page, and how many locks are asked about at once. */
#define SCAN_COUNT "1000"
#define CHUNK 500

/* The text up to `size`, cut at a zero byte. */
static void copy_text(char *to, size_t size, const char *text, size_t len) {
    snprintf(to, size, "%.*s", (int)(len < size ? len : size), text);
}

bool dli_redis_read_info(const redisReply *reply, dl_lock_info_t *info) {
    int64_t left_ms, ours, holds, hold_id;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 5 ||
        reply->element[1]->type != REDIS_REPLY_STRING || reply->element[4]->type != REDIS_REPLY_STRING ||
        !dli_reply_int(reply->element[0], &left_ms) || !dli_reply_int(reply->element[2], &ours) ||
        !dli_reply_int(reply->element[3], &holds)) {
        return false;
    }
    const char *text = reply->element[1]->str;
    size_t len = reply->element[1]->len;
    const char *colon = memrchr(text, ':', len);
    if (ours == 1 && colon != NULL && dli_text_int(colon + 1, (size_t)(text + len - colon - 1), &hold_id)) {
        info->hold_id = (uint64_t)hold_id;
        len = (size_t)(colon - text);
    }
    info->held = 1;
    copy_text(info->owner, sizeof info->owner, text, len);
    info->remaining_ms = left_ms < 0 ? -1 : left_ms;
    info->holds = holds < 0 ? 0 : holds > UINT32_MAX ? UINT32_MAX : (uint32_t)holds;
    copy_text(info->client, sizeof info->client, reply->element[4]->str, reply->element[4]->len);
    return true;
}

dli_slice_t dli_redis_label_prefix(const dli_redis_t *redis) {
    return (dli_slice_t){redis->label_key, strlen(redis->token_key) + strlen(DLI_LABEL_INFIX)};
}

/* ---- list ------------------------------------------------------------------------------------------- */

/* A page of keys is asked about in parts. */
typedef struct listing {
    dli_exchange_t exchange; /* first */
    dli_commands_t commands;
    dli_listed_t listed;
    char pattern[2 * (DLI_PREFIX_MAX + DL_NAME_MAX) + 2];
    size_t pattern_len;
    redisReply *page;             /* of SCAN: where the next begins, and keys */
    size_t at;                    /* the next key of the page */
    size_t pages;                 /* that have come */
    void *seen;                   /* tree of names: the server's SCAN may show a key more than once */
    bool ended;                   /* fn wants no more */
    dli_slice_t words[CHUNK + 2]; /* the keys of this part, and what else the script is told */
    size_t n;
    redisReply *held;
} listing_t;

static listing_t *listing_of(dli_exchange_t *exchange) {
    return (listing_t *)(void *)exchange;
}

/* The bytes, each meant as itself. */
static void add_literal(listing_t *l, const char *bytes, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (strchr("*?[]\\", bytes[i]) != NULL) {
            l->pattern[l->pattern_len++] = '\\';
        }
        l->pattern[l->pattern_len++] = bytes[i];
    }
}

static int compare_names(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Is this key one that may be a lock of ours? */
static bool is_candidate(const dli_redis_t *redis, const redisReply *key) {
    return key->type == REDIS_REPLY_STRING && key->len > redis->prefix_len &&
           key->len <= redis->prefix_len + DL_NAME_MAX && memchr(key->str, '\0', key->len) == NULL &&
           !dli_redis_is_own_key(redis, key->str, key->len);
}

/* Asks the next; the one before is over. */
static void ask(listing_t *l, redisReply **replies, void (*then)(dli_exchange_t *exchange)) {
    l->exchange = (dli_exchange_t){.redis = l->exchange.redis,
                                   .commands = &l->commands,
                                   .replies = replies,
                                   .deadline_ns = l->pages > 0 ? l->listed.deadline_ns : l->listed.first_ns,
                                   .then = then};
    dli_exchange_begin(&l->exchange);
}

/* Reports the lock at a key, once. */
static dl_status_t report(listing_t *l, const dli_slice_t *key, const dl_lock_info_t *info) {
    size_t prefix_len = l->exchange.redis->prefix_len;
    char *name = strndup(key->at + prefix_len, key->len - prefix_len);
    void **node = name != NULL ? tsearch(name, &l->seen, compare_names) : NULL;
    if (node == NULL || *node != name) {
        free(name);
        return node != NULL ? DL_OK : dl_driver_fail(&l->exchange.err, DL_ENOMEM, 0, "out of memory");
    }
    l->ended = l->listed.fn(l->listed.arg, name, info) != 0;
    return DL_OK;
}

static void ask_part(listing_t *l);

/* What the server says of the keys: for each lock its place among them and who holds it. */
static void take_held(dli_exchange_t *exchange) {
    listing_t *l = listing_of(exchange);
    const redisReply *reply = l->held;
    if (exchange->status != DL_OK) {
        return;
    }
    bool makes_sense = reply->type == REDIS_REPLY_ARRAY && reply->elements % 2 == 0;
    for (size_t i = 0; makes_sense && i < reply->elements && exchange->status == DL_OK && !l->ended; i += 2) {
        int64_t place;
        dl_lock_info_t info = DL_LOCK_INFO_INIT;
        makes_sense = dli_reply_int(reply->element[i], &place) && place >= 1 && (size_t)place <= l->n &&
                      dli_redis_read_info(reply->element[i + 1], &info);
        exchange->status = makes_sense ? report(l, &l->words[place - 1], &info) : DL_OK;
    }
    if (!makes_sense) {
        exchange->status = dli_redis_fail(exchange->redis, NULL, reply, &exchange->err);
    }
    freeReplyObject(l->held);
    l->held = NULL;
    if (exchange->status == DL_OK && !l->ended) {
        ask_part(l);
    }
}

static void ask_page(listing_t *l);

/* Asks about the next keys of the page; where there are none, for the next page. */
static void ask_part(listing_t *l) {
    const dli_redis_t *redis = l->exchange.redis;
    const redisReply *keys = l->page->element[1];
    /* What others wrote is a lock where nothing but locks should be. */
    bool only_locks = redis->prefix_len > 0 || strcmp(redis->layout->redis_type, "hash") == 0;
    for (l->n = 0; l->at < keys->elements && l->n < CHUNK; l->at++) {
        const redisReply *key = keys->element[l->at];
        if (is_candidate(redis, key)) {
            l->words[l->n++] = (dli_slice_t){key->str, key->len};
        }
    }
    if (l->n > 0) {
        l->words[l->n] = dli_redis_label_prefix(redis);
        l->words[l->n + 1] = dli_slice(only_locks ? "1" : "0");
        dli_commands_clear(&l->commands); /* by its text, as an exchange is not sent again */
        dli_script_encode(&l->commands, redis->layout->inspect, true, l->n, l->n + 2, l->words);
        ask(l, &l->held, take_held);
    } else if (strcmp(l->page->element[0]->str, "0") != 0) {
        ask_page(l);
    }
}

static void take_page(dli_exchange_t *exchange) {
    listing_t *l = listing_of(exchange);
    const redisReply *p = l->page;
    if (exchange->status == DL_OK &&
        (p->type != REDIS_REPLY_ARRAY || p->elements != 2 || p->element[0]->type != REDIS_REPLY_STRING ||
         p->element[1]->type != REDIS_REPLY_ARRAY)) {
        exchange->status = dli_redis_fail(exchange->redis, NULL, p, &exchange->err);
    }
    if (exchange->status == DL_OK) {
        l->pages++;
        l->at = 0;
        ask_part(l);
    }
}

static void ask_page(listing_t *l) {
    const dli_slice_t words[] = {
        dli_slice("SCAN"),  dli_slice(l->page != NULL ? l->page->element[0]->str : "0"),
        dli_slice("MATCH"), {l->pattern, l->pattern_len},
        dli_slice("COUNT"), dli_slice(SCAN_COUNT),
        dli_slice("TYPE"),  dli_slice(l->exchange.redis->layout->redis_type)};
    dli_commands_clear(&l->commands);
    dli_commands_add(&l->commands, sizeof words / sizeof words[0], words);
    freeReplyObject(l->page);
    l->page = NULL;
    ask(l, &l->page, take_page);
}

dli_exchange_t *dli_listing_begin(dli_redis_t *alone, const dli_listed_t *listed) {
    listing_t *l = calloc(1, sizeof *l);
    if (l == NULL) {
        return NULL;
    }
    l->exchange.redis = alone;
    l->listed = *listed;
    if (listed->prefix_len > DL_NAME_MAX) {
        return &l->exchange; /* no name is that long */
    }
    add_literal(l, alone->prefix, alone->prefix_len);
    add_literal(l, listed->prefix, listed->prefix_len);
    l->pattern[l->pattern_len++] = '*';
    ask_page(l);
    return &l->exchange;
}

dl_status_t dli_listing_end(dli_exchange_t *listing, dl_error_t *err) {
    listing_t *l = listing_of(listing);
    if (l == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    const dli_redis_t *redis = l->exchange.redis;
    const dl_driver_env_t *env = redis->env;
    dl_status_t status = l->exchange.status;
    if (status == DL_EIO && l->pages > 0 && env->now_ns() >= l->listed.deadline_ns) {
        (void)dl_driver_fail(err, status, 0, "%.100s: listing took longer than call_timeout (%s)",
                             redis->endpoint.label, dl_driver_duration(env->call_timeout_ms).text);
    } else if (status != DL_OK) {
        *err = l->exchange.err;
    }
    tdestroy(l->seen, free);
    freeReplyObject(l->page);
    freeReplyObject(l->held);
    dli_commands_free(&l->commands);
    free(l);
    return status;
}

/* Shows every lock that is held from the first to the last page, each once, in no order. */
dl_status_t dli_redis_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                           uint64_t deadline_ns, dl_error_t *err) {
    const dli_listed_t listed = {prefix, prefix_len, fn, arg, deadline_ns, deadline_ns};
    dli_redis_t *alone;
    dl_status_t status = dli_redis_open_alone(state, &alone, err);
    dli_exchange_t *listing = status == DL_OK ? dli_listing_begin(alone, &listed) : NULL;
    if (listing != NULL) {
        dli_exchanges_run(&listing, 1);
    }
    status = status == DL_OK ? dli_listing_end(listing, err) : status;
    dli_redis_close_alone(alone);
    return status;
}
