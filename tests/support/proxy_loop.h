/* proxy_loop.h - what the proxy's two processes say to each other. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROXY_LOOP_H
#define PROXY_LOOP_H

#include "support/proxy.h"

typedef enum proxy_op {
    PROXY_OP_DELAY = 1,
    PROXY_OP_SWALLOW,
    PROXY_OP_REFUSE,
    PROXY_OP_CUT,
    PROXY_OP_RESET,
    PROXY_OP_INJECT,
    PROXY_OP_COUNT,
    PROXY_OP_PLAN,
    PROXY_OP_DELIVER
} proxy_op_t;

/* One packet each. */
typedef struct proxy_command {
    proxy_op_t op;
    int way, act;
    int64_t number;
    size_t after, len;
    char request[64]; /* "": any */
    char bytes[256];
} proxy_command_t;

typedef struct proxy_answer {
    int64_t result; /* negative: it cannot be done */
    proxy_counts_t counts;
} proxy_answer_t;

/* The child: never returns. `listener` listens on port `own`, the server on `port`, both of 127.0.0.1. */
void proxy_loop(int control, int listener, int own, int port) __attribute__((noreturn));
/* A socket that listens on this port (0: any, then *port is set); -1. */
int proxy_listen(int *port);

#endif
