/* tls.h - TLS for a connection whose bytes we carry ourselves: no socket here, nothing blocks. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_TLS_H
#define DLI_REDIS_TLS_H

#include <stdbool.h>
#include <stddef.h>

#include "endpoint.h"

typedef struct dli_tls dli_tls_t;

/* Most bytes that dli_tls_write takes and dli_tls_read gives at once: one record. */
#define DLI_TLS_RECORD_MAX 16384

/* DL_OK; DL_ECONFIG (a file of the configuration), DL_ELIMIT, DL_ENOMEM. */
dl_status_t dli_tls_open(const dli_endpoint_t *endpoint, dli_tls_t **tls, dl_error_t *err);
/* NULL is fine. Never in a forked child, where OpenSSL's locks may be held by nobody. */
void dli_tls_close(dli_tls_t *tls);

/* Bytes from the network. DL_OK, DL_ENOMEM. */
dl_status_t dli_tls_feed(dli_tls_t *tls, const char *bytes, size_t len, dl_error_t *err);
/* Bytes for the network, until the next call, and that so many of them have left. */
const char *dli_tls_pending(dli_tls_t *tls, size_t *len);
void dli_tls_sent(dli_tls_t *tls, size_t len);

/* Goes on with the handshake by what was fed. DL_EAUTH (a certificate is refused), DL_EPROTO, DL_ENOMEM. */
dl_status_t dli_tls_shake(dli_tls_t *tls, bool *is_done, dl_error_t *err);
/* Makes a record of at most DLI_TLS_RECORD_MAX bytes, pending from then on. */
dl_status_t dli_tls_write(dli_tls_t *tls, const char *bytes, size_t len, dl_error_t *err);
/* *got is 0 when more has to be fed; *is_over: the server has said goodbye. */
dl_status_t dli_tls_read(dli_tls_t *tls, char bytes[DLI_TLS_RECORD_MAX], size_t *got, bool *is_over,
                         dl_error_t *err);

#ifndef DLOCK_HAVE_TLS /* then the endpoint refuses rediss://, and none of it is called */
#define dli_tls_open(endpoint, tls, err) dl_driver_fail(err, DL_ENOTSUP, 0, "built without TLS")
#define dli_tls_close(tls) ((void)(tls))
#define dli_tls_feed(tls, bytes, len, err) DL_ENOTSUP
#define dli_tls_pending(tls, len) (*(len) = 0, "")
#define dli_tls_sent(tls, len) ((void)(len))
#define dli_tls_shake(tls, is_done, err) DL_ENOTSUP
#define dli_tls_write(tls, bytes, len, err) dli_tls_open(NULL, tls, err)
#define dli_tls_read(tls, bytes, got, is_over, err) DL_ENOTSUP
#endif

#endif
