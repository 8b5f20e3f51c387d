/* scripts.c - runs scripts by their hash, and by their text where the server has forgotten them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "scripts.h"

#include <stdlib.h>
#include <string.h>

/* Calls of up to so many words, and batches of up to so many calls, need no memory for their lists. */
#define USUAL_WORDS 24
#define USUAL_CALLS 16

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

static dl_status_t out_of_memory(dl_error_t *err) {
    return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory for the commands to the server");
}

/* Was this call refused because the server does not know the script? Then it surely was not carried out. */
static bool is_forgotten(const redisReply *reply) {
    return dli_reply_is_error(reply, "NOSCRIPT");
}

/* Takes the refusals out; returns how many there were. */
static size_t take_out(redisReply **replies, size_t n, bool *forgotten) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        forgotten[i] = is_forgotten(replies[i]);
        if (forgotten[i]) {
            freeReplyObject(replies[i]);
            replies[i] = NULL;
            count++;
        }
    }
    return count;
}

static dl_status_t run(dli_link_t *link, dli_exchange_t *exchange, dli_commands_t *commands,
                       redisReply **replies, dl_error_t *err) {
    if (commands->out_of_memory) {
        return out_of_memory(err);
    }
    exchange->commands = commands;
    exchange->replies = replies;
    return dli_link_run(link, exchange, err);
}

/* Sends the forgotten calls once more, with their text, and puts the answers where they belong. */
static dl_status_t run_again(dli_link_t *link, dli_exchange_t *exchange, const dli_script_call_t *calls,
                             size_t n, const bool *forgotten, size_t count, uint64_t *sent_ns,
                             dl_error_t *err) {
    redisReply *few[USUAL_CALLS] = {NULL}, **answers = few;
    dli_commands_t commands = {0};
    dli_exchange_t second = {.lane = exchange->lane,
                             .intent = exchange->intent,
                             .deadline_ns = exchange->deadline_ns,
                             .stop = exchange->stop};
    if (count > USUAL_CALLS) {
        answers = calloc(count, sizeof *answers);
        if (answers == NULL) {
            return out_of_memory(err);
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (forgotten[i]) {
            dli_script_encode(&commands, &calls[i], true);
        }
    }
    dl_status_t status = run(link, &second, &commands, answers, err);
    for (size_t i = 0, j = 0; i < n; i++) {
        if (forgotten[i]) {
            exchange->replies[i] = answers[j++];
            if (sent_ns != NULL) {
                sent_ns[i] = second.sent_ns;
            }
        }
    }
    /* Of a mixed batch the earlier instant stays: too early is safe for every call. */
    if (count == n) {
        exchange->sent_ns = second.sent_ns;
    }
    dli_commands_free(&commands);
    if (answers != few) {
        free(answers);
    }
    return status;
}

dl_status_t dli_scripts_run(dli_link_t *link, dli_exchange_t *exchange, const dli_script_call_t *calls,
                            size_t n, uint64_t *sent_ns, dl_error_t *err) {
    bool few[USUAL_CALLS], *forgotten = few;
    dli_commands_t commands = {0};
    for (size_t i = 0; i < n; i++) {
        exchange->replies[i] = NULL;
        dli_script_encode(&commands, &calls[i], false);
    }
    if (n > USUAL_CALLS) {
        forgotten = calloc(n, sizeof *forgotten);
        commands.out_of_memory = commands.out_of_memory || forgotten == NULL;
    }
    dl_status_t status = n > 0 ? run(link, exchange, &commands, exchange->replies, err) : DL_OK;
    exchange->commands = NULL;
    for (size_t i = 0; sent_ns != NULL && i < n; i++) {
        sent_ns[i] = exchange->sent_ns;
    }
    size_t count = forgotten != NULL ? take_out(exchange->replies, n, forgotten) : 0;
    if (status == DL_OK && count > 0) {
        status = run_again(link, exchange, calls, n, forgotten, count, sent_ns, err);
    }
    dli_commands_free(&commands);
    if (forgotten != few) {
        free(forgotten);
    }
    return status;
}
