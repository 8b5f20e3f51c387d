/* link.c - opens and closes a link, lends its connections, and runs statements on any of them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "condemned.h"
#include "keeper.h"

#define NS_PER_MS ((uint64_t)1000000)
/* So much of a statement's time, but no more than half, is kept for ending it on the server, which may take a
 * new connection. An answer that comes meanwhile is heard. */
#define ENDING_NS (200 * NS_PER_MS)
#define RESEND_MAX 3

enum {
    READ_ONLY_OPTION = 1290, /* the server runs with --read-only, or the like */
    READ_ONLY_ENGINE = 1836
};

struct dli_mysql_link {
    dl_driver_env_t env;
    dli_mysql_guard_t *guard;
    dli_mysql_condemned_t condemned;
    dli_mysql_pool_t *pool;
    dli_mysql_keeper_t keeper;
};

/* ---- opening and closing ------------------------------------------------------------------------------- */

static dl_status_t open_parts(dli_mysql_link_t *link, dli_mysql_endpoint_t *endpoint,
                              const dli_mysql_pool_options_t *options, dl_error_t *err) {
    dl_status_t status = dli_mysql_library_start(err);
    if (status != DL_OK) {
        return status;
    }
    status = dli_mysql_condemned_init(&link->condemned, err);
    if (status != DL_OK) {
        return status;
    }
    status = dli_mysql_guard_open(&link->env, &link->guard, err);
    if (status == DL_OK) {
        status = dli_mysql_pool_new(endpoint, options, &link->env, link->guard, &link->pool, err);
    }
    if (status == DL_OK) {
        status = dli_mysql_keeper_start(&link->keeper, link->pool, err);
    }
    if (status != DL_OK) {
        if (link->pool != NULL) {
            dli_mysql_pool_close(link->pool, false);
        }
        dli_mysql_guard_close(link->guard, false);
        dli_mysql_condemned_free(&link->condemned, false);
    }
    return status;
}

dl_status_t dli_mysql_link_open(dli_mysql_endpoint_t *endpoint, const dli_mysql_pool_options_t *options,
                                const dl_driver_env_t *env, dli_mysql_link_t **link, dl_error_t *err) {
    *link = NULL;
    dli_mysql_link_t *new_link = calloc(1, sizeof *new_link);
    if (new_link == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    new_link->env = *env;
    dl_status_t status = open_parts(new_link, endpoint, options, err);
    if (status != DL_OK) {
        free(new_link);
        return status;
    }
    *link = new_link;
    return DL_OK;
}

void dli_mysql_link_close(dli_mysql_link_t *link, bool forked) {
    if (link != NULL) {
        dli_mysql_keeper_stop(&link->keeper, forked);
        dli_mysql_pool_close(link->pool, forked);
        dli_mysql_guard_close(link->guard, forked);
        dli_mysql_condemned_free(&link->condemned, forked);
        free(link);
    }
}

void dli_mysql_link_facts(dli_mysql_link_t *link, dli_mysql_facts_t *facts) {
    dli_mysql_pool_facts(link->pool, facts);
}

dli_mysql_guard_t *dli_mysql_link_guard(dli_mysql_link_t *link) {
    return link->guard;
}

/* ---- on a connection that the caller has ------------------------------------------------------------- */

static bool only_reads(const dli_mysql_answer_t *answer) {
    return answer->error == READ_ONLY_OPTION || answer->error == READ_ONLY_ENGINE ||
           answer->error == DLI_MYSQL_OUT_OF_RANGE;
}

/* One statement, and what it says about the other connections. */
static dl_status_t ask(dli_mysql_link_t *link, dli_mysql_member_t *member, const char *sql, size_t len,
                       uint64_t deadline_ns, const dl_stop_t *stop, uint64_t *sent_ns,
                       dli_mysql_answer_t *answer, dl_error_t *err) {
    const dl_driver_env_t *env = &link->env;
    dli_mysql_bounds_t bounds = {env, link->guard, deadline_ns, stop};
    uint64_t began_ns = env->now_ns();
    dl_status_t status = dli_mysql_conn_ask(member->conn, sql, len, &bounds, sent_ns, answer, err);
    uint64_t now_ns = env->now_ns();
    if (status != DL_EIO) {
        env->count(env->core, DL_COUNT_ROUND_TRIP, 1);
    }
    if (status == DL_OK) {
        if (only_reads(answer)) {
            dli_mysql_pool_fail_over(link->pool, member);
        }
    } else if (status == DL_ETIMEDOUT) {
        if (now_ns - began_ns >= DLI_MYSQL_SILENCE_NS) {
            dli_mysql_pool_distrust(link->pool, began_ns);
        }
    } else if (status != DL_ECANCELED) {
        dli_mysql_pool_distrust(link->pool, now_ns);
    }
    return status;
}

static void drop(dli_mysql_link_t *link, dli_mysql_member_t *member, bool is_condemned) {
    if (is_condemned) {
        dli_mysql_condemned_add(&link->condemned, dli_mysql_conn_facts(member->conn), member->began_ns);
    }
    dli_mysql_pool_drop(link->pool, member);
}

static dl_status_t borrow(dli_mysql_link_t *link, dli_mysql_lane_t lane, uint64_t began_ns,
                          uint64_t busy_from_ns, uint64_t deadline_ns, const dl_stop_t *stop,
                          dli_mysql_member_t **member, dl_error_t *err) {
    dl_status_t status =
        dli_mysql_pool_borrow(link->pool, lane, began_ns, busy_from_ns, deadline_ns, stop, member, err);
    if (status == DL_OK) {
        dli_mysql_keeper_wake(&link->keeper);
    }
    return status;
}

dl_status_t dli_mysql_link_borrow(dli_mysql_link_t *link, dli_mysql_lane_t lane, uint64_t began_ns,
                                  uint64_t busy_from_ns, uint64_t deadline_ns, const dl_stop_t *stop,
                                  dli_mysql_conn_t **conn, dl_error_t *err) {
    dli_mysql_member_t *member;
    dl_status_t status = borrow(link, lane, began_ns, busy_from_ns, deadline_ns, stop, &member, err);
    *conn = status == DL_OK ? member->conn : NULL;
    return status;
}

void dli_mysql_link_give_back(dli_mysql_link_t *link, dli_mysql_conn_t *conn) {
    dli_mysql_pool_give_back(link->pool, dli_mysql_conn_owner(conn));
}

void dli_mysql_link_drop(dli_mysql_link_t *link, dli_mysql_conn_t *conn, bool is_condemned) {
    drop(link, dli_mysql_conn_owner(conn), is_condemned);
}

void dli_mysql_link_break(dli_mysql_link_t *link, dli_mysql_conn_t *conn) {
    const dli_mysql_member_t *member = dli_mysql_conn_owner(conn);
    dli_mysql_condemned_add(&link->condemned, dli_mysql_conn_facts(conn), member->began_ns);
    (void)shutdown(dli_mysql_conn_fd(conn), SHUT_RDWR);
}

dl_status_t dli_mysql_link_ask(dli_mysql_link_t *link, dli_mysql_conn_t *conn, const char *sql, size_t len,
                               uint64_t deadline_ns, const dl_stop_t *stop, uint64_t *sent_ns,
                               dli_mysql_answer_t *answer, dl_error_t *err) {
    return ask(link, dli_mysql_conn_owner(conn), sql, len, deadline_ns, stop, sent_ns, answer, err);
}

dl_status_t dli_mysql_link_roll_back(dli_mysql_link_t *link, dli_mysql_conn_t *conn, uint64_t deadline_ns,
                                     const dl_stop_t *stop, dl_error_t *err) {
    dli_mysql_answer_t answer = {0};
    dl_status_t status = dli_mysql_link_ask(link, conn, "ROLLBACK", 8, deadline_ns, stop, NULL, &answer, err);
    if (status == DL_ECANCELED) {
        uint64_t soon_ns = link->env.now_ns() + DLI_MYSQL_CALLING_OFF_NS;
        dli_mysql_bounds_t bounds = {&link->env, link->guard, dli_mysql_earlier(soon_ns, deadline_ns), NULL};
        status = dli_mysql_conn_resume(conn, &bounds, &answer, err);
    }
    if (answer.error != 0) {
        status = dl_driver_fail(err, DL_EUNKNOWN, (int)answer.error, "ROLLBACK: %s", answer.message);
    }
    dli_mysql_answer_free(&answer);
    return status;
}

/* ---- the control lane ---------------------------------------------------------------------------------- */

/* Do the numbers that connections have here say anything to KILL? */
static bool may_kill(dli_mysql_link_t *link) {
    dli_mysql_facts_t facts;
    dli_mysql_pool_facts(link->pool, &facts);
    return facts.connection_id != 0;
}

/* What it was asked on this lane since began_ns has been answered, or it is of no use, and says so of others.
 */
static void return_control(dli_mysql_link_t *link, dli_mysql_member_t *control, uint64_t began_ns) {
    const uint64_t now_ns = link->env.now_ns();
    bool is_broken = dli_mysql_conn_is_broken(control->conn);
    if (!is_broken && !dli_mysql_conn_is_asking(control->conn)) {
        dli_mysql_pool_give_back(link->pool, control);
        return;
    }
    if (is_broken || now_ns - began_ns >= DLI_MYSQL_SILENCE_NS) {
        dli_mysql_pool_distrust(link->pool, is_broken ? now_ns : began_ns);
    }
    drop(link, control, false);
}

/* KILL QUERY or KILL CONNECTION to what had this number at a server with this identity at began_ns. *is_same:
 * nothing speaks against its being this one, in this run. DL_EIO: nothing was sent. */
static dl_status_t say_kill(dli_mysql_link_t *link, dli_mysql_member_t *control, const char *what,
                            uint64_t id, const char *identity, int64_t began_ns, uint64_t deadline_ns,
                            const dl_stop_t *stop, bool *is_same, dl_error_t *err) {
    dli_mysql_witness_t witness = {.conn = control->conn, .up_since_ns = (int64_t)control->ready_ns};
    dli_mysql_bounds_t bounds = {&link->env, link->guard, deadline_ns, stop};
    dli_mysql_answer_t answer;
    bool is_sent;
    dl_status_t status =
        dli_mysql_witness_kill(&witness, what, id, identity, began_ns, &bounds, &is_sent, &answer, err);
    *is_same = is_sent || status != DL_OK;
    if (!*is_same) {
        return dl_driver_fail(err, DL_EIO, 0,
                              "what is to be ended may run on another server, or in an earlier run");
    }
    if (status != DL_OK) {
        return err->status = !is_sent || status == DL_EIO ? DL_EIO : DL_EUNKNOWN;
    }
    if (answer.error == DLI_MYSQL_NOT_YOURS) {
        status = dl_driver_fail(
            err, DL_EAUTH, (int)answer.error,
            "killing the holder's connection, which is another account's, needs the right CONNECTION "
            "ADMIN (MySQL: CONNECTION_ADMIN): %s",
            answer.message);
    } else if (answer.error != 0 && answer.error != DLI_MYSQL_NO_SUCH_THREAD) { /* which runs nothing */
        status = dli_mysql_refused(answer.error, answer.message, "KILL", err);
    }
    dli_mysql_answer_free(&answer);
    return status;
}

static dl_status_t kill_nobody(dl_error_t *err) {
    return dl_driver_fail(err, DL_ENOTSUP, 0, "nothing can be killed: " DLI_MYSQL_RENUMBERED);
}

dl_status_t dli_mysql_link_kill_query(dli_mysql_link_t *link, const dli_mysql_conn_t *conn,
                                      uint64_t deadline_ns, dl_error_t *err) {
    const dli_mysql_facts_t *facts = dli_mysql_conn_facts(conn);
    const dli_mysql_member_t *target = dli_mysql_conn_owner(conn);
    dli_mysql_member_t *control;
    bool is_same;
    if (facts->connection_id == 0 || !may_kill(link)) {
        return kill_nobody(err);
    }
    dl_status_t status =
        borrow(link, DLI_MYSQL_CONTROL, link->env.now_ns(), DL_NO_DEADLINE, deadline_ns, NULL, &control, err);
    if (status != DL_OK) {
        return err->status = DL_EIO;
    }
    const uint64_t asked_ns = link->env.now_ns();
    status = say_kill(link, control, "QUERY", facts->connection_id, facts->identity,
                      (int64_t)target->began_ns, deadline_ns, NULL, &is_same, err);
    return_control(link, control, asked_ns);
    return status;
}

bool dli_mysql_link_call_off(dli_mysql_link_t *link, dli_mysql_conn_t *conn, uint64_t hear_until_ns,
                             uint64_t end_until_ns, dli_mysql_answer_t *answer, bool *is_in_doubt) {
    dli_mysql_bounds_t bounds = {&link->env, link->guard, hear_until_ns, NULL};
    dl_error_t err;
    dl_status_t status =
        hear_until_ns > 0 ? dli_mysql_conn_resume(conn, &bounds, answer, &err) : DL_ETIMEDOUT;
    *is_in_doubt = false;
    if (status == DL_ETIMEDOUT && end_until_ns > 0) {
        bounds.deadline_ns = end_until_ns;
        *is_in_doubt = dli_mysql_link_kill_query(link, conn, end_until_ns, &err) == DL_EUNKNOWN;
        status = dli_mysql_conn_resume(conn, &bounds, answer, &err);
    }
    return status == DL_OK;
}

dl_status_t dli_mysql_link_kill_there(dli_mysql_link_t *link, dli_mysql_conn_t *conn, uint64_t id,
                                      int64_t began_ns, uint64_t deadline_ns, const dl_stop_t *stop,
                                      bool *is_same, dl_error_t *err) {
    dli_mysql_member_t *control = dli_mysql_conn_owner(conn);
    const uint64_t asked_ns = link->env.now_ns();
    *is_same = true;
    dl_status_t status = may_kill(link)
                             ? say_kill(link, control, "CONNECTION", id, dli_mysql_conn_facts(conn)->identity,
                                        began_ns, deadline_ns, stop, is_same, err)
                             : kill_nobody(err);
    return_control(link, control, asked_ns);
    return status;
}

void dli_mysql_link_settle(dli_mysql_link_t *link, uint64_t deadline_ns, const dl_stop_t *stop) {
    dli_mysql_member_t *control;
    dl_error_t err;
    if (atomic_load(&link->condemned.count) > 0 &&
        borrow(link, DLI_MYSQL_CONTROL, link->env.now_ns(), DL_NO_DEADLINE, deadline_ns, stop, &control,
               &err) == DL_OK) {
        const dli_mysql_bounds_t bounds = {&link->env, link->guard, deadline_ns, stop};
        const uint64_t asked_ns = link->env.now_ns();
        if (may_kill(link)) {
            (void)dli_mysql_condemned_kill(&link->condemned, control->conn, control->ready_ns, &bounds, &err);
        } else {
            dli_mysql_condemned_spare(&link->condemned);
        }
        return_control(link, control, asked_ns);
    }
    dli_mysql_condemned_tell(&link->condemned, &link->env);
}

/* ---- one statement on any connection ----------------------------------------------------------------- */

/* Until when is an answer awaited? */
static uint64_t waits_until(const dli_mysql_exchange_t *x, uint64_t now_ns) {
    uint64_t half_ns = (x->deadline_ns - now_ns) / 2;
    return x->deadline_ns - (x->may_be_ended ? dli_mysql_earlier(half_ns, ENDING_NS) : 0);
}

/* The answer is there. */
static void part_with(dli_mysql_link_t *link, const dli_mysql_exchange_t *x, dli_mysql_member_t *member) {
    if (x->kept == NULL) {
        dli_mysql_pool_give_back(link->pool, member);
    } else {
        *x->kept = member->conn;
    }
}

/* true: the answer is there after all. */
static bool hear_last_word(dli_mysql_link_t *link, dli_mysql_exchange_t *x, const dli_mysql_member_t *member,
                           dl_status_t why, bool *is_in_doubt) {
    const bool is_stopped = why == DL_ECANCELED;
    const uint64_t now = link->env.now_ns();
    const uint64_t end_ns = is_stopped ? now + DLI_MYSQL_CALLING_OFF_NS : x->deadline_ns;
    bool is_heard = dli_mysql_link_call_off(
        link, member->conn, is_stopped ? dli_mysql_earlier(now + DLI_MYSQL_LAST_WORD_NS, x->deadline_ns) : 0,
        x->may_be_ended ? dli_mysql_earlier(end_ns, x->deadline_ns) : 0, &x->answer, is_in_doubt);
    x->was_ended = is_heard && x->may_be_ended && x->answer.error == DLI_MYSQL_INTERRUPTED;
    return is_heard;
}

/* Its time is over, or it is wanted no more, and it is on its way. */
static dl_status_t give_up(dli_mysql_link_t *link, dli_mysql_exchange_t *x, dli_mysql_member_t *member,
                           dl_status_t why, dl_error_t *err) {
    bool is_in_doubt;
    if (hear_last_word(link, x, member, why, &is_in_doubt)) {
        if (is_in_doubt) {
            drop(link, member, false);
        } else {
            part_with(link, x, member);
        }
        return DL_OK;
    }
    drop(link, member, x->intent == DLI_MYSQL_CLAIM);
    if (x->intent == DLI_MYSQL_READ) {
        err->status = why == DL_ECANCELED ? DL_ECANCELED : DL_EIO;
    } else {
        err->status = DL_EUNKNOWN;
    }
    return err->status;
}

/* The connection broke. */
static dl_status_t lose(dli_mysql_link_t *link, const dli_mysql_exchange_t *x, dli_mysql_member_t *member,
                        dl_status_t status, dl_error_t *err) {
    drop(link, member, status != DL_EIO && x->intent == DLI_MYSQL_CLAIM);
    if (x->intent != DLI_MYSQL_READ && status == DL_EPROTO) {
        err->status = DL_EUNKNOWN; /* whatever came instead of the answer */
    } else if (x->intent == DLI_MYSQL_READ && status == DL_EUNKNOWN) {
        err->status = DL_EIO;
    }
    return err->status;
}

/* On this connection. *again: it broke before it was of any use, and another may do better. */
static dl_status_t run_on(dli_mysql_link_t *link, dli_mysql_exchange_t *x, dli_mysql_member_t *member,
                          bool *again, dl_error_t *err) {
    bool was_fresh = member->is_fresh;
    *again = false;
    for (int sent = 0;; sent++) {
        uint64_t now = link->env.now_ns();
        if (now >= x->deadline_ns) {
            dli_mysql_pool_put_back(link->pool, member);
            return dl_driver_fail(err, DL_EIO, 0, "no time is left to send a statement");
        }
        dl_status_t status =
            ask(link, member, x->sql, x->len, waits_until(x, now), x->stop, &x->sent_ns, &x->answer, err);
        if (status == DL_ETIMEDOUT || status == DL_ECANCELED) {
            return give_up(link, x, member, status, err);
        }
        if (status != DL_OK) {
            status = lose(link, x, member, status, err);
            *again = status == DL_EIO && !was_fresh;
            return status;
        }
        if (x->answer.error != DLI_MYSQL_DEADLOCK || sent == RESEND_MAX) {
            part_with(link, x, member);
            return DL_OK;
        }
        dli_mysql_answer_free(&x->answer);
    }
}

dl_status_t dli_mysql_link_run(dli_mysql_link_t *link, dli_mysql_exchange_t *x, dl_error_t *err) {
    uint64_t began_ns = link->env.now_ns();
    x->sent_ns = 0;
    x->was_ended = false;
    x->answer = (dli_mysql_answer_t){0};
    if (x->kept != NULL) {
        *x->kept = NULL;
    }
    if (x->intent == DLI_MYSQL_FREE && x->deadline_ns > began_ns) {
        dli_mysql_link_settle(link, began_ns + (x->deadline_ns - began_ns) / 2, x->stop);
    }
    for (;;) {
        dli_mysql_member_t *member;
        bool again;
        dl_status_t status =
            borrow(link, x->lane, began_ns, DL_NO_DEADLINE, x->deadline_ns, x->stop, &member, err);
        if (status != DL_OK) {
            return status;
        }
        status = run_on(link, x, member, &again, err);
        if (!again) {
            return status;
        }
    }
}
