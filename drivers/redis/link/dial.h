/* dial.h - from the name of a server to a socket, without ever making the caller wait. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_DIAL_H
#define DLI_REDIS_DIAL_H

#include <netdb.h>
#include <stdbool.h>

#include "endpoint.h"

typedef struct dli_resolve dli_resolve_t;

/* An address in digits, or a unix socket, is done at once, a name is looked up by a thread of its own. DL_OK,
 * DL_ENOMEM, DL_ELIMIT (no descriptor, no thread, or too many lookups that do not end). */
dl_status_t dli_resolve_start(const dli_endpoint_t *endpoint, const dl_driver_env_t *env,
                              dli_resolve_t **resolve, dl_error_t *err);
/* Readable once it is done; -1: it was done at once. */
int dli_resolve_fd(const dli_resolve_t *resolve);
/* DL_OK with the addresses, which live as long as the resolve, or with NULL while it is not done; DL_EIO
 * (there is no such name, no name server answers), DL_ELIMIT, DL_ENOMEM. */
dl_status_t dli_resolve_take(const dli_resolve_t *resolve, const struct addrinfo **addresses,
                             dl_error_t *err);
/* Waits for nothing: a lookup that is still under way is left to its thread. NULL is fine. forked: closes the
 * descriptor only. */
void dli_resolve_close(dli_resolve_t *resolve, bool forked);

/* 0: connected. EINPROGRESS: writable when it is decided. EAGAIN: the server's queue is full, try again
 * later. Otherwise the errno that it failed with. *fd is -1 unless it is 0 or EINPROGRESS. */
int dli_dial(const struct addrinfo *address, const dli_endpoint_t *endpoint, const dl_driver_env_t *env,
             int *fd);
/* How it was decided: 0, the errno of the failure, or EINPROGRESS: it is not yet. */
int dli_dialled(int fd);
/* The address for people. */
#define DLI_ADDRESS_SHOWN 112
void dli_address_show(const struct addrinfo *address, char text[DLI_ADDRESS_SHOWN]);

#endif
