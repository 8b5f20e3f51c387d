/* pings.c - mysql-pessimistic: are holds alive? Those to be extended are asked on their own connections. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

/*
 * A statement on a hold's own connection starts the session's idle time again, and so its lease. An entry
 * that is not to be extended is therefore looked for from outside, by its marker: else a holder with an
 * explicit lease would keep its lock for as long as its client lives.
 *
 * Nothing here has to write: a server whose tables are locked for a backup takes no lock away. One that has
 * become read-only does, at the lease's end: after a failover its successor knows nothing of the lock.
 */

/* Of a larger batch so many at a time; the core's are not larger. */
#define GROUP_MAX 1000u
/* An answer that has begun when the time is over may take so long for its rest: losing the connection to a
 * moment in which this process did not run would be losing the lock. */
#define REST_NS (50u * (uint64_t)DLI_NS_PER_MS)

typedef struct batch {
    dli_mysql_sessions_t *state;
    dli_mysql_t *mysql;
    dl_driver_env_t hasty; /* in which no wait lasts: for sending only */
    dl_renewal_t *renewals;
    size_t n, waiting; /* waiting: how many have a statement on its way */
    uint64_t deadline_ns;
} batch_t;

static void hear(batch_t *b, dl_renewal_t *r, dl_status_t status, const dl_error_t *err,
                 dli_mysql_answer_t *answer);

static int poll_not(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    (void)fds;
    (void)n;
    (void)deadline_ns;
    return 0;
}

static uint64_t rest_until(const batch_t *b) {
    uint64_t least_ns = b->mysql->env->now_ns() + REST_NS;
    return b->deadline_ns > least_ns ? b->deadline_ns : least_ns;
}

/* ---- ends ---------------------------------------------------------------------------------------------- */

static void finish(dl_renewal_t *r, dl_status_t status) {
    dli_mysql_session_t *session = r->hold;
    session->step = DLI_MYSQL_STEP_NONE;
    r->status = status;
}

/* The server may not have noticed the end of the connection. */
static void lose(batch_t *b, dl_renewal_t *r, dl_loss_t loss) {
    dli_mysql_conn_t *conn = dli_mysql_session_take(b->state, r->hold);
    dli_mysql_link_drop(b->mysql->link, conn, true);
    r->loss = loss;
    finish(r, DL_ELOST);
}

/* The connection broke, perhaps with these last words. */
static dl_loss_t loss_of(const dl_error_t *err) {
    unsigned error = (unsigned)err->native;
    return error == 0 || dli_mysql_is_library_error(error) ? DL_LOSS_HANG_UP : DL_LOSS_KILLED;
}

/* ---- on its own connection ----------------------------------------------------------------------------- */

static void build(const batch_t *b, const dl_renewal_t *r, dli_mysql_sql_t *sql) {
    dli_mysql_session_t *session = r->hold;
    switch (session->step) {
    case DLI_MYSQL_STEP_PATIENCE:
        dli_mysql_patience_sql(sql, session->asked_s);
        break;
    case DLI_MYSQL_STEP_PING:
        /* Of markers the session sees only its own, as it reads what is committed: so an answer with the row
         * proves that the transaction lives, and the row is still locked. */
        dli_mysql_sql_add(sql,
                          "SELECT " DLI_MYSQL_WRITABLE " FROM $t WHERE name=$x AND owner=$s AND hold_id=$u",
                          b->mysql->table, r->name, r->name_len, r->owner, r->hold_id);
        break;
    case DLI_MYSQL_STEP_SHOW:
        dli_mysql_sql_add(sql, "UPDATE $t SET lease_ms=$i WHERE name=$x AND owner=$s AND hold_id=$u",
                          b->mysql->table, r->lease_ms, r->name, r->name_len, r->owner, r->hold_id);
        break;
    default:
        dli_mysql_sql_add(sql, "ROLLBACK");
    }
}

/* Sends the statement of the step, and does not wait for the answer. */
static void ask(batch_t *b, dl_renewal_t *r, dli_mysql_step_t step) {
    dli_mysql_session_t *session = r->hold;
    dli_mysql_bounds_t bounds = {
        .env = &b->hasty, .guard = dli_mysql_link_guard(b->mysql->link), .deadline_ns = rest_until(b)};
    dli_mysql_answer_t answer;
    dl_error_t err;
    uint64_t sent_ns = 0; /* it was not */
    DLI_MYSQL_SQL(sql);
    session->step = step;
    build(b, r, &sql);
    dl_status_t status = dli_mysql_conn_ask(session->conn, sql.at, sql.len, &bounds, &sent_ns, &answer, &err);
    if (step == DLI_MYSQL_STEP_PING) {
        r->sent_ns = sent_ns;
    }
    if (status == DL_ETIMEDOUT) {
        b->waiting++;
    } else {
        hear(b, r, status, &err, &answer);
    }
}

/* Which statement comes first? Each starts the idle time again: so it is to be no longer than what the hold
 * may have from now on, its lease or the rest of an extension. */
static void begin(batch_t *b, dl_renewal_t *r) {
    dli_mysql_session_t *session = r->hold;
    uint64_t now = b->mysql->env->now_ns();
    if (now >= session->ends_ns) {
        ask(b, r, DLI_MYSQL_STEP_END); /* nothing revives it */
        return;
    }
    int64_t left_ms = (int64_t)((session->ends_ns - now + DLI_NS_PER_MS - 1) / DLI_NS_PER_MS);
    int64_t seconds = dli_mysql_patience_for(left_ms > r->lease_ms ? left_ms : r->lease_ms);
    if (seconds != dli_mysql_conn_patience_s(session->conn)) {
        session->asked_s = seconds;
        ask(b, r, DLI_MYSQL_STEP_PATIENCE);
    } else {
        ask(b, r, DLI_MYSQL_STEP_PING);
    }
}

static void hear_ping(batch_t *b, dl_renewal_t *r, bool has_marker) {
    dli_mysql_session_t *session = r->hold;
    uint64_t ends_ns = r->sent_ns + (uint64_t)r->lease_ms * DLI_NS_PER_MS;
    if (!has_marker) {
        lose(b, r, DL_LOSS_NOT_OURS); /* the session lives, but its transaction has ended */
        return;
    }
    finish(r, DL_OK);
    if (ends_ns < session->ends_ns) {
        return; /* an extension goes on */
    }
    session->ends_ns = ends_ns;
    if (r->lease_ms != session->shown_ms) {
        session->shown_ms = r->lease_ms;
        ask(b, r, DLI_MYSQL_STEP_SHOW); /* only for those who look, so once is enough */
    }
}

static void hear_end(batch_t *b, dl_renewal_t *r, bool done) {
    if (!done) {
        lose(b, r, DL_LOSS_EXPIRED);
        return;
    }
    dli_mysql_link_give_back(b->mysql->link, dli_mysql_session_take(b->state, r->hold));
    r->loss = DL_LOSS_EXPIRED;
    finish(r, DL_ELOST);
}

/* Also a late answer says what the connection has from now on, and takes to its next hold. */
static void hear_patience(dli_mysql_session_t *session, bool done) {
    if (session->asked_s > 0 && done) {
        dli_mysql_conn_note_patience(session->conn, session->asked_s);
    }
    session->asked_s = 0;
}

static void hear(batch_t *b, dl_renewal_t *r, dl_status_t status, const dl_error_t *err,
                 dli_mysql_answer_t *answer) {
    dli_mysql_session_t *session = r->hold;
    bool done = answer->error == 0;
    bool has_row = answer->rows != NULL && mysql_num_rows(answer->rows) > 0;
    dli_mysql_answer_free(answer);
    if (status != DL_OK) {
        lose(b, r, loss_of(err)); /* the connection is broken, and so is the hold */
        return;
    }
    b->mysql->env->count(b->mysql->env->core, DL_COUNT_ROUND_TRIP, 1);
    if (session->step != DLI_MYSQL_STEP_END && dli_mysql_conn_is_broken(session->conn)) {
        lose(b, r, DL_LOSS_HANG_UP); /* our guard may have ended it behind a whole answer */
        return;
    }
    hear_patience(session, done);
    switch (session->step) {
    case DLI_MYSQL_STEP_EARLIER:
        begin(b, r);
        break;
    case DLI_MYSQL_STEP_PATIENCE:
        if (done) {
            ask(b, r, DLI_MYSQL_STEP_PING);
        } else {
            finish(r, DL_EUNKNOWN);
        }
        break;
    case DLI_MYSQL_STEP_PING:
        if (done) {
            hear_ping(b, r, has_row);
        } else {
            finish(r, DL_EUNKNOWN);
        }
        break;
    case DLI_MYSQL_STEP_SHOW:
        finish(r, DL_OK);
        break;
    default:
        hear_end(b, r, done);
    }
}

/* Hears those that have an answer, when there are some. false: the deadline is over. */
static bool await_some(batch_t *b) {
    struct pollfd fds[GROUP_MAX];
    for (size_t i = 0; i < b->n; i++) {
        const dli_mysql_session_t *session = b->renewals[i].hold;
        bool is_waiting = session->step != DLI_MYSQL_STEP_NONE;
        fds[i] = (struct pollfd){.fd = is_waiting ? dli_mysql_conn_fd(session->conn) : -1, .events = POLLIN};
    }
    if (b->mysql->env->poll(fds, b->n, b->deadline_ns) <= 0) {
        return false;
    }
    for (size_t i = 0; i < b->n; i++) {
        if (fds[i].revents != 0) {
            dl_renewal_t *r = &b->renewals[i];
            const dli_mysql_session_t *session = r->hold;
            dli_mysql_bounds_t bounds = {.env = b->mysql->env,
                                         .guard = dli_mysql_link_guard(b->mysql->link),
                                         .deadline_ns = rest_until(b)};
            dli_mysql_answer_t answer;
            dl_error_t err;
            b->waiting--;
            dl_status_t status = dli_mysql_conn_resume(session->conn, &bounds, &answer, &err);
            hear(b, r, status, &err, &answer);
        }
    }
    return true;
}

/* ---- from outside -------------------------------------------------------------------------------------- */

/* Adds those from `from` on that fit and want to be looked for. Returns where the next statement begins. */
static size_t add_looks(const batch_t *b, size_t from, dli_mysql_sql_t *sql, size_t *looks) {
    size_t i = from;
    for (*looks = 0; i < b->n; i++) {
        const dl_renewal_t *r = &b->renewals[i];
        const dli_mysql_session_t *session = r->hold;
        if (session->step != DLI_MYSQL_STEP_LOOK) {
            continue;
        }
        dli_mysql_sql_t before = *sql;
        dli_mysql_sql_add(sql, "$tSELECT $u FROM $t WHERE name=$x AND owner=$s AND hold_id=$u",
                          *looks > 0 ? " UNION ALL " : "", (uint64_t)i, b->mysql->table, r->name, r->name_len,
                          r->owner, r->hold_id);
        if (sql->is_cut) {
            *sql = before;
            sql->at[sql->len] = '\0';
            break;
        }
        ++*looks;
    }
    return i;
}

/* Those of from to before `to` that have an answer by now. */
static void judge_looks(batch_t *b, size_t from, size_t to, dl_status_t status, uint64_t sent_ns) {
    for (size_t i = from; i < to; i++) {
        dl_renewal_t *r = &b->renewals[i];
        const dli_mysql_session_t *session = r->hold;
        if (session->step == DLI_MYSQL_STEP_LOOK) {
            r->sent_ns = sent_ns;
            if (status == DL_OK && r->status != DL_OK) {
                lose(b, r, DL_LOSS_NOT_OURS);
            } else {
                finish(r, status);
            }
        }
    }
}

static void look(batch_t *b, uint64_t deadline_ns) {
    size_t looks, to;
    for (size_t from = 0; from < b->n; from = to) {
        DLI_MYSQL_SQL(sql);
        to = add_looks(b, from, &sql, &looks);
        if (looks == 0) {
            break;
        }
        dli_mysql_exchange_t exchange = {
            .lane = DLI_MYSQL_CONTROL, .intent = DLI_MYSQL_READ, .deadline_ns = deadline_ns};
        dl_error_t err;
        dl_status_t status =
            dli_mysql_run(b->mysql, &exchange, &sql, "looking for holds like", b->renewals[from].name, &err);
        if (status == DL_OK) {
            MYSQL_ROW row;
            while ((row = dli_mysql_answer_row(&exchange.answer, NULL)) != NULL) {
                uint64_t i = dli_mysql_number(row[0]);
                if (i >= from && i < to) {
                    b->renewals[i].status = DL_OK;
                }
            }
            dli_mysql_answer_free(&exchange.answer);
        }
        judge_looks(b, from, to, status, exchange.sent_ns);
    }
}

/* ---- the batch ----------------------------------------------------------------------------------------- */

static void start(batch_t *b, dl_renewal_t *r) {
    dli_mysql_session_t *session = r->hold;
    dli_mysql_session_begin(b->state, session);
    r->status = DL_EUNKNOWN;
    r->sent_ns = b->mysql->env->now_ns();
    if (session->conn == NULL || session->hold_id != r->hold_id) {
        r->status = DL_ELOST;
        r->loss = DL_LOSS_HANG_UP; /* or it would be there */
    } else if (dli_mysql_conn_is_broken(session->conn)) {
        lose(b, r, DL_LOSS_HANG_UP);
    } else if (r->lease_ms == 0 && r->sent_ns < session->ends_ns) {
        session->step = DLI_MYSQL_STEP_LOOK;
    } else if (dli_mysql_conn_is_asking(session->conn)) {
        session->step = DLI_MYSQL_STEP_EARLIER;
        b->waiting++;
    } else {
        begin(b, r);
    }
}

/* What has no answer by now keeps its connection: the next op on it hears the answer first. */
static void end(batch_t *b) {
    for (size_t i = 0; i < b->n; i++) {
        dli_mysql_session_t *session = b->renewals[i].hold;
        session->step = DLI_MYSQL_STEP_NONE;
        dli_mysql_session_end(b->state, session);
    }
}

static void renew_group(batch_t *b) {
    for (size_t i = 0; i < b->n; i++) {
        start(b, &b->renewals[i]);
    }
    uint64_t now = b->mysql->env->now_ns();
    uint64_t half_ns = b->deadline_ns > now ? now + (b->deadline_ns - now) / 2 : now;
    look(b, b->waiting > 0 ? half_ns : b->deadline_ns);
    while (b->waiting > 0 && await_some(b)) {}
    end(b);
}

void dli_mysql_session_renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    dli_mysql_sessions_t *sessions = state;
    for (size_t done = 0; done < n; done += GROUP_MAX) {
        batch_t b = {.state = sessions,
                     .mysql = &sessions->mysql,
                     .hasty = *sessions->mysql.env,
                     .renewals = renewals + done,
                     .n = n - done < GROUP_MAX ? n - done : GROUP_MAX,
                     .deadline_ns = deadline_ns};
        b.hasty.poll = poll_not;
        renew_group(&b);
    }
}
