/* breaker.c - remembers that a server is down, so that calls fail at once and it is tried now and then. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "breaker.h"

#define NS_PER_MS 1000000u
#define BACKOFF_FIRST_MS 20
#define BACKOFF_MAX_MS 250
/* Whoever tries may hang for as long as a connection may take, on a network that has come back meanwhile. */
#define PROBE_MS 250

uint64_t dli_breaker_tried_until(const dli_breaker_t *breaker, uint64_t now_ns) {
    uint64_t until_ns = breaker->probed_ns + (uint64_t)PROBE_MS * NS_PER_MS;
    return breaker->is_down && breaker->is_probed && now_ns < until_ns ? until_ns : 0;
}

dl_status_t dli_breaker_ask(dli_breaker_t *breaker, uint64_t now_ns, bool *is_probe, dl_error_t *err) {
    *is_probe = false;
    if (!breaker->is_down) {
        return DL_OK;
    }
    if (dli_breaker_tried_until(breaker, now_ns) > 0 || now_ns < breaker->closed_until_ns) {
        return dl_driver_fail(err, breaker->reason.status, breaker->reason.native, "%s",
                              breaker->reason.message);
    }
    breaker->is_probed = true;
    breaker->probed_ns = now_ns;
    *is_probe = true;
    return DL_OK;
}

bool dli_breaker_fail(dli_breaker_t *breaker, const dl_driver_env_t *env, uint64_t started_ns, bool is_probe,
                      const dl_error_t *reason) {
    bool was_up = !breaker->is_down;
    breaker->is_probed = breaker->is_probed && !is_probe;
    /* What was begun before the last of them became known is of the same round, or of one before. */
    if (started_ns < breaker->known_ns) {
        return false;
    }
    breaker->reason = *reason;
    breaker->is_down = true;
    breaker->backoff_ms = was_up ? BACKOFF_FIRST_MS : 2 * breaker->backoff_ms;
    if (breaker->backoff_ms > BACKOFF_MAX_MS) {
        breaker->backoff_ms = BACKOFF_MAX_MS;
    }
    /* Full jitter, so that the clients of a server that comes back do not all arrive at once. */
    uint64_t span_ns = (uint64_t)breaker->backoff_ms * NS_PER_MS, random = span_ns;
    (void)env->random(&random, sizeof random);
    breaker->known_ns = env->now_ns();
    breaker->closed_until_ns = breaker->known_ns + random % (span_ns + 1);
    return was_up;
}

bool dli_breaker_mend(dli_breaker_t *breaker, uint64_t now_ns) {
    bool was_down = breaker->is_down;
    breaker->known_ns = now_ns;
    breaker->is_down = breaker->is_probed = false;
    return was_down;
}

void dli_breaker_give_up(dli_breaker_t *breaker, bool is_probe) {
    breaker->is_probed = breaker->is_probed && !is_probe;
}
