/* mysql_template.c - finds the program, and initialises a data folder once for all tests of a build. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/mysql_template.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/mysql_server.h"

/* Rises with every change of what is in the folder. */
#define LAYOUT "2"

/* MariaDB's bootstrap begins without the tables of rights. A statement a line. */
static const char accounts[] =
    "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';\n"
    "GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
    "CREATE USER '" MYSQL_USER "'@'%' IDENTIFIED BY '" MYSQL_SECRET "';\n"
    "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON `dlock\\_%`.* TO '" MYSQL_USER "'@'%';\n";

/* ---- programs -------------------------------------------------------------------------------------------
 * */

static bool is_program(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

/* A name is looked for in $PATH and where servers lie; a path is itself. */
static bool find_program(const char *name, char path[MYSQL_TEMPLATE_MAX]) {
    char places[4096];
    if (strchr(name, '/') != NULL) {
        snprintf(path, MYSQL_TEMPLATE_MAX, "%s", name);
        return is_program(path);
    }
    const char *usual = getenv("PATH");
    snprintf(places, sizeof places, "%s:/usr/sbin:/usr/local/sbin:/usr/libexec", usual == NULL ? "" : usual);
    char *rest = places;
    for (const char *place; (place = strsep(&rest, ":")) != NULL;) {
        if (snprintf(path, MYSQL_TEMPLATE_MAX, "%s/%s", place, name) < MYSQL_TEMPLATE_MAX &&
            is_program(path)) {
            return true;
        }
    }
    return false;
}

static void find_server(char path[MYSQL_TEMPLATE_MAX]) {
    const char *wanted = getenv("DLOCK_MYSQL_SERVER");
    bool found = wanted != NULL ? find_program(wanted, path)
                                : find_program("mariadbd", path) || find_program("mysqld", path);
    char real[PATH_MAX];
    if (!found || realpath(path, real) == NULL || strlen(real) >= MYSQL_TEMPLATE_MAX) {
        mysql_server_fail("there is no %s (is a MariaDB or MySQL server installed?)",
                          wanted == NULL ? "mariadbd or mysqld" : wanted);
    }
    memcpy(path, real, strlen(real) + 1);
}

/* Runs a program to its end; its output goes to a file. Its exit status. */
static int run(const char *const *argv, const char *output) {
    pid_t pid = fork();
    if (pid == 0) {
        int out = open(output, O_WRONLY | O_CREAT | O_APPEND, 0600);
        int in = open("/dev/null", O_RDONLY);
        if (out < 0 || in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) {
            _exit(127);
        }
        close_range(3, ~0u, 0);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    int status = 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return pid < 0 || !WIFEXITED(status) ? 127 : WEXITSTATUS(status);
}

static bool says(const char *file, const char *word) {
    char text[4096];
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    close(fd);
    text[n < 0 ? 0 : n] = 0;
    return strstr(text, word) != NULL;
}

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    size_t len = strlen(text);
    if (fd < 0 || write(fd, text, len) != (ssize_t)len || close(fd) != 0) {
        mysql_server_fail("cannot write %s: errno %d", path, errno);
    }
}

static void remove_tree(const char *dir) {
    const char *const argv[] = {"rm", "-rf", "--", dir, NULL};
    (void)run(argv, "/dev/null");
}

/* ---- initialising -------------------------------------------------------------------------------------- */

/* The script that makes MariaDB's data folder lies beside the server, or is in $PATH. */
static void find_installer(const char *program, char path[MYSQL_TEMPLATE_MAX]) {
    static const char *const places[] = {"", "/../bin", "/../scripts"};
    int len = (int)(strrchr(program, '/') - program);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(path, MYSQL_TEMPLATE_MAX, "%.*s%s/mariadb-install-db", len, program, places[i]);
        if (is_program(path)) {
            return;
        }
    }
    snprintf(path, MYSQL_TEMPLATE_MAX, "mariadb-install-db");
}

static int initialise_mariadb(const char *program, const char *data, const char *sql, const char *log) {
    char installer[MYSQL_TEMPLATE_MAX], datadir[MYSQL_TEMPLATE_MAX], extra[MYSQL_TEMPLATE_MAX], path[1024];
    find_installer(program, installer);
    snprintf(datadir, sizeof datadir, "--datadir=%s", data);
    snprintf(extra, sizeof extra, "--extra-file=%s", sql);
    const char *const argv[] = {installer,
                                "--no-defaults",
                                "--force", /* the host may not know its own name */
                                "--auth-root-authentication-method=normal",
                                "--skip-test-db",
                                "--skip-name-resolve",
                                "--innodb-log-file-size=16M",
                                datadir,
                                extra,
                                geteuid() == 0 ? "--user=root" : NULL,
                                NULL};
    int status = run(argv, log);
    /* Views for people, of a size that every copy would pay for. */
    snprintf(path, sizeof path, "%s/sys", data);
    remove_tree(path);
    return status;
}

static int initialise_mysql(const char *program, const char *data, const char *sql, const char *log) {
    char datadir[MYSQL_TEMPLATE_MAX], init[MYSQL_TEMPLATE_MAX];
    snprintf(datadir, sizeof datadir, "--datadir=%s", data);
    snprintf(init, sizeof init, "--init-file=%s", sql);
    const char *const argv[] = {program,
                                "--no-defaults",
                                "--initialize-insecure",
                                "--innodb-redo-log-capacity=32M",
                                datadir,
                                init,
                                geteuid() == 0 ? "--user=root" : NULL,
                                NULL};
    return run(argv, log);
}

/* Everything in `dir`, which exists and is empty. */
static void initialise(const char *program, const char *dir) {
    char version[1024], log[1024], sql[1024], data[1024], mark[1024], text[1024];
    snprintf(version, sizeof version, "%s/version", dir);
    snprintf(log, sizeof log, "%s/log", dir);
    snprintf(sql, sizeof sql, "%s/accounts.sql", dir);
    snprintf(data, sizeof data, "%s/data", dir);
    snprintf(mark, sizeof mark, "%s/mariadb", dir);
    const char *const argv[] = {program, "--no-defaults", "--version", NULL};
    if (run(argv, version) != 0 || mkdir(data, 0700) != 0) {
        mysql_server_fail("%s does not tell its version; see %s", program, version);
    }
    bool is_mariadb = says(version, "MariaDB");
    snprintf(text, sizeof text, "%s%s", is_mariadb ? "FLUSH PRIVILEGES;\n" : "", accounts);
    write_file(sql, text);
    if ((is_mariadb ? initialise_mariadb : initialise_mysql)(program, data, sql, log) != 0) {
        mysql_server_fail("%s cannot initialise a data folder; see %s", program, log);
    }
    if (is_mariadb) {
        write_file(mark, "");
    }
}

/* Which program it is, without running it. */
static uint64_t fingerprint(const char *program) {
    struct stat info;
    char text[MYSQL_TEMPLATE_MAX + 128];
    if (stat(program, &info) != 0) {
        mysql_server_fail("cannot look at %s: errno %d", program, errno);
    }
    snprintf(text, sizeof text, "%s %lld %lld %s", program, (long long)info.st_size, (long long)info.st_mtime,
             LAYOUT);
    uint64_t sum = UINT64_C(14695981039346656037);
    for (const char *at = text; *at != 0; at++) {
        sum = (sum ^ (unsigned char)*at) * UINT64_C(1099511628211);
    }
    return sum;
}

/* Only our own is ours: another user may build and test there too. */
static bool is_there(const char *dir) {
    struct stat info;
    return lstat(dir, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid();
}

static void make(const char *program, const char *dir) {
    char lock[MYSQL_TEMPLATE_MAX + 8], fresh[MYSQL_TEMPLATE_MAX + 8];
    snprintf(lock, sizeof lock, "%s.lock", dir);
    snprintf(fresh, sizeof fresh, "%s.new", dir);
    int fd = open(lock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX) != 0) {
        mysql_server_fail("cannot lock %s: errno %d", lock, errno);
    }
    if (!is_there(dir)) {
        remove_tree(fresh);
        if (mkdir(fresh, 0700) != 0) {
            mysql_server_fail("cannot make %s: errno %d", fresh, errno);
        }
        initialise(program, fresh);
        if (rename(fresh, dir) != 0) {
            mysql_server_fail("cannot make %s: errno %d", dir, errno);
        }
    }
    close(fd);
}

const mysql_template_t *mysql_template(void) {
    static mysql_template_t template;
    static bool is_made;
    if (!is_made) {
        char mark[MYSQL_TEMPLATE_MAX + 16];
        find_server(template.program);
        snprintf(template.dir, sizeof template.dir, DLOCK_TEST_TEMPLATES "-%u-%016llx", (unsigned)geteuid(),
                 (unsigned long long)fingerprint(template.program));
        if (!is_there(template.dir)) {
            make(template.program, template.dir);
        }
        snprintf(mark, sizeof mark, "%s/mariadb", template.dir);
        template.is_mariadb = access(mark, F_OK) == 0;
        is_made = true;
    }
    return &template;
}

void mysql_template_copy(const char *to) {
    char from[MYSQL_TEMPLATE_MAX + 16];
    snprintf(from, sizeof from, "%s/data/.", mysql_template()->dir);
    const char *const argv[] = {"cp", "-R", from, to, NULL};
    if (run(argv, "/dev/null") != 0) {
        mysql_server_fail("cannot copy %s to %s", from, to);
    }
}
