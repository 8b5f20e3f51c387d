/* main.c - what a user's first program does: open the embedded backend, take a lock, free it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include <dlock/dlock.h>

int main(void) {
    const char *path = getenv("DLOCK_PATH");
    char yaml[512];
    dl_error_t err;
    dl_client_t *client;
    dl_lock_t *lock = NULL;
    int len =
        snprintf(yaml, sizeof yaml, "backends: {here: {driver: sqlite, path: \"%s\"}}\n", path ? path : "");

    int good = dl_client_open_text(yaml, (size_t)len, "here", &client, &err) == DL_OK &&
               dl_lock_open(client, "consumer", &lock, &err) == DL_OK &&
               dl_trylock_for(lock, 5000, DL_LEASE_AUTO, &err) == DL_OK && dl_unlock(lock, &err) == DL_OK;
    if (good)
        printf("dlock %s\n", dl_version());
    else
        fprintf(stderr, "%s: %s\n", dl_status_name(err.status), err.message);
    dl_lock_close(lock);
    dl_client_close(client);
    return good ? 0 : 1;
}
