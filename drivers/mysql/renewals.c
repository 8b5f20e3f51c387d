/* renewals.c - renewing many holds by few statements. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "rows.h"

/* Holds renewed by one statement, which keeps other clients from their rows for a few milliseconds. */
#define CHUNK 256
/* The text of a statement about many. On the stack: renewing must work without memory. */
#define ROOM 65536
/* The text of a statement without what it says of its holds. */
#define FRAME 512
/* How long rows that are locked are waited for, at most; others' single statements take less. */
#define PATIENCE_NS (100 * (uint64_t)DLI_NS_PER_MS)
/* How long a batch that expects no locked rows is waited for; and once it met one, how long the next ones
 * expect more of them. */
#define BOLD_NS (500 * (uint64_t)DLI_NS_PER_MS)
#define WARY_NS (60000 * (uint64_t)DLI_NS_PER_MS)
/* So many callers at a time extend their holds in the lane of renewals. Each may have to wait for a row that
 * is kept locked, and the renewals of all other holds must find a connection there. */
#define EXTENDING_MAX 2
/* No answer yet. No renewal ends like this. */
#define OPEN DL_EBUSY

typedef struct batch {
    dli_mysql_t *mysql;
    dli_mysql_lane_t lane;
    dl_renewal_t *renewals;
    size_t n, open;
    uint64_t deadline_ns;
    char *room;
    size_t room_size;
} batch_t;

/* Those that one statement is about. */
typedef struct chunk {
    dl_renewal_t *entries[CHUNK];
    bool found[CHUNK];
    size_t n;
} chunk_t;

static void settle(batch_t *b, const chunk_t *c, dl_status_t status) {
    for (size_t i = 0; i < c->n; i++) {
        c->entries[i]->status = status;
    }
    b->open -= c->n;
}

/* ---- statements ------------------------------------------------------------------------------------- */

/* At least what the entry takes of a statement's text: its name three times, its owner, numbers. */
static size_t text_size(const dl_renewal_t *r) {
    return 3 * (2 * r->name_len + 4) + 2 * strlen(r->owner) + 80;
}

/*
 * Those that are still their owners' and not expired. SYSDATE is the time of looking at the row, also after
 * a wait for it: a hold that expired meanwhile is not revived. (UTC_TIMESTAMP is the statement's start; the
 * session's time zone is UTC.) The names by themselves are what the rows are found by.
 */
static void add_alive(dli_mysql_sql_t *sql, const chunk_t *c) {
    dli_mysql_sql_add(sql, " WHERE name IN (");
    for (size_t i = 0; i < c->n; i++) {
        dli_mysql_sql_add(sql, "$t$x", i > 0 ? "," : "", c->entries[i]->name, c->entries[i]->name_len);
    }
    dli_mysql_sql_add(sql, ") AND (name,owner,hold_id) IN (");
    for (size_t i = 0; i < c->n; i++) {
        const dl_renewal_t *r = c->entries[i];
        dli_mysql_sql_add(sql, "$t($x,$s,$u)", i > 0 ? "," : "", r->name, r->name_len, r->owner, r->hold_id);
    }
    dli_mysql_sql_add(sql, ") AND expires_at>SYSDATE(6)");
}

/* The lease in microseconds, where not all have the same: by name. */
static void add_lease(dli_mysql_sql_t *sql, const chunk_t *c) {
    const int64_t usual_ms = c->entries[0]->lease_ms;
    bool is_mixed = false;
    for (size_t i = 1; i < c->n; i++) {
        const dl_renewal_t *r = c->entries[i];
        if (r->lease_ms != usual_ms) {
            dli_mysql_sql_add(sql, "$t WHEN $x THEN $i", is_mixed ? "" : "CASE name", r->name, r->name_len,
                              r->lease_ms * 1000);
            is_mixed = true;
        }
    }
    dli_mysql_sql_add(sql, is_mixed ? " ELSE $i END" : "$i", usual_ms * 1000);
}

static dl_status_t run(batch_t *b, const dli_mysql_sql_t *sql, dli_mysql_intent_t intent,
                       uint64_t deadline_ns, dli_mysql_exchange_t *exchange) {
    dl_error_t err;
    *exchange = (dli_mysql_exchange_t){.lane = b->lane, .intent = intent, .deadline_ns = deadline_ns};
    return dli_mysql_run(b->mysql, exchange, sql, "renewing", "", &err);
}

/* Half of the time that is left, while others wait for an answer too: then a dead connection takes only
 * that. */
static uint64_t share_ns(const batch_t *b, bool is_last) {
    uint64_t now = b->mysql->env->now_ns();
    return is_last || now >= b->deadline_ns ? b->deadline_ns : now + (b->deadline_ns - now) / 2;
}

/* ---- who is alive ----------------------------------------------------------------------------------- */

static void note_row(chunk_t *c, MYSQL_ROW row, const unsigned long *lengths) {
    for (size_t i = 0; i < c->n; i++) {
        const dl_renewal_t *r = c->entries[i];
        c->found[i] =
            c->found[i] || (lengths[0] == r->name_len && memcmp(row[0], r->name, r->name_len) == 0 &&
                            strcmp(row[1], r->owner) == 0 && dli_mysql_number(row[2]) == r->hold_id);
    }
}

typedef enum how {
    AS_IT_IS,    /* locked or not */
    IF_UNLOCKED, /* leaves out what is locked */
    WAITING      /* for a while; if any is locked for longer, there is no answer at all */
} how_t;

/* How long it may wait for rows. */
static uint64_t patience_ms(const batch_t *b) {
    uint64_t now = b->mysql->env->now_ns();
    uint64_t left_ns = b->deadline_ns > now ? (b->deadline_ns - now) / 4 : 0;
    return dli_mysql_earlier(left_ns, PATIENCE_NS) / DLI_NS_PER_MS + 1;
}

/* Which are still their owners' and not expired? */
static dl_status_t look(batch_t *b, chunk_t *c, how_t how, bool is_last) {
    dli_mysql_exchange_t exchange;
    dli_mysql_sql_t sql = dli_mysql_sql_in(b->room, b->room_size);
    if (how == WAITING) {
        dli_mysql_sql_add_bounded_select(&sql, patience_ms(b));
    } else {
        dli_mysql_sql_add(&sql, "SELECT ");
    }
    dli_mysql_sql_add(&sql, "name,owner,hold_id FROM $t " DLI_MYSQL_BY_NAME, b->mysql->table);
    add_alive(&sql, c);
    dli_mysql_sql_add(&sql, "$t",
                      how == AS_IT_IS  ? ""
                      : how == WAITING ? " FOR UPDATE"
                                       : " FOR UPDATE SKIP LOCKED");
    memset(c->found, 0, sizeof c->found);
    dl_status_t status = run(b, &sql, DLI_MYSQL_READ, share_ns(b, is_last), &exchange);
    if (status == DL_OK) {
        MYSQL_ROW row;
        unsigned long *lengths;
        while ((row = dli_mysql_answer_row(&exchange.answer, &lengths)) != NULL) {
            note_row(c, row, lengths);
        }
        dli_mysql_answer_free(&exchange.answer);
    }
    return status;
}

/* Moves those that were not found to `missing`. */
static void part(chunk_t *c, chunk_t *missing) {
    size_t n = 0;
    missing->n = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (c->found[i]) {
            c->entries[n++] = c->entries[i];
        } else {
            missing->entries[missing->n++] = c->entries[i];
        }
    }
    c->n = n;
}

/* ---- renewing --------------------------------------------------------------------------------------- */

/* One statement that extends what is alive, and waits for rows that are locked. It is not judged yet. */
static dl_status_t extend(batch_t *b, const chunk_t *c, dli_mysql_intent_t intent, uint64_t deadline_ns,
                          uint64_t *extended) {
    dli_mysql_exchange_t exchange;
    dli_mysql_sql_t sql = dli_mysql_sql_in(b->room, b->room_size);
    dli_mysql_sql_add(
        &sql, "UPDATE $t " DLI_MYSQL_BY_NAME " SET expires_at=GREATEST(expires_at,UTC_TIMESTAMP(6)+INTERVAL ",
        b->mysql->table);
    add_lease(&sql, c);
    dli_mysql_sql_add(&sql, " MICROSECOND)");
    add_alive(&sql, c);
    dli_mysql_sql_add(&sql, " AND " DLI_MYSQL_WRITABLE "=0");
    dl_status_t status = run(b, &sql, intent, deadline_ns, &exchange);
    for (size_t i = 0; exchange.sent_ns != 0 && i < c->n; i++) {
        c->entries[i]->sent_ns = exchange.sent_ns;
    }
    if (status == DL_OK) {
        *extended = exchange.answer.affected;
        dli_mysql_answer_free(&exchange.answer);
    }
    return status;
}

/* So many were extended: which? */
static void judge(batch_t *b, chunk_t *c, uint64_t extended) {
    chunk_t lost;
    if (extended != c->n) {
        memset(c->found, 0, sizeof c->found);
        if (extended > 0 && look(b, c, AS_IT_IS, b->open == c->n) != DL_OK) {
            settle(b, c, DL_EUNKNOWN);
            return;
        }
        part(c, &lost);
        settle(b, &lost, DL_ELOST);
    }
    settle(b, c, DL_OK);
}

/* The one and only statement: it takes the time that there is. One about several holds that hangs at a row
 * keeps those of the others locked, so it is ended on the server before the next. */
static void renew_by_one(batch_t *b, chunk_t *c) {
    uint64_t extended;
    dl_status_t status =
        extend(b, c, c->n > 1 ? DLI_MYSQL_CLAIM : DLI_MYSQL_PLAIN, share_ns(b, b->open == c->n), &extended);
    if (status == DL_OK) {
        judge(b, c, extended);
    } else {
        settle(b, c, status);
    }
}

/* Renews those that were found. What becomes of the others is not said here. */
static void extend_found(batch_t *b, chunk_t *c, chunk_t *others) {
    part(c, others);
    if (c->n > 0) {
        renew_by_one(b, c);
    }
}

/*
 * Somebody's open transaction may keep one of the rows locked for as long as it likes: no other hold may
 * wait for that. So first see which rows can be locked now, and renew those.
 */
static void renew_unlocked(batch_t *b, chunk_t *c) {
    chunk_t others, lost;
    dli_mysql_link_settle(b->mysql->link, share_ns(b, false), NULL);
    if (look(b, c, IF_UNLOCKED, false) != DL_OK) {
        return;
    }
    extend_found(b, c, &others);
    if (others.n > 0 && look(b, &others, AS_IT_IS, false) == DL_OK) {
        /* Those that are locked, for now or for long, are alive; the others are gone. */
        part(&others, &lost);
        settle(b, &lost, DL_ELOST);
    }
}

/* For half the price, as long as no row is kept locked. */
static void renew_boldly(batch_t *b, chunk_t *c) {
    const dl_driver_env_t *env = b->mysql->env;
    uint64_t now = env->now_ns(), extended;
    if (now < atomic_load(&b->mysql->wary_until_ns)) {
        renew_unlocked(b, c);
        return;
    }
    uint64_t until_ns = dli_mysql_earlier(share_ns(b, false), now + BOLD_NS);
    dl_status_t status = extend(b, c, DLI_MYSQL_CLAIM, until_ns, &extended);
    if (status == DL_OK) {
        judge(b, c, extended);
        return;
    }
    atomic_store(&b->mysql->wary_until_ns, env->now_ns() + WARY_NS);
    renew_unlocked(b, c);
}

/* Most are locked only while a statement of another client looks at them. Those that are so for longer
 * have to wait for their next turn. */
static void renew_locked(batch_t *b, chunk_t *c) {
    chunk_t others;
    dl_status_t status = look(b, c, WAITING, false);
    bool is_all = status == DL_OK;
    if (!is_all) {
        status = look(b, c, IF_UNLOCKED, false);
    }
    if (status != DL_OK) {
        settle(b, c, status);
        return;
    }
    extend_found(b, c, &others);
    settle(b, &others, is_all ? DL_ELOST : DL_EIO);
}

static void for_each_chunk(batch_t *b, void (*renew)(batch_t *b, chunk_t *c)) {
    size_t at = 0;
    while (at < b->n) {
        chunk_t c = {.n = 0};
        size_t size = FRAME;
        for (; at < b->n && c.n < CHUNK; at++) {
            dl_renewal_t *r = &b->renewals[at];
            if (r->status != OPEN) {
                continue;
            }
            size += text_size(r);
            if (c.n > 0 && size > b->room_size) {
                break;
            }
            c.entries[c.n++] = r;
        }
        if (c.n > 0) {
            renew(b, &c);
        }
    }
}

static void begin(batch_t *b) {
    const uint64_t now = b->mysql->env->now_ns();
    for (size_t i = 0; i < b->n; i++) {
        dl_renewal_t *r = &b->renewals[i];
        r->sent_ns = now;
        r->status = r->lease_ms < 1 || r->lease_ms > DL_LEASE_MAX_MS ? DL_EINVAL : OPEN;
        b->open += r->status == OPEN;
    }
}

/* Not inlined: a caller that extends one hold may have a small stack. */
__attribute__((noinline)) static void renew_many(batch_t *b) {
    char room[ROOM];
    b->room = room;
    b->room_size = sizeof room;
    for_each_chunk(b, renew_boldly);
    for_each_chunk(b, renew_locked);
}

static void renew_one(batch_t *b) {
    char room[DLI_MYSQL_SQL_MAX];
    b->room = room;
    b->room_size = sizeof room;
    for_each_chunk(b, renew_by_one);
}

void dli_mysql_rows_renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    dli_mysql_t *mysql = state;
    const int by_caller = n == 1 && renewals->by_caller;
    bool has_room = atomic_fetch_add(&mysql->extending, by_caller) < EXTENDING_MAX || !by_caller;
    batch_t b = {.mysql = mysql,
                 .lane = has_room ? DLI_MYSQL_RENEWALS : DLI_MYSQL_CALLS,
                 .renewals = renewals,
                 .n = n,
                 .deadline_ns = deadline_ns};
    begin(&b);
    if (n > 1) {
        renew_many(&b);
    } else {
        renew_one(&b);
    }
    atomic_fetch_sub(&mysql->extending, by_caller);
}
