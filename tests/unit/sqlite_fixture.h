/* sqlite_fixture.h - drives the SQLite driver's table directly: an environment, a folder, short calls. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SQLITE_FIXTURE_H
#define SQLITE_FIXTURE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver_env.h"
#include "drivers/registry.h"
#include "drivers/sqlite/sqlite.h"

#define SECOND ((uint64_t)1000000000)
#define UUID_A "aaaaaaaa-0000-0000-0000-000000000001"
#define UUID_B "bbbbbbbb-0000-0000-0000-000000000002"
#define A UUID_A ":1"
#define B UUID_B ":1"

static char folder[64];        /* of this test */
static char path[128];         /* of its lock file */
static int64_t clock_ahead_ns; /* what the fake clock adds */
static atomic_ulong round_trips;
static char reported[256];

typedef struct client {
    dl_driver_env_t env;
    void *state;
    dl_error_t err;
    struct {
        char name[32];
        int hears;
    } said[512]; /* by woken, since somebody listened last */
    size_t said_count;
} client_t;

static const dl_driver_t *driver(void) {
    return dli_registry_find("sqlite");
}

static uint64_t now_shifted(void) {
    return dli_sys_real.now_ns() + (uint64_t)clock_ahead_ns;
}

/* An instant of the shifted clock on the real one; no deadline stays none. */
static uint64_t unshifted(uint64_t ns) {
    int64_t at_ns = (int64_t)ns - clock_ahead_ns;
    return ns == UINT64_MAX ? ns : at_ns > 0 ? (uint64_t)at_ns : 0;
}

static int poll_shifted(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    return dli_sys_real.poll(fds, n, unshifted(deadline_ns));
}

static int cond_wait_shifted(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns) {
    return dli_sys_real.cond_wait(cond, mutex, unshifted(deadline_ns));
}

static void note_report(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    (void)level;
    snprintf(reported, sizeof reported, "%s", text);
}

static void note_count(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    if (what == DL_COUNT_ROUND_TRIP) {
        atomic_fetch_add(&round_trips, n);
    }
}

static void note_woken(void *core, const char *name, size_t name_len, int hears) {
    client_t *c = core;
    if (c->said_count < sizeof c->said / sizeof c->said[0]) {
        snprintf(c->said[c->said_count].name, sizeof c->said[0].name, "%.*s", (int)name_len, name);
        c->said[c->said_count++].hears = hears;
    }
}

static inline uint64_t in_ms(uint64_t ms) {
    return now_shifted() + ms * MS;
}

static inline dl_status_t open_options(client_t *c, const char *uuid, const char *file, int create) {
    *c = (client_t){.env = make_env(uuid, note_report, note_count), .state = calloc(1, driver()->state_size)};
    c->env.core = c;
    c->env.woken = note_woken;
    c->env.now_ns = now_shifted;
    c->env.poll = poll_shifted;
    c->env.cond_wait = cond_wait_shifted;
    dl_option_value_t values[] = {{.is_set = file != NULL, .string = file}, {.is_set = 1, .number = create}};
    return driver()->open(c->state, values, &c->env, in_ms(2000), &c->err);
}

static inline void must_open(client_t *c, const char *uuid) {
    cr_assert_eq(open_options(c, uuid, path, 1), DL_OK, "open: %s", c->err.message);
}

static inline void must_close(client_t *c) {
    driver()->close(c->state, 0);
    free(c->state);
    c->state = NULL;
}

static inline dl_request_t request(const char *name, const char *owner, uint64_t hold_id) {
    return make_request(name, owner, hold_id, in_ms(2000));
}

static inline dl_status_t take_full(client_t *c, const dl_request_t *r, dl_grant_t *grant) {
    *grant = (dl_grant_t){.session_fd = -1, .busy_ms = -1};
    c->err.message[0] = '\0';
    return driver()->try_acquire(c->state, NULL, r, grant, &c->err);
}

static inline dl_status_t take(client_t *c, const char *name, const char *owner, uint64_t hold_id,
                               int64_t lease_ms, uint64_t *token) {
    dl_request_t r = request(name, owner, hold_id);
    dl_grant_t grant;
    r.lease_ms = lease_ms;
    dl_status_t status = take_full(c, &r, &grant);
    if (token != NULL) {
        *token = grant.token;
    }
    return status;
}

static inline dl_status_t drop(client_t *c, const char *name, const char *owner, uint64_t hold_id) {
    dl_request_t r = request(name, owner, hold_id);
    r.level = 0;
    c->err.message[0] = '\0';
    return driver()->release(c->state, NULL, &r, &c->err);
}

static inline dl_renewal_t renewal(const char *name, const char *owner, uint64_t hold_id, int64_t lease_ms) {
    return (dl_renewal_t){
        .name = name, .name_len = strlen(name), .owner = owner, .hold_id = hold_id, .lease_ms = lease_ms};
}

static inline dl_status_t renew(client_t *c, const char *name, const char *owner, uint64_t hold_id,
                                int64_t lease_ms) {
    dl_renewal_t r = renewal(name, owner, hold_id, lease_ms);
    driver()->renew(c->state, &r, 1, in_ms(2000));
    return r.status;
}

static inline dl_lock_info_t look(client_t *c, const char *name) {
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    cr_assert_eq(driver()->inspect(c->state, name, strlen(name), in_ms(2000), &info, &c->err), DL_OK, "%s",
                 c->err.message);
    return info;
}

static inline dl_status_t watch(client_t *c, const char *name, dl_watch_t **w) {
    return driver()->watch(c->state, name, strlen(name), w, &c->err);
}

/* What woken says of this name, 0 or 1; -1 when it has said nothing within this time. */
static inline int heard(client_t *c, const char *name, uint64_t within_ms) {
    uint64_t end_ns = in_ms(within_ms);
    for (;;) {
        for (size_t i = c->said_count; i > 0; i--) {
            if (strcmp(c->said[i - 1].name, name) == 0) {
                c->said_count = 0;
                return c->said[i - 1].hears;
            }
        }
        c->said_count = 0;
        struct pollfd fds[DL_LISTEN_MAX];
        uint64_t until_ns;
        size_t n = driver()->listen_fds(c->state, fds, DL_LISTEN_MAX, &until_ns);
        if (poll_shifted(fds, n, until_ns < end_ns ? until_ns : end_ns) <= 0) {
            return -1;
        }
        driver()->listen(c->state, fds, n);
    }
}

/* Forks; the child ends with what `fn` returns. Criterion's assertions belong to the parent. */
static inline pid_t spawn(int (*fn)(void *), void *arg) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        _exit(fn(arg));
    }
    return pid;
}

static inline int ended(pid_t pid) {
    int status = 0;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline void set_up(void) {
    make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/locks.db", folder);
}

static inline void tear_down(void) {
    delete_folder(folder);
}

static inline void delete_all(void) {
    static const char *const endings[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        char name[160];
        snprintf(name, sizeof name, "%s%s", path, endings[i]);
        (void)unlink(name);
    }
}

/* Runs SQL on the file by a connection of a child process, which has its own locks. */
static inline int sql_in_child(void *sql) {
    sqlite3 *db = NULL;
    int rc = sqlite3_open(path, &db);
    if (rc == SQLITE_OK) {
        sqlite3_busy_timeout(db, 2000);
        rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    }
    sqlite3_close(db);
    return rc & 0x7f;
}

static inline void sql(const char *text) {
    char copy[512];
    snprintf(copy, sizeof copy, "%s", text);
    cr_assert_eq(ended(spawn(sql_in_child, copy)), 0, "%s", text);
}

#endif
