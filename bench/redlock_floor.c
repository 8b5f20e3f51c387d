/* redlock_floor.c - what redlock says to its nodes, said again by bare sockets in one poll loop. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redlock_floor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "redis.h"

#define NODES_MAX 5
#define LEASE_MS "1000"
#define QUARANTINE_MS "1013" /* which the driver derives from a max_lease of 1 s */
#define TOKEN_KEY "dlock_tokens"
#define MARKER_KEY TOKEN_KEY ":node"
#define QUARANTINE_KEY TOKEN_KEY ":quarantine"

typedef struct node {
    int fd;
    redisReader *reader;
    char run_id[41];
    unsigned owed;            /* replies that are to come; the last is that to what is asked now */
    unsigned long long token; /* that it drew for this claim; 0: not heard */
} node_t;

struct bare_nodes {
    node_t nodes[NODES_MAX];
    int n, fences;
    char acquire[41], raise[41], release[41]; /* what EVALSHA names the scripts by */
    char key[48], channel[96], owner[48];
    unsigned long long hold_id, token, sent;
    int is_claim; /* it is the claims that are asked for now */
    int answers;  /* to what is asked now */
};

/* ---- a connection ------------------------------------------------------------------------------------ */

static void send_bytes(const node_t *node, const char *bytes, size_t len) {
    if (send(node->fd, bytes, len, MSG_NOSIGNAL) != (ssize_t)len) {
        die("a bare socket takes no more", NULL);
    }
}

static void receive(const node_t *node) {
    char bytes[16384];
    ssize_t n = recv(node->fd, bytes, sizeof bytes, 0);
    if (n <= 0 || redisReaderFeed(node->reader, bytes, (size_t)n) != REDIS_OK) {
        die("a bare socket cannot be read", NULL);
    }
}

/* NULL: none is complete. */
static redisReply *next_reply(const node_t *node) {
    void *reply;
    if (redisReaderGetReply(node->reader, &reply) != REDIS_OK) {
        die("a bare reply makes no sense", NULL);
    }
    return reply;
}

/* While the socket blocks. */
static redisReply *ask(const node_t *node, const char *command, const char *arg) {
    char *bytes;
    redisReply *reply;
    int len = redisFormatCommand(&bytes, command, arg);
    if (len < 0) {
        die("out of memory", NULL);
    }
    send_bytes(node, bytes, (size_t)len);
    redisFreeCommand(bytes);
    while ((reply = next_reply(node)) == NULL) {
        receive(node);
    }
    return reply;
}

/* The 40 characters behind this word. */
static void ask_text(const node_t *node, const char *command, const char *arg, const char *word,
                     char text[41]) {
    redisReply *reply = ask(node, command, arg);
    const char *at = reply->type == REDIS_REPLY_STRING ? strstr(reply->str, word) : NULL;
    if (at == NULL) {
        die(command, NULL);
    }
    (void)snprintf(text, 41, "%.40s", at + strlen(word));
    freeReplyObject(reply);
}

static void await_key(const node_t *node, const char *key, long long exists) {
    redisReply *reply = ask(node, "EXISTS %s", key);
    while (reply->type == REDIS_REPLY_INTEGER && reply->integer != exists) {
        freeReplyObject(reply);
        (void)poll(NULL, 0, 10);
        reply = ask(node, "EXISTS %s", key);
    }
    freeReplyObject(reply);
}

static void open_node(bare_nodes_t *bare, node_t *node, int port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int on = 1;
    node->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    node->reader = redisReaderCreate();
    if (node->fd < 0 || node->reader == NULL ||
        connect(node->fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        setsockopt(node->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
        die("connect", NULL);
    }
    ask_text(node, "SCRIPT LOAD %s", redlock_scripts.acquire, "", bare->acquire);
    ask_text(node, "SCRIPT LOAD %s", redlock_scripts.raise, "", bare->raise);
    ask_text(node, "SCRIPT LOAD %s", redlock_scripts.release, "", bare->release);
    ask_text(node, "INFO %s", "server", "run_id:", node->run_id);
    /* A fresh node has its vote once the quarantine that a first claim began is over. */
    await_key(node, MARKER_KEY, 1);
    await_key(node, QUARANTINE_KEY, 0);
    if (fcntl(node->fd, F_SETFL, O_NONBLOCK) != 0) {
        die("fcntl", NULL);
    }
}

bare_nodes_t *bare_nodes_open(const int *ports, int n, int fences, const char *name) {
    bare_nodes_t *bare = calloc(1, sizeof *bare);
    if (bare == NULL || n > NODES_MAX) {
        die("out of memory, or many nodes", NULL);
    }
    bare->n = n;
    bare->fences = fences;
    /* As long as the driver's. */
    (void)snprintf(bare->key, sizeof bare->key, "floor:%s", name);
    (void)snprintf(bare->channel, sizeof bare->channel, "floor:released:%s", bare->key);
    (void)snprintf(bare->owner, sizeof bare->owner, "00000000-0000-4000-8000-%012d:1", (int)getpid());
    for (int i = 0; i < n; i++) {
        open_node(bare, &bare->nodes[i], ports[i]);
    }
    return bare;
}

unsigned long long bare_nodes_sent(const bare_nodes_t *bare) {
    return bare->sent;
}

void bare_nodes_close(bare_nodes_t *bare) {
    for (int i = 0; i < bare->n; i++) {
        close(bare->nodes[i].fd);
        redisReaderFree(bare->nodes[i].reader);
    }
    free(bare);
}

/* ---- asking all -------------------------------------------------------------------------------------- */

static char *format(int argc, const char **argv, size_t *len) {
    char *bytes;
    long long n = redisFormatCommandArgv(&bytes, argc, argv, NULL);
    if (n < 0) {
        die("out of memory", NULL);
    }
    *len = (size_t)n;
    return bytes;
}

static void ask_node(bare_nodes_t *bare, node_t *node, const char *bytes, size_t len) {
    send_bytes(node, bytes, len);
    node->owed++;
    bare->sent++;
}

/* Whatever comes, each reply of a connection is the one to its oldest request. */
static void hear(bare_nodes_t *bare, node_t *node, const redisReply *reply) {
    if (reply->type != REDIS_REPLY_INTEGER || reply->integer < 1) {
        die(reply->type == REDIS_REPLY_ERROR ? reply->str : "a node has no vote, or the lock was lost", NULL);
    }
    if (--node->owed > 0) {
        return; /* late */
    }
    node->token = bare->is_claim ? (unsigned long long)reply->integer : node->token;
    bare->answers++;
}

/* Reads what has come until a majority has answered. */
static void await_majority(bare_nodes_t *bare) {
    struct pollfd fds[NODES_MAX];
    redisReply *reply;
    for (int i = 0; i < bare->n; i++) {
        fds[i] = (struct pollfd){.fd = bare->nodes[i].fd, .events = POLLIN};
    }
    while (bare->answers <= bare->n / 2) {
        if (poll(fds, (nfds_t)bare->n, -1) < 0) {
            die("poll", NULL);
        }
        for (int i = 0; i < bare->n; i++) {
            if (fds[i].revents == 0) {
                continue;
            }
            receive(&bare->nodes[i]);
            while ((reply = next_reply(&bare->nodes[i])) != NULL) {
                hear(bare, &bare->nodes[i], reply);
                freeReplyObject(reply);
            }
        }
    }
}

/* ---- the pair ---------------------------------------------------------------------------------------- */

static void claim(bare_nodes_t *bare) {
    char hold_id[24], floor[24];
    (void)snprintf(hold_id, sizeof hold_id, "%llu", ++bare->hold_id);
    (void)snprintf(floor, sizeof floor, "%llu", bare->token);
    bare->answers = 0;
    bare->is_claim = 1;
    for (int i = 0; i < bare->n; i++) {
        node_t *node = &bare->nodes[i];
        const char *argv[] = {"EVALSHA",
                              bare->acquire,
                              "4",
                              bare->key,
                              TOKEN_KEY,
                              MARKER_KEY,
                              QUARANTINE_KEY,
                              bare->owner,
                              hold_id,
                              LEASE_MS,
                              bare->fences ? "1" : "0",
                              floor,
                              node->run_id,
                              "0",
                              QUARANTINE_MS};
        size_t len;
        char *bytes = format(sizeof argv / sizeof argv[0], argv, &len);
        node->token = 0;
        ask_node(bare, node, bytes, len);
        redisFreeCommand(bytes);
    }
}

/* The largest token goes to the nodes that have not drawn it. */
static void raise_tokens(bare_nodes_t *bare) {
    char token[24];
    size_t len;
    for (int i = 0; i < bare->n; i++) {
        bare->token = bare->nodes[i].token > bare->token ? bare->nodes[i].token : bare->token;
    }
    (void)snprintf(token, sizeof token, "%llu", bare->token);
    const char *argv[] = {"EVALSHA", bare->raise, "1", TOKEN_KEY, token};
    char *bytes = format(sizeof argv / sizeof argv[0], argv, &len);
    bare->answers = 0;
    bare->is_claim = 0;
    for (int i = 0; i < bare->n; i++) {
        bare->answers += bare->nodes[i].token == bare->token;
    }
    for (int i = 0; i < bare->n && bare->answers <= bare->n / 2; i++) {
        if (bare->nodes[i].token != bare->token) {
            ask_node(bare, &bare->nodes[i], bytes, len);
        }
    }
    redisFreeCommand(bytes);
}

void bare_nodes_acquire(bare_nodes_t *bare) {
    claim(bare);
    await_majority(bare);
    if (bare->fences) {
        raise_tokens(bare);
        await_majority(bare);
    }
}

void bare_nodes_release(bare_nodes_t *bare) {
    char hold_id[24];
    size_t len;
    (void)snprintf(hold_id, sizeof hold_id, "%llu", bare->hold_id);
    const char *argv[] = {"EVALSHA", bare->release, "1", bare->key, bare->owner, hold_id, bare->channel};
    char *bytes = format(sizeof argv / sizeof argv[0], argv, &len);
    bare->answers = 0;
    bare->is_claim = 0;
    for (int i = 0; i < bare->n; i++) {
        ask_node(bare, &bare->nodes[i], bytes, len);
    }
    redisFreeCommand(bytes);
    await_majority(bare);
}
