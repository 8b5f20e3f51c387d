/* table.c - a hash table of what is found without looking at all the others. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

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

/* Linear hashing (Litwin): it grows by one chain at a time, so that no call pays for all. */
static dli_chain_t *chain_of(dli_table_t *table, uint64_t hash) {
    size_t i = hash & table->mask;
    i = i < table->count ? i : i & table->mask >> 1;
    return table->count == 0 ? &table->only : &table->chains[i];
}

static void chain_add(dli_chain_t *chain, dli_chained_t *link) {
    link->next = NULL;
    link->prev = chain->last;
    *(chain->last != NULL ? &chain->last->next : &chain->first) = link;
    chain->last = link;
}

static void chain_remove(dli_chain_t *chain, dli_chained_t *link) {
    *(link->prev != NULL ? &link->prev->next : &chain->first) = link->next;
    *(link->next != NULL ? &link->next->prev : &chain->last) = link->prev;
}

static bool has_room(dli_table_t *table) {
    if (table->count < table->cap) {
        return true;
    }
    size_t cap = table->cap == 0 ? 64 : table->cap * 2;
    dli_chain_t *chains = realloc(table->chains, cap * sizeof *chains);
    if (chains == NULL) {
        return false; /* a full table is slow, not wrong */
    }
    table->chains = chains;
    table->cap = cap;
    return true;
}

/* What has one hash stays in its order. */
static void split(dli_table_t *table) {
    if (!has_room(table)) {
        return;
    }
    if (table->count == 0) {
        table->chains[table->count++] = table->only;
        return;
    }
    table->mask = table->count > table->mask ? table->mask * 2 + 1 : table->mask;
    dli_chain_t *from = &table->chains[table->count & table->mask >> 1];
    dli_chained_t *link = from->first;
    table->chains[table->count++] = *from = (dli_chain_t){NULL, NULL};
    while (link != NULL) {
        dli_chained_t *next = link->next;
        chain_add(chain_of(table, link->hash), link);
        link = next;
    }
}

void dli_table_add(dli_table_t *table, dli_chained_t *link, uint64_t hash) {
    if (table->len >= table->count) {
        split(table);
    }
    link->hash = hash;
    chain_add(chain_of(table, hash), link);
    table->len++;
}

void dli_table_remove(dli_table_t *table, dli_chained_t *link) {
    chain_remove(chain_of(table, link->hash), link);
    table->len--;
}

static dli_chained_t *same(dli_chained_t *link, uint64_t hash) {
    while (link != NULL && link->hash != hash) {
        link = link->next;
    }
    return link;
}

dli_chained_t *dli_table_find(dli_table_t *table, uint64_t hash) {
    return same(chain_of(table, hash)->first, hash);
}

dli_chained_t *dli_table_next(const dli_chained_t *link) {
    return same(link->next, link->hash);
}

dli_chained_t *dli_table_after(dli_table_t *table, const dli_chained_t *link) {
    if (link != NULL && link->next != NULL) {
        return link->next;
    }
    dli_chain_t *chain = link == NULL ? chain_of(table, 0) : chain_of(table, link->hash) + 1;
    const dli_chain_t *end = table->count == 0 ? &table->only + 1 : table->chains + table->count;
    while (chain < end && chain->first == NULL) {
        chain++;
    }
    return chain < end ? chain->first : NULL;
}
