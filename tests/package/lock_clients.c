/* lock_clients.c - thousands of clients of examples/lock_server: all wait, and each gets its turn. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: lock_clients PORT PID CLIENTS NAMES
 *
 * Each of CLIENTS asks for one of NAMES. When the server says that all wait that do not hold, one in ten
 * hangs up. Of the others each holds for a moment, then unlocks; one in ten hangs up instead. Never may two
 * hold one name, nor may a token be smaller than one before. The server, process PID, has few threads
 * meanwhile.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NAMES_MAX 1000
#define PATIENCE_S 300
/* The main thread, the client's own, and workers: one renews, 4 free, 8 claim. */
#define THREADS_MAX 15

typedef struct client {
    int fd; /* -1: done */
    int name;
} client_t;

static struct {
    int held;
    uint64_t token;
} names[NAMES_MAX];
static client_t *clients, **holders; /* in the order of their grants */
static int epoll, count, name_count, open_count, granted, released;
static time_t began_s;

static void fail(const char *what) {
    fprintf(stderr, "lock_clients: %s (%d of %d clients left, %d grants)\n", what, open_count, count,
            granted);
    exit(1);
}

static time_t now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

static int connect_to(int port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail(strerror(errno));
    return fd;
}

static void say(int fd, const char *line) {
    if (send(fd, line, strlen(line), MSG_NOSIGNAL) != (ssize_t)strlen(line))
        fail("the server takes no line");
}

/* Answers are short and come one at a time, as each client has asked one thing. */
static void hear(int fd, char *line, size_t size) {
    ssize_t n = recv(fd, line, size - 1, 0);
    if (n <= 0 || line[n - 1] != '\n')
        fail("the server has hung up, or has not sent a line");
    line[n] = '\0';
}

static void await_info(int control, const char *wanted) {
    char line[128];
    do {
        if (now_s() - began_s > PATIENCE_S) {
            fprintf(stderr, "lock_clients: wanted %slast: %s", wanted, line);
            fail("not in time");
        }
        say(control, "INFO\n");
        hear(control, line, sizeof line);
    } while (strcmp(line, wanted) != 0);
}

static int count_threads(const char *pid) {
    char path[64];
    int threads = -2; /* . and .. */
    (void)snprintf(path, sizeof path, "/proc/%s/task", pid);
    DIR *tasks = opendir(path);
    if (tasks == NULL)
        fail(path);
    while (readdir(tasks) != NULL)
        threads++;
    closedir(tasks);
    return threads;
}

static void leave(client_t *client) {
    close(client->fd);
    client->fd = -1;
    open_count--;
}

static void on_granted(client_t *client, const char *line) {
    int name;
    uint64_t token;
    if (sscanf(line, "LOCKED name/%d %" SCNu64, &name, &token) != 2 || name != client->name)
        fail(line);
    if (names[name].held++)
        fail("two hold one name");
    if (token <= names[name].token)
        fail("a token that is not larger");
    names[name].token = token;
    holders[granted++] = client;
}

static void release(client_t *client) {
    char line[64];
    (void)snprintf(line, sizeof line, "UNLOCK name/%d\n", client->name);
    names[client->name].held--; /* from here on another may be told first */
    if ((client - clients) / name_count % 10 == 1)
        leave(client);
    else
        say(client->fd, line);
}

static void on_line(client_t *client) {
    char line[128];
    hear(client->fd, line, sizeof line);
    if (strncmp(line, "UNLOCKED ", 9) == 0)
        leave(client);
    else
        on_granted(client, line);
}

/* Whoever was granted its lock has it until all is heard that had come by then. */
static void take_turns(void) {
    while (open_count > 0) {
        struct epoll_event ready[64];
        int granted_before = granted, n;
        int patience_ms = released == granted ? 1000 : 0;
        while ((n = epoll_wait(epoll, ready, 64, patience_ms)) > 0) {
            for (int i = 0; i < n; i++)
                on_line(ready[i].data.ptr);
            patience_ms = 0;
        }
        while (released < granted_before)
            release(holders[released++]);
        if (now_s() - began_s > PATIENCE_S)
            fail("not in time");
    }
}

int main(int argc, char **argv) {
    struct rlimit limit;
    if (argc != 5 || (name_count = atoi(argv[4])) > NAMES_MAX)
        return 64;
    count = atoi(argv[3]);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || (limit.rlim_cur = limit.rlim_max) < (rlim_t)count + 64 ||
        setrlimit(RLIMIT_NOFILE, &limit) != 0)
        fail("too few descriptors are allowed (ulimit -Hn)");
    began_s = now_s();
    clients = calloc((size_t)count, sizeof *clients);
    holders = calloc((size_t)count, sizeof(client_t *));
    epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < count; i++) {
        char line[64];
        clients[i] = (client_t){.fd = connect_to(atoi(argv[1])), .name = i % name_count};
        (void)snprintf(line, sizeof line, "LOCK name/%d\n", clients[i].name);
        say(clients[i].fd, line);
        open_count++;
    }
    char wanted[64];
    int control = connect_to(atoi(argv[1]));
    (void)snprintf(wanted, sizeof wanted, "INFO held %d waiting %d\n", name_count, count - name_count);
    await_info(control, wanted);
    int threads = count_threads(argv[2]);
    if (threads > THREADS_MAX)
        fail("too many threads");
    for (int i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &clients[i]};
        if (i / name_count % 10 == 0 && i >= name_count)
            leave(&clients[i]); /* while it waits */
        else if (epoll_ctl(epoll, EPOLL_CTL_ADD, clients[i].fd, &event) != 0)
            fail("epoll_ctl");
    }
    take_turns();
    await_info(control, "INFO held 0 waiting 0\n");
    printf("%d grants to %d clients of %d names, %d threads\n", granted, count, name_count, threads);
    return 0;
}
