/* fault_check.c - does the core keep its side of driver.h? A breach fails the case. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "core/sys.h"
#include "support/ct.h"
#include "support/fault.h"
#include "support/sim.h"

#define HOLD_USED 0x484f4c44u
#define HOLD_DROPPED 0x44524f50u
/* A call may ask for some time beyond call_timeout and its wait: the 100 ms that every call may be late. */
#define GRACE_NS (100u * (uint64_t)DLI_NS_PER_MS)
/* How many old calls a new one is compared with; and entries of a batch with each other. */
#define LOOK_BACK 256
#define BATCH_LOOK 200

/* Guards the counters of all states and holds. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define BREACH(...)                                                  \
    do {                                                             \
        ct_t *ct = ct_current();                                     \
        CT_FAIL("the core broke the driver contract: " __VA_ARGS__); \
    } while (0)

void fault_check_op(fault_state_t *state, int begins) {
    pthread_mutex_lock(&mutex);
    int closed = state->closed;
    state->ops += begins ? 1 : -1;
    pthread_mutex_unlock(&mutex);
    if (begins && closed) {
        BREACH("an op after close");
    }
}

static void check_deadline(const fault_state_t *state, uint64_t deadline_ns, int64_t wait_ms) {
    uint64_t now = dli_sys->now_ns();
    uint64_t longest = ((uint64_t)state->env->call_timeout_ms + (uint64_t)wait_ms) * DLI_NS_PER_MS + GRACE_NS;
    if (deadline_ns > now && deadline_ns - now > longest) {
        BREACH("a deadline %llu ms away", (unsigned long long)((deadline_ns - now) / DLI_NS_PER_MS));
    }
    /* On real time a thread may have been delayed between its arithmetic and this line; or the machine slept.
     */
    if (sim_active() && deadline_ns + sim_slept_ns() < now) {
        BREACH("a deadline that is over");
    }
}

typedef struct look {
    const fault_run_t *run;
    int left;
    int bad;
} look_t;

/* The last attempt of this owner at this name must not have had a larger id. */
static int look_at_id(const ct_call_t *old, void *arg) {
    look_t *look = arg;
    const ct_call_t *call = &look->run->call;
    if (old->op == CT_OP_TRY && old->level == 1 && old->client == call->client &&
        strcmp(old->name, call->name) == 0 && strcmp(old->owner, call->owner) == 0) {
        look->bad = old->hold_id > call->hold_id;
        return 1;
    }
    /* An id belongs to one owner and one name. */
    if (old->client == call->client && old->hold_id == call->hold_id && old->op == CT_OP_TRY) {
        look->bad = 1;
        return 1;
    }
    return --look->left <= 0;
}

void fault_check_request(const fault_run_t *run, const dl_request_t *request) {
    const ct_call_t *call = &run->call;
    uint32_t caps = fault_inner->caps;
    if (request->name_len == 0 || request->name_len > DL_NAME_MAX ||
        strlen(request->name) != request->name_len) {
        BREACH("a name of %zu bytes", request->name_len);
    }
    if (strlen(request->owner) == 0 || strlen(request->owner) > DL_OWNER_MAX ||
        strspn(request->owner, "0123456789abcdefghijklmnopqrstuvwxyz:-") != strlen(request->owner)) {
        BREACH("the owner '%s'", request->owner);
    }
    if (request->hold_id == 0) {
        BREACH("the hold id 0");
    }
    if (call->op == CT_OP_TRY &&
        (request->level == 0 || (request->level > 1 && !(caps & DL_CAP_SERVER_COUNT)))) {
        BREACH("try_acquire for level %u", request->level);
    }
    if (call->op == CT_OP_TRY && request->level == 1 && request->tokens == 0) {
        BREACH("an acquire that may use no token");
    }
    if (call->op == CT_OP_RELEASE && request->level > 0 && !(caps & DL_CAP_SERVER_COUNT)) {
        BREACH("release to level %u", request->level);
    }
    if (request->wait_ms < 0 || (request->wait_ms > 0 && !(caps & DL_CAP_NATIVE_WAIT))) {
        BREACH("wait_ms is %lld", (long long)request->wait_ms);
    }
    /* A ping of a connection need not extend anything. */
    int shortest = call->op == CT_OP_RENEW && (caps & DL_CAP_SESSION) ? 0 : 1;
    if (call->op != CT_OP_RELEASE && request->lease_ms < shortest) {
        BREACH("a lease of %lld ms", (long long)request->lease_ms);
    }
    check_deadline(run->state, request->deadline_ns, request->wait_ms);
    if (call->op == CT_OP_TRY && request->level == 1) {
        look_t look = {.run = run, .left = LOOK_BACK};
        fault_each_record(look_at_id, &look);
        if (look.bad) {
            BREACH("hold id %llu for '%s' does not rise", (unsigned long long)request->hold_id, call->name);
        }
    }
}

void fault_check_batch(const fault_state_t *state, const dl_renewal_t *renewals, size_t n,
                       uint64_t deadline_ns) {
    check_deadline(state, deadline_ns, 0);
    if (n == 0) {
        BREACH("an empty batch");
    }
    size_t looked = n < BATCH_LOOK ? n : BATCH_LOOK;
    for (size_t i = 0; i < looked; i++) {
        for (size_t j = 0; j < i; j++) {
            if (renewals[i].name_len == renewals[j].name_len &&
                memcmp(renewals[i].name, renewals[j].name, renewals[i].name_len) == 0) {
                BREACH("two renewals of '%s' in one batch", renewals[i].name);
            }
        }
    }
}

/* ---- holds of SESSION drivers -------------------------------------------------------------------------- */

/* Where holds end by leases, a renewal may cross a release. */
static bool is_of_session(void) {
    return (fault_inner->caps & DL_CAP_SESSION) != 0;
}

void fault_check_hold_begin(fault_state_t *state, void *hold_) {
    fault_hold_t *hold = hold_;
    if (hold == NULL) {
        if (fault_inner->hold_size != 0) {
            BREACH("no hold where the driver has a hold_size");
        }
        return;
    }
    if (!is_of_session()) {
        return;
    }
    pthread_mutex_lock(&mutex);
    uint32_t magic = hold->magic;
    if (magic == 0) {
        hold->magic = HOLD_USED;
        state->holds++;
    }
    int at_once = hold->ops++;
    pthread_mutex_unlock(&mutex);
    if (magic == HOLD_DROPPED) {
        BREACH("an op on a hold that was dropped");
    }
    if (magic != 0 && magic != HOLD_USED) {
        BREACH("a hold that was not zeroed");
    }
    if (at_once != 0) {
        BREACH("two ops at once on one hold");
    }
}

void fault_check_hold_end(void *hold_) {
    fault_hold_t *hold = hold_;
    if (hold == NULL || !is_of_session()) {
        return;
    }
    pthread_mutex_lock(&mutex);
    hold->ops--;
    pthread_mutex_unlock(&mutex);
}

void fault_check_drop(fault_state_t *state, void *hold_) {
    fault_hold_t *hold = hold_;
    if (!is_of_session()) {
        return;
    }
    pthread_mutex_lock(&mutex);
    uint32_t magic = hold->magic;
    int ops = hold->ops;
    state->holds -= magic == HOLD_USED;
    hold->magic = HOLD_DROPPED;
    pthread_mutex_unlock(&mutex);
    if (magic == HOLD_DROPPED) {
        BREACH("a hold was dropped twice");
    }
    if (ops != 0) {
        BREACH("a hold was dropped while an op used it");
    }
}

/* ---- watches ------------------------------------------------------------------------------------------- */

void fault_check_watch(fault_state_t *state, dl_watch_t *watch) {
    int twice = 0;
    pthread_mutex_lock(&mutex);
    for (const dl_watch_t *w = state->watches; w != NULL; w = w->next) {
        twice = twice || (w->name_len == watch->name_len && memcmp(w->name, watch->name, w->name_len) == 0);
    }
    watch->next = state->watches;
    state->watches = watch;
    pthread_mutex_unlock(&mutex);
    if (twice) {
        BREACH("two watches of '%s' at once", watch->name);
    }
}

void fault_check_unwatch(fault_state_t *state, dl_watch_t *watch) {
    pthread_mutex_lock(&mutex);
    dl_watch_t **at = &state->watches;
    while (*at != NULL && *at != watch) {
        at = &(*at)->next;
    }
    int found = *at == watch;
    if (found) {
        *at = watch->next;
    }
    pthread_mutex_unlock(&mutex);
    if (!found) {
        BREACH("the end of a watch that is none");
    }
}

/* One that has not come back for so long may have been replaced: by a caller whose reply is due, too, where
 * listening brings replies. */
static uint64_t late_ns(const fault_state_t *state) {
    return (state->twin.core.core != NULL ? 10u : 1000u) * (uint64_t)DLI_NS_PER_MS;
}

void fault_check_listen(fault_state_t *state, size_t max) {
    pthread_mutex_lock(&mutex);
    int replaced = state->listens;
    int late = replaced && dli_sys->now_ns() >= state->listening.call.begin_ns + late_ns(state);
    state->listens = 1;
    state->listener = pthread_self();
    pthread_mutex_unlock(&mutex);
    if (late) {
        fault_check_op(state, 0);
    } else if (replaced) {
        BREACH("two threads between listen_fds and listen");
    }
    if (max < DL_LISTEN_MAX) {
        BREACH("listen_fds has room for %zu descriptors", max);
    }
}

void fault_check_left(fault_state_t *state) {
    pthread_mutex_lock(&mutex);
    int left = state->listens && pthread_equal(state->listener, pthread_self());
    state->listens &= !left;
    pthread_mutex_unlock(&mutex);
    if (left) {
        fault_check_op(state, 0);
    }
}

void fault_check_listened(fault_state_t *state) {
    pthread_mutex_lock(&mutex);
    int asked = state->listens && pthread_equal(state->listener, pthread_self());
    state->listens = 0;
    pthread_mutex_unlock(&mutex);
    if (!asked) {
        BREACH("listen in a thread that has not asked listen_fds");
    }
}

/* ---- at the end of a client ---------------------------------------------------------------------------- */

typedef struct endings {
    const fault_state_t *state;
    ct_call_t freed[LOOK_BACK];
    int count, left;
    ct_call_t missing;
    int any_missing;
} endings_t;

static int look_at_endings(const ct_call_t *call, void *arg) {
    endings_t *e = arg;
    if (call->client != e->state->client || call->hold_id == 0) {
        return --e->left <= 0;
    }
    int ends = (call->op == CT_OP_RELEASE && (call->level == 0 || call->status == DL_ELOST)) ||
               (call->op == CT_OP_RENEW && call->status == DL_ELOST) ||
               (call->op == CT_OP_TRY && call->level > 1 && call->status == DL_ELOST);
    if (ends && e->count < LOOK_BACK) {
        e->freed[e->count++] = *call;
    }
    if (call->op == CT_OP_TRY && call->level == 1 && (call->status == DL_OK || call->status == DL_EUNKNOWN)) {
        int found = 0;
        for (int i = 0; i < e->count && !found; i++) {
            found = e->freed[i].hold_id == call->hold_id;
        }
        if (!found && !e->any_missing) {
            e->any_missing = 1;
            e->missing = *call;
        }
    }
    return --e->left <= 0;
}

static void check_endings(const fault_state_t *state) {
    static endings_t e; /* large; guarded by the fact that it is zeroed under the mutex */
    static pthread_mutex_t endings_mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&endings_mutex);
    memset(&e, 0, sizeof e);
    e.state = state;
    e.left = LOOK_BACK;
    fault_each_record(look_at_endings, &e);
    int missing = e.any_missing;
    ct_call_t call = e.missing;
    pthread_mutex_unlock(&endings_mutex);
    if (missing) {
        BREACH("hold %llu of '%s' was %s, and never released", (unsigned long long)call.hold_id, call.name,
               call.status == DL_OK ? "granted" : "unknown");
    }
}

void fault_check_close(fault_state_t *state, int forked) {
    pthread_mutex_lock(&mutex);
    /* A listener that was late may have been replaced by nobody, since nobody had to listen any more. */
    int is_late = state->listens && dli_sys->now_ns() >= state->listening.call.begin_ns + late_ns(state);
    int ops = state->ops - is_late, watches = state->watches != NULL, holds = state->holds,
        twice = state->closed;
    state->closed = 1;
    pthread_mutex_unlock(&mutex);
    if (twice) {
        BREACH("close was called twice");
    }
    if (ops != 0) {
        BREACH("close while %d ops run", ops);
    }
    if (watches != 0) {
        BREACH("the watch of '%s' was not ended", state->watches->name);
    }
    if (holds != 0) {
        BREACH("%d holds were not dropped", holds);
    }
    /* Where answers were kept back the core may have run out of time before it could free everything. */
    if (!forked && !__atomic_load_n(&state->blocked, __ATOMIC_RELAXED)) {
        check_endings(state);
    }
}
