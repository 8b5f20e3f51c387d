/* redis_fixture.c - one fresh Redis server for each running case of the Redis drivers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/redis_fixture.h"

#include <stdio.h>
#include <string.h>

#include "drivers/registry.h"
#include "support/ct.h"
#include "support/drive.h"
#include "support/redis_server.h"

static redis_server_t *server; /* of the case that this process runs; its children inherit the knowledge */

const dl_driver_t *redis_string_driver(void) {
    return drive_table(dli_registry_backend("redis-string"));
}

const dl_driver_t *redis_hash_driver(void) {
    return drive_table(dli_registry_backend("redis-hash-reentrant"));
}

void redis_fixture_start(const char *dir) {
    server = redis_server_start(dir, NULL, NULL);
}

void redis_fixture_stop(void) {
    redis_server_stop(server);
    server = NULL;
}

void redis_tcp_option(const char *dir, char *yaml, size_t size) {
    (void)dir;
    snprintf(yaml, size, "url: \"redis://127.0.0.1:%d/0\"\n", server->port);
}

void redis_unix_option(const char *dir, char *yaml, size_t size) {
    (void)dir;
    snprintf(yaml, size, "url: \"unix://%s\"\n", server->path);
}

redis_server_t *ct_redis(ct_t *ct) {
    CT_CHECKF(server != NULL, "ct_redis needs the trait CT_REDIS");
    return server;
}
