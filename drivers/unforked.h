/* unforked.h - what is not to be cut off by a fork() of another thread. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_UNFORKED_H
#define DLI_UNFORKED_H

#include <netdb.h>
#include <stdbool.h>

/* OpenSSL and the MySQL client libraries have locks of the whole process, as while TLS is prepared, and when
 * a thread begins to use OpenSSL and ends; the C library has one for lookups of names. A child forked
 * meanwhile by another thread would find them locked for ever. So fork() waits until no thread is in there.
 */
typedef enum dli_unforked {
    DLI_UNFORKED_LIBRARY, /* a MySQL client library; a second at most, since it may wait for a server */
    DLI_UNFORKED_LOOKUP,  /* 100 ms at most */
    DLI_UNFORKED_OPENSSL, /* a second at most; it hardly ever waits */
    DLI_UNFORKED_KINDS
} dli_unforked_t;

/* The thread is in there between the two. One kind does not nest. end: it may be outside. Any thread. */
void dli_unforked_begin(dli_unforked_t what);
void dli_unforked_end(dli_unforked_t what);
bool dli_is_unforked(dli_unforked_t what);

/* getaddrinfo. In a thread of ours, for it ends the thread's use of the resolver, as end_lookup does. */
int dli_unforked_look_up(const char *host, const char *port, const struct addrinfo *hints,
                         struct addrinfo **list);
/* Of who is in DLI_UNFORKED_LOOKUP; for others, nothing. */
void dli_unforked_end_lookup(void);

/* OpenSSL, for the rest of the block. */
static inline dli_unforked_t dli_unforked_enter(void) {
    dli_unforked_begin(DLI_UNFORKED_OPENSSL);
    return DLI_UNFORKED_OPENSSL;
}
static inline void dli_unforked_leave(const dli_unforked_t *what) {
    dli_unforked_end(*what);
}
#define DLI_UNFORKED \
    __attribute__((cleanup(dli_unforked_leave), unused)) const dli_unforked_t here = dli_unforked_enter()

#endif
