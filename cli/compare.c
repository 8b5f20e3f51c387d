/* compare.c - dlock compare: one workload over several backends, one after the other. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "clock.h"
#include "commands.h"
#include "compare.h"
#include "configured.h"
#include "exits.h"
#include "report.h"
#include "signals.h"
#include "suggest.h"

/* ---- which backends ----------------------------------------------------------------------------- */

static const configured_row_t *find_backend(const configured_t *configured, const char *name) {
    static const configured_row_t built_in = {.backend = LOCAL_BACKEND, .driver = LOCAL_DRIVER};
    for (size_t i = 0; i < configured->count; i++) {
        if (strcmp(configured->rows[i].backend, name) == 0) {
            return &configured->rows[i];
        }
    }
    return strcmp(name, LOCAL_BACKEND) == 0 ? &built_in : NULL;
}

static int no_memory(void) {
    error_line("%s", dl_status_text(DL_ENOMEM));
    return exit_status_of(DL_ENOMEM);
}

static int unknown_backend(const configured_t *configured, const char *name, const char *source) {
    nearest_t nearest = {.written = name};
    for (size_t i = 0; i < configured->count; i++) {
        try_word(&nearest, configured->rows[i].backend);
    }
    if (nearest.word != NULL) {
        error_line("%s has no backend '%s'; did you mean %s?", plain(source), plain(name),
                   plain(nearest.word));
    } else {
        error_line("%s has no backend '%s'; see 'dlock backends'", plain(source), plain(name));
    }
    return EX_CONFIG;
}

/* Those that are named. 0, or an exit status after a line. */
static int choose_named(const options_t *options, const configured_t *configured, const char *source,
                        configured_t *chosen) {
    for (int i = -1; i < options->arg_count; i++) {
        const char *name = i < 0 ? options->backend : options->args[i];
        if (name == NULL) {
            continue;
        }
        const configured_row_t *found = find_backend(configured, name);
        if (found == NULL) {
            return unknown_backend(configured, name, source);
        }
        if (!configured_add(chosen, found->backend, found->driver)) {
            return no_memory();
        }
    }
    return 0;
}

/* Those that are named, or else all of the configuration; where it has none, the one that needs none. */
static int choose(const options_t *options, configured_t *chosen) {
    configured_t configured = {.rows = NULL};
    char source[4096] = "--local";
    dl_error_t err;
    dl_status_t status = DL_OK;
    if (!options->local) {
        status = configured_read(&configured, options->config, source, sizeof source, &err);
    }
    int failed = status == DL_OK ? 0 : report_unopened(options, status, &err);
    if (failed == 0 && configured.count == 0 && !configured_add(&configured, LOCAL_BACKEND, LOCAL_DRIVER)) {
        failed = no_memory();
    }
    if (failed == 0) {
        failed = choose_named(options, &configured, source, chosen);
    }
    if (failed == 0 && chosen->count == 0) {
        *chosen = configured;
        return 0;
    }
    configured_free(&configured);
    return failed;
}

/* ---- one after the other ------------------------------------------------------------------------ */

typedef struct comparison {
    const options_t *options;
    plan_t plan;
    widths_t widths;
    bool as_json, as_table;
    int signal_fd, caught;
    row_t *rows;
    size_t done;
    bool failed, violated;
} comparison_t;

/* Ctrl-C and the like are read here, and the workers, who inherit the mask, leave them to us. The others do
 * what they always do: Ctrl-Z stops all. */
static int read_ending_signals(void) {
    signals_t signals;
    signals_begin(&signals);
    sigset_t mask = signals.inherited_mask;
    (void)sigaddset(&mask, SIGTTOU);
    for (int number = 1; number < NSIG; number++) {
        if (sigismember(&signals.ending, number) == 1) {
            (void)sigaddset(&mask, number);
        }
    }
    (void)sigprocmask(SIG_SETMASK, &mask, NULL);
    return signalfd(-1, &signals.ending, SFD_CLOEXEC | SFD_NONBLOCK);
}

static plan_t make_plan(const options_t *options) {
    plan_t plan = {.options = options,
                   .processes = options->processes,
                   .threads = options->threads,
                   .names = options->names,
                   .hold_ns = ns_of_ms(options->hold_ms),
                   .duration_ns = ns_of_ms(options->duration_ms)};
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
        random = now_ns(); /* cannot happen for so few bytes */
    }
    (void)snprintf(plan.prefix, sizeof plan.prefix, "dlock.compare.%016" PRIx64, random);
    return plan;
}

static int width_of(const char *text, int least) {
    int len = (int)strlen(text);
    return len > least ? len : least;
}

static void begin(comparison_t *comparison, const configured_t *chosen) {
    comparison->widths = (widths_t){width_of("backend", 0), width_of("driver", 0)};
    for (size_t i = 0; i < chosen->count; i++) {
        widths_t *widths = &comparison->widths;
        widths->backend = width_of(plain(chosen->rows[i].backend), widths->backend);
        widths->driver = width_of(chosen->rows[i].driver, widths->driver);
    }
    if (comparison->as_json) {
        print_head_json(&comparison->plan);
    } else if (comparison->as_table) {
        print_head(&comparison->plan, &comparison->widths);
    }
}

static void measure_all(comparison_t *comparison, const configured_t *chosen) {
    progress_t progress = {.on = isatty(STDERR_FILENO) == 1 && !comparison->options->quiet,
                           .count = chosen->count};
    for (size_t i = 0; i < chosen->count; i++) {
        /* Each row is seen as soon as it is known, and the workers inherit no buffer with anything in it.
         * No server is loaded for rows that cannot be seen. */
        if (!flush_stdout()) {
            return;
        }
        row_t *row = &comparison->rows[comparison->done++];
        row->backend = chosen->rows[i].backend;
        (void)snprintf(row->driver, sizeof row->driver, "%s", chosen->rows[i].driver);
        comparison->plan.backend = row->backend;
        progress.number = i + 1;
        measure(&comparison->plan, &progress, comparison->signal_fd, &comparison->caught, row);
        comparison->violated |= violations_sum(&row->violations) > 0;
        comparison->failed |= row->error[0] != '\0';
        if (comparison->as_json) {
            print_row_json(row);
        } else if (comparison->as_table) {
            print_row(row, &comparison->widths);
        }
    }
}

static void end(const comparison_t *comparison) {
    if (comparison->as_json) {
        print_end_json(comparison->caught);
    }
    bool separated = false;
    for (size_t i = 0; i < comparison->done && comparison->as_table; i++) {
        if (!separated && has_notes(&comparison->rows[i])) {
            (void)putchar('\n');
            separated = true;
        }
        print_notes(&comparison->rows[i]);
    }
    if (comparison->caught != 0) {
        notice_line("the comparison was ended by %s; what was measured until then is shown",
                    signal_name(comparison->caught).text);
    }
}

static int compare_all(const options_t *options, const configured_t *chosen) {
    comparison_t comparison = {.options = options,
                               .plan = make_plan(options),
                               .as_json = options->json && !options->quiet,
                               .as_table = !options->json && !options->quiet};
    comparison.signal_fd = read_ending_signals();
    comparison.rows = calloc(chosen->count, sizeof *comparison.rows);
    if (comparison.signal_fd < 0 || comparison.rows == NULL) {
        error_line("no descriptor or memory: %s", strerror(errno));
        free(comparison.rows);
        return EX_OSERR;
    }
    begin(&comparison, chosen);
    measure_all(&comparison, chosen);
    end(&comparison);
    free(comparison.rows);
    (void)close(comparison.signal_fd);
    if (comparison.caught != 0 && !comparison.violated) {
        return EXIT_SIGNAL_BASE + comparison.caught;
    }
    return comparison.failed || comparison.violated ? EXIT_NO : 0;
}

int command_compare(const options_t *options) {
    configured_t chosen = {.rows = NULL};
    int exit_status = choose(options, &chosen);
    if (exit_status == 0) {
        exit_status = compare_all(options, &chosen);
    }
    configured_free(&chosen);
    return exit_status;
}
