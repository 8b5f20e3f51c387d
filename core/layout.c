/* layout.c - the sizes that public structs have and had. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "layout.h"

#include <string.h>

dli_layout_t dli_layout_acquire_opts = {.now = sizeof(dl_acquire_opts_t)};
dli_layout_t dli_layout_lock_info = {.now = sizeof(dl_lock_info_t)};
dli_layout_t dli_layout_client_info = {.now = sizeof(dl_client_info_t)};
dli_layout_t dli_layout_client_stats = {.now = sizeof(dl_client_stats_t),
                                        .earlier = {offsetof(dl_client_stats_t, passed)}};
dli_layout_t dli_layout_event = {.now = sizeof(dl_event_t)};
dli_layout_t dli_layout_completion = {.now = sizeof(dl_completion_t)};
dli_layout_t dli_layout_driver = {.now = sizeof(dl_driver_t),
                                  .earlier = {DLI_DRIVER_BEFORE_CAPS_OFF, DLI_DRIVER_BEFORE_LISTEN_FDS}};

_Static_assert(sizeof(((dl_completion_t *)0)->with) == sizeof(((dl_completion_t *)0)->with.room),
               "what comes behind `with` would move");

bool dli_layout_has(const dli_layout_t *layout, size_t size) {
    bool has = size == layout->now;
    for (size_t i = 0; i < sizeof layout->earlier / sizeof layout->earlier[0]; i++) {
        has |= size != 0 && size == layout->earlier[i];
    }
    return has;
}

void dli_layout_give(void *to, size_t size, const void *whole) {
    memcpy(to, whole, size);
    memcpy(to, &size, sizeof size);
}

void dli_layout_give_any(const dli_layout_t *layout, void *to, size_t size, const void *whole) {
    size_t common = size < layout->now ? size : layout->now;
    memcpy(to, whole, common);
    memset((char *)to + common, 0, size - common);
}
