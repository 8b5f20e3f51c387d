/* tally.c - counts votes, and says what is in the way of a majority. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "tally.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* When claims have split the nodes among them, each tries again within so many rounds and this. */
#define SPLIT_MS 5
#define SPLIT_ROUNDS 4
/* Where there may be a holder, or none: each looks again within this. */
#define AMBIGUOUS_MS 100
/* An end that is not known. */
#define NEVER_MS INT64_MAX
/* Room for "; and 15 more". */
#define REASONS_REST 16

void dli_ballot_read(dli_ballot_t *ballot, const redisReply *reply, bool fences, uint64_t floor) {
    int64_t number, ours = 0;
    *ballot = (dli_ballot_t){.vote = DLI_VOTE_UNKNOWN};
    if (dli_reply_int(reply, &number)) {
        bool is_yes = fences ? number > 0 && (uint64_t)number > floor : number == 1;
        ballot->vote = is_yes ? DLI_VOTE_YES : DLI_VOTE_UNKNOWN;
        ballot->token = is_yes && fences ? (uint64_t)number : 0;
    } else if (reply->type == REDIS_REPLY_ERROR) {
        ballot->vote = dli_redis_is_foreign(reply) ? DLI_VOTE_FOREIGN : DLI_VOTE_NONE;
    } else if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
               dli_reply_int(reply->element[0], &number) && number == 0 &&
               dli_reply_int(reply->element[1], &ballot->left_ms)) {
        ballot->vote = DLI_VOTE_EXCLUDED;
    } else if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 3 &&
               dli_reply_int(reply->element[0], &ballot->left_ms) &&
               reply->element[1]->type == REDIS_REPLY_STRING && dli_reply_int(reply->element[2], &ours)) {
        ballot->vote = DLI_VOTE_BUSY;
        ballot->value = (dli_slice_t){reply->element[1]->str, reply->element[1]->len};
        ballot->is_ours = ours == 1;
    }
    ballot->left_ms = ballot->left_ms < 0 ? -1 : ballot->left_ms;
}

void dli_tally_count(dli_tally_t *tally, const dli_ballot_t *ballots, size_t n, size_t quorum) {
    *tally = (dli_tally_t){.n = n, .quorum = quorum};
    memcpy(tally->ballots, ballots, n * sizeof ballots[0]);
    for (size_t i = 0; i < n; i++) {
        dli_vote_t vote = ballots[i].vote;
        tally->yes += vote == DLI_VOTE_YES;
        tally->busy += vote == DLI_VOTE_BUSY;
        tally->excluded += vote == DLI_VOTE_EXCLUDED;
        tally->foreign += vote == DLI_VOTE_FOREIGN;
        tally->unknown += vote == DLI_VOTE_UNKNOWN;
        tally->silent += vote == DLI_VOTE_NONE || vote == DLI_VOTE_UNKNOWN || vote == DLI_VOTE_EXCLUDED;
        if (vote == DLI_VOTE_YES && ballots[i].token > tally->token) {
            tally->token = ballots[i].token;
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (ballots[i].vote == DLI_VOTE_YES && ballots[i].token == tally->token) {
            tally->exact |= 1u << i;
        }
    }
}

bool dli_quorum_is_decided(size_t yes, size_t pending, size_t quorum) {
    return yes >= quorum || yes + pending < quorum;
}

static bool is_same(const dli_slice_t *a, const dli_slice_t *b) {
    return a->len == b->len && memcmp(a->at, b->at, a->len) == 0;
}

/* The value that most nodes have; where several have as many, one that is not ours. NULL: none has any. */
static const dli_ballot_t *find_leader(const dli_tally_t *tally, size_t *most) {
    const dli_ballot_t *leader = NULL;
    *most = 0;
    for (size_t i = 0; i < tally->n; i++) {
        const dli_ballot_t *ballot = &tally->ballots[i];
        size_t count = 0;
        for (size_t j = 0; ballot->vote == DLI_VOTE_BUSY && j < tally->n; j++) {
            const dli_ballot_t *other = &tally->ballots[j];
            count += other->vote == DLI_VOTE_BUSY && is_same(&ballot->value, &other->value);
        }
        if (count > *most || (count > 0 && count == *most && leader->is_ours && !ballot->is_ours)) {
            leader = ballot;
            *most = count;
        }
    }
    return leader;
}

/* Silent nodes may belong to the same holder as those that have said whose they are. */
bool dli_votes_are_settled(const dli_tally_t *tally, size_t pending) {
    size_t most, voters = tally->yes + tally->busy, answered = voters + tally->excluded;
    if (tally->yes >= tally->quorum || answered + pending < tally->quorum) {
        return true;
    }
    if (tally->yes + pending >= tally->quorum || answered < tally->quorum) {
        return false;
    }
    (void)find_leader(tally, &most);
    return pending == 0 || voters + pending < tally->quorum || most >= tally->quorum ||
           most + tally->silent < tally->quorum;
}

bool dli_release_is_settled(const dli_tally_t *tally, size_t pending) {
    size_t quorum = tally->quorum, for_a_loss = tally->n - quorum + 1;
    if (tally->yes >= quorum || tally->busy >= for_a_loss) {
        return true;
    }
    return dli_quorum_is_decided(tally->yes + tally->busy, pending, quorum) &&
           tally->yes + pending < quorum && tally->busy + pending < for_a_loss;
}

/* ---- why there is no majority --------------------------------------------------------------------- */

/* When this node can say yes, as far as is known. */
static int64_t free_in_ms(const dli_ballot_t *ballot) {
    bool ends = ballot->vote == DLI_VOTE_BUSY || ballot->vote == DLI_VOTE_EXCLUDED;
    int64_t end_ms = ends && ballot->left_ms >= 0 ? ballot->left_ms : NEVER_MS;
    return ballot->vote == DLI_VOTE_YES ? 0 : end_ms;
}

/* When a majority can: the first time by which a quorum of nodes can. -1: not known. */
static int64_t quorum_in_ms(const dli_tally_t *tally) {
    int64_t soonest = NEVER_MS;
    for (size_t i = 0; i < tally->n; i++) {
        int64_t time = free_in_ms(&tally->ballots[i]);
        size_t count = 0;
        for (size_t j = 0; j < tally->n; j++) {
            count += free_in_ms(&tally->ballots[j]) <= time;
        }
        soonest = count >= tally->quorum && time < soonest ? time : soonest;
    }
    return soonest == NEVER_MS ? -1 : soonest;
}

static dl_status_t refuse_as_busy(const dli_tally_t *tally, uint64_t took_ns, uint64_t draw,
                                  dl_grant_t *grant, dl_error_t *err) {
    size_t most, voters = tally->yes + tally->busy;
    const dli_ballot_t *leader = find_leader(tally, &most);
    if (voters >= tally->quorum && most + tally->silent < tally->quorum) {
        uint64_t within_ms = SPLIT_MS + SPLIT_ROUNDS * (took_ns / NS_PER_MS);
        grant->busy_ms = 1 + (int64_t)(draw % within_ms);
        grant->busy_is_dlock = 1;
        return dl_driver_fail(err, DL_EBUSY, 0, "claimed by several at once: none has a majority");
    }
    grant->busy_ms = quorum_in_ms(tally);
    if (voters >= tally->quorum && most + tally->excluded < tally->quorum) {
        /* Nodes that say nothing would have to complete the majority; or a failed claim is being taken back,
         * of which nobody is told. */
        int64_t within_ms = 1 + (int64_t)(draw % AMBIGUOUS_MS);
        grant->busy_ms = grant->busy_ms >= 0 && grant->busy_ms < within_ms ? grant->busy_ms : within_ms;
        grant->busy_is_dlock = 0;
        return dl_driver_fail(err, DL_EBUSY, 0, "%zu of %zu nodes are held by others, %zu do not say",
                              tally->busy, tally->n, tally->silent);
    }
    /* What fewer nodes have may be left of a failed claim, whose end nobody tells. */
    grant->busy_is_dlock = most >= tally->quorum && leader->is_ours;
    if (voters < tally->quorum) {
        return dl_driver_fail(err, DL_EBUSY, 0,
                              "%zu of %zu nodes have no vote yet, and are needed; " DLI_NEW_NODES
                              ", of others `dlock check` says why",
                              tally->excluded, tally->n);
    }
    if (grant->busy_ms < 0) {
        return dl_driver_fail(err, DL_EBUSY, 0, "held by another owner, without a known end");
    }
    return dl_driver_fail(err, DL_EBUSY, 0, "held by another owner for %s more",
                          dl_driver_duration(grant->busy_ms).text);
}

static bool is_missing(const dli_ballot_t *ballot) {
    return ballot->vote == DLI_VOTE_NONE || ballot->vote == DLI_VOTE_UNKNOWN;
}

static size_t count_missing(const dli_tally_t *tally, dl_status_t status) {
    size_t count = 0;
    for (size_t i = 0; i < tally->n; i++) {
        count += is_missing(&tally->ballots[i]) && tally->ballots[i].status == status;
    }
    return count;
}

dl_status_t dli_tally_reasons(const dli_tally_t *tally, char text[DLI_REASONS_MAX]) {
    dl_status_t status = DL_EIO;
    const char *first = NULL;
    size_t left = 0, used = 0;
    for (size_t i = 0; i < tally->n; i++) {
        const dli_ballot_t *ballot = &tally->ballots[i];
        if (!is_missing(ballot)) {
            continue;
        }
        if (count_missing(tally, ballot->status) > tally->n - tally->quorum) {
            status = ballot->status;
        }
        if (ballot->why == NULL || (first != NULL && strcmp(ballot->why, first) == 0)) {
            continue;
        }
        if (first == NULL) {
            first = ballot->why;
            used = (size_t)snprintf(text, DLI_REASONS_MAX, "%s", first);
        } else if (left == 0 && used + strlen("; ") + strlen(ballot->why) < DLI_REASONS_MAX - REASONS_REST) {
            used += (size_t)snprintf(text + used, DLI_REASONS_MAX - used, "; %s", ballot->why);
        } else {
            left++;
        }
    }
    if (left > 0 && used < DLI_REASONS_MAX - REASONS_REST) {
        (void)snprintf(text + used, DLI_REASONS_MAX - used, "; and %zu more", left);
    } else if (first == NULL) {
        strcpy(text, "the others are late");
    }
    /* A lack of memory is the caller's own, and enough of a reason. */
    return count_missing(tally, DL_ENOMEM) > 0 ? DL_ENOMEM : status;
}

dl_status_t dli_tally_failure(const dli_tally_t *tally, dl_error_t *err) {
    char reasons[DLI_REASONS_MAX];
    for (size_t i = 0; tally->foreign > tally->n - tally->quorum && i < tally->n; i++) {
        if (tally->ballots[i].vote == DLI_VOTE_FOREIGN) {
            return dl_driver_fail(err, DL_EFOREIGN, 0, "%s", tally->ballots[i].why);
        }
    }
    dl_status_t status = dli_tally_reasons(tally, reasons);
    return dl_driver_fail(err, status, 0, "%zu of %zu nodes answered; %s",
                          tally->n - tally->silent + tally->excluded, tally->n, reasons);
}

dl_status_t dli_tally_refusal(const dli_tally_t *tally, uint64_t took_ns, uint64_t draw, dl_grant_t *grant,
                              dl_error_t *err) {
    bool is_foreign = tally->foreign > tally->n - tally->quorum;
    /* Without memory it was not asked where there was a majority to be had. */
    if (!is_foreign && tally->yes + count_missing(tally, DL_ENOMEM) < tally->quorum &&
        tally->yes + tally->busy + tally->excluded >= tally->quorum) {
        return refuse_as_busy(tally, took_ns, draw, grant, err);
    }
    return dli_tally_failure(tally, err);
}

/* ---- holders ---------------------------------------------------------------------------------------- */

static bool is_of_same(const dl_lock_info_t *a, const dl_lock_info_t *b) {
    return a->hold_id == b->hold_id && strcmp(a->owner, b->owner) == 0;
}

static int longest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

void dli_tally_holder(const dl_lock_info_t *seen, size_t n, size_t unanswered, size_t quorum,
                      dl_lock_info_t *info) {
    const dl_lock_info_t *holder = NULL;
    size_t most = 0, size = info->size, k = 0;
    for (size_t i = 0; i < n; i++) {
        size_t count = 0;
        for (size_t j = 0; j < n; j++) {
            count += is_of_same(&seen[i], &seen[j]);
        }
        holder = count > most ? &seen[i] : holder;
        most = count > most ? count : most;
    }
    bool is_held = holder != NULL && most + unanswered >= quorum;
    *info = is_held ? *holder : (dl_lock_info_t){.remaining_ms = -1};
    info->size = size;
    int64_t left_ms[DLI_NODES_MAX]; /* INT64_MAX: no end */
    for (size_t i = 0; i < n && is_held; i++) {
        if (is_of_same(&seen[i], holder)) {
            left_ms[k++] = seen[i].remaining_ms < 0 ? INT64_MAX : seen[i].remaining_ms;
            if (info->client[0] == '\0') {
                memcpy(info->client, seen[i].client, sizeof info->client);
            }
        }
    }
    if (is_held) {
        qsort(left_ms, k, sizeof left_ms[0], longest_first);
        int64_t last_ms = left_ms[(most < quorum ? most : quorum) - 1];
        info->remaining_ms = last_ms == INT64_MAX ? -1 : last_ms;
    }
}
