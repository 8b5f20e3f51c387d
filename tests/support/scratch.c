/* scratch.c - makes temporary folders, and starts what removes them. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/scratch.h"

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SCRATCH "DLOCK_TEST_SCRATCH"

/* The child: nothing but system calls until the program is another. */
static void become_sweeper(int out, const char *parent) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGTERM, SIG_DFL);
    (void)setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (dup2(out, 1) == 1) {
        close_range(3, ~0u, 0);
        execl(DLOCK_TEST_SWEEP, "sweep", parent, (char *)NULL);
    }
    _exit(127);
}

/* The folder of the run, and at the first call what removes it. */
static const char *make_base(void) {
    static char base[256];
    char parent[16];
    int fds[2];
    size_t len = 0;
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    if (pipe(fds) != 0) {
        return NULL;
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        become_sweeper(fds[1], parent);
    }
    close(fds[1]);
    for (ssize_t n = 1; pid > 0 && n > 0 && len < sizeof base - 1 && memchr(base, '\n', len) == NULL;) {
        n = read(fds[0], base + len, sizeof base - 1 - len);
        len += n > 0 ? (size_t)n : 0;
    }
    close(fds[0]);
    char *end = memchr(base, '\n', len);
    if (end == NULL) {
        errno = ENOTDIR;
        return NULL;
    }
    *end = 0;
    setenv(SCRATCH, base, 1);
    setenv("TMPDIR", base, 1);
    return base;
}

bool scratch_make(const char *name, char *path, size_t size) {
    const char *base = getenv(SCRATCH);
    base = base != NULL ? base : make_base();
    if (base == NULL) {
        return false;
    }
    if ((size_t)snprintf(path, size, "%s/%s-XXXXXX", base, name) >= size) {
        errno = ENAMETOOLONG;
        return false;
    }
    return mkdtemp(path) != NULL;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where) {
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

void scratch_remove(const char *path) {
    (void)nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}
