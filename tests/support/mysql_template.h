/* mysql_template.h - the initialised data folder that servers of tests begin with; for mysql_server.c. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_TEMPLATE_H
#define MYSQL_TEMPLATE_H

#include <stdbool.h>

#define MYSQL_TEMPLATE_MAX 512

/* What the servers of one program begin with. */
typedef struct mysql_template {
    char program[MYSQL_TEMPLATE_MAX]; /* the server's file */
    char dir[MYSQL_TEMPLATE_MAX];     /* its data in dir/data */
    bool is_mariadb;
} mysql_template_t;

/* Made at the first use, by whichever process comes first; the others wait for it. */
const mysql_template_t *mysql_template(void);
/* Copies the data into an existing empty folder. */
void mysql_template_copy(const char *to);

#endif
