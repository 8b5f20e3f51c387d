/* config_hostile_test.c - hostile and broken input ends in an error soon, in bounded time and memory. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "core/utf8.h"
#include "config_fake.h"

/* The largest text that is read. */
#define TEXT_MAX ((size_t)1024 * 1024)
/* Each takes some 50 ms and 11 MiB without sanitizers; these bounds are for slow machines with them. */
#define CPU_MS_MAX 3000
#define MEMORY_KIB_MAX (160 * 1024)

static int64_t cpu_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Loads, and resolves every backend if that went well. The message is one line without controls. */
static dl_status_t try_all(const char *yaml, size_t len, dl_error_t *err) {
    dli_config_t *config = NULL;
    const char *backend, *driver;
    dl_status_t status = fake_load(yaml, len, &config, err);
    for (size_t i = 0; status == DL_OK && dli_config_backend_at(config, i, &backend, &driver); i++) {
        dli_values_t driver_values, core_values;
        int compiled_in, known;
        dl_status_t resolved =
            dli_config_resolve(config, backend, fake_options_of(driver, &compiled_in, &known), &driver_values,
                               fake_core, &core_values, err);
        cr_assert(resolved == DL_OK || resolved == DL_ECONFIG, "%s", dl_status_name(resolved));
        dli_values_free(&driver_values);
        dli_values_free(&core_values);
    }
    dli_config_free(config);
    if (status != DL_OK) {
        cr_assert_eq(status, DL_ECONFIG);
        cr_assert_neq(err->message[0], '\0');
        for (const char *c = err->message; *c != '\0'; c++) {
            cr_assert_geq((unsigned char)*c, 0x20, "a control character in the message");
            cr_assert_neq(*c, 0x7F, "a control character in the message");
        }
    }
    return status;
}

/* HEAD, then PIECE as often as it fits into the largest text, then TAIL. */
static void expect_bounded(const char *head, const char *piece, const char *tail, const char *message) {
    char *text = malloc(TEXT_MAX);
    size_t len = strlen(head), step = strlen(piece);
    dl_error_t err;
    struct rusage usage;
    memcpy(text, head, len);
    for (; len + step + strlen(tail) <= TEXT_MAX; len += step) {
        memcpy(text + len, piece, step);
    }
    memcpy(text + len, tail, strlen(tail));
    len += strlen(tail);
    int64_t begin = cpu_ms();
    cr_assert_eq(try_all(text, len, &err), DL_ECONFIG, "it was accepted");
    cr_assert_lt(cpu_ms() - begin, CPU_MS_MAX);
    cr_assert_str_eq(err.message, message);
    getrusage(RUSAGE_SELF, &usage);
    cr_assert_lt(usage.ru_maxrss, MEMORY_KIB_MAX);
    free(text);
}

Test(config_hostile, many_brackets) {
    expect_bounded("", "[", "", "t:1:9: nested too deeply, expected at most 8 levels");
    expect_bounded("", "{a: ", "", "t:1:33: nested too deeply, expected at most 8 levels");
    expect_bounded("", "- ", "", "t:1:17: nested too deeply, expected at most 8 levels");
    expect_bounded("", "? ", "", "t:1:3: a list or mapping as a key, expected a name");
}

Test(config_hostile, many_words) {
    expect_bounded("a: [", "a,", "]", "t:1:199999: more than 100000 words, expected a configuration");
    expect_bounded("", "-\n", "", "t:100000:2: more than 100000 words, expected a configuration");
    expect_bounded("", "a: 1\n", "", "t:50000:4: more than 100000 words, expected a configuration");
}

Test(config_hostile, long_words) {
    static const char unknown[] = "t:1:1: unknown key 'a', expected one of use, defaults, backends";
    expect_bounded("a: ", "x", "", unknown);
    expect_bounded("a: \"", "\\n", "\"", unknown);
    expect_bounded("a: \"", " ", "\"", unknown);
    expect_bounded("a: x", "\n ", "y", unknown);
    expect_bounded("a: |\n", " x\n", "", unknown);
    expect_bounded("a: >\n", "\n", " x\n", unknown);
    expect_bounded("", "x", "", "t:1:1: the configuration is text, expected a mapping with 'backends'");
}

Test(config_hostile, nothing_for_long) {
    static const char nothing[] = "t:1:1: nothing is configured, expected a mapping with 'backends'";
    expect_bounded("", "\n", "", nothing);
    expect_bounded("", " ", "", nothing);
    expect_bounded("", "#\n", "", nothing);
}

Test(config_hostile, many_marks_of_yaml) {
    expect_bounded("", "---\n", "", "t:2:1: a second document, expected one in a file");
    expect_bounded("", "%TAG !a! b\n", "", "t:2:1: a directive '%', expected the document alone");
    expect_bounded("a: &a [x]\nb: ", "*a ", "", "t:1:4: an anchor '&', expected the value alone");
    expect_bounded("", "'", "", "t:1:1: the configuration is text, expected a mapping with 'backends'");
    expect_bounded(
        "", ":", "",
        "t:1:1048576: a ':' where no key can be, expected quotes around a text with ': ' in it, or "
        "another indentation");
}

/* The classic: nine levels of nine aliases each would be a billion words. */
Test(config_hostile, alias_bomb) {
    static const char bomb[] = "a: &a [x, x, x, x, x, x, x, x, x]\n"
                               "b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
                               "c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\n";
    dl_error_t err;
    cr_assert_eq(try_all(bomb, sizeof bomb - 1, &err), DL_ECONFIG);
    cr_assert_str_eq(err.message, "t:1:4: an anchor '&', expected the value alone");
}

Test(config_hostile, many_dollars) {
    expect_bounded("backends: {a: {driver: store, path: '", "$$", "'}}",
                   "t:1:37: 'path' with its variables is too long, expected at most 64 KiB");
}

/* Each backend, key or unknown key costs one look; none costs one a pair. */
Test(config_hostile, many_keys_of_an_absent_driver) {
    char *text = malloc(TEXT_MAX);
    size_t len = (size_t)sprintf(text, "backends: {a: {driver: absent");
    dl_error_t err;
    for (int i = 0; i < 49000; i++) {
        len += (size_t)sprintf(text + len, ", k%d: v", i);
    }
    int64_t begin = cpu_ms();
    size_t good = len + (size_t)sprintf(text + len, "}}");
    cr_assert_eq(try_all(text, good, &err), DL_OK, "%s", err.message);
    size_t bad = len + (size_t)sprintf(text + len, ", k48999: v}}");
    cr_assert_eq(try_all(text, bad, &err), DL_ECONFIG);
    cr_assert_lt(cpu_ms() - begin, CPU_MS_MAX);
    cr_assert_has(err.message, "duplicate key 'k48999', expected it once; the first is in line 1");
    free(text);
}

/* A document with this many backends, all of them right. */
static size_t write_backends(char *text, int count) {
    size_t len = (size_t)sprintf(text, "backends:\n");
    for (int i = 0; i < count; i++) {
        len += (size_t)sprintf(text + len, "  b%d: {driver: plain}\n", i);
    }
    return len;
}

Test(config_hostile, too_many_backends) {
    char *text = malloc(TEXT_MAX);
    dl_error_t err;
    cr_assert_eq(try_all(text, write_backends(text, 1000), &err), DL_OK, "%s", err.message);
    cr_assert_eq(try_all(text, write_backends(text, 1001), &err), DL_ECONFIG);
    cr_assert_str_eq(err.message, "t:1002:3: more than 1000 backends, expected fewer");
    free(text);
}

Test(config_hostile, too_large) {
    char *text = malloc(TEXT_MAX + 1);
    dl_error_t err;
    memset(text, '\n', TEXT_MAX + 1);
    memcpy(text, "use: local", 10);
    cr_assert_eq(try_all(text, TEXT_MAX, &err), DL_OK, "%s", err.message);
    cr_assert_eq(try_all(text, TEXT_MAX + 1, &err), DL_ECONFIG);
    cr_assert_str_eq(err.message, "t:1:1: larger than 1024 KiB, expected a configuration");
    free(text);
}

/* Has every construct, so that every cut falls into another one. */
static const char full[] =
    "\xEF\xBB\xBF# comment\n"
    "---\n"
    "use: 'b'\n"
    "defaults: {lease: 10s, \"max_hold\": '${CFG_NOT:-1h}'}\n"
    "backends:\n"
    "  a: {driver: store, path: \"\\x41\\u00e4\xE2\x82\xAC\", nodes: [n1, 'n''2', \"$$${A:-c}\"]}\n"
    "  b:\n"
    "    driver: store\n"
    "    path: |\n"
    "      two\n"
    "      lines\n"
    "    password: >-\n"
    "      folded\n"
    "      text\n"
    "    nodes:\n"
    "    - n1\n"
    "    - plain\n"
    "      on two lines\n"
    "    cache: 1.5MiB\n"
    "    port: 6379\n"
    "...\n";

/* A copy of exactly this length: a sanitizer sees the first byte read behind it. */
static dl_status_t try_copy(const char *text, size_t len) {
    char *copy = malloc(len == 0 ? 1 : len);
    dl_error_t err;
    memcpy(copy, text, len);
    dl_status_t status = try_all(copy, len, &err);
    free(copy);
    return status;
}

Test(config_hostile, every_truncation) {
    size_t accepted = 0;
    dl_error_t err;
    cr_assert_eq(try_all(full, sizeof full - 1, &err), DL_OK, "%s", err.message);
    for (size_t len = 0; len < sizeof full; len++) {
        accepted += try_copy(full, len) == DL_OK;
    }
    /* Most cuts break something; those behind a whole line of the last backend do not. */
    cr_assert_gt(accepted, 5, "%zu accepted", accepted);
    cr_assert_lt(accepted, sizeof full / 2, "%zu accepted", accepted);
}

Test(config_hostile, every_changed_byte) {
    static const char bytes[] = "\0\n\t :,[]{}'\"#&*!|>%@-?$\\\x80\xC3\xFF";
    char *copy = malloc(sizeof full - 1);
    size_t refused = 0, tried = 0;
    dl_error_t err;
    for (size_t at = 0; at < sizeof full - 1; at++) {
        for (size_t i = 0; i < sizeof bytes - 1; i++, tried++) {
            memcpy(copy, full, sizeof full - 1);
            copy[at] = bytes[i];
            refused += try_all(copy, sizeof full - 1, &err) != DL_OK;
        }
    }
    cr_assert_gt(refused, tried / 2, "%zu of %zu refused", refused, tried);
    cr_assert_lt(refused, tried, "%zu of %zu refused", refused, tried);
    free(copy);
}

/* ---- files ----------------------------------------------------------------------------------------- */

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

/* Loads a file by its path, which the folder's name begins unless it begins with a slash. */
static void expect_file(const char *name, dl_status_t expected, int native, const char *message) {
    char path[PATH_MAX], line[PATH_MAX * 2];
    dli_config_t *config = NULL;
    dl_error_t err = {0};
    snprintf(path, sizeof path, "%s%s%s", name[0] == '/' ? "" : folder, name[0] == '/' ? "" : "/", name);
    dl_status_t status = dli_config_load_file(path, fake_core, &fake_drivers, &config, &err);
    cr_assert_eq(status, expected);
    cr_assert_eq(err.native, native);
    cr_assert_null(config);
    snprintf(line, sizeof line, "%s: %s", path, message);
    cr_assert_str_eq(err.message, line);
}

/* Each open would wait or never end if it were done carelessly; the runner's time limit would tell. */
Test(config_hostile, files_that_are_none, .init = make_folder, .fini = remove_folder) {
    char path[PATH_MAX];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(path, sizeof path, "%s/fifo", folder);
    cr_assert_eq(mkfifo(path, 0600), 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%.90s/socket", folder);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    expect_file("fifo", DL_ECONFIG, 0, "is not a regular file, expected a readable file");
    expect_file("socket", DL_ECONFIG, 0, "is not a regular file, expected a readable file");
    expect_file("/dev/zero", DL_ECONFIG, 0, "is not a regular file, expected a readable file");
    expect_file("/", DL_ECONFIG, 0, "is a directory, expected a readable file");
    close(fd);
}

Test(config_hostile, files_that_cannot_be_read, .init = make_folder, .fini = remove_folder) {
    char path[PATH_MAX];
    struct rlimit limit, none;
    expect_file("none", DL_ECONFIG, ENOENT,
                "cannot be opened: No such file or directory, expected a readable file");
    snprintf(path, sizeof path, "%s/loop", folder);
    cr_assert_eq(symlink("loop", path), 0);
    expect_file("loop", DL_ECONFIG, ELOOP,
                "cannot be opened: Too many levels of symbolic links, expected a readable file");
    snprintf(path, sizeof path, "%s/large", folder);
    FILE *out = fopen(path, "w");
    cr_assert_eq(ftruncate(fileno(out), (off_t)1 << 40), 0);
    fclose(out);
    expect_file("large", DL_ECONFIG, 0, "is larger than 1024 KiB, expected a readable file");
    getrlimit(RLIMIT_NOFILE, &limit);
    none = (struct rlimit){3, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    expect_file("large", DL_ELIMIT, EMFILE,
                "cannot be opened: Too many open files, expected a readable file");
    setrlimit(RLIMIT_NOFILE, &limit);
}

Test(config_hostile, long_names_of_files_lose_their_beginning) {
    char path[300];
    dli_config_t *config = NULL;
    dl_error_t err = {0};
    memset(path, 'x', sizeof path);
    path[0] = '/';
    memcpy(path + sizeof path - 12, "/dlock.yaml", 12);
    cr_assert_eq(dli_config_load_text("zzz: 1", 6, path, fake_core, &fake_drivers, &config, &err),
                 DL_ECONFIG);
    cr_assert_eq(strncmp(err.message, "...xxx", 6), 0);
    cr_assert_has(err.message, "xx/dlock.yaml:1:1: unknown key 'zzz', expected one of use, defaults, "
                               "backends");
}

/* A driver whose one choice makes long messages of such characters. */
static const dl_option_t *long_options_of(const char *driver, int *compiled_in, int *known) {
    static const dl_option_t options[] = {{.name = "mode",
                                           .type = DL_OPTION_STRING,
                                           .choices = "\xC3\xA4\xC3\xB6\xC3\xBC\xC3\xA4\xC3\xB6\xC3\xBC\xC3"
                                                      "\xA4\xC3\xB6\xC3\xBC\xC3\xA4\xC3\xB6\xC3\xBC"
                                                      "\xC3\xA4\xC3\xB6\xC3\xBC\xC3\xA4\xC3\xB6\xC3\xBC\xC3"
                                                      "\xA4\xC3\xB6\xC3\xBC\xC3\xA4\xC3\xB6\xC3\xBC"
                                                      "\xC3\xA4\xC3\xB6\xC3\xBC\xC3\xA4\xC3\xB6\xC3\xBC\xC3"
                                                      "\xA4\xC3\xB6\xC3\xBC\xC3\xA4\xC3\xB6\xC3\xBC"
                                                      "\xC3\xA4\xC3\xB6\xC3\xBC\xC3\xA4\xC3\xB6\xC3\xBC\xC3"
                                                      "\xA4\xC3\xB6\xC3\xBC\xC3\xA4\xC3\xB6\xC3\xBC"
                                                      "\xC3\xA4\xC3\xB6\xC3\xBC\xC3\xA4\xC3\xB6\xC3\xBC\xC3"
                                                      "\xA4\xC3\xB6\xC3\xBC\xC3\xA4\xC3\xB6\xC3\xBC"},
                                          {.name = NULL}};
    (void)driver;
    *compiled_in = *known = 1;
    return options;
}

Test(config_hostile, long_messages_lose_their_end) {
    static const dli_driver_lookup_t long_drivers = {long_options_of, fake_name_at};
    static const char yaml[] = "backends: {a: {driver: x, mode: y}}";
    char path[101];
    dli_config_t *config = NULL;
    dl_error_t err = {0};
    int cut = 0;
    for (size_t len = 1; len < sizeof path; len++) {
        uint32_t code;
        memset(path, 'x', len);
        path[len] = '\0';
        dl_status_t status =
            dli_config_load_text(yaml, sizeof yaml - 1, path, fake_core, &long_drivers, &config, &err);
        cr_assert_eq(status, DL_ECONFIG);
        for (const char *at = err.message; *at != '\0'; at += dli_utf8_next(at, strlen(at), &code)) {
            cr_assert_neq(dli_utf8_next(at, strlen(at), &code), 0u, "not UTF-8");
        }
        cut += strcmp(err.message + strlen(err.message) - 3, "...") == 0;
    }
    cr_assert_gt(cut, 10, "%d cut", cut);
    cr_assert_lt(cut, 100, "%d cut", cut);
}
