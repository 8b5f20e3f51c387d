/* note.c - what dlock and its keeper tell each other. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "note.h"

#include <errno.h>
#include <sys/socket.h>

bool note_send(int socket, const note_t *note, bool wait) {
    int flags = MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT);
    ssize_t sent;
    do {
        sent = send(socket, note, sizeof *note, flags);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof *note;
}

note_got_t note_receive(int socket, note_t *note) {
    ssize_t got;
    do {
        got = recv(socket, note, sizeof *note, MSG_DONTWAIT);
        /* ECONNRESET: the other side went before it had read all of ours; what it sent is still there. */
    } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
    if (got == (ssize_t)sizeof *note) {
        return NOTE_GOT;
    }
    return got < 0 && errno == EAGAIN ? NOTE_NONE : NOTE_GONE;
}
