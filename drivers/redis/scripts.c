/* scripts.c - calls of scripts by their hash, and by their text where the server has forgotten them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "scripts.h"

#include <stdlib.h>

/* Calls of up to so many words need no memory for their list. */
#define USUAL_WORDS 24

void dli_script_encode(dli_commands_t *commands, const dli_script_call_t *call, bool with_source) {
    dli_slice_t few[USUAL_WORDS] = {{NULL, 0}}, *words = few;
    char keys[24];
    size_t count = call->argc + 3;
    if (count > USUAL_WORDS) {
        words = calloc(count, sizeof *words);
        if (words == NULL) {
            commands->out_of_memory = true;
            return;
        }
    }
    words[0] = dli_slice(with_source ? "EVAL" : "EVALSHA");
    words[1] = dli_slice(with_source ? call->script->source : call->script->sha);
    words[2] = dli_slice_int(keys, (int64_t)call->keys);
    for (size_t i = 0; i < call->argc; i++) {
        words[3 + i] = call->argv[i];
    }
    dli_commands_add(commands, count, words);
    if (words != few) {
        free(words);
    }
}
