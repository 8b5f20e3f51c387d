/* stream.c - what goes over a connected socket: a queue out, decoded replies in, TLS between if asked for. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READS_MAX 16 /* in a row, so that a flood keeps nobody from looking at the time */

static dl_status_t fail_memory(dl_error_t *err) {
    return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
}

dl_status_t dli_stream_init(dli_stream_t *stream, const dli_endpoint_t *endpoint, dl_error_t *err) {
    memset(stream, 0, sizeof *stream);
    stream->endpoint = endpoint;
    stream->fd = -1;
    return dli_decoder_init(&stream->decoder) ? DL_OK : fail_memory(err);
}

void dli_stream_free(dli_stream_t *stream, bool forked) {
    if (stream->endpoint == NULL) {
        return; /* never made */
    }
    dli_stream_hang_up(stream);
    if (!forked) {
        dli_tls_close(stream->tls);
        dli_decoder_free(&stream->decoder);
        dli_stream_wipe(stream);
        free(stream->out);
    }
}

void dli_stream_hang_up(dli_stream_t *stream) {
    int fd = stream->fd;
    stream->fd = -1; /* first, lest a child that is forked here closes a number that is somebody else's */
    if (fd >= 0) {
        close(fd);
    }
}

dl_status_t dli_stream_fail(const dli_stream_t *stream, dl_error_t *err) {
    const char *when = stream->is_secured ? "" : " during the TLS handshake";
    const char *label = stream->endpoint->label;
    int reason = stream->reason;
    if (reason == 0 || reason == ECONNRESET || reason == EPIPE) {
        return dl_driver_fail(err, DL_EIO, reason, "%s: the server closed the connection%s", label, when);
    }
    return dl_driver_fail(err, DL_EIO, reason, "%s: the connection broke%s: %s", label, when,
                          strerror(reason));
}

/* ---- TLS --------------------------------------------------------------------------------------------- */

dl_status_t dli_stream_begin(dli_stream_t *stream, dl_error_t *err) {
    stream->is_secured = !stream->endpoint->tls;
    if (stream->is_secured) {
        return DL_OK;
    }
    dl_status_t status = dli_tls_open(stream->endpoint, &stream->tls, err);
    return status == DL_OK ? dli_tls_shake(stream->tls, &stream->is_secured, err) : status;
}

/* Decrypts what was fed. *fed grows by what came out. */
static dl_status_t decrypt(dli_stream_t *stream, char bytes[DLI_TLS_RECORD_MAX], size_t *fed,
                           dl_error_t *err) {
    dl_status_t status = DL_OK;
    size_t got = 1;
    bool is_over = false;
    while (status == DL_OK && got > 0) {
        status = dli_tls_read(stream->tls, bytes, &got, &is_over, err);
        if (status == DL_OK && got > 0) {
            *fed += got;
            status = dli_decoder_feed(&stream->decoder, bytes, got, err);
        }
    }
    if (status == DL_OK && is_over) {
        stream->hung_up = true;
        stream->reason = 0;
    }
    return status;
}

/* ---- in ---------------------------------------------------------------------------------------------- */

static dl_status_t take_in(dli_stream_t *stream, char bytes[DLI_TLS_RECORD_MAX], size_t len, size_t *fed,
                           dl_error_t *err) {
    if (!stream->endpoint->tls) {
        *fed += len;
        return dli_decoder_feed(&stream->decoder, bytes, len, err);
    }
    dl_status_t status = dli_tls_feed(stream->tls, bytes, len, err);
    if (status == DL_OK && !stream->is_secured) {
        *fed += len;
        status = dli_tls_shake(stream->tls, &stream->is_secured, err);
    }
    return status == DL_OK && stream->is_secured ? decrypt(stream, bytes, fed, err) : status;
}

dl_status_t dli_stream_receive(dli_stream_t *stream, dl_error_t *err) {
    char bytes[DLI_TLS_RECORD_MAX];
    size_t fed = 0;
    dl_status_t status = DL_OK;
    for (int reads = 0; reads < READS_MAX && status == DL_OK; reads++) {
        ssize_t n = recv(stream->fd, bytes, sizeof bytes, 0);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EAGAIN) {
            break;
        }
        if (n <= 0) {
            stream->reason = n < 0 ? errno : stream->reason;
            stream->hung_up = true;
            break;
        }
        status = take_in(stream, bytes, (size_t)n, &fed, err);
        if ((size_t)n < sizeof bytes) {
            break; /* that was all */
        }
    }
    return status == DL_OK && stream->hung_up && fed == 0 ? dli_stream_fail(stream, err) : status;
}

dl_status_t dli_stream_next(dli_stream_t *stream, redisReply **reply, dl_error_t *err) {
    *reply = NULL;
    dl_status_t status = dli_decoder_next(&stream->decoder, reply, err);
    return status == DL_OK && *reply == NULL && stream->hung_up ? dli_stream_fail(stream, err) : status;
}

/* ---- out --------------------------------------------------------------------------------------------- */

/* From the handshake on; room for the request of a release, which must not need memory. */
#define FIRST_ROOM 2048

static bool make_room(dli_stream_t *stream, size_t len) {
    if (len <= stream->cap - stream->len) {
        return true;
    }
    if (len > SIZE_MAX / 4 - stream->len) {
        return false;
    }
    size_t cap = stream->len + len < FIRST_ROOM ? FIRST_ROOM : (stream->len + len) * 2;
    char *out = realloc(stream->out, cap);
    if (out != NULL) {
        stream->out = out;
        stream->cap = cap;
    }
    return out != NULL;
}

dl_status_t dli_stream_queue(dli_stream_t *stream, const char *bytes, size_t len, dl_error_t *err) {
    if (!make_room(stream, len)) {
        stream->unqueued += len;
        return fail_memory(err);
    }
    memcpy(stream->out + stream->len, bytes, len);
    stream->len += len;
    return DL_OK;
}

/* What can be sent now: the queue itself, or records of it. *len is 0 when there is nothing. */
static dl_status_t next_bytes(dli_stream_t *stream, const char **at, size_t *len, dl_error_t *err) {
    size_t queued = stream->len - stream->left;
    if (!stream->endpoint->tls) {
        *at = queued > 0 ? stream->out + stream->left : "";
        *len = queued;
        return DL_OK;
    }
    *at = dli_tls_pending(stream->tls, len);
    if (*len > 0 || queued == 0 || !stream->is_secured) {
        return DL_OK;
    }
    size_t part = queued < DLI_TLS_RECORD_MAX ? queued : DLI_TLS_RECORD_MAX;
    dl_status_t status = dli_tls_write(stream->tls, stream->out + stream->left, part, err);
    if (status == DL_OK) {
        stream->left += part;
        stream->in_record = part;
        *at = dli_tls_pending(stream->tls, len);
    }
    return status;
}

static void note_sent(dli_stream_t *stream, size_t n) {
    if (stream->endpoint->tls) {
        dli_tls_sent(stream->tls, n);
        stream->in_record = 0;
    } else {
        stream->left += n;
    }
    if (stream->left == stream->len && stream->in_record == 0) {
        stream->left = stream->len = 0;
    }
}

dl_status_t dli_stream_flush(dli_stream_t *stream, dl_error_t *err) {
    while (!stream->cannot_send && !stream->hung_up) {
        const char *at;
        size_t len;
        dl_status_t status = next_bytes(stream, &at, &len, err);
        if (status != DL_OK || len == 0) {
            return status;
        }
        ssize_t n = send(stream->fd, at, len, MSG_NOSIGNAL);
        if (n >= 0) {
            note_sent(stream, (size_t)n);
        } else if (errno == EAGAIN) {
            return DL_OK;
        } else if (errno != EINTR) {
            stream->cannot_send = true;
            stream->reason = errno;
        }
    }
    return DL_OK;
}

bool dli_stream_is_broken(const dli_stream_t *stream) {
    return stream->cannot_send || stream->hung_up;
}

bool dli_stream_wants_out(const dli_stream_t *stream) {
    if (dli_stream_is_broken(stream)) {
        return false;
    }
    return (stream->is_secured && stream->left < stream->len) ||
           (stream->tls != NULL && dli_tls_is_pending(stream->tls));
}

size_t dli_stream_unsent(const dli_stream_t *stream) {
    return stream->len - stream->left + stream->in_record + stream->unqueued;
}

void dli_stream_wipe(dli_stream_t *stream) {
    if (stream->out != NULL) {
        explicit_bzero(stream->out, stream->cap);
    }
}

bool dli_stream_is_quiet(const dli_stream_t *stream) {
    char byte;
    if (dli_stream_is_broken(stream) || dli_stream_wants_out(stream) ||
        !dli_decoder_is_empty(&stream->decoder)) {
        return false;
    }
    return recv(stream->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}
