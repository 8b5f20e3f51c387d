/* wake.c - wakes waiters in every process of the host: inotify on small files beside the lock file. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

/*
 * Names are hashed into 256 buckets; the bucket's file is <lock file>-wake/00 to ff. A waiter makes the
 * file and watches it; whoever has freed a lock sets the file's times, two system calls, after the commit.
 * No file means that nobody ever waited. The hash and the file names are part of the format: every version
 * must wake every other.
 *
 * There are few inotify instances in a system (128 for each user), so a client has one for all its waits.
 */
#define BUCKETS 256
#define EVENTS (IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF)

struct dl_watch {
    dl_watch_t *next;
    unsigned bucket;
    size_t name_len;
    char name[];
};

typedef struct bucket {
    int wd; /* -1: nobody watches it, or nobody can */
    unsigned watches;
} bucket_t;

struct dli_wake {
    pthread_mutex_t mutex; /* guards everything below */
    int inotify;           /* -1: nobody waited yet */
    bucket_t buckets[BUCKETS];
    dl_watch_t *watches;
    dli_wake_files_t files;
    atomic_bool warned; /* the one that stands alone */
};

/* FNV-1a, folded. */
static unsigned bucket_of(const char *name, size_t name_len) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < name_len; i++) {
        hash = (hash ^ (unsigned char)name[i]) * 16777619u;
    }
    return (hash ^ hash >> 8 ^ hash >> 16 ^ hash >> 24) % BUCKETS;
}

dl_status_t dli_wake_open(dli_store_t *store, dl_error_t *err) {
    dli_wake_t *wake = calloc(1, sizeof *wake);
    if (wake == NULL || !dli_wake_files_open(&wake->files, store)) {
        free(wake);
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    pthread_mutex_init(&wake->mutex, NULL);
    wake->inotify = -1;
    for (unsigned i = 0; i < BUCKETS; i++) {
        wake->buckets[i].wd = -1;
    }
    store->wake = wake;
    return DL_OK;
}

void dli_wake_close(dli_store_t *store, int forked) {
    dli_wake_t *wake = store->wake;
    store->wake = NULL;
    if (wake == NULL) {
        return;
    }
    if (wake->inotify >= 0) {
        close(wake->inotify);
    }
    if (!forked) {
        pthread_mutex_destroy(&wake->mutex);
    }
    dli_wake_files_close(&wake->files);
    free(wake);
}

/* ---- the side that frees ---------------------------------------------------------------------------- */

void dli_wake_all(dli_store_t *store, const char *name, size_t name_len) {
    dli_wake_t *wake = store->wake;
    char text[160];
    pthread_mutex_lock(&wake->mutex);
    int rc = dli_wake_files_touch(&wake->files, store, bucket_of(name, name_len));
    int error = errno;
    pthread_mutex_unlock(&wake->mutex);
    if (rc == 0 || error == ENOENT) {
        return; /* nobody ever waited */
    }
    if (!atomic_exchange(&wake->warned, true)) {
        snprintf(text, sizeof text, "waiters are not woken: cannot touch the files in %.60s-wake: %.40s",
                 dli_place_text(&store->place), strerror(error));
        store->env->report(store->env->core, DL_LOG_WARNING, text);
    }
}

/* ---- the side that waits; the mutex is held --------------------------------------------------------- */

static void tell_bucket(const dli_store_t *store, unsigned bucket) {
    const dli_wake_t *wake = store->wake;
    int hears = wake->buckets[bucket].wd >= 0;
    for (const dl_watch_t *watch = wake->watches; watch != NULL; watch = watch->next) {
        if (watch->bucket == bucket) {
            store->env->woken(store->env->core, watch->name, watch->name_len, hears);
        }
    }
}

/* Makes the bucket's file and watches it. */
static dl_status_t watch_bucket(const dli_store_t *store, unsigned bucket, dl_error_t *err) {
    dli_wake_t *wake = store->wake;
    char path[64];
    if (wake->inotify < 0) {
        wake->inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        if (wake->inotify < 0) {
            return dl_driver_fail(err, DL_ENOTSUP, errno,
                                  "no inotify instance can be had (%s); see fs.inotify.max_user_instances",
                                  strerror(errno));
        }
    }
    if (dli_wake_files_provide(&wake->files, store, bucket, path, sizeof path) != 0) {
        return dl_driver_fail(err, DL_ENOTSUP, errno, "cannot make the wake-up file %02x in %s-wake: %s",
                              bucket, dli_place_text(&store->place), strerror(errno));
    }
    wake->buckets[bucket].wd = inotify_add_watch(wake->inotify, path, EVENTS | IN_DONT_FOLLOW);
    if (wake->buckets[bucket].wd < 0) {
        return dl_driver_fail(err, DL_ENOTSUP, errno, "cannot watch the file %02x in %s-wake: %s", bucket,
                              dli_place_text(&store->place), strerror(errno));
    }
    return DL_OK;
}

static void dispatch_one(const dli_store_t *store, const struct inotify_event *event) {
    bool overflow = (event->mask & IN_Q_OVERFLOW) != 0;
    for (unsigned i = 0; i < BUCKETS; i++) {
        bucket_t *bucket = &store->wake->buckets[i];
        if (bucket->watches == 0 || !(overflow || event->wd == bucket->wd)) {
            continue;
        }
        if ((event->mask & (IN_IGNORED | IN_DELETE_SELF | IN_MOVE_SELF)) != 0) {
            dl_error_t err;
            (void)inotify_rm_watch(store->wake->inotify, bucket->wd);
            bucket->wd = -1;
            (void)watch_bucket(store, i, &err); /* or they poll, until another one comes to watch it */
        }
        tell_bucket(store, i);
    }
}

/* As many as there is room for; more are read when it listens again, and keep nobody here. */
static void dispatch(const dli_store_t *store) {
    _Alignas(struct inotify_event) char events[4096];
    ssize_t n = read(store->wake->inotify, events, sizeof events);
    for (ssize_t at = 0; at < n;) {
        struct inotify_event event;
        memcpy(&event, events + at, sizeof event);
        dispatch_one(store, &event);
        at += (ssize_t)(sizeof event + event.len);
    }
}

static dl_status_t add_watch(const dli_store_t *store, dl_watch_t *watch, dl_error_t *err) {
    dli_wake_t *wake = store->wake;
    bucket_t *bucket = &wake->buckets[watch->bucket];
    bool anew = bucket->wd < 0;
    if (anew) {
        dl_status_t status = watch_bucket(store, watch->bucket, err);
        if (status != DL_OK) {
            return status;
        }
    }
    bucket->watches++;
    watch->next = wake->watches;
    wake->watches = watch;
    if (anew) {
        tell_bucket(store, watch->bucket);
    } else {
        store->env->woken(store->env->core, watch->name, watch->name_len, 1);
    }
    return DL_OK;
}

/* ---- the ops ---------------------------------------------------------------------------------------- */

dl_status_t dli_sqlite_watch(void *state, const char *name, size_t name_len, dl_watch_t **watch,
                             dl_error_t *err) {
    const dli_store_t *store = state;
    dl_watch_t *new_watch = calloc(1, sizeof *new_watch + name_len);
    if (new_watch == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    new_watch->bucket = bucket_of(name, name_len);
    new_watch->name_len = name_len;
    memcpy(new_watch->name, name, name_len);
    pthread_mutex_lock(&store->wake->mutex);
    dl_status_t status = add_watch(store, new_watch, err);
    pthread_mutex_unlock(&store->wake->mutex);
    if (status != DL_OK) {
        free(new_watch);
        return status;
    }
    *watch = new_watch;
    return DL_OK;
}

void dli_sqlite_unwatch(void *state, dl_watch_t *watch) {
    dli_wake_t *wake = ((dli_store_t *)state)->wake;
    bucket_t *bucket = &wake->buckets[watch->bucket];
    pthread_mutex_lock(&wake->mutex);
    dl_watch_t **at = &wake->watches;
    while (*at != watch) {
        at = &(*at)->next;
    }
    *at = watch->next;
    if (--bucket->watches == 0 && bucket->wd >= 0) {
        (void)inotify_rm_watch(wake->inotify, bucket->wd);
        bucket->wd = -1;
    }
    pthread_mutex_unlock(&wake->mutex);
    free(watch);
}

size_t dli_sqlite_listen_fds(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns) {
    (void)max;
    dli_wake_t *wake = ((dli_store_t *)state)->wake;
    pthread_mutex_lock(&wake->mutex);
    size_t n = wake->watches != NULL;
    if (n > 0) {
        fds[0] = (struct pollfd){.fd = wake->inotify, .events = POLLIN};
    }
    pthread_mutex_unlock(&wake->mutex);
    *until_ns = DL_NO_DEADLINE;
    return n;
}

void dli_sqlite_listen(void *state, const struct pollfd *fds, size_t n) {
    const dli_store_t *store = state;
    if (n > 0 && fds[0].revents != 0) {
        pthread_mutex_lock(&store->wake->mutex);
        dispatch(store);
        pthread_mutex_unlock(&store->wake->mutex);
    }
}
