/* proxy.c - the case's side of the proxy: starts its process and tells it what to do. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/alloc_fail.h"
#include "support/ct.h"
#include "support/port.h"
#include "support/proxy_loop.h"

#define ANSWER_MS 10000

struct proxy {
    pid_t pid;
    int control, port, port_keeper;
    char url[64];
};

int proxy_listen(int *port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)*port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(fd, (struct sockaddr *)&address, len) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0) {
        close(fd);
        return -1;
    }
    *port = ntohs(address.sin_port);
    return fd;
}

proxy_t *proxy_start(ct_t *ct, int port) {
    proxy_t *proxy = alloc_real(sizeof *proxy);
    proxy->port = port_take(&proxy->port_keeper); /* also while it refuses connections */
    CT_GT(proxy->port, 0);
    int fds[2], listener = proxy_listen(&proxy->port);
    CT_GE(listener, 0);
    CT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    pid_t parent = getpid();
    proxy->pid = fork();
    CT_CHECKF(proxy->pid >= 0, "fork failed: errno %d", errno);
    if (proxy->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(1);
        }
        /* Descriptors of the clients must not stay open here. */
        if (dup2(fds[1], 0) != 0 || dup2(listener, 1) != 1) {
            _exit(1);
        }
        close_range(3, ~0u, 0);
        proxy_loop(0, 1, proxy->port, port);
    }
    close(fds[1]);
    close(listener);
    proxy->control = fds[0];
    snprintf(proxy->url, sizeof proxy->url, "url: \"redis://127.0.0.1:%d/0\"", proxy->port);
    return proxy;
}

void proxy_stop(ct_t *ct, proxy_t *proxy) {
    if (proxy == NULL) {
        return;
    }
    CT_EQ(kill(proxy->pid, SIGKILL), 0);
    CT_EQ(waitpid(proxy->pid, NULL, 0), proxy->pid);
    close(proxy->control);
    close(proxy->port_keeper);
    alloc_real_free(proxy);
}

int proxy_port(const proxy_t *proxy) {
    return proxy->port;
}

const char *proxy_url(const proxy_t *proxy) {
    return proxy->url;
}

static proxy_answer_t tell(ct_t *ct, proxy_t *proxy, const proxy_command_t *command) {
    proxy_answer_t answer = {.result = -1};
    CT_CHECKF(send(proxy->control, command, sizeof *command, MSG_NOSIGNAL) == (ssize_t)sizeof *command,
              "the proxy has ended");
    struct pollfd fd = {.fd = proxy->control, .events = POLLIN};
    int rc;
    do {
        rc = poll(&fd, 1, ANSWER_MS * ct->time_scale);
    } while (rc < 0 && errno == EINTR);
    CT_CHECKF(rc == 1 && recv(proxy->control, &answer, sizeof answer, 0) == (ssize_t)sizeof answer,
              "the proxy does not answer");
    CT_CHECKF(answer.result >= 0, "the proxy cannot do it");
    return answer;
}

static int64_t tell_op(ct_t *ct, proxy_t *proxy, proxy_op_t op, int way, int64_t number) {
    proxy_command_t command = {.op = op, .way = way, .number = number};
    return tell(ct, proxy, &command).result;
}

void proxy_delay(ct_t *ct, proxy_t *proxy, proxy_way_t way, int64_t ms) {
    tell_op(ct, proxy, PROXY_OP_DELAY, (int)way, ms);
}

void proxy_swallow(ct_t *ct, proxy_t *proxy, int ways) {
    tell_op(ct, proxy, PROXY_OP_SWALLOW, ways, 0);
}

void proxy_refuse(ct_t *ct, proxy_t *proxy, int refuse) {
    tell_op(ct, proxy, PROXY_OP_REFUSE, 0, refuse);
}

void proxy_cut(ct_t *ct, proxy_t *proxy) {
    tell_op(ct, proxy, PROXY_OP_CUT, 0, 0);
}

void proxy_reset(ct_t *ct, proxy_t *proxy) {
    tell_op(ct, proxy, PROXY_OP_RESET, 0, 0);
}

void proxy_inject(ct_t *ct, proxy_t *proxy, const char *bytes, size_t len) {
    proxy_command_t command = {.op = PROXY_OP_INJECT, .len = len};
    CT_LE(len, sizeof command.bytes);
    memcpy(command.bytes, bytes, len);
    tell(ct, proxy, &command);
}

proxy_counts_t proxy_counts(ct_t *ct, proxy_t *proxy) {
    proxy_command_t command = {.op = PROXY_OP_COUNT};
    return tell(ct, proxy, &command).counts;
}

void proxy_plan(ct_t *ct, proxy_t *proxy, const proxy_plan_t *plan) {
    proxy_command_t command = {.op = PROXY_OP_PLAN,
                               .way = (int)plan->way,
                               .act = (int)plan->act,
                               .after = plan->after,
                               .len = plan->len};
    const char *request = plan->request == NULL ? "" : plan->request;
    CT_CHECK(plan->way == PROXY_REQUESTS || plan->way == PROXY_REPLIES);
    CT_LT(strlen(request), sizeof command.request);
    CT_LT(plan->len, sizeof command.bytes);
    strcpy(command.request, request);
    if (plan->len > 0) {
        memcpy(command.bytes, plan->bytes, plan->len);
    }
    tell(ct, proxy, &command);
}

void proxy_await_act(ct_t *ct, proxy_t *proxy, int n, int64_t within_ms) {
    CT_AWAIT_THAT(proxy_counts(ct, proxy).acts, >=, n, within_ms);
}

int64_t proxy_deliver(ct_t *ct, proxy_t *proxy, int afresh) {
    return tell_op(ct, proxy, PROXY_OP_DELIVER, 0, afresh);
}
