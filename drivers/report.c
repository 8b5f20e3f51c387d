/* report.c - what the reports on all kinds of servers have in common. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

void dli_say(const dli_report_t *report, dl_finding_level_t level, const char *subject, const char *format,
             ...) {
    char text[2048], whole[64]; /* a statement with three long names fits */
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *at = text; *at != '\0'; at++) {
        *at = (unsigned char)*at < ' ' ? ' ' : *at; /* one line, whatever names and servers have */
    }
    (void)snprintf(whole, sizeof whole, "%s%s", report->whose, subject);
    report->fn(report->arg, level, whole, text);
}

void dli_name_show(const char *name, char text[DLI_NAME_SHOWN + 4]) {
    size_t len = strlen(name);
    size_t shown = len <= DLI_NAME_SHOWN ? len : DLI_NAME_SHOWN;
    while (shown < len && shown > 0 && ((unsigned char)name[shown] & 0xc0) == 0x80) {
        shown--;
    }
    for (size_t i = 0; i < shown; i++) {
        unsigned char byte = (unsigned char)name[i];
        text[i] = byte < ' ' || byte == 0x7f ? '?' : name[i];
    }
    strcpy(text + shown, shown < len ? "..." : "");
}

bool dli_host_is_here(const char *host) {
    return host == NULL || strcasecmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           (strncmp(host, "127.", 4) == 0 && host[strspn(host, "0123456789.")] == '\0');
}

void dli_way_report(const dli_report_t *report, const dli_way_t *way) {
    bool is_here = dli_host_is_here(way->host);
    if (is_here) {
        dli_say(report, DL_FINDING_OK, "transport", "%s: nothing leaves this host%s%s%s",
                way->host == NULL ? "a unix socket" : "loopback",
                way->tls ? " (TLS, and the server's certificate is " : "",
                way->tls && !way->is_verified ? "not " : "", way->tls ? "verified)" : "");
    } else if (way->tls && way->is_verified) {
        dli_say(report, DL_FINDING_OK, "transport", "TLS, and the server's certificate is verified");
    } else if (way->tls) {
        dli_say(report, DL_FINDING_WARNING, "transport",
                "TLS, but the server's certificate is not verified: anyone who can redirect the connection "
                "learns the password and decides who holds the locks; %s",
                way->advice);
    } else {
        dli_say(report, DL_FINDING_WARNING, "transport",
                "no TLS: %slock names and owners cross the network in clear, and anyone on the way can free "
                "or forge locks; %s",
                way->shows_password ? "the password, " : "", way->advice);
    }
    if (!is_here && !way->has_proof) {
        dli_say(report, DL_FINDING_WARNING, "password",
                "none is configured: anyone who reaches the port can free, take or forge locks");
    }
}
