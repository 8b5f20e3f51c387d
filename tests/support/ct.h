/* ct.h - the inside of a running contract case; for the harness only. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CT_H
#define CT_H

#include <pthread.h>
#include <sys/types.h>

#include "dlock/driver.h"
#include "support/contract.h"
#include "support/fixtures.h"

#define CT_EXIT_FAILED 91
#define CT_EXIT_TIMEOUT 92
#define CT_CLIENTS_MAX 1024
#define CT_DIR_MAX 256

typedef struct ct_stash {
    struct ct_stash *next;
    dl_event_t event;
} ct_stash_t;

/* A client or a lock that the harness closes at the end unless the case did. */
typedef struct ct_client {
    dl_client_t *client;        /* NULL: not the harness's any more */
    const dl_client_t *pointer; /* stays, so that records can be asked for after the close */
    ct_stash_t *events;         /* read, but not yet expected */
} ct_client_t;

typedef struct ct_object {
    struct ct_object *next;
    dl_lock_t *lock;
} ct_object_t;

struct ct_thread {
    ct_thread_t *next;
    ct_t *ct;
    ct_fn fn;
    void *arg;
    pthread_t id;
    int joined;
    ct_latch_t *done;
};

struct ct_latch {
    ct_latch_t *next;
    int left;
};

struct ct_process {
    ct_process_t *next;
    pid_t pid;
    int fd;    /* to the child; in the child: to the parent */
    int ended; /* reaped */
};

struct ct {
    const ct_case_t *test;
    const fixture_t *fixture;
    uint32_t caps, traits;
    const dl_driver_t *inner, *wrapped;
    char dir[CT_DIR_MAX];
    uint64_t stood_ns; /* the machine, before the case began */
    uint64_t seed;
    int owns_dir;
    ct_door_t door;
    char config[CT_DIR_MAX + 16]; /* "": not written yet */
    int time_scale;
    int is_child;    /* a process that the case started */
    int child_fd;    /* in it: to the parent */
    int descriptors; /* open before the case began */
    int tasks;       /* threads of the process by then */
    /* Guarded by mutex. Never held during a dl_ call. */
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* any latch */
    ct_client_t clients[CT_CLIENTS_MAX];
    int client_count;
    ct_object_t *locks;
    ct_thread_t *threads;
    ct_latch_t *latches;
    ct_process_t *processes;
    dl_client_t *observer;
};

/* Where who runs the case finds the line of its first failure: memory that all its processes share.
 * NULL: nobody looks. */
#define CT_REASON_MAX 1000
extern char *ct_reason;

/* The case that this process runs; NULL: none. */
ct_t *ct_current(void);
int ct_time_scale(void);

typedef struct ct_run_options {
    const char *dir; /* an empty folder for the case; NULL: the case makes and removes its own */
    int real_time;   /* the fakes too */
    ct_door_t door;
    int serial;
    uint64_t seed;
} ct_run_options_t;

/* All cases, by suite and name. */
const ct_case_t *ct_first_case(void);
/* Does this case concern this fixture? */
int ct_applies(const ct_case_t *test, const fixture_t *fixture, const ct_run_options_t *options);
/* The traits it has when it is run so. */
uint32_t ct_traits_of(const fixture_t *fixture, const ct_run_options_t *options);
/* Runs it here. Returns when it has passed; otherwise the process ends with CT_EXIT_FAILED. */
void ct_run(const ct_case_t *test, const fixture_t *fixture, const ct_run_options_t *options);
/* "driver/suite__name" or "driver-queue/suite__name" */
void ct_full_name(const ct_case_t *test, const fixture_t *fixture, ct_door_t door, char *text, size_t size);
int ct_timeout_s(const ct_case_t *test);

/* Ends the process as it is, other threads and all, for a failure. Unlike after _exit, no sanitizer complains
 * of what was left, with an exit status of its own. */
_Noreturn void ct_exit(int status);
/* From now on no thread fails the case any more, unless one is about to. Never blocks. */
void ct_fail_no_more(void);

/* Between the files of the harness. */
void ct_close_all(ct_t *ct);
void ct_end_threads(ct_t *ct);
void ct_end_changed_sys(void);
void ct_end_processes(ct_t *ct);
void ct_kill_processes(ct_t *ct); /* takes no lock */
void ct_free_latches(ct_t *ct);
void ct_free_events(ct_t *ct);
int ct_client_number(const dl_client_t *client);
ct_client_t *ct_find_client(ct_t *ct, const dl_client_t *client);
/* An empty folder, for scratch_remove. */
void ct_make_dir(char dir[CT_DIR_MAX]);

#endif
