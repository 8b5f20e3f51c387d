/* relay.c - a longer way to a server: everything arrives so many milliseconds later. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "redis.h"

#define WAYS_MAX 64 /* two for each connection */
#define CHUNKS 64   /* on one way at a time */
#define CHUNK 2048

/* What was read from `from` goes to `to` when it is due. Ways 2k and 2k + 1 are one connection. */
typedef struct way_on {
    int from, to;
    size_t first, count;
    struct {
        uint64_t due_ns;
        size_t len;
        char bytes[CHUNK];
    } chunks[CHUNKS];
} way_on_t;

static way_on_t ways[WAYS_MAX];
static size_t way_count;

static int connect_to(int port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        die("the relay cannot connect", NULL);
    }
    return fd;
}

static int listen_at(int port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 16) != 0) {
        die("the relay cannot listen", NULL);
    }
    return fd;
}

static void take_connection(int listening, int port) {
    int client = accept(listening, NULL, NULL), on = 1;
    if (client < 0 || way_count + 2 > WAYS_MAX) {
        die("the relay has too many connections", NULL);
    }
    int server = connect_to(port);
    (void)setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ways[way_count].from = ways[way_count + 1].to = client;
    ways[way_count].to = ways[way_count + 1].from = server;
    way_count += 2;
}

/* Ends the connection that the way belongs to. */
static void end_connection(size_t way) {
    close(ways[way].from);
    close(ways[way].to);
    ways[way & ~(size_t)1].from = ways[way | 1].from = -1;
}

static void read_way(size_t i, int delay_ms) {
    way_on_t *way = &ways[i];
    size_t at = (way->first + way->count) % CHUNKS;
    ssize_t n = read(way->from, way->chunks[at].bytes, CHUNK);
    if (n <= 0) {
        end_connection(i);
        return;
    }
    way->chunks[at].len = (size_t)n;
    way->chunks[at].due_ns = now_ns() + (uint64_t)delay_ms * 1000000;
    way->count++;
}

/* Sends what is due. The instant of the next, or as it was. */
static uint64_t send_due(size_t i, uint64_t next_ns) {
    way_on_t *way = &ways[i];
    while (way->from >= 0 && way->count > 0) {
        if (way->chunks[way->first].due_ns > now_ns()) {
            return way->chunks[way->first].due_ns < next_ns ? way->chunks[way->first].due_ns : next_ns;
        }
        if (send(way->to, way->chunks[way->first].bytes, way->chunks[way->first].len, MSG_NOSIGNAL) < 0) {
            end_connection(i);
        }
        way->first = (way->first + 1) % CHUNKS;
        way->count--;
    }
    return next_ns;
}

static void serve(int listening, int port, int delay_ms) {
    struct pollfd fds[WAYS_MAX + 1];
    for (;;) {
        uint64_t next_ns = now_ns() + 1000000000;
        fds[0] = (struct pollfd){.fd = listening, .events = POLLIN};
        for (size_t i = 0; i < way_count; i++) {
            next_ns = send_due(i, next_ns);
            fds[i + 1] = (struct pollfd){.fd = ways[i].from, .events = ways[i].count < CHUNKS ? POLLIN : 0};
        }
        uint64_t now = now_ns(), wait_ns = next_ns > now ? next_ns - now : 0;
        struct timespec wait = {.tv_sec = (time_t)(wait_ns / 1000000000),
                                .tv_nsec = (long)(wait_ns % 1000000000)};
        size_t polled = way_count;
        if (ppoll(fds, polled + 1, &wait, NULL) < 0) {
            continue;
        }
        for (size_t i = 0; i < polled; i++) {
            if (ways[i].from >= 0 && fds[i + 1].revents != 0) {
                read_way(i, delay_ms);
            }
        }
        if (fds[0].revents != 0) {
            take_connection(listening, port);
        }
    }
}

int relay_start(int port, int delay_ms) {
    int at = free_port(), listening = listen_at(at);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) {
        die("fork", NULL);
    }
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* Late by less than the scheduler's usual 50 microseconds. */
        prctl(PR_SET_TIMERSLACK, 1000);
        if (getppid() == parent) {
            serve(listening, port, delay_ms);
        }
        _exit(0);
    }
    close(listening);
    return at;
}
