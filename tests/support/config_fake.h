/* config_fake.h - option tables and a driver list for tests of the configuration loader. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONFIG_FAKE_H
#define CONFIG_FAKE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"

/* What every backend may say. */
static const dl_option_t fake_core[] = {
    {.name = "lease", .type = DL_OPTION_DURATION, .default_text = "30s", .min = 100, .max = 31536000000},
    {.name = "max_hold", .type = DL_OPTION_DURATION, .default_text = "0s", .min = 0, .max = 31536000000},
    {.name = "grace", .type = DL_OPTION_DURATION},
    {.name = NULL},
};

/* The driver `store` has an option of every type. */
enum { STORE_PATH, STORE_MODE, STORE_CACHE, STORE_PASSWORD, STORE_NODES, STORE_TLS, STORE_PORT, STORE_COUNT };
static const dl_option_t fake_store[] = {
    [STORE_PATH] = {.name = "path", .type = DL_OPTION_STRING, .required = 1},
    [STORE_MODE] = {.name = "mode",
                    .type = DL_OPTION_STRING,
                    .default_text = "\"wal\"",
                    .choices = "wal|delete|off"},
    [STORE_CACHE] =
        {.name = "cache", .type = DL_OPTION_SIZE, .default_text = "2MiB", .min = 1024, .max = 1073741824},
    [STORE_PASSWORD] = {.name = "password", .type = DL_OPTION_SECRET},
    [STORE_NODES] =
        {.name = "nodes", .type = DL_OPTION_LIST, .default_text = "[\"a:1\", b]", .min = 1, .max = 3},
    [STORE_TLS] = {.name = "tls", .type = DL_OPTION_BOOL, .default_text = "false"},
    [STORE_PORT] = {.name = "port", .type = DL_OPTION_INT, .min = 1, .max = 65535},
    [STORE_COUNT] = {.name = NULL},
};

/* The driver `vault` needs a secret and takes unbounded values. */
static const dl_option_t fake_vault[] = {
    {.name = "key", .type = DL_OPTION_SECRET, .required = 1},
    {.name = "offset", .type = DL_OPTION_INT},
    {.name = "tags", .type = DL_OPTION_LIST},
    {.name = NULL},
};

/* `plain` is compiled in and has no options, `absent` is known and not in this build. */
static const dl_option_t *fake_options_of(const char *driver, int *compiled_in, int *known) {
    *compiled_in =
        strcmp(driver, "store") == 0 || strcmp(driver, "vault") == 0 || strcmp(driver, "plain") == 0;
    *known = *compiled_in || strcmp(driver, "absent") == 0;
    return strcmp(driver, "store") == 0 ? fake_store : strcmp(driver, "vault") == 0 ? fake_vault : NULL;
}

static const char *fake_name_at(size_t index) {
    static const char *const names[] = {"store", "vault", "plain", "absent"};
    return index < sizeof names / sizeof names[0] ? names[index] : NULL;
}

static const dli_driver_lookup_t fake_drivers = {fake_options_of, fake_name_at};

/* Loads a text that is called "t"; *err is cleared first. */
static inline dl_status_t fake_load(const char *yaml, size_t len, dli_config_t **config, dl_error_t *err) {
    memset(err, 0, sizeof *err);
    return dli_config_load_text(yaml, len, "t", fake_core, &fake_drivers, config, err);
}

#endif
