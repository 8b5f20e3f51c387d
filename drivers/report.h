/* report.h - what the reports on all kinds of servers have in common. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REPORT_H
#define DLI_REPORT_H

#include <stdbool.h>

#include "dlock/driver.h"

/* To whom it is made. */
typedef struct dli_report {
    dl_finding_fn fn;
    void *arg;
    char whose[16]; /* stands before every subject, where several servers have the same */
} dli_report_t;

void dli_say(const dli_report_t *report, dl_finding_level_t level, const char *subject, const char *format,
             ...) __attribute__((format(printf, 4, 5)));

/* A lock's name or key in a message: its beginning, without what controls terminals, and no character cut in
 * half. */
#define DLI_NAME_SHOWN 64
void dli_name_show(const char *name, char text[DLI_NAME_SHOWN + 4]);

/* Is this name or address one of this host, as far as can be seen? NULL, for a unix socket, is. */
bool dli_host_is_here(const char *host);

/* How requests get to a server. */
typedef struct dli_way {
    const char *host; /* NULL: by a unix socket */
    bool tls;
    bool is_verified;    /* the server's certificate */
    bool has_proof;      /* of who we are: a password or a certificate */
    bool shows_password; /* where there is no TLS */
    const char *advice;  /* unless all is well */
} dli_way_t;
void dli_way_report(const dli_report_t *report, const dli_way_t *way);

#endif
