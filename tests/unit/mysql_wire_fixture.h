/* mysql_wire_fixture.h - a relay that answers in the server's place, cuts its answers and hangs up. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_WIRE_FIXTURE_H
#define MYSQL_WIRE_FIXTURE_H

#include "mysql_conn_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>

typedef enum wire_act {
    WIRE_PASS,
    WIRE_ANSWER, /* the server does not get it; `bytes` are the answer */
    WIRE_CUT,    /* of the answer only the first `after` bytes come, and nothing ever again */
    WIRE_HANG_UP /* the same, and then it hangs up */
} wire_act_t;

/* What happens to the first request that contains `text`. One connection at a time. */
static struct {
    pthread_mutex_t mutex;
    pthread_t thread;
    int listener, client, behind, port;
    bool is_over, has_met; /* the request has come */
    const char *text;
    wire_act_t act;
    size_t after, len, heard;
    const char *bytes;
    unsigned char said[256]; /* by the client since */
} wire = {.mutex = PTHREAD_MUTEX_INITIALIZER, .client = -1, .behind = -1};

static inline void wire_end(void) {
    if (wire.client >= 0) {
        close(wire.client);
        close(wire.behind);
    }
    wire.client = wire.behind = -1;
}

static inline void wire_begin(void) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)server->port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int client = accept4(wire.listener, NULL, NULL, SOCK_CLOEXEC);
    wire_end();
    wire.client = client;
    wire.behind = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(wire.behind, (struct sockaddr *)&address, sizeof address), 0);
}

static inline void wire_pass(int to, const char *bytes, size_t len) {
    if (send(to, bytes, len, MSG_NOSIGNAL) != (ssize_t)len) {
        wire_end();
    }
}

static inline void wire_requests(const char *bytes, size_t len) {
    if (wire.act != WIRE_PASS && wire.has_met) {
        size_t n = len < sizeof wire.said - wire.heard ? len : sizeof wire.said - wire.heard;
        memcpy(wire.said + wire.heard, bytes, n);
        wire.heard += n;
    }
    if (wire.act != WIRE_PASS && !wire.has_met && memmem(bytes, len, wire.text, strlen(wire.text)) != NULL) {
        wire.has_met = true;
        if (wire.act == WIRE_ANSWER) {
            wire_pass(wire.client, wire.bytes, wire.len);
            return;
        }
    }
    if (wire.act != WIRE_ANSWER || !wire.has_met) {
        wire_pass(wire.behind, bytes, len);
    }
}

static inline void wire_replies(const char *bytes, size_t len) {
    if (wire.act != WIRE_CUT && wire.act != WIRE_HANG_UP) {
        wire_pass(wire.client, bytes, len);
        return;
    }
    size_t n = !wire.has_met || len < wire.after ? len : wire.after;
    wire_pass(wire.client, bytes, n);
    wire.after -= wire.has_met ? n : 0;
    if (wire.has_met && wire.after == 0 && wire.act == WIRE_HANG_UP) {
        wire_end();
    }
}

static inline void *wire_run(void *arg) {
    char bytes[65536];
    (void)arg;
    for (;;) {
        struct pollfd fds[] = {{.fd = wire.listener, .events = POLLIN},
                               {.fd = wire.client, .events = POLLIN},
                               {.fd = wire.behind, .events = POLLIN}};
        (void)poll(fds, 3, 1);
        pthread_mutex_lock(&wire.mutex);
        bool is_over = wire.is_over;
        for (int i = 1; i <= 2 && !is_over; i++) {
            ssize_t n = fds[i].revents != 0 && wire.client >= 0 ? read(fds[i].fd, bytes, sizeof bytes) : -2;
            if (n > 0) {
                (i == 1 ? wire_requests : wire_replies)(bytes, (size_t)n);
            } else if (n != -2) {
                wire_end();
            }
        }
        if (!is_over && fds[0].revents != 0) {
            wire_begin();
        }
        pthread_mutex_unlock(&wire.mutex);
        if (is_over) {
            return NULL;
        }
    }
}

/* Before the server; parts leads to it. */
static inline void set_up_wire(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    set_up();
    wire.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(wire.listener, (struct sockaddr *)&address, len), 0);
    cr_assert_eq(listen(wire.listener, 8), 0);
    cr_assert_eq(getsockname(wire.listener, (struct sockaddr *)&address, &len), 0);
    wire.port = ntohs(address.sin_port);
    parts.port = wire.port;
    parts.tls = "off";
    cr_assert_eq(pthread_create(&wire.thread, NULL, wire_run, NULL), 0);
}

static inline void tear_down_wire(void) {
    pthread_mutex_lock(&wire.mutex);
    wire.is_over = true;
    pthread_mutex_unlock(&wire.mutex);
    pthread_join(wire.thread, NULL);
    wire_end();
    close(wire.listener);
    tear_down();
}

static inline void wire_plan(const char *text, wire_act_t act, size_t after, const char *bytes, size_t len) {
    pthread_mutex_lock(&wire.mutex);
    wire.text = text;
    wire.act = act;
    wire.after = after;
    wire.bytes = bytes;
    wire.len = len;
    wire.has_met = false;
    wire.heard = 0;
    pthread_mutex_unlock(&wire.mutex);
}

/* What nobody has asked for. */
static inline void wire_say(const char *bytes, size_t len) {
    pthread_mutex_lock(&wire.mutex);
    wire_pass(wire.client, bytes, len);
    pthread_mutex_unlock(&wire.mutex);
}

#endif
