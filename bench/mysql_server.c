/* mysql_server.c - the server, the client and the connections that the measurements on MySQL share. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mysql_floor.h"

/* $1 is the folder, $2 the port. Of the server's defaults only those are changed that are no matter of speed:
 * where it listens, and who it may be. Its one user is root, without a password. */
static const char make_and_serve[] =
    "exec >>\"$1/mysql.log\" 2>&1; umask 077; PATH=$PATH:/usr/sbin; server=$DLOCK_MYSQL_SERVER\n"
    "for name in mariadbd mysqld; do server=${server:-$(command -v $name)}; done\n"
    "user=; [ \"$(id -u)\" != 0 ] || user=--user=root\n"
    "case $(\"$server\" --version) in\n"
    "*MariaDB*) mariadb-install-db --no-defaults --force $user --auth-root-authentication-method=normal"
    " --skip-test-db --datadir=\"$1/mysql\" ;;\n"
    "*) \"$server\" --no-defaults $user --initialize-insecure --datadir=\"$1/mysql\" ;;\n"
    "esac || exit 1\n"
    "exec \"$server\" --no-defaults $user --datadir=\"$1/mysql\" --socket=\"$1/mysql.sock\""
    " --pid-file=\"$1/mysql.pid\" --bind-address=127.0.0.1 --port=$2 --loose-mysqlx=OFF\n";

static pid_t server;
static int port;
static char version[80];

static void stop_server(void) {
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
    }
}

static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0) {
        die("no free port", NULL);
    }
    /* Stays open: nobody else is given the port, and a server can listen there. */
    return ntohs(address.sin_port);
}

/* NULL while nobody answers. */
static MYSQL *dial(const char *database) {
    MYSQL *mysql = mysql_init(NULL);
    if (mysql == NULL) {
        die("out of memory", NULL);
    }
#ifndef LIBMARIADB
    /* Connector/C uses TLS only when asked. */
    unsigned off = SSL_MODE_DISABLED;
    mysql_options(mysql, MYSQL_OPT_SSL_MODE, &off);
#endif
    mysql_options(mysql, MYSQL_SET_CHARSET_NAME, "utf8mb4");
    if (mysql_real_connect(mysql, "127.0.0.1", "root", "", database, (unsigned)port, NULL,
                           CLIENT_FOUND_ROWS) == NULL) {
        mysql_close(mysql);
        return NULL;
    }
    return mysql;
}

MYSQL *mysql_open(void) {
    MYSQL *mysql = dial("locks");
    if (mysql == NULL) {
        die("the server does not answer", NULL);
    }
    return mysql;
}

void mysql_start(const char *folder) {
    if (server != 0) {
        return;
    }
    char port_text[8];
    pid_t parent = getpid();
    port = free_port();
    (void)snprintf(port_text, sizeof port_text, "%d", port);
    server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent) {
            execl("/bin/sh", "sh", "-c", make_and_serve, "sh", folder, port_text, (char *)NULL);
        }
        _exit(127);
    }
    /* Only the first process ends it: those that hand over are forked later. */
    (void)atexit(stop_server);
    for (int i = 0; i < 6000; i++) {
        if (waitpid(server, NULL, WNOHANG) != 0) {
            server = -1; /* it has ended */
            break;
        }
        MYSQL *mysql = dial(NULL);
        if (mysql != NULL) {
            (void)snprintf(version, sizeof version, "%s", mysql_get_server_info(mysql));
            if (mysql_query(mysql, "CREATE DATABASE locks") != 0) {
                die(mysql_error(mysql), NULL);
            }
            mysql_close(mysql);
            return;
        }
        (void)poll(NULL, 0, 10); /* it tells nobody when it is ready */
    }
    die("neither mariadbd nor mysqld starts; $DLOCK_MYSQL_SERVER may name the program", NULL);
}

const char *mysql_started(void) {
    return version;
}

dl_client_t *mysql_open_client(const char *driver, const char *more) {
    char yaml[320];
    int n = snprintf(yaml, sizeof yaml,
                     "use: b\nbackends:\n  b: {driver: %s, host: 127.0.0.1, port: %d, user: root, "
                     "database: locks, create: true, tls: \"off\"%s}\n",
                     driver, port, more);
    dl_client_t *client;
    dl_error_t err;
    if (dl_client_open_text(yaml, (size_t)n, NULL, &client, &err) != DL_OK) {
        die("open", &err);
    }
    return client;
}
