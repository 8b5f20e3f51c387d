/* clock.c - a server's clock: how far it is from ours, and whether it runs as ours does. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "clock.h"

#include <time.h>

#define NS_PER_MS ((uint64_t)1000000)
#define NS_PER_US ((uint64_t)1000)
/* What a scheduler may add to a look without anything being wrong. */
#define NOISE_US 2000
/* Clocks of hosts that keep time differ by less. */
#define SKEW_WORTH_A_NOTE_US 2000000

static int64_t wall_us(void) {
    /* Only to tell the user how far the server's clock is from this host's: nothing is decided by it. */
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static uint64_t took_ns(const dli_moment_t *moment) {
    return moment->after_ns - moment->before_ns;
}

void dli_clock_look(dli_moment_t *best, uint64_t before_ns, uint64_t after_ns, int64_t server_us) {
    dli_moment_t moment = {.before_ns = before_ns, .after_ns = after_ns, .server_us = server_us};
    moment.skew_us = server_us + (int64_t)(took_ns(&moment) / 2 / NS_PER_US) - wall_us();
    if (best->after_ns == 0 || took_ns(&moment) < took_ns(best)) {
        *best = moment;
    }
}

void dli_clock_report_trip(const dli_report_t *report, int64_t lease_ms, const dli_moment_t *first) {
    const dl_duration_text_t took = dl_driver_measured(took_ns(first));
    if (first->after_ns == 0) {
        return;
    }
    /* A hold is renewed every third of its lease, and two of three may fail. */
    if (took_ns(first) > (uint64_t)lease_ms * NS_PER_MS / 20) {
        dli_say(report, DL_FINDING_WARNING, "round trip",
                "%s at best, with a lease of %s: little time is left for a renewal that has to be repeated; "
                "use a longer lease",
                took.text, dl_driver_duration(lease_ms).text);
    } else {
        dli_say(report, DL_FINDING_OK, "round trip", "%s at best", took.text);
    }
}

/* Without its sign. */
static dl_duration_text_t measured(int64_t us) {
    return dl_driver_measured((uint64_t)(us < 0 ? -us : us) * NS_PER_US);
}

/* What a clock that jumps does. */
static void report_pace(const dli_report_t *report, const dli_moment_t *first, const dli_moment_t *last,
                        bool ends_leases) {
    int64_t ours_us = (int64_t)((last->before_ns - first->before_ns) / NS_PER_US);
    int64_t its_us = last->server_us - first->server_us, off_us = its_us - ours_us;
    int64_t blur_us = (int64_t)((took_ns(last) + took_ns(first)) / NS_PER_US);
    int64_t bound_us = blur_us + NOISE_US + ours_us / 100;
    if (off_us > bound_us || off_us < -bound_us) {
        dli_say(report, ends_leases ? DL_FINDING_WARNING : DL_FINDING_NOTE, "server clock",
                "it went %s%s while ours went %s: %s", its_us < 0 ? "-" : "", measured(its_us).text,
                measured(ours_us).text,
                ends_leases
                    ? "leases end by it, so while it is being set or runs too fast a lock can pass to "
                      "another before its holder stops"
                    : "no row lock depends on it, but a token table that is lost begins anew from it");
    } else {
        dli_say(report, DL_FINDING_OK, "server clock", "it ran as ours did over %s; %s",
                measured(ours_us).text,
                ends_leases
                    ? "leases end by it, so it must be slewed, not set, while locks are held"
                    : "no row lock depends on it; a token table that is lost or purged begins anew from it");
    }
}

void dli_clock_report(const dli_report_t *report, const dli_moment_t *first, const dli_moment_t *last,
                      bool ends_leases) {
    int64_t skew_us = last->skew_us;
    bool far = skew_us > SKEW_WORTH_A_NOTE_US || skew_us < -SKEW_WORTH_A_NOTE_US;
    report_pace(report, first, last, ends_leases);
    dli_say(report, far ? DL_FINDING_NOTE : DL_FINDING_OK, "clock skew",
            "the server is %s %s this host: harmless for leases, which compare no clocks; tokens start from "
            "the server's clock, so a server that replaces this one without its data must not be behind it",
            measured(skew_us).text, skew_us < 0 ? "behind" : "ahead of");
}
