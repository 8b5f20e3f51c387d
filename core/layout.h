/* layout.h - public structs that say their size: those of every release are understood. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_LAYOUT_H
#define DLI_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

#include "dlock/driver.h"

/*
 * A struct grows at its end only, and never into the padding of its last release. Who was built with an
 * earlier header has the beginning of it. When a release makes one longer, the size until then joins
 * `earlier`. One exception: the driver's table of 0.1.0, in which caps_off was missing before its last two
 * ops, check and init.
 */
#define DLI_DRIVER_BEFORE_LISTEN_FDS offsetof(dl_driver_t, listen_fds)
#define DLI_DRIVER_BEFORE_CAPS_OFF (DLI_DRIVER_BEFORE_LISTEN_FDS - sizeof(((dl_driver_t *)0)->caps_off))

typedef struct dli_layout {
    size_t now;
    size_t earlier[4]; /* 0: no more. Those of 0.1.0 are the first. */
} dli_layout_t;

/* Tests pretend earlier releases. */
extern dli_layout_t dli_layout_acquire_opts, dli_layout_lock_info, dli_layout_client_info,
    dli_layout_client_stats, dli_layout_event, dli_layout_completion, dli_layout_driver;

/* Was there a release in which it had this size? */
bool dli_layout_has(const dli_layout_t *layout, size_t size);
/* As much of a whole struct as the caller's has, which keeps its size; that is the first member. */
void dli_layout_give(void *to, size_t size, const void *whole);
/* The same of one that does not say its size, which may be that of a later release: the rest is zeroed. */
void dli_layout_give_any(const dli_layout_t *layout, void *to, size_t size, const void *whole);

#endif
