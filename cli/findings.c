/* findings.c - prints what dlock check and init find, line by line, and counts it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "findings.h"

#include <stdio.h>
#include <unistd.h>

#include "json.h"
#include "report.h"
#include "terminal.h"

static const struct {
    const char *name;
    const char *colour; /* of SGR */
} levels[] = {[DL_FINDING_OK] = {"ok", "32"},
              [DL_FINDING_NOTE] = {"note", "36"},
              [DL_FINDING_WARNING] = {"warning", "33"},
              [DL_FINDING_ERROR] = {"error", "31"}};

static void print_line(findings_t *findings, dl_finding_level_t level, const char *subject,
                       const char *text) {
    const char *name = levels[level].name;
    if (terminal_has_colour(STDOUT_FILENO)) {
        (void)printf("\033[%sm%s\033[0m", levels[level].colour, name);
    } else {
        (void)fputs(name, stdout);
    }
    (void)printf("%*s", FINDING_INDENT - columns_of(name), "");
    findings->wrap.column = FINDING_INDENT;
    findings->wrap.blanks = 0;
    print_wrapped(&findings->wrap, subject);
    print_wrapped(&findings->wrap, ": ");
    print_wrapped(&findings->wrap, text);
    (void)putchar('\n');
}

void print_finding(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    findings_t *findings = arg;
    level = (unsigned)level <= DL_FINDING_ERROR ? level : DL_FINDING_ERROR;
    findings->errors += level == DL_FINDING_ERROR;
    findings->warnings += level == DL_FINDING_WARNING;
    if (findings->options->quiet) {
        if (level == DL_FINDING_ERROR && findings->tells_errors) {
            error_line("%s: %s", plain(subject), plain(text));
        }
    } else if (findings->options->json) {
        json_open(NULL, '{');
        json_text("level", levels[level].name);
        json_text("subject", subject);
        json_text("text", text);
        json_close('}');
    } else {
        print_line(findings, level, subject, text);
    }
}

void print_counts(const findings_t *findings) {
    (void)printf("%zu error%s, %zu warning%s\n", findings->errors, findings->errors == 1 ? "" : "s",
                 findings->warnings, findings->warnings == 1 ? "" : "s");
}
