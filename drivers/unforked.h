/* unforked.h - what is not to be cut off by a fork() of another thread. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_UNFORKED_H
#define DLI_UNFORKED_H

#include <netdb.h>
#include <stdbool.h>

/* OpenSSL and the MySQL client libraries have locks of the whole process, as while TLS is prepared, and when
 * a thread begins to use OpenSSL and ends. A child forked meanwhile by another thread would find them locked
 * for ever. So fork() waits until no thread is between these two; it does so for a second at most, since a
 * thread may wait for a server in there. They do not nest. end: the thread may be outside. Any thread. */
void dli_unforked_begin(void);
void dli_unforked_end(void);
/* getaddrinfo, for which fork() waits for 100 ms at most: the C library, too, has a lock there that would
 * stay locked in a child. In a thread of ours, for it ends the thread's use of the resolver. */
int dli_unforked_look_up(const char *host, const char *port, const struct addrinfo *hints,
                         struct addrinfo **list);
/* Is this thread in one of these? */
bool dli_is_unforked(void);

/* The rest of the block is. */
static inline bool dli_unforked_enter(void) {
    dli_unforked_begin();
    return true;
}
static inline void dli_unforked_leave(const bool *entered) {
    (void)entered;
    dli_unforked_end();
}
#define DLI_UNFORKED \
    __attribute__((cleanup(dli_unforked_leave), unused)) const bool dli_unforked_here = dli_unforked_enter()

#endif
