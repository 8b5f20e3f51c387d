/* input.h - reading a file that somebody else wrote: regular files only, bounded, never waiting. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_INPUT_H
#define DLI_CONFIG_INPUT_H

#include "dlock/driver.h"

/* The bytes of a file; to be freed by dli_input_free, which wipes them. */
typedef struct dli_input {
    char *data;
    size_t len;
} dli_input_t;

/* Why a file could not be read; `why` follows the name of the file in a sentence. */
typedef struct dli_input_fault {
    int native;
    char why[120];
} dli_input_fault_t;

/* DL_OK; DL_ECONFIG, DL_ENOMEM, DL_ELIMIT (no descriptor) with *fault filled. */
dl_status_t dli_input_read(const char *path, size_t limit, dli_input_t *input, dli_input_fault_t *fault);
void dli_input_free(dli_input_t *input);

#endif
