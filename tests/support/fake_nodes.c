/* fake_nodes.c - nodes that carry messages out at the instant of their arrival. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/fake_nodes.h"

#include <stdio.h>
#include <string.h>

#include "support/alloc_fail.h"
#include "support/fake_net.h"
#include "support/fake_store.h"

typedef struct node {
    fake_store_t store;
    fake_node_mode_t mode;
    int64_t delay_ms;
    fake_message_t *coming; /* by arrival */
} node_t;

static node_t nodes[FAKE_NODES] = {
    {.store = FAKE_STORE_INIT}, {.store = FAKE_STORE_INIT}, {.store = FAKE_STORE_INIT}};
/* Guards the messages and the modes; taken before a store's own. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* ---- with the mutex held ---------------------------------------------------------------------------- */

static void unref(fake_message_t *m) {
    if (--m->refs == 0) {
        alloc_real_free(m);
    }
}

static void carry_out(node_t *node, fake_message_t *m) {
    dl_request_t request = {.name = m->name,
                            .name_len = strlen(m->name),
                            .owner = m->owner,
                            .hold_id = m->hold_id,
                            .level = m->verb == FAKE_RELEASE ? 0 : 1,
                            .lease_ms = m->lease_ms};
    dl_grant_t grant = {.session_fd = -1};
    uint64_t at = m->arrives_ns;
    switch (m->verb) {
    case FAKE_ACQUIRE:
    case FAKE_FILL:
        m->reply = fake_store_acquire(&node->store, &request, m->client, at, &grant);
        m->busy_ms = grant.busy_ms;
        break;
    case FAKE_RELEASE:
        m->reply = fake_store_release(&node->store, &request, at);
        break;
    case FAKE_RENEW:
        m->reply = fake_store_renew(&node->store, m->name, m->owner, m->hold_id, m->lease_ms, at);
        break;
    case FAKE_INSPECT:
        fake_store_inspect(&node->store, m->name, at, &m->info);
        m->info.token = 0; /* the quorum has none */
        m->reply = DL_OK;
        break;
    case FAKE_FORCE:
        m->reply = fake_store_force(&node->store, m->name, at);
        break;
    }
}

/* A node's state can only be seen through messages: so it is enough to carry out what has arrived whenever
 * somebody looks. */
static void catch_up(node_t *node, uint64_t now_ns) {
    while (node->coming != NULL && node->coming->arrives_ns <= now_ns) {
        fake_message_t *m = node->coming;
        node->coming = m->next;
        carry_out(node, m);
        unref(m);
    }
}

static void enqueue(node_t *node, fake_message_t *m) {
    fake_message_t **at = &node->coming;
    while (*at != NULL && (*at)->arrives_ns <= m->arrives_ns) {
        at = &(*at)->next;
    }
    m->next = *at;
    *at = m;
}

/* ---- what the driver calls ----------------------------------------------------------------------------- */

fake_message_t *fake_node_send(int number, fake_verb_t verb, const char *name, const char *owner,
                               uint64_t hold_id, int64_t lease_ms, const char *client, uint64_t latency_ns,
                               uint64_t now_ns) {
    node_t *node = &nodes[number];
    fake_message_t *m = alloc_real(sizeof *m);
    m->verb = verb;
    m->node = number;
    m->refs = 1;
    m->hold_id = hold_id;
    m->lease_ms = lease_ms;
    m->info = (dl_lock_info_t)DL_LOCK_INFO_INIT;
    snprintf(m->name, sizeof m->name, "%s", name);
    snprintf(m->owner, sizeof m->owner, "%s", owner);
    snprintf(m->client, sizeof m->client, "%s", client);
    pthread_mutex_lock(&mutex);
    uint64_t whole = latency_ns + (uint64_t)node->delay_ms * FAKE_NS_PER_MS;
    m->arrives_ns = now_ns + whole / 2;
    m->reply_ns = now_ns + whole;
    m->refused = node->mode == FAKE_NODE_REFUSES;
    if (node->mode == FAKE_NODE_MUTE || node->mode == FAKE_NODE_DEAF) {
        m->reply_ns = DL_NO_DEADLINE;
    }
    if (node->mode == FAKE_NODE_UP || node->mode == FAKE_NODE_MUTE) {
        m->refs++;
        enqueue(node, m);
        catch_up(node, now_ns);
    }
    pthread_mutex_unlock(&mutex);
    return m;
}

int fake_node_answered(fake_message_t *m, uint64_t now_ns) {
    if (m->refused) {
        return 1;
    }
    pthread_mutex_lock(&mutex);
    catch_up(&nodes[m->node], now_ns);
    pthread_mutex_unlock(&mutex);
    return m->reply_ns <= now_ns;
}

void fake_node_let_go(fake_message_t *m) {
    pthread_mutex_lock(&mutex);
    unref(m);
    pthread_mutex_unlock(&mutex);
}

void fake_nodes_list(int node, const char *prefix, size_t prefix_len, uint64_t now_ns, dl_list_fn fn,
                     void *arg) {
    pthread_mutex_lock(&mutex);
    catch_up(&nodes[node], now_ns);
    pthread_mutex_unlock(&mutex);
    fake_store_list(&nodes[node].store, prefix, prefix_len, now_ns, fn, arg);
}

void fake_quorum_node(int node, fake_node_mode_t mode, int64_t delay_ms) {
    pthread_mutex_lock(&mutex);
    nodes[node].mode = mode;
    nodes[node].delay_ms = delay_ms;
    pthread_mutex_unlock(&mutex);
}

void fake_quorum_forget(int node) {
    fake_store_reset(&nodes[node].store);
}

void fake_quorum_reset(void) {
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < FAKE_NODES; i++) {
        while (nodes[i].coming != NULL) {
            fake_message_t *next = nodes[i].coming->next;
            unref(nodes[i].coming);
            nodes[i].coming = next;
        }
        nodes[i].mode = FAKE_NODE_UP;
        nodes[i].delay_ms = 0;
        fake_store_reset(&nodes[i].store);
    }
    pthread_mutex_unlock(&mutex);
}
