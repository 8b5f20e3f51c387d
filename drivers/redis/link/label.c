/* label.c - where a client says which host and process it is, for people who look at its locks. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "label.h"

#include <string.h>

#define NS_PER_S ((uint64_t)1000000000)
/* Of a client that dies, it stays for a week; one that lives says it every day. */
#define KEPT_S "604800"
#define AGAIN_NS (86400 * NS_PER_S)
#define AFTER_ERROR_NS (60 * NS_PER_S)

void dli_label_init(dli_label_t *label, const char *key, const char *text) {
    memset(label, 0, sizeof *label);
    label->due_ns = key != NULL ? 0 : UINT64_MAX;
    if (key != NULL) {
        dli_commands_add_words(&label->say, "SET", key, text, "EX", KEPT_S, NULL);
        dli_commands_add_words(&label->forget, "DEL", key, NULL);
    }
}

bool dli_label_is_due(dli_label_t *label, uint64_t now_ns) {
    bool is_due = now_ns >= label->due_ns;
    label->due_ns = is_due ? now_ns + AGAIN_NS : label->due_ns;
    return is_due;
}

void dli_label_answer(dli_label_t *label, const redisReply *reply, uint64_t now_ns) {
    if (reply->type != REDIS_REPLY_ERROR) {
        label->is_there = true;
    } else if (dli_reply_is_error(reply, "NOPERM") || dli_reply_is_error(reply, "ERR")) {
        label->due_ns = UINT64_MAX; /* each try would be a line in the server's ACL LOG */
    } else {
        label->due_ns = now_ns + AFTER_ERROR_NS;
    }
}

void dli_label_lost(dli_label_t *label) {
    label->due_ns = label->say.count > 0 ? 0 : UINT64_MAX;
}
