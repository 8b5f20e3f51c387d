/* with_mysql.c - runs a command with one MariaDB or MySQL server for all tests that it starts. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/mysql_server.h"

/*
 * usage: with_mysql COMMAND [ARG]...
 * The command finds it in the environment: DLOCK_TEST_MYSQL "port path" (for mysql_server_any), and for
 * scripts DLOCK_TEST_MYSQL_PORT, _SOCKET, _USER, _PASSWORD, _SERVER (what it is) and _DATABASE (a fresh one
 * that has no tables, called dlock_test). Exit status: the command's. The server ends with this program,
 * however that ends.
 */

static void export_server(mysql_server_t *server) {
    char text[16];
    mysql_server_share(server);
    snprintf(text, sizeof text, "%d", server->port);
    setenv("DLOCK_TEST_MYSQL_PORT", text, 1);
    setenv("DLOCK_TEST_MYSQL_SOCKET", server->path, 1);
    setenv("DLOCK_TEST_MYSQL_USER", MYSQL_USER, 1);
    setenv("DLOCK_TEST_MYSQL_PASSWORD", MYSQL_SECRET, 1);
    (void)mysql_ask(server, "CREATE DATABASE dlock_test");
    setenv("DLOCK_TEST_MYSQL_DATABASE", "dlock_test", 1);
    setenv("DLOCK_TEST_MYSQL_SERVER", mysql_ask(server, "SELECT VERSION()"), 1);
}

static void become(char **command, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent) {
        execvp(command[0], command);
        fprintf(stderr, "with_mysql: cannot run %s: %s\n", command[0], strerror(errno));
    }
    _exit(127);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: with_mysql COMMAND [ARG]...\n");
        return 2;
    }
    mysql_server_t *server = mysql_server_start(NULL, NULL, NULL);
    mysql_server_await_uptime(server, 4); /* before that its run cannot be told from an earlier one */
    export_server(server);
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) {
        mysql_server_fail("fork failed: errno %d", errno);
    }
    if (pid == 0) {
        become(argv + 1, parent);
    }
    /* Who wants an end of this wants the command to end, and it tells how it ended. */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    mysql_server_stop(server);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
