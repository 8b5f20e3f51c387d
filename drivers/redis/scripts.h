/* scripts.h - the scripts that run on the server; their text is in scripts/, built in by CMake. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_SCRIPTS_H
#define DLI_REDIS_SCRIPTS_H

#include "dlock/driver.h"
#include "link/command.h"

typedef struct dli_script {
    const char *name;
    const char *source;
    const char *sha; /* 40 hex digits, as EVALSHA wants it */
} dli_script_t;

/* scripts/string_acquire.lua is dli_script_string_acquire, and so on. */
extern const dli_script_t dli_script_string_acquire, dli_script_string_release, dli_script_string_inspect;
extern const dli_script_t dli_script_hash_acquire, dli_script_hash_release, dli_script_hash_inspect;
extern const dli_script_t dli_script_redlock_acquire, dli_script_redlock_raise, dli_script_redlock_release;
/* All of them, ended by NULL: for tests. */
extern const dli_script_t *const dli_scripts[];

/* Appends EVALSHA; with_source: EVAL. The first of the words are the keys. */
void dli_script_encode(dli_commands_t *commands, const dli_script_t *script, bool with_source, size_t keys,
                       size_t n, const dli_slice_t *words);

/* The same with what a request says of a lock, a letter for each word, and a bar behind the keys:
 *   k q c p    the lock's key, its queue, its channel, where else its release is told
 *   t l        the token key, the prefix of labels
 *   o h v x    owner, hold id, level, lease; b f: how many tokens, and above which
 *   0 1 -      as it is; nothing
 *   .          the next of `more`
 */
typedef struct dli_redis dli_redis_t;
void dli_redis_encode(const dli_redis_t *redis, const dl_request_t *request, const dli_script_t *script,
                      const char *letters, const dli_slice_t *more, bool with_source,
                      dli_commands_t *commands);
#endif
