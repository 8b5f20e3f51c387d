/* wire.c - the two kinds of servers that a proxy fits before, made alike: addresses, pieces of requests. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/wire.h"

#ifdef DLOCK_HAVE_MYSQL
#include "support/mysql_server.h"
#endif
#ifdef DLOCK_HAVE_REDIS
#include "support/redis_server.h"
#endif

static int port_of_server(ct_t *ct) {
#ifdef DLOCK_HAVE_MYSQL
    if (is_mysql(ct)) {
        return ct_mysql(ct)->port;
    }
#endif
#ifdef DLOCK_HAVE_REDIS
    return ct_redis(ct)->port;
#else
    CT_FAIL("a server of an unknown kind");
#endif
}

proxy_t *start_proxy(ct_t *ct) {
    return proxy_start(ct, port_of_server(ct));
}

const char *address_at(ct_t *ct, int port) {
    static _Thread_local char lines[96];
    if (is_mysql(ct)) {
        /* In clear, so that the proxy can look for words. */
        snprintf(lines, sizeof lines, "socket: \"\"\nhost: 127.0.0.1\nport: %d\ntls: \"off\"", port);
    } else {
        snprintf(lines, sizeof lines, "url: \"redis://127.0.0.1:%d/0\"", port);
    }
    return lines;
}

const char *address_of(ct_t *ct, proxy_t *proxy) {
    return address_at(ct, proxy_port(proxy));
}

/* Names go over the wire as they are, or in hexadecimal digits. */
const char *name_of(ct_t *ct, const char *name) {
    static _Thread_local char text[2 * DL_NAME_MAX + 1];
    if (!is_mysql(ct)) {
        return name;
    }
    for (size_t i = 0; name[i] != 0; i++) {
        snprintf(text + 2 * i, sizeof text - 2 * i, "%02x", (unsigned char)name[i]);
    }
    return text;
}

const char *claim_of(ct_t *ct, const char *name) {
    static _Thread_local char text[2 * DL_NAME_MAX + 16];
    /* Rows may be read before they are written; the UPDATE that takes one decides by a CASE. */
    int is_rows = is_mysql(ct) && !is_session(ct);
    snprintf(text, sizeof text, "%s%s", name_of(ct, name), is_rows ? "' AND CASE" : "");
    return text;
}

const char *unlock_of(ct_t *ct, const char *name) {
    return is_session(ct) ? "ROLLBACK" : name_of(ct, name);
}

void introduce(ct_t *ct, const char *name) {
    if (is_mysql(ct)) {
        dl_lock_t *lock = ct_lock(ct, ct_observer(ct), name);
        CT_OK(dl_trylock(lock, CT_ERR));
        CT_OK(dl_unlock(lock, CT_ERR));
        ct_lock_close(ct, lock);
    }
}
