/* config_examples_test.c - the files of config/examples: each loads, and no driver lacks one. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "core/options.h"
#include "drivers/registry.h"

/* Which drivers this build has to have; CMakeLists.txt says it. */
static const struct {
    const char *build_option;
    int on;
} wanted[] = {
    {"DLOCK_WITH_SQLITE", WANT_SQLITE},
    {"DLOCK_WITH_REDIS", WANT_REDIS},
    {"DLOCK_WITH_MYSQL", WANT_MYSQL},
};

/* Every file of the folder, with the number of its backends. */
static const struct {
    const char *file;
    size_t backends;
} examples[] = {
    {"defaults.yaml", 2},
    {"local.yaml", 1},
    {"matrix.yaml", 7},
    {"mysql-lease.yaml", 2},
    {"mysql-optimistic.yaml", 1},
    {"mysql-pessimistic.yaml", 1},
    {"redis-hash-reentrant.yaml", 1},
    {"redis-string.yaml", 2},
    {"redlock.yaml", 2},
};
#define EXAMPLES (sizeof examples / sizeof examples[0])

static const char *folder(void) {
    static char path[PATH_MAX];
    const char *slash = strrchr(__FILE__, '/');
    snprintf(path, sizeof path, "%.*s/../../config/examples", (int)(slash - __FILE__), __FILE__);
    return path;
}

static int wants(const char *driver) {
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (strcmp(wanted[i].build_option, dli_registry_build_option(driver)) == 0) {
            return wanted[i].on;
        }
    }
    return 1;
}

static const dl_option_t *options_of(const char *driver, int *compiled_in, int *known) {
    const dl_driver_t *found = dli_registry_find(driver);
    *compiled_in = found != NULL;
    *known = dli_registry_known(driver);
    return found == NULL ? NULL : found->options;
}

static dli_config_t *load(const char *file) {
    static const dli_driver_lookup_t drivers = {options_of, dli_registry_known_at};
    char path[PATH_MAX];
    dli_config_t *config = NULL;
    dl_error_t err = {0};
    snprintf(path, sizeof path, "%.*s/%s", PATH_MAX - 64, folder(), file);
    dl_status_t status = dli_config_load_file(path, dli_core_options, &drivers, &config, &err);
    cr_assert_eq(status, DL_OK, "%s", err.message);
    return config;
}

/* A driver that the build leaves out has no table to resolve its backend with; any other has. */
static int resolve(const dli_config_t *config, const char *backend, const char *driver,
                   dli_values_t *values) {
    const dl_driver_t *found = dli_registry_find(driver);
    dli_values_t core;
    dl_error_t err = {0};
    cr_assert_eq(found != NULL, wants(driver), "the driver %s is not in this build", driver);
    if (found == NULL) {
        return 0;
    }
    dl_status_t status =
        dli_config_resolve(config, backend, found->options, values, dli_core_options, &core, &err);
    cr_assert_eq(status, DL_OK, "%s", err.message);
    dli_values_free(&core);
    return 1;
}

static void set_passwords(void) {
    cr_assert_eq(setenv("REDIS_PASSWORD", "secret", 1), 0);
    cr_assert_eq(setenv("MYSQL_PASSWORD", "secret", 1), 0);
}

Test(config_examples, every_file_loads_and_every_backend_resolves, .init = set_passwords) {
    for (size_t i = 0; i < EXAMPLES; i++) {
        dli_config_t *config = load(examples[i].file);
        const char *backend, *driver;
        size_t count = 0;
        for (; dli_config_backend_at(config, count, &backend, &driver); count++) {
            dli_values_t values;
            if (resolve(config, backend, driver, &values)) {
                dli_values_free(&values);
            }
        }
        cr_assert_eq(count, examples[i].backends, "%s has %zu backends", examples[i].file, count);
        cr_assert(dli_config_has_backend(config, dli_config_use(config), &driver));
        dli_config_free(config);
    }
}

Test(config_examples, no_file_is_forgotten) {
    size_t files = 0;
    DIR *dir = opendir(folder());
    cr_assert_not_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        size_t i = 0;
        if (entry->d_name[0] == '.') {
            continue;
        }
        while (i < EXAMPLES && strcmp(examples[i].file, entry->d_name) != 0) {
            i++;
        }
        cr_assert_lt(i, EXAMPLES, "%s is not in the list of this test", entry->d_name);
        files++;
    }
    closedir(dir);
    cr_assert_eq(files, EXAMPLES);
}

Test(config_examples, each_driver_has_a_file_that_uses_it) {
    const char *name, *driver;
    for (size_t i = 0; (name = dli_registry_known_at(i)) != NULL; i++) {
        char file[64];
        snprintf(file, sizeof file, "%s.yaml", strcmp(name, "sqlite") == 0 ? "local" : name);
        dli_config_t *config = load(file);
        cr_assert(dli_config_has_backend(config, dli_config_use(config), &driver));
        cr_assert_str_eq(driver, name);
        dli_config_free(config);
    }
}

Test(config_examples, the_matrix_has_each_driver_once_under_its_own_name) {
    dli_config_t *config = load("matrix.yaml");
    const char *name, *backend, *driver;
    size_t drivers = 0, backends = 0;
    for (; (name = dli_registry_known_at(drivers)) != NULL; drivers++) {
        backend = strcmp(name, "sqlite") == 0 ? "local" : name;
        cr_assert(dli_config_has_backend(config, backend, &driver), "the matrix has no backend %s", backend);
        cr_assert_str_eq(driver, name);
    }
    while (dli_config_backend_at(config, backends, &backend, &driver)) {
        backends++;
    }
    cr_assert_eq(backends, drivers);
    cr_assert_eq(drivers, 7);
    dli_config_free(config);
}

/* The text of an option of a backend of the matrix; NULL where its driver is not in the build. */
static const char *text_of(const dli_config_t *config, const char *backend, const char *option) {
    static char text[PATH_MAX];
    const char *driver;
    dli_values_t values;
    cr_assert(dli_config_has_backend(config, backend, &driver));
    if (!resolve(config, backend, driver, &values)) {
        return NULL;
    }
    const dl_option_t *options = dli_registry_find(driver)->options;
    size_t i = 0;
    while (options[i].name != NULL && strcmp(options[i].name, option) != 0) {
        i++;
    }
    cr_assert_not_null(options[i].name);
    const dl_option_value_t *value = &values.values[i];
    if (options[i].type == DL_OPTION_INT) {
        snprintf(text, sizeof text, "%lld", (long long)value->number);
    } else {
        snprintf(text, sizeof text, "%s", options[i].type == DL_OPTION_LIST ? value->list[1] : value->string);
    }
    dli_values_free(&values);
    return text;
}

static void expect(const dli_config_t *config, const char *backend, const char *option,
                   const char *expected) {
    const char *text = text_of(config, backend, option);
    if (text != NULL) {
        cr_assert_str_eq(text, expected, "%s of %s is %s", option, backend, text);
    }
}

Test(config_examples, the_environment_says_where_the_matrix_has_its_servers) {
    dli_config_t *config = load("matrix.yaml");
    expect(config, "redis-string", "url", "redis://127.0.0.1:6379/0");
    expect(config, "redlock", "nodes", "redis://127.0.0.1:6382");
    expect(config, "mysql-lease", "host", "127.0.0.1");
    expect(config, "mysql-lease", "port", "3306");
    expect(config, "mysql-lease", "password", "");
    setenv("DLOCK_SQLITE_PATH", "/somewhere/locks.db", 1);
    setenv("DLOCK_REDIS_URL", "unix:///run/redis.sock", 1);
    setenv("DLOCK_REDLOCK_B", "redis://b", 1);
    setenv("DLOCK_MYSQL_HOST", "db", 1);
    setenv("DLOCK_MYSQL_PORT", "3307", 1);
    setenv("DLOCK_MYSQL_USER", "app", 1);
    setenv("DLOCK_MYSQL_PASSWORD", "secret", 1);
    setenv("DLOCK_MYSQL_DATABASE", "locks", 1);
    expect(config, "local", "path", "/somewhere/locks.db");
    expect(config, "redis-string", "url", "unix:///run/redis.sock");
    expect(config, "redis-hash-reentrant", "url", "unix:///run/redis.sock");
    expect(config, "redlock", "nodes", "redis://b");
    static const char *const databases[] = {"mysql-pessimistic", "mysql-lease", "mysql-optimistic"};
    for (size_t i = 0; i < 3; i++) {
        expect(config, databases[i], "host", "db");
        expect(config, databases[i], "port", "3307");
        expect(config, databases[i], "user", "app");
        expect(config, databases[i], "password", "secret");
        expect(config, databases[i], "database", "locks");
    }
    dli_config_free(config);
}
