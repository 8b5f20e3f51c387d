/* scalar.h - what the text of a number, a duration, a size or a boolean means. Pure functions. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_CONFIG_SCALAR_H
#define DLI_CONFIG_SCALAR_H

#include "dlock/driver.h"

typedef enum dli_scalar {
    DLI_SCALAR_OK = 0,
    DLI_SCALAR_MALFORMED, /* not of this form at all */
    DLI_SCALAR_NEGATIVE,  /* a duration or size below zero */
    DLI_SCALAR_NO_UNIT,
    DLI_SCALAR_SPACE, /* before the unit */
    DLI_SCALAR_UNKNOWN_UNIT,
    DLI_SCALAR_DECIMAL_UNIT, /* kB, MB or GB, which mean 1000 to some and 1024 to others */
    DLI_SCALAR_FRACTION,     /* not a whole number of milliseconds or bytes */
    DLI_SCALAR_TOO_LARGE,    /* does not fit in 63 bits */
    DLI_SCALAR_COUNT
} dli_scalar_t;

/* Reads text as an int, bool, duration or size; *number is in the type's own unit. */
dli_scalar_t dli_scalar_read(dl_option_type_t type, const char *text, int64_t *number);
/* What is wrong, to follow "which " or "whose value "; such as "has no unit". */
const char *dli_scalar_fault(dli_scalar_t fault);
/* What is expected of any value of the type; such as "true or false". */
const char *dli_scalar_expected(dl_option_type_t type);
/* Writes a number as one would write it in YAML, with the largest unit that divides it. */
void dli_scalar_write(dl_option_type_t type, int64_t number, char *text, size_t size);

#endif
