/* mysql_server.c - starts a MariaDB or MySQL server as a child process. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/mysql_server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/mysql_template.h"
#include "support/port.h"
#include "support/scratch.h"

#define READY_MS 60000
#define PORT_ARG 2
#define SHARED "DLOCK_TEST_MYSQL" /* "port path" */

void (*mysql_server_on_failure)(const char *text);

static mysql_server_t servers[MYSQL_SERVERS_MAX];

void mysql_server_fail(const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (mysql_server_on_failure != NULL) {
        mysql_server_on_failure(text);
    }
    fprintf(stderr, "mysql_server: %s\n", text);
    abort();
}

bool mysql_is_mariadb(void) {
    return mysql_template()->is_mariadb;
}

/* ---- the process -------------------------------------------------------------------------------- */

/* The child: nothing but system calls until the program is another. */
static void become_server(const char *const *argv, const char *log, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(127);
    }
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
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

static void launch(mysql_server_t *server) {
    char log[MYSQL_PATH_MAX + 16];
    snprintf(log, sizeof log, "%s/server.log", server->dir);
    (void)unlink(server->path);
    pid_t parent = getpid();
    server->pid = fork();
    if (server->pid < 0) {
        mysql_server_fail("fork failed: errno %d", errno);
    }
    if (server->pid == 0) {
        become_server(server->args, log, parent);
    }
}

static long long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* true: it answers. false: it has ended. */
static bool await_ready(mysql_server_t *server) {
    long long until_ms = now_ms() + READY_MS;
    for (;;) {
        mysql_hand_t *hand = mysql_hand_as(server, "root", "", NULL, NULL, 0);
        if (hand != NULL) {
            mysql_hand_close(hand);
            return true;
        }
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid) {
            server->pid = 0;
            return false;
        }
        if (now_ms() > until_ms) {
            mysql_server_kill(server);
            mysql_server_fail("%s is not ready after %d ms; see %s/server.log", server->args[0], READY_MS,
                              server->dir);
        }
        (void)poll(NULL, 0, 1); /* it tells nobody */
    }
}

static const char *keep_word(mysql_server_t *server, const char *word) {
    size_t len = strlen(word) + 1;
    if (len > sizeof server->words - server->words_len) {
        mysql_server_fail("the arguments of the server are too long");
    }
    char *kept = server->words + server->words_len;
    memcpy(kept, word, len);
    server->words_len += len;
    return kept;
}

static void set_port(mysql_server_t *server) {
    char text[32];
    server->port = port_take(&server->port_keeper);
    if (server->port < 0) {
        mysql_server_fail("there is no free port: errno %d", errno);
    }
    snprintf(text, sizeof text, "--port=%d", server->port);
    server->args[PORT_ARG] = keep_word(server, text);
}

void mysql_server_boot(mysql_server_t *server) {
    if (server->pid != 0 || server->is_shared) {
        mysql_server_fail("the server runs already");
    }
    if (server->port == 0) {
        set_port(server);
    }
    launch(server);
    if (!await_ready(server)) {
        mysql_server_fail("cannot start %s; see %s/server.log", server->args[0], server->dir);
    }
}

/* ---- beginning and end ----------------------------------------------------------------------------- */

static mysql_server_t *new_server(void) {
    for (int i = 0; i < MYSQL_SERVERS_MAX; i++) {
        if (!servers[i].is_used) {
            servers[i] = (mysql_server_t){.is_used = true};
            return &servers[i];
        }
    }
    mysql_server_fail("more than %d servers at once", MYSQL_SERVERS_MAX);
}

static void choose_folder(mysql_server_t *server, const char *dir, const char *name) {
    const char *slash = name == NULL ? "" : "/";
    if (dir == NULL) {
        server->owns_dir = scratch_make("mysqld", server->dir, sizeof server->dir);
        if (!server->owns_dir) {
            mysql_server_fail("cannot make a folder for the server: errno %d", errno);
        }
    } else if (snprintf(server->dir, sizeof server->dir, "%s%s%s", dir, slash, name == NULL ? "" : name) >=
               (int)sizeof server->dir) {
        mysql_server_fail("the path of the folder is too long: %s", dir);
    }
    size_t len = strlen(server->dir);
    if (len + sizeof "/s" > sizeof server->path) {
        mysql_server_fail("the path of the folder is too long for a socket: %s", server->dir);
    }
    if (dir != NULL && name != NULL && mkdir(server->dir, 0700) != 0) {
        mysql_server_fail("cannot make the folder %s: errno %d", server->dir, errno);
    }
    memcpy(server->path, server->dir, len);
    memcpy(server->path + len, "/s", sizeof "/s");
}

void mysql_server_arg(mysql_server_t *server, const char *word) {
    int n = 0;
    while (server->args[n] != NULL) {
        n++;
    }
    if (n + 1 >= MYSQL_ARGS_MAX) {
        mysql_server_fail("more than %d arguments", MYSQL_ARGS_MAX);
    }
    server->args[n] = keep_word(server, word);
}

/* Quick to start and to commit; loose: where the server knows it. */
static void add_usual_arguments(mysql_server_t *server) {
    static const char *const usual[] = {
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        "--skip-log-bin",
        "--performance-schema=OFF",
        "--max-connections=3000",
        "--innodb-buffer-pool-size=32M",
        "--innodb-flush-log-at-trx-commit=1", /* else each client warns */
        "--innodb-flush-method=nosync",
        "--innodb-use-native-aio=0",
        "--innodb-buffer-pool-load-at-startup=OFF",
        "--innodb-buffer-pool-dump-at-shutdown=OFF",
        "--loose-innodb-log-file-size=16M",
        "--loose-innodb-redo-log-capacity=32M",
        "--loose-mysqlx=OFF",
        "--loose-skip-ssl", /* else it makes itself a key; who wants TLS names one */
        "--secure-file-priv="};
    char word[MYSQL_PATH_MAX + 32];
    mysql_server_arg(server, mysql_template()->program);
    mysql_server_arg(server, "--no-defaults");
    mysql_server_arg(server, "--port=0");
    snprintf(word, sizeof word, "--datadir=%s/data", server->dir);
    mysql_server_arg(server, word);
    snprintf(word, sizeof word, "--socket=%s", server->path);
    mysql_server_arg(server, word);
    snprintf(word, sizeof word, "--pid-file=%s/pid", server->dir);
    mysql_server_arg(server, word);
    /* Its own: a server that starts clears away what looks like another's temporary tables. */
    snprintf(word, sizeof word, "--tmpdir=%s/tmp", server->dir);
    mysql_server_arg(server, word);
    if (geteuid() == 0) {
        mysql_server_arg(server, "--user=root");
    }
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        mysql_server_arg(server, usual[i]);
    }
}

mysql_server_t *mysql_server_start(const char *dir, const char *name, ...) {
    char data[MYSQL_PATH_MAX + 16], temporary[MYSQL_PATH_MAX + 16];
    mysql_server_t *server = new_server();
    choose_folder(server, dir, name);
    snprintf(data, sizeof data, "%s/data", server->dir);
    snprintf(temporary, sizeof temporary, "%s/tmp", server->dir);
    if (mkdir(data, 0700) != 0 || mkdir(temporary, 0700) != 0) {
        mysql_server_fail("cannot make the folder %s: errno %d", data, errno);
    }
    mysql_template_copy(data);
    add_usual_arguments(server);
    va_list args;
    va_start(args, name);
    for (const char *word; (word = va_arg(args, const char *)) != NULL;) {
        mysql_server_arg(server, word);
    }
    va_end(args);
    mysql_server_boot(server);
    return server;
}

void mysql_server_share(mysql_server_t *server) {
    char text[MYSQL_PATH_MAX + 32];
    snprintf(text, sizeof text, "%d %s", server->port, server->path);
    setenv(SHARED, text, 1);
}

mysql_server_t *mysql_server_any(void) {
    const char *shared = getenv(SHARED);
    if (shared == NULL) {
        return mysql_server_start(NULL, NULL, NULL);
    }
    mysql_server_t *server = new_server();
    server->is_shared = true;
    if (sscanf(shared, "%d %103s", &server->port, server->path) != 2) {
        mysql_server_fail("%s is '%s', not a port and a path", SHARED, shared);
    }
    return server;
}

static void must_be_own(const mysql_server_t *server) {
    if (server->is_shared) {
        mysql_server_fail("other tests share this server: it must not be killed or frozen");
    }
}

void mysql_server_kill(mysql_server_t *server) {
    must_be_own(server);
    if (server->pid > 0) {
        (void)kill(server->pid, SIGKILL);
        (void)waitpid(server->pid, NULL, 0);
        server->pid = 0;
    }
}

void mysql_server_stop(mysql_server_t *server) {
    if (server == NULL) {
        return;
    }
    if (!server->is_shared) {
        mysql_server_kill(server);
        close(server->port_keeper);
    }
    if (server->owns_dir) {
        scratch_remove(server->dir);
    }
    server->is_used = false;
}

void mysql_server_restart(mysql_server_t *server) {
    mysql_server_kill(server);
    mysql_server_boot(server);
}

void mysql_server_freeze(mysql_server_t *server) {
    must_be_own(server);
    int status = 0;
    if (server->pid <= 0 || kill(server->pid, SIGSTOP) != 0 ||
        waitpid(server->pid, &status, WUNTRACED) != server->pid || !WIFSTOPPED(status)) {
        mysql_server_fail("cannot freeze the server");
    }
}

void mysql_server_thaw(mysql_server_t *server) {
    must_be_own(server);
    if (server->pid <= 0 || kill(server->pid, SIGCONT) != 0) {
        mysql_server_fail("cannot thaw the server");
    }
}
