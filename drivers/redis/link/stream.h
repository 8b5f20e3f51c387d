/* stream.h - what goes over a connected socket: a queue out, decoded replies in, TLS between if asked for. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_STREAM_H
#define DLI_REDIS_STREAM_H

#include "endpoint.h"
#include "reply.h"
#include "tls.h"

typedef struct dli_stream {
    const dli_endpoint_t *endpoint;
    int fd; /* its own; -1: none */
    dli_tls_t *tls;
    bool is_secured; /* by TLS; true from the start where there is none */
    dli_decoder_t decoder;
    char *out; /* queued bytes, of which `left` have left or are in a record of TLS */
    size_t len, cap, left;
    size_t in_record; /* bytes in the last record while nothing of it has left */
    size_t unqueued;
    bool cannot_send; /* what the server said before may still be there to read */
    bool hung_up;     /* nothing comes any more */
    int reason;       /* of either: an errno; 0: a goodbye */
} dli_stream_t;

/* Without a socket. DL_OK, DL_ENOMEM. */
dl_status_t dli_stream_init(dli_stream_t *stream, const dli_endpoint_t *endpoint, dl_error_t *err);
/* Safe on a zeroed one. forked: closes the socket only. */
void dli_stream_free(dli_stream_t *stream, bool forked);

/* The socket is connected. Begins TLS where the endpoint says so. */
dl_status_t dli_stream_begin(dli_stream_t *stream, dl_error_t *err);
/* Closes the socket. */
void dli_stream_hang_up(dli_stream_t *stream);
dl_status_t dli_stream_queue(dli_stream_t *stream, const char *bytes, size_t len, dl_error_t *err);
/* Sends what can be sent now. A broken connection is only noted: what the server said before comes first. */
dl_status_t dli_stream_flush(dli_stream_t *stream, dl_error_t *err);
/* Receives what is there, for the decoder. A hang-up is a failure when nothing came before it. */
dl_status_t dli_stream_receive(dli_stream_t *stream, dl_error_t *err);
/* Is there something that waits until it can be sent? */
bool dli_stream_wants_out(const dli_stream_t *stream);
/* DL_OK with the next reply, or with NULL when there is none yet. */
dl_status_t dli_stream_next(dli_stream_t *stream, redisReply **reply, dl_error_t *err);
/* Has either direction come to an end? */
bool dli_stream_is_broken(const dli_stream_t *stream);
/* DL_EIO, with the reason of the hang-up. */
dl_status_t dli_stream_fail(const dli_stream_t *stream, dl_error_t *err);
/* Queued bytes that surely did not leave; those that could not be queued too. */
size_t dli_stream_unsent(const dli_stream_t *stream);
/* Forgets what was sent, for there were secrets in it. */
void dli_stream_wipe(dli_stream_t *stream);
/* Nothing under way in either direction. One system call. */
bool dli_stream_is_quiet(const dli_stream_t *stream);

#endif
