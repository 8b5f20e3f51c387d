/* ballots.c - reads the parts of a round as votes. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "ballots.h"

#include <string.h>

#define NS_PER_MS ((uint64_t)1000000)

dl_status_t dli_copy_make(dli_copy_t *copy, const dl_request_t *request, dl_error_t *err) {
    if (request->hold_id >= DLI_EXACT_END || request->token_floor >= DLI_EXACT_END - 1) {
        return dl_driver_fail(err, DL_ELIMIT, 0, "hold id or token floor is too large for the nodes");
    }
    size_t owner_len = strlen(request->owner);
    if (request->name_len > DL_NAME_MAX || owner_len > DL_OWNER_MAX) {
        return dl_driver_fail(err, DL_EINVAL, 0, "name or owner is too long");
    }
    *copy = (dli_copy_t){.name_len = request->name_len,
                         .hold_id = request->hold_id,
                         .token_floor = request->token_floor,
                         .lease_ms = request->lease_ms};
    memcpy(copy->name, request->name, request->name_len);
    memcpy(copy->owner, request->owner, owner_len + 1);
    return DL_OK;
}

void dli_ballot_of_silent(dli_ballot_t *ballot, const dli_part_t *part) {
    if (part->state != DLI_PART_ENDED) {
        bool is_late = part->state != DLI_PART_UNASKED;
        *ballot = (dli_ballot_t){.vote = is_late ? DLI_VOTE_UNKNOWN : DLI_VOTE_NONE, .status = DL_EIO};
        return;
    }
    dl_status_t status = part->exchange.status;
    bool is_unknown = status == DL_EUNKNOWN || part->is_unsure || (status == DL_EPROTO && part->sent_ns != 0);
    *ballot = (dli_ballot_t){.vote = is_unknown ? DLI_VOTE_UNKNOWN : DLI_VOTE_NONE,
                             .status = status == DL_EUNKNOWN || status == DL_ECANCELED ? DL_EIO : status,
                             .why = part->is_left ? NULL : part->err.message};
}

void dli_ballots_of_answers(dli_round_t *round, const dli_key_t *key, dli_ballot_t *ballots) {
    for (size_t i = 0; i < round->redlock->n; i++) {
        dli_part_t *part = &round->parts[i];
        dli_ballot_t *ballot = &ballots[i];
        const redisReply *reply = dli_part_reply(part);
        int64_t number;
        if (reply == NULL) {
            dli_ballot_of_silent(ballot, part);
        } else if (dli_reply_int(reply, &number) && number == 0 && part->is_unsure) {
            *ballot = (dli_ballot_t){.vote = DLI_VOTE_UNKNOWN, .status = DL_EIO};
        } else if (dli_reply_int(reply, &number) && (number == 0 || number == 1)) {
            *ballot = (dli_ballot_t){.vote = number == 1 ? DLI_VOTE_YES : DLI_VOTE_BUSY};
        } else if (dli_redis_is_foreign(reply)) {
            *ballot = (dli_ballot_t){.vote = DLI_VOTE_BUSY};
        } else {
            dl_status_t status = dli_redis_fail(&part->node->redis, key, reply, &part->err);
            *ballot = (dli_ballot_t){.vote = DLI_VOTE_UNKNOWN, .status = status, .why = part->err.message};
        }
    }
}

void dli_round_tell(const dli_round_t *round, uint32_t except) {
    const dli_redlock_t *redlock = round->redlock;
    uint64_t full_ns = round->began_ns + (uint64_t)redlock->node_timeout_ms * NS_PER_MS;
    for (size_t i = 0; i < redlock->n; i++) {
        const dli_part_t *part = &round->parts[i];
        if (part->state != DLI_PART_ENDED || part->is_left || (except >> i & 1) != 0) {
            continue;
        }
        /* That a caller has little time says nothing about a node. */
        if (part->exchange.status == DL_OK || part->exchange.deadline_ns >= full_ns) {
            dli_node_tell(part->node, part->exchange.status, &part->err);
        }
    }
}
