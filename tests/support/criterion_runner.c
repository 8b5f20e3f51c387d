/* criterion_runner.c - the contract cases as Criterion tests: a suite a driver, a process a case. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/ct.h"

/*
 * Criterion finds tests by the pointers in the section cr_tst; those that are NULL it passes over. It runs a
 * test by starting this program again and handing it the address of the test. So the tests and the pointers
 * stand in static memory, and a constructor writes them the same way in each process.
 */
#define TESTS_MAX 8192
#define NAME_MAX_LEN 160

typedef struct entry {
    const ct_case_t *test; /* NULL: compares the caps */
    const fixture_t *fixture;
    char suite[40], name[NAME_MAX_LEN];
    struct criterion_test_extra_data data;
    struct criterion_test criterion;
} entry_t;

static entry_t entries[TESTS_MAX];
static size_t entry_count;
static char filters[TESTS_MAX][NAME_MAX_LEN + 42]; /* what --filter is compared with */
CR_SECTION_("cr_tst")
static struct criterion_test *pointers[TESTS_MAX] CR_SECTION_SUFFIX_ __attribute__((used));

static const entry_t *current_entry(void) {
    /* In the test's own process this is a copy: only the words are the same. */
    for (size_t i = 0; i < entry_count; i++) {
        if (strcmp(entries[i].suite, criterion_current_test->category) == 0 &&
            strcmp(entries[i].name, criterion_current_test->name) == 0) {
            return &entries[i];
        }
    }
    return NULL;
}

static void run_entry(void) {
    const entry_t *entry = current_entry();
    cr_assert_not_null(entry, "a test that nobody has made");
    if (entry->test == NULL) {
        cr_assert_eq(fixtures_compare(CT_CAPS_FILE, entry->fixture), 0,
                     "caps differ from the committed table");
        return;
    }
    ct_run_options_t options = {.seed = 1};
    ct_run(entry->test, entry->fixture, &options);
}

static void start_entry(void) {
    criterion_internal_test_setup();
    criterion_internal_test_main(run_entry);
    criterion_internal_test_teardown();
}

static void add_entry(const fixture_t *fixture, const ct_case_t *test) {
    if (entry_count == TESTS_MAX) {
        fprintf(stderr, "more than %d tests\n", TESTS_MAX);
        abort();
    }
    entry_t *e = &entries[entry_count++];
    e->test = test;
    e->fixture = fixture;
    snprintf(e->suite, sizeof e->suite, "%s", fixture == NULL ? "fixtures" : fixture->name);
    for (char *at = e->suite; *at != 0; at++) {
        *at = *at == '-' ? '_' : *at; /* a suite's name is an identifier */
    }
    if (test == NULL) {
        snprintf(e->name, sizeof e->name, "caps_are_those_of_the_committed_table");
    } else {
        snprintf(e->name, sizeof e->name, "%s__%s", test->suite, test->name);
    }
    snprintf(filters[entry_count - 1], sizeof filters[0], "%s/%s", e->suite, e->name);
    e->data = (struct criterion_test_extra_data){
        .compiler_ = CR_COMPILER_,
        .lang_ = CR_LANG,
        .kind_ = CR_TEST_NORMAL,
        .identifier_ = filters[entry_count - 1],
        .file_ = test == NULL ? __FILE__ : test->file,
        .line_ = test == NULL ? __LINE__ : (unsigned)test->line,
        .timeout = test == NULL ? 0 : ct_timeout_s(test) + 10,
    };
    e->criterion.name = e->name;
    e->criterion.category = e->suite;
    e->criterion.test = start_entry;
    e->criterion.data = &e->data;
    pointers[entry_count - 1] = &e->criterion;
}

/* Without a priority: after all cases have registered themselves. */
__attribute__((constructor)) static void make_entries(void) {
    static const ct_run_options_t blocking = {.seed = 1};
    add_entry(NULL, NULL);
    for (size_t i = 0; fixture_at(i) != NULL; i++) {
        for (const ct_case_t *test = ct_first_case(); test != NULL; test = test->next) {
            if (ct_applies(test, fixture_at(i), &blocking)) {
                add_entry(fixture_at(i), test);
            }
        }
    }
}
