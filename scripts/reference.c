/* reference.c - writes the tables of options into the pages about them, from the tables the loader uses. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/scalar.h"
#include "config/value.h"
#include "core/options.h"
#include "drivers/registry.h"

/*
 * usage: dlock-config-reference PAGE           prints the page with its tables renewed
 *        dlock-config-reference --check PAGE   says where the page differs from that; exit status 1
 *
 * The page itself is written by hand, in Markdown or as a manual page. A table stands between the lines
 *     <!-- options: NAME -->              NAME is "core" or a driver
 *     <!-- options: NAME like OTHER -->   only those that are not the same as the driver OTHER's
 *     <!-- end of options -->
 * or, in a manual page, the same as a comment of its own: .\" options: NAME
 * The tables of drivers that this build does not have are left as they are.
 */
typedef struct form {
    const char *begin, *begin_end, *end;  /* the lines above */
    const char *none, *table, *table_end; /* no options; what stands before them and behind them */
    void (*write)(FILE *out, const dl_option_t *option);
} form_t;

#define LIKE " like "

static void fail(const char *what, const char *about) {
    fprintf(stderr, "dlock-config-reference: %s: %s\n", about, what);
    exit(2);
}

static char *read_page(const char *path) {
    FILE *in = fopen(path, "r");
    char *text = NULL;
    size_t room = 0;
    if (in == NULL) {
        fail("cannot be opened", path);
    }
    /* A page has no NUL: this reads all of it. */
    if (getdelim(&text, &room, '\0', in) <= 0) {
        fail("is empty", path);
    }
    fclose(in);
    return text;
}

/* Writes the kind and what is allowed; `mark` stands on both sides of a choice. */
static void write_type(FILE *out, const dl_option_t *option, const char *mark) {
    static const char *const types[] = {[DL_OPTION_STRING] = "text",        [DL_OPTION_INT] = "whole number",
                                        [DL_OPTION_BOOL] = "true or false", [DL_OPTION_DURATION] = "duration",
                                        [DL_OPTION_SIZE] = "size",          [DL_OPTION_LIST] = "list",
                                        [DL_OPTION_SECRET] = "secret"};
    char range[72];
    fputs(types[option->type], out);
    if (option->choices != NULL) {
        fprintf(out, ": %s", mark);
        for (const char *c = option->choices; *c != '\0'; c++) {
            if (*c == '|') {
                fprintf(out, "%s, %s", mark, mark);
            } else {
                fputc(*c, out);
            }
        }
        fputs(mark, out);
    }
    if (dli_value_range(option, range, sizeof range)) {
        fprintf(out, ", %s%s", range, option->type == DL_OPTION_LIST ? " items" : "");
    }
}

/* A bar would end the cell. */
static void write_cell(FILE *out, const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '|') {
            fputc('\\', out);
        }
        fputc(*text, out);
    }
}

static void write_row(FILE *out, const dl_option_t *o) {
    fprintf(out, "| `%s`%s | ", o->name, o->type == DL_OPTION_SECRET ? " or `_file`" : "");
    write_type(out, o, "`");
    if (o->default_text != NULL) {
        fputs(" | `", out);
        write_cell(out, o->default_text);
        fputs("`", out);
    } else {
        fprintf(out, " | %s", o->required ? "**required**" : "none");
    }
    fputs(" | ", out);
    write_cell(out, o->help == NULL ? "" : o->help);
    fputs(" |\n", out);
}

/* No character of it means anything to roff, quoted or not. Code is told by the font. */
static void write_roff(FILE *out, const char *text) {
    int code = 0;
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '"':
            fputs("\\(dq", out);
            break;
        case '\\':
            fputs("\\e", out);
            break;
        case '`':
            fputs((code = !code) ? "\\fB" : "\\fR", out);
            break;
        default:
            fputc(*text, out);
        }
    }
}

static void write_item(FILE *out, const dl_option_t *o) {
    const char *help = o->help == NULL ? "" : o->help;
    fprintf(out, ".It Ic %s ", o->name);
    if (o->type == DL_OPTION_SECRET) {
        fprintf(out, "No or Ic %s_file ", o->name);
    }
    fputs("Pq \"", out);
    write_type(out, o, "");
    if (o->default_text != NULL) {
        fputs("; default ", out);
        write_roff(out, o->default_text);
    } else if (o->required) {
        fputs("; required", out);
    }
    fputs("\"\n", out);
    write_roff(out, help);
    fputs(*help == '\0' || help[strlen(help) - 1] == '.' ? "\n" : ".\n", out);
}

static const form_t markdown = {.begin = "<!-- options: ",
                                .begin_end = " -->\n",
                                .end = "<!-- end of options -->\n",
                                .none = "\nNone.\n\n",
                                .table = "\n| option | kind | default | meaning |\n|---|---|---|---|\n",
                                .table_end = "\n",
                                .write = write_row};
static const form_t manual = {.begin = ".\\\" options: ",
                              .begin_end = "\n",
                              .end = ".\\\" end of options\n",
                              .none = "None.\n",
                              .table = ".Bl -tag -width Ds\n",
                              .table_end = ".El\n",
                              .write = write_item};
/* That of the page. */
static const form_t *form;

static int same_text(const char *a, const char *b) {
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* Does the table have this very option? */
static int has_option(const dl_option_t *table, const dl_option_t *o) {
    for (; table != NULL && table->name != NULL; table++) {
        if (strcmp(table->name, o->name) == 0) {
            return table->type == o->type && table->required == o->required && table->min == o->min &&
                   table->max == o->max && same_text(table->default_text, o->default_text) &&
                   same_text(table->choices, o->choices) && same_text(table->help, o->help);
        }
    }
    return 0;
}

/* `known`: options to leave out; NULL: none. */
static void write_table(FILE *out, const dl_option_t *options, const dl_option_t *known) {
    if (options == NULL || options->name == NULL) {
        fputs(form->none, out);
        return;
    }
    fputs(form->table, out);
    for (const dl_option_t *o = options; o->name != NULL; o++) {
        if (!has_option(known, o)) {
            form->write(out, o);
        }
    }
    fputs(form->table_end, out);
}

/* Writes the part of the page for NAME, perhaps " like OTHER"; `old` is what stands there now. */
static void write_part(FILE *out, char *name, const char *old, size_t old_len) {
    char *like = strstr(name, LIKE);
    const dl_driver_t *other = NULL;
    if (like != NULL) {
        *like = '\0';
        other = dli_registry_find(like + strlen(LIKE));
    }
    const dl_driver_t *driver = dli_registry_find(name);
    if (strcmp(name, "core") == 0) {
        write_table(out, dli_core_options, NULL);
    } else if (driver != NULL) {
        write_table(out, driver->options, other != NULL ? other->options : NULL);
    } else if (dli_registry_known(name)) {
        fwrite(old, 1, old_len, out);
    } else {
        fail("this library has no such driver", name);
    }
}

static char *renew(const char *page) {
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    const char *at = page, *begin;
    if (out == NULL) {
        fail("out of memory", page);
    }
    while ((begin = strstr(at, form->begin)) != NULL) {
        char name[64];
        const char *word = begin + strlen(form->begin), *old = strstr(word, form->begin_end);
        const char *end = strstr(word, form->end);
        if (old == NULL || end == NULL || old > end || (size_t)(old - word) >= sizeof name) {
            fail("a table that does not end", "page");
        }
        snprintf(name, sizeof name, "%.*s", (int)(old - word), word);
        old += strlen(form->begin_end);
        fwrite(at, 1, (size_t)(old - at), out);
        write_part(out, name, old, (size_t)(end - old));
        at = end;
    }
    fputs(at, out);
    fclose(out);
    return text;
}

/* Every table of this build must have a place on the page. */
static void require_place(const char *page, const char *name) {
    char line[128], like[128];
    snprintf(line, sizeof line, "%s%s%s", form->begin, name, form->begin_end);
    snprintf(like, sizeof like, "%s%s" LIKE, form->begin, name);
    if (strstr(page, line) == NULL && strstr(page, like) == NULL) {
        fail("has no table on the page", name);
    }
}

static int compare(const char *path, const char *page, const char *renewed) {
    unsigned line = 1;
    if (strcmp(page, renewed) == 0) {
        return 0;
    }
    for (size_t i = 0; page[i] == renewed[i]; i++) {
        line += page[i] == '\n';
    }
    fprintf(stderr,
            "%s:%u: differs from the tables of options, expected what dlock-config-reference prints\n", path,
            line);
    return 1;
}

int main(int argc, char **argv) {
    int check = argc == 3 && strcmp(argv[1], "--check") == 0, status = 0;
    const dl_driver_t *driver;
    if (argc != 2 && !check) {
        fprintf(stderr, "usage: dlock-config-reference [--check] PAGE\n");
        return 2;
    }
    char *page = read_page(argv[argc - 1]);
    form = page[0] == '.' ? &manual : &markdown;
    require_place(page, "core");
    for (size_t i = 0; (driver = dli_registry_at(i)) != NULL; i++) {
        require_place(page, driver->name);
    }
    char *renewed = renew(page);
    if (check) {
        status = compare(argv[argc - 1], page, renewed);
    } else {
        fputs(renewed, stdout);
    }
    free(renewed);
    free(page);
    return status;
}
