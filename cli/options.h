/* options.h - what the command line says, and the table of what it may say. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One bit a subcommand, so that an option can say where it belongs. */
enum {
    IN_RUN = 1u << 0,
    IN_STATUS = 1u << 1,
    IN_LIST = 1u << 2,
    IN_UNLOCK = 1u << 3,
    IN_CHECK = 1u << 4,
    IN_INIT = 1u << 5,
    IN_BACKENDS = 1u << 6,
    IN_VERSION = 1u << 7,
    IN_HELP = 1u << 8,
    IN_COMPARE = 1u << 9,
    IN_ALL = (1u << 10) - 1
};

#define WAIT_FOREVER (-1)
#define GRACE_DEFAULT (-1)
#define OPTION_COUNT_MAX 32
#define ARGUMENTS_MAX 64 /* of one subcommand */

typedef struct options options_t;

typedef struct command {
    const char *name;
    unsigned bit;
    int args_min, args_max; /* words after the subcommand, a command after "--" not counted */
    const char *args;       /* how they are written */
    const char *missing;    /* what is said when there are too few */
    const char *summary;
    int (*run)(const options_t *options);
} command_t;

typedef enum option_kind { OPTION_FLAG, OPTION_TEXT, OPTION_DURATION, OPTION_NUMBER } option_kind_t;

typedef struct option_spec {
    const char *name; /* with its dashes */
    char letter;      /* 0: none */
    option_kind_t kind;
    unsigned commands;      /* where it belongs */
    size_t offset;          /* of its field in options_t */
    int64_t min_ms, max_ms; /* of durations */
    int min, max;           /* of numbers */
    const char *word;       /* a word that stands for a duration, such as "forever" */
    int64_t word_ms;
    const char *value; /* how the value is called */
    const char *help;
} option_spec_t;

struct options {
    const command_t *command;
    const char *config, *backend;
    bool local, json, quiet, verbose, force, print, sql, help, version;
    int64_t wait_ms, lease_ms, max_hold_ms, grace_ms;
    int processes, threads, names;   /* compare */
    int64_t hold_ms, duration_ms;    /* compare */
    const char *args[ARGUMENTS_MAX]; /* the name, the prefix, the help topic or the backends */
    int arg_count;
    char **child; /* what follows "--"; NULL: nothing did */
};

extern const command_t commands[];         /* main.c; ends with name == NULL */
extern const option_spec_t option_specs[]; /* option_table.c; ends with name == NULL */

const command_t *find_command(const char *name);
/* 0, or EX_USAGE after one line on stderr. */
int options_parse(char **argv, options_t *options);

#endif
