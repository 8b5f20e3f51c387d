/* driver_check.c - the one door every driver's table goes through, built in or not. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>

#include "client.h"
#include "error.h"
#include "layout.h"
#include "options.h"

#define CAPS_KNOWN \
    (DL_CAP_LEASE | DL_CAP_SESSION | DL_CAP_FENCE | DL_CAP_SERVER_COUNT | DL_CAP_NATIVE_WAIT | DL_CAP_NOTIFY)

#define WORD "abcdefghijklmnopqrstuvwxyz0123456789"

static bool is_word(const char *text, const char *accepted, size_t max) {
    size_t len = text != NULL ? strlen(text) : 0;
    return len > 0 && len <= max && strspn(text, accepted) == len;
}

typedef struct rule {
    bool is_broken;
    const char *text; /* NULL: no rule is */
} rule_t;

static const char *first_broken(const rule_t *rule) {
    while (!rule->is_broken) {
        rule++;
    }
    return rule->text;
}

static const char *bad_table(const dl_driver_t *d, const dli_backend_t *inner) {
    uint32_t kind = d->caps & (DL_CAP_LEASE | DL_CAP_SESSION);
    bool is_lease_backend = d->listen != NULL && (d->caps & (DL_CAP_SESSION | DL_CAP_NATIVE_WAIT)) == 0;
    bool watches = d->watch != NULL, listens = d->listen != NULL;
    bool has_halves = watches != (d->unwatch != NULL) || listens != (d->listen_fds != NULL);
    bool differ = inner == NULL && watches != listens; /* a backend listens for answers, too */
    const rule_t rules[] = {
        {d->open == NULL || d->close == NULL, "open and close are needed"},
        {inner != NULL && !is_lease_backend,
         "a backend listens, holds leases, and does not wait on the server"},
        {inner == NULL && (d->try_acquire == NULL || d->release == NULL || d->renew == NULL),
         "try_acquire, release and renew are needed"},
        {d->state_size == 0, "state_size is 0"},
        {(d->hold_size > 0) != (d->drop != NULL), "hold_size and drop belong together"},
        {(d->caps & ~CAPS_KNOWN) != 0, "caps has unknown bits"},
        {kind != DL_CAP_LEASE && kind != DL_CAP_SESSION, "caps needs exactly one of LEASE and SESSION"},
        {has_halves || differ, "watch, listen, unwatch and listen_fds come together or not at all"},
        {((d->caps & DL_CAP_NOTIFY) != 0) != watches, "NOTIFY and the watch ops belong together"},
        {true, NULL},
    };
    return first_broken(rules);
}

static bool is_among(const dl_option_t *option, const dl_option_t *end, const char *name) {
    while (option != end && strcmp(option->name, name) != 0) {
        option++;
    }
    return option != end;
}

static const char *bad_options(const dl_driver_t *d) {
    const char *bad = NULL;
    for (const dl_option_t *o = d->options; o != NULL && o->name != NULL && bad == NULL; o++) {
        const rule_t rules[] = {
            {!is_word(o->name, WORD "_", 63) || o->help == NULL,
             "an option needs a name of [a-z0-9_] and a line of help"},
            {o->type < DL_OPTION_STRING || o->type > DL_OPTION_SECRET, "an option has an unknown type"},
            {o->min > o->max, "an option's range is empty"},
            {strcmp(o->name, "driver") == 0, "no option may be called driver"},
            {is_among(dli_core_options, dli_core_options + DLI_OPT_COUNT, o->name),
             "an option has the name of one of the core's"},
            {is_among(d->options, o, o->name), "two options have one name"},
            {true, NULL},
        };
        bad = first_broken(rules);
    }
    return bad;
}

/* Release 0.1.0, whose dl_renewal_t is as long as now where pointers have 64 bits. */
#define FIRST_ABI (sizeof(void *) == 8 ? 1u : DL_DRIVER_ABI)

/* Its watch blocks, and its wait stands where listen does: it has no ops of these. */
static void take_watch_away(dl_driver_t *driver) {
    driver->caps &= ~DL_CAP_NOTIFY;
    driver->watch = NULL;
    driver->listen = NULL;
    driver->unwatch = NULL;
}

dl_status_t dli_driver_take(const dl_driver_t *given, const dli_backend_t *inner, dl_driver_t *driver,
                            dl_error_t *err) {
    if (given == NULL) {
        return dli_fail(err, DL_EINVAL, "no driver table");
    }
    bool is_known = given->abi == DL_DRIVER_ABI || given->abi == FIRST_ABI;
    if (!is_known || !dli_layout_has(&dli_layout_driver, given->size)) {
        return dli_fail(err, DL_EINVAL,
                        "the driver was built for ABI %u with %zu bytes, this library has %u with %zu",
                        (unsigned)given->abi, given->size, DL_DRIVER_ABI, sizeof *driver);
    }
    memset(driver, 0, sizeof *driver); /* ops that came later: it has none */
    size_t size = given->size;
    if (size == DLI_DRIVER_BEFORE_CAPS_OFF) { /* the one op that was not added at the end */
        size = offsetof(dl_driver_t, caps_off);
        memcpy(&driver->check, (const char *)given + size,
               offsetof(dl_driver_t, listen_fds) - offsetof(dl_driver_t, check));
    }
    memcpy(driver, given, size);
    if (driver->abi != DL_DRIVER_ABI) {
        take_watch_away(driver);
    }
    if (!is_word(driver->name, WORD "-", 31) || driver->summary == NULL) {
        return dli_fail(err, DL_EINVAL, "a driver needs a name of up to 31 [a-z0-9-] and a summary");
    }
    const char *bad = bad_table(driver, inner);
    bad = bad != NULL ? bad : bad_options(driver);
    if (bad != NULL) {
        return dli_fail(err, DL_EINVAL, "driver '%s': %s", driver->name, bad);
    }
    return DL_OK;
}
