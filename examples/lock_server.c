/* lock_server.c - locks over TCP, a line each: thousands of clients wait on one thread. */
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: lock_server [BACKEND [PORT]]
 *
 * Listens on 127.0.0.1, on a free port by default, and prints which. A client has one lock at a time:
 *   LOCK name     is answered once it is granted, however long that takes: LOCKED name TOKEN
 *   UNLOCK name   UNLOCKED name, or ERROR name DL_ELOST: what was done under it was not protected
 *   INFO          INFO held N waiting M
 * and hears LOST name while it holds. Whoever hangs up waits no longer, and holds nothing any more.
 *
 * Try it: nc 127.0.0.1 PORT in two terminals. Type LOCK a in both, then UNLOCK a in the first. For thousands
 * of clients, the server and the program they are in each need a hard limit of descriptors (ulimit -Hn) above
 * their number.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dlock/dlock.h"

typedef struct guest {
    int fd; /* -1: gone; freed with the completion of what is still under way */
    enum { IDLE, WAITS, HOLDS, UNLOCKS } state;
    uint64_t op, hold_id; /* of its acquire, and what that got */
    dl_lock_t *lock;
    char name[DL_NAME_MAX + 1];
    size_t len;
    char in[2 * DL_NAME_MAX]; /* what came and was not carried out yet */
} guest_t;

static dl_client_t *client;
static dl_queue_t *queue;
static int epoll, listener, signals, accepting;
static guest_t **guests; /* by descriptor */
static size_t guests_max;

/* Each loss looks through all guests, so there are no more than this even where a process may have 10^9
 * descriptors. */
#define GUESTS_LIMIT 65536

/* A guest that does not read its answers, so that there is no room for one, is shown out. */
#define SAY(guest, ...)                                                                                 \
    do {                                                                                                \
        char line_[2 * DL_NAME_MAX + 64];                                                               \
        int n_ = snprintf(line_, sizeof line_, __VA_ARGS__);                                            \
        if ((guest)->fd >= 0 && send((guest)->fd, line_, (size_t)n_, MSG_NOSIGNAL | MSG_DONTWAIT) < n_) \
            shutdown((guest)->fd, SHUT_RDWR);                                                           \
    } while (0)

static void watch(int operation, int fd, uint32_t events) {
    struct epoll_event wanted = {.events = events, .data.fd = fd};
    if (epoll_ctl(epoll, operation, fd, &wanted) != 0) {
        perror("lock_server: epoll_ctl");
        exit(1);
    }
}

/* ---- what guests ask ------------------------------------------------------------------------------ */

/* It has no lock any more, and asks for none. */
static void become_idle(guest_t *guest, dl_status_t status) {
    guest->state = IDLE;
    dl_lock_close(guest->lock);
    guest->lock = NULL;
    if (status != DL_OK)
        SAY(guest, "ERROR %s %s\n", guest->name, dl_status_name(status));
    else
        SAY(guest, "UNLOCKED %s\n", guest->name);
}

/* A guest is an owner, by a number of its own for each lock that it asks for. */
static void begin_lock(guest_t *guest, const char *name) {
    static uint64_t last_owner;
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT; /* waits for ever; renewed in the background */
    (void)snprintf(guest->name, sizeof guest->name, "%s", name);
    dl_status_t status = dl_lock_open_owned(client, name, ++last_owner, &guest->lock, NULL);
    if (status == DL_OK)
        status = dl_acquire_begin(guest->lock, &opts, queue, guest, &guest->op, NULL);
    guest->state = WAITS;
    if (status != DL_OK)
        become_idle(guest, status);
}

static void begin_unlock(guest_t *guest) {
    dl_status_t status = dl_unlock_begin(guest->lock, queue, guest, NULL, NULL);
    guest->state = UNLOCKS;
    if (status != DL_OK)
        become_idle(guest, status);
}

static void carry_out(guest_t *guest, const char *line) {
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    if (strncmp(line, "LOCK ", 5) == 0 && guest->state == IDLE)
        begin_lock(guest, line + 5);
    else if (strncmp(line, "UNLOCK ", 7) == 0 && guest->state == HOLDS && strcmp(line + 7, guest->name) == 0)
        begin_unlock(guest);
    else if (strcmp(line, "INFO") == 0 && dl_client_stats(client, &stats) == DL_OK)
        SAY(guest, "INFO held %" PRIu64 " waiting %" PRIu64 "\n", stats.held_now, stats.waiting_now);
    else
        SAY(guest, "ERROR %s not now\n", line);
}

/* While a lock is waited for or given back, further lines wait. */
static void carry_out_lines(guest_t *guest) {
    char *end;
    while ((guest->state == IDLE || guest->state == HOLDS) &&
           (end = memchr(guest->in, '\n', guest->len)) != NULL) {
        size_t taken = (size_t)(end + 1 - guest->in);
        *end = '\0';
        if (end > guest->in && end[-1] == '\r')
            end[-1] = '\0';
        carry_out(guest, guest->in);
        memmove(guest->in, guest->in + taken, guest->len -= taken);
    }
}

/* ---- what comes out of the queue ------------------------------------------------------------------ */

static void on_completion(const dl_completion_t *done) {
    guest_t *guest = done->tag;
    if (done->kind == DL_OP_ACQUIRE && done->status == DL_OK) {
        guest->state = HOLDS;
        guest->hold_id = done->hold_id;
        SAY(guest, "LOCKED %s %" PRIu64 "\n", guest->name, done->token);
        if (guest->fd < 0)
            begin_unlock(guest); /* it has gone meanwhile */
    } else {
        become_idle(guest, done->status);
    }
    if (guest->fd >= 0)
        carry_out_lines(guest);
    else if (guest->state == IDLE)
        free(guest);
}

/* A loss comes after the completion by which the guest held. */
static void on_event(const dl_event_t *event) {
    fprintf(stderr, "lock_server: %s: %s\n", event->name, event->text);
    for (size_t fd = 0; fd < guests_max && event->kind == DL_EVENT_LOST; fd++) {
        guest_t *guest = guests[fd];
        if (guest != NULL && guest->state == HOLDS && guest->hold_id == event->hold_id) {
            SAY(guest, "LOST %s\n", guest->name);
        }
    }
}

static void on_queue(void) {
    dl_completion_t done[32];
    size_t n = dl_queue_take(queue, done, sizeof done[0], 32); /* what is left makes epoll say so again */
    for (size_t i = 0; i < n; i++)
        if (done[i].kind == DL_OP_EVENT)
            on_event(&done[i].with.event);
        else
            on_completion(&done[i]);
}

/* ---- connections ---------------------------------------------------------------------------------- */

static void hang_up(guest_t *guest) {
    guests[guest->fd] = NULL;
    close(guest->fd);
    guest->fd = -1;
    if (!accepting)
        watch(EPOLL_CTL_MOD, listener, EPOLLIN);
    accepting = 1;
    if (guest->state == WAITS)
        (void)dl_op_cancel(queue, guest->op); /* too late: its completion says that it holds */
    else if (guest->state == HOLDS)
        begin_unlock(guest);
    if (guest->state == IDLE)
        free(guest);
}

static void on_readable(guest_t *guest) {
    ssize_t n = recv(guest->fd, guest->in + guest->len, sizeof guest->in - guest->len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    guest->len += n > 0 ? (size_t)n : 0;
    if (n > 0)
        carry_out_lines(guest);
    if (n <= 0 || guest->len == sizeof guest->in)
        hang_up(guest);
}

static void on_connection(void) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        accepting = 0; /* until somebody hangs up */
        watch(EPOLL_CTL_MOD, listener, 0);
    }
    if (fd < 0)
        return;
    if ((size_t)fd >= guests_max || (guests[fd] = calloc(1, sizeof **guests)) == NULL) {
        close(fd);
        return;
    }
    guests[fd]->fd = fd;
    watch(EPOLL_CTL_ADD, fd, EPOLLIN);
}

static void serve(void) {
    for (;;) {
        struct epoll_event ready[64];
        int n = epoll_wait(epoll, ready, 64, -1);
        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd;
            if (fd == signals)
                return;
            if (fd == listener)
                on_connection();
            else if (fd == dl_queue_fd(queue))
                on_queue();
            else if (guests[fd] != NULL)
                on_readable(guests[fd]);
        }
    }
}

static int open_port(int port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, (struct sockaddr *)&address, len) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        return -1;
    printf("port %d\n", ntohs(address.sin_port));
    return fd;
}

/* As many guests as this process may have descriptors, up to the limit. */
static int open_room(int port) {
    struct rlimit limit;
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return -1;
    limit.rlim_cur = limit.rlim_max;
    guests_max = limit.rlim_max < GUESTS_LIMIT ? limit.rlim_max : GUESTS_LIMIT;
    guests = calloc(guests_max, sizeof *guests);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || guests == NULL || epoll < 0 ||
        sigprocmask(SIG_BLOCK, &ends, NULL) != 0 || (signals = signalfd(-1, &ends, SFD_CLOEXEC)) < 0 ||
        (listener = open_port(port)) < 0)
        return -1;
    watch(EPOLL_CTL_ADD, signals, EPOLLIN);
    watch(EPOLL_CTL_ADD, listener, EPOLLIN);
    watch(EPOLL_CTL_ADD, dl_queue_fd(queue), EPOLLIN);
    return accepting = 1;
}

int main(int argc, char **argv) {
    dl_error_t err;
    setvbuf(stdout, NULL, _IOLBF, 0);
    dl_status_t status = dl_client_open(NULL, argc > 1 ? argv[1] : "local", &client, &err);
    if (status == DL_OK)
        status = dl_queue_new(&queue, &err);
    if (status == DL_OK)
        status = dl_queue_events(queue, client);
    if (status != DL_OK) {
        fprintf(stderr, "lock_server: %s: %s\n", dl_status_name(status), err.message);
        return 1;
    }
    if (open_room(argc > 2 ? atoi(argv[2]) : 0) < 0) {
        perror("lock_server");
        return 1;
    }
    serve();
    dl_queue_free(queue);
    dl_client_close(client); /* frees what guests hold */
    return 0;
}
