/* driver_report_test.c - what the reports on all kinds of servers say of the way to one. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "drivers/report.h"

typedef struct heard {
    dl_finding_level_t level;
    char text[512];
    bool misses_password;
} heard_t;

static void hear(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    heard_t *heard = arg;
    heard->misses_password = strcmp(subject, "password") == 0;
    if (!heard->misses_password) {
        heard->level = level;
        snprintf(heard->text, sizeof heard->text, "%s", text);
    }
}

Test(driver_report, a_way_over_a_network_wants_a_verified_certificate_and_a_password) {
    static const struct {
        dli_way_t way;
        dl_finding_level_t level;
        const char *words;
        bool misses_password;
    } cases[] = {
        {{.host = NULL}, DL_FINDING_OK, "a unix socket: nothing leaves this host", false},
        {{.host = "LocalHost"}, DL_FINDING_OK, "loopback: nothing leaves this host", false},
        {{.host = "::1", .tls = true, .is_verified = true}, DL_FINDING_OK, "certificate is verified)", false},
        {{.host = "127.0.0.2", .tls = true}, DL_FINDING_OK, "certificate is not verified)", false},
        {{.host = "a", .tls = true, .is_verified = true, .has_proof = true},
         DL_FINDING_OK,
         "is verified",
         false},
        {{.host = "a", .tls = true, .is_verified = true}, DL_FINDING_OK, "is verified", true},
        {{.host = "a", .tls = true, .has_proof = true},
         DL_FINDING_WARNING,
         "who holds the locks; do so",
         false},
        {{.host = "a", .has_proof = true}, DL_FINDING_WARNING, "no TLS: lock names", false},
        {{.host = "a", .has_proof = true, .shows_password = true},
         DL_FINDING_WARNING,
         "no TLS: the password, lock names",
         false},
        {{.host = "127.example.com"}, DL_FINDING_WARNING, "or forge locks; do so", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heard_t heard = {.misses_password = false};
        dli_way_t way = cases[i].way;
        way.advice = "do so";
        dli_way_report(&(dli_report_t){.fn = hear, .arg = &heard}, &way);
        cr_expect_eq(heard.level, cases[i].level, "case %zu: %d, %s", i, heard.level, heard.text);
        cr_expect_not_null(strstr(heard.text, cases[i].words), "case %zu: %s", i, heard.text);
        cr_expect_eq(heard.misses_password, cases[i].misses_password, "case %zu", i);
    }
}

Test(driver_report, what_servers_say_stays_one_line) {
    heard_t heard;
    dli_say(&(dli_report_t){.fn = hear, .arg = &heard}, DL_FINDING_NOTE, "x", "a%sb", "\n\t");
    cr_expect_str_eq(heard.text, "a  b");
}
