/* tree.c - search trees of the things themselves, so that adding one needs no memory. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

/* FNV-1a, 64 bits (Fowler, Noll, Vo). */
uint64_t dli_hash(const void *bytes, size_t len) {
    const unsigned char *at = bytes;
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < len; i++) {
        h = (h ^ at[i]) * 1099511628211u;
    }
    return h;
}

/*
 * A treap (Aragon, Seidel): by keys from left to right, and by weights, the heaviest above. The weight is
 * drawn from the address (the mixing of SplitMix64), so that no choice of keys makes a tree deep.
 */
static uint64_t weight_of(const dli_node_t *node) {
    uint64_t w = (uintptr_t)node;
    w = (w ^ w >> 30) * 0xbf58476d1ce4e5b9u;
    w = (w ^ w >> 27) * 0x94d049bb133111ebu;
    return w ^ w >> 31;
}

static void hang(dli_node_t **at, dli_node_t *node, dli_node_t *up) {
    *at = node;
    if (node != NULL) {
        node->up = up;
    }
}

void dli_tree_add(dli_node_t **root, dli_node_t *node, uint64_t key) {
    dli_node_t **at = root, *up = NULL;
    uint64_t weight = weight_of(node);
    while (*at != NULL && weight_of(*at) > weight) {
        up = *at;
        at = key < up->key ? &up->left : &up->right;
    }
    dli_node_t *rest = *at, *left_up = node, *right_up = node, **left = &node->left, **right = &node->right;
    node->key = key;
    hang(at, node, up);
    while (rest != NULL) { /* what is lighter is parted */
        if (key < rest->key) {
            hang(right, rest, right_up);
            right_up = rest;
            right = &rest->left;
            rest = rest->left;
        } else {
            hang(left, rest, left_up);
            left_up = rest;
            left = &rest->right;
            rest = rest->right;
        }
    }
    *left = *right = NULL;
}

void dli_tree_remove(dli_node_t **root, dli_node_t *node) {
    dli_node_t *left = node->left, *right = node->right, *up = node->up;
    dli_node_t **at = up == NULL ? root : up->left == node ? &up->left : &up->right;
    while (left != NULL && right != NULL) {
        if (weight_of(left) > weight_of(right)) {
            hang(at, left, up);
            up = left;
            at = &left->right;
            left = left->right;
        } else {
            hang(at, right, up);
            up = right;
            at = &right->left;
            right = right->left;
        }
    }
    hang(at, left != NULL ? left : right, up);
}

dli_node_t *dli_tree_find(dli_node_t *root, uint64_t key) {
    dli_node_t *found = NULL;
    for (dli_node_t *at = root; at != NULL; at = key <= at->key ? at->left : at->right) {
        found = key == at->key ? at : found;
    }
    return found;
}

static dli_node_t *leftmost(dli_node_t *node) {
    while (node != NULL && node->left != NULL) {
        node = node->left;
    }
    return node;
}

dli_node_t *dli_tree_after(dli_node_t *root, const dli_node_t *node) {
    if (node == NULL || node->right != NULL) {
        return leftmost(node == NULL ? root : node->right);
    }
    while (node->up != NULL && node->up->right == node) {
        node = node->up;
    }
    return node->up;
}

void dli_timer_set(dli_node_t **timers, dli_timer_t *timer, uint64_t at_ns) {
    dli_timer_clear(timers, timer);
    dli_tree_add(timers, &timer->node, dli_max(at_ns, 1));
}

void dli_timer_clear(dli_node_t **timers, dli_timer_t *timer) {
    if (timer->node.key != 0) {
        dli_tree_remove(timers, &timer->node);
        timer->node.key = 0;
    }
}

uint64_t dli_timers_due(dli_node_t *timers) {
    return timers != NULL ? leftmost(timers)->key : DLI_NEVER;
}
