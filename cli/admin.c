/* admin.c - dlock check, init, backends and version: looking at backends. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "commands.h"
#include "configured.h"
#include "exits.h"
#include "findings.h"
#include "json.h"
#include "report.h"
#include "terminal.h"

static void print_caps_json(uint32_t caps) {
    static const struct {
        uint32_t bit;
        const char *name;
    } names[] = {{DL_CAP_LEASE, "lease"},
                 {DL_CAP_SESSION, "session"},
                 {DL_CAP_FENCE, "fence"},
                 {DL_CAP_SERVER_COUNT, "server-count"},
                 {DL_CAP_NATIVE_WAIT, "native-wait"},
                 {DL_CAP_NOTIFY, "notify"}};
    json_open("caps", '[');
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if ((caps & names[i].bit) != 0) {
            json_text(NULL, names[i].name);
        }
    }
    json_close(']');
}

/* The line above the findings. */
static void print_checked(const dl_client_info_t *info, wrap_t *wrap) {
    const char *const pieces[] = {"backend '",
                                  plain(info->backend),
                                  "', driver ",
                                  plain(info->driver),
                                  info->server[0] != '\0' ? ", " : "",
                                  info->server};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        print_wrapped(wrap, pieces[i]);
    }
    (void)putchar('\n');
}

int command_check(const options_t *options) {
    dl_client_t *client;
    int failed = open_client(options, &client);
    if (failed != 0) {
        return failed;
    }
    dl_client_info_t info = DL_CLIENT_INFO_INIT;
    (void)dl_client_info(client, &info);
    bool as_json = options->json && !options->quiet;
    if (as_json) {
        json_open(NULL, '{');
        json_text("backend", info.backend);
        json_text("driver", info.driver);
        json_text("server", info.server);
        print_caps_json(info.caps);
        json_open("findings", '[');
    }
    findings_t findings = {.options = options,
                           .wrap = {.width = terminal_width(STDOUT_FILENO), .indent = FINDING_INDENT}};
    bool as_text = !options->json && !options->quiet;
    if (as_text) {
        print_checked(&info, &findings.wrap);
    }
    dl_error_t err;
    stdout_hold();
    dl_status_t status = dl_client_check(client, print_finding, &findings, &err);
    stdout_release();
    if (as_json) {
        json_close(']');
        json_unsigned("errors", findings.errors);
        json_unsigned("warnings", findings.warnings);
        json_close('}');
        json_end();
    } else if (as_text && status == DL_OK) {
        print_counts(&findings);
    }
    dl_client_close(client);
    if (status != DL_OK) {
        return report_failure(status, &err);
    }
    return findings.errors > 0 ? EXIT_NO : 0;
}

/* The path of the configuration. For --local it is a file without a name, since these calls take no text. */
static const char *config_path(const options_t *options, char *room, size_t size) {
    if (!options->local) {
        return options->config;
    }
    int fd = memfd_create("local", MFD_CLOEXEC);
    size_t len = sizeof LOCAL_CONFIG - 1;
    ssize_t written = write(fd, LOCAL_CONFIG, len);
    (void)written; /* should it fail, the library says what is wrong with the file */
    (void)snprintf(room, size, "/proc/self/fd/%d", fd);
    return room; /* the end of the process closes it */
}

/* ---- init ---------------------------------------------------------------------------------------------- */

static bool is_sql(const char *subject) {
    return strcmp(subject, "sql") == 0;
}

static void count_sql(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    size_t *count = arg;
    (void)level;
    (void)text;
    *count += is_sql(subject);
}

/* What is no statement to be run is a comment. */
static void print_sql(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    (void)arg;
    (void)level;
    (void)fputs(is_sql(subject) ? "" : "-- ", stdout);
    print_prose(text);
    (void)putchar('\n');
}

/* Nothing is printed unless it is all there. Printing asks no server, so it can be done twice. */
static int init_sql(const options_t *options, const char *path, const char *backend) {
    size_t count = 0;
    dl_error_t err;
    if (options->json) {
        return usage_error("--sql prints SQL; leave out --json");
    }
    dl_status_t status = dl_backend_init(path, backend, DL_INIT_PRINT, count_sql, &count, &err);
    if (status == DL_ENOTSUP || (status == DL_OK && count == 0)) {
        return usage_error("this backend has no SQL; see 'dlock init --print'");
    }
    if (status == DL_OK && !options->quiet) {
        status = dl_backend_init(path, backend, DL_INIT_PRINT, print_sql, NULL, &err);
    }
    return status == DL_OK ? 0 : report_unopened(options, status, &err);
}

int command_init(const options_t *options) {
    char room[64];
    const char *path = config_path(options, room, sizeof room);
    const char *backend = options->local ? LOCAL_BACKEND : options->backend;
    if (options->sql) {
        return init_sql(options, path, backend);
    }
    findings_t findings = {.options = options, .tells_errors = true};
    bool as_json = options->json && !options->quiet;
    if (as_json) {
        json_open(NULL, '{');
        json_open("steps", '[');
    }
    dl_error_t err;
    stdout_hold();
    dl_status_t status =
        dl_backend_init(path, backend, options->print ? DL_INIT_PRINT : 0, print_finding, &findings, &err);
    stdout_release();
    if (as_json) {
        bool failed = findings.errors > 0 || (status != DL_OK && status != DL_ENOTSUP);
        json_close(']');
        json_bool("done", !options->print && !failed);
        json_close('}');
        json_end();
    }
    if (status == DL_ENOTSUP) {
        notice_line("nothing has to be created for this backend");
        return 0;
    }
    if (status != DL_OK) {
        return report_unopened(options, status, &err);
    }
    return findings.errors > 0 ? EXIT_NO : 0;
}

static void print_backends_json(const char *source, const configured_t *configured) {
    json_open(NULL, '{');
    json_text_or_null("config", source);
    json_open("backends", '[');
    for (size_t i = 0; i < configured->count; i++) {
        const configured_row_t *row = &configured->rows[i];
        json_open(NULL, '{');
        json_text("backend", row->backend);
        json_text("driver", row->driver);
        json_bool("compiled_in", row->compiled_in);
        json_bool("selected", row->selected);
        json_close('}');
    }
    json_close(']');
    json_close('}');
    json_end();
}

static void print_backends_text(const char *source, const configured_t *configured) {
    (void)printf("configuration: %s\n", source[0] != '\0' ? plain(source) : "none");
    for (size_t i = 0; i < configured->count; i++) {
        const configured_row_t *row = &configured->rows[i];
        (void)printf("%c %s: driver %s%s\n", row->selected ? '*' : ' ', plain(row->backend),
                     plain(row->driver), row->compiled_in ? "" : " (not in this build)");
    }
}

int command_backends(const options_t *options) {
    /* The path comes last and is printed first. */
    configured_t configured = {.rows = NULL};
    char source[4096] = "";
    char room[64];
    const char *path = config_path(options, room, sizeof room);
    dl_error_t err;
    dl_status_t status = configured_read(&configured, path, source, sizeof source, &err);
    if (status != DL_OK) {
        configured_free(&configured);
        return report_unopened(options, status, &err);
    }
    if (options->local) {
        source[0] = '\0';
    }
    if (!options->quiet && options->json) {
        print_backends_json(source, &configured);
    } else if (!options->quiet) {
        print_backends_text(source, &configured);
    }
    configured_free(&configured);
    return 0;
}

static int print_driver_json(void *arg, const char *name, uint32_t caps, const char *summary) {
    (void)arg;
    json_open(NULL, '{');
    json_text("name", name);
    json_text("summary", summary);
    print_caps_json(caps);
    json_close('}');
    return 0;
}

static int print_driver_text(void *arg, const char *name, uint32_t caps, const char *summary) {
    (void)arg;
    (void)caps;
    (void)printf("driver %s: %s\n", name, summary);
    return 0;
}

int command_version(const options_t *options) {
    if (options->quiet) {
        return 0;
    }
    if (options->json) {
        json_open(NULL, '{');
        json_text("version", DL_VERSION_STRING);
        json_text("library", dl_version());
        json_open("drivers", '[');
        dl_drivers(print_driver_json, NULL);
        json_close(']');
        json_close('}');
        json_end();
        return 0;
    }
    bool same = strcmp(DL_VERSION_STRING, dl_version()) == 0;
    (void)printf("dlock %s%s%s%s\n", DL_VERSION_STRING, same ? "" : " (library ", same ? "" : dl_version(),
                 same ? "" : ")");
    dl_drivers(print_driver_text, NULL);
    return 0;
}
