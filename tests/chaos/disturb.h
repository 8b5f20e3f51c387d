/* disturb.h - what the chaos does to the place where the workers work. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAOS_DISTURB_H
#define CHAOS_DISTURB_H

#include <sys/types.h>

#include "chaos.h"
#include "support/proxy.h"
#include "support/redis_server.h"

typedef struct chaos_place {
    redis_server_t *server;
    proxy_t *proxy;
    pid_t pids[CHAOS_PROCESSES_MAX];
} chaos_place_t;

/* For as long as the settings say; afterwards everything works again. */
void chaos_disturb(chaos_place_t *place);
/* Of all disturbances only this one, and others that are named so. false: there is none of that name. */
bool chaos_only(const char *name);
void chaos_print_disturbances(void);

#endif
