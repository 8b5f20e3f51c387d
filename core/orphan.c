/* orphan.c - what a request with an unknown outcome may have left on the server, and its freeing. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#define FIRST_PAUSE_NS (10u * (uint64_t)DLI_NS_PER_MS)
#define LONGEST_PAUSE_NS (1000u * (uint64_t)DLI_NS_PER_MS)

void dli_orphan_add(dli_hold_t *hold, bool may_appear, uint64_t until_ns) {
    dl_client_t *client = hold->client;
    if (hold->orphan) {
        hold->orphan_until_ns = dli_max(hold->orphan_until_ns, until_ns);
        return;
    }
    dli_hold_ref(hold);
    hold->orphan = true;
    hold->orphan_may_appear = may_appear;
    hold->orphan_until_ns = until_ns;
    hold->orphan_pause_ns = FIRST_PAUSE_NS;
    dli_heap_put(&client->orphans, hold, dli_now());
    dli_sys->cond_broadcast(&client->housekeeping_changed);
}

void dli_orphan_forget(dli_hold_t *hold) {
    if (hold->orphan) {
        dli_heap_remove(&hold->client->orphans, hold);
        hold->orphan = false;
        dli_hold_unref(hold);
    }
}

/* Is there nothing left to free? Every attempt has a hold id of its own, so a request that was found and
 * freed cannot come again. One that was not there may still be on its way. */
static bool is_settled(const dli_hold_t *hold, dl_status_t status) {
    return status == DL_OK || (status == DL_ELOST && !hold->orphan_may_appear);
}

dl_status_t dli_orphan_try_first(dl_client_t *client, uint64_t deadline_ns) {
    dli_hold_t *hold = client->orphans.at[0];
    uint64_t now = dli_now();
    dl_status_t status = DL_EUNKNOWN;
    if (!(client->session && hold->op_running)) {
        dl_error_t err;
        client->stats.background_frees++;
        dli_hold_ref(hold);
        (void)dli_op_begin(hold, now);
        /* Out of the way while the mutex is free; it keeps its place among the orphans by the flag. */
        dli_heap_remove(&client->orphans, hold);
        dli_unlock_client(client);
        status = dli_call_release(hold, 0, deadline_ns, &err);
        dli_lock_client(client);
        dli_op_end(hold);
        now = dli_now();
        dli_heap_put(&client->orphans, hold, now);
        dli_hold_unref(hold);
    }
    if (is_settled(hold, status) || now >= hold->orphan_until_ns) {
        dli_orphan_forget(hold);
        return status;
    }
    dli_heap_put(&client->orphans, hold, dli_min(now + hold->orphan_pause_ns, hold->orphan_until_ns));
    hold->orphan_pause_ns = dli_min(hold->orphan_pause_ns * 2, LONGEST_PAUSE_NS);
    return status;
}
