/* owner.c - thread numbers, owner texts, and the news that a thread has ended. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "owner.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sys.h"

static atomic_uint_fast64_t last_number;
static _Thread_local dli_thread_t *self;

static pthread_key_t exit_key;
static bool is_set_up; /* else no thread has a record, and none can hold */

/* Guards the list of hooks. Before any client's mutex. Held over fork(), so that the child finds it free. */
static pthread_mutex_t hooks_mutex = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, dli_exit_hook) hooks;

void dli_thread_ref(dli_thread_t *thread) {
    if (thread != NULL) {
        atomic_fetch_add_explicit(&thread->refs, 1, memory_order_relaxed);
    }
}

void dli_thread_unref(dli_thread_t *thread) {
    if (thread != NULL && atomic_fetch_sub_explicit(&thread->refs, 1, memory_order_acq_rel) == 1) {
        free(thread);
    }
}

static void end_thread(void *arg) {
    DLI_NO_THREAD_CANCEL;
    dli_thread_t *thread = arg;
    dli_end_calls(thread, NULL);
    free(thread->spare);
    self = NULL;
    atomic_store(&thread->exited, true);
    /* More than our own reference: something is still held. */
    if (atomic_load(&thread->refs) > 1) {
        pthread_mutex_lock(&hooks_mutex);
        dli_exit_hook_t *hook;
        LIST_FOREACH(hook, &hooks, next) {
            dli_exit_hook_hear(hook);
        }
        pthread_mutex_unlock(&hooks_mutex);
    }
    dli_thread_unref(thread);
}

static void before_fork(void) {
    pthread_mutex_lock(&hooks_mutex);
}

static void after_fork(void) {
    pthread_mutex_unlock(&hooks_mutex);
}

/* How many forks lie between the first process and this one. A process id alone may come again. */
static atomic_uint generation;

static void in_child(void) {
    atomic_fetch_add(&generation, 1);
    pthread_mutex_unlock(&hooks_mutex);
}

/* The process id, in memory that is zeros in a new process, by fork or by clone, unless that shares its
 * memory: to ask for it is a system call. NULL: no such memory. */
static _Atomic(pid_t) *kept_pid;

static _Atomic(pid_t) *new_kept_pid(void) {
    void *page = mmap(NULL, sizeof *kept_pid, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return NULL;
    }
    /* Emulators do nothing and say yes, as they do to what is no advice. */
    if (madvise(page, sizeof *kept_pid, -1) != 0 && madvise(page, sizeof *kept_pid, MADV_WIPEONFORK) == 0) {
        return page;
    }
    munmap(page, sizeof *kept_pid);
    return NULL;
}

static pid_t this_process(void) {
    pid_t pid = kept_pid != NULL ? atomic_load_explicit(kept_pid, memory_order_relaxed) : 0;
    if (pid == 0) {
        pid = getpid();
        if (kept_pid != NULL) {
            atomic_store_explicit(kept_pid, pid, memory_order_relaxed);
        }
    }
    return pid;
}

/* As the library is loaded, before a thread can fork: in the midst of it, a child would do it once more. */
__attribute__((constructor(101))) static void setup(void) {
    kept_pid = new_kept_pid();
    is_set_up = pthread_key_create(&exit_key, end_thread) == 0 &&
                pthread_atfork(before_fork, after_fork, in_child) == 0;
}

dli_origin_t dli_origin(void) {
    return (dli_origin_t){.pid = this_process(), .generation = atomic_load(&generation)};
}

bool dli_is_inherited(const dli_origin_t *origin) {
    /* The generation sees every fork(); the process id also what came about by clone alone. */
    return origin->generation != atomic_load(&generation) || origin->pid != this_process();
}

dli_thread_t *dli_thread_known(void) {
    return self;
}

dli_thread_t *dli_thread_self(void) {
    if (self != NULL) {
        return self;
    }
    dli_thread_t *thread = is_set_up ? calloc(1, sizeof *thread) : NULL;
    if (thread == NULL) {
        return NULL;
    }
    thread->number = atomic_fetch_add(&last_number, 1) + 1;
    atomic_init(&thread->refs, 1);
    atomic_init(&thread->exited, false);
    if (pthread_setspecific(exit_key, thread) != 0) {
        free(thread);
        return NULL;
    }
    self = thread;
    return thread;
}

void dli_exit_hook_add(dli_exit_hook_t *hook) {
    pthread_mutex_lock(&hooks_mutex);
    LIST_INSERT_HEAD(&hooks, hook, next);
    pthread_mutex_unlock(&hooks_mutex);
}

void dli_exit_hook_remove(dli_exit_hook_t *hook) {
    pthread_mutex_lock(&hooks_mutex);
    LIST_REMOVE(hook, next);
    pthread_mutex_unlock(&hooks_mutex);
}

void dli_owner_text(const dli_owner_t *owner, const char *uuid, char text[DLI_OWNER_TEXT]) {
    char *at = stpcpy(stpcpy(text, uuid), owner->thread == NULL ? ":t" : ":");
    at[dli_digits(at, owner->number)] = '\0';
}

int dli_uuid_new(char text[37]) {
    unsigned char b[16];
    if (dli_sys->random(b, sizeof b) != 0) {
        return -1;
    }
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40); /* RFC 9562: version 4 */
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80); /* and its variant */
    char *at = text;
    for (int i = 0; i < 16; i++) {
        static const char hex[] = "0123456789abcdef";
        if (i == 4 || i == 6 || i == 8 || i == 10) {
            *at++ = '-';
        }
        *at++ = hex[b[i] >> 4];
        *at++ = hex[b[i] & 15];
    }
    *at = '\0';
    return 0;
}
