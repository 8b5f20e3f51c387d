/* fake_nodes.h - three lease servers, and messages that are on their way to them. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_NODES_H
#define FAKE_NODES_H

#include "dlock/driver.h"
#include "support/fakes.h"

typedef enum fake_verb {
    FAKE_ACQUIRE,
    FAKE_RELEASE,
    FAKE_RENEW,
    FAKE_FILL, /* a node that had lost a lock of a confirmed holder takes it again */
    FAKE_INSPECT,
    FAKE_FORCE
} fake_verb_t;

/* A request to one node. It owns its words, because it may arrive after the caller has given up. */
typedef struct fake_message {
    struct fake_message *next;
    fake_verb_t verb;
    int node;
    int refs; /* the node until it was carried out, the caller until it lets go */
    char name[DL_NAME_MAX + 1];
    char owner[DL_OWNER_MAX + 1];
    char client[64];
    uint64_t hold_id;
    int64_t lease_ms;
    uint64_t arrives_ns, reply_ns; /* DL_NO_DEADLINE: never */
    int refused;                   /* it never left */
    int counted;                   /* for the caller */
    dl_status_t reply;             /* valid from reply_ns on */
    int64_t busy_ms;
    dl_lock_info_t info;
} fake_message_t;

/* Puts a message on its way; its answer is there from message->reply_ns on. */
fake_message_t *fake_node_send(int node, fake_verb_t verb, const char *name, const char *owner,
                               uint64_t hold_id, int64_t lease_ms, const char *client, uint64_t latency_ns,
                               uint64_t now_ns);
/* 1: the answer has come (or it is clear that the message never left). */
int fake_node_answered(fake_message_t *message, uint64_t now_ns);
/* The caller does not wait for it any more. The node may still get it. */
void fake_node_let_go(fake_message_t *message);
void fake_nodes_list(int node, const char *prefix, size_t prefix_len, uint64_t now_ns, dl_list_fn fn,
                     void *arg);

#endif
