/* lent.c - connections that were lent without their members, and how to find those again. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

static dli_mysql_member_t **lent_slot(dli_mysql_pool_t *pool, const dli_mysql_conn_t *conn) {
    uintptr_t address = (uintptr_t)conn;
    return &pool->lent[(address >> 4 ^ address >> 12) % DLI_MYSQL_LENT_SLOTS];
}

void dli_mysql_pool_lend(dli_mysql_pool_t *pool, dli_mysql_member_t *member) {
    pthread_mutex_lock(&pool->mutex);
    dli_mysql_member_t **slot = lent_slot(pool, member->conn);
    member->next_lent = *slot;
    *slot = member;
    pthread_mutex_unlock(&pool->mutex);
}

dli_mysql_member_t *dli_mysql_pool_find(dli_mysql_pool_t *pool, const dli_mysql_conn_t *conn) {
    pthread_mutex_lock(&pool->mutex);
    dli_mysql_member_t *member = *lent_slot(pool, conn);
    while (member->conn != conn) {
        member = member->next_lent;
    }
    pthread_mutex_unlock(&pool->mutex);
    return member;
}

dli_mysql_member_t *dli_mysql_pool_unlend(dli_mysql_pool_t *pool, const dli_mysql_conn_t *conn) {
    pthread_mutex_lock(&pool->mutex);
    dli_mysql_member_t **link = lent_slot(pool, conn);
    while ((*link)->conn != conn) {
        link = &(*link)->next_lent;
    }
    dli_mysql_member_t *member = *link;
    *link = member->next_lent;
    pthread_mutex_unlock(&pool->mutex);
    return member;
}
