/* openssl_locks.h - whether a fork() waits while OpenSSL takes one of its locks, as it does through these. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OPENSSL_LOCKS_H
#define OPENSSL_LOCKS_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "drivers/unforked.h"

static atomic_bool is_counting;
static atomic_int locked, locked_cut_off;

static inline int take_lock(const char *name, pthread_rwlock_t *lock) {
    int (*real)(pthread_rwlock_t *) = (int (*)(pthread_rwlock_t *))dlsym(RTLD_NEXT, name);
    if (atomic_load(&is_counting)) {
        atomic_fetch_add(&locked, 1);
        atomic_fetch_add(&locked_cut_off,
                         !dli_is_unforked(DLI_UNFORKED_OPENSSL) && !dli_is_unforked(DLI_UNFORKED_LIBRARY));
    }
    return real(lock);
}

int pthread_rwlock_rdlock(pthread_rwlock_t *lock) {
    return take_lock("pthread_rwlock_rdlock", lock);
}

int pthread_rwlock_wrlock(pthread_rwlock_t *lock) {
    return take_lock("pthread_rwlock_wrlock", lock);
}

#endif
