/* round.h - one question to several nodes at once, and what becomes of those that answer late. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDLOCK_ROUND_H
#define DLI_REDLOCK_ROUND_H

#include "redlock.h"

/*
 * A round runs one exchange with each of its nodes, side by side, each for node_timeout at most. It ends as
 * soon as its caller has what it needs; what is still on its way then is left to a thread of the client, the
 * stragglers' thread, which goes on until the answer or the end of node_timeout; frees that have no
 * connection yet have call_timeout to get one, and are sent again when no answer comes. So a slow node costs
 * nobody any time, and keeps its connection. A script that a node has forgotten (NOSCRIPT) is sent once more
 * with its text, in either phase.
 */
typedef struct dli_round dli_round_t;

/* What a question is. Static and const. */
typedef struct dli_question {
    const char *what; /* for messages: "a claim" */
    dli_lane_t lane;
    dli_intent_t intent;
    /* Appends the commands for one node. run_id: of the server behind the connection that was found for it,
     * "" when it is not known. with_source: EVAL in place of EVALSHA. Reads `data` only; any thread. */
    void (*encode)(const dli_round_t *round, const dli_node_t *node, const char *run_id, bool with_source,
                   dli_commands_t *commands);
    /* NULL, or for claims: is it of this hold? What the stragglers still have of it is then ended. */
    bool (*is_of)(const dli_round_t *round, const dl_request_t *hold);
    /* NULL: a moment. Once the round is settled: for how much longer the rest is waited for. */
    uint64_t (*linger_ns)(const dli_round_t *round);
} dli_question_t;

typedef enum dli_part_state {
    DLI_PART_UNASKED,
    DLI_PART_ASKED, /* on its way, and this thread's */
    DLI_PART_ENDED, /* `exchange.status` says how; replies are there after DL_OK */
    DLI_PART_LATE   /* left to the stragglers: not to be looked at */
} dli_part_state_t;

/* One node's part. */
typedef struct dli_part {
    dli_round_t *round;
    dli_node_t *node;
    dli_part_state_t state; /* the asker's own */
    dli_exchange_t exchange;
    dli_commands_t commands;
    redisReply **replies; /* as many as the question has commands, at most `replies_max` of the round */
    uint64_t began_ns;    /* when a connection was first asked for */
    uint64_t sent_ns;     /* the instant before it was sent for the first time; 0: it was not */
    char run_id[41];      /* of the process that was asked; "": not known */
    bool with_source;
    int resent;     /* frees: how often it was sent again for want of an answer */
    bool is_unsure; /* a free without an answer may have been carried out before this one */
    bool is_paused; /* a free that was refused, until the deadline of its exchange; then it is sent again */
    uint64_t pause_ns;       /* for so long, the last time */
    bool is_left;            /* ENDED before it was sent, because nobody needed it any more */
    bool is_theirs, is_busy; /* the stragglers': they still have it; `stepper` steps it right now */
    pthread_t stepper;
    size_t slot; /* its place in what they poll; until_ns: step it by then; revents: what came */
    uint64_t until_ns;
    short revents;
    struct dli_part *leader, *follower; /* a free waits for the end of a claim */
    struct dli_part *next_ready;
    dl_error_t err;
} dli_part_t;

struct dli_round {
    dli_redlock_t *redlock;
    const dli_question_t *question;
    void *data; /* of the size that was asked for, zeroed; for encode */
    size_t replies_max;
    uint64_t began_ns; /* the instant before the first request was sent */
    /* Of frees: when the client is closed they go on until then at most; 0: call_timeout after began_ns. */
    uint64_t closing_ns;
    bool is_spare; /* see below: nothing of it is left to the stragglers */
    /* With the mutex of the stragglers held. */
    size_t late;     /* parts that they still have */
    bool is_dropped; /* the caller is done with it */
    dli_round_t *next, *before;
    dli_part_t parts[]; /* one for each node */
};

/* Memory for a round with `data_size` bytes of data, for answers to at most `replies_max` commands a node.
 * NULL: out of memory. */
dli_round_t *dli_round_new(dli_redlock_t *redlock, const dli_question_t *question, size_t data_size,
                           size_t replies_max);

/*
 * Asks these nodes (bit i is node i) and waits until is_settled says that it knows enough (looked at after
 * every answer), all have answered, the deadline, or until `stop` is readable (NULL: never). The rest
 * becomes late.
 * A question that has an answer for everybody in time leaves no part late. DL_OK, or DL_ECANCELED: stopped.
 * Nodes that are known to be down are ENDED at once with the reason. Once per round.
 */
dl_status_t dli_round_run(dli_round_t *round, uint32_t nodes, uint64_t deadline_ns, const dl_stop_t *stop,
                          bool (*is_settled)(const dli_round_t *round, const void *arg), const void *arg);

/* For question->linger_ns, as if there were none. */
uint64_t dli_round_moment_ns(const dli_round_t *round);
/* For how long late nodes are worth waiting for: a tenth of node_timeout, 50 ms at most; 0 for a second after
 * that was in vain. Sets *waited_ns to now; whose waiting was not in vain sets it to 0. */
uint64_t dli_round_patience_ns(const dli_redlock_t *redlock, atomic_uint_fast64_t *waited_ns);

/* Sends without waiting: everything is late at once. Then drop it. `encode` may append nothing at all for a
 * node, which is then not asked. */
void dli_round_send(dli_round_t *round, uint32_t nodes, uint64_t deadline_ns);

/* Of frees, when all has been read: where one was refused, or its answer was lost, the node may have the hold
 * still, and the stragglers send it again. */
void dli_round_send_lost(dli_round_t *round);

/* So many late parts for renewals wait for it that it gets no more of them. */
bool dli_node_lags_behind(const dli_node_t *node);

/* The caller is done with it. Late parts live on. NULL is fine. */
void dli_round_drop(dli_round_t *round);

/*
 * spare.c: a round that is kept for the day that memory is out. `spare` is a field of the client's. One that
 * was taken waits for all nodes to the end of node_timeout, so that it can be used again.
 */
/* Makes it if it is not there. false: out of memory. */
bool dli_spare_keep(dli_redlock_t *redlock, dli_round_t **spare, const dli_question_t *question,
                    size_t data_size);
/* NULL: there is none. */
dli_round_t *dli_spare_take(dli_redlock_t *redlock, dli_round_t **spare);
/* As dli_round_drop; one that was taken becomes the spare again. */
void dli_spare_drop(dli_round_t **spare, dli_round_t *round);

/* The first reply of an ended part, or NULL. */
const redisReply *dli_part_reply(const dli_part_t *part);
void dli_part_free_replies(dli_part_t *part);
/* The nodes whose parts are in this state. */
uint32_t dli_round_mask(const dli_round_t *round, dli_part_state_t state);

/* ---- of round.c, for stragglers.c ---------------------------------------------------------------------- */

/* Sends the part's question; what ends at once has ended. */
void dli_part_begin(dli_part_t *part, uint64_t deadline_ns);
/* As dli_link_step; sends once more where that is needed: with the script's text, or a free whose answer was
 * lost. true: it has ended. */
bool dli_part_step(dli_part_t *part, short revents);
bool dli_part_has_ended(const dli_part_t *part);
/* Of a free that has ended: it was refused, or its answer was lost; the node may have the hold still. */
bool dli_part_is_lost(const dli_part_t *part);
/* It has ended, and is its asker's: ENDED. */
void dli_part_end(dli_part_t *part);
/* NULL is fine. */
void dli_round_free(dli_round_t *round);

/* ---- the stragglers ---------------------------------------------------------------------------------- */

/* Takes over the parts of these nodes. */
void dli_stragglers_take(dli_stragglers_t *stragglers, dli_round_t *round, uint32_t nodes);
/* While the part's node is behind (is_behind), and answers of it come that nobody has read yet: waits until
 * they have been read, until until_ns at most. On the stragglers' own thread nothing is waited for. */
void dli_stragglers_catch_up(dli_stragglers_t *stragglers, const dli_part_t *part,
                             bool (*is_behind)(const dli_part_t *part), uint64_t until_ns);
/* Begins parts as theirs from the first byte on. */
void dli_stragglers_begin(dli_stragglers_t *stragglers, dli_round_t *round, uint32_t nodes,
                          uint64_t deadline_ns);
/* For dli_round_drop: true: nothing of the round is theirs, so it can be freed. */
bool dli_stragglers_part_with(dli_stragglers_t *stragglers, dli_round_t *round);

/* Starts the thread. DL_OK, DL_ENOMEM, DL_ELIMIT. */
dl_status_t dli_stragglers_open(dli_redlock_t *redlock, dli_stragglers_t **stragglers, dl_error_t *err);
/* Late frees get node_timeout and what their rounds allow at most; those that were refused, and everything
 * else, end at once. NULL is fine. forked: nothing is waited for or freed. */
void dli_stragglers_close(dli_stragglers_t *stragglers, bool forked);

/*
 * A hold is about to be freed by `round`, which has not been run yet. At nodes where a late claim of the hold
 * is on its way, the free has to come behind it: there the round's part is the stragglers' from now on, and
 * is sent when the claim has ended. These nodes are returned, and are not to be asked. Where that cannot be
 * (a spare round, NULL, or too many of them), the claim is waited for, or ended: its connection is condemned,
 * and a free that is sent to the node from now on goes behind the killing of it. So no claim is carried out
 * after its free. Until dli_stragglers_freed no fill of the hold is sent either: see below. `freeing` is the
 * caller's, with `hold` set.
 */
typedef struct dli_freeing {
    const dl_request_t *hold;
    struct dli_freeing *next, *before;
} dli_freeing_t;
uint32_t dli_stragglers_forsake(dli_stragglers_t *stragglers, dli_freeing_t *freeing, dli_round_t *round);
/* Waits for the frees that follow claims, until is_settled, all have ended, until_ns or `stop`. Those that
 * have ended are ENDED then. On the stragglers' own thread nothing is waited for. */
void dli_stragglers_await(dli_stragglers_t *stragglers, dli_round_t *round, uint64_t until_ns,
                          const dl_stop_t *stop,
                          bool (*is_settled)(const dli_round_t *round, const void *arg));
/* A majority is clear of it, or the free has failed: who renews it cannot find a majority that has it, or the
 * core frees it again. */
void dli_stragglers_freed(dli_stragglers_t *stragglers, dli_freeing_t *freeing);

/*
 * A fill writes a hold to nodes that had lost it, while its owner may free it at any time. A renewal
 * announces its holds before it asks, so that one that is freed meanwhile is not filled in behind the free:
 * `forget` is called for what is being freed when the intention is announced, and for what forsake is called
 * for until it is retired, after dli_round_send; fills that have been sent are ended by forsake (is_of).
 */
typedef struct dli_intention {
    /* With a mutex held: do not block. What it sets is read by `encode` on another thread: use atomics. */
    void (*forget)(void *arg, const dl_request_t *hold);
    void *arg;
    struct dli_intention *next, *before;
} dli_intention_t;
void dli_stragglers_announce(dli_stragglers_t *stragglers, dli_intention_t *intention);
void dli_stragglers_retire(dli_stragglers_t *stragglers, dli_intention_t *intention);

#endif
