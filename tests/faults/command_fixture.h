/* command_fixture.h - runs the built dlock command and waits for what it does. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_COMMAND_FIXTURE_H
#define TEST_COMMAND_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What every wait of these tests is bounded by. */
#define PATIENCE_MS 20000
/* The configured lease; the margin is then 120 ms and the grace time 400 ms. */
#define LEASE_MS 2400

/* One running program. The command under it may write lines to descriptor 9: read_line gets them. */
typedef struct program {
    pid_t pid;
    int pidfd, in, out, err, report;
    char out_text[16384], err_text[16384];
    size_t out_len, err_len;
    int status;        /* the exit status; 1000 + N when signal N ended it */
    uint64_t ended_ns; /* when we saw it end */
} program_t;

extern char work_dir[64], config_path[96], database_path[96];

void fixture_open(void);  /* a folder with a configuration */
void fixture_close(void); /* removes it, and kills what watched() has seen and is still there */

/* Starts dlock with the configuration and these words, or a program without dlock. NULL ends the words. */
void start(program_t *program, ...) __attribute__((sentinel));
void start_plain(program_t *program, ...) __attribute__((sentinel));
/* What the next started programs inherit. */
void block_signal(int number);
void ignore_signal(int number);
void refuse_pidfd(void); /* pidfd_open fails, as on an old kernel */
void allow_pidfd(void);
void refuse_kill(void); /* SIGKILL by number reaches nobody, as if all belonged to other users */
void allow_kill(void);
/* Reads all output until the end; the exit status. */
int finish(program_t *program);
/* Both; the standard input is empty. */
int dlock(program_t *program, ...) __attribute__((sentinel));
/* One line from descriptor 9, without its newline. */
void read_line(program_t *program, char *line, size_t size);
/* Waits until there is something on the standard output. */
void await_output(program_t *program);
/* Reads the standard error until something, or until these words, have come. */
void read_more_error(program_t *program);
void read_error_until(program_t *program, const char *words);
/* Reads "word number", checks the word. */
pid_t read_pid(program_t *program, const char *word);
/* A descriptor of the process, to wait for its end. */
int watched(pid_t pid);
/* The instant of the end of a watched process, as seen: never before the end itself. */
uint64_t await_end(int pidfd);
bool is_running(int pidfd);
/* How many children a process has, and their numbers. */
#define CHILDREN 8
int children_of(pid_t pid, int children[CHILDREN]);
pid_t child_of(pid_t pid); /* that has one only, such as the keeper of a dlock that waits */
/* Waits until its state is this letter, and no end or stop of a child is news to it. */
void await_state(pid_t pid, char state);
/* A dlock that is stopped meanwhile has no room for all that its keeper has to say of this. */
void stop_more_often_than_there_is_room_for(pid_t command, pid_t keeper);
uint64_t now_boot_ns(void);
/* The last instant in ms behind `words` in the text of --verbose; 0: none. */
uint64_t last_instant_ms(const char *text, const char *words);
/* Writes the whole text to a file in the work folder. */
void write_file(const char *path, const char *text);
/* A run whose command has started a process that SIGTERM does not end, in its group; it waits for input. */
pid_t start_with_a_rest(program_t *program, const char *lease);
/* It could not be ended: nobody else gets the lock until it has. Then the run ends so. */
void expect_kept_for_the_rest(program_t *program, pid_t rest, int status);
/* Keeps all others from writing to the database, as a process that hangs within a write does. */
void *hold_database(void);
void let_database_go(void *held);

#endif
