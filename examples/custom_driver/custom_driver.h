/* custom_driver.h - a driver from outside the library: locks in one shared file. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUSTOM_DRIVER_H
#define CUSTOM_DRIVER_H

#include "dlock/driver.h"

/*
 * The driver "file-table". Its one option is `path`, the file; it is created when it is not there. All
 * processes of one machine that open the same file share its locks.
 */
const dl_driver_t *custom_driver(void);

#endif
