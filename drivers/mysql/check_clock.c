/* check_clock.c - looks at the server's clock. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "check.h"

static dl_status_t look_once(dli_mysql_check_t *check, dli_moment_t *best, dl_error_t *err) {
    const dl_driver_env_t *env = check->mysql->env;
    dli_mysql_answer_t answer;
    uint64_t before_ns = env->now_ns();
    dl_status_t status = dli_mysql_check_ask(check, "SELECT " DLI_MYSQL_MICROS, &answer, err);
    uint64_t after_ns = env->now_ns();
    MYSQL_ROW row = status == DL_OK && answer.error == 0 ? dli_mysql_answer_row(&answer, NULL) : NULL;
    if (row != NULL && row[0] != NULL) {
        dli_clock_look(best, before_ns, after_ns, strtoll(row[0], NULL, 10));
    } else if (status == DL_OK) {
        status = answer.error != 0
                     ? dli_mysql_refused(answer.error, answer.message, "asking for the time", err)
                     : dl_driver_fail(err, DL_EPROTO, 0, "asking for the time brought no row");
    }
    dli_mysql_answer_free(&answer);
    return status;
}

/* false: it is said why there is none. */
static bool look(dli_mysql_check_t *check, dli_moment_t *moment) {
    dl_status_t status = DL_OK;
    dl_error_t err;
    *moment = (dli_moment_t){0};
    for (int i = 0; i < DLI_CLOCK_LOOKS && status == DL_OK; i++) {
        status = look_once(check, moment, &err);
    }
    if (status != DL_OK) {
        *moment = (dli_moment_t){0};
        dli_mysql_check_say(check, DL_FINDING_NOTE, "server clock", "could not be looked at: %s",
                            err.message);
    }
    return status == DL_OK;
}

void dli_mysql_check_clock_begin(dli_mysql_check_t *check, dli_moment_t *first) {
    (void)look(check, first);
    dli_clock_report_trip(&check->report, check->mysql->env->lease_ms, first);
}

void dli_mysql_check_clock_end(dli_mysql_check_t *check, const dli_moment_t *first) {
    dli_moment_t last;
    if (first->after_ns == 0) {
        return;
    }
    (void)check->mysql->env->poll(NULL, 0, first->before_ns + DLI_CLOCK_WINDOW_NS);
    if (look(check, &last)) {
        dli_clock_report(&check->report, first, &last, dli_mysql_check_is_lease(check));
    }
}
