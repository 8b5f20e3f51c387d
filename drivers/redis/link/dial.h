/* dial.h - one socket of our own to one address, without blocking. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_DIAL_H
#define DLI_REDIS_DIAL_H

#include <netdb.h>
#include <sys/un.h>

#include "endpoint.h"

/* A unix socket in the shape of the addresses that a name has. 0, or ENAMETOOLONG. */
int dli_dial_unix(const char *path, struct sockaddr_un *place, struct addrinfo *address);

/* 0: connected. EINPROGRESS: writable when it is decided. EAGAIN: the server's queue is full, try again
 * later. Otherwise the errno that it failed with. *fd is -1 unless it is 0 or EINPROGRESS. */
int dli_dial_start(const struct addrinfo *address, const dli_endpoint_t *endpoint, const dl_driver_env_t *env,
                   int *fd);
/* How it was decided: 0, the errno of the failure, or EINPROGRESS: it is not yet. */
int dli_dial_finish(int fd);

/* The address for people. */
#define DLI_DIAL_NAME_MAX 112
void dli_dial_name(const struct addrinfo *address, char name[DLI_DIAL_NAME_MAX]);

#endif
