/* label.h - where a client says which host and process it is, for people who look at its locks. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_LABEL_H
#define DLI_REDIS_LABEL_H

#include "command.h"
#include "reply.h"

/*
 * A key of the client's own. It is written by claims and renewals, in front of their own command, now and
 * then: so it costs no round trip, and who takes no locks writes nothing. No lock depends on it: whatever the
 * server answers, the claim goes on.
 */
typedef struct dli_label {
    dli_commands_t say, forget; /* encoded once; empty: there is no label */
    uint64_t due_ns;            /* when it is to be said again; UINT64_MAX: this server does not want it */
    bool is_there;              /* the server has said so */
} dli_label_t;

/* key NULL: no label. Nothing here can fail: both commands are short. */
void dli_label_init(dli_label_t *label, const char *key, const char *text);
/* Is it to be said now? Who hears true says it; nobody else does at once. */
bool dli_label_is_due(dli_label_t *label, uint64_t now_ns);
void dli_label_answer(dli_label_t *label, const redisReply *reply, uint64_t now_ns);
/* The server is another one, or no answer came. */
void dli_label_lost(dli_label_t *label);

#endif
