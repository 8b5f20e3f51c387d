/* mysql.h - the tables of the drivers in this folder; for the registry. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_MYSQL_MYSQL_H
#define DLI_MYSQL_MYSQL_H

#include "dlock/driver.h"

extern const dl_driver_t dli_mysql_pessimistic_driver;
extern const dl_driver_t dli_mysql_lease_driver;
extern const dl_driver_t dli_mysql_optimistic_driver;

#endif
