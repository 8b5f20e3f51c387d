/* command.h - encodes commands for the server; pure functions. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_COMMAND_H
#define DLI_REDIS_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One argument: any bytes. */
typedef struct dli_slice {
    const char *at;
    size_t len;
} dli_slice_t;

/* Commands up to this size need no memory: neither a release nor a renewal fails for lack of it. */
#define DLI_COMMANDS_FEW 1536

/* Encoded commands, one after the other. Zeroed is empty. Not to be copied. */
typedef struct dli_commands {
    char *bytes;
    size_t len, cap;
    size_t count;       /* commands, so replies to come */
    bool out_of_memory; /* a command is missing: do not send */
    char few[DLI_COMMANDS_FEW];
} dli_commands_t;

dli_slice_t dli_slice(const char *text);
/* Writes the number into `buffer` and returns it as an argument. */
dli_slice_t dli_slice_int(char buffer[24], int64_t number);

/* Appends one command. Failing is noted in out_of_memory. */
void dli_commands_add(dli_commands_t *commands, size_t argc, const dli_slice_t *argv);
/* The same from two lists, one after the other. */
void dli_commands_add_both(dli_commands_t *commands, size_t n, const dli_slice_t *head, size_t argc,
                           const dli_slice_t *argv);
/* The same from C strings, ended by NULL. */
void dli_commands_add_words(dli_commands_t *commands, ...) __attribute__((sentinel));
/* Appends what is encoded already: bytes, which count as no command; all of `more`. */
void dli_commands_append_bytes(dli_commands_t *commands, const char *bytes, size_t len);
void dli_commands_append(dli_commands_t *commands, const dli_commands_t *more);
/* Keeps the memory. */
void dli_commands_clear(dli_commands_t *commands);
void dli_commands_free(dli_commands_t *commands);

#endif
