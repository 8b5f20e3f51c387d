/* cancel.c - ends waits from another thread or a signal handler. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core.h"

dl_status_t dl_cancel_new(dl_cancel_t **out, dl_error_t *err) {
    DLI_NO_THREAD_CANCEL;
    if (out == NULL) {
        return dli_fail(err, DL_EINVAL, "no place for the cancel object");
    }
    *out = NULL;
    dl_cancel_t *cancel = calloc(1, sizeof *cancel);
    if (cancel == NULL) {
        return dli_fail_plain(err, DL_ENOMEM);
    }
    cancel->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (cancel->fd < 0) {
        dl_driver_fail(err, DL_ELIMIT, errno, "no descriptor for a cancel object: %s", strerror(errno));
        free(cancel);
        return DL_ELIMIT;
    }
    cancel->origin = dli_origin();
    atomic_init(&cancel->triggered, false);
    *out = cancel;
    return DL_OK;
}

void dl_cancel_trigger(dl_cancel_t *cancel) {
    DLI_NO_THREAD_CANCEL;
    if (cancel == NULL || dli_is_inherited(&cancel->origin)) {
        return;
    }
    int saved = errno; /* it may run in a signal handler */
    atomic_store(&cancel->triggered, true);
    dli_eventfd_raise(cancel->fd);
    errno = saved;
}

int dl_cancel_fd(const dl_cancel_t *cancel) {
    return cancel == NULL || dli_is_inherited(&cancel->origin) ? -1 : cancel->fd;
}

void dl_cancel_free(dl_cancel_t *cancel) {
    DLI_NO_THREAD_CANCEL;
    if (cancel != NULL) {
        close(cancel->fd);
        free(cancel);
    }
}
