/* fake_news.h - one client of an in-memory server, and how it hears of releases. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_NEWS_H
#define FAKE_NEWS_H

#include "dlock/driver.h"

/* One client; or the beginning of one. */
typedef struct fake_client {
    const dl_driver_env_t *env;
    uint64_t half_way_ns; /* of an exchange */
    int connected;        /* news of watches has to be read; else the server calls us */
    int news_fd;          /* readable while there is some; -1: nobody watched yet */
} fake_client_t;

void fake_client_open(fake_client_t *client, const dl_option_value_t *options, const dl_driver_env_t *env);
void fake_client_close(fake_client_t *client); /* safe on a zeroed one */
/* The server says to all clients that the name was released. */
void fake_notify(const char *name);

/* As the ops of dl_driver_t; the state begins with a fake_client_t. */
dl_status_t fake_watch(void *state, const char *name, size_t name_len, dl_watch_t **watch, dl_error_t *err);
void fake_unwatch(void *state, dl_watch_t *watch);
size_t fake_listen_fds(void *state, struct pollfd *fds, size_t max, uint64_t *until_ns);
void fake_listen(void *state, const struct pollfd *fds, size_t n);

#endif
