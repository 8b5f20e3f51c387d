/* compare_check.c - two holders at once, tokens that do not rise, updates that are lost: seen and counted. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "compare_check.h"

#include <errno.h>

#include "clock.h"

int place_begin(place_t *place) {
    pthread_mutexattr_t kind;
    int failed = pthread_mutexattr_init(&kind);
    if (failed != 0) {
        return failed;
    }
    (void)pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    (void)pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    failed = pthread_mutex_init(&place->mutex, &kind);
    (void)pthread_mutexattr_destroy(&kind);
    return failed;
}

static void lock_notes(place_t *place) {
    /* Every step leaves notes that can be gone on with, so the death of a process within them is no harm. */
    if (pthread_mutex_lock(&place->mutex) == EOWNERDEAD) {
        (void)pthread_mutex_consistent(&place->mutex);
    }
}

static void unlock_notes(place_t *place) {
    (void)pthread_mutex_unlock(&place->mutex);
}

/* A backend whose fencing is switched off gives no token at all; once one was given, each must be larger. */
static void check_token(place_t *place, uint64_t token) {
    if (token > place->token) {
        place->token = token;
    } else if (place->token != 0) {
        place->fallen_tokens++;
    }
}

void place_enter(place_t *place, const grant_t *grant, stay_t *stay) {
    *stay = (stay_t){.owner = grant->owner, .handoff_ns = NO_HANDOFF};
    lock_notes(place);
    uint64_t now = now_ns();
    if (grant->valid_until_ns <= now) { /* no holder any more: another may be in already, rightly */
        unlock_notes(place);
        return;
    }
    if (place->holder != 0 && place->valid_until_ns > now) {
        /* Counted when that one leaves. It never does if its process has died, and a server may know that. */
        place->overlapped = place->holder;
    }
    check_token(place, grant->token);
    if (place->released_ns != 0 && place->released_by != grant->owner &&
        grant->returned_ns >= place->released_ns) {
        stay->handoff_ns = grant->returned_ns - place->released_ns;
    }
    place->released_ns = 0;
    place->valid_until_ns = grant->valid_until_ns;
    stay->entry = ++place->entries;
    place->holder = stay->entry;
    unlock_notes(place);
}

void place_stay(place_t *place, const stay_t *stay, uint64_t valid_until_ns) {
    lock_notes(place);
    if (stay->entry != 0 && place->holder == stay->entry) {
        place->valid_until_ns = valid_until_ns;
    }
    unlock_notes(place);
}

void place_leave(place_t *place, const stay_t *stay, uint64_t valid_until_ns) {
    if (stay->entry == 0) {
        return;
    }
    lock_notes(place);
    uint64_t now = now_ns();
    bool entered_since = place->entries != stay->entry;
    /* Still valid, so it was when the other came in, though it may have told of less by then. */
    bool valid = valid_until_ns > now;
    place->overlaps += place->overlapped == stay->entry || (entered_since && valid);
    if (place->holder == stay->entry) {
        place->holder = 0;
        if (valid && atomic_load(&place->waiting) > 0) {
            place->released_by = stay->owner;
            place->released_ns = now;
        }
    }
    unlock_notes(place);
}

uint64_t place_read(const place_t *place) {
    return place->counter;
}

void place_write(place_t *place, uint64_t value) {
    place->counter = value;
}

void place_complete(place_t *place) {
    atomic_fetch_add(&place->completed, 1);
}

violations_t places_violations(const place_t *places, size_t count) {
    violations_t sum = {0, 0, 0};
    for (size_t i = 0; i < count; i++) {
        sum.overlaps += places[i].overlaps;
        sum.fallen_tokens += places[i].fallen_tokens;
        /* A hold that was lost while it unlocked may have written too, so the counter may be larger. */
        uint64_t completed = atomic_load(&places[i].completed);
        sum.lost_updates += completed > places[i].counter ? completed - places[i].counter : 0;
    }
    return sum;
}

bool places_had_tokens(const place_t *places, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (places[i].token != 0) {
            return true;
        }
    }
    return false;
}

uint64_t violations_sum(const violations_t *violations) {
    return violations->overlaps + violations->fallen_tokens + violations->lost_updates;
}
