/* admin.c - what administrators ask: who holds a lock, which are held, free one by force. */
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

bool dli_redis_read_info(const dli_redis_t *redis, const redisReply *reply, dl_lock_info_t *info) {
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

#define UUID_LEN 36

void dli_redis_label_key(const dli_redis_t *redis, const dl_lock_info_t *info, dli_key_t *key) {
    bool is_client = info->hold_id != 0 && strlen(info->owner) > UUID_LEN && info->owner[UUID_LEN] == ':';
    key->len = is_client ? (size_t)snprintf(key->at, sizeof key->at, "%s" DLI_LABEL_INFIX "%.*s",
                                            redis->token_key, UUID_LEN, info->owner)
                         : 0;
}

void dli_redis_read_label(const redisReply *reply, dl_lock_info_t *info) {
    if (reply != NULL && reply->type == REDIS_REPLY_STRING) {
        copy_text(info->client, sizeof info->client, reply->str, reply->len);
    }
}

/* Asks for the labels of clients that hold locks, all at once. It is for people: whatever goes wrong, there
 * is none. */
static void ask_labels(dli_redis_t *redis, dl_lock_info_t *infos, redisReply **replies, size_t n,
                       uint64_t deadline_ns) {
    dli_commands_t commands = {0};
    dl_error_t err;
    dli_key_t key;
    for (size_t i = 0; i < n; i++) {
        replies[i] = NULL;
        dli_redis_label_key(redis, &infos[i], &key);
        if (key.len > 0) {
            dli_commands_add_words(&commands, "GET", key.at, NULL);
        }
    }
    if (commands.count > 0 && !commands.out_of_memory) {
        dli_exchange_t exchange = {.commands = &commands,
                                   .replies = replies,
                                   .lane = DLI_LANE_CALLS,
                                   .intent = DLI_READ,
                                   .deadline_ns = deadline_ns};
        (void)dli_link_run(redis->link, &exchange, &err);
    }
    for (size_t i = 0, j = 0; i < n; i++) {
        dli_redis_label_key(redis, &infos[i], &key);
        if (key.len > 0) {
            dli_redis_read_label(replies[j++], &infos[i]);
        }
    }
    for (size_t i = 0; i < n; i++) {
        freeReplyObject(replies[i]);
    }
    dli_commands_free(&commands);
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

/* ---- list ------------------------------------------------------------------------------------------- */

/* A name that was reported. */
typedef struct name {
    size_t len;
    char at[]; /* terminated */
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
    void *seen;   /* tree of names: the server's SCAN may show a key more than once */
    size_t pages; /* that have come */
    bool ended;   /* fn wants no more */
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

/* Is this key one that may be a lock of ours? */
static bool is_candidate(const dli_redis_t *redis, const redisReply *key) {
    return key->type == REDIS_REPLY_STRING && key->len > redis->prefix_len &&
           key->len <= redis->prefix_len + DL_NAME_MAX && memchr(key->str, '\0', key->len) == NULL &&
           !dli_redis_is_own_key(redis, key->str, key->len);
}

/* Reports the lock at a key, once. */
static dl_status_t report(listing_t *l, const dli_slice_t *key, const dl_lock_info_t *info) {
    size_t len = key->len - l->redis->prefix_len;
    name_t *name = malloc(sizeof *name + len + 1);
    if (name == NULL) {
        return dl_driver_fail(l->err, DL_ENOMEM, 0, "out of memory");
    }
    name->len = len;
    memcpy(name->at, key->at + l->redis->prefix_len, len);
    name->at[len] = '\0';
    void **node = tsearch(name, &l->seen, compare_names);
    if (node == NULL || *node != name) {
        free(name);
        return node != NULL ? DL_OK : dl_driver_fail(l->err, DL_ENOMEM, 0, "out of memory");
    }
    l->ended = l->fn(l->arg, name->at, info) != 0;
    return DL_OK;
}

/* Up to CHUNK keys that are asked about at once, and room for what is asked beside. */
typedef struct questions {
    dli_slice_t words[CHUNK + 1];
    size_t n;
    /* The locks among them. */
    dl_lock_info_t infos[CHUNK];
    size_t places[CHUNK];
    redisReply *labels[CHUNK];
} questions_t;

/* What the server says of them: for each lock its place among them and who holds it. */
static dl_status_t judge(listing_t *l, questions_t *q, const redisReply *reply) {
    bool makes_sense =
        reply->type == REDIS_REPLY_ARRAY && reply->elements % 2 == 0 && reply->elements / 2 <= q->n;
    size_t n = 0;
    dl_status_t status = DL_OK;
    for (size_t i = 0; makes_sense && i < reply->elements; i += 2, n++) {
        int64_t place;
        q->infos[n] = (dl_lock_info_t)DL_LOCK_INFO_INIT;
        makes_sense = dli_reply_int(reply->element[i], &place) && place >= 1 && (size_t)place <= q->n &&
                      dli_redis_read_info(l->redis, reply->element[i + 1], &q->infos[n]);
        q->places[n] = makes_sense ? (size_t)place - 1 : 0;
    }
    if (!makes_sense) {
        return dli_redis_fail(l->redis, NULL, reply, l->err);
    }
    ask_labels(l->redis, q->infos, q->labels, n, l->deadline_ns);
    for (size_t i = 0; i < n && status == DL_OK && !l->ended; i++) {
        status = report(l, &q->words[q->places[i]], &q->infos[i]);
    }
    return status;
}

static dl_status_t ask_all(listing_t *l, questions_t *q) {
    redisReply *reply = NULL;
    /* What others wrote is a lock where nothing but locks should be. */
    bool only_locks = l->redis->prefix_len > 0 || strcmp(l->redis->layout->redis_type, "hash") == 0;
    q->words[q->n] = dli_slice(only_locks ? "1" : "0");
    dli_script_call_t call = {l->redis->layout->list, q->n, q->n + 1, q->words};
    dl_status_t status = ask(l->redis, &call, DLI_READ, l->deadline_ns, &reply, l->err);
    if (status == DL_OK) {
        status = judge(l, q, reply);
    }
    freeReplyObject(reply);
    q->n = 0;
    return status;
}

/* Asks about the keys of one page. */
static dl_status_t ask_page(listing_t *l, questions_t *q, const redisReply *keys) {
    dl_status_t status = DL_OK;
    for (size_t i = 0; i < keys->elements && status == DL_OK && !l->ended; i++) {
        const redisReply *key = keys->element[i];
        if (is_candidate(l->redis, key)) {
            q->words[q->n++] = (dli_slice_t){key->str, key->len};
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
                                   .intent = DLI_READ,
                                   .deadline_ns = l->deadline_ns};
        status = dli_link_run(l->redis->link, &exchange, l->err);
    }
    dli_commands_free(&commands);
    const redisReply *p = *page;
    if (status == DL_OK &&
        (p->type != REDIS_REPLY_ARRAY || p->elements != 2 || p->element[0]->type != REDIS_REPLY_STRING ||
         p->element[0]->len >= sizeof l->cursor || p->element[1]->type != REDIS_REPLY_ARRAY)) {
        status = dli_redis_fail(l->redis, NULL, p, l->err);
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
            l->pages++;
            status = ask_page(l, q, page->element[1]);
        }
        freeReplyObject(page);
    } while (status == DL_OK && !l->ended && strcmp(l->cursor, "0") != 0);
    const dl_driver_env_t *env = l->redis->env;
    if (status == DL_EIO && l->pages > 0 && env->now_ns() >= l->deadline_ns) {
        return dl_driver_fail(l->err, status, 0, "%.100s: listing took longer than call_timeout (%s)",
                              l->redis->endpoint.label, dl_driver_duration(env->call_timeout_ms).text);
    }
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
