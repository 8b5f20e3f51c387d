/* owner.h - who holds: threads by number, tasks by the program's own numbers. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_OWNER_H
#define DLI_OWNER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "digits.h"

struct dl_client;
struct dli_op;

/* One thread that called the library. It lives until the thread has ended and no hold refers to it. */
typedef struct dli_thread {
    uint64_t number;  /* from a counter: never used again, unlike an OS thread id */
    atomic_uint refs; /* the thread itself and its holds */
    atomic_bool exited;
    struct dli_op *calls; /* the thread's own: its blocking calls under way, the innermost first (op.c) */
    struct dli_op *spare; /* and the memory of its next one */
} dli_thread_t;

typedef struct dli_owner {
    uint64_t number;
    dli_thread_t *thread; /* NULL: a task of dl_lock_open_owned */
} dli_owner_t;

/* The calling thread's record; NULL when out of memory. */
dli_thread_t *dli_thread_self(void);
/* The same; NULL: it has none yet. */
dli_thread_t *dli_thread_known(void);
/* op.c: ends what the thread has left by a jump: before a call that waits for all others of the client, and
 * with the thread (client NULL: of any). */
void dli_end_calls(dli_thread_t *thread, const struct dl_client *client);
void dli_thread_ref(dli_thread_t *thread); /* NULL: nothing, as of every unref */
void dli_thread_unref(dli_thread_t *thread);

static inline bool dli_owner_equal(const dli_owner_t *a, const dli_owner_t *b) {
    return a->number == b->number && (a->thread == NULL) == (b->thread == NULL);
}
#define DLI_OWNER_TEXT (36 + sizeof ":t" + DLI_DIGITS_MAX)
/* "uuid:17" for threads, "uuid:t17" for tasks. */
void dli_owner_text(const dli_owner_t *owner, const char *uuid, char text[DLI_OWNER_TEXT]);
/* A random (version 4) uuid: 36 characters and a zero. 0, or -1 with errno. */
int dli_uuid_new(char text[37]);

/* Which process made an object. A forked child has it too, and must leave it alone. */
typedef struct dli_origin {
    pid_t pid;
    unsigned generation;
} dli_origin_t;
dli_origin_t dli_origin(void);
bool dli_is_inherited(const dli_origin_t *origin); /* async-signal-safe */

/* The clients that want to hear of ended threads. */
typedef struct dli_exit_hook {
    LIST_ENTRY(dli_exit_hook) next;
} dli_exit_hook_t;
void dli_exit_hook_add(dli_exit_hook_t *hook);
/* After its return it hears no more. */
void dli_exit_hook_remove(dli_exit_hook_t *hook);
/* loop.c: called on the ending thread. */
void dli_exit_hook_hear(dli_exit_hook_t *hook);

#endif
