/* lock.h - what the drivers of a single server share: state, options and ops; nodes of redlock have it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_LOCK_H
#define DLI_REDIS_LOCK_H

#include "options.h"
#include "redis.h"
#include "scripts.h"
#include "link/mux.h"
#include "link/subscriber.h"

/* Numbers below this are exact in the server's scripts, which count in double. */
#define DLI_EXACT_END ((uint64_t)1 << 53)

/* Longest key and channel: prefix (at most DLI_PREFIX_MAX), name and what surrounds them, such as
 * also_publish. */
#define DLI_PREFIX_MAX 128
#define DLI_KEY_MAX (2 * DLI_PREFIX_MAX + DL_NAME_MAX + 64)

/* Behind token_key, and before a client's uuid: the key that says which host and process the client is. */
#define DLI_LABEL_INFIX ":client:"

/* The same, and before a lock's key: the key of the queue of the processes that wait for it. So the rules for
 * labels hold for it. Where the lock's key has a hash tag and token_key has none, it is the same tag. */
#define DLI_QUEUE_INFIX DLI_LABEL_INFIX "queue:"

typedef struct dli_key {
    char at[DLI_KEY_MAX];
    size_t len;
} dli_key_t;

/* What the layouts of a lock differ in. */
typedef struct dli_layout {
    const char *driver; /* its name */
    const dli_script_t *acquire, *release, *inspect;
    const char *redis_type; /* for SCAN: "string", "hash" */
    /* Where releases are told, with the message "0": this and the key. redis-string: a name that no other
     * client of such keys uses. redis-hash-reentrant: Redisson's. */
    const char *channel_before;
    /* Where else a release is told, for other libraries: this and the key. redis-hash-reentrant: the list of
     * those who wait for a fair lock of Redisson's, each of whom has a channel of its own. NULL: a channel
     * that also_publish names, with the key as message. */
    const char *peers_before;
    bool braces;      /* in both, around a key that has none */
    bool hears_peers; /* what another library frees is told on that channel, too */
    int also_publish; /* the place of that option in the driver's table; 0: it has none */
} dli_layout_t;

/* tables.c */
extern const dli_layout_t dli_redis_string_layout;

/* Of a server that is one node of several (redlock/): whether it has a vote. The same for all of them. */
typedef struct dli_voting {
    bool quarantines, durable;
    int64_t max_lease_ms;
    /* token_key with ":node" and ":quarantine" behind it. */
    char marker_key[DLI_PREFIX_MAX + 16], quarantine_key[DLI_PREFIX_MAX + 16];
} dli_voting_t;

/* The state of a client. */
struct dli_redis {
    const dl_driver_env_t *env; /* NULL: never opened */
    const dli_layout_t *layout;
    const dli_voting_t *voting; /* NULL: it is the only server */
    dli_endpoint_t endpoint;
    /* Requests share connections (requests.c). */
    const dli_backend_env_t *core;
    size_t connections; /* for all; twice as many for acquires that wait for replicas, each by itself */
    dli_subscriber_t *subscriber;
    char prefix[DLI_PREFIX_MAX + 1];
    size_t prefix_len;
    char token_key[DLI_PREFIX_MAX + 1];    /* one counter for all locks of the database */
    char label_key[DLI_PREFIX_MAX + 48];   /* of this client: token_key, DLI_LABEL_INFIX, uuid */
    char also_publish[DLI_PREFIX_MAX + 1]; /* "": nothing */
    char prefix_shown[DLI_PREFIX_MAX + 1], token_key_shown[DLI_PREFIX_MAX + 1]; /* as messages have them */
    int64_t min_replicas, replica_timeout_ms;
    bool warns_of_shortfall; /* of replicas, in place of refusing the lock */
    char ignored[64];        /* options that are set and without effect; "": none */
    /* What is above is fixed once it is open. */
    dli_mux_t mux;
    bool warned_of_queue; /* the server refused one; guarded by the core's mutex */
    dl_error_t unread;    /* the same: for those who want no error */
    uint64_t warned_ns;   /* the same: when it was warned of replicas last; 0: never */
    size_t polled;        /* descriptors of the mux, by whoever listens */
};

/* What a letter of dli_redis_encode stands for; written into `room`, if it has to be. */
dli_slice_t dli_redis_word(const dli_redis_t *redis, const dl_request_t *request, char letter,
                           dli_key_t *room);
/* prefix + name */
void dli_redis_key(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *key);
void dli_redis_queue_key(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *key);
/* As the layout says; of no length: nowhere. */
void dli_redis_channel(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *channel);
void dli_redis_peers(const dli_redis_t *redis, const char *name, size_t name_len, dli_key_t *peers);
/* A key of the driver's own, which no lock may have: the counter, a client's label, what is kept of a node.
 */
bool dli_redis_is_own_key(const dli_redis_t *redis, const char *key, size_t len);
/* Does this answer of a script say that the lock's key holds something that is no lock of this kind? */
bool dli_redis_is_foreign(const redisReply *reply);
/* The status for an answer of a script on the lock of this request (NULL: on no single one) that is an error
 * or makes no sense, with err filled. */
dl_status_t dli_redis_fail(const dli_redis_t *redis, const dl_request_t *request, const redisReply *reply,
                           dl_error_t *err);

/* ---- the ops of the table, the same for both layouts
 * ------------------------------------------------------------ */

/* driver.c: opening and closing. The state's layout is set before. */
dl_status_t dli_redis_open(dli_redis_t *redis, const dli_layout_t *layout, const dl_option_value_t *options,
                           const dl_driver_env_t *env, uint64_t deadline_ns, dl_error_t *err);
void dli_redis_close(void *state, int forked);
/* Parts of it; configure names the server and its keys. database -1: as the URL says. */
dl_status_t dli_redis_configure(dli_redis_t *redis, const dl_option_value_t *values, dl_error_t *err);
dl_status_t dli_redis_read_names(dli_redis_t *redis, const dl_option_value_t *values, dl_error_t *err);
dl_status_t dli_redis_read_sharing(dli_mux_options_t *options, const dl_option_value_t *values,
                                   dl_error_t *err);
dl_status_t dli_redis_make_endpoint(dli_redis_t *redis, const char *url, const dl_option_value_t *values,
                                    int64_t database, dl_error_t *err);
/* Of the server behind the connections; all zero: none was made yet. */
dli_facts_t dli_redis_facts(const dli_redis_t *redis);
/* Makes the connections; no I/O. */
dl_status_t dli_redis_make_mux(dli_redis_t *redis, const dli_mux_options_t *options, dl_error_t *err);
dl_status_t dli_redis_check_name(void *state, const char *name, size_t name_len, dl_error_t *err);
void dli_redis_describe(void *state, char *text, size_t size);

/* locks.c */
dl_status_t dli_redis_watch(void *state, const char *name, size_t name_len, dl_watch_t **watch,
                            dl_error_t *err);
void dli_redis_unwatch(void *state, dl_watch_t *watch);
size_t dli_redis_listen_fds(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns);
void dli_redis_listen(void *state, const struct pollfd *fds, size_t n);

/* requests.c */
/* The entry as a request. */
dl_request_t dli_renewal_request(const dl_renewal_t *renewal);
/* The ops of dli_backend_t. */
void dli_redis_attach(void *state, const dli_backend_env_t *core);
void dli_redis_begin(void *state, dli_request_t *request);
bool dli_redis_withdraw(void *state, dli_request_t *request);
bool dli_redis_flush(void *state);
int dli_redis_lead_fds(void *state, dli_request_t *request, struct pollfd *fds, bool late, uint64_t *term,
                       uint64_t *until_ns);
bool dli_redis_lead(void *state, uint64_t term, const struct pollfd *fds, size_t n);
dli_request_t *dli_redis_end_lead(void *state, uint64_t term, uint64_t *next);
/* alone.c: for one thread, which needs no mutex. */
extern const dli_backend_env_t dli_redis_no_core;
/* With connections of its own, which are made when something is asked. The client's state outlives it. */
dl_status_t dli_redis_open_alone(const dli_redis_t *redis, dli_redis_t **alone, dl_error_t *err);
void dli_redis_close_alone(dli_redis_t *alone); /* NULL, and what did not open, too */

/* What is asked of a server that nobody else listens to: commands out, replies in. */
typedef struct dli_exchange {
    dli_redis_request_t wire; /* first */
    /* By the caller. All of it stays until it is over. */
    dli_redis_t *redis;
    uint32_t pipe;
    const dli_commands_t *commands;
    redisReply **replies; /* room for as many, zeroed: NULL is where none comes; the caller frees them */
    bool writes;          /* without an answer it may have changed something */
    uint64_t deadline_ns;
    void (*then)(struct dli_exchange *exchange); /* optional: it is over, and may be begun anew */
    /* How it went */
    bool is_pending;
    dl_status_t status; /* DL_OK: every reply is there. Otherwise err says why not */
    dl_error_t err;
    uint64_t heard_ns; /* wire.sent_ns: the instant before it left */
} dli_exchange_t;

#define DLI_EXCHANGES_MAX 16
/* With the mutex, where there is one; nothing is sent before it is run. */
void dli_exchange_begin(dli_exchange_t *exchange);
/* Until none of these is under way, those that begin meanwhile included; each has another `redis`. */
void dli_exchanges_run(dli_exchange_t *const *exchanges, size_t n);
void dli_replies_free(redisReply **replies, size_t n); /* and makes them NULL */

/* driver.c: the first question to a server. INFO memory; loading n scripts, which it is no failure not to be
 * allowed (each is then sent once by its text); and the first of them, which only reads, run on the keys that
 * every lock needs: whether this user may do so is better known now than at the first lock. */
#define DLI_FIRST_REPLIES(n) ((n) + 2)
void dli_redis_ask_first(dli_commands_t *commands, const dli_script_t *const *scripts, size_t n,
                         const dli_slice_t *keys, size_t key_count);
/* How it went, by its last answer; DL_OK: each has one. */
dl_status_t dli_redis_judge_first(const dli_exchange_t *x, dl_error_t *err);
/* By its first answer, without the mutex. */
void dli_redis_warn_of_eviction(const dli_redis_t *redis, const redisReply *info);

/* admin.c */
dl_status_t dli_redis_list(void *state, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                           uint64_t deadline_ns, dl_error_t *err);
/* The same in parts, for several servers at once. */
typedef struct dli_listed {
    const char *prefix;
    size_t prefix_len;
    dl_list_fn fn;
    void *arg;
    uint64_t first_ns, deadline_ns; /* until then the first answer comes, and the last */
} dli_listed_t;
/* Begins, on a server alone; it ends by dli_exchanges_run. NULL: out of memory. */
dli_exchange_t *dli_listing_begin(dli_redis_t *alone, const dli_listed_t *listed);
/* Frees it (NULL: out of memory), and says how it went. */
dl_status_t dli_listing_end(dli_exchange_t *listing, dl_error_t *err);
/* What the keys of labels begin with: an inspect script puts the uuid of the holder behind it. */
dli_slice_t dli_redis_label_prefix(const dli_redis_t *redis);
/* The answer of an inspect script to something that is a lock. False: it makes no sense. */
bool dli_redis_read_info(const redisReply *reply, dl_lock_info_t *info);

/* check.c, init.c */
dl_status_t dli_redis_check(void *state, dl_finding_fn fn, void *arg, uint64_t deadline_ns, dl_error_t *err);
/* The driver's op with the layout in front, which decides what a user of the server needs. */
dl_status_t dli_redis_init(const dli_layout_t *layout, const dl_option_value_t *options,
                           const dl_driver_env_t *env, unsigned flags, dl_finding_fn fn, void *arg,
                           uint64_t deadline_ns, dl_error_t *err);

/* What a user of the server needs. */
void dli_redis_print_rule(const dli_redis_t *redis, dl_finding_fn fn, void *arg);

/* The backend of a driver. */
#define DLI_REDIS_BACKEND(table)                                                               \
    {                                                                                          \
        .driver = (table), .attach = dli_redis_attach, .begin = dli_redis_begin,               \
        .withdraw = dli_redis_withdraw, .flush = dli_redis_flush, .lines_up = true,            \
        .lead_fds = dli_redis_lead_fds, .lead = dli_redis_lead, .end_lead = dli_redis_end_lead \
    }

/* All but open and init, which each driver gives its layout. */
#define DLI_REDIS_OPS                                                                         \
    .close = dli_redis_close, .watch = dli_redis_watch, .listen = dli_redis_listen,           \
    .unwatch = dli_redis_unwatch, .list = dli_redis_list, .check_name = dli_redis_check_name, \
    .describe = dli_redis_describe, .check = dli_redis_check, .listen_fds = dli_redis_listen_fds

#endif
