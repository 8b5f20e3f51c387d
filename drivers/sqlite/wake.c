/* wake.c - wakes waiters in every process of the host: inotify on small files beside the lock file. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

/*
 * Names are hashed into 256 buckets; the bucket's file is <lock file>-wake/00 to ff. A waiter makes the
 * file and watches it; whoever has freed a lock sets the file's times, one system call, after the commit.
 * No file means that nobody ever waited. The hash and the file names are part of the format: every version
 * must wake every other.
 *
 * There are few inotify instances in a system (128 for each user), so a client has one for all its waits.
 * One waiter, the leader, polls it and passes on what it reads; the others poll an eventfd of their own. A
 * leader that leaves, for whatever reason, rouses another waiter, which finds no leader and becomes it.
 */
#define BUCKETS 256
#define EVENTS (IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF)

struct dl_watch {
    unsigned bucket;
    int fd; /* eventfd, while somebody else leads */
    bool woken;
    bool waiting;
    dl_watch_t *next;
};

typedef struct bucket {
    int wd;
    unsigned watches;
    bool broken; /* the file went away */
} bucket_t;

struct dli_wake {
    pthread_mutex_t mutex; /* guards everything below */
    int inotify;           /* -1: nobody waited yet */
    bucket_t buckets[BUCKETS];
    dl_watch_t *watches;
    dl_watch_t *leader;
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

static void rouse(const dl_watch_t *watch) {
    uint64_t one = 1;
    ssize_t n = write(watch->fd, &one, sizeof one); /* only fails when it is readable already */
    (void)n;
}

static void wake_bucket(dli_wake_t *wake, unsigned bucket) {
    for (dl_watch_t *watch = wake->watches; watch != NULL; watch = watch->next) {
        if (watch->bucket == bucket) {
            watch->woken = true;
            if (watch->waiting && watch != wake->leader) {
                rouse(watch);
            }
        }
    }
}

static void dispatch_one(dli_wake_t *wake, const struct inotify_event *event) {
    for (unsigned i = 0; i < BUCKETS; i++) {
        bucket_t *bucket = &wake->buckets[i];
        bool overflow = (event->mask & IN_Q_OVERFLOW) != 0;
        if (bucket->watches == 0 || !(overflow || event->wd == bucket->wd)) {
            continue;
        }
        if ((event->mask & (IN_IGNORED | IN_DELETE_SELF | IN_MOVE_SELF)) != 0) {
            (void)inotify_rm_watch(wake->inotify, bucket->wd);
            bucket->wd = -1;
            bucket->broken = true;
        }
        wake_bucket(wake, i);
    }
}

static void dispatch(dli_wake_t *wake) {
    _Alignas(struct inotify_event) char events[4096];
    ssize_t n;
    while ((n = read(wake->inotify, events, sizeof events)) > 0) {
        for (ssize_t at = 0; at < n;) {
            struct inotify_event event;
            memcpy(&event, events + at, sizeof event);
            dispatch_one(wake, &event);
            at += (ssize_t)(sizeof event + event.len);
        }
    }
}

static dl_status_t add_watch(dli_store_t *store, dl_watch_t *watch, dl_error_t *err) {
    dli_wake_t *wake = store->wake;
    bucket_t *bucket = &wake->buckets[watch->bucket];
    if (wake->inotify < 0) {
        wake->inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        if (wake->inotify < 0) {
            return dl_driver_fail(err, DL_ENOTSUP, errno, "no inotify instance can be had: %s",
                                  strerror(errno));
        }
    }
    if (bucket->wd < 0) {
        char path[64];
        if (dli_wake_files_provide(&wake->files, store, watch->bucket, path, sizeof path) != 0) {
            return dl_driver_fail(err, DL_ENOTSUP, errno, "cannot make the wake-up file %02x in %s-wake: %s",
                                  watch->bucket, dli_place_text(&store->place), strerror(errno));
        }
        bucket->wd = inotify_add_watch(wake->inotify, path, EVENTS | IN_DONT_FOLLOW);
        if (bucket->wd < 0) {
            return dl_driver_fail(err, DL_ENOTSUP, errno, "cannot watch the file %02x in %s-wake: %s",
                                  watch->bucket, dli_place_text(&store->place), strerror(errno));
        }
        bucket->broken = false;
    }
    bucket->watches++;
    watch->next = wake->watches;
    wake->watches = watch;
    return DL_OK;
}

dl_status_t dli_sqlite_watch(void *state, const char *name, size_t name_len, uint64_t deadline_ns,
                             const dl_stop_t *stop, dl_watch_t **watch, dl_error_t *err) {
    (void)deadline_ns; /* nothing here waits */
    (void)stop;
    dli_store_t *store = state;
    *watch = NULL;
    dl_watch_t *new_watch = calloc(1, sizeof *new_watch);
    if (new_watch == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    new_watch->bucket = bucket_of(name, name_len);
    new_watch->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (new_watch->fd < 0) {
        free(new_watch);
        return dl_driver_fail(err, DL_ELIMIT, errno, "no descriptor for a wait: %s", strerror(errno));
    }
    pthread_mutex_lock(&store->wake->mutex);
    dl_status_t status = add_watch(store, new_watch, err);
    pthread_mutex_unlock(&store->wake->mutex);
    if (status != DL_OK) {
        close(new_watch->fd);
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
    for (dl_watch_t **at = &wake->watches; *at != NULL; at = &(*at)->next) {
        if (*at == watch) {
            *at = watch->next;
            break;
        }
    }
    if (--bucket->watches == 0) {
        if (bucket->wd >= 0) {
            (void)inotify_rm_watch(wake->inotify, bucket->wd);
        }
        bucket->wd = -1;
        bucket->broken = false;
    }
    pthread_mutex_unlock(&wake->mutex);
    close(watch->fd);
    free(watch);
}

/* With the mutex held. Polls once, with the mutex let go: the inotify instance as the leader, else the
 * eventfd. */
static dl_status_t poll_once(dli_store_t *store, dl_watch_t *me, uint64_t deadline_ns, const dl_stop_t *stop,
                             dl_error_t *err) {
    dli_wake_t *wake = store->wake;
    if (wake->leader == NULL) {
        wake->leader = me;
    }
    bool leading = wake->leader == me;
    struct pollfd fds[3] = {
        {.fd = leading ? wake->inotify : me->fd, .events = POLLIN},
        {.fd = stop->fd[0], .events = POLLIN},
        {.fd = stop->fd[1], .events = POLLIN},
    };
    me->waiting = true;
    pthread_mutex_unlock(&wake->mutex);
    int n = store->env->poll(fds, 3, deadline_ns);
    int error = errno;
    pthread_mutex_lock(&wake->mutex);
    me->waiting = false;
    if (n > 0 && fds[0].revents != 0) {
        if (leading) {
            dispatch(wake);
        } else {
            uint64_t count;
            ssize_t got = read(me->fd, &count, sizeof count); /* fails if it was read before */
            (void)got;
        }
        return DL_OK;
    }
    if (n > 0) {
        return dl_driver_fail(err, DL_ECANCELED, 0, "the wait was cancelled");
    }
    if (n == 0) {
        return dl_driver_fail(err, DL_ETIMEDOUT, 0, "the wait is over");
    }
    return dl_driver_fail(err, DL_EIO, error, "cannot wait: %s", strerror(error));
}

dl_status_t dli_sqlite_wait(void *state, dl_watch_t *watch, uint64_t deadline_ns, const dl_stop_t *stop,
                            dl_error_t *err) {
    dli_store_t *store = state;
    dli_wake_t *wake = store->wake;
    dl_status_t status = DL_OK;
    pthread_mutex_lock(&wake->mutex);
    while (status == DL_OK && !watch->woken) {
        status = poll_once(store, watch, deadline_ns, stop, err);
    }
    if (watch->woken) {
        watch->woken = false;
        status = DL_OK;
        if (wake->buckets[watch->bucket].broken) {
            status = dl_driver_fail(err, DL_EIO, 0, "the wake-up file went away");
        }
    }
    if (wake->leader == watch) {
        wake->leader = NULL;
    }
    /* Whoever was roused to lead may be the one that leaves here. */
    for (dl_watch_t *next = wake->watches; wake->leader == NULL && next != NULL; next = next->next) {
        if (next->waiting) {
            rouse(next);
            break;
        }
    }
    pthread_mutex_unlock(&wake->mutex);
    return status;
}
