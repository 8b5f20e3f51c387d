/* driver_bench.h - a driver on a bench: its ops called by hand, without a core. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DRIVER_BENCH_H
#define DRIVER_BENCH_H

#include "config/config.h"
#include "support/ct.h"

/*
 * One opened state of a driver, and for a SESSION driver the holds that its ops use. Not thread-safe. The
 * bench of the table that ct->inner is shows what the driver does; that of ct->wrapped, what the wrapper
 * objects to.
 */
#define BENCH_HOLDS_MAX 16
/* Owners as the core names them: "uuid:number". */
#define BENCH_OWNER_A "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa:1"
#define BENCH_OWNER_A2 "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa:2"
#define BENCH_OWNER_B "bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb:1"

typedef struct bench {
    ct_t *ct;
    const dl_driver_t *driver;
    dl_driver_env_t env;
    dli_values_t values, core_values;
    void *state;
    struct {
        uint64_t hold_id; /* 0: free */
        void *memory;
    } holds[BENCH_HOLDS_MAX];
    dl_error_t err; /* of the last op */
    int woken;      /* how often the driver has said so, */
    int hears;      /* and the last time with this */
} bench_t;

/* Opens the fixture's server; `label` is the client's, such as "a:1". */
void bench_open(ct_t *ct, bench_t *bench, const dl_driver_t *driver, const char *label);
/* Drops the holds that are left, and closes. */
void bench_close(bench_t *bench);
void bench_drop(bench_t *bench, uint64_t hold_id);

/* A request of owner "OWNER" for `name` with this id: level 1, one token, deadline call_timeout from now. */
dl_request_t bench_request(bench_t *bench, const char *owner, const char *name, uint64_t hold_id,
                           int64_t lease_ms);
dl_status_t bench_try(bench_t *bench, const dl_request_t *request, dl_grant_t *grant);
dl_status_t bench_release(bench_t *bench, const dl_request_t *request);
/* A batch of one, for the hold of the request. */
dl_status_t bench_renew(bench_t *bench, const dl_request_t *request, int64_t lease_ms);
dl_renewal_t bench_renewal(bench_t *bench, const dl_request_t *request, int64_t lease_ms);
dl_lock_info_t bench_inspect(bench_t *bench, const char *name);
dl_status_t bench_force(bench_t *bench, const char *name);
/* Listens until the driver says woken. 0: it has not within this time. */
int bench_hears(bench_t *bench, int64_t within_ms);
uint64_t bench_deadline(bench_t *bench);
/* The memory of this hold, made at its first use; NULL for drivers that need none. */
void *bench_hold(bench_t *bench, uint64_t hold_id);

#endif
