/* options.c - reads the command line. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <stdio.h>
#include <string.h>

#include "config/scalar.h"
#include "dlock/dlock.h"
#include "exits.h"
#include "report.h"
#include "suggest.h"

/* Which options were given, in the order of the table, for the check against the subcommand. */
typedef struct seen {
    bool option[OPTION_COUNT_MAX];
} seen_t;

const command_t *find_command(const char *name) {
    for (const command_t *command = commands; command->name != NULL; command++) {
        if (strcmp(command->name, name) == 0) {
            return command;
        }
    }
    return NULL;
}

static int malformed(const option_spec_t *spec, const char *value, dli_scalar_t read) {
    return usage_error("%s: '%s' %s, expected %s%s%s", spec->name, plain(value), dli_scalar_fault(read),
                       read == DLI_SCALAR_FRACTION ? "whole milliseconds"
                                                   : dli_scalar_expected(DL_OPTION_DURATION),
                       spec->word != NULL ? ", or " : "", spec->word != NULL ? spec->word : "");
}

static int set_duration(const option_spec_t *spec, const char *value, int64_t *field) {
    if (spec->word != NULL && strcmp(value, spec->word) == 0) {
        *field = spec->word_ms;
        return 0;
    }
    int64_t ms = 0;
    dli_scalar_t read = dli_scalar_read(DL_OPTION_DURATION, value, &ms);
    if (read != DLI_SCALAR_OK && read != DLI_SCALAR_TOO_LARGE) {
        return malformed(spec, value, read);
    }
    if (read != DLI_SCALAR_OK || ms < spec->min_ms || ms > spec->max_ms) {
        return usage_error("%s: %s is out of range: %s to %s", spec->name, value,
                           dl_driver_duration(spec->min_ms).text, dl_driver_duration(spec->max_ms).text);
    }
    *field = ms;
    return 0;
}

static int set_number(const option_spec_t *spec, const char *value, int *field) {
    int number = 0;
    const char *at = value;
    for (; *at >= '0' && *at <= '9' && number <= spec->max; at++) {
        number = number * 10 + (*at - '0'); /* the largest max is far from INT_MAX / 10 */
    }
    if (at == value || (*at != '\0' && number <= spec->max)) {
        return usage_error("%s: '%s' is not a whole number", spec->name, plain(value));
    }
    if (number < spec->min || number > spec->max) {
        return usage_error("%s: %s is out of range: %d to %d", spec->name, plain(value), spec->min,
                           spec->max);
    }
    *field = number;
    return 0;
}

static int unknown_option(const char *word, size_t len, const command_t *command) {
    char name[64];
    (void)snprintf(name, sizeof name, "%.*s", (int)len, word);
    nearest_t nearest = {.written = name};
    for (const option_spec_t *spec = option_specs; spec->name != NULL; spec++) {
        if (command == NULL || (spec->commands & command->bit) != 0) {
            try_word(&nearest, spec->name);
        }
    }
    if (nearest.word != NULL) {
        return usage_error("unknown option '%s'; did you mean %s?", plain(name), nearest.word);
    }
    return usage_error("unknown option '%s'; see 'dlock help%s%s'", plain(name), command != NULL ? " " : "",
                       command != NULL ? command->name : "");
}

static const option_spec_t *find_option(const char *word, size_t len) {
    for (const option_spec_t *spec = option_specs; spec->name != NULL; spec++) {
        bool is_letter = len == 2 && word[0] == '-' && spec->letter != 0 && word[1] == spec->letter;
        if (is_letter || (strlen(spec->name) == len && strncmp(spec->name, word, len) == 0)) {
            return spec;
        }
    }
    return NULL;
}

/* Takes the option at argv[0]; *used says how many words it was. */
static int take_option(char **argv, options_t *options, seen_t *seen, int *used) {
    const char *equals = strchr(argv[0], '=');
    size_t len = equals != NULL ? (size_t)(equals - argv[0]) : strlen(argv[0]);
    const option_spec_t *spec = find_option(argv[0], len);
    if (spec == NULL) {
        return unknown_option(argv[0], len, options->command);
    }
    seen->option[spec - option_specs] = true;
    *used = 1;
    char *field = (char *)options + spec->offset;
    if (spec->kind == OPTION_FLAG) {
        if (equals != NULL) {
            return usage_error("%s takes no value", spec->name);
        }
        *(bool *)(void *)field = true;
        return 0;
    }
    const char *value = equals != NULL ? equals + 1 : argv[1];
    if (value == NULL || (equals == NULL && strcmp(value, "--") == 0)) {
        return usage_error("%s needs a value: %s", spec->name, spec->value);
    }
    *used = equals != NULL ? 1 : 2;
    if (spec->kind == OPTION_DURATION) {
        return set_duration(spec, value, (int64_t *)(void *)field);
    }
    if (spec->kind == OPTION_NUMBER) {
        return set_number(spec, value, (int *)(void *)field);
    }
    *(const char **)(void *)field = value;
    return 0;
}

static int unknown_command(const char *name) {
    nearest_t nearest = {.written = name};
    for (const command_t *command = commands; command->name != NULL; command++) {
        try_word(&nearest, command->name);
    }
    if (nearest.word != NULL) {
        return usage_error("unknown command '%s'; did you mean %s?", plain(name), nearest.word);
    }
    return usage_error("unknown command '%s'; see 'dlock help'", plain(name));
}

static int no_child(const command_t *command) {
    return usage_error("the command to run must follow '--': dlock run %s", command->args);
}

/* Who is used to `dlock compare BACKEND` may write `dlock check BACKEND`. */
static int too_many(const char *word, const command_t *command) {
    bool has_backend = (command->bit & (IN_CHECK | IN_INIT)) != 0;
    return usage_error("'%s' is one word too many: dlock %s%s%s%s", plain(word), command->name,
                       command->args[0] != '\0' ? " " : "", command->args,
                       has_backend ? "; name a backend with -b" : "");
}

/* The first word that is no option is the subcommand, what follows are its arguments. */
static int take_word(const char *word, options_t *options) {
    if (options->command == NULL) {
        options->command = find_command(word);
        return options->command != NULL ? 0 : unknown_command(word);
    }
    if (options->arg_count >= options->command->args_max) {
        if (options->command->bit == IN_RUN) {
            return no_child(options->command);
        }
        return too_many(word, options->command);
    }
    options->args[options->arg_count++] = word;
    return 0;
}

static int too_few(const command_t *command) {
    return usage_error("%s: dlock %s %s", command->missing, command->name, command->args);
}

static int check_words(const options_t *options, const seen_t *seen) {
    const command_t *command = options->command;
    for (size_t i = 0; option_specs[i].name != NULL; i++) {
        if (seen->option[i] && (option_specs[i].commands & command->bit) == 0) {
            return usage_error("'dlock %s' has no option %s; see 'dlock help %s'", command->name,
                               option_specs[i].name, command->name);
        }
    }
    if (options->local && (options->config != NULL || options->backend != NULL)) {
        return usage_error("--local uses no configuration; leave out %s",
                           options->config != NULL ? "--config" : "--backend");
    }
    if (options->arg_count < command->args_min) {
        return too_few(command);
    }
    if (command->bit == IN_RUN && (options->child == NULL || options->child[0] == NULL)) {
        return no_child(command);
    }
    return 0;
}

int options_parse(char **argv, options_t *options) {
    *options = (options_t){.wait_ms = WAIT_FOREVER,
                           .lease_ms = DL_LEASE_AUTO,
                           .grace_ms = GRACE_DEFAULT,
                           .processes = 4,
                           .threads = 2,
                           .names = 4,
                           .hold_ms = 1,
                           .duration_ms = 3000};
    seen_t seen = {{false}};
    int failed = 0;
    bool only_words = false; /* after "--" of a command other than run */
    for (char **at = argv + 1; *at != NULL && failed == 0;) {
        int used = 1;
        bool is_run = options->command != NULL && options->command->bit == IN_RUN;
        if (strcmp(*at, "--") == 0 && is_run && options->arg_count > 0) {
            options->child = at + 1;
            break;
        }
        if (!only_words && strcmp(*at, "--") == 0) {
            /* A name that begins with a dash: dlock run -- -name -- command */
            bool name_follows = !is_run || (at[1] != NULL && at[2] != NULL && strcmp(at[2], "--") == 0);
            failed = name_follows ? 0 : too_few(options->command);
            only_words = true;
        } else if (!only_words && (*at)[0] == '-' && (*at)[1] != '\0') {
            failed = take_option(at, options, &seen, &used);
        } else {
            failed = take_word(*at, options);
        }
        at += used;
    }
    if (failed != 0 || options->help || options->version) {
        return failed;
    }
    if (options->command == NULL) {
        return usage_error("a command is missing; see 'dlock help'");
    }
    return check_words(options, &seen);
}
