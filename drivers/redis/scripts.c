/* scripts.c - calls of scripts by their hash, and by their text where the server has forgotten them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "scripts.h"

void dli_script_encode(dli_commands_t *commands, const dli_script_call_t *call, bool with_source) {
    char keys[24];
    const dli_slice_t head[] = {dli_slice(with_source ? "EVAL" : "EVALSHA"),
                                dli_slice(with_source ? call->script->source : call->script->sha),
                                dli_slice_int(keys, (int64_t)call->keys)};
    dli_commands_add_both(commands, 3, head, call->argc, call->argv);
}
