/* holder.c - one client that takes and frees locks as its standard input says: our side of the witnesses. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: holder CONFIG [BACKEND]
 *
 * One command a line, one answer a line. An answer begins with the status; began and at are instants of
 * CLOCK_MONOTONIC in ns, right before and after the call.
 *     lock NAME [WAIT_MS [LEASE_MS]]   DL_OK began= at= token= valid=   waits for ever, automatic lease
 *     unlock NAME                      DL_OK began= at=
 *     count NAME FILE N                DL_OK began= at=   N times: lock, add 1 to the number in FILE, unlock
 *     valid NAME                       DL_OK valid= holds=
 *     inspect NAME                     DL_OK held= ours= remaining= holds= token= owner=
 *     force NAME                       DL_OK
 *     event                            DL_OK lost: text   or failing, recovered, warning, exited
 * It ends with its input; what it holds then is freed.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dlock/dlock.h"

enum { WORDS = 4, WORD_MAX = 300, LOCKS_MAX = 128 };

typedef struct command {
    int count;
    char word[WORDS][WORD_MAX];
} command_t;

static dl_client_t *client;
static struct {
    char name[WORD_MAX];
    dl_lock_t *lock;
} locks[LOCKS_MAX];

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void give_up(const dl_error_t *err) {
    printf("%s %s\n", dl_status_name(err->status), err->message);
    exit(2);
}

/* One handle a name, kept to the end. */
static dl_lock_t *lock_of(const char *name) {
    dl_error_t err;
    for (size_t i = 0; i < LOCKS_MAX; i++) {
        if (locks[i].lock == NULL) {
            snprintf(locks[i].name, sizeof locks[i].name, "%s", name);
            if (dl_lock_open(client, name, &locks[i].lock, &err) != DL_OK) {
                give_up(&err);
            }
        }
        if (strcmp(locks[i].name, name) == 0) {
            return locks[i].lock;
        }
    }
    fprintf(stderr, "holder: too many names\n");
    exit(2);
}

static int64_t number(const command_t *command, int word, int64_t otherwise) {
    return command->count > word ? strtoll(command->word[word], NULL, 10) : otherwise;
}

static void do_lock(dl_lock_t *lock, const command_t *command) {
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.wait_ms = number(command, 2, DL_WAIT_FOREVER);
    opts.lease_ms = number(command, 3, DL_LEASE_AUTO);
    int64_t began_ns = now_ns();
    dl_status_t status = dl_acquire(lock, &opts, NULL);
    int64_t at_ns = now_ns();
    printf("%s began=%" PRId64 " at=%" PRId64 " token=%" PRIu64 " valid=%" PRId64 "\n",
           dl_status_name(status), began_ns, at_ns, dl_token(lock), dl_valid_ms(lock));
}

static void do_unlock(dl_lock_t *lock) {
    int64_t began_ns = now_ns();
    dl_status_t status = dl_unlock(lock, NULL);
    printf("%s began=%" PRId64 " at=%" PRId64 "\n", dl_status_name(status), began_ns, now_ns());
}

/* Reads, thinks, writes, as one would with a file that no transaction guards. */
static int increment(const char *path) {
    long value;
    FILE *file = fopen(path, "r+");
    int good = file != NULL && fscanf(file, "%ld", &value) == 1;
    if (good) {
        rewind(file);
        good = fprintf(file, "%ld\n", value + 1) > 0;
    }
    return (file == NULL || fclose(file) == 0) && good;
}

static void do_count(dl_lock_t *lock, const command_t *command) {
    int64_t began_ns = now_ns(), n = number(command, 3, 0);
    dl_error_t err;
    for (int64_t i = 0; i < n; i++) {
        if (dl_lock(lock, &err) != DL_OK) {
            give_up(&err);
        }
        if (!increment(command->word[2])) {
            perror(command->word[2]);
            exit(2);
        }
        if (dl_unlock(lock, &err) != DL_OK) {
            give_up(&err);
        }
    }
    printf("DL_OK began=%" PRId64 " at=%" PRId64 "\n", began_ns, now_ns());
}

static void do_inspect(dl_lock_t *lock) {
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    dl_status_t status = dl_inspect(lock, &info, NULL);
    printf("%s held=%d ours=%d remaining=%" PRId64 " holds=%" PRIu32 " token=%" PRIu64 " owner=%s\n",
           dl_status_name(status), info.held, info.ours, info.remaining_ms, info.holds, info.token,
           info.owner);
}

static void do_event(void) {
    static const char *const kinds[] = {[DL_EVENT_LOST] = "lost",
                                        [DL_EVENT_RENEWAL_FAILING] = "failing",
                                        [DL_EVENT_RENEWAL_RECOVERED] = "recovered",
                                        [DL_EVENT_WARNING] = "warning",
                                        [DL_EVENT_THREAD_EXITED] = "exited"};
    dl_event_t event = DL_EVENT_INIT;
    dl_status_t status = dl_event_next(client, &event);
    if (status == DL_OK) {
        printf("DL_OK %s: %s\n", kinds[event.kind], event.text);
    } else {
        printf("%s\n", dl_status_name(status));
    }
}

static void obey(const command_t *command) {
    const char *verb = command->word[0];
    dl_lock_t *lock = command->count > 1 ? lock_of(command->word[1]) : NULL;
    if (strcmp(verb, "event") == 0) {
        do_event();
    } else if (lock == NULL) {
        printf("DL_EINVAL no name\n");
    } else if (strcmp(verb, "lock") == 0) {
        do_lock(lock, command);
    } else if (strcmp(verb, "unlock") == 0) {
        do_unlock(lock);
    } else if (strcmp(verb, "count") == 0 && command->count == 4) {
        do_count(lock, command);
    } else if (strcmp(verb, "valid") == 0) {
        printf("DL_OK valid=%" PRId64 " holds=%" PRIu32 "\n", dl_valid_ms(lock), dl_hold_count(lock));
    } else if (strcmp(verb, "inspect") == 0) {
        do_inspect(lock);
    } else if (strcmp(verb, "force") == 0) {
        printf("%s\n", dl_status_name(dl_force_unlock(lock, NULL)));
    } else {
        printf("DL_EINVAL no such command\n");
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    char line[2 * WORD_MAX];
    command_t command;
    dl_error_t err;
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: %s CONFIG [BACKEND]\n", argv[0]);
        return 2;
    }
    if (dl_client_open(argv[1], argc > 2 ? argv[2] : NULL, &client, &err) != DL_OK) {
        give_up(&err);
    }
    printf("DL_OK at=%" PRId64 "\n", now_ns());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        command.count = sscanf(line, "%299s %299s %299s %299s", command.word[0], command.word[1],
                               command.word[2], command.word[3]);
        obey(&command);
    }
    for (size_t i = 0; i < LOCKS_MAX; i++) {
        dl_lock_close(locks[i].lock);
    }
    dl_client_close(client);
    return 0;
}
