/* scripts.h - the scripts that run on the server; their text is in scripts/, built in by CMake. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_SCRIPTS_H
#define DLI_REDIS_SCRIPTS_H

#include "link/command.h"

typedef struct dli_script {
    const char *name;
    const char *source;
    const char *sha; /* 40 hex digits, as EVALSHA wants it */
} dli_script_t;

/* scripts/string_acquire.lua is dli_script_string_acquire, and so on. */
extern const dli_script_t dli_script_string_acquire, dli_script_string_release, dli_script_string_renew,
    dli_script_string_inspect, dli_script_string_list, dli_script_string_force;
extern const dli_script_t dli_script_hash_acquire, dli_script_hash_release, dli_script_hash_renew,
    dli_script_hash_inspect, dli_script_hash_list, dli_script_hash_force;
extern const dli_script_t dli_script_redlock_acquire, dli_script_redlock_raise, dli_script_redlock_release,
    dli_script_redlock_fill, dli_script_redlock_mark, dli_script_redlock_force;
/* All of them, ended by NULL: for tests, and for loading them at open. */
extern const dli_script_t *const dli_scripts[];

/* One call of a script. keys + args in `argv`, keys first. */
typedef struct dli_script_call {
    const dli_script_t *script;
    size_t keys, argc;
    const dli_slice_t *argv;
} dli_script_call_t;

/* Appends EVALSHA; with_source: EVAL. */
void dli_script_encode(dli_commands_t *commands, const dli_script_call_t *call, bool with_source);

#endif
