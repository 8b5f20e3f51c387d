/* compare_print.c - how dlock compare shows its rows: a table, JSON, and a line of progress. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "commands.h"
#include "compare.h"
#include "dlock/driver.h"
#include "json.h"
#include "report.h"
#include "signals.h"
#include "terminal.h"

#define NS_PER_US 1000.0
#define NO_VALUE "-"

/* A number by its first three digits. */
static const char *three_digits(double value, char *text, size_t size) {
    (void)snprintf(text, size, "%.*f", value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value);
    return text;
}

/* ---- the table ---------------------------------------------------------------------------------- */

typedef struct column {
    const char *above, *heading;
    int width;
} column_t;

enum { RATE, WAIT_P50, WAIT_P99, HANDOFF, FAIRNESS, TRIPS, VIOLATIONS, COLUMNS };

static const column_t columns[COLUMNS] = {
    [RATE] = {"", "acq/s", 6},
    [WAIT_P50] = {"wait", "p50", 7},
    [WAIT_P99] = {"wait", "p99", 7},
    [HANDOFF] = {"hand-off", "p50", 8},
    [FAIRNESS] = {"fair-", "ness", 5},
    [TRIPS] = {"trips/", "pair", 6},
    [VIOLATIONS] = {"viola-", "tions", 6},
};

static void print_left(const char *text, int width) {
    (void)printf("%s%*s", text, width > columns_of(text) ? width - columns_of(text) : 0, "");
}

static void print_right(const char *text, int width) {
    (void)printf("  %*s%s", width > columns_of(text) ? width - columns_of(text) : 0, "", text);
}

static const char *percentile_text(const histogram_t *histogram, unsigned percent, char *text, size_t size) {
    if (histogram->count == 0) {
        return NO_VALUE;
    }
    (void)snprintf(text, size, "%s", dl_driver_measured(histogram_percentile(histogram, percent)).text);
    return text;
}

static double rate(const row_t *row) {
    return row->measured_ns > 0 ? (double)row->acquisitions * 1e9 / (double)row->measured_ns : 0;
}

static double trips_a_pair(const row_t *row) {
    return row->pairs > 0 ? (double)row->round_trips / (double)row->pairs : 0;
}

void print_head(const plan_t *plan, const widths_t *widths) {
    (void)printf("processes: %d, threads each: %d, names: %d, hold: %s, duration: %s a backend\n\n",
                 plan->processes, plan->threads, plan->names,
                 dl_driver_duration((int64_t)(plan->hold_ns / NS_PER_MS)).text,
                 dl_driver_duration((int64_t)(plan->duration_ns / NS_PER_MS)).text);
    print_left("", widths->backend + 2 + widths->driver);
    for (size_t i = 0; i < COLUMNS; i++) {
        print_right(columns[i].above, columns[i].width);
    }
    (void)putchar('\n');
    print_left("backend", widths->backend + 2);
    print_left("driver", widths->driver);
    for (size_t i = 0; i < COLUMNS; i++) {
        print_right(columns[i].heading, columns[i].width);
    }
    (void)putchar('\n');
}

void print_row(const row_t *row, const widths_t *widths) {
    print_left(plain(row->backend), widths->backend + 2);
    if (!row->measured) {
        print_left(row->driver, widths->driver);
        (void)fputs("  not measured: ", stdout);
        print_prose(row->error);
        (void)putchar('\n');
        return;
    }
    char texts[COLUMNS][32];
    const char *cells[COLUMNS] = {
        [RATE] = three_digits(rate(row), texts[RATE], sizeof texts[RATE]),
        [WAIT_P50] = percentile_text(&row->waits, 50, texts[WAIT_P50], sizeof texts[WAIT_P50]),
        [WAIT_P99] = percentile_text(&row->waits, 99, texts[WAIT_P99], sizeof texts[WAIT_P99]),
        [HANDOFF] = percentile_text(&row->handoffs, 50, texts[HANDOFF], sizeof texts[HANDOFF]),
        [FAIRNESS] = NO_VALUE,
        [TRIPS] = NO_VALUE,
        [VIOLATIONS] = texts[VIOLATIONS],
    };
    if (row->acquisitions > 0) {
        (void)snprintf(texts[FAIRNESS], sizeof texts[FAIRNESS], "%.3f", row->fairness);
        cells[FAIRNESS] = texts[FAIRNESS];
    }
    if (row->pairs > 0) {
        cells[TRIPS] = three_digits(trips_a_pair(row), texts[TRIPS], sizeof texts[TRIPS]);
    }
    (void)snprintf(texts[VIOLATIONS], sizeof texts[VIOLATIONS], "%" PRIu64, violations_sum(&row->violations));
    print_left(row->driver, widths->driver);
    for (size_t i = 0; i < COLUMNS; i++) {
        print_right(cells[i], columns[i].width);
    }
    (void)putchar('\n');
}

/* There always are some where several wait. Worth a word where the table would look worse with them. */
static bool has_long_unfinished(const row_t *row) {
    return row->unfinished > 0 && row->unfinished_max_ns > histogram_percentile(&row->waits, 99);
}

bool has_notes(const row_t *row) {
    bool has = row->lost > 0 || has_long_unfinished(row) || row->measured_ns < row->planned_ns ||
               violations_sum(&row->violations) > 0 || row->error[0] != '\0';
    for (size_t status = 0; status < DL_STATUS_COUNT; status++) {
        has |= row->errors[status] > 0;
    }
    return row->measured && has;
}

void print_notes(const row_t *row) {
    if (!has_notes(row)) {
        return;
    }
    const char *name = plain(row->backend);
    if (row->measured_ns < row->planned_ns) {
        (void)printf("%s: measured for %s only\n", name, dl_driver_measured(row->measured_ns).text);
    }
    if (row->error[0] != '\0') {
        (void)printf("%s: ", name);
        print_prose(row->error);
        (void)putchar('\n');
    }
    const violations_t *seen = &row->violations;
    if (violations_sum(seen) > 0) {
        (void)printf("%s: violations: %" PRIu64 " overlapping holds, %" PRIu64 " tokens that did not rise, "
                     "%" PRIu64 " lost updates\n",
                     name, seen->overlaps, seen->fallen_tokens, seen->lost_updates);
    }
    if (row->lost > 0) {
        (void)printf("%s: %" PRIu64 " hold%s lost, and reported so\n", name, row->lost,
                     row->lost == 1 ? "" : "s");
    }
    if (has_long_unfinished(row)) {
        (void)printf("%s: %" PRIu64 " call%s cut off at the end, the longest after %s\n", name,
                     row->unfinished, row->unfinished == 1 ? " was" : "s were",
                     dl_driver_measured(row->unfinished_max_ns).text);
    }
    for (int status = 0; status < DL_STATUS_COUNT; status++) {
        if (row->errors[status] > 0) {
            (void)printf("%s: %" PRIu64 " call%s ended with %s\n", name, row->errors[status],
                         row->errors[status] == 1 ? "" : "s", dl_status_name((dl_status_t)status));
        }
    }
    if (row->first_error[0] != '\0') {
        (void)printf("%s: first of these: ", name);
        print_prose(row->first_error);
        (void)putchar('\n');
    }
}

/* ---- JSON --------------------------------------------------------------------------------------- */

void print_head_json(const plan_t *plan) {
    json_open(NULL, '{');
    json_number("processes", plan->processes);
    json_number("threads", plan->threads);
    json_number("names", plan->names);
    json_unsigned("hold_ms", plan->hold_ns / NS_PER_MS);
    json_unsigned("duration_ms", plan->duration_ns / NS_PER_MS);
    json_open("backends", '[');
}

static void print_times_json(const char *key, const histogram_t *histogram) {
    json_open(key, '{');
    json_unsigned("count", histogram->count);
    if (histogram->count > 0) {
        json_real("p50_us", (double)histogram_percentile(histogram, 50) / NS_PER_US, 3);
        json_real("p99_us", (double)histogram_percentile(histogram, 99) / NS_PER_US, 3);
        json_real("max_us", (double)histogram->max_ns / NS_PER_US, 3);
    } else {
        json_null("p50_us");
        json_null("p99_us");
        json_null("max_us");
    }
    json_close('}');
}

static void print_measured_json(const row_t *row) {
    json_text("server", row->server);
    json_unsigned("measured_ms", row->measured_ns / NS_PER_MS);
    json_unsigned("acquisitions", row->acquisitions);
    json_real("acquisitions_per_s", rate(row), 3);
    print_times_json("wait", &row->waits);
    print_times_json("handoff", &row->handoffs);
    if (row->acquisitions > 0) {
        json_real("fairness_jain", row->fairness, 4);
    } else {
        json_null("fairness_jain");
    }
    json_unsigned("round_trips", row->round_trips);
    if (row->pairs > 0) {
        json_real("round_trips_per_pair", trips_a_pair(row), 3);
    } else {
        json_null("round_trips_per_pair");
    }
    json_unsigned("violations", violations_sum(&row->violations));
    json_unsigned("overlapping_holds", row->violations.overlaps);
    json_unsigned("fallen_tokens", row->violations.fallen_tokens);
    json_unsigned("lost_updates", row->violations.lost_updates);
    json_bool("tokens_checked", row->tokens_checked);
    json_unsigned("lost", row->lost);
    json_unsigned("unfinished", row->unfinished);
    json_real("unfinished_max_us", (double)row->unfinished_max_ns / NS_PER_US, 3);
    json_open("errors", '{');
    for (int status = 0; status < DL_STATUS_COUNT; status++) {
        if (row->errors[status] > 0) {
            json_unsigned(dl_status_name((dl_status_t)status), row->errors[status]);
        }
    }
    json_close('}');
}

void print_row_json(const row_t *row) {
    json_open(NULL, '{');
    json_text("backend", row->backend);
    json_text("driver", row->driver);
    json_bool("measured", row->measured);
    json_text_or_null("error", row->error);
    if (row->measured) {
        print_measured_json(row);
    }
    json_close('}');
}

void print_end_json(int signal) {
    json_close(']');
    json_text_or_null("ended_by", signal != 0 ? signal_name(signal).text : "");
    json_close('}');
    json_end();
    (void)flush_stdout();
}

/* ---- progress ----------------------------------------------------------------------------------- */

void progress_show(const progress_t *progress, const plan_t *plan, const char *phase, uint64_t left_ns,
                   uint64_t acquired) {
    if (!progress->on) {
        return;
    }
    char line[256];
    int len = snprintf(line, sizeof line, "%zu/%zu %.63s: %s", progress->number, progress->count,
                       plain(plan->backend), phase);
    if (left_ns > 0) {
        len += snprintf(line + len, sizeof line - (size_t)len, ", %s left", dl_driver_measured(left_ns).text);
    }
    if (acquired > 0) {
        (void)snprintf(line + len, sizeof line - (size_t)len, ", %" PRIu64 " acquisitions", acquired);
    }
    /* What is wider than the terminal could not be rewritten. */
    (void)fprintf(stderr, "\r\033[K%.*s", terminal_width(STDERR_FILENO) - 1, line);
    (void)fflush(stderr);
}

void progress_clear(const progress_t *progress) {
    if (progress->on) {
        (void)fputs("\r\033[K", stderr);
        (void)fflush(stderr);
    }
}
