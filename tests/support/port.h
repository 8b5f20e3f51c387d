/* port.h - a port of 127.0.0.1 that stays one's own. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PORT_H
#define PORT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * A free one, kept by a socket until that is closed; -1: there is none. Who sets SO_REUSEADDR can listen
 * there, as servers do, and again after being killed. Meanwhile connections are refused, and nobody else is
 * given the port: the server of another test would answer there in the place of one that is down.
 */
static inline int port_take(int *keeper) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0) {
        close(fd);
        return -1;
    }
    *keeper = fd;
    return ntohs(address.sin_port);
}

/* The same until this process ends. */
static inline int port_keep(void) {
    int keeper;
    return port_take(&keeper);
}

#endif
