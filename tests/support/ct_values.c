/* ct_values.c - assertions about values: they say what both sides were. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "support/ct.h"

void ct_check_int(ct_t *ct, const char *file, int line, const char *what, int64_t a, char relation,
                  int64_t b) {
    int holds = relation == '=' ? a == b : relation == '!' ? a != b : relation == '<' ? a < b : a <= b;
    if (!holds) {
        ct_fail(ct, file, line, "%s is false: %lld and %lld", what, (long long)a, (long long)b);
    }
}

void ct_check_between(ct_t *ct, const char *file, int line, const char *what, int64_t value, int64_t low,
                      int64_t high) {
    if (value < low || value > high) {
        ct_fail(ct, file, line, "%s is %lld, expected %lld to %lld", what, (long long)value, (long long)low,
                (long long)high);
    }
}

void ct_check_str(ct_t *ct, const char *file, int line, const char *what, const char *a, const char *b) {
    if (a == NULL || b == NULL || strcmp(a, b) != 0) {
        ct_fail(ct, file, line, "%s is false: '%s' and '%s'", what, a == NULL ? "(null)" : a,
                b == NULL ? "(null)" : b);
    }
}

void ct_check_has(ct_t *ct, const char *file, int line, const char *what, const char *text,
                  const char *part) {
    if (text == NULL || strstr(text, part) == NULL) {
        ct_fail(ct, file, line, "%s has no '%s': it is '%s'", what, part, text == NULL ? "(null)" : text);
    }
}
