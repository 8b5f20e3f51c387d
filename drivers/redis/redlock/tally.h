/* tally.h - what the nodes' answers to a claim come to; pure functions. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDLOCK_TALLY_H
#define DLI_REDLOCK_TALLY_H

#include "redlock.h"

typedef enum dli_vote {
    DLI_VOTE_NONE,     /* no answer to count, and the claim surely has not this node */
    DLI_VOTE_UNKNOWN,  /* no answer to count, and the claim may have this node */
    DLI_VOTE_YES,      /* the claim has it */
    DLI_VOTE_BUSY,     /* another has it */
    DLI_VOTE_EXCLUDED, /* it has no vote: quarantine */
    DLI_VOTE_FOREIGN   /* something else stands there */
} dli_vote_t;

typedef struct dli_ballot {
    dli_vote_t vote;
    uint64_t token;     /* YES */
    int64_t left_ms;    /* BUSY, EXCLUDED: of the lease, of the quarantine; -1: no end */
    bool is_ours;       /* BUSY: a client of this library wrote the value */
    dli_slice_t value;  /* BUSY */
    dl_status_t status; /* NONE, UNKNOWN, FOREIGN: what is wrong ... */
    const char *why;    /* ... in words; NULL: it is merely late */
} dli_ballot_t;

typedef struct dli_tally {
    dli_ballot_t ballots[DLI_NODES_MAX];
    size_t n, quorum;
    size_t yes, busy, excluded, foreign, unknown;
    size_t silent;  /* they did not say what they have, or cannot know any more */
    uint64_t token; /* the highest of the nodes that said yes */
    uint32_t exact; /* those of them that gave exactly this one */
} dli_tally_t;

/* Reads the script's answer. What makes no sense is UNKNOWN, an error other than that of a foreign value is
 * NONE; what is wrong is for the caller to say. A token has to be larger than the floor. */
void dli_ballot_read(dli_ballot_t *ballot, const redisReply *reply, bool fences, uint64_t floor);

void dli_tally_count(dli_tally_t *tally, const dli_ballot_t *ballots, size_t n, size_t quorum);

/* So many have said yes, so many may still do: is a majority there, or out of reach? */
bool dli_quorum_is_decided(size_t yes, size_t pending, size_t quorum);

/* So many answers may still come: is the outcome of a claim known? Where there can be no majority, answers
 * are waited for as long as they tell a holder from several claims that split the nodes. */
bool dli_votes_are_settled(const dli_tally_t *tally, size_t pending);

/* So many answers to a release may still come; YES had it, BUSY had it not. A majority that has nothing of it
 * any more is enough to free it: no minority can keep others out. Whether it was lost is known once a
 * majority had it, or so many had not that no majority did; those who might still tell are waited for. */
bool dli_release_is_settled(const dli_tally_t *tally, size_t pending);

/* Why there is no majority: DL_EFOREIGN, DL_EBUSY with grant->busy_* filled, or what is wrong with the nodes
 * that gave no answer (dli_tally_failure). took_ns: how long the round took; draw: any random number. err is
 * filled. */
dl_status_t dli_tally_refusal(const dli_tally_t *tally, uint64_t took_ns, uint64_t draw, dl_grant_t *grant,
                              dl_error_t *err);

/* What is wrong with the nodes that gave no answer: a status of so many that it alone prevents a majority, or
 * DL_EIO; and their reasons in words, as far as a message has room for them. */
#define DLI_REASONS_MAX 181
dl_status_t dli_tally_reasons(const dli_tally_t *tally, char text[DLI_REASONS_MAX]);
/* The same where too few answered; or DL_EFOREIGN: so many nodes have something else there that no majority
 * is left. err says how many answered, and why the others did not. */
dl_status_t dli_tally_failure(const dli_tally_t *tally, dl_error_t *err);

/* Who holds a lock, of which n nodes have this, and so many did not answer: the hold on most nodes, if it can
 * be on a quorum. What a smaller number has is left over from an attempt, and holds nothing. It ends when
 * fewer than a quorum have it. */
void dli_tally_holder(const dl_lock_info_t *seen, size_t n, size_t unanswered, size_t quorum,
                      dl_lock_info_t *info);

#endif
