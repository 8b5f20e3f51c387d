/* ballots.h - the parts of a round as votes, and what a round remembers of a request that ends before it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDLOCK_BALLOTS_H
#define DLI_REDLOCK_BALLOTS_H

#include "round.h"
#include "tally.h"

/* The data of claims and frees: late parts are encoded when the request is gone. */
typedef struct dli_copy {
    char name[DL_NAME_MAX], owner[DL_OWNER_MAX + 1];
    size_t name_len;
    uint64_t hold_id, token_floor;
    int64_t lease_ms;
    bool tells; /* a free: those who wait are told */
} dli_copy_t;

/* DL_OK; DL_ELIMIT: numbers that scripts cannot count with, DL_EINVAL: a text that is too long. */
dl_status_t dli_copy_make(dli_copy_t *copy, const dl_request_t *request, dl_error_t *err);

/* A part that has no reply: NONE or UNKNOWN. */
void dli_ballot_of_silent(dli_ballot_t *ballot, const dli_part_t *part);

/* Answers of scripts that say 1 (YES) or 0 (BUSY): of a free or a raise. What stands at a key that is foreign
 * is not this hold's: BUSY. A 0 to a free that was sent again is UNKNOWN: the first may have freed it. */
void dli_ballots_of_answers(dli_round_t *round, const dli_key_t *key, dli_ballot_t *ballots);

/* Tells of each part that has ended how, except of those of a mask. */
void dli_round_tell(const dli_round_t *round, uint32_t except);

#endif
