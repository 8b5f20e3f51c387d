/* syntax.c - what libyaml found wrong, in the words of this library. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "syntax.h"

#include <string.h>

#include "text.h"

typedef struct phrase {
    const char *found; /* as libyaml says it */
    const char *text;
} phrase_t;

/* These point to where the construct began: where libyaml gave up says little. */
static const phrase_t by_context[] = {
    {"while scanning an anchor", "an anchor '&', expected the value alone"},
    {"while scanning an alias", "an alias '*', expected the value itself"},
    {"while scanning a tag", "a tag '!', expected the value alone"},
    {"while parsing a tag", "a tag '!', expected the value alone"},
    {"while scanning a directive", "a directive '%', expected the document alone"},
    {"while scanning a %YAML directive", "a directive '%', expected the document alone"},
    {"while scanning a %TAG directive", "a directive '%', expected the document alone"},
    {"while parsing a %TAG directive", "a directive '%', expected the document alone"},
    {"while scanning a simple key", "no ':' after this word, expected 'key: value'"},
};

static const phrase_t by_problem[] = {
    {"mapping values are not allowed in this context",
     "a ':' where no key can be, expected quotes around a text with ': ' in it, or another indentation"},
    {"found unexpected ':'", "no space after this ':', expected 'key: value'"},
    {"mapping keys are not allowed in this context", "a '?' where no key can be, expected 'key: value'"},
    {"block sequence entries are not allowed in this context",
     "a '-' where no list can begin, expected a list on lines of its own or in [ ]"},
    {"found unknown escape character",
     "an unknown escape after '\\', expected one of YAML's or single quotes"},
    {"did not find expected hexdecimal number", "an escape without its digits, expected hexadecimal digits"},
    {"found invalid Unicode character escape code",
     "an escape that is no character, expected a Unicode character"},
    {"found a tab character that violates indentation", "a tab, expected spaces"},
    {"found a tab character where an indentation space is expected", "a tab, expected spaces"},
    {"did not find expected <document start>", "more text after the end of the document, expected nothing"},
    {"did not find expected node content", "nothing where a value should be, expected a value"},
    {"found unexpected document indicator",
     "a document mark inside quotes, expected the closing quote before it"},
    {"found undefined tag handle", "a tag '!', expected the value alone"},
    {"found duplicate %YAML directive", "a directive '%', expected the document alone"},
    {"found duplicate %TAG directive", "a directive '%', expected the document alone"},
    {"found incompatible YAML document", "a directive '%', expected the document alone"},
};

static const char *phrase_for(const phrase_t *phrases, size_t count, const char *found) {
    for (size_t i = 0; found != NULL && i < count; i++) {
        if (strcmp(phrases[i].found, found) == 0) {
            return phrases[i].text;
        }
    }
    return NULL;
}

static dli_mark_t mark_of(yaml_mark_t mark) {
    return (dli_mark_t){(unsigned)mark.line + 1, (unsigned)mark.column + 1};
}

/* A { } or [ ] that something in it or the end of the text broke off. */
static dl_status_t report_flow(const yaml_parser_t *parser, const char *text, size_t len, const char *label,
                               int is_map, dl_error_t *err) {
    dli_mark_t at = mark_of(parser->problem_mark), begin = mark_of(parser->context_mark);
    const char *opening = is_map ? "{" : "[", *closing = is_map ? "}" : "]";
    size_t offset = dli_text_offset(text, len, at);
    if (offset >= len) {
        return dli_report(err, label, begin, "a '%s' that is never closed, expected '%s'", opening, closing);
    }
    if (offset > 0 && text[offset - 1] == '$' && text[offset] == '{') {
        at.column--;
        return dli_report(err, label, at, "'${' without quotes inside %s %s, expected quotes around the text",
                          opening, closing);
    }
    return dli_report(err, label, at, "the '%s' of line %u is still open here, expected ',' or '%s'", opening,
                      begin.line, closing);
}

/* A character that begins nothing in YAML. */
static dl_status_t report_character(dli_mark_t at, const char *text, size_t len, const char *label,
                                    dl_error_t *err) {
    size_t offset = dli_text_offset(text, len, at);
    if (offset < len && text[offset] == '\t') {
        return dli_report(err, label, at, "a tab, expected spaces");
    }
    return dli_report(err, label, at, "a text that begins with '%s', expected it in quotes",
                      dli_show(text + offset, offset < len ? 1 : 0).text);
}

static dl_status_t report_indentation(const yaml_parser_t *parser, const char *what, const char *label,
                                      dl_error_t *err) {
    return dli_report(err, label, mark_of(parser->problem_mark),
                      "does not line up with line %u, expected %s in the same column",
                      (unsigned)parser->context_mark.line + 1, what);
}

dl_status_t dli_syntax_report(const yaml_parser_t *parser, const char *text, size_t len, const char *label,
                              dl_error_t *err) {
    const char *problem = parser->problem == NULL ? "unknown" : parser->problem;
    dli_mark_t at = mark_of(parser->problem_mark);
    if (parser->error == YAML_MEMORY_ERROR) {
        return dli_report_no_memory(err);
    }
    if (strcmp(problem, "did not find expected ',' or '}'") == 0) {
        return report_flow(parser, text, len, label, 1, err);
    }
    if (strcmp(problem, "did not find expected ',' or ']'") == 0) {
        return report_flow(parser, text, len, label, 0, err);
    }
    if (strcmp(problem, "found character that cannot start any token") == 0) {
        return report_character(at, text, len, label, err);
    }
    if (strcmp(problem, "did not find expected key") == 0) {
        return report_indentation(parser, "'key: value'", label, err);
    }
    if (strcmp(problem, "did not find expected '-' indicator") == 0) {
        return report_indentation(parser, "'- item'", label, err);
    }
    if (strcmp(problem, "found unexpected end of stream") == 0) {
        return dli_report(err, label, mark_of(parser->context_mark),
                          "a quote that is never closed, expected the closing quote");
    }
    const char *phrase = phrase_for(by_problem, sizeof by_problem / sizeof by_problem[0], problem);
    if (phrase == NULL) {
        phrase = phrase_for(by_context, sizeof by_context / sizeof by_context[0], parser->context);
        if (phrase != NULL) {
            at = mark_of(parser->context_mark);
        }
    }
    if (phrase != NULL) {
        return dli_report(err, label, at, "%s", phrase);
    }
    return dli_report(err, label, at, "no YAML (%s), expected mappings, lists and texts", problem);
}
