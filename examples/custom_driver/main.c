/* main.c - uses a driver of one's own: its table goes to dl_client_open_driver, the rest is as always. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "custom_driver.h"

static int print_lock(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)arg;
    printf("%s is held by %s for %lld ms more\n", name, info->owner, (long long)info->remaining_ms);
    return 0;
}

int main(int argc, char **argv) {
    char yaml[1024];
    dl_error_t err;
    dl_client_t *client;
    dl_lock_t *lock = NULL;

    if (argc != 2) {
        fprintf(stderr, "usage: custom_driver FILE\n");
        return 2;
    }
    /* What would stand under the backend's name in a configuration file. */
    snprintf(yaml, sizeof yaml, "{path: \"%s\", lease: 10s}", argv[1]);
    int good = dl_client_open_driver(custom_driver(), yaml, strlen(yaml), &client, &err) == DL_OK &&
               dl_lock_open(client, "orders", &lock, &err) == DL_OK && dl_lock(lock, &err) == DL_OK &&
               dl_list(client, NULL, print_lock, NULL, &err) == DL_OK && dl_unlock(lock, &err) == DL_OK;
    if (!good)
        fprintf(stderr, "custom_driver: %s: %s\n", dl_status_name(err.status), err.message);
    dl_lock_close(lock);
    dl_client_close(client);
    return good ? 0 : 1;
}
