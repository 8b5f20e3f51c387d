/* core_tree_test.c - search trees: their order and depth, keys that are the same, timers. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "core/core.h"

#define MANY 100000u
/* Of a tree of so many: more would come about less than once in a million runs. */
#define DEEPEST 80u

static dli_node_t nodes[MANY];

static uint64_t mixed(uint64_t i) {
    return dli_hash(&i, sizeof i);
}

/* How many there are, each between its neighbours. */
static size_t count(dli_node_t *root) {
    size_t n = 0;
    const dli_node_t *before = NULL;
    for (dli_node_t *at = dli_tree_after(root, NULL); at != NULL; at = dli_tree_after(root, at), n++) {
        cr_assert(at->up == NULL ? root == at : at->up->left == at || at->up->right == at);
        cr_assert(before == NULL || before->key <= at->key);
        before = at;
    }
    return n;
}

/* Of all nodes, which stand in one tree; not looked at further than what is too deep. */
static size_t depth(void) {
    size_t deepest = 0;
    for (size_t i = 0; i < MANY; i++) {
        size_t n = 0;
        for (const dli_node_t *at = &nodes[i]; at != NULL && n <= DEEPEST; at = at->up) {
            n++;
        }
        deepest = n > deepest ? n : deepest;
    }
    return deepest;
}

/* One after the other, upwards and downwards, pages, and without any order. */
Test(tree, each_is_found_and_none_is_deep_whatever_the_keys_have_in_common) {
    for (int kind = 0; kind < 4; kind++) {
        dli_node_t *root = NULL;
        for (uint64_t i = 0; i < MANY; i++) {
            const uint64_t keys[] = {i, MANY - i, i << 40, mixed(i)};
            dli_tree_add(&root, &nodes[i], keys[kind]);
            if (i < 200) {
                cr_assert_eq(count(root), i + 1);
            }
        }
        cr_assert_eq(count(root), MANY);
        cr_assert_leq(depth(), DEEPEST);
        for (size_t i = 0; i < MANY; i++) {
            cr_assert_eq(dli_tree_find(root, nodes[i].key), &nodes[i]);
        }
        for (size_t i = 0; i < MANY; i += 2) {
            dli_tree_remove(&root, &nodes[i]);
        }
        for (size_t i = 0; i < MANY; i++) {
            cr_assert_eq(dli_tree_find(root, nodes[i].key), i % 2 ? &nodes[i] : NULL);
        }
        cr_assert_eq(count(root), MANY / 2);
        for (size_t i = 1; i < MANY; i += 2) {
            dli_tree_remove(&root, &nodes[i]);
        }
        cr_assert_null(root);
    }
}

Test(tree, what_has_one_key_stays_in_the_order_of_its_coming) {
    dli_node_t *root = NULL;
    for (size_t i = 0; i < MANY; i++) {
        dli_tree_add(&root, &nodes[i], i % 100 == 0 ? 7 : mixed(i));
    }
    cr_assert_leq(depth(), DEEPEST);
    dli_node_t *at = dli_tree_find(root, 7);
    for (size_t i = 0; i < MANY; i += 100, at = dli_tree_after(root, at)) {
        cr_assert_eq(at, &nodes[i]);
    }
    cr_assert_neq(at->key, 7);
    for (size_t i = 0; i < MANY; i += 100) {
        cr_assert_eq(dli_tree_find(root, 7), &nodes[i]);
        dli_tree_remove(&root, &nodes[i]);
    }
    cr_assert_null(dli_tree_find(root, 7));
    cr_assert_eq(count(root), MANY - MANY / 100);
}

/* ---- timers ------------------------------------------------------------------------------------ */

#define TIMERS 500u

Test(timer, they_come_out_by_their_instants_whatever_was_moved_or_cleared) {
    dli_node_t *root = NULL;
    dli_timer_t *timers = calloc(TIMERS, sizeof *timers);
    cr_assert_eq(dli_timers_due(root), DLI_NEVER);
    for (size_t i = 0; i < TIMERS; i++) {
        dli_timer_set(&root, &timers[i], mixed(i));
        cr_assert_eq(count(root), i + 1);
    }
    for (size_t i = 0; i < TIMERS; i += 3) {
        dli_timer_set(&root, &timers[i], mixed(TIMERS + i));
        cr_assert_eq(count(root), TIMERS);
    }
    for (size_t i = 0; i < TIMERS; i += 5) {
        dli_timer_clear(&root, &timers[i]);
        dli_timer_clear(&root, &timers[i]); /* twice is harmless */
        cr_assert_eq(count(root), TIMERS - i / 5 - 1);
    }
    uint64_t last = 0;
    for (size_t left = TIMERS - TIMERS / 5; left > 0; left--) {
        dli_timer_t *timer = DLI_CONTAINER_OF(dli_timer_t, node, dli_tree_after(root, NULL));
        cr_assert_eq(dli_timers_due(root), timer->node.key);
        cr_assert_geq(timer->node.key, last);
        last = timer->node.key;
        dli_timer_clear(&root, timer);
        cr_assert_eq(timer->node.key, 0);
    }
    cr_assert_null(root);
    free(timers);
}
