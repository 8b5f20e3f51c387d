/* ct_run.c - the list of cases, which of them concern a fixture, and the run of one. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/sys.h"
#include "drivers/registry.h"
#include "support/alloc_fail.h"
#include "support/beat.h"
#include "support/ct.h"
#include "support/entries.h"
#include "support/fault.h"
#include "support/scratch.h"
#include "support/sim.h"

#define CASE_TIMEOUT_S 30
#define LEFT_BEHIND_MS 3000

static ct_case_t *cases;
static ct_t running; /* the case that this process runs: one at a time */
static int is_running;

ct_t *ct_current(void) {
    return is_running ? &running : NULL;
}

int ct_time_scale(void) {
    const char *text = getenv("DLOCK_TEST_TIME_SCALE");
    int scale = text == NULL ? 1 : atoi(text);
    return scale < 1 ? 1 : scale;
}

/* ---- the list ------------------------------------------------------------------------------------- */

static int order(const ct_case_t *a, const ct_case_t *b) {
    int suites = strcmp(a->suite, b->suite);
    return suites != 0 ? suites : strcmp(a->name, b->name);
}

void ct_register(ct_case_t *new_case) {
    ct_case_t **at = &cases;
    while (*at != NULL && order(*at, new_case) < 0) {
        at = &(*at)->next;
    }
    if (*at != NULL && order(*at, new_case) == 0) {
        fprintf(stderr, "two cases are called %s__%s\n", new_case->suite, new_case->name);
        abort();
    }
    new_case->next = *at;
    *at = new_case;
}

const ct_case_t *ct_first_case(void) {
    return cases;
}

/* In the child of a process with threads ThreadSanitizer knows no new ones, and AddressSanitizer's allocator
 * keeps the locks that the parent's other threads had at the fork: who then needs one waits for ever. */
#if defined __has_feature
#if __has_feature(thread_sanitizer)
#define HAS_TSAN 1
#endif
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#if defined HAS_ASAN || defined __SANITIZE_ADDRESS__
#define FORK_TRAITS 0u
#define SIMULATED_FORK_TRAITS 0u
#define SLOWNESS 3
#elif defined HAS_TSAN || defined __SANITIZE_THREAD__
#define FORK_TRAITS 0u
#define SIMULATED_FORK_TRAITS CT_FORK_BUSY
#define SLOWNESS 3
#else
#define FORK_TRAITS (CT_FORK_THREADS | CT_FORK_BUSY)
#define SIMULATED_FORK_TRAITS FORK_TRAITS
#define SLOWNESS 1
#endif

int ct_many(int n) {
    return (n + SLOWNESS - 1) / SLOWNESS;
}

uint32_t ct_traits_of(const fixture_t *fixture, const ct_run_options_t *options) {
    uint32_t traits = fixture->traits;
    traits |= options->door == CT_DOOR_BLOCKING ? CT_BLOCKING : 0;
    traits = options->real_time ? (traits & ~CT_VIRTUAL) | CT_REAL_TIME : traits;
    return traits | (traits & CT_VIRTUAL ? SIMULATED_FORK_TRAITS : FORK_TRAITS);
}

int ct_applies(const ct_case_t *test, const fixture_t *fixture, const ct_run_options_t *options) {
    const dl_driver_t *driver = fixture->driver();
    uint32_t caps = driver == NULL ? 0 : driver->caps;
    uint32_t traits = ct_traits_of(fixture, options);
    return (caps & test->needs) == test->needs && (caps & test->needs_not) == 0 &&
           (traits & test->traits) == test->traits && (traits & test->traits_not) == 0;
}

void ct_full_name(const ct_case_t *test, const fixture_t *fixture, ct_door_t door, char *text, size_t size) {
    snprintf(text, size, "%s%s/%s__%s", fixture->name, door == CT_DOOR_QUEUE ? "-queue" : "", test->suite,
             test->name);
}

int ct_timeout_s(const ct_case_t *test) {
    return (test->timeout_s == 0 ? CASE_TIMEOUT_S : test->timeout_s) * ct_time_scale();
}

uint32_t ct_caps(ct_t *ct) {
    return ct->caps;
}

uint32_t ct_traits(ct_t *ct) {
    return ct->traits;
}

const char *ct_driver_name(ct_t *ct) {
    return ct->fixture->name;
}

int ct_built_in(ct_t *ct) {
    return dli_registry_find(ct->inner->name) != NULL;
}

/* ---- allocations ------------------------------------------------------------------------------------ */

void ct_alloc_fail(ct_t *ct, int n, int forever) {
    (void)ct;
    alloc_fail_at(n, forever);
}

int ct_alloc_calls(ct_t *ct) {
    (void)ct;
    return alloc_fail_calls();
}

int ct_alloc_failed(ct_t *ct) {
    (void)ct;
    return alloc_fail_failed();
}

/* ---- the folder ------------------------------------------------------------------------------------- */

void ct_make_dir(char dir[CT_DIR_MAX]) {
    if (!scratch_make("case", dir, CT_DIR_MAX)) {
        perror("a folder for the case");
        exit(CT_EXIT_FAILED);
    }
}

/* ---- the run ---------------------------------------------------------------------------------------- */

/* Nothing here is safe in a signal handler, but the process is about to end, and the runner's parent has a
 * limit of its own. */
static void on_alarm(int signal_number) {
    (void)signal_number;
    ct_fail_no_more(); /* as who waits for a process would that is killed here */
    static const char text[] = "the case hangs\n";
    ssize_t n = write(2, text, sizeof text - 1);
    (void)n;
    if (sim_active()) {
        sim_dump();
    }
    ct_kill_processes(&running);
    if (running.owns_dir) {
        scratch_remove(running.dir);
    }
    ct_exit(CT_EXIT_TIMEOUT);
}

static void on_deadlock(const char *what) {
    ct_t *ct = &running;
    CT_FAIL("%s", what);
}

static void *nothing(void *arg) {
    return arg;
}

/* A sanitizer starts a thread of its own together with the first of ours. */
static int threads_before_a_case(void) {
    pthread_t first;
    if (pthread_create(&first, NULL, nothing, NULL) == 0) {
        (void)pthread_join(first, NULL);
    }
    return running_threads();
}

/* A thread that a closed client left behind, in the middle of connecting, may be there for a while. */
static void await_what_was_left(ct_t *ct, int may_be_open) {
    int left = 0, tasks = 0;
    for (int ms = 0; ms < LEFT_BEHIND_MS * ct->time_scale; ms += 5) {
        left = open_descriptors() - ct->descriptors - may_be_open;
        tasks = running_threads() - ct->tasks;
        if (left <= 0 && tasks <= 0) {
            return;
        }
        (void)poll(NULL, 0, 5);
    }
    CT_FAIL("%d descriptors were left open, and %d threads run on", left, tasks);
}

static void set_up(ct_t *ct, const ct_case_t *test, const fixture_t *fixture,
                   const ct_run_options_t *options) {
    memset(ct, 0, sizeof *ct);
    ct->descriptors = open_descriptors();
    ct->tasks = threads_before_a_case();
    ct->test = test;
    ct->fixture = fixture;
    ct->traits = ct_traits_of(fixture, options);
    ct->door = options->door;
    ct->inner = fixture->driver();
    ct->caps = ct->inner->caps;
    ct->time_scale = ct_time_scale();
    ct->stood_ns = beat_stood_ns(NULL);
    ct->seed = options->seed;
    ct->child_fd = -1;
    pthread_mutex_init(&ct->mutex, NULL);
    is_running = 1;
    if (options->dir != NULL) {
        snprintf(ct->dir, sizeof ct->dir, "%s", options->dir);
    } else {
        ct_make_dir(ct->dir);
        ct->owns_dir = 1;
    }
    if (ct->traits & CT_VIRTUAL) {
        sim_options_t sim = {.seed = options->seed, .serial = options->serial};
        sim_on_deadlock(on_deadlock);
        sim_install(&sim);
    }
    dli_sys->cond_init(&ct->changed);
    fault_reset();
    fault_set_client_numbers(ct_client_number);
    ct->wrapped = fault_wrap(ct->inner);
    if (fixture->reset != NULL) {
        fixture->reset();
    }
    if (fixture->start != NULL) {
        fixture->start(ct->dir);
    }
    /* A case may fork, which no thread of the fixture's own clients shall see. */
    await_what_was_left(ct, open_descriptors() - ct->descriptors);
    alloc_fail_at(0, 0);
    signal(SIGALRM, on_alarm);
    alarm((unsigned)ct_timeout_s(test));
}

static void tear_down(ct_t *ct) {
    alloc_fail_at(0, 0);
    ct_fault_end(ct, -1);
    ct_end_threads(ct);
    ct_end_processes(ct);
    ct_close_all(ct);
    ct_free_events(ct);
    ct_free_latches(ct);
    fault_reset();
    if (ct->fixture->reset != NULL) {
        ct->fixture->reset();
    }
    if (ct->fixture->stop != NULL) {
        ct->fixture->stop();
    }
    if (ct->owns_dir) {
        scratch_remove(ct->dir);
    }
    pthread_cond_destroy(&ct->changed);
    if (sim_active()) {
        sim_uninstall();
    }
    alarm(0);
    await_what_was_left(ct, 0);
    ct_end_changed_sys();
    pthread_mutex_destroy(&ct->mutex);
    is_running = 0;
}

void ct_run(const ct_case_t *test, const fixture_t *fixture, const ct_run_options_t *options) {
    set_up(&running, test, fixture, options);
    test->run(&running);
    tear_down(&running);
}
