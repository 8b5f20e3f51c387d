/* unforked.c - fork() waits for threads that are inside OpenSSL, a client library or a lookup of names. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "unforked.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <resolv.h>
#include <time.h>

/* Who is inside a library waits for a server now and then, where the library does not tell of it. */
#define LIBRARY_MS 1000
/* A lookup that waits for a server of names has let go of its locks: most take no time at all. */
#define LOOKUP_MS 100
#define NS_PER_MS 1000000L

/* Whoever forks keeps the door shut, so that its turn comes beside however many. The other is for who counts.
 */
static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER, counting = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_left = PTHREAD_COND_INITIALIZER;
static unsigned inside, looking;
static _Thread_local bool is_inside, is_looking;

static void await(const unsigned *count, bool own, long ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms * NS_PER_MS;
    until.tv_sec += until.tv_nsec / (1000 * NS_PER_MS);
    until.tv_nsec %= 1000 * NS_PER_MS;
    while (*count > own && pthread_cond_clockwait(&has_left, &counting, CLOCK_MONOTONIC, &until) == 0) {}
}

static void before_fork(void) {
    pthread_mutex_lock(&door);
    pthread_mutex_lock(&counting);
    await(&inside, is_inside, LIBRARY_MS);
    await(&looking, is_looking, LOOKUP_MS);
}

static void open_door(void) {
    pthread_mutex_unlock(&counting);
    pthread_mutex_unlock(&door);
}

static void after_fork_in_child(void) {
    inside = is_inside;
    looking = is_looking;
    open_door();
}

/* As the library is loaded, before a thread can fork: in the midst of it, a child would do it once more. */
__attribute__((constructor(101))) static void add_handlers(void) {
    (void)pthread_atfork(before_fork, open_door, after_fork_in_child);
}

static void enter(unsigned *count, bool *is_counted) {
    pthread_mutex_lock(&door);
    pthread_mutex_lock(&counting);
    *count += !*is_counted; /* one that left by a jump still is */
    *is_counted = true;
    open_door();
}

static void leave(unsigned *count, bool *is_counted) {
    if (*is_counted) {
        pthread_mutex_lock(&counting);
        --*count;
        *is_counted = false;
        pthread_cond_signal(&has_left);
        pthread_mutex_unlock(&counting);
    }
}

void dli_unforked_begin(void) {
    enter(&inside, &is_inside);
}

void dli_unforked_end(void) {
    leave(&inside, &is_inside);
}

/* What else the end of the thread does, with the same lock, and where no fork() waits for it. */
static void end_lookups(void) {
#ifdef __GLIBC__
    if (_res.nscount != 0) { /* it has begun */
        res_nclose(&_res);
        _res.options = 0; /* the next one begins anew */
        _res.nscount = 0;
    }
#endif
}

int dli_unforked_look_up(const char *host, const char *port, const struct addrinfo *hints,
                         struct addrinfo **list) {
    enter(&looking, &is_looking);
    int code = getaddrinfo(host, port, hints, list);
    int error = errno;
    end_lookups();
    leave(&looking, &is_looking);
    errno = error;
    return code;
}

bool dli_is_unforked(void) {
    return is_inside || is_looking;
}
