/* pipe.h - one ordered connection of a multiplexer: its queue, what the server owes, and how it ends. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_PIPE_H
#define DLI_REDIS_PIPE_H

#include "mux.h"

/* All with the core's mutex held, by the thread that has the pipe. */

dl_status_t dli_pipe_init(dli_pipe_t *pipe, dli_mux_t *mux, dl_error_t *err);
void dli_pipe_free(dli_pipe_t *pipe, bool forked);

void dli_redis_queue_push(dli_redis_queue_t *queue, dli_redis_request_t *request);
void dli_redis_queue_remove(dli_redis_queue_t *queue, dli_redis_request_t *request);
/* All that is to be sent, and has waited since then or longer, ends like this, but for what frees a claim
 * whose reply is still to come: that waits behind it. */
void dli_pipe_refuse(dli_pipe_t *pipe, uint64_t since_ns, dl_status_t status, const dl_error_t *why);
static inline bool dli_pipe_owes(const dli_pipe_t *pipe) {
    return pipe->head != pipe->tail;
}
static inline dli_slot_t *dli_pipe_slot(const dli_pipe_t *pipe, uint64_t number) {
    return &pipe->slots[number & (pipe->cap - 1)];
}
/* A claim that was withdrawn after it was sent. */
static inline bool dli_slot_is_given_up(const dli_slot_t *slot) {
    return slot->request == NULL && slot->kind == DLI_SLOT_REQUEST && slot->intent == DLI_CLAIM;
}

/* Sends what is in the queue and may leave; reads what has come. Both let the mutex go meanwhile. Anything
 * but DL_OK: the connection is to be ended. */
dl_status_t dli_pipe_send(dli_pipe_t *pipe, dl_error_t *err);
dl_status_t dli_pipe_receive(dli_pipe_t *pipe, short revents, dl_error_t *err);
/* When one that waits for the rest of its replies has waited long enough; such ones end. */
uint64_t dli_pipe_rest_ns(const dli_pipe_t *pipe);
void dli_pipe_end_rests(dli_pipe_t *pipe);
/* To others of the same server: what these owe comes, and nothing more is sent on them. */
void dli_pipe_retire_all(dli_mux_t *mux);
/* Says PING, and nothing more before the answer. */
void dli_pipe_ping(dli_pipe_t *pipe);
/* The connection is there: nothing was said on it yet but what goes ahead of everything. */
void dli_pipe_begin(dli_pipe_t *pipe);
/* Its connection is over. What had not left is back in the queue, the rest has ended. The caller closes the
 * connection that is returned, without the mutex. */
dli_conn_t *dli_pipe_end(dli_pipe_t *pipe, dl_status_t status, const dl_error_t *why);

#endif
