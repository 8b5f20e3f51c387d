/* check_clock.c - the server's clock: how far it is from ours, and whether it runs as ours does. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"

#define NS_PER_US ((uint64_t)1000)
/* Looks taken at each end of the measurement; the quickest is the sharpest. */
#define LOOKS 5
/* Between the ends; long enough that a clock a few percent off shows. */
#define WINDOW_NS (250 * (uint64_t)DLI_NS_PER_MS)
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

static dl_status_t look_once(dli_mysql_check_t *check, dli_mysql_moment_t *moment, dl_error_t *err) {
    const dl_driver_env_t *env = check->mysql->env;
    dli_mysql_answer_t answer;
    moment->before_ns = env->now_ns();
    int64_t wall = wall_us();
    dl_status_t status = dli_mysql_check_ask(check, "SELECT " DLI_MYSQL_MICROS, &answer, err);
    moment->after_ns = env->now_ns();
    MYSQL_ROW row = status == DL_OK && answer.error == 0 ? dli_mysql_answer_row(&answer, NULL) : NULL;
    if (row != NULL && row[0] != NULL) {
        moment->server_us = strtoll(row[0], NULL, 10);
        int64_t half_way_us = (int64_t)((moment->after_ns - moment->before_ns) / 2 / NS_PER_US);
        moment->skew_us = moment->server_us - wall - half_way_us;
    } else if (status == DL_OK) {
        status = answer.error != 0
                     ? dli_mysql_refused(answer.error, answer.message, "asking for the time", err)
                     : dl_driver_fail(err, DL_EPROTO, 0, "asking for the time brought no row");
    }
    dli_mysql_answer_free(&answer);
    return status;
}

/* The quickest of a few looks. */
static dl_status_t look(dli_mysql_check_t *check, dli_mysql_moment_t *best, dl_error_t *err) {
    dl_status_t status = DL_OK;
    for (int i = 0; i < LOOKS && status == DL_OK; i++) {
        dli_mysql_moment_t moment;
        status = look_once(check, &moment, err);
        if (status == DL_OK &&
            (i == 0 || moment.after_ns - moment.before_ns < best->after_ns - best->before_ns)) {
            *best = moment;
        }
    }
    return status;
}

/* Without its sign. */
static dl_duration_text_t measured(int64_t us) {
    return dl_driver_measured((uint64_t)(us < 0 ? -us : us) * NS_PER_US);
}

static void report_round_trip(dli_mysql_check_t *check, const dli_mysql_moment_t *moment) {
    const dl_driver_env_t *env = check->mysql->env;
    uint64_t took_ns = moment->after_ns - moment->before_ns;
    /* A hold is renewed every third of its lease, and two of three may fail. */
    if (took_ns > (uint64_t)env->lease_ms * DLI_NS_PER_MS / 20) {
        dli_mysql_check_say(check, DL_FINDING_WARNING, "round trip",
                            "%s at best, with a lease of %s: "
                            "little time is left for a renewal that has to be repeated; use a longer "
                            "lease",
                            dl_driver_measured(took_ns).text, dl_driver_duration(env->lease_ms).text);
    } else {
        dli_mysql_check_say(check, DL_FINDING_OK, "round trip", "%s at best",
                            dl_driver_measured(took_ns).text);
    }
}

static void not_known(dli_mysql_check_t *check, const dl_error_t *err) {
    dli_mysql_check_say(check, DL_FINDING_NOTE, "server clock", "could not be looked at: %s", err->message);
}

void dli_mysql_check_clock_begin(dli_mysql_check_t *check, dli_mysql_moment_t *first) {
    dl_error_t err;
    *first = (dli_mysql_moment_t){.before_ns = 0};
    if (look(check, first, &err) != DL_OK) {
        *first = (dli_mysql_moment_t){.before_ns = 0};
        not_known(check, &err);
        return;
    }
    report_round_trip(check, first);
}

/* What a clock that jumps does. Row locks know no clock, but their tokens start from it. */
static void report_pace(dli_mysql_check_t *check, const dli_mysql_moment_t *first,
                        const dli_mysql_moment_t *last) {
    bool is_lease = dli_mysql_check_is_lease(check);
    int64_t ours_us = (int64_t)((last->before_ns - first->before_ns) / NS_PER_US);
    int64_t off_us = last->server_us - first->server_us - ours_us;
    int64_t blur_us =
        (int64_t)((last->after_ns - last->before_ns + first->after_ns - first->before_ns) / NS_PER_US);
    int64_t bound_us = blur_us + NOISE_US + ours_us / 100;
    if (off_us > bound_us || off_us < -bound_us) {
        dli_mysql_check_say(
            check, is_lease ? DL_FINDING_WARNING : DL_FINDING_NOTE, "server clock",
            "it went %s%s while ours went %s: %s", last->server_us < first->server_us ? "-" : "",
            measured(last->server_us - first->server_us).text, measured(ours_us).text,
            is_lease ? "leases end by it, so while it is being set or runs too fast a lock can pass to "
                       "another before its holder stops"
                     : "no row lock depends on it, but a token table that is lost begins anew from it");
    } else {
        dli_mysql_check_say(
            check, DL_FINDING_OK, "server clock", "it ran as ours did over %s; %s", measured(ours_us).text,
            is_lease ? "leases end by it, so it must be slewed, not set, while locks are held"
                     : "no row lock depends on it; a token table that is lost or purged begins anew from it");
    }
}

static void report_skew(dli_mysql_check_t *check, const dli_mysql_moment_t *last) {
    int64_t skew_us = last->skew_us;
    bool far = skew_us > SKEW_WORTH_A_NOTE_US || skew_us < -SKEW_WORTH_A_NOTE_US;
    dli_mysql_check_say(
        check, far ? DL_FINDING_NOTE : DL_FINDING_OK, "clock skew",
        "the server is %s %s this host: harmless for leases, which compare no clocks; tokens start "
        "from the server's clock, so a server that replaces this one without its data must not be behind it",
        measured(skew_us).text, skew_us < 0 ? "behind" : "ahead of");
}

void dli_mysql_check_clock_end(dli_mysql_check_t *check, const dli_mysql_moment_t *first) {
    dli_mysql_moment_t last;
    dl_error_t err;
    if (first->after_ns == 0) {
        return;
    }
    uint64_t until_ns = first->before_ns + WINDOW_NS;
    (void)check->mysql->env->poll(NULL, 0, until_ns);
    if (look(check, &last, &err) != DL_OK) {
        not_known(check, &err);
        return;
    }
    report_pace(check, first, &last);
    report_skew(check, &last);
}
