/* hello.c - the smallest program: take a lock, do one thing, free it on every path. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "dlock/dlock.h"

static int report(const dl_error_t *err) {
    fprintf(stderr, "hello: %s: %s\n", dl_status_name(err->status), err->message);
    return 1;
}

int main(void) {
    dl_error_t err;
    dl_client_t *client;
    dl_lock_t *lock = NULL;
    int failed = 0;

    if (dl_client_open(NULL, "local", &client, &err) != DL_OK)
        return report(&err);
    if (dl_lock_open(client, "hello", &lock, &err) != DL_OK || dl_lock(lock, &err) != DL_OK) {
        failed = report(&err);
    } else {
        printf("holding \"hello\" with token %llu\n", (unsigned long long)dl_token(lock));
        /* The unlock tells whether the lock was ours until the end. */
        if (dl_unlock(lock, &err) != DL_OK)
            failed = report(&err);
    }
    dl_lock_close(lock);
    dl_client_close(client);
    return failed;
}
