/* core_table_test.c - the core's hash tables: order, growth, many that look alike, no memory. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "core/core.h"
#include "support/alloc_fail.h"

#define MANY 100000u

typedef struct item {
    dli_chained_t link;
    uint64_t key;
} item_t;

static item_t items[MANY];

static void add(dli_table_t *table, size_t i, uint64_t key) {
    items[i].key = key;
    dli_table_add(table, &items[i].link, dli_hash(&key, sizeof key));
}

static item_t *find(dli_table_t *table, uint64_t key) {
    dli_chained_t *at = dli_table_find(table, dli_hash(&key, sizeof key));
    while (at != NULL && DLI_CONTAINER_OF(item_t, link, at)->key != key) {
        at = dli_table_next(at);
    }
    return DLI_CONTAINER_OF(item_t, link, at);
}

static size_t longest_chain(const dli_table_t *table) {
    size_t longest = 0;
    for (size_t i = 0; i < table->count; i++) {
        size_t len = 0;
        for (const dli_chained_t *link = table->chains[i].first; link != NULL; link = link->next) {
            len++;
        }
        longest = len > longest ? len : longest;
    }
    return longest;
}

static size_t count_all(dli_table_t *table) {
    size_t n = 0;
    for (dli_chained_t *link = dli_table_after(table, NULL); link != NULL;
         link = dli_table_after(table, link)) {
        n++;
    }
    return n;
}

/* Numbers, pages, and what differs in its highest byte only. */
Test(table, each_is_found_among_few_whatever_the_keys_have_in_common) {
    static const uint64_t steps[] = {1, 4096, (uint64_t)1 << 40};
    for (size_t k = 0; k < sizeof steps / sizeof steps[0]; k++) {
        dli_table_t table = {.count = 0};
        for (size_t i = 0; i < MANY; i++) {
            add(&table, i, i * steps[k]);
            if (i < 200) {
                cr_assert_eq(count_all(&table), i + 1);
            }
        }
        cr_assert_eq(table.len, MANY);
        cr_assert_eq(count_all(&table), MANY);
        cr_assert_leq(longest_chain(&table), 16);
        for (size_t i = 0; i < MANY; i++) {
            cr_assert_eq(find(&table, i * steps[k]), &items[i]);
        }
        for (size_t i = 0; i < MANY; i += 2) {
            dli_table_remove(&table, &items[i].link);
        }
        for (size_t i = 0; i < MANY; i++) {
            cr_assert_eq(find(&table, i * steps[k]), i % 2 ? &items[i] : NULL);
        }
        cr_assert_eq(table.len, MANY / 2);
        free(table.chains);
    }
}

Test(table, what_has_one_hash_stays_in_its_order) {
    dli_table_t table = {.count = 0};
    for (size_t i = 0; i < MANY; i++) {
        add(&table, i, i % 100 == 0 ? 7 : i + MANY);
    }
    size_t i = 0;
    uint64_t key = 7;
    dli_chained_t *at = dli_table_find(&table, dli_hash(&key, sizeof key));
    for (; at != NULL; at = dli_table_next(at), i += 100) {
        cr_assert_eq(DLI_CONTAINER_OF(item_t, link, at), &items[i]);
    }
    cr_assert_eq(i, MANY);
    free(table.chains);
}

Test(table, needs_no_memory_to_be_right) {
    dli_table_t table = {.count = 0};
    for (int first = 1; first <= 3; first++) {
        alloc_fail_at(first, 1);
        for (size_t i = 0; i < 500; i++) {
            add(&table, i, i);
        }
        cr_assert_gt(alloc_fail_failed(), 0);
        alloc_fail_at(0, 0);
        cr_assert_eq(count_all(&table), 500);
        for (size_t i = 0; i < 500; i++) {
            cr_assert_eq(find(&table, i), &items[i]);
            dli_table_remove(&table, &items[i].link);
        }
        cr_assert_eq(count_all(&table), 0);
        free(table.chains);
        table = (dli_table_t){.count = 0};
    }
}
