/* breaker.h - remembers that a server is down, so that calls fail at once and it is tried now and then. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_BREAKER_H
#define DLI_BREAKER_H

#include <stdbool.h>

#include "dlock/driver.h"

/* Zeroed: the server is not known to be down. All functions want the owner's mutex held. */
typedef struct dli_breaker {
    bool is_down;
    bool is_probed; /* somebody is trying right now */
    uint64_t closed_until_ns;
    uint64_t known_ns;  /* when it was last learned that the server is down, or back */
    uint64_t probed_ns; /* since when */
    int64_t backoff_ms;
    dl_error_t reason;
} dli_breaker_t;

/* May a connection be made now? DL_OK: *is_probe says whether the server is down and this is the one that
 * tries. Otherwise the reason why the last one failed. */
dl_status_t dli_breaker_ask(dli_breaker_t *breaker, uint64_t now_ns, bool *is_probe, dl_error_t *err);
/* A connection that was begun at started_ns failed. true: the server was not known to be down. */
bool dli_breaker_fail(dli_breaker_t *breaker, const dl_driver_env_t *env, uint64_t started_ns, bool is_probe,
                      const dl_error_t *reason);
/* A connection is ready. true: the server was down. */
bool dli_breaker_mend(dli_breaker_t *breaker, uint64_t now_ns);
/* While somebody tries a server that was down: until when others leave it to that one. Else 0. */
uint64_t dli_breaker_tried_until(const dli_breaker_t *breaker, uint64_t now_ns);
/* Whoever tried gave up without learning anything. */
void dli_breaker_give_up(dli_breaker_t *breaker, bool is_probe);

#endif
