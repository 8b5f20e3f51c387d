/* fake_socket.c - an in-memory lease server at the end of a wire: requests and replies are on their way. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "support/alloc_fail.h"
#include "support/drive.h"
#include "support/fake_net.h"
#include "support/fake_news.h"
#include "support/fake_store.h"
#include "support/fakes.h"

typedef struct name_text {
    char name[DL_NAME_MAX + 1], owner[DL_OWNER_MAX + 1];
} name_text_t;

/* A request on its way, and its reply: a copy, since it arrives also when nobody waits for it any more. */
typedef struct message {
    struct message *next_on_wire, *next; /* in the order of arrival; of its client, in the order of sending */
    struct state *from;                  /* NULL: the client is closed */
    dli_request_t *request;              /* NULL: it was withdrawn */
    char client[64];
    dli_ask_kind_t kind;
    dl_request_t with;
    dl_renewal_t *renewals;
    name_text_t *texts; /* of `with`, or of each renewal */
    size_t n;
    uint64_t sent_ns, arrives_ns, back_ns;
    int arrived;
    dl_status_t reply;
    dl_grant_t grant;
    dl_lock_info_t info;
} message_t;

typedef struct state {
    fake_client_t client; /* first: fake_news.h */
    dli_backend_env_t core;
    TAILQ_HEAD(, dli_request) begun; /* guarded by the core's mutex, as is message_t.request */
    message_t *sent, **sent_end;
    uint64_t polls_until_ns;
} state_t;

static fake_store_t store = FAKE_STORE_INIT;
/* Guards the wire, and what clients have sent. Before a core's. */
static pthread_mutex_t wire_mutex = PTHREAD_MUTEX_INITIALIZER;
static message_t *wire;

/* ---- the wire ----------------------------------------------------------------------------------------- */

static void free_message(message_t *message) {
    alloc_real_free(message->renewals);
    alloc_real_free(message->texts);
    alloc_real_free(message);
}

void fake_socket_reset(void) {
    while (wire != NULL) {
        message_t *message = wire;
        wire = message->next_on_wire;
        free_message(message);
    }
    fake_store_reset(&store);
}

static void keep_text(name_text_t *text, const char **name, size_t name_len, const char **owner) {
    memcpy(text->name, *name, name_len);
    *name = text->name;
    if (*owner != NULL) {
        snprintf(text->owner, sizeof text->owner, "%s", *owner);
        *owner = text->owner;
    }
}

static message_t *make_message(state_t *state, dli_request_t *request, uint64_t now_ns) {
    message_t *message = alloc_real(sizeof *message);
    message->from = state;
    message->request = request;
    message->kind = request->kind;
    message->with = request->with;
    message->n = request->n;
    message->texts = alloc_real((request->n + 1) * sizeof *message->texts);
    snprintf(message->client, sizeof message->client, "%s", state->client.env->client_label);
    if (request->n > 0) {
        message->renewals = alloc_real(request->n * sizeof *message->renewals);
        memcpy(message->renewals, request->renewals, request->n * sizeof *message->renewals);
        for (size_t i = 0; i < request->n; i++) {
            dl_renewal_t *r = &message->renewals[i];
            keep_text(&message->texts[i], &r->name, r->name_len, &r->owner);
        }
    } else {
        keep_text(message->texts, &message->with.name, message->with.name_len, &message->with.owner);
    }
    if (request->info != NULL) {
        message->info = *request->info;
    }
    message->sent_ns = now_ns;
    message->arrives_ns = now_ns + state->client.half_way_ns;
    message->back_ns = message->arrives_ns + state->client.half_way_ns;
    request->place = message;
    return message;
}

/* What the server does once it is there. */
static void act(message_t *message) {
    const dl_request_t *with = &message->with;
    uint64_t now_ns = message->arrives_ns;
    message->arrived = 1;
    message->grant = (dl_grant_t){.sent_ns = message->sent_ns, .session_fd = -1, .busy_ms = -1};
    switch (message->kind) {
    case DLI_ASK_TRY:
    case DLI_ASK_LEVEL:
        message->reply = fake_store_acquire(&store, with, message->client, now_ns, &message->grant);
        break;
    case DLI_ASK_RELEASE:
        message->reply = fake_store_release(&store, with, now_ns);
        break;
    case DLI_ASK_RENEW:
        for (size_t i = 0; i < message->n; i++) {
            dl_renewal_t *r = &message->renewals[i];
            r->sent_ns = message->sent_ns;
            r->status = fake_store_renew(&store, r->name, r->owner, r->hold_id, r->lease_ms, now_ns);
        }
        break;
    case DLI_ASK_INSPECT:
        fake_store_inspect(&store, with->name, now_ns, &message->info);
        break;
    default:
        message->reply = fake_store_force(&store, with->name, now_ns);
        break;
    }
    bool frees = message->kind == DLI_ASK_FORCE || (message->kind == DLI_ASK_RELEASE && with->level == 0);
    if (frees && message->reply == DL_OK) {
        fake_notify(with->name);
    }
}

/* With the wire's mutex held. */
static void run_wire(uint64_t now_ns) {
    while (wire != NULL && wire->arrives_ns <= now_ns) {
        message_t *message = wire;
        wire = message->next_on_wire;
        act(message);
        if (message->from == NULL) {
            free_message(message);
        }
    }
}

/* With the wire's mutex held. */
static void put_on_wire(message_t *message) {
    message_t **at = &wire;
    while (*at != NULL && (*at)->arrives_ns <= message->arrives_ns) {
        at = &(*at)->next_on_wire;
    }
    message->next_on_wire = *at;
    *at = message;
}

/* ---- requests -------------------------------------------------------------------------------------------
 */

static void attach(void *state_, const dli_backend_env_t *env) {
    state_t *state = state_;
    state->core = *env;
    TAILQ_INIT(&state->begun);
}

static void begin(void *state_, dli_request_t *request) {
    state_t *state = state_;
    request->place = NULL;
    TAILQ_INSERT_TAIL(&state->begun, request, turn);
}

static bool withdraw(void *state_, dli_request_t *request) {
    state_t *state = state_;
    message_t *message = request->place;
    if (message != NULL) {
        message->request = NULL; /* it goes on, and nobody hears the reply */
        return true;
    }
    TAILQ_REMOVE(&state->begun, request, turn);
    return false;
}

static bool flush(void *state_) {
    state_t *state = state_;
    uint64_t now_ns = state->client.env->now_ns();
    state->core.unlock(state->core.core);
    pthread_mutex_lock(&wire_mutex); /* before the core's */
    state->core.lock(state->core.core);
    bool earlier = false;
    dli_request_t *request;
    while ((request = TAILQ_FIRST(&state->begun)) != NULL) {
        TAILQ_REMOVE(&state->begun, request, turn);
        message_t *message = make_message(state, request, now_ns);
        *state->sent_end = message;
        state->sent_end = &message->next;
        put_on_wire(message);
        earlier |= message->arrives_ns < state->polls_until_ns;
    }
    state->core.unlock(state->core.core);
    run_wire(now_ns);
    pthread_mutex_unlock(&wire_mutex);
    state->core.lock(state->core.core);
    return earlier;
}

static size_t listen_fds(void *state_, struct pollfd *fds, size_t max, uint64_t *until_ns) {
    state_t *state = state_;
    size_t n = fake_listen_fds(state, fds, max, until_ns);
    pthread_mutex_lock(&wire_mutex);
    for (const message_t *m = state->sent; m != NULL; m = m->next) {
        uint64_t due_ns = m->arrived ? m->back_ns : m->arrives_ns;
        *until_ns = due_ns < *until_ns ? due_ns : *until_ns;
    }
    state->polls_until_ns = *until_ns;
    pthread_mutex_unlock(&wire_mutex);
    return n;
}

/* What has come back by now. */
static message_t *take_replies(state_t *state, uint64_t now_ns) {
    message_t *replies = NULL, **last = &replies;
    pthread_mutex_lock(&wire_mutex);
    run_wire(now_ns);
    for (message_t **at = &state->sent; *at != NULL;) {
        message_t *message = *at;
        if (message->arrived && message->back_ns <= now_ns) {
            *at = message->next;
            *last = message;
            last = &message->next;
        } else {
            at = &message->next;
        }
    }
    *last = NULL;
    state->sent_end = &state->sent;
    while (*state->sent_end != NULL) {
        state->sent_end = &(*state->sent_end)->next;
    }
    pthread_mutex_unlock(&wire_mutex);
    return replies;
}

static void end_request(const message_t *message) {
    dli_request_t *request = message->request;
    for (size_t i = 0; i < message->n; i++) {
        request->renewals[i].status = message->renewals[i].status;
        request->renewals[i].sent_ns = message->renewals[i].sent_ns;
    }
    if (request->grant != NULL) {
        *request->grant = message->grant;
    }
    if (request->info != NULL) {
        *request->info = message->info;
    }
    if (message->reply != DL_OK) {
        (void)dl_driver_fail(request->err, message->reply, 0, "%s: %s", message->with.name,
                             dl_status_text(message->reply));
    }
    request->ended(request, message->reply);
}

static void listen_to_wire(void *state_, const struct pollfd *fds, size_t n) {
    state_t *state = state_;
    const dl_driver_env_t *env = state->client.env;
    fake_listen(state, fds, n);
    message_t *replies = take_replies(state, env->now_ns());
    while (replies != NULL) {
        message_t *message = replies;
        replies = message->next;
        env->count(env->core, DL_COUNT_ROUND_TRIP, 1);
        state->core.lock(state->core.core);
        if (message->request != NULL) {
            end_request(message);
        }
        state->core.unlock(state->core.core);
        free_message(message);
    }
}

/* ---- the tables -----------------------------------------------------------------------------------------
 */

static dl_status_t open_socket(void *state_, const dl_option_value_t *options, const dl_driver_env_t *env,
                               uint64_t deadline_ns, dl_error_t *err) {
    (void)deadline_ns;
    (void)err;
    state_t *state = state_;
    state->client.connected = 1;
    state->sent_end = &state->sent;
    fake_client_open(&state->client, options, env);
    return DL_OK;
}

static void close_socket(void *state_, int forked) {
    state_t *state = state_;
    fake_client_close(&state->client);
    if (forked || state->client.env == NULL) {
        return;
    }
    pthread_mutex_lock(&wire_mutex);
    while (state->sent != NULL) {
        message_t *message = state->sent;
        state->sent = message->next;
        message->from = NULL;
        if (message->arrived) {
            free_message(message);
        }
    }
    pthread_mutex_unlock(&wire_mutex);
}

static dl_status_t list(void *state_, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                        uint64_t deadline_ns, dl_error_t *err) {
    state_t *state = state_;
    const dl_driver_env_t *env = state->client.env;
    if (fake_pass(env, 2 * state->client.half_way_ns, deadline_ns, NULL) != DL_OK) {
        return dl_driver_fail(err, DL_EUNKNOWN, 0, "no reply from the server");
    }
    pthread_mutex_lock(&wire_mutex);
    run_wire(env->now_ns());
    pthread_mutex_unlock(&wire_mutex);
    env->count(env->core, DL_COUNT_ROUND_TRIP, 1);
    fake_store_list(&store, prefix, prefix_len, env->now_ns(), fn, arg);
    return DL_OK;
}

static const dl_driver_t rest = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "fake-socket",
    .summary = "An in-memory lease server that answers requests later.",
    .caps = DL_CAP_LEASE | DL_CAP_FENCE | DL_CAP_SERVER_COUNT | DL_CAP_NOTIFY,
    .state_size = sizeof(state_t),
    .options = fake_options,
    .open = open_socket,
    .close = close_socket,
    .watch = fake_watch,
    .listen = listen_to_wire,
    .unwatch = fake_unwatch,
    .listen_fds = listen_fds,
    .list = list,
};

static const dli_backend_t backend = {
    .driver = &rest,
    .attach = attach,
    .begin = begin,
    .withdraw = withdraw,
    .flush = flush,
};

const dl_driver_t *fake_socket_driver(void) {
    return drive_table(&backend);
}
