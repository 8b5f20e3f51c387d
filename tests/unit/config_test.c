/* config_test.c - what right configurations mean: values, defaults, variables, secrets, which file. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_fake.h"
#include "core/options.h"
#include "drivers/registry.h"

/* Long enough for every path of these tests. */
static char folder[PATH_MAX / 4];

static void make_folder(void) {
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/dlock-config-XXXXXX", base != NULL ? base : "/tmp");
    cr_assert_not_null(mkdtemp(folder));
}

static void remove_folder(void) {
    char command[PATH_MAX];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    cr_assert_eq(system(command), 0);
}

/* The path of a name in the test's folder; its folders are made. Static text of four calls. */
static const char *path_of(const char *name) {
    static char paths[4][PATH_MAX];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s/%s", folder, name);
    for (char *at = path + strlen(folder) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
    return path;
}

static const char *write_file(const char *name, const char *data, size_t len) {
    const char *path = path_of(name);
    FILE *out = fopen(path, "w");
    cr_assert_not_null(out);
    cr_assert_eq(fwrite(data, 1, len, out), len);
    cr_assert_eq(fclose(out), 0);
    return path;
}

static dli_config_t *load(const char *yaml) {
    dli_config_t *config = NULL;
    dl_error_t err;
    dl_status_t status = fake_load(yaml, strlen(yaml), &config, &err);
    cr_assert_eq(status, DL_OK, "%s", err.message);
    return config;
}

typedef struct both {
    dli_values_t driver, core;
} both_t;

static void free_both(both_t *values) {
    dli_values_free(&values->driver);
    dli_values_free(&values->core);
}

static both_t resolve(const dli_config_t *config, const char *backend) {
    both_t values;
    dl_error_t err = {0};
    dl_status_t status =
        dli_config_resolve(config, backend, fake_store, &values.driver, fake_core, &values.core, &err);
    cr_assert_eq(status, DL_OK, "%s", err.message);
    return values;
}

/* The values of backend `a`, driver `store`, with these lines under it. */
static both_t resolve_lines(const char *lines) {
    char yaml[4096];
    snprintf(yaml, sizeof yaml, "backends:\n  a:\n    driver: store\n    path: p\n%s", lines);
    dli_config_t *config = load(yaml);
    both_t values = resolve(config, "a");
    /* The values stand on their own. */
    dli_config_free(config);
    return values;
}

static void expect_failure(const char *lines, const char *message) {
    char yaml[4096];
    both_t values;
    dl_error_t err = {0};
    snprintf(yaml, sizeof yaml, "backends:\n  a:\n    driver: store\n    path: p\n%s", lines);
    dli_config_t *config = load(yaml);
    dl_status_t status =
        dli_config_resolve(config, "a", fake_store, &values.driver, fake_core, &values.core, &err);
    cr_assert_eq(status, DL_ECONFIG);
    cr_assert_eq(err.status, DL_ECONFIG);
    cr_assert_str_eq(err.message, message);
    cr_assert_null(values.driver.memory);
    cr_assert_null(values.core.values);
    dli_config_free(config);
}

static const char whole[] = "use: b\n"
                            "defaults: {lease: 10s}\n"
                            "backends:\n"
                            "  a: {driver: store, path: /x, lease: 1m}\n"
                            "  b:\n"
                            "    driver: store\n"
                            "    path: \"/y z\"\n"
                            "    mode: 'off'\n"
                            "    cache: 1.5MiB\n"
                            "    nodes:\n"
                            "    - n1\n"
                            "    - n2\n"
                            "    - ${NODE:-n3}\n"
                            "    tls: true\n"
                            "    port: 6379\n"
                            "  local: {driver: plain}\n";

Test(config, lists_its_backends_in_order) {
    dli_config_t *config = load(whole);
    const char *backend = NULL, *driver = NULL;
    cr_assert_str_eq(dli_config_use(config), "b");
    cr_assert(dli_config_backend_at(config, 0, &backend, &driver));
    cr_assert_str_eq(backend, "a");
    cr_assert_str_eq(driver, "store");
    cr_assert(dli_config_backend_at(config, 2, &backend, &driver));
    cr_assert_str_eq(backend, "local");
    cr_assert_str_eq(driver, "plain");
    cr_assert_not(dli_config_backend_at(config, 3, &backend, &driver));
    cr_assert(dli_config_has_backend(config, "b", &driver));
    cr_assert_not(dli_config_has_backend(config, "B", &driver));
    dli_config_free(config);
}

Test(config, gives_every_kind_of_value) {
    dli_config_t *config = load(whole);
    both_t values = resolve(config, "b");
    const dl_option_value_t *v = values.driver.values;
    cr_assert_eq(values.driver.count, (size_t)STORE_COUNT);
    cr_assert_str_eq(v[STORE_PATH].string, "/y z");
    cr_assert_str_eq(v[STORE_MODE].string, "off");
    cr_assert_eq(v[STORE_CACHE].number, 1572864);
    cr_assert_eq(v[STORE_NODES].list_len, 3u);
    cr_assert_str_eq(v[STORE_NODES].list[0], "n1");
    cr_assert_str_eq(v[STORE_NODES].list[2], "n3");
    cr_assert_eq(v[STORE_TLS].number, 1);
    cr_assert_eq(v[STORE_PORT].number, 6379);
    cr_assert_not(v[STORE_PASSWORD].is_set);
    free_both(&values);
    dli_config_free(config);
}

Test(config, takes_own_values_then_defaults_then_the_tables) {
    dli_config_t *config = load(whole);
    both_t a = resolve(config, "a"), b = resolve(config, "b");
    cr_assert_eq(a.core.values[0].number, 60000);
    cr_assert_eq(b.core.values[0].number, 10000);
    cr_assert(a.core.values[1].is_set);
    cr_assert_eq(a.core.values[1].number, 0);
    cr_assert_not(a.core.values[2].is_set);
    cr_assert_str_eq(a.driver.values[STORE_MODE].string, "wal");
    cr_assert_eq(a.driver.values[STORE_CACHE].number, 2097152);
    cr_assert_str_eq(a.driver.values[STORE_NODES].list[0], "a:1");
    cr_assert(a.driver.values[STORE_TLS].is_set);
    cr_assert_not(a.driver.values[STORE_PORT].is_set);
    free_both(&a);
    free_both(&b);
    dli_config_free(config);
}

Test(config, forgets_the_text_it_was_given) {
    char *yaml = strdup(whole);
    dli_config_t *config = load(yaml);
    memset(yaml, 'x', strlen(yaml));
    both_t values = resolve(config, "a");
    cr_assert_str_eq(values.driver.values[STORE_PATH].string, "/x");
    free_both(&values);
    dli_config_free(config);
    free(yaml);
}

Test(config, reads_a_byte_order_mark_and_other_line_ends) {
    static const char yaml[] =
        "\xEF\xBB\xBF---\r\nbackends:\r\n  a: {driver: store, path: \xC3\xA4}\r\n...\r\n";
    dli_config_t *config = load(yaml);
    both_t values = resolve(config, "a");
    cr_assert_str_eq(values.driver.values[STORE_PATH].string, "\xC3\xA4");
    free_both(&values);
    dli_config_free(config);
}

Test(config, may_use_the_built_in_backend_without_defining_it) {
    dli_config_t *config = load("use: local\ndefaults: {lease: 7s}\n");
    const char *driver;
    both_t values;
    dl_error_t err = {0};
    cr_assert_str_eq(dli_config_use(config), "local");
    cr_assert_not(dli_config_has_backend(config, "local", &driver));
    cr_assert_eq(dli_config_resolve(config, "local", NULL, &values.driver, fake_core, &values.core, &err),
                 DL_OK, "%s", err.message);
    cr_assert_eq(values.core.values[0].number, 7000);
    free_both(&values);
    dli_config_free(config);
}

Test(config, leaves_the_options_of_an_absent_driver_alone) {
    dli_config_t *config = load("backends: {a: {driver: absent, lease: 5s, anything: {b: [c]}}}");
    const char *driver = NULL;
    cr_assert(dli_config_has_backend(config, "a", &driver));
    cr_assert_str_eq(driver, "absent");
    dli_config_free(config);
}

Test(config, says_which_backend_is_not_there) {
    dli_config_t *config = load("use: orders\nbackends:\n  orders: {driver: plain}\n");
    dl_error_t err;
    both_t values;
    cr_assert_eq(dli_config_no_backend(config, "ordes", &err), DL_ECONFIG);
    cr_assert_str_eq(
        err.message,
        "t:2:1: asked for the backend 'ordes', which is not in the file, did you mean 'orders'?");
    cr_assert_eq(dli_config_resolve(config, "zzz", NULL, &values.driver, fake_core, &values.core, &err),
                 DL_ECONFIG);
    cr_assert_str_eq(err.message,
                     "t:2:1: asked for the backend 'zzz', which is not in the file, expected a name "
                     "under 'backends'");
    cr_assert_eq(dli_config_no_backend(config, NULL, &err), DL_ECONFIG);
    cr_assert_str_eq(err.message, "t:2:1: no backend is chosen, expected 'use: name' here or a name in "
                                  "$DLOCK_BACKEND");
    cr_assert_eq(dli_config_no_backend(config, "zzz", NULL), DL_ECONFIG);
    cr_assert_eq(setenv("DLOCK_BACKEND", "zzz", 1), 0);
    cr_assert_eq(dli_config_no_backend(config, "zzz", &err), DL_ECONFIG);
    cr_assert_str_eq(err.message,
                     "t:2:1: $DLOCK_BACKEND asks for the backend 'zzz', which is not in the file, expected a "
                     "name under 'backends'");
    dli_config_free(config);
}

/* ---- variables ------------------------------------------------------------------------------------- */

Test(config, replaces_variables) {
    setenv("CFG_A", "one", 1);
    setenv("CFG_EMPTY", "", 1);
    unsetenv("CFG_NOT");
    both_t v =
        resolve_lines("    password: \"${CFG_A}-$$-${CFG_NOT:-two three}-${CFG_EMPTY:-four}-${CFG_EMPTY}.\"\n"
                      "    lease: ${CFG_NOT:-90s}\n"
                      "    nodes: ['${CFG_A}', \"${CFG_A}${CFG_A}\"]\n");
    cr_assert_str_eq(v.driver.values[STORE_PASSWORD].string, "one-$-two three-four-.");
    cr_assert_eq(v.core.values[0].number, 90000);
    cr_assert_str_eq(v.driver.values[STORE_NODES].list[0], "one");
    cr_assert_str_eq(v.driver.values[STORE_NODES].list[1], "oneone");
    free_both(&v);
}

Test(config, keeps_for_messages_what_the_file_or_the_table_says) {
    setenv("CFG_A", "1000", 1);
    both_t v = resolve_lines("    port: ${CFG_A}\n    password: ${CFG_A}\n    nodes: [\"${CFG_A}\"]\n");
    cr_assert_str_eq(v.driver.written[STORE_PATH], "p");
    cr_assert_str_eq(v.driver.written[STORE_MODE], "wal");
    cr_assert_str_eq(v.driver.written[STORE_PORT], "${CFG_A}");
    cr_assert_null(v.driver.written[STORE_PASSWORD]);
    cr_assert_null(v.driver.written[STORE_NODES]);
    cr_assert_str_eq(v.core.written[0], "30s");
    cr_assert_null(v.core.written[2]);
    free_both(&v);
}

Test(config, asks_only_for_the_variables_of_the_backend_in_use) {
    unsetenv("CFG_NOT");
    dli_config_t *config = load("backends:\n"
                                "  a: {driver: store, path: p}\n"
                                "  b: {driver: store, path: '${CFG_NOT}', port: '${CFG_NOT}'}\n");
    both_t values = resolve(config, "a");
    free_both(&values);
    dli_config_free(config);
}

Test(config, names_the_missing_variable) {
    unsetenv("CFG_NOT");
    expect_failure("    password: ${CFG_NOT}\n",
                   "t:5:15: the variable 'CFG_NOT' is not set, expected it in the environment or a default: "
                   "${CFG_NOT:-default}");
}

Test(config, checks_the_form_of_a_replaced_value_and_does_not_show_it) {
    setenv("CFG_SECRET", "hunter2", 1);
    expect_failure(
        "    port: ${CFG_SECRET}\n",
        "t:5:11: 'port' is '${CFG_SECRET}', whose value has the wrong form, expected a whole number");
    expect_failure(
        "    lease: 5${CFG_SECRET}\n",
        "t:5:12: 'lease' is '5${CFG_SECRET}', whose value has an unknown unit, expected a duration such "
        "as 30s (units: ms, s, m, h, d)");
    expect_failure(
        "    mode: ${CFG_SECRET}\n",
        "t:5:11: 'mode' is '${CFG_SECRET}', whose value is not known, expected one of wal, delete, off");
    setenv("CFG_SECRET", "70000", 1);
    expect_failure("    port: ${CFG_SECRET}\n",
                   "t:5:11: 'port' is '${CFG_SECRET}', whose value is out of range, expected 1 to 65535");
}

Test(config, bounds_what_variables_can_make) {
    char *large = malloc(70001);
    memset(large, 'x', 70000);
    large[70000] = '\0';
    setenv("CFG_LARGE", large, 1);
    expect_failure("    password: ${CFG_LARGE}\n",
                   "t:5:15: 'password' with its variables is too long, expected at most 64 KiB");
    free(large);
}

/* ---- secrets --------------------------------------------------------------------------------------- */

Test(config, reads_a_secret_from_its_file, .init = make_folder, .fini = remove_folder) {
    static const struct {
        const char *file, *secret;
    } cases[] = {{"s3cret\n", "s3cret"},
                 {"s3cret\r\n", "s3cret"},
                 {"s3cret", "s3cret"},
                 {" a$b \n\n", " a$b \n"},
                 {"\xFF\xFE\n", "\xFF\xFE"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char lines[PATH_MAX + 64];
        snprintf(lines, sizeof lines, "    password_file: %s\n",
                 write_file("secret", cases[i].file, strlen(cases[i].file)));
        both_t values = resolve_lines(lines);
        cr_assert_str_eq(values.driver.values[STORE_PASSWORD].string, cases[i].secret);
        free_both(&values);
    }
}

Test(config, refuses_a_secret_file_that_cannot_be_one, .init = make_folder, .fini = remove_folder) {
    char *large = calloc(1, 65537);
    memset(large, 'x', 65537);
    write_file("large", large, 65537);
    write_file("empty", "\n", 1);
    write_file("nul", "a\0b\n", 4);
    free(large);
    cr_assert_eq(mkfifo(path_of("fifo"), 0600), 0);
    setenv("CFG_DIR", folder, 1);
#define FILE_OF "t:5:20: the file of 'password_file' "
    expect_failure("    password_file: ${CFG_DIR}/none\n",
                   FILE_OF "cannot be opened: No such file or directory, expected a readable file");
    expect_failure("    password_file: ${CFG_DIR}\n", FILE_OF "is a directory, expected a readable file");
    expect_failure("    password_file: ${CFG_DIR}/fifo\n",
                   FILE_OF "is not a regular file, expected a readable file");
    expect_failure("    password_file: ${CFG_DIR}/large\n",
                   FILE_OF "is larger than 64 KiB, expected a readable file");
    expect_failure("    password_file: ${CFG_DIR}/empty\n", FILE_OF "is empty, expected a secret");
    expect_failure("    password_file: ${CFG_DIR}/nul\n", FILE_OF "holds a NUL byte, expected a secret");
#undef FILE_OF
}

Test(config, takes_a_required_secret_from_either_place, .init = make_folder, .fini = remove_folder) {
    char yaml[PATH_MAX + 64];
    snprintf(yaml, sizeof yaml, "{key_file: '%s', offset: -9223372036854775807, tags: []}",
             write_file("k", "v", 1));
    both_t values;
    dl_error_t err = {0};
    cr_assert_eq(dli_config_resolve_mapping(yaml, strlen(yaml), "t", fake_vault, &values.driver, fake_core,
                                            &values.core, &err),
                 DL_OK, "%s", err.message);
    cr_assert_str_eq(values.driver.values[0].string, "v");
    cr_assert_eq(values.driver.values[1].number, -INT64_MAX);
    cr_assert(values.driver.values[2].is_set);
    cr_assert_eq(values.driver.values[2].list_len, 0u);
    free_both(&values);
}

/* ---- a mapping alone ------------------------------------------------------------------------------- */

Test(config, resolves_nothing_to_the_defaults) {
    static const char *const nothing[] = {NULL, "", " \n# comment\n", "{}", "---\n", "~"};
    for (size_t i = 0; i < sizeof nothing / sizeof nothing[0]; i++) {
        both_t values;
        dl_error_t err = {0};
        size_t len = nothing[i] == NULL ? 0 : strlen(nothing[i]);
        cr_assert_eq(dli_config_resolve_mapping(nothing[i], len, "<options>", NULL, &values.driver, fake_core,
                                                &values.core, &err),
                     DL_OK, "%s", err.message);
        cr_assert_eq(values.driver.count, 0u);
        cr_assert_eq(values.core.values[0].number, 30000);
        free_both(&values);
    }
}

Test(config, checks_a_mapping_alone) {
    static const struct {
        const char *yaml, *message;
    } cases[] = {
        {"", "<options>:1:1: the driver lacks 'path', expected 'path: value'"},
        {"[a]", "<options>:1:1: the options are a list, expected a mapping of options"},
        {"path: x\ndriver: store\n",
         "<options>:2:1: unknown key 'driver', expected one of path, mode, cache, password, "
         "nodes, tls, port, lease, max_hold, grace"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        both_t values;
        dl_error_t err = {0};
        cr_assert_eq(dli_config_resolve_mapping(cases[i].yaml, strlen(cases[i].yaml), "<options>", fake_store,
                                                &values.driver, fake_core, &values.core, &err),
                     DL_ECONFIG);
        cr_assert_str_eq(err.message, cases[i].message);
    }
}

Test(config, frees_nothing_safely) {
    dli_values_t values = {0};
    dli_values_free(&values);
    dli_values_free(NULL);
    dli_config_free(NULL);
}

/* ---- which file ------------------------------------------------------------------------------------ */

static void forget_settings(void) {
    make_folder();
    unsetenv("DLOCK_CONFIG");
    unsetenv("XDG_CONFIG_HOME");
    unsetenv("HOME");
}

static void expect_found(const char *expected) {
    char path[PATH_MAX];
    dl_error_t err = {0};
    cr_assert_eq(dli_config_find(path, sizeof path, &err), DL_OK, "%s", err.message);
    cr_assert_str_eq(path, expected);
}

Test(config, finds_the_named_file_first, .init = forget_settings, .fini = remove_folder) {
    const char *named = write_file("named.yaml", "x", 1), *user = write_file("dlock/dlock.yaml", "x", 1);
    setenv("XDG_CONFIG_HOME", folder, 1);
    setenv("DLOCK_CONFIG", named, 1);
    expect_found(named);
    setenv("DLOCK_CONFIG", "", 1);
    expect_found(user);
}

Test(config, never_passes_over_the_named_file, .init = forget_settings, .fini = remove_folder) {
    char path[PATH_MAX], expected[PATH_MAX];
    dl_error_t err = {0};
    write_file("dlock/dlock.yaml", "x", 1);
    setenv("XDG_CONFIG_HOME", folder, 1);
    setenv("DLOCK_CONFIG", path_of("none.yaml"), 1);
    cr_assert_eq(dli_config_find(path, sizeof path, &err), DL_ECONFIG);
    snprintf(expected, sizeof expected,
             "%s/none.yaml: $DLOCK_CONFIG names this file, which does not exist, expected a readable file",
             folder);
    cr_assert_str_eq(err.message, expected);
}

Test(config, finds_the_users_file, .init = forget_settings, .fini = remove_folder) {
    const char *home = write_file(".config/dlock/dlock.yaml", "x", 1);
    setenv("HOME", folder, 1);
    expect_found(home);
    setenv("XDG_CONFIG_HOME", "relative", 1);
    expect_found(home);
    setenv("XDG_CONFIG_HOME", "", 1);
    expect_found(home);
    /* A link that leads nowhere is a mistake to be told about, not a reason to take another file. */
    cr_assert_eq(symlink("nowhere", path_of("xdg/dlock/dlock.yaml")), 0);
    setenv("XDG_CONFIG_HOME", path_of("xdg"), 1);
    expect_found(path_of("xdg/dlock/dlock.yaml"));
}

Test(config, says_where_it_looked, .init = forget_settings, .fini = remove_folder) {
    char path[PATH_MAX], expected[PATH_MAX];
    dl_error_t err = {0};
    setenv("HOME", folder, 1);
    if (access("/etc/dlock/dlock.yaml", F_OK) == 0) {
        expect_found("/etc/dlock/dlock.yaml");
        return;
    }
    cr_assert_eq(dli_config_find(path, sizeof path, &err), DL_ECONFIG);
    snprintf(expected, sizeof expected,
             "no configuration, expected one in %s/.config/dlock/dlock.yaml or /etc/dlock/dlock.yaml, or its "
             "path in "
             "$DLOCK_CONFIG",
             folder);
    cr_assert_str_eq(err.message, expected);
    cr_assert_str_empty(path);
    cr_assert_eq(dli_config_find(path, 3, &err), DL_ECONFIG);
}

/* ---- the drivers' own tables --------------------------------------------------------------------------- */

Test(config, understands_every_default_of_every_driver) {
    dl_option_t options[2] = {{0}};
    const dl_driver_t *driver;
    for (size_t i = 0; (driver = dli_registry_at(i)) != NULL; i++) {
        for (const dl_option_t *o = driver->options; o != NULL && o->name != NULL; o++) {
            both_t values;
            dl_error_t err = {0};
            options[0] = *o;
            options[0].required = 0;
            dl_status_t status = dli_config_resolve_mapping(NULL, 0, "t", options, &values.driver,
                                                            dli_core_options, &values.core, &err);
            cr_assert_eq(status, DL_OK, "%s: %s: %s", driver->name, o->name, err.message);
            cr_assert_eq(values.driver.values[0].is_set, o->default_text != NULL);
            free_both(&values);
        }
    }
}
