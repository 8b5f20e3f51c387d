/* driver_bench.c - plays the core for a driver, one op at a time. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/driver_bench.h"

#include <string.h>

#include "core/options.h"
#include "core/sys.h"
#include "support/alloc_fail.h"

static void ignore_report(void *core, dl_log_level_t level, const char *text) {
    (void)core;
    (void)level;
    (void)text;
}

static void ignore_count(void *core, dl_count_t what, uint64_t n) {
    (void)core;
    (void)what;
    (void)n;
}

static void note_woken(void *core, const char *name, size_t name_len, int hears) {
    (void)name;
    (void)name_len;
    bench_t *bench = core;
    __atomic_store_n(&bench->hears, hears, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&bench->woken, 1, __ATOMIC_SEQ_CST);
}

uint64_t bench_deadline(bench_t *bench) {
    return dli_sys->now_ns() + (uint64_t)bench->env.call_timeout_ms * DLI_NS_PER_MS;
}

void bench_open(ct_t *ct, bench_t *bench, const dl_driver_t *driver, const char *label) {
    char yaml[1024] = "";
    memset(bench, 0, sizeof *bench);
    bench->ct = ct;
    bench->driver = driver;
    bench->env = (dl_driver_env_t){.size = sizeof bench->env,
                                   .core = bench,
                                   .client_uuid = "00000000-0000-4000-8000-000000000000",
                                   .client_label = label,
                                   .call_timeout_ms = ct_call_timeout_ms(ct),
                                   .lease_ms = ct_lease_ms(ct),
                                   .now_ns = dli_sys->now_ns,
                                   .poll = dli_sys->poll,
                                   .random = dli_sys->random,
                                   .thread_start = dli_sys->thread_start,
                                   .thread_join = dli_sys->thread_join,
                                   .cond_wait = dli_sys->cond_wait,
                                   .cond_init = dli_sys->cond_init,
                                   .cond_broadcast = dli_sys->cond_broadcast,
                                   .report = ignore_report,
                                   .count = ignore_count,
                                   .woken = note_woken};
    if (ct->fixture->options != NULL) {
        ct->fixture->options(ct->dir, yaml, sizeof yaml);
    }
    CT_EQ(dli_config_resolve_mapping(yaml, strlen(yaml), "<bench>", driver->options, &bench->values,
                                     dli_core_options, &bench->core_values, &bench->err),
          DL_OK);
    bench->state = alloc_real(driver->state_size);
    dl_status_t status =
        driver->open(bench->state, bench->values.values, &bench->env, bench_deadline(bench), &bench->err);
    CT_CHECKF(status == DL_OK, "open is %s: %s", dl_status_name(status), bench->err.message);
}

int bench_hears(bench_t *bench, int64_t within_ms) {
    uint64_t end_ns = dli_sys->now_ns() + (uint64_t)within_ms * DLI_NS_PER_MS;
    int woken = 0;
    do {
        struct pollfd fds[DL_LISTEN_MAX];
        uint64_t until_ns;
        size_t n = bench->driver->listen_fds(bench->state, fds, DL_LISTEN_MAX, &until_ns);
        woken = __atomic_load_n(&bench->woken, __ATOMIC_SEQ_CST);
        until_ns = woken != 0 ? 0 : until_ns < end_ns ? until_ns : end_ns;
        if (dli_sys->poll(fds, n, until_ns) <= 0) {
            for (size_t i = 0; i < n; i++) {
                fds[i].revents = 0;
            }
        }
        bench->driver->listen(bench->state, fds, n);
        woken = __atomic_exchange_n(&bench->woken, 0, __ATOMIC_SEQ_CST);
    } while (woken == 0 && dli_sys->now_ns() < end_ns);
    return woken;
}

static int place_of(bench_t *bench, uint64_t hold_id) {
    for (int i = 0; i < BENCH_HOLDS_MAX; i++) {
        if (bench->holds[i].hold_id == hold_id) {
            return i;
        }
    }
    return -1;
}

/* The memory of this hold, made at its first use; NULL for drivers that need none. */
void *bench_hold(bench_t *bench, uint64_t hold_id) {
    ct_t *ct = bench->ct;
    if (bench->driver->hold_size == 0) {
        return NULL;
    }
    int place = place_of(bench, hold_id);
    if (place < 0) {
        place = place_of(bench, 0);
        CT_CHECKF(place >= 0, "more than %d holds on one bench", BENCH_HOLDS_MAX);
        bench->holds[place].hold_id = hold_id;
        bench->holds[place].memory = alloc_real(bench->driver->hold_size);
    }
    return bench->holds[place].memory;
}

void bench_drop(bench_t *bench, uint64_t hold_id) {
    int place = place_of(bench, hold_id);
    if (bench->driver->hold_size != 0 && place >= 0) {
        bench->driver->drop(bench->state, bench->holds[place].memory);
        alloc_real_free(bench->holds[place].memory);
        bench->holds[place].hold_id = 0;
    }
}

void bench_close(bench_t *bench) {
    for (int i = 0; i < BENCH_HOLDS_MAX; i++) {
        if (bench->holds[i].hold_id != 0) {
            bench_drop(bench, bench->holds[i].hold_id);
        }
    }
    bench->driver->close(bench->state, 0);
    alloc_real_free(bench->state);
    dli_values_free(&bench->values);
    dli_values_free(&bench->core_values);
}

dl_request_t bench_request(bench_t *bench, const char *owner, const char *name, uint64_t hold_id,
                           int64_t lease_ms) {
    return (dl_request_t){.name = name,
                          .name_len = strlen(name),
                          .owner = owner,
                          .hold_id = hold_id,
                          .level = 1,
                          .lease_ms = lease_ms,
                          .deadline_ns = bench_deadline(bench),
                          .stop = {{-1, -1}},
                          .tokens = 1};
}

/* A status other than DL_OK comes with err filled, DL_OK leaves it alone. */
static dl_status_t check_err(bench_t *bench, const char *op, dl_status_t status) {
    ct_t *ct = bench->ct;
    CT_CHECKF(bench->err.status == status, "%s is %s, but err says %s: %s", op, dl_status_name(status),
              dl_status_name(bench->err.status), bench->err.message);
    CT_CHECKF(status == DL_OK || bench->err.message[0] != 0, "%s is %s without a message", op,
              dl_status_name(status));
    return status;
}

static dl_error_t *clean_err(bench_t *bench) {
    memset(&bench->err, 0, sizeof bench->err);
    return &bench->err;
}

dl_status_t bench_try(bench_t *bench, const dl_request_t *request, dl_grant_t *grant) {
    dl_request_t now = *request;
    now.deadline_ns = bench_deadline(bench) + (uint64_t)request->wait_ms * DLI_NS_PER_MS;
    *grant = (dl_grant_t){.session_fd = -1, .busy_ms = -1};
    return check_err(bench, "try_acquire",
                     bench->driver->try_acquire(bench->state, bench_hold(bench, request->hold_id), &now,
                                                grant, clean_err(bench)));
}

dl_status_t bench_release(bench_t *bench, const dl_request_t *request) {
    dl_request_t now = *request;
    now.deadline_ns = bench_deadline(bench);
    now.level = request->level > 1 ? request->level - 1 : 0;
    return check_err(
        bench, "release",
        bench->driver->release(bench->state, bench_hold(bench, request->hold_id), &now, clean_err(bench)));
}

dl_renewal_t bench_renewal(bench_t *bench, const dl_request_t *request, int64_t lease_ms) {
    return (dl_renewal_t){.name = request->name,
                          .name_len = request->name_len,
                          .owner = request->owner,
                          .hold_id = request->hold_id,
                          .lease_ms = lease_ms,
                          .hold = bench_hold(bench, request->hold_id),
                          .status = (dl_status_t)-1};
}

dl_status_t bench_renew(bench_t *bench, const dl_request_t *request, int64_t lease_ms) {
    ct_t *ct = bench->ct;
    dl_renewal_t entry = bench_renewal(bench, request, lease_ms);
    uint64_t before = dli_sys->now_ns();
    bench->driver->renew(bench->state, &entry, 1, bench_deadline(bench));
    CT_CHECKF(entry.sent_ns >= before && entry.sent_ns <= dli_sys->now_ns(),
              "sent_ns of a renewal is not set");
    return entry.status;
}

dl_lock_info_t bench_inspect(bench_t *bench, const char *name) {
    ct_t *ct = bench->ct;
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    dl_status_t status = bench->driver->inspect(bench->state, name, strlen(name), bench_deadline(bench),
                                                &info, clean_err(bench));
    CT_CHECKF(status == DL_OK, "inspect is %s: %s", dl_status_name(status), bench->err.message);
    return info;
}

dl_status_t bench_force(bench_t *bench, const char *name) {
    return check_err(bench, "force_release",
                     bench->driver->force_release(bench->state, name, strlen(name), bench_deadline(bench),
                                                  clean_err(bench)));
}
