/* sys.h - clock, waiting, randomness and threads behind one table, so that tests can replace them. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_SYS_H
#define DLI_SYS_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define DLI_NEVER UINT64_MAX
#define DLI_NS_PER_MS 1000000u
#define DLI_NS_PER_US 1000u

/* Every wait of the core and, through dl_driver_env_t, of the drivers goes through here. */
typedef struct dli_sys {
    uint64_t (*now_ns)(void);                                               /* CLOCK_BOOTTIME */
    int (*random)(void *buf, size_t len);                                   /* 0, or -1 with errno */
    int (*thread_start)(pthread_t *thread, void *(*fn)(void *), void *arg); /* 0 or an errno */
    void (*thread_join)(pthread_t thread);
    /* poll(2) until an absolute instant; EINTR is no end. Ready entries, 0 at the end, -1 with errno. */
    int (*poll)(struct pollfd *fds, nfds_t n, uint64_t deadline_ns);
    /* Sleeps while the word is 0, until an absolute instant. */
    void (*word_wait)(atomic_uint *word, uint64_t deadline_ns);
    /* Whoever sleeps on it looks again. Touches no memory. */
    void (*word_wake)(atomic_uint *word);
    void (*cond_init)(pthread_cond_t *cond);
    /* 0 or ETIMEDOUT; may wake for nothing. */
    int (*cond_wait)(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns);
    void (*cond_broadcast)(pthread_cond_t *cond);
    /* A descriptor that becomes readable when the machine resumes or its clock is set; -1: none.
     * resume_rearm, once at first, makes it wait for the next time, and returns for how long the machine has
     * slept in all, more or less. */
    int (*resume_fd)(void);
    uint64_t (*resume_rearm)(int fd);
    unsigned (*processors)(void); /* how many this process may run on */
} dli_sys_t;

/* The table in use. Replaced only by tests, before the first client is opened. */
extern const dli_sys_t *dli_sys;
extern const dli_sys_t dli_sys_real;

static inline int dli_no_thread_cancel(void) {
    int state;
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    return state;
}
static inline void dli_thread_cancel_as_before(const int *state) {
    (void)pthread_setcancelstate(*state, NULL);
}
/* First in every public function that can block: until it returns, pthread_cancel does not end the calling
 * thread, which would leave mutexes locked, descriptors open and turns in queues. They nest, and are
 * async-signal-safe. */
#define DLI_NO_THREAD_CANCEL                                                                    \
    __attribute__((cleanup(dli_thread_cancel_as_before), unused)) const int dli_cancel_state_ = \
        dli_no_thread_cancel()

#endif
