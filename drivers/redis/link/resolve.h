/* resolve.h - turns a host's name into addresses without ever making the caller wait. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_RESOLVE_H
#define DLI_REDIS_RESOLVE_H

#include <netdb.h>
#include <stdbool.h>

#include "dlock/driver.h"

typedef struct dli_resolve dli_resolve_t;

/* An address in digits is done at once, a name is looked up by a thread of its own. DL_OK, DL_ENOMEM,
 * DL_ELIMIT (no descriptor, no thread, or too many lookups that do not end). */
dl_status_t dli_resolve_start(const char *host, const char *port, const dl_driver_env_t *env,
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

#endif
