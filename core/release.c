/* release.c - the end of a hold: freed on the server, whatever the answer is. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

dl_status_t dli_release(dli_hold_t *hold, uint64_t deadline_ns, dl_error_t *err) {
    dl_client_t *client = hold->client;
    dli_hold_ref(hold);
    /* Disarmed first: nothing is renewed any more, and a renewal on its way finds the state changed. */
    dli_hold_disarm(hold);
    dl_status_t status;
    if (!dli_op_begin(hold, deadline_ns)) {
        status = dli_fail(err, DL_EUNKNOWN,
                          "a renewal on the same connection is stuck; freeing in the background");
    } else {
        dli_unlock_client(client);
        status = dli_call_release(hold, 0, deadline_ns, err);
        dli_lock_client(client);
        dli_op_end(hold);
    }
    if (status == DL_ELOST) {
        dli_hold_lose(hold, DL_ELOST, "found lost at its release");
    } else if (status != DL_OK) {
        dli_orphan_add(hold, false, dli_now() + dli_ms(hold->lease_ms));
    }
    dli_hold_end(hold);
    dli_hold_unref(hold);
    return status;
}
