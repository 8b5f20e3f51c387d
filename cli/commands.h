/* commands.h - the functions behind the subcommands; each returns an exit status. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include <stdio.h>

#include "dlock/dlock.h"
#include "options.h"

/* What --local stands for: the built-in backend, as if there were no configuration file. */
#define LOCAL_BACKEND "local"
#define LOCAL_DRIVER "sqlite"
#define LOCAL_CONFIG "use: local\nbackends: {local: {driver: " LOCAL_DRIVER "}}\n"

int command_run(const options_t *options);      /* run.c */
int command_status(const options_t *options);   /* locks.c */
int command_list(const options_t *options);     /* locks.c */
int command_unlock(const options_t *options);   /* locks.c */
int command_check(const options_t *options);    /* admin.c */
int command_init(const options_t *options);     /* admin.c */
int command_backends(const options_t *options); /* admin.c */
int command_version(const options_t *options);  /* admin.c */
int command_compare(const options_t *options);  /* compare.c */
int command_help(const options_t *options);     /* help.c */

/* Opens this backend of the configuration that the options name, or the local one. Says nothing. */
dl_status_t try_client(const options_t *options, const char *backend, dl_client_t **client, dl_error_t *err);
/* Opens the backend that the options name. 0, or an exit status after a line. */
int open_client(const options_t *options, dl_client_t **client);
/* The same, and a handle on the lock that the first argument names. */
int open_lock(const options_t *options, dl_client_t **client, dl_lock_t **lock);
void print_help(const command_t *command); /* NULL: all of them */

#endif
