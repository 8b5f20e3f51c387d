/* condemned.c - connections given up with a claim on its way, which have to be killed on the server. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "condemned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_MS ((uint64_t)1000000)
#define NS_PER_S ((uint64_t)1000000000)
#define PAUSE_FIRST_NS NS_PER_MS
#define PAUSE_MAX_NS (16 * NS_PER_MS)

dl_status_t dli_mysql_condemned_init(dli_mysql_condemned_t *condemned, dl_error_t *err) {
    memset(condemned, 0, sizeof *condemned);
    condemned->doomed = calloc(DLI_MYSQL_CONDEMNED_MAX, sizeof *condemned->doomed);
    if (condemned->doomed == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    pthread_mutex_init(&condemned->mutex, NULL);
    return DL_OK;
}

void dli_mysql_condemned_free(dli_mysql_condemned_t *condemned, bool forked) {
    free(condemned->doomed);
    if (!forked) {
        pthread_mutex_destroy(&condemned->mutex);
    }
}

/* With the mutex held. */
static void remove_at(dli_mysql_condemned_t *condemned, size_t at) {
    size_t behind = condemned->count - at - 1;
    memmove(&condemned->doomed[at], &condemned->doomed[at + 1], behind * sizeof condemned->doomed[0]);
    condemned->count--;
}

/* Nothing can be killed; said once. */
static void note_refusal(dli_mysql_condemned_t *condemned, const dl_driver_env_t *env, const char *who,
                         const char *why) {
    pthread_mutex_lock(&condemned->mutex);
    bool is_news = !condemned->was_refused;
    condemned->was_refused = true;
    pthread_mutex_unlock(&condemned->mutex);
    if (is_news) {
        char text[512];
        snprintf(text, sizeof text,
                 "%s may not kill its connections; a claim that was given up can still be carried out after "
                 "its release, and then lasts until its lease ends: %s",
                 who, why);
        env->report(env->core, DL_LOG_WARNING, text);
    }
}

void dli_mysql_condemned_tell(dli_mysql_condemned_t *condemned, const dl_driver_env_t *env) {
    if (atomic_load(&condemned->has_unnumbered)) {
        atomic_store(&condemned->has_unnumbered, false);
        note_refusal(condemned, env, "this client", DLI_MYSQL_RENUMBERED);
    }
}

void dli_mysql_condemned_add(dli_mysql_condemned_t *condemned, const dli_mysql_facts_t *facts,
                             uint64_t began_ns) {
    if (facts->connection_id == 0) {
        atomic_store(&condemned->has_unnumbered, true);
        return;
    }
    pthread_mutex_lock(&condemned->mutex);
    if (condemned->count == DLI_MYSQL_CONDEMNED_MAX) {
        remove_at(condemned, 0);
    }
    dli_mysql_doomed_t *doomed = &condemned->doomed[condemned->count];
    doomed->id = facts->connection_id;
    doomed->began_ns = began_ns;
    doomed->serial = ++condemned->serial;
    doomed->until_ns = 0;
    memcpy(doomed->identity, facts->identity, sizeof doomed->identity);
    condemned->count++;
    pthread_mutex_unlock(&condemned->mutex);
}

void dli_mysql_condemned_spare(dli_mysql_condemned_t *condemned) {
    pthread_mutex_lock(&condemned->mutex);
    if (condemned->count > 0) {
        condemned->count = 0;
        atomic_store(&condemned->has_unnumbered, true);
    }
    pthread_mutex_unlock(&condemned->mutex);
}

/* A copy of the first behind `serial`. false: there is none. */
static bool next_behind(dli_mysql_condemned_t *condemned, uint64_t serial, dli_mysql_doomed_t *doomed) {
    pthread_mutex_lock(&condemned->mutex);
    size_t at = 0;
    while (at < condemned->count && condemned->doomed[at].serial <= serial) {
        at++;
    }
    bool is_there = at < condemned->count;
    if (is_there) {
        *doomed = condemned->doomed[at];
    }
    pthread_mutex_unlock(&condemned->mutex);
    return is_there;
}

static void forget(dli_mysql_condemned_t *condemned, uint64_t serial) {
    pthread_mutex_lock(&condemned->mutex);
    for (size_t at = 0; at < condemned->count; at++) {
        if (condemned->doomed[at].serial == serial) {
            remove_at(condemned, at);
            break;
        }
    }
    pthread_mutex_unlock(&condemned->mutex);
}

/* ---- whose number is it? ------------------------------------------------------------------------------- */

static dl_status_t ask(dli_mysql_conn_t *conn, const char *sql, const dli_mysql_bounds_t *bounds,
                       dli_mysql_answer_t *answer, dl_error_t *err) {
    *answer = (dli_mysql_answer_t){0};
    dl_status_t status = dli_mysql_conn_ask(conn, sql, strlen(sql), bounds, NULL, answer, err);
    if (status != DL_EIO) {
        bounds->env->count(bounds->env->core, DL_COUNT_ROUND_TRIP, 1);
    }
    return status;
}

/* The server counts whole seconds, with both ends cut: it may say almost one too many. Where its clock was
 * set back behind its start they are less than none, and say nothing. */
static dl_status_t ask_uptime(dli_mysql_witness_t *witness, const dli_mysql_bounds_t *bounds,
                              dl_error_t *err) {
    dli_mysql_answer_t answer;
    dl_status_t status = ask(witness->conn, "SHOW GLOBAL STATUS LIKE 'Uptime'", bounds, &answer, err);
    uint64_t now_ns = bounds->env->now_ns();
    int64_t uptime_s = (int64_t)dli_mysql_number(dli_mysql_value(answer.rows, "Uptime"));
    dli_mysql_answer_free(&answer);
    if (status == DL_OK) {
        int64_t since_ns = (int64_t)(now_ns - (uint64_t)(uptime_s - 1) * NS_PER_S);
        witness->up_since_ns = since_ns < witness->up_since_ns ? since_ns : witness->up_since_ns;
    }
    witness->asked_uptime = true;
    return status;
}

dl_status_t dli_mysql_witness_kill(dli_mysql_witness_t *witness, const char *what, uint64_t id,
                                   const char *identity, int64_t began_ns, const dli_mysql_bounds_t *bounds,
                                   bool *is_sent, dli_mysql_answer_t *answer, dl_error_t *err) {
    bool is_here = strcmp(identity, dli_mysql_conn_facts(witness->conn)->identity) == 0;
    dl_status_t status = DL_OK;
    char sql[48];
    *answer = (dli_mysql_answer_t){0};
    if (is_here && began_ns <= witness->up_since_ns && !witness->asked_uptime) {
        status = ask_uptime(witness, bounds, err);
    }
    *is_sent = is_here && began_ns > witness->up_since_ns;
    if (*is_sent) {
        (void)snprintf(sql, sizeof sql, "KILL %s %llu", what, (unsigned long long)id);
        status = ask(witness->conn, sql, bounds, answer, err);
    }
    return status;
}

/* ---- killing ------------------------------------------------------------------------------------------- */

typedef struct killer {
    dli_mysql_condemned_t *condemned;
    dli_mysql_witness_t witness;
    const dli_mysql_bounds_t *bounds;
    dl_error_t *err;
} killer_t;

/* It was killed. false: so long ago that it is waited for no more. */
static bool is_awaited(const killer_t *killer, uint64_t serial) {
    dli_mysql_condemned_t *condemned = killer->condemned;
    uint64_t now_ns = killer->bounds->env->now_ns();
    bool is_awaited = true;
    pthread_mutex_lock(&condemned->mutex);
    for (size_t at = 0; at < condemned->count; at++) {
        dli_mysql_doomed_t *doomed = &condemned->doomed[at];
        if (doomed->serial == serial && doomed->until_ns == 0) {
            doomed->until_ns = now_ns + DLI_MYSQL_DYING_NS;
        } else if (doomed->serial == serial) {
            is_awaited = now_ns < doomed->until_ns;
        }
    }
    pthread_mutex_unlock(&condemned->mutex);
    return is_awaited;
}

/* One word with the server about one of them. *is_gone: it is off the list. */
static dl_status_t kill_one(killer_t *killer, const dli_mysql_doomed_t *doomed, bool *is_gone) {
    bool is_sent;
    dli_mysql_answer_t answer;
    dl_status_t status =
        dli_mysql_witness_kill(&killer->witness, "CONNECTION", doomed->id, doomed->identity,
                               (int64_t)doomed->began_ns, killer->bounds, &is_sent, &answer, killer->err);
    *is_gone = status == DL_OK && (!is_sent || answer.error != 0 || !is_awaited(killer, doomed->serial));
    if (*is_gone) {
        if (answer.error != 0 && answer.error != DLI_MYSQL_NO_SUCH_THREAD) {
            note_refusal(killer->condemned, killer->bounds->env, "this account", answer.message);
        }
        forget(killer->condemned, doomed->serial);
    }
    dli_mysql_answer_free(&answer);
    return status;
}

/* *left: so many were killed and may not be gone yet. */
static dl_status_t kill_each(killer_t *killer, size_t *left) {
    dli_mysql_doomed_t doomed = {0};
    *left = 0;
    while (next_behind(killer->condemned, doomed.serial, &doomed)) {
        bool is_gone;
        dl_status_t status = kill_one(killer, &doomed, &is_gone);
        if (status != DL_OK) {
            return status;
        }
        *left += !is_gone;
    }
    return DL_OK;
}

/* A killed connection ends by itself, and tells nobody. */
static dl_status_t pause_a_little(const killer_t *killer, uint64_t pause_ns) {
    const dli_mysql_bounds_t *bounds = killer->bounds;
    struct pollfd fds[2] = {{.fd = -1}, {.fd = -1}};
    uint64_t now_ns = bounds->env->now_ns();
    if (now_ns >= bounds->deadline_ns) {
        return dl_driver_fail(killer->err, DL_ETIMEDOUT, 0, "connections that were killed are still there");
    }
    uint64_t left_ns = bounds->deadline_ns - now_ns;
    for (int i = 0; i < 2 && bounds->stop != NULL; i++) {
        fds[i] = (struct pollfd){.fd = bounds->stop->fd[i], .events = POLLIN};
    }
    int ready = bounds->env->poll(fds, 2, now_ns + (pause_ns < left_ns ? pause_ns : left_ns));
    return ready == 0 ? DL_OK : dl_driver_fail(killer->err, DL_ECANCELED, 0, "cancelled");
}

dl_status_t dli_mysql_condemned_kill(dli_mysql_condemned_t *condemned, dli_mysql_conn_t *conn,
                                     uint64_t ready_ns, const dli_mysql_bounds_t *bounds, dl_error_t *err) {
    killer_t killer = {.condemned = condemned,
                       .witness = {.conn = conn, .up_since_ns = (int64_t)ready_ns},
                       .bounds = bounds,
                       .err = err};
    size_t left = 0;
    dl_status_t status = kill_each(&killer, &left);
    for (uint64_t pause_ns = PAUSE_FIRST_NS; status == DL_OK && left > 0;) {
        status = pause_a_little(&killer, pause_ns);
        pause_ns = pause_ns < PAUSE_MAX_NS ? 2 * pause_ns : PAUSE_MAX_NS;
        if (status == DL_OK) {
            status = kill_each(&killer, &left);
        }
    }
    return status;
}
