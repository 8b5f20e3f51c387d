/* round.h - one question to several nodes at once, each on its one ordered connection. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDLOCK_ROUND_H
#define DLI_REDLOCK_ROUND_H

#include "tally.h"

/*
 * A round asks each of its nodes by one request on that node's connection, and ends once its question is
 * decided or its time is over. What comes later lands in its part all the same, and nobody waits for it. The
 * requests of a hold are parts of one piece of memory, from its claim to what is left of its release: so
 * nothing that follows a claim needs memory, and on a node each follows the one before.
 *
 * All with the core's mutex held, which is never let go here; where not, it is said.
 */

/* A part has one request of each, so that one does not wait for the end of another. */
typedef enum dli_wire_kind { DLI_WIRE_CLAIM, DLI_WIRE_RAISE, DLI_WIRE_FREE, DLI_WIRES } dli_wire_kind_t;

typedef struct dli_part dli_part_t;
typedef struct dli_question {
    dli_redis_kind_t kind; /* the first; ended: dli_wire_ended */
    dli_wire_kind_t wire;
    bool stays;                      /* what is not answered when the round ends may still be, or be sent */
    void (*heard)(dli_part_t *part); /* optional: as the vote says, all replies have come, or will not */
    /* Something was heard, or the time is over: is it decided? By all votes, as if nothing more came;
     * pending: the nodes that are still waited for, none when the time is over. */
    void (*look)(dli_round_t *round, const dli_tally_t *tally, uint32_t pending);
} dli_question_t;

typedef struct dli_wire {
    dli_redis_request_t request; /* the first */
    dli_part_t *part;
    bool is_pending;
} dli_wire_t;

/* As much of a value as the scripts show. */
#define DLI_VALUE_SHOWN 128

/* One node's part. */
struct dli_part {
    dli_round_t *round;
    dli_node_t *node;
    dli_wire_t wires[DLI_WIRES];
    dli_ballot_t vote;  /* on what is asked now */
    int64_t claimed_on; /* the connection on which a claim or a fill left that has no answer; 0: none */
    bool is_second;     /* it was filled in beside that claim, which may still come */
    char text[sizeof((dl_error_t *)NULL)->message]; /* a reason, or a value as far as it fits */
};

struct dli_round {
    dli_redlock_t *redlock;
    LIST_ENTRY(dli_round) of_all, of_asked;
    dli_request_t *asked;           /* the core's; NULL: it has ended */
    const dli_question_t *question; /* what is asked now */
    dli_redlock_hold_t *hold;       /* whose memory this is; NULL: it goes when nothing is pending */
    size_t pending;
    uint64_t end_ns;             /* of asking for this request */
    uint64_t began_ns, until_ns; /* of this question */
    bool lingers;                /* it is decided but for nodes that lag, which have until until_ns */

    /* What it is about */
    dl_request_t with;
    char name[DL_NAME_MAX + 1], owner[DL_OWNER_MAX + 1]; /* its own of these */

    /* acquire.c; masks of nodes */
    uint64_t claimed_ns;    /* the instant before the first claim was sent */
    uint64_t token, tokens; /* the first, and how many: the last is written back */
    uint32_t raised;        /* the last is there, or a larger one */
    uint32_t maybe;         /* the hold is there, or may be */
    /* release.c */
    bool is_freed;      /* nobody holds it any more: it is filled in nowhere */
    bool tells;         /* others may wait for its release ... */
    bool is_claim;      /* ... which never was a hold */
    dl_status_t status; /* of what ends once it is freed */

    /* admin.c */
    bool is_forced; /* its nodes were freed: are they still? */

    void *extra; /* of the size that was asked for */
    dli_part_t parts[];
};

/* NULL: out of memory. */
dli_round_t *dli_round_new(dli_redlock_t *redlock, size_t extra);
/* That of the hold (NULL: none), which nothing is asked of now; about this request. NULL: err has DL_ENOMEM
 * or DL_ELIMIT. */
dli_round_t *dli_round_of(dli_redlock_t *redlock, const dli_request_t *request, dli_redlock_hold_t *hold,
                          dl_error_t *err);
/* It is about this. */
void dli_round_set(dli_round_t *round, const dl_request_t *with);
/* Whose memory it was is gone: it goes when nothing is pending. */
void dli_round_leave(dli_round_t *round);

/* It is asked for this. One part in so many of what is left of the call's time is for what follows: that the
 * core hears the outcome, or begins anew. */
void dli_round_begin(dli_round_t *round, dli_request_t *request, uint64_t parts);
/* Asks these nodes, each `count` commands, for node_timeout at most from when they were sent, and not beyond
 * end_ns. Nothing is sent before the next flush. */
void dli_round_ask(dli_round_t *round, const dli_question_t *question, uint32_t nodes, size_t count);
/* node_timeout from now, and no later than this. */
uint64_t dli_round_until(const dli_redlock_t *redlock, uint64_t deadline_ns);
/* The nodes whose answer is still to come; those of them that have not been sent theirs. */
uint32_t dli_round_pending(const dli_round_t *round, dli_wire_kind_t wire);
uint32_t dli_round_unsent(const dli_round_t *round, dli_wire_kind_t wire);
/* Those that answered late last time. */
uint32_t dli_nodes_lagging(const dli_redlock_t *redlock);
/* Takes these requests back. The nodes for which they had not left yet, and never will. */
uint32_t dli_round_withdraw(dli_round_t *round, dli_wire_kind_t wire);
/* Gives these nodes a tenth of node_timeout, 50 ms at most, once; nothing for a second after that was in vain
 * for each. true: they have it. */
bool dli_round_waits(dli_round_t *round, uint32_t nodes);
/* The core waits no longer. The round may be gone. */
void dli_round_stop(dli_round_t *round);
/* The same, and says so: its request has ended. */
void dli_round_end(dli_round_t *round, dl_status_t status);
/* Where the core's errors go. */
dl_error_t *dli_round_err(const dli_round_t *round);

/* For kinds. */
void dli_wire_ended(dli_redis_request_t *request, dl_status_t status, const dl_error_t *why);
static inline dli_part_t *dli_wire_part(dli_redis_request_t *request) {
    return ((dli_wire_t *)(void *)request)->part;
}
/* As dli_redis_encode. */
static inline void dli_part_encode(const dli_part_t *part, const dli_script_t *script, const char *letters,
                                   const dli_slice_t *more, bool with_source, dli_commands_t *commands) {
    dli_redis_encode(&part->node->redis, &part->round->with, script, letters, more, with_source, commands);
}
/* The number of this node's connection. */
static inline int64_t dli_part_connection(const dli_part_t *part) {
    return part->node->redis.mux.pipes[0].facts.client_id;
}
/* A vote where the answer is an error, or makes no sense; on this lock's key. */
dli_ballot_t dli_part_refused(dli_part_t *part, const redisReply *reply);
/* Counts the votes: what has not been answered as silence. look: and has the question look at them. */
void dli_round_count(dli_round_t *round, bool is_over, dli_tally_t *tally);
void dli_round_look(dli_round_t *round, bool is_over);

/* acquire.c, release.c, renewals.c, admin.c: begins what the core asks. DL_OK, or it ends with this, and err
 * is filled where that is not DL_ENOMEM. */
dl_status_t dli_redlock_claim(dli_redlock_t *redlock, dli_request_t *request, dl_error_t *err);
dl_status_t dli_redlock_free(dli_redlock_t *redlock, dli_request_t *request, dl_error_t *err);
dl_status_t dli_redlock_renew(dli_redlock_t *redlock, dli_request_t *request, dl_error_t *err);
dl_status_t dli_redlock_look(dli_redlock_t *redlock, dli_request_t *request, dl_error_t *err);
/* acquire.c: these nodes get a hold that a majority has; they have no vote in that. */
void dli_redlock_fill(dli_round_t *round, uint32_t nodes);
/* DL_OK; DL_EINVAL: it would outlive the quarantine. */
dl_status_t dli_redlock_check_lease(const dli_redlock_t *redlock, int64_t lease_ms, dl_error_t *err);
/* May what has left on claimed_on still come? */
bool dli_part_may_come(const dli_part_t *part);
/* What has come of these renewals is all that will. */
void dli_redlock_judge_renewals(dli_round_t *round);
/* Memory for a round of them is kept: redlock->spare. false: there is none. */
bool dli_redlock_keep_renewals(dli_redlock_t *redlock);
/* release.c: nobody holds it any more, or ever will. What has not left is taken back; it is freed where it
 * may be. */
void dli_redlock_let_go(dli_round_t *round);
/* The same: a claim has failed with this status, and ends once a majority is free of it. */
void dli_redlock_give_back(dli_round_t *round, dl_status_t status);

#endif
