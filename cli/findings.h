/* findings.h - prints what dlock check and init find, line by line, and counts it. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_FINDINGS_H
#define CLI_FINDINGS_H

#include "dlock/dlock.h"
#include "options.h"
#include "text.h"

typedef struct findings {
    const options_t *options;
    bool tells_errors; /* with --quiet too */
    wrap_t wrap;       /* of lines on a terminal */
    size_t errors, warnings;
} findings_t;

/* Columns before the text of a line: the longest level and a blank. */
#define FINDING_INDENT 9

/* A dl_finding_fn; `arg` is a findings_t. */
void print_finding(void *arg, dl_finding_level_t level, const char *subject, const char *text);
/* The last line: how many errors and warnings there were. */
void print_counts(const findings_t *findings);

#endif
