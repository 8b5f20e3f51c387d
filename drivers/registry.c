/* registry.c - the one list of drivers; everybody who looks for a driver asks here. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "registry.h"

#include <string.h>

#ifdef DLOCK_HAVE_MYSQL
#include "mysql/mysql.h"
#endif
#ifdef DLOCK_HAVE_REDIS
#include "redis/redis.h"
#endif
#ifdef DLOCK_HAVE_SQLITE
#include "sqlite/sqlite.h"
#endif

typedef struct entry {
    const char *name;
    const char *build_option;
    const dl_driver_t *driver; /* NULL: not in this build */
    const dli_backend_t *backend;
} entry_t;

static const entry_t entries[] = {
    {
        .name = "sqlite",
        .build_option = "DLOCK_WITH_SQLITE",
#ifdef DLOCK_HAVE_SQLITE
        .driver = &dli_sqlite_driver,
#endif
    },
    {
        .name = "redis-string",
        .build_option = "DLOCK_WITH_REDIS",
#ifdef DLOCK_HAVE_REDIS
        .driver = &dli_redis_string_driver,
        .backend = &dli_redis_string_backend,
#endif
    },
    {
        .name = "redis-hash-reentrant",
        .build_option = "DLOCK_WITH_REDIS",
#ifdef DLOCK_HAVE_REDIS
        .driver = &dli_redis_hash_driver,
        .backend = &dli_redis_hash_backend,
#endif
    },
    {
        .name = "redlock",
        .build_option = "DLOCK_WITH_REDIS",
#ifdef DLOCK_HAVE_REDIS
        .driver = &dli_redlock_driver,
        .backend = &dli_redlock_backend,
#endif
    },
    {
        .name = "mysql-pessimistic",
        .build_option = "DLOCK_WITH_MYSQL",
#ifdef DLOCK_HAVE_MYSQL
        .driver = &dli_mysql_pessimistic_driver,
#endif
    },
    {
        .name = "mysql-lease",
        .build_option = "DLOCK_WITH_MYSQL",
#ifdef DLOCK_HAVE_MYSQL
        .driver = &dli_mysql_lease_driver,
#endif
    },
    {
        .name = "mysql-optimistic",
        .build_option = "DLOCK_WITH_MYSQL",
#ifdef DLOCK_HAVE_MYSQL
        .driver = &dli_mysql_optimistic_driver,
#endif
    },
};

#define ENTRY_COUNT (sizeof entries / sizeof entries[0])

static const entry_t *find(const char *name) {
    for (size_t i = 0; name != NULL && i < ENTRY_COUNT; i++) {
        if (strcmp(entries[i].name, name) == 0) {
            return &entries[i];
        }
    }
    return NULL;
}

const dl_driver_t *dli_registry_find(const char *name) {
    const entry_t *entry = find(name);
    return entry != NULL ? entry->driver : NULL;
}

const dli_backend_t *dli_registry_backend(const char *name) {
    const entry_t *entry = find(name);
    return entry != NULL ? entry->backend : NULL;
}

const dl_driver_t *dli_registry_at(size_t i) {
    for (size_t at = 0; at < ENTRY_COUNT; at++) {
        if (entries[at].driver != NULL && i-- == 0) {
            return entries[at].driver;
        }
    }
    return NULL;
}

const char *dli_registry_known_at(size_t i) {
    return i < ENTRY_COUNT ? entries[i].name : NULL;
}

int dli_registry_known(const char *name) {
    return find(name) != NULL;
}

const char *dli_registry_build_option(const char *name) {
    const entry_t *entry = find(name);
    return entry != NULL ? entry->build_option : NULL;
}
