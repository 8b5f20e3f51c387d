/* fake_quorum.c - a driver for three independent lease servers, of which a majority decides. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "support/fake_net.h"
#include "support/fake_nodes.h"
#include "support/fakes.h"

#define MAJORITY (FAKE_NODES / 2 + 1)

typedef struct state {
    const dl_driver_env_t *env;
    uint64_t latency_ns;
} state_t;

/* One question to all nodes, and what came back. */
typedef struct round {
    fake_message_t *messages[FAKE_NODES];
    uint64_t sent_ns;
    int yes, no, refused; /* the rest has not answered */
} round_t;

static dl_status_t open_quorum(void *state_, const dl_option_value_t *options, const dl_driver_env_t *env,
                               uint64_t deadline_ns, dl_error_t *err) {
    (void)deadline_ns;
    (void)err;
    state_t *state = state_;
    state->env = env;
    state->latency_ns = (uint64_t)options[FAKE_OPT_LATENCY].number * FAKE_NS_PER_MS;
    return DL_OK;
}

static void close_quorum(void *state, int forked) {
    (void)state;
    (void)forked;
}

/* ---- rounds ------------------------------------------------------------------------------------------- */

static void ask_all(state_t *state, round_t *round, fake_verb_t verb, const char *name, const char *owner,
                    uint64_t hold_id, int64_t lease_ms) {
    memset(round, 0, sizeof *round);
    round->sent_ns = state->env->now_ns();
    for (int i = 0; i < FAKE_NODES; i++) {
        round->messages[i] = fake_node_send(i, verb, name, owner, hold_id, lease_ms, state->env->client_label,
                                            state->latency_ns, round->sent_ns);
    }
    state->env->count(state->env->core, DL_COUNT_ROUND_TRIP, FAKE_NODES);
}

static void let_go(round_t *round) {
    for (int i = 0; i < FAKE_NODES; i++) {
        fake_node_let_go(round->messages[i]);
    }
}

/* Asks all, and waits for nobody. */
static void tell_all(state_t *state, fake_verb_t verb, const dl_request_t *request) {
    round_t round;
    ask_all(state, &round, verb, request->name, request->owner, request->hold_id, request->lease_ms);
    let_go(&round);
}

/* Counts the answers that have come. Returns when the next one may come. */
static uint64_t count_answers(round_t *round, uint64_t now_ns) {
    uint64_t next = DL_NO_DEADLINE;
    for (int i = 0; i < FAKE_NODES; i++) {
        fake_message_t *m = round->messages[i];
        if (m->counted) {
            continue;
        }
        if (fake_node_answered(m, now_ns)) {
            m->counted = 1;
            round->refused += m->refused;
            round->yes += !m->refused && m->reply == DL_OK;
            round->no += !m->refused && m->reply != DL_OK;
        } else if (m->reply_ns < next) {
            next = m->reply_ns;
        }
    }
    return next;
}

static int is_decided(const round_t *round) {
    return round->yes >= MAJORITY || round->no + round->refused >= FAKE_NODES - MAJORITY + 1;
}

/* Waits until a majority has said yes or no longer can, or `all` have answered. DL_OK; DL_ETIMEDOUT,
 * DL_ECANCELED. */
static dl_status_t collect(state_t *state, round_t *round, int all, uint64_t deadline_ns,
                           const dl_stop_t *stop) {
    for (;;) {
        uint64_t next = count_answers(round, state->env->now_ns());
        int answers = round->yes + round->no + round->refused;
        if (all ? answers == FAKE_NODES : is_decided(round)) {
            return DL_OK;
        }
        dl_status_t end = fake_await(state->env, -1, next < deadline_ns ? next : deadline_ns, stop);
        if (end == DL_ECANCELED || state->env->now_ns() >= deadline_ns) {
            (void)count_answers(round, state->env->now_ns());
            return is_decided(round) ? DL_OK : end;
        }
    }
}

/* What an exchange without a majority of yes means. */
static dl_status_t no_majority(const round_t *round, dl_error_t *err) {
    if (round->refused >= FAKE_NODES - MAJORITY + 1 &&
        round->yes + round->no + round->refused == FAKE_NODES) {
        return dl_driver_fail(err, DL_EIO, 0, "%d of %d nodes cannot be reached", round->refused, FAKE_NODES);
    }
    return dl_driver_fail(err, DL_EUNKNOWN, 0, "%d of %d nodes answered", round->yes + round->no, FAKE_NODES);
}

/* ---- ops ----------------------------------------------------------------------------------------------- */

/* The lock can be had once so many of the nodes that said no are free that a majority is. */
static int64_t busy_for(const round_t *round) {
    int64_t longest = -1;
    for (int i = 0; i < FAKE_NODES; i++) {
        const fake_message_t *m = round->messages[i];
        if (m->counted && !m->refused && m->reply == DL_EBUSY && m->busy_ms > longest) {
            longest = m->busy_ms;
        }
    }
    return longest;
}

static dl_status_t acquire(void *state_, void *hold, const dl_request_t *request, dl_grant_t *grant,
                           dl_error_t *err) {
    (void)hold;
    state_t *state = state_;
    round_t round;
    ask_all(state, &round, FAKE_ACQUIRE, request->name, request->owner, request->hold_id, request->lease_ms);
    /* Validity counts from before the first request: that is right for the slowest answer that counts. */
    grant->sent_ns = round.sent_ns;
    grant->session_fd = -1;
    (void)collect(state, &round, 0, request->deadline_ns, &request->stop);
    dl_status_t status = DL_OK;
    if (round.yes < MAJORITY) {
        /* Free all nodes, those that have not answered included: they may have said yes. */
        tell_all(state, FAKE_RELEASE, request);
        if (round.no > 0) {
            grant->busy_ms = busy_for(&round);
            grant->busy_is_dlock = 1;
            status = dl_driver_fail(err, DL_EBUSY, 0, "%s is held", request->name);
        } else {
            status = no_majority(&round, err);
        }
    }
    let_go(&round);
    return status;
}

static dl_status_t release(void *state_, void *hold, const dl_request_t *request, dl_error_t *err) {
    (void)hold;
    state_t *state = state_;
    round_t round;
    dl_status_t status;
    ask_all(state, &round, FAKE_RELEASE, request->name, request->owner, request->hold_id, 0);
    (void)collect(state, &round, 0, request->deadline_ns, &request->stop);
    if (round.yes >= MAJORITY) {
        status = DL_OK;
    } else if (round.no >= MAJORITY) {
        status = dl_driver_fail(err, DL_ELOST, 0, "%s is not held on a majority", request->name);
    } else {
        /* Some have freed it, some cannot say: look again. */
        status = no_majority(&round, err);
    }
    let_go(&round);
    return status;
}

/* Nodes that had lost a lock which the others just confirmed get it again, for the time of this renewal. They
 * did not count in it. */
static void refill(state_t *state, const dl_renewal_t *renewal, const round_t *round, uint64_t sent_ns) {
    uint64_t now = state->env->now_ns();
    uint64_t until = sent_ns + (uint64_t)renewal->lease_ms * FAKE_NS_PER_MS;
    for (int i = 0; i < FAKE_NODES; i++) {
        const fake_message_t *m = round->messages[i];
        if (m->counted && !m->refused && m->reply == DL_ELOST && until > now + FAKE_NS_PER_MS) {
            fake_node_let_go(fake_node_send(i, FAKE_FILL, renewal->name, renewal->owner, renewal->hold_id,
                                            (int64_t)((until - now) / FAKE_NS_PER_MS),
                                            state->env->client_label, state->latency_ns, now));
        }
    }
}

static void renew(void *state_, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    state_t *state = state_;
    dl_error_t err = {.status = DL_OK};
    uint64_t sent_ns = state->env->now_ns();
    round_t *rounds = malloc(n * sizeof *rounds);
    for (size_t i = 0; i < n; i++) {
        renewals[i].sent_ns = sent_ns;
        renewals[i].status = DL_EIO; /* without memory nothing leaves */
    }
    if (rounds == NULL) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        ask_all(state, &rounds[i], FAKE_RENEW, renewals[i].name, renewals[i].owner, renewals[i].hold_id,
                renewals[i].lease_ms);
    }
    for (size_t i = 0; i < n; i++) {
        (void)collect(state, &rounds[i], 0, deadline_ns, NULL);
        if (rounds[i].yes >= MAJORITY) {
            renewals[i].status = DL_OK;
            refill(state, &renewals[i], &rounds[i], sent_ns);
        } else if (rounds[i].no >= MAJORITY) {
            renewals[i].status = DL_ELOST;
        } else {
            renewals[i].status = no_majority(&rounds[i], &err);
        }
        let_go(&rounds[i]);
    }
    free(rounds);
}

/* Held is what a majority says of one and the same hold. */
static int agreed(const round_t *round, dl_lock_info_t *info) {
    for (int i = 0; i < FAKE_NODES; i++) {
        const fake_message_t *a = round->messages[i];
        int same = 0;
        for (int j = 0; j < FAKE_NODES; j++) {
            const fake_message_t *b = round->messages[j];
            same += a->counted && b->counted && a->info.held && b->info.held &&
                    a->info.hold_id == b->info.hold_id && strcmp(a->info.owner, b->info.owner) == 0;
        }
        if (same >= MAJORITY) {
            size_t size = info->size;
            *info = a->info;
            info->size = size;
            return 1;
        }
    }
    return 0;
}

static dl_status_t inspect(void *state_, const char *name, size_t name_len, uint64_t deadline_ns,
                           dl_lock_info_t *info, dl_error_t *err) {
    (void)name_len;
    state_t *state = state_;
    round_t round;
    ask_all(state, &round, FAKE_INSPECT, name, "", 0, 0);
    (void)collect(state, &round, 1, deadline_ns, NULL);
    dl_status_t status = round.yes >= MAJORITY ? DL_OK : no_majority(&round, err);
    if (status == DL_OK) {
        (void)agreed(&round, info);
    }
    let_go(&round);
    return status;
}

static dl_status_t force(void *state_, const char *name, size_t name_len, uint64_t deadline_ns,
                         dl_error_t *err) {
    (void)name_len;
    state_t *state = state_;
    round_t round;
    ask_all(state, &round, FAKE_FORCE, name, "", 0, 0);
    (void)collect(state, &round, 1, deadline_ns, NULL);
    dl_status_t status = DL_OK;
    if (round.yes + round.no < MAJORITY) {
        status = no_majority(&round, err);
    } else if (round.yes == 0) {
        status = dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody holds %s", name);
    }
    let_go(&round);
    return status;
}

/* Lists what node 0 knows, or the next one if that has lost it; one name is reported once, by the first that
 * has it. */
typedef struct listing {
    state_t *state;
    uint64_t deadline_ns;
    int node;
    dl_list_fn fn;
    void *arg;
    int stop;
} listing_t;

static int report_once(void *arg, const char *name, const dl_lock_info_t *seen) {
    listing_t *l = arg;
    (void)seen;
    dl_error_t err = {.status = DL_OK};
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    round_t round;
    ask_all(l->state, &round, FAKE_INSPECT, name, "", 0, 0);
    (void)collect(l->state, &round, 1, l->deadline_ns, NULL);
    int earlier = 0;
    for (int i = 0; i < l->node; i++) {
        earlier = earlier || (round.messages[i]->counted && round.messages[i]->info.held);
    }
    if (!earlier && round.yes >= MAJORITY && agreed(&round, &info)) {
        l->stop = l->fn(l->arg, name, &info);
    }
    let_go(&round);
    (void)err;
    return l->stop;
}

static dl_status_t list(void *state_, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                        uint64_t deadline_ns, dl_error_t *err) {
    (void)err;
    state_t *state = state_;
    listing_t l = {.state = state, .deadline_ns = deadline_ns, .fn = fn, .arg = arg};
    for (l.node = 0; l.node <= FAKE_NODES - MAJORITY && !l.stop; l.node++) {
        fake_nodes_list(l.node, prefix, prefix_len, state->env->now_ns(), report_once, &l);
    }
    return DL_OK;
}

static const dl_driver_t table = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "fake-quorum",
    .summary = "Three in-memory lease servers, of which a majority decides.",
    .caps = DL_CAP_LEASE,
    .state_size = sizeof(state_t),
    .options = fake_options,
    .open = open_quorum,
    .close = close_quorum,
    .try_acquire = acquire,
    .release = release,
    .renew = renew,
    .inspect = inspect,
    .force_release = force,
    .list = list,
};

const dl_driver_t *fake_quorum_driver(void) {
    return &table;
}
