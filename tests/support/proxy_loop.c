/* proxy_loop.c - the proxy's own process: one loop over all connections, in memory of its own. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/proxy_loop.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Nothing here but system calls: it is the child of a process that may have threads. */

#define LINKS_MAX 128
#define PIECES_MAX 64
#define BYTES_MAX 65536
#define DELIVERY_MS 3000

typedef struct piece {
    int64_t due_ms;
    size_t len;
} piece_t;

/* One way of a connection: what was read from one side and is due on the other. */
typedef struct half {
    char bytes[BYTES_MAX];
    size_t len;
    piece_t pieces[PIECES_MAX];
    int piece_count;
    int ended;    /* its source has hung up */
    int deaf;     /* what comes is swallowed */
    int holding;  /* what comes is kept */
    int unwanted; /* its target has hung up */
} half_t;

typedef struct link {
    int fd[2];      /* 0: the client, 1: the server; -1: this place is free */
    half_t half[2]; /* 0: requests, 1: replies */
    char held[BYTES_MAX];
    size_t held_len;
} link_t;

static link_t *links; /* LINKS_MAX; static, every process of the tests would have them to search for leaks */
static int64_t delay_ms[2];
static int deaf_ways, listening = -1, own_port, server_port;
static proxy_counts_t counts;
static proxy_command_t plan; /* op 0: none */
static link_t *planned;      /* the connection that it is about; NULL: not met yet */
static size_t to_pass;       /* bytes until it happens */

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* ---- sockets ------------------------------------------------------------------------------------ */

static int connect_server(void) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)server_port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void end_socket(int fd, int by_reset) {
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
    if (by_reset) {
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    }
    close(fd);
}

static void end_link(link_t *link, int by_reset) {
    end_socket(link->fd[0], by_reset);
    end_socket(link->fd[1], by_reset);
    link->fd[0] = -1;
    counts.open--;
    if (planned == link) {
        counts.missed++;
        plan.op = 0;
        planned = NULL;
    }
}

static void end_links(int by_reset) {
    for (int i = 0; i < LINKS_MAX; i++) {
        if (links[i].fd[0] >= 0) {
            end_link(&links[i], by_reset);
        }
    }
}

static void accept_one(void) {
    int one = 1, fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), server = -1;
    if (fd < 0) {
        return;
    }
    for (int i = 0; i < LINKS_MAX; i++) {
        link_t *link = &links[i];
        if (link->fd[0] >= 0 || (server = connect_server()) < 0) {
            continue;
        }
        (void)fcntl(server, F_SETFL, O_NONBLOCK);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        for (int way = 0; way < 2; way++) {
            half_t *half = &link->half[way];
            half->len = 0;
            half->piece_count = half->ended = half->holding = half->unwanted = 0;
            half->deaf = deaf_ways >> way & 1;
        }
        link->held_len = 0;
        link->fd[0] = fd;
        link->fd[1] = server;
        counts.accepted++;
        counts.open++;
        return;
    }
    end_socket(fd, 1);
}

/* ---- bytes ---------------------------------------------------------------------------------------- */

static void append(half_t *half, int way, const char *bytes, size_t len) {
    if (len == 0 || half->piece_count == PIECES_MAX || half->len + len > BYTES_MAX) {
        return;
    }
    memcpy(half->bytes + half->len, bytes, len);
    half->len += len;
    half->pieces[half->piece_count++] = (piece_t){now_ms() + delay_ms[way], len};
}

static void take_in(link_t *link, int way, const char *bytes, size_t len) {
    half_t *half = &link->half[way];
    if (half->holding) {
        size_t room = BYTES_MAX - link->held_len;
        memcpy(link->held + link->held_len, bytes, len < room ? len : room);
        link->held_len += len < room ? len : room;
    } else if (!half->deaf) {
        append(half, way, bytes, len);
    }
}

/* Does what is planned, between what has passed and the rest. */
static void act(link_t *link, int way) {
    half_t *half = &link->half[way];
    counts.acts++;
    plan.op = 0;
    planned = NULL;
    switch (plan.act) {
    case PROXY_CUT:
    case PROXY_RESET:
        /* What has passed must have left before the end. */
        (void)send(link->fd[!way], half->bytes, half->len, MSG_NOSIGNAL);
        end_link(link, plan.act == PROXY_RESET);
        break;
    case PROXY_SWALLOW:
        half->deaf = 1;
        break;
    case PROXY_INSERT:
        append(half, way, plan.bytes, plan.len);
        break;
    default:
        half->holding = 1;
    }
}

/* Takes in what was read, with the planned act at its place. */
static void pass(link_t *link, int way, const char *bytes, size_t len) {
    *(way == 0 ? &counts.requests : &counts.replies) += (int64_t)len;
    if (plan.op != 0 && planned == NULL &&
        (plan.request[0] == 0 ||
         (way == 0 && memmem(bytes, len, plan.request, strlen(plan.request)) != NULL))) {
        planned = link;
        to_pass = plan.after;
    }
    if (planned == link && plan.way == way + 1) {
        if (len >= to_pass) {
            take_in(link, way, bytes, to_pass);
            bytes += to_pass;
            len -= to_pass;
            act(link, way);
        } else {
            to_pass -= len;
        }
    }
    if (link->fd[0] >= 0) {
        take_in(link, way, bytes, len);
    }
}

static void read_side(link_t *link, int way) {
    static char bytes[16384];
    half_t *half = &link->half[way];
    ssize_t n = recv(link->fd[way], bytes, sizeof bytes, 0);
    if (n > 0) {
        pass(link, way, bytes, (size_t)n);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        half->ended = 1;
    }
}

/* Writes what is due. */
static void write_side(link_t *link, int way) {
    half_t *half = &link->half[way];
    int64_t now = now_ms();
    while (half->piece_count > 0 && half->pieces[0].due_ms <= now) {
        size_t len = half->pieces[0].len;
        ssize_t n = half->unwanted ? (ssize_t)len : send(link->fd[!way], half->bytes, len, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (n < 0) {
            half->unwanted = 1;
            continue;
        }
        memmove(half->bytes, half->bytes + n, half->len - (size_t)n);
        half->len -= (size_t)n;
        half->pieces[0].len -= (size_t)n;
        if (half->pieces[0].len == 0) {
            half->piece_count--;
            memmove(half->pieces, half->pieces + 1, (size_t)half->piece_count * sizeof half->pieces[0]);
        }
    }
}

/* A side has hung up, and the other may know. */
static int is_over(const half_t *half) {
    return half->ended && half->piece_count == 0 && !half->deaf && !half->holding;
}

/* ---- what the case tells -------------------------------------------------------------------------- */

static int64_t await_answer(int fd) {
    char bytes[16384];
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    if (poll(&entry, 1, DELIVERY_MS) != 1) {
        return -1;
    }
    ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    return n < 0 ? 0 : n;
}

static int64_t deliver(int afresh) {
    for (int i = 0; i < LINKS_MAX; i++) {
        link_t *link = &links[i];
        if (link->fd[0] < 0 || link->held_len == 0) {
            continue;
        }
        int fd = afresh ? connect_server() : link->fd[1];
        int64_t answered = 0;
        if (send(fd, link->held, link->held_len, MSG_NOSIGNAL) == (ssize_t)link->held_len) {
            answered = await_answer(fd);
        }
        if (afresh) {
            close(fd);
        } else {
            end_link(link, 0);
        }
        return answered;
    }
    return -1; /* nothing is held */
}

static int64_t set_listening(int refuse) {
    if (refuse && listening >= 0) {
        close(listening);
        listening = -1;
    } else if (!refuse && listening < 0) {
        listening = proxy_listen(&own_port);
    }
    return refuse || listening >= 0 ? 0 : -1;
}

static void inject(const proxy_command_t *command) {
    for (int i = 0; i < LINKS_MAX; i++) {
        if (links[i].fd[0] >= 0) {
            append(&links[i].half[1], 1, command->bytes, command->len);
            write_side(&links[i], 1);
        }
    }
}

static int64_t obey(const proxy_command_t *command) {
    switch (command->op) {
    case PROXY_OP_DELAY:
        for (int way = 0; way < 2; way++) {
            delay_ms[way] = command->way >> way & 1 ? command->number : delay_ms[way];
        }
        return 0;
    case PROXY_OP_SWALLOW:
        deaf_ways = command->way;
        for (int i = 0; i < LINKS_MAX; i++) {
            links[i].half[0].deaf |= deaf_ways & 1;
            links[i].half[1].deaf |= deaf_ways >> 1 & 1;
        }
        return 0;
    case PROXY_OP_REFUSE:
        return set_listening((int)command->number);
    case PROXY_OP_CUT:
    case PROXY_OP_RESET:
        end_links(command->op == PROXY_OP_RESET);
        return 0;
    case PROXY_OP_INJECT:
        inject(command);
        return 0;
    case PROXY_OP_COUNT:
        return 0;
    case PROXY_OP_PLAN:
        plan = *command;
        planned = NULL;
        return 0;
    case PROXY_OP_DELIVER:
        return deliver((int)command->number);
    }
    return -1;
}

/* ---- the loop --------------------------------------------------------------------------------------- */

/* Fills in what to poll for; returns when something is due. */
static int64_t wants(struct pollfd *fds) {
    int64_t next_ms = INT64_MAX, now = now_ms();
    for (int i = 0; i < LINKS_MAX; i++) {
        link_t *link = &links[i];
        for (int side = 0; side < 2; side++) {
            const half_t *in = &link->half[side], *out = &link->half[!side];
            struct pollfd *fd = &fds[2 * i + side];
            *fd = (struct pollfd){.fd = -1};
            if (link->fd[0] < 0) {
                continue;
            }
            int reads = !in->ended && in->piece_count < PIECES_MAX - 2 && in->len < BYTES_MAX / 2;
            int writes = out->piece_count > 0 && out->pieces[0].due_ms <= now;
            fd->events = (short)((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
            fd->fd = fd->events != 0 ? link->fd[side] : -1;
            if (out->piece_count > 0 && out->pieces[0].due_ms > now && out->pieces[0].due_ms < next_ms) {
                next_ms = out->pieces[0].due_ms;
            }
        }
    }
    return next_ms;
}

static void serve_link(link_t *link, const struct pollfd *fds) {
    for (int side = 0; side < 2 && link->fd[0] >= 0; side++) {
        if (fds[side].revents & (POLLIN | POLLHUP | POLLERR) && !link->half[side].ended) {
            read_side(link, side);
        }
    }
    for (int way = 0; way < 2 && link->fd[0] >= 0; way++) {
        write_side(link, way);
    }
    if (link->fd[0] >= 0 && !link->half[0].holding && (is_over(&link->half[0]) || is_over(&link->half[1]))) {
        end_link(link, 0);
    }
}

void proxy_loop(int control, int listener, int own, int port) {
    listening = listener;
    own_port = own;
    server_port = port;
    links = mmap(NULL, LINKS_MAX * sizeof *links, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (links == MAP_FAILED) {
        _exit(1);
    }
    for (int i = 0; i < LINKS_MAX; i++) {
        links[i].fd[0] = -1;
    }
    for (;;) {
        static struct pollfd fds[2 * LINKS_MAX + 2];
        int64_t due_ms = wants(fds), wait_ms = due_ms == INT64_MAX ? -1 : due_ms - now_ms();
        fds[2 * LINKS_MAX] = (struct pollfd){.fd = listening, .events = POLLIN};
        fds[2 * LINKS_MAX + 1] = (struct pollfd){.fd = control, .events = POLLIN};
        (void)poll(fds, 2 * LINKS_MAX + 2, wait_ms < -1 ? 0 : (int)wait_ms);
        for (int i = 0; i < LINKS_MAX; i++) {
            if (links[i].fd[0] >= 0) {
                serve_link(&links[i], &fds[2 * i]);
            }
        }
        if (fds[2 * LINKS_MAX].revents & POLLIN) {
            accept_one();
        }
        if (fds[2 * LINKS_MAX + 1].revents != 0) {
            proxy_command_t command;
            if (recv(control, &command, sizeof command, 0) != (ssize_t)sizeof command) {
                _exit(0);
            }
            proxy_answer_t answer = {.result = obey(&command)};
            answer.counts = counts;
            (void)send(control, &answer, sizeof answer, MSG_NOSIGNAL);
        }
    }
}
