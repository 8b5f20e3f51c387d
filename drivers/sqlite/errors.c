/* errors.c - what a failure of SQLite's means, in plain words. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

dl_status_t dli_connection_fail(const dli_store_t *store, int rc, bool maybe_done, dl_error_t *err) {
    const char *path = dli_place_text(&store->place);
    switch (rc & 0xff) {
    case DLI_RC_FOREIGN & 0xff:
        return dl_driver_fail(err, DL_EPROTO, 0,
                              "the lock file has definitions that are not dlock's, such as a trigger, a view,"
                              " or another table; it was left as it is: %s",
                              path);
    case DLI_RC_MOVED & 0xff:
        return dl_driver_fail(err, DL_EIO, 0,
                              "the lock file, or its log, was moved, replaced or deleted while in use;"
                              " close the client and open it again: %s",
                              path);
    case DLI_RC_HIDDEN & 0xff:
        return dl_driver_fail(
            err, DL_EAUTH, 0,
            "cannot look at the lock file any more: if the process has another user, or another "
            "root directory, than before, open the client after that change: %s",
            path);
    case SQLITE_FULL:
        return dl_driver_fail(err, DL_EIO, rc, "no space left for the lock file %s", path);
    case SQLITE_READONLY:
    case SQLITE_PERM:
        return dl_driver_fail(err, DL_EAUTH, rc, "no permission to read and write the lock file %s", path);
    case SQLITE_CANTOPEN:
        return dl_driver_fail(err, DL_EIO, rc,
                              "cannot open the lock file or one beside it: they must be plain files with one"
                              " name each, of users who may write the lock file: %s",
                              path);
    case SQLITE_NOMEM:
        return dl_driver_fail(err, DL_ENOMEM, rc, "out of memory");
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return dl_driver_fail(err, DL_EPROTO, rc, "the lock file is damaged: %s", path);
    case SQLITE_IOERR:
        if ((rc >> 8) == (SQLITE_IOERR_NOMEM >> 8)) {
            return dl_driver_fail(err, DL_ENOMEM, rc, "out of memory");
        }
        /* A failed write may still be found in the log when the file is next recovered. */
        return dl_driver_fail(
            err, maybe_done ? DL_EUNKNOWN : DL_EIO, rc,
            "the disk failed under the lock file, or the file was replaced while it was in use: %s", path);
    default:
        return dl_driver_fail(err, DL_EPROTO, rc, "the lock file gave an unexpected answer (%s): %s",
                              sqlite3_errstr(rc), path);
    }
}
