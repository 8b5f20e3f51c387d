/* admin.c - what administrators ask: who holds a lock, which are held, free one by force. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lock.h"

/* How many keys the server looks at for one page, and how many locks are asked about at once. */
#define SCAN_COUNT "500"
#define CHUNK 128

/* The text up to `size`, cut at a zero byte. */
static void copy_text(char *to, size_t size, const char *text, size_t len) {
    snprintf(to, size, "%.*s", (int)(len < size ? len : size), text);
}

/* The answer of an inspect script to something that is a lock. False: it makes no sense. */
static bool fill_info(const dli_redis_t *redis, const redisReply *reply, dl_lock_info_t *info) {
    int64_t left_ms, ours, holds, token, hold_id;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 5 ||
        reply->element[1]->type != REDIS_REPLY_STRING || !dli_reply_int(reply->element[0], &left_ms) ||
        !dli_reply_int(reply->element[2], &ours) || !dli_reply_int(reply->element[3], &holds) ||
        !dli_reply_int(reply->element[4], &token)) {
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
    info->token = token > 0 ? (uint64_t)token : 0;
    size_t uuid_len = strlen(redis->env->client_uuid);
    info->ours = strncmp(info->owner, redis->env->client_uuid, uuid_len) == 0 && info->owner[uuid_len] == ':';
    return true;
}

/* ---- one lock --------------------------------------------------------------------------------------- */

/* One script on one lock. DL_OK: *reply is the caller's. */
static dl_status_t ask(dli_redis_t *redis, const dli_script_call_t *call, dli_intent_t intent,
                       uint64_t deadline_ns, redisReply **reply, dl_error_t *err) {
    *reply = NULL;
    dli_exchange_t exchange = {
        .replies = reply, .lane = DLI_LANE_CALLS, .intent = intent, .deadline_ns = deadline_ns};
    dl_status_t status = dli_scripts_run(redis->link, &exchange, call, 1, NULL, err);
    if (status != DL_OK) {
        freeReplyObject(*reply);
        *reply = NULL;
    }
    return status;
}

dl_status_t dli_redis_inspect(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                              dl_lock_info_t *info, dl_error_t *err) {
    dli_redis_t *redis = state;
    *info = (dl_lock_info_t){.size = info->size, .remaining_ms = -1};
    dli_key_t key;
    redisReply *reply;
    dli_redis_key(redis, name, name_len, &key);
    const dli_slice_t argv[] = {{key.at, key.len}};
    dli_script_call_t call = {redis->layout->inspect, 1, 1, argv};
    dl_status_t status = ask(redis, &call, DLI_PLAIN, deadline_ns, &reply, err);
    if (status == DL_OK && reply->type != REDIS_REPLY_NIL && !fill_info(redis, reply, info)) {
        status = dli_redis_fail(redis, reply, err);
    }
    freeReplyObject(reply);
    return status;
}

dl_status_t dli_redis_force_release(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                                    dl_error_t *err) {
    dli_redis_t *redis = state;
    dli_key_t key, channel;
    redisReply *reply;
    dli_redis_key(redis, name, name_len, &key);
    redis->layout->channel(redis, name, name_len, &channel);
    const dli_slice_t argv[] = {{key.at, key.len}, {channel.at, channel.len}};
    dli_script_call_t call = {redis->layout->force, 1, 2, argv};
    dl_status_t status = ask(redis, &call, DLI_FREE, deadline_ns, &reply, err);
    int64_t number;
    if (status == DL_OK && (!dli_reply_int(reply, &number) || number < 0 || number > 1)) {
        status = dli_redis_fail(redis, reply, err);
    } else if (status == DL_OK && number == 0) {
        status = dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody held it");
    }
    freeReplyObject(reply);
    return status;
}

/* ---- list ------------------------------------------------------------------------------------------- */

/* A name that was reported. */
typedef struct name {
    size_t len;
    char at[DL_NAME_MAX + 1];
} name_t;

typedef struct listing {
    dli_redis_t *redis;
    dl_list_fn fn;
    void *arg;
    uint64_t deadline_ns;
    dl_error_t *err;
    char pattern[2 * (DLI_PREFIX_MAX + DL_NAME_MAX) + 2];
    size_t pattern_len;
    char cursor[24];
    void *seen; /* tree of names: the server's SCAN may show a key more than once */
    bool ended; /* fn wants no more */
} listing_t;

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
    const name_t *x = a, *y = b;
    return x->len != y->len ? (x->len < y->len ? -1 : 1) : memcmp(x->at, y->at, x->len);
}

/* Is this key one that may be a lock of ours? Then its name is in *name. */
static bool is_candidate(const dli_redis_t *redis, const redisReply *key, name_t *name) {
    if (key->type != REDIS_REPLY_STRING || key->len <= redis->prefix_len ||
        key->len > redis->prefix_len + DL_NAME_MAX || memchr(key->str, '\0', key->len) != NULL ||
        strcmp(key->str, redis->token_key) == 0) {
        return false;
    }
    name->len = key->len - redis->prefix_len;
    memcpy(name->at, key->str + redis->prefix_len, name->len);
    name->at[name->len] = '\0';
    return true;
}

/* What stands at a key that fits is a lock if one of our clients wrote it. What others wrote has at least to
 * end by itself, and a string has to be where only locks should be. */
static bool is_lock(const dli_redis_t *redis, const dl_lock_info_t *info) {
    bool where_locks_are = redis->prefix_len > 0 || strcmp(redis->layout->redis_type, "hash") == 0;
    return info->hold_id != 0 || (where_locks_are && info->remaining_ms >= 0);
}

/* Reports a lock, once. */
static dl_status_t report(listing_t *l, const name_t *name, const dl_lock_info_t *info) {
    name_t *copy = malloc(sizeof(size_t) + name->len + 1);
    if (copy == NULL) {
        return dl_driver_fail(l->err, DL_ENOMEM, 0, "out of memory");
    }
    memcpy(copy, name, sizeof(size_t) + name->len + 1);
    void **node = tsearch(copy, &l->seen, compare_names);
    if (node == NULL || *node != copy) {
        free(copy);
        return node != NULL ? DL_OK : dl_driver_fail(l->err, DL_ENOMEM, 0, "out of memory");
    }
    l->ended = l->fn(l->arg, name->at, info) != 0;
    return DL_OK;
}

/* What the server says of one key. */
static dl_status_t judge(listing_t *l, const name_t *name, const redisReply *reply) {
    if (reply->type == REDIS_REPLY_NIL || dli_redis_is_foreign(reply)) {
        return DL_OK;
    }
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    if (!fill_info(l->redis, reply, &info)) {
        return dli_redis_fail(l->redis, reply, l->err);
    }
    return is_lock(l->redis, &info) ? report(l, name, &info) : DL_OK;
}

/* The words of up to CHUNK questions. */
typedef struct questions {
    name_t names[CHUNK];
    dli_slice_t keys[CHUNK];
    dli_script_call_t calls[CHUNK];
    redisReply *replies[CHUNK];
    size_t n;
} questions_t;

static dl_status_t ask_all(listing_t *l, questions_t *q) {
    dli_exchange_t exchange = {
        .replies = q->replies, .lane = DLI_LANE_CALLS, .intent = DLI_PLAIN, .deadline_ns = l->deadline_ns};
    dl_status_t status = dli_scripts_run(l->redis->link, &exchange, q->calls, q->n, NULL, l->err);
    for (size_t i = 0; i < q->n; i++) {
        if (status == DL_OK && !l->ended) {
            status = judge(l, &q->names[i], q->replies[i]);
        }
        freeReplyObject(q->replies[i]);
        q->replies[i] = NULL;
    }
    q->n = 0;
    return status;
}

/* Asks about the keys of one page. */
static dl_status_t ask_page(listing_t *l, questions_t *q, const redisReply *keys) {
    dl_status_t status = DL_OK;
    for (size_t i = 0; i < keys->elements && status == DL_OK && !l->ended; i++) {
        const redisReply *key = keys->element[i];
        if (is_candidate(l->redis, key, &q->names[q->n])) {
            q->keys[q->n] = (dli_slice_t){key->str, key->len};
            q->calls[q->n] = (dli_script_call_t){l->redis->layout->inspect, 1, 1, &q->keys[q->n]};
            q->n++;
        }
        if (q->n == CHUNK) {
            status = ask_all(l, q);
        }
    }
    return status == DL_OK && !l->ended && q->n > 0 ? ask_all(l, q) : status;
}

/* The next page of keys. DL_OK: *page is the caller's. */
static dl_status_t scan(listing_t *l, redisReply **page) {
    dli_commands_t commands = {0};
    const dli_slice_t words[] = {dli_slice("SCAN"),  dli_slice(l->cursor),
                                 dli_slice("MATCH"), {l->pattern, l->pattern_len},
                                 dli_slice("COUNT"), dli_slice(SCAN_COUNT),
                                 dli_slice("TYPE"),  dli_slice(l->redis->layout->redis_type)};
    dli_commands_add(&commands, sizeof words / sizeof words[0], words);
    dl_status_t status;
    *page = NULL;
    if (commands.out_of_memory) {
        status = dl_driver_fail(l->err, DL_ENOMEM, 0, "out of memory");
    } else {
        dli_exchange_t exchange = {.commands = &commands,
                                   .replies = page,
                                   .lane = DLI_LANE_CALLS,
                                   .intent = DLI_PLAIN,
                                   .deadline_ns = l->deadline_ns};
        status = dli_link_run(l->redis->link, &exchange, l->err);
    }
    dli_commands_free(&commands);
    const redisReply *p = *page;
    if (status == DL_OK &&
        (p->type != REDIS_REPLY_ARRAY || p->elements != 2 || p->element[0]->type != REDIS_REPLY_STRING ||
         p->element[0]->len >= sizeof l->cursor || p->element[1]->type != REDIS_REPLY_ARRAY)) {
        status = dli_reply_unexpected(p, "SCAN", l->err);
    }
    if (status == DL_OK) {
        memcpy(l->cursor, p->element[0]->str, p->element[0]->len + 1);
    }
    return status;
}

static dl_status_t run_listing(listing_t *l, questions_t *q) {
    dl_status_t status;
    do {
        redisReply *page;
        status = scan(l, &page);
        if (status == DL_OK) {
            status = ask_page(l, q, page->element[1]);
        }
        freeReplyObject(page);
    } while (status == DL_OK && !l->ended && strcmp(l->cursor, "0") != 0);
    return status;
}

/* Shows every lock that is held from the first to the last page, each once, in no order. */
dl_status_t dli_redis_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                           uint64_t deadline_ns, dl_error_t *err) {
    if (prefix_len > DL_NAME_MAX) {
        return DL_OK; /* no name is that long */
    }
    listing_t l = {
        .redis = state, .fn = fn, .arg = arg, .deadline_ns = deadline_ns, .err = err, .cursor = "0"};
    add_literal(&l, l.redis->prefix, l.redis->prefix_len);
    add_literal(&l, prefix, prefix_len);
    l.pattern[l.pattern_len++] = '*';
    questions_t *q = calloc(1, sizeof *q);
    if (q == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    dl_status_t status = run_listing(&l, q);
    tdestroy(l.seen, free);
    free(q);
    return status;
}
