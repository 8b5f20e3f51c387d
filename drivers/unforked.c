/* unforked.c - fork() waits for threads that are inside OpenSSL, a client library or a lookup of names. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "unforked.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <resolv.h>
#include <time.h>

#define NS_PER_MS 1000000L

typedef struct kind {
    pthread_mutex_t door; /* whoever forks keeps it shut, so that its turn comes beside however many */
    unsigned inside;
    const long patience_ms;
} kind_t;

/* In this order: who is in what takes no time of its own is not kept out while fork() waits for others. */
static kind_t kinds[DLI_UNFORKED_KINDS] = {
    /* It waits for a server now and then, and does not tell of it. */
    [DLI_UNFORKED_LIBRARY] = {.door = PTHREAD_MUTEX_INITIALIZER, .patience_ms = 1000},
    /* One that waits for a server of names has let go of its locks: most take no time at all. */
    [DLI_UNFORKED_LOOKUP] = {.door = PTHREAD_MUTEX_INITIALIZER, .patience_ms = 100},
    [DLI_UNFORKED_OPENSSL] = {.door = PTHREAD_MUTEX_INITIALIZER, .patience_ms = 1000},
};
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_left = PTHREAD_COND_INITIALIZER;
static _Thread_local bool is_inside[DLI_UNFORKED_KINDS];

/* With the mutex of who counts, which is let go meanwhile. */
static void await_empty(const kind_t *kind, bool is_own) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += kind->patience_ms % 1000 * NS_PER_MS;
    until.tv_sec += kind->patience_ms / 1000 + until.tv_nsec / (1000 * NS_PER_MS);
    until.tv_nsec %= 1000 * NS_PER_MS;
    while (kind->inside > is_own &&
           pthread_cond_clockwait(&has_left, &counting, CLOCK_MONOTONIC, &until) == 0) {}
}

static void before_fork(void) {
    for (size_t i = 0; i < DLI_UNFORKED_KINDS; i++) {
        pthread_mutex_lock(&kinds[i].door);
        pthread_mutex_lock(&counting);
        await_empty(&kinds[i], is_inside[i]);
        pthread_mutex_unlock(&counting);
    }
    pthread_mutex_lock(&counting);
}

static void after_fork(void) {
    pthread_mutex_unlock(&counting);
    for (size_t i = DLI_UNFORKED_KINDS; i-- > 0;) {
        pthread_mutex_unlock(&kinds[i].door);
    }
}

static void after_fork_in_child(void) {
    for (size_t i = 0; i < DLI_UNFORKED_KINDS; i++) {
        kinds[i].inside = is_inside[i];
    }
    after_fork();
}

/* As the library is loaded, before a thread can fork: in the midst of it, a child would do it once more. */
__attribute__((constructor(101))) static void add_handlers(void) {
    (void)pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

void dli_unforked_begin(dli_unforked_t what) {
    kind_t *kind = &kinds[what];
    pthread_mutex_lock(&kind->door);
    pthread_mutex_lock(&counting);
    kind->inside += !is_inside[what]; /* one that left by a jump still is */
    is_inside[what] = true;
    pthread_mutex_unlock(&counting);
    pthread_mutex_unlock(&kind->door);
}

void dli_unforked_end(dli_unforked_t what) {
    if (is_inside[what]) {
        pthread_mutex_lock(&counting);
        kinds[what].inside--;
        is_inside[what] = false;
        pthread_cond_signal(&has_left);
        pthread_mutex_unlock(&counting);
    }
}

bool dli_is_unforked(dli_unforked_t what) {
    return is_inside[what];
}

void dli_unforked_end_lookup(void) {
#ifdef __GLIBC__
    /* What else the end of the thread does, with the same lock, and where no fork() waits for it. */
    if (is_inside[DLI_UNFORKED_LOOKUP] && _res.nscount != 0) { /* it has begun */
        res_nclose(&_res);
        _res.options = 0; /* the next one begins anew */
        _res.nscount = 0;
    }
#endif
    dli_unforked_end(DLI_UNFORKED_LOOKUP);
}

int dli_unforked_look_up(const char *host, const char *port, const struct addrinfo *hints,
                         struct addrinfo **list) {
    dli_unforked_begin(DLI_UNFORKED_LOOKUP);
    int code = getaddrinfo(host, port, hints, list);
    int error = errno;
    dli_unforked_end_lookup();
    errno = error;
    return code;
}
