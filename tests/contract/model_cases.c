/* model_cases.c - contract: whatever owners do in whatever order, it is as a model of a page has it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>

#include "walks.h"

/*
 * Owners of two clients take, enter, extend and leave the locks of two names at random. The model knows of
 * each hold how many levels it has, from which on it is automatic, its token, and between which two instants
 * its validity ends. The server is healthy, so that an automatic lease is never lost.
 */
#define NAMES 2
#define OWNERS 2
#define HOLDS (2 * NAMES * OWNERS)
#define WALKS 40
#define STEPS 120

typedef struct rules {
    int64_t lease_ms, every_ms;
} rules_t;

typedef struct hold {
    dl_lock_t *lock;
    const rules_t *rules;
    int name;
    uint32_t levels, auto_level;
    uint64_t token;
    int64_t ends_from_ms, ends_until_ms; /* of its validity, without renewals */
} hold_t;

typedef struct walk {
    way_t way;
    int64_t slow_ms; /* how long each answer takes */
    bool is_short;   /* nothing ends while it lasts, and the server is looked at, too */
    hold_t holds[HOLDS];
    uint64_t last_token[NAMES];
    int64_t taken_until_ms[NAMES];   /* a lease that was lost or left may last so long on the server */
    int64_t unknown_until_ms[NAMES]; /* or what was asked for, and not answered */
} walk_t;

/* So long that a slow yes is not too late. */
static int64_t a_lease(walk_t *w) {
    return draw_lease(&w->way, w->is_short ? LASTING_MS : DL_LEASE_MIN_MS + 2 * w->slow_ms);
}

static int64_t now_ms(const walk_t *w) {
    return ct_now_ms(w->way.ct);
}

/* By what a hold is surely still valid, or surely no more. */
static bool is_live(const hold_t *h, int64_t at_ms) {
    return h->levels > 0 && (h->auto_level > 0 || at_ms < h->ends_from_ms);
}

static bool is_lost(const hold_t *h, int64_t at_ms) {
    return h->levels > 0 && h->auto_level == 0 && at_ms > h->ends_until_ms;
}

/* ---- what is promised at any time -------------------------------------------------------------------- */

static void look_at(walk_t *w, hold_t *h) {
    int64_t before_ms = now_ms(w), valid_ms = dl_valid_ms(h->lock);
    uint64_t token = dl_token(h->lock);
    NEED(w, dl_hold_count(h->lock) == h->levels);
    int64_t now = now_ms(w);
    if (is_live(h, now)) {
        /* A renewal is behind the batch before it. */
        int64_t renewed_ms = validity_of(h->rules->lease_ms) - h->rules->every_ms - 4 * w->slow_ms - 2;
        NEED(w, h->auto_level > 0 ? valid_ms >= renewed_ms : valid_ms >= h->ends_from_ms - now - 1);
        NEED(w, token == h->token);
    }
    if (h->auto_level == 0) {
        NEED(w,
             valid_ms <= (h->levels > 0 && h->ends_until_ms > before_ms ? h->ends_until_ms - before_ms : 0));
    }
    if (h->levels == 0 || is_lost(h, before_ms)) {
        NEED(w, valid_ms == 0 && token == 0);
    }
}

static void look_at_all(walk_t *w) {
    int live[NAMES] = {0};
    for (hold_t *h = w->holds; h < w->holds + HOLDS; h++) {
        look_at(w, h);
        live[h->name] += dl_valid_ms(h->lock) > 0;
    }
    for (int name = 0; name < NAMES; name++) {
        NEED(w, live[name] <= 1);
    }
}

static void look_at_server(walk_t *w) {
    char name[32];
    for (int i = 0; i < NAMES; i++) {
        const hold_t *h = w->holds;
        while (h < w->holds + HOLDS && (h->name != i || h->levels == 0)) {
            h++;
        }
        snprintf(name, sizeof name, "walk %u, %d", w->way.seed, i);
        int64_t began_ms = now_ms(w), valid_ms = h < w->holds + HOLDS ? dl_valid_ms(h->lock) : 0;
        dl_lock_info_t info = ct_server_info(w->way.ct, name);
        int64_t least_ms = valid_ms - (now_ms(w) - began_ms); /* a renewal may come just now */
        NEED(w, info.held == (h < w->holds + HOLDS));
        if (info.held) {
            NEED(w, info.token == 0 || info.token >= h->token);
            NEED(w, (ct_caps(w->way.ct) & DL_CAP_SERVER_COUNT) == 0 || info.holds == h->levels);
            NEED(w, (ct_caps(w->way.ct) & DL_CAP_LEASE) == 0 || info.remaining_ms >= least_ms);
        }
    }
}

/* ---- what an owner does ------------------------------------------------------------------------------ */

static void lengthen(walk_t *w, hold_t *h, int64_t began_ms, int64_t lease_ms, int64_t most_ms) {
    int64_t from_ms = began_ms + validity_of(lease_ms) - 1;
    int64_t until_ms = now_ms(w) + validity_of(most_ms) + 1;
    int64_t gone_ms = now_ms(w) + most_ms + 1;
    h->ends_from_ms = from_ms > h->ends_from_ms ? from_ms : h->ends_from_ms;
    h->ends_until_ms = until_ms > h->ends_until_ms ? until_ms : h->ends_until_ms;
    w->taken_until_ms[h->name] = gone_ms > w->taken_until_ms[h->name] ? gone_ms : w->taken_until_ms[h->name];
}

/* Of an automatic level the model knows no end; when it is left, that is seen. */
static void leave_automatic(walk_t *w, hold_t *h) {
    int64_t before_ms = now_ms(w), valid_ms = dl_valid_ms(h->lock), now = now_ms(w);
    h->auto_level = 0;
    h->ends_from_ms = before_ms + valid_ms;
    h->ends_until_ms = now + valid_ms + 1;
    if (w->slow_ms > 0) { /* a renewal that is under way may still lengthen it */
        int64_t until_ms = now + validity_of(h->rules->lease_ms) + 1;
        h->ends_until_ms = until_ms > h->ends_until_ms ? until_ms : h->ends_until_ms;
    }
    int64_t gone_ms =
        h->ends_until_ms + valid_ms + h->rules->lease_ms; /* more than the allowance for clocks */
    w->taken_until_ms[h->name] = gone_ms > w->taken_until_ms[h->name] ? gone_ms : w->taken_until_ms[h->name];
}

static int64_t longest(const hold_t *h, int64_t lease_ms) {
    return lease_ms > h->rules->lease_ms || h->auto_level == 0 ? lease_ms : h->rules->lease_ms;
}

/* Which was not known for sure; and the server may have done what came too late for the hold. */
static void be_lost(walk_t *w, hold_t *h, int64_t began_ms) {
    h->ends_from_ms = h->ends_until_ms = began_ms;
    if (w->slow_ms > 0) {
        w->unknown_until_ms[h->name] = now_ms(w) + LONGEST_MS;
    }
}

static void enter(walk_t *w, hold_t *h, int64_t lease_ms) {
    int64_t began_ms = now_ms(w);
    bool automatic = lease_ms == DL_LEASE_AUTO, was_lost = is_lost(h, began_ms),
         was_live = is_live(h, began_ms);
    dl_status_t status = dl_trylock_for(h->lock, 0, lease_ms, NULL);
    bool is_still = is_live(h, now_ms(w));
    lease_ms = automatic ? h->rules->lease_ms : lease_ms;
    NEED(w, status == DL_OK || status == DL_ELOST);
    NEED(w, status == DL_OK || !(was_live && is_still));
    NEED(w, status == DL_ELOST || !was_lost);
    if (status == DL_OK) {
        h->levels++;
        h->auto_level = automatic && h->auto_level == 0 ? h->levels : h->auto_level;
        lengthen(w, h, began_ms, lease_ms, longest(h, lease_ms));
    } else {
        be_lost(w, h, began_ms);
    }
}

static void acquire(walk_t *w, hold_t *h, int64_t wait_ms, int64_t lease_ms) {
    int64_t began_ms = now_ms(w);
    bool automatic = lease_ms == DL_LEASE_AUTO,
         was_free = began_ms > w->taken_until_ms[h->name] && began_ms > w->unknown_until_ms[h->name];
    bool is_kept = false;
    dl_status_t status = dl_trylock_for(h->lock, wait_ms, lease_ms, NULL);
    int64_t ended_ms = now_ms(w);
    for (const hold_t *other = w->holds; other < w->holds + HOLDS; other++) {
        bool is_other = other->name == h->name && other->levels > 0;
        is_kept |= is_other && is_live(other, ended_ms);
        was_free &= !is_other || is_lost(other, began_ms);
    }
    /* The end of a wait may cut off the last answer, and then what was asked for may still come. */
    bool is_cut_off = status == DL_EUNKNOWN && wait_ms > 0 && w->slow_ms > 0;
    NEED(w, status == DL_OK || is_cut_off || status == (wait_ms > 0 ? DL_ETIMEDOUT : DL_EBUSY));
    NEED(w, status == DL_OK ? !is_kept : is_cut_off || !was_free);
    if (status != DL_OK && wait_ms > 0 && w->slow_ms > 0) {
        w->unknown_until_ms[h->name] = ended_ms + LONGEST_MS;
    }
    if (status == DL_OK) {
        *h = (hold_t){.lock = h->lock, .rules = h->rules, .name = h->name, .levels = 1};
        h->auto_level = automatic;
        h->token = dl_token(h->lock);
        lengthen(w, h, wait_ms > 0 ? ended_ms - w->slow_ms : began_ms,
                 automatic ? h->rules->lease_ms : lease_ms, automatic ? h->rules->lease_ms : lease_ms);
        if ((ct_caps(w->way.ct) & DL_CAP_FENCE) != 0) {
            NEED(w, h->token > w->last_token[h->name]);
        }
        w->last_token[h->name] = h->token;
    }
}

static void extend(walk_t *w, hold_t *h, int64_t lease_ms) {
    int64_t began_ms = now_ms(w);
    bool was_lost = is_lost(h, began_ms);
    dl_status_t status = dl_extend(h->lock, lease_ms, NULL);
    lease_ms = lease_ms == DL_LEASE_AUTO ? h->rules->lease_ms : lease_ms;
    if (h->levels == 0) {
        NEED(w, status == DL_ENOTOWNER);
        return;
    }
    NEED(w, status == DL_OK || status == DL_ELOST);
    NEED(w, status == DL_OK || !is_live(h, now_ms(w)));
    NEED(w, status == DL_ELOST || !was_lost);
    if (status == DL_OK) {
        lengthen(w, h, began_ms, lease_ms, longest(h, lease_ms));
    } else {
        be_lost(w, h, began_ms);
    }
}

static void leave(walk_t *w, hold_t *h) {
    int64_t began_ms = now_ms(w);
    bool was_lost = is_lost(h, began_ms), was_live = is_live(h, began_ms);
    bool leaves_automatic = h->auto_level > 0 && h->auto_level == h->levels;
    dl_status_t status = dl_unlock(h->lock, NULL);
    if (h->levels == 0) {
        NEED(w, status == DL_ENOTOWNER);
        return;
    }
    bool is_still = is_live(h, now_ms(w));
    /* One that is slower than its lease is left to the background where others want the lock. */
    bool is_left = status == DL_EUNKNOWN && w->slow_ms > 0 && h->levels == 1 && !is_still;
    NEED(w, status == DL_OK || status == DL_ELOST || is_left);
    NEED(w, status == DL_OK || !(was_live && is_still));
    NEED(w, status == DL_ELOST || !was_lost);
    h->levels--;
    if (h->levels > 0 && leaves_automatic) {
        leave_automatic(w, h);
    }
    if (h->levels == 0) {
        h->auto_level = 0;
        w->taken_until_ms[h->name] = status == DL_OK ? 0 : w->taken_until_ms[h->name];
    }
}

/* ---- a healthy server -------------------------------------------------------------------------------- */

static void take_step(walk_t *w) {
    hold_t *h = &w->holds[draw(&w->way, HOLDS)];
    int64_t lease_ms = draw(&w->way, 2) ? DL_LEASE_AUTO : a_lease(w);
    int64_t wait_ms = draw(&w->way, 4) || w->is_short ? 0 : 1 + draw(&w->way, 2000);
    int what = (int)draw(&w->way, w->is_short ? 8 : 10);
    snprintf(w->way.said, sizeof w->way.said,
             "%s of hold %d (%u levels, automatic from %u), %lld ms, waits %lld ms",
             what < 4   ? "acquire"
             : what < 6 ? "extend"
             : what < 8 ? "unlock"
                        : "sleep",
             (int)(h - w->holds), (unsigned)h->levels, (unsigned)h->auto_level, (long long)lease_ms,
             (long long)wait_ms);
    if (what < 4 && h->levels > 0) {
        enter(w, h, lease_ms);
    } else if (what < 4) {
        acquire(w, h, wait_ms, lease_ms);
    } else if (what < 6) {
        extend(w, h, lease_ms);
    } else if (what < 8) {
        leave(w, h);
    } else {
        ct_sleep_ms(w->way.ct, draw_sleep(&w->way));
    }
}

/* ---- and where exchanges fail ------------------------------------------------------------------------ */

/* What is true of any outcome: levels are what was said, and a new hold's token is larger than all before. */
static void take_any_step(walk_t *w, hold_t *h) {
    int64_t lease_ms = draw(&w->way, 2) ? DL_LEASE_AUTO : a_lease(w);
    int64_t wait_ms = draw(&w->way, 3) ? 0 : 1 + draw(&w->way, 3000);
    int what = (int)draw(&w->way, 10);
    dl_status_t status = DL_OK;
    if (what < 4) {
        int64_t max_hold_ms = draw(&w->way, 4) ? 0 : a_lease(w);
        dl_acquire_opts_t opts = {sizeof opts, wait_ms, lease_ms, max_hold_ms, NULL};
        status = dl_acquire(h->lock, &opts, NULL);
        h->levels += status == DL_OK;
    } else if (what < 6) {
        status = dl_extend(h->lock, lease_ms, NULL);
    } else if (what < 8) {
        status = dl_unlock(h->lock, NULL);
        NEED(w, (status == DL_ENOTOWNER) == (h->levels == 0));
        h->levels -= h->levels > 0;
    } else if (what < 9 || draw(&w->way, 4)) {
        ct_sleep_ms(w->way.ct, draw_sleep(&w->way));
    } else {
        ct_suspend_ms(w->way.ct, draw_sleep(&w->way));
    }
    snprintf(w->way.said, sizeof w->way.said, "%s of hold %d, %lld ms, waits %lld ms: %s",
             what < 4   ? "acquire"
             : what < 6 ? "extend"
             : what < 8 ? "unlock"
                        : "sleep",
             (int)(h - w->holds), (long long)lease_ms, (long long)wait_ms, dl_status_name(status));
    uint64_t token = dl_token(h->lock);
    if (what < 4 && status == DL_OK && h->levels == 1 && token != 0) {
        NEED(w, token > w->last_token[h->name]);
        w->last_token[h->name] = token;
    }
}

static void look_at_any(walk_t *w) {
    int live[NAMES] = {0};
    for (hold_t *h = w->holds; h < w->holds + HOLDS; h++) {
        NEED(w, dl_hold_count(h->lock) == h->levels);
        live[h->name] += dl_valid_ms(h->lock) > 0;
    }
    for (int name = 0; name < NAMES; name++) {
        NEED(w, live[name] <= 1);
    }
}

/* ---- walks ------------------------------------------------------------------------------------------- */

static void open_locks(walk_t *w, dl_client_t *clients[2]) {
    static const rules_t long_rules[2] = {{30000, 10000}, {8000, 4000}};
    static const rules_t short_rules[2] = {{LASTING_MS, LASTING_MS / 3}, {LASTING_MS, LASTING_MS / 3}};
    const rules_t *rules = w->is_short ? short_rules : long_rules;
    char name[32];
    for (int i = 0; i < HOLDS; i++) {
        hold_t *h = &w->holds[i];
        *h = (hold_t){.rules = &rules[i % 2], .name = i / 2 % NAMES};
        snprintf(name, sizeof name, "walk %u, %d", w->way.seed, h->name);
        h->lock = ct_lock_owned(w->way.ct, clients[i % 2], name, (uint64_t)(1 + i / 2 / NAMES));
    }
}

static void walk_in_health(walk_t *w) {
    for (w->way.step = 0; w->way.step < STEPS; w->way.step++) {
        take_step(w);
        look_at_all(w);
        if (w->is_short) {
            look_at_server(w);
        }
    }
    for (hold_t *h = w->holds; h < w->holds + HOLDS; h++) {
        while (h->levels > 0) {
            leave(w, h);
        }
    }
}

static void walk_among_faults(walk_t *w) {
    for (w->way.step = 0; w->way.step < STEPS; w->way.step++) {
        if (draw(&w->way, 3) == 0) {
            break_some(&w->way);
        }
        take_any_step(w, &w->holds[draw(&w->way, HOLDS)]);
        look_at_any(w);
    }
    ct_fault_end(w->way.ct, -1);
    for (hold_t *h = w->holds; h < w->holds + HOLDS; h++) {
        for (; h->levels > 0; h->levels--) {
            NEED(w, dl_unlock(h->lock, NULL) != DL_ENOTOWNER);
        }
    }
    char name[32];
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "walk %u, %d", w->way.seed, i);
        ct_expect_free(w->way.ct, name, LONGEST_MS);
    }
}

static void walk_often(ct_t *ct, int64_t slow_ms, void (*walk)(walk_t *w)) {
    dl_client_t *clients[2] = {ct_open(ct, "lease: 30s"), ct_open(ct, "lease: 8s\nrenew_every: 4s")};
    static const ct_op_t slow[] = {CT_OP_TRY, CT_OP_RELEASE, CT_OP_RENEW};
    for (size_t i = 0; i < sizeof slow / sizeof slow[0] && slow_ms > 0; i++) {
        ct_fault_t late = {.op = slow[i], .mode = CT_LATE_REPLY, .delay_ms = slow_ms, .count = -1};
        ct_fault_add(ct, &late);
    }
    const unsigned first = first_seed(ct, WALKS);
    for (unsigned seed = first; seed < first + (unsigned)ct_many(WALKS); seed++) {
        walk_t w = {.way = {.ct = ct, .seed = seed, .random = seed}, .slow_ms = slow_ms};
        open_locks(&w, clients);
        walk(&w);
        for (hold_t *h = w.holds; h < w.holds + HOLDS; h++) {
            ct_lock_close(ct, h->lock);
        }
    }
}

CT_CASE(model, holds_whatever_owners_do, .traits = CT_VIRTUAL) {
    walk_often(ct, 0, walk_in_health);
}

CT_CASE(model, holds_where_every_answer_is_slow, .traits = CT_VIRTUAL) {
    walk_often(ct, 400, walk_in_health);
}

/* In real time, too. */
CT_CASE(model, holds_on_the_server, .traits = CT_CAN_INSPECT) {
    static const char options[] = "lease: 60s\ncall_timeout: 10s";
    dl_client_t *clients[2] = {ct_open(ct, options), ct_open(ct, options)};
    const unsigned first = first_seed(ct, WALKS / 4);
    for (unsigned seed = first; seed < first + (unsigned)ct_many(WALKS / 4); seed++) {
        walk_t w = {.way = {.ct = ct, .seed = seed, .random = seed}, .is_short = true};
        open_locks(&w, clients);
        walk_in_health(&w);
    }
}

CT_CASE(model, one_owner_is_valid_at_most_whatever_fails, .traits = CT_VIRTUAL) {
    walk_often(ct, 0, walk_among_faults);
}
