/* command_fixture.c - runs the built dlock command and waits for what it does. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "command_fixture.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/beat.h"
#include "support/scratch.h"

#define WORDS_MAX 32
#define WATCHED_MAX 64

char work_dir[64], config_path[96], database_path[96];
static int all_watched[WATCHED_MAX];
static size_t watched_count;
static sigset_t to_block, to_ignore;
static bool pidfd_refused, kill_refused;

uint64_t now_boot_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file, "cannot write %s", path);
    cr_assert_geq(fputs(text, file), 0, "cannot write %s", path);
    cr_assert_eq(fclose(file), 0, "cannot write %s", path);
}

void fixture_open(void) {
    beat_begin();
    cr_assert(scratch_make("command", work_dir, sizeof work_dir));
    (void)snprintf(config_path, sizeof config_path, "%s/dlock.yaml", work_dir);
    (void)snprintf(database_path, sizeof database_path, "%s/locks.db", work_dir);
    char text[512];
    (void)snprintf(text, sizeof text,
                   "use: test\ndefaults: {lease: %dms, call_timeout: 300ms}\n"
                   "backends:\n  test: {driver: sqlite, path: \"%s\"}\n",
                   LEASE_MS, database_path);
    write_file(config_path, text);
    (void)unsetenv("DLOCK_BACKEND");
    (void)unsetenv("DLOCK_CONFIG");
    (void)unsetenv("COLUMNS");
    (void)unsetenv("NO_COLOR");
    (void)setenv("TERM", "xterm", 1);
    (void)sigemptyset(&to_block);
    (void)sigemptyset(&to_ignore);
    pidfd_refused = false;
    kill_refused = false;
    (void)signal(SIGPIPE, SIG_IGN);
}

void fixture_close(void) {
    for (size_t i = 0; i < watched_count; i++) {
        (void)syscall(SYS_pidfd_send_signal, all_watched[i], SIGKILL, NULL, 0);
        (void)close(all_watched[i]);
    }
    scratch_remove(work_dir);
}

void block_signal(int number) {
    (void)sigaddset(&to_block, number);
}

void ignore_signal(int number) {
    (void)sigaddset(&to_ignore, number);
}

static void need_filters(void) {
    if (prctl(PR_GET_SECCOMP) < 0) {
        cr_skip("no filters of system calls here");
    }
}

void refuse_pidfd(void) {
    need_filters();
    pidfd_refused = true;
}

void allow_pidfd(void) {
    pidfd_refused = false;
}

void refuse_kill(void) {
    need_filters();
    kill_refused = true;
}

void allow_kill(void) {
    kill_refused = false;
}

#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define UNLESS(value, skipped) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skipped)
#define REFUSE(number) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (number))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static bool install(struct sock_filter *rules, size_t count) {
    struct sock_fprog filter = {(unsigned short)count, rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

static bool filter_pidfd(void) {
    struct sock_filter rules[] = {LOAD(nr), UNLESS(SYS_pidfd_open, 1), REFUSE(ENOSYS), ALLOW};
    return install(rules, sizeof rules / sizeof rules[0]);
}

static bool filter_kill(void) {
    struct sock_filter rules[] = {LOAD(nr),           UNLESS(SYS_kill, 3), LOAD(args[1]),
                                  UNLESS(SIGKILL, 1), REFUSE(EPERM),       ALLOW};
    return install(rules, sizeof rules / sizeof rules[0]);
}

static void make_pipe(int *reader, int *writer) {
    int ends[2];
    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    *reader = ends[0];
    *writer = ends[1];
}

static void start_words(program_t *program, char **words) {
    int in, out, err, report;
    *program = (program_t){.status = -1};
    make_pipe(&in, &program->in);
    make_pipe(&program->out, &out);
    make_pipe(&program->err, &err);
    make_pipe(&program->report, &report);
    program->pid = fork();
    cr_assert_geq(program->pid, 0);
    if (program->pid == 0) {
        /* Out of the way of 0, 1, 2 and 9 first. */
        int from[] = {fcntl(in, F_DUPFD_CLOEXEC, 20), fcntl(out, F_DUPFD_CLOEXEC, 20),
                      fcntl(err, F_DUPFD_CLOEXEC, 20), fcntl(report, F_DUPFD_CLOEXEC, 20)};
        int to[] = {0, 1, 2, 9};
        for (size_t i = 0; i < 4; i++) {
            (void)dup2(from[i], to[i]);
        }
        (void)signal(SIGPIPE, SIG_DFL);
        for (int number = 1; number < NSIG; number++) {
            if (sigismember(&to_ignore, number) == 1) {
                (void)signal(number, SIG_IGN);
            }
        }
        (void)sigprocmask(SIG_SETMASK, &to_block, NULL);
        if ((!pidfd_refused || filter_pidfd()) && (!kill_refused || filter_kill())) {
            (void)execvp(words[0], words);
        }
        _exit(99);
    }
    program->pidfd = (int)syscall(SYS_pidfd_open, program->pid, 0);
    cr_assert_geq(program->pidfd, 0);
    (void)close(in);
    (void)close(out);
    (void)close(err);
    (void)close(report);
}

static void take_words(char **words, size_t at, va_list args) {
    while ((words[at] = va_arg(args, char *)) != NULL) {
        cr_assert_lt(++at, WORDS_MAX);
    }
}

static void start_dlock(program_t *program, va_list args) {
    static char command[] = DLOCK_COMMAND;
    static char option[] = "--config";
    char *words[WORDS_MAX] = {command, option, config_path};
    take_words(words, 3, args);
    start_words(program, words);
}

void start(program_t *program, ...) {
    va_list args;
    va_start(args, program);
    start_dlock(program, args);
    va_end(args);
}

void start_plain(program_t *program, ...) {
    char *words[WORDS_MAX];
    va_list args;
    va_start(args, program);
    take_words(words, 0, args);
    va_end(args);
    start_words(program, words);
}

static int patience_left(uint64_t since_ns) {
    uint64_t spent_ms = (now_boot_ns() - since_ns) / 1000000u;
    return spent_ms < PATIENCE_MS ? (int)(PATIENCE_MS - spent_ms) : 0;
}

/* What there is now; false at the end. */
static bool collect(int fd, char *text, size_t *len, size_t size) {
    ssize_t got = read(fd, text + *len, size - 1 - *len);
    *len += got > 0 ? (size_t)got : 0;
    text[*len] = '\0';
    cr_assert_lt(*len, size - 1, "more output than expected");
    return got > 0;
}

void await_output(program_t *program) {
    struct pollfd ready = {.fd = program->out, .events = POLLIN};
    if (poll(&ready, 1, PATIENCE_MS) != 1) {
        (void)kill(program->pid, SIGKILL);
        cr_assert_fail("no output after %d ms", PATIENCE_MS);
    }
}

void read_more_error(program_t *program) {
    struct pollfd ready = {.fd = program->err, .events = POLLIN};
    if (poll(&ready, 1, PATIENCE_MS) != 1 ||
        !collect(program->err, program->err_text, &program->err_len, sizeof program->err_text)) {
        (void)kill(program->pid, SIGTERM);
        cr_assert_fail("dlock says no more; err: %s", program->err_text);
    }
}

void read_error_until(program_t *program, const char *words) {
    while (strstr(program->err_text, words) == NULL) {
        read_more_error(program);
    }
}

int finish(program_t *program) {
    uint64_t since_ns = now_boot_ns();
    if (program->in >= 0) {
        (void)close(program->in);
        program->in = -1;
    }
    /* The output is read to its end; a descendant that lives on may keep it open, so the end of the program
     * counts: what is there by then is all. */
    bool ended = false, out_open = true, err_open = true;
    while (!ended || out_open || err_open) {
        struct pollfd fds[] = {{.fd = ended ? -1 : program->pidfd, .events = POLLIN},
                               {.fd = out_open ? program->out : -1, .events = POLLIN},
                               {.fd = err_open ? program->err : -1, .events = POLLIN}};
        int ready = poll(fds, 3, ended ? 0 : patience_left(since_ns));
        if (ended && ready == 0) {
            break;
        }
        if (ready == 0) {
            (void)kill(program->pid, SIGKILL);
            cr_assert_fail("no end after %d ms; out: %s err: %s", PATIENCE_MS, program->out_text,
                           program->err_text);
        }
        if (fds[0].revents != 0) {
            program->ended_ns = now_boot_ns();
            ended = true;
        }
        if (fds[1].revents != 0) {
            out_open = collect(program->out, program->out_text, &program->out_len, sizeof program->out_text);
        }
        if (fds[2].revents != 0) {
            err_open = collect(program->err, program->err_text, &program->err_len, sizeof program->err_text);
        }
    }
    int status;
    cr_assert_eq(waitpid(program->pid, &status, 0), program->pid);
    program->status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    (void)close(program->out);
    (void)close(program->err);
    (void)close(program->report);
    (void)close(program->pidfd);
    return program->status;
}

int dlock(program_t *program, ...) {
    va_list args;
    va_start(args, program);
    start_dlock(program, args);
    va_end(args);
    return finish(program);
}

void read_line(program_t *program, char *line, size_t size) {
    uint64_t since_ns = now_boot_ns();
    size_t len = 0;
    for (;;) {
        struct pollfd ready = {.fd = program->report, .events = POLLIN};
        char byte;
        if (poll(&ready, 1, patience_left(since_ns)) != 1 || read(program->report, &byte, 1) != 1) {
            (void)kill(program->pid, SIGTERM);
            (void)finish(program);
            cr_assert_fail("no line from the command; out: %s err: %s", program->out_text, program->err_text);
        }
        if (byte == '\n') {
            line[len] = '\0';
            return;
        }
        cr_assert_lt(len, size - 1);
        line[len++] = byte;
    }
}

pid_t read_pid(program_t *program, const char *word) {
    char line[128];
    read_line(program, line, sizeof line);
    size_t len = strlen(word);
    cr_assert_eq(strncmp(line, word, len), 0, "'%s' came instead of '%s'", line, word);
    cr_assert_eq(line[len], ' ', "'%s' came instead of '%s'", line, word);
    return (pid_t)atoi(line + len);
}

int watched(pid_t pid) {
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    cr_assert_geq(fd, 0, "no process %d: %s", (int)pid, strerror(errno));
    cr_assert_lt(watched_count, WATCHED_MAX);
    all_watched[watched_count++] = fd;
    return fd;
}

uint64_t await_end(int pidfd) {
    struct pollfd ready = {.fd = pidfd, .events = POLLIN};
    cr_assert_eq(poll(&ready, 1, PATIENCE_MS), 1, "a process did not end in %d ms", PATIENCE_MS);
    return now_boot_ns();
}

bool is_running(int pidfd) {
    struct pollfd ready = {.fd = pidfd, .events = POLLIN};
    return poll(&ready, 1, 0) == 0;
}

uint64_t last_instant_ms(const char *text, const char *words) {
    uint64_t found = 0;
    for (const char *at = text; (at = strstr(at, words)) != NULL; at += strlen(words)) {
        found = strtoull(at + strlen(words), NULL, 10);
    }
    return found;
}

int children_of(pid_t pid, int children[CHILDREN]) {
    char path[64];
    int count = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *file = fopen(path, "re");
    cr_assert_not_null(file, "%s", path);
    while (count < CHILDREN && fscanf(file, "%d", &children[count]) == 1) {
        count++;
    }
    (void)fclose(file);
    return count;
}

pid_t child_of(pid_t pid) {
    int children[CHILDREN];
    cr_assert_eq(children_of(pid, children), 1, "process %d has not one child", (int)pid);
    return children[0];
}

/* Its state by a letter, once no end or stop of a child is news to it. */
static char state_of(pid_t pid) {
    char path[48], line[128], state = '?';
    unsigned long long pending = 0, shared = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        (void)(sscanf(line, "State: %c", &state) + sscanf(line, "SigPnd: %llx", &pending) +
               sscanf(line, "ShdPnd: %llx", &shared));
    }
    (void)fclose(file);
    return ((pending | shared) >> (SIGCHLD - 1) & 1) != 0 ? '?' : state;
}

void await_state(pid_t pid, char state) {
    uint64_t until_ns = now_boot_ns() + PATIENCE_MS * UINT64_C(1000000);
    while (state_of(pid) != state) {
        cr_assert_lt(now_boot_ns(), until_ns);
        (void)sched_yield();
    }
}

void stop_more_often_than_there_is_room_for(pid_t command, pid_t keeper) {
    enum { STOPS = 1000 };
    for (int i = 0; i < STOPS; i++) {
        (void)kill(command, SIGSTOP);
        await_state(command, 'T');
        await_state(keeper, 'S');
        (void)kill(command, SIGCONT);
    }
}

pid_t start_with_a_rest(program_t *program, const char *lease) {
    start(program, "run", "x", "--verbose", "--lease", lease, "--grace", "100ms", "--", "sh", "-c",
          "sh -c 'trap \"\" TERM; echo rest $$ >&9; exec sleep 1000' & read x; exit 3", NULL);
    pid_t rest = read_pid(program, "rest");
    (void)watched(rest);
    return rest;
}

void expect_kept_for_the_rest(program_t *program, pid_t rest, int status) {
    program_t other;
    read_error_until(program, "1 process of the command could not be ended");
    allow_kill();
    (void)dlock(&other, "run", "x", "--wait", "0", "--", "true", NULL);
    cr_assert_eq(other.status, 75, "another got the lock: %d %s", other.status, other.err_text);
    cr_assert_eq(kill(rest, SIGKILL), 0);
    (void)finish(program);
    cr_assert_eq(program->status, status, "status %d; err: %s", program->status, program->err_text);
    (void)dlock(&other, "status", "--quiet", "x", NULL);
    cr_assert_eq(other.status, 1, "the lock was not freed");
}

void *hold_database(void) {
    sqlite3 *db;
    cr_assert_eq(sqlite3_open(database_path, &db), SQLITE_OK);
    (void)sqlite3_busy_timeout(db, PATIENCE_MS);
    char *why = NULL;
    cr_assert_eq(sqlite3_exec(db, "BEGIN EXCLUSIVE", NULL, NULL, &why), SQLITE_OK, "%s", why);
    return db;
}

void let_database_go(void *held) {
    (void)sqlite3_exec(held, "ROLLBACK", NULL, NULL, NULL);
    (void)sqlite3_close(held);
}
