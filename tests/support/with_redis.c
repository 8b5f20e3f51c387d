/* with_redis.c - runs a command with some independent Redis servers, the nodes of redlock. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/ct.h"
#include "support/redlock_nodes.h"
#include "support/scratch.h"

/*
 * usage: with_redis N COMMAND [ARG]...
 * The command finds them in the environment: DLOCK_TEST_REDIS_1 to _N are their URLs, DLOCK_TEST_REDIS_NODES
 * all of them as a list of YAML. They are marked, so that they have a vote at once. Exit status: the
 * command's; 77: there is no redis-server. The servers end with this program, however that ends.
 */

static void export_nodes(const redlock_nodes_t *nodes) {
    char name[48], text[512];
    for (size_t i = 0; i < nodes->n; i++) {
        snprintf(name, sizeof name, "DLOCK_TEST_REDIS_%zu", i + 1);
        snprintf(text, sizeof text, "redis://127.0.0.1:%d/0", nodes->at[i]->port);
        setenv(name, text, 1);
    }
    redlock_nodes_line(nodes, text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    setenv("DLOCK_TEST_REDIS_NODES", strchr(text, '['), 1);
}

static void become(char **command, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent) {
        execvp(command[0], command);
        fprintf(stderr, "with_redis: cannot run %s: %s\n", command[0], strerror(errno));
    }
    _exit(127);
}

static int is_there(const char *program) {
    char line[256];
    snprintf(line, sizeof line, "command -v '%s' >/dev/null", program);
    return system(line) == 0;
}

int main(int argc, char **argv) {
    int n = argc < 3 ? 0 : atoi(argv[1]);
    if (n < 1 || n > REDLOCK_NODES_MAX) {
        fprintf(stderr, "usage: with_redis N COMMAND [ARG]...   N: 1 to %d\n", REDLOCK_NODES_MAX);
        return 2;
    }
    const char *program = getenv("DLOCK_REDIS_SERVER");
    if (!is_there(program == NULL ? "redis-server" : program)) {
        puts("redis-server is missing");
        return 77;
    }
    char dir[REDIS_PATH_MAX];
    redlock_nodes_t nodes;
    if (!scratch_make("nodes", dir, sizeof dir)) {
        perror("a folder for the servers");
        return 2;
    }
    redlock_nodes_start(&nodes, dir, (size_t)n, 0);
    export_nodes(&nodes);
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) {
        perror("fork");
        return 2;
    }
    if (pid == 0) {
        become(argv + 2, parent);
    }
    /* Who wants an end of this wants the command to end, and it tells how it ended. */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    redlock_nodes_stop(&nodes);
    scratch_remove(dir);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
