/* note.h - what dlock and its keeper tell each other. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_NOTE_H
#define CLI_NOTE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum note_kind {
    /* dlock to keeper */
    NOTE_START = 1, /* number: 1 = give the command the terminal; all fields */
    NOTE_VALID,     /* valid_until_ns */
    NOTE_SIGNAL,    /* number: pass this signal on; after NOTE_STARTED */
    NOTE_LOST,      /* the lock is gone: end everything at once */
    /* keeper to dlock; at_ns is when */
    NOTE_STARTED,     /* number: the group */
    NOTE_NOT_STARTED, /* number: errno of fork or exec */
    NOTE_STOPPED,     /* number: the signal that stopped the command */
    NOTE_TERM,        /* SIGTERM was sent; number: end_cause_t */
    NOTE_KILL,        /* SIGKILL was sent; number: end_cause_t */
    NOTE_EXITED,      /* the command itself has ended */
    NOTE_LEFT,        /* not all could be ended, and the keeper goes on trying; number: end_cause_t */
    NOTE_ENDED        /* the keeper is done, and dlock gets this one; number: end_cause_t */
} note_kind_t;

/* Why the keeper ends the group. The larger reason outdoes the smaller. */
typedef enum end_cause {
    END_BY_ITSELF = 0,
    END_OF_COMMAND,  /* the command ended and left processes behind */
    END_OF_VALIDITY, /* the lock could not be kept longer */
    END_LOST,        /* the lock was lost */
    END_ORPHANED     /* dlock itself has died */
} end_cause_t;

typedef struct note {
    note_kind_t kind;
    int number;
    uint64_t at_ns;
    uint64_t token, valid_until_ns, grace_ns, margin_ns; /* NOTE_START */
    uint64_t left;                                       /* NOTE_LEFT: so many */
    int exit_status; /* NOTE_LEFT, NOTE_ENDED: of the command, if it has ended */
} note_t;

/* Waits until the other side takes it if `wait`; false: the other side is gone, or does not take it now. */
bool note_send(int socket, const note_t *note, bool wait);
typedef enum note_got { NOTE_GOT, NOTE_NONE, NOTE_GONE } note_got_t;
note_got_t note_receive(int socket, note_t *note); /* never waits */

#endif
