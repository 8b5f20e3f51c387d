/* check_rights.c - what the user of the server may not do, found by trying, and what each lack costs. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "check.h"

#define WORDS_MAX 8

/* Which clients need a right. */
typedef enum who { ALL, HASHES, PEERS, NODES, WAITERS } who_t;

/*
 * A command that changes nothing. %k %t %c %p: as the letters of dli_redis_encode, for a name of the same
 * shape as locks that nobody uses, or with { behind for one with a brace; %L %M %Q: keys of the client, or of
 * a node.
 */
typedef struct right {
    const char *command;
    who_t who;
    dl_finding_level_t level; /* of its lack */
    const char *cost;
} right_t;

#define RIGHT(...) \
    { __VA_ARGS__ }

static const right_t rights[] = {
    /* The first, since its refusal also tells of the keys. */
    RIGHT("EVALSHA 0000000000000000000000000000000000000000 2 %k %t", ALL, DL_FINDING_ERROR,
          "no lock can be taken, renewed or freed"),
    RIGHT("EVAL return 0", ALL, DL_FINDING_ERROR,
          "as soon as the server has forgotten the scripts (restart, failover, SCRIPT FLUSH), no lock can be "
          "taken, renewed or freed"),
    RIGHT("INFO server", ALL, DL_FINDING_WARNING,
          "a restarted or replaced server cannot be told from the old one, and version, memory and replicas "
          "are not known: a request that was given up is not stopped at the server, so its lock may stay "
          "until its lease ends"),
    RIGHT("CLIENT KILL ID 9223372036854775807", ALL, DL_FINDING_WARNING,
          "a request that was given up is not stopped at the server, so its lock may stay until its lease "
          "ends"),
    RIGHT("PUBLISH %c 0", ALL, DL_FINDING_WARNING,
          "a release wakes nobody: waiters look again when the holder's lease is over"),
    /* Where the layout has channels of two forms, both are needed. */
    RIGHT("PUBLISH %c{ 0", ALL, DL_FINDING_WARNING,
          "a release of a lock with a brace in its name wakes nobody: waiters look again when its lease is "
          "over"),
    RIGHT("UNSUBSCRIBE %c", ALL, DL_FINDING_NOTE,
          "the server goes on telling of releases that nobody waits for any more"),
    RIGHT("PING", ALL, DL_FINDING_WARNING,
          "dead connections are noticed later, by the first call that fails"),
    RIGHT("SCAN 0 MATCH %k COUNT 1", ALL, DL_FINDING_NOTE, "locks cannot be listed"),
    RIGHT("GET %L", ALL, DL_FINDING_NOTE,
          "dlock status and list do not show on which host a holder runs, and as which process"),
    RIGHT("HDEL %k dlock-check", HASHES, DL_FINDING_WARNING,
          "a lock that is lost since others have written into its hash keeps everybody out until its lease "
          "ends"),
    RIGHT("LRANGE %p 0 0", HASHES, DL_FINDING_NOTE,
          "a release wakes nobody who waits for a fair lock of Redisson's: they look again when its lease is "
          "over"),
    RIGHT("LRANGE %p{ 0 0", HASHES, DL_FINDING_NOTE, "the same, of locks with a brace in their names"),
    RIGHT("PUBLISH %p 0", PEERS, DL_FINDING_WARNING,
          "a release wakes nobody who waits on the channel of also_publish"),
    RIGHT("EVALSHA 0000000000000000000000000000000000000000 2 %M %Q", NODES, DL_FINDING_ERROR,
          "the user may not access the keys that say whether the node has a vote, so it has none; see dlock "
          "init --print"),
    RIGHT("WAIT 0 1", WAITERS, DL_FINDING_ERROR, "no lock can be taken, since min_replicas asks for it"),
};

#define RIGHTS (sizeof rights / sizeof rights[0])

static dli_slice_t argument(const dli_check_t *check, const char *word, size_t len, dli_key_t *room) {
    static const dl_request_t plain = {.name = "dlock-check", .name_len = 11},
                              braced = {.name = "{dlock-check", .name_len = 12};
    const dli_redis_t *redis = check->redis;
    if (word[0] != '%') {
        return (dli_slice_t){word, len};
    }
    switch (word[1]) {
    case 'L':
        return dli_slice(redis->label_key);
    case 'M':
        return dli_slice(redis->voting->marker_key);
    case 'Q':
        return dli_slice(redis->voting->quarantine_key);
    default:
        return dli_redis_word(redis, word[2] == '{' ? &braced : &plain, word[1], room);
    }
}

static void add_try(dli_check_t *check, const right_t *right) {
    dli_slice_t argv[WORDS_MAX];
    dli_key_t rooms[WORDS_MAX];
    size_t argc = 0;
    for (const char *at = right->command; *at != '\0' && argc < WORDS_MAX; argc++) {
        size_t len = strcspn(at, " ");
        argv[argc] = argument(check, at, len, &rooms[argc]);
        at += len + strspn(at + len, " ");
    }
    dli_commands_add(&check->commands, argc, argv);
}

static bool report_right(const dli_check_t *check, const right_t *right, const redisReply *reply) {
    if (!dli_reply_is_refused(reply)) {
        return true;
    }
    size_t len = strcspn(right->command, " ");
    len += strncmp(right->command, "CLIENT ", 7) == 0 ? strcspn(right->command + len + 1, " ") + 1 : 0;
    char subject[32];
    (void)snprintf(subject, sizeof subject, "%.*s", (int)len, right->command);
    dli_check_say(check, right->level, subject, "refused: %s (the server says: %s)", right->cost, reply->str);
    return false;
}

/* Of a user who may run scripts but not on these keys. false: reported. */
static bool report_keys(const dli_check_t *check, const redisReply *reply) {
    if (!dli_reply_is_error(reply, "NOPERM") || strstr(reply->str, "key") == NULL) {
        return true;
    }
    dli_check_say(check, DL_FINDING_ERROR, "keys",
                  "the user may not access keys '%s*' and '%s', so no lock can be taken; see dlock init "
                  "--print (the server says: %s)",
                  check->redis->prefix_shown, check->redis->token_key_shown, reply->str);
    return false;
}

static bool needs(const dli_redis_t *redis, who_t who) {
    switch (who) {
    case HASHES:
        return strcmp(redis->layout->redis_type, "hash") == 0;
    case PEERS:
        return redis->also_publish[0] != '\0';
    case NODES:
        return redis->voting != NULL && redis->voting->quarantines;
    case WAITERS:
        return redis->min_replicas > 0;
    case ALL:
        break;
    }
    return true;
}

void dli_check_ask_rights(dli_check_t *check) {
    check->rights_at = check->commands.count;
    for (size_t i = 0; i < RIGHTS; i++) {
        if (needs(check->redis, rights[i].who)) {
            add_try(check, &rights[i]);
        }
    }
}

bool dli_check_rights(const dli_check_t *check) {
    redisReply *const *reply = &check->replies[check->rights_at];
    bool keys = report_keys(check, *reply), all = keys;
    for (size_t i = 0; i < RIGHTS; i++) {
        if (needs(check->redis, rights[i].who)) {
            all = ((i == 0 && !keys) || report_right(check, &rights[i], *reply)) && all;
            reply++;
        }
    }
    if (all) {
        dli_check_say(check, DL_FINDING_OK, "rights", "the user may use every command that locks need");
    }
    return keys;
}
