/* scripts.c - calls of scripts by their hash, and by their text where the server has forgotten them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>

#include "drivers/block.h"
#include "lock.h"

void dli_script_encode(dli_commands_t *commands, const dli_script_t *script, bool with_source, size_t keys,
                       size_t n, const dli_slice_t *words) {
    char number[24];
    const dli_slice_t head[] = {dli_slice(with_source ? "EVAL" : "EVALSHA"),
                                dli_slice(with_source ? script->source : script->sha),
                                dli_slice_int(number, (int64_t)keys)};
    dli_commands_add_both(commands, 3, head, n, words);
}

dli_slice_t dli_redis_word(const dli_redis_t *redis, const dl_request_t *r, char letter, dli_key_t *room) {
    room->len = 0;
    switch (letter) {
    case 'k':
        dli_redis_key(redis, r->name, r->name_len, room);
        break;
    case 'q':
        dli_redis_queue_key(redis, r->name, r->name_len, room);
        break;
    case 'c':
        dli_redis_channel(redis, r->name, r->name_len, room);
        break;
    case 'p':
        dli_redis_peers(redis, r->name, r->name_len, room);
        break;
    case 't':
        return dli_slice(redis->token_key);
    case 'l':
        return dli_redis_label_prefix(redis);
    case 'o':
        return dli_slice(r->owner);
    case 'h':
        return dli_slice_int(room->at, (int64_t)r->hold_id);
    case 'v':
        return dli_slice_int(room->at, r->level);
    case 'x':
        return dli_slice_int(room->at, r->lease_ms);
    case 'b':
        return dli_slice_int(room->at, (int64_t)dli_block(r, DLI_EXACT_END - 1));
    case 'f':
        return dli_slice_int(room->at, (int64_t)r->token_floor);
    case '-':
        break;
    default:
        return dli_slice(letter == '2' ? "2" : letter == '1' ? "1" : "0");
    }
    return (dli_slice_t){room->at, room->len};
}

void dli_redis_encode(const dli_redis_t *redis, const dl_request_t *request, const dli_script_t *script,
                      const char *letters, const dli_slice_t *more, bool with_source,
                      dli_commands_t *commands) {
    dli_key_t rooms[12];
    dli_slice_t words[12];
    size_t n = 0, keys = 0;
    for (; *letters != '\0'; letters++) {
        assert(n < sizeof words / sizeof words[0]);
        if (*letters == '|') {
            keys = n;
        } else if (*letters == '.') {
            words[n++] = *more++;
        } else {
            words[n] = dli_redis_word(redis, request, *letters, &rooms[n]);
            n++;
        }
    }
    dli_script_encode(commands, script, with_source, keys, n, words);
}
