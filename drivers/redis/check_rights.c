/* check_rights.c - what the user of the server may not do, found by trying, and what each lack costs. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "check.h"

/* Arguments that depend on the client: letters of dli_redis_encode, for a name of the same shape as locks
 * that nobody uses, or for one with a brace. */
#define A_KEY "%k"
#define A_TOKEN_KEY "%t"
#define A_CHANNEL "%c"
#define A_BRACED_CHANNEL "%c{"
#define A_PEERS "%p"
#define A_BRACED_PEERS "%p{"
/* And keys of the client, or of a node. */
#define A_LABEL_KEY "%L"
#define A_MARKER_KEY "%M"
#define A_QUARANTINE_KEY "%Q"

#define WORDS_MAX 8

typedef struct right {
    const char *words[WORDS_MAX]; /* a command that changes nothing; ended by NULL */
    dl_finding_level_t level;     /* of its lack */
    const char *cost;
} right_t;

static const right_t rights[] = {
    /* The first, since its refusal also tells of the keys. */
    {{"EVALSHA", "0000000000000000000000000000000000000000", "2", A_KEY, A_TOKEN_KEY},
     DL_FINDING_ERROR,
     "no lock can be taken, renewed or freed"},
    {{"EVAL", "return 1", "0"},
     DL_FINDING_ERROR,
     "as soon as the server has forgotten the scripts (restart, failover, SCRIPT FLUSH), no lock can be "
     "taken, renewed or freed"},
    {{"INFO", "server"},
     DL_FINDING_WARNING,
     "a restarted or replaced server cannot be told from the old one, and version, memory and replicas are "
     "not known: a request that was given up is not stopped at the server, so its lock may stay until its "
     "lease ends"},
    {{"CLIENT", "KILL", "ID", "9223372036854775807"},
     DL_FINDING_WARNING,
     "a request that was given up is not stopped at the server, so its lock may stay until its lease ends"},
    {{"PUBLISH", A_CHANNEL, "0"},
     DL_FINDING_WARNING,
     "a release wakes nobody: waiters look again when the holder's lease is over"},
    /* Where the layout has channels of two forms, both are needed. */
    {{"PUBLISH", A_BRACED_CHANNEL, "0"},
     DL_FINDING_WARNING,
     "a release of a lock with a brace in its name wakes nobody: waiters look again when its lease is over"},
    {{"UNSUBSCRIBE", A_CHANNEL},
     DL_FINDING_NOTE,
     "the server goes on telling of releases that nobody waits for any more"},
    {{"PING"}, DL_FINDING_WARNING, "dead connections are noticed later, by the first call that fails"},
    {{"SCAN", "0", "MATCH", A_KEY, "COUNT", "1"}, DL_FINDING_NOTE, "locks cannot be listed"},
    {{"GET", A_LABEL_KEY},
     DL_FINDING_NOTE,
     "dlock status and list do not show on which host a holder runs, and as which process"},
};

/* Only asked for where the configuration makes grants wait. */
static const right_t wait_right = {
    {"WAIT", "0", "1"}, DL_FINDING_ERROR, "no lock can be taken, since min_replicas asks for it"};

/* Only asked for where locks are hashes. */
static const right_t hash_rights[] = {
    {{"HDEL", A_KEY, "dlock-check"},
     DL_FINDING_WARNING,
     "a lock that is lost since others have written into its hash keeps everybody out until its lease ends"},
    {{"LRANGE", A_PEERS, "0", "0"},
     DL_FINDING_NOTE,
     "a release wakes nobody who waits for a fair lock of Redisson's: they look again when its lease is "
     "over"},
    {{"LRANGE", A_BRACED_PEERS, "0", "0"}, DL_FINDING_NOTE, "the same, of locks with a brace in their names"},
};

/* Only asked for where the configuration names a channel of others. */
static const right_t peers_right = {{"PUBLISH", A_PEERS, "0"},
                                    DL_FINDING_WARNING,
                                    "a release wakes nobody who waits on the channel of also_publish"};

/* Only asked for where the server is a node. */
static const right_t marker_right = {
    {"EVALSHA", "0000000000000000000000000000000000000000", "2", A_MARKER_KEY, A_QUARANTINE_KEY},
    DL_FINDING_ERROR,
    "the user may not access the keys that say whether the node has a vote, so it has none; see dlock init "
    "--print"};

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define RIGHTS_MAX (COUNT_OF(rights) + COUNT_OF(hash_rights) + 1)

static void add_try(dli_check_t *check, const right_t *right) {
    static const dl_request_t plain = {.name = "dlock-check", .name_len = 11},
                              braced = {.name = "{dlock-check", .name_len = 12};
    dli_slice_t argv[WORDS_MAX];
    dli_key_t rooms[WORDS_MAX];
    size_t argc = 0;
    for (; argc < WORDS_MAX && right->words[argc] != NULL; argc++) {
        const char *word = right->words[argc];
        bool is_braced = word[0] == '%' && word[2] == '{';
        argv[argc] = word[0] != '%'   ? dli_slice(word)
                     : word[1] == 'L' ? dli_slice(check->redis->label_key)
                     : word[1] == 'M' ? dli_slice(check->redis->voting->marker_key)
                     : word[1] == 'Q'
                         ? dli_slice(check->redis->voting->quarantine_key)
                         : dli_redis_word(check->redis, is_braced ? &braced : &plain, word[1], &rooms[argc]);
    }
    dli_commands_add(&check->commands, argc, argv);
}

static bool report_right(const dli_check_t *check, const right_t *right, const redisReply *reply) {
    if (!dli_reply_is_refused(reply)) {
        return true;
    }
    bool two_words = strcmp(right->words[0], "CLIENT") == 0;
    char subject[32];
    (void)snprintf(subject, sizeof subject, "%s%s%s", right->words[0], two_words ? " " : "",
                   two_words ? right->words[1] : "");
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

/* Those that this client needs. */
static size_t choose(const dli_check_t *check, const right_t *asked[RIGHTS_MAX]) {
    size_t n = 0;
    bool is_hash = strcmp(check->redis->layout->redis_type, "hash") == 0;
    for (; n < COUNT_OF(rights); n++) {
        asked[n] = &rights[n];
    }
    for (size_t i = 0; i < COUNT_OF(hash_rights) && is_hash; i++) {
        asked[n++] = &hash_rights[i];
    }
    if (check->redis->also_publish[0] != '\0') {
        asked[n++] = &peers_right;
    }
    if (check->redis->voting != NULL && check->redis->voting->quarantines) {
        asked[n++] = &marker_right;
    } else if (check->redis->min_replicas > 0) {
        asked[n++] = &wait_right;
    }
    return n;
}

void dli_check_ask_rights(dli_check_t *check) {
    const right_t *asked[RIGHTS_MAX];
    size_t n = choose(check, asked);
    check->rights_at = check->commands.count;
    for (size_t i = 0; i < n; i++) {
        add_try(check, asked[i]);
    }
}

bool dli_check_rights(const dli_check_t *check) {
    const right_t *asked[RIGHTS_MAX];
    redisReply *const *replies = &check->replies[check->rights_at];
    size_t n = choose(check, asked);
    bool keys = report_keys(check, replies[0]), all = keys;
    for (size_t i = keys ? 0 : 1; i < n; i++) {
        all = report_right(check, asked[i], replies[i]) && all;
    }
    if (all) {
        dli_check_say(check, DL_FINDING_OK, "rights", "the user may use every command that locks need");
    }
    return keys;
}
