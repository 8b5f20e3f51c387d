/* sqlite.h - the driver's table, for the registry. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_SQLITE_H
#define DLI_SQLITE_H

#include "dlock/driver.h"

extern const dl_driver_t dli_sqlite_driver;

/* What tells one boot of the host from the next. Tests set it before they open a client, to make the next
 * open believe in a reboot; NULL: the kernel's own. */
extern const char *dli_sqlite_boot_for_test;

#endif
