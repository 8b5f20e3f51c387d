/* terminal.c - whose turn it is to read from the terminal, and what it can show. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "terminal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

int terminal_open(void) {
    return open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
}

bool terminal_is_ours(int terminal) {
    return terminal >= 0 && tcgetpgrp(terminal) == getpgrp();
}

bool terminal_is_for_command(int terminal) {
    /* Only a job of its own in a shell: others of our group, such as the shell of a script or the pager
     * at the end of a pipeline, would find themselves in the background. They keep the terminal; a
     * command that wants it all the same is stopped by the kernel, and then gets it. */
    struct stat out;
    bool piped = fstat(STDOUT_FILENO, &out) == 0 && (S_ISFIFO(out.st_mode) || S_ISSOCK(out.st_mode));
    return terminal_is_ours(terminal) && getpgrp() == getpid() && isatty(STDIN_FILENO) && !piped;
}

void terminal_give(int terminal, pid_t group) {
    if (terminal >= 0) {
        (void)tcsetpgrp(terminal, group); /* fails when the group has just gone; then nobody needs it */
    }
}

bool terminal_take_back(int terminal, pid_t group) {
    return terminal >= 0 && tcgetpgrp(terminal) == group && tcsetpgrp(terminal, getpgrp()) == 0;
}

int terminal_width(int fd) {
    if (isatty(fd) != 1) {
        return 0;
    }
    const char *asked = getenv("COLUMNS");
    int columns = asked != NULL ? atoi(asked) : 0;
    struct winsize size;
    if (columns <= 0 && ioctl(fd, TIOCGWINSZ, &size) == 0) {
        columns = size.ws_col;
    }
    return columns > 0 ? columns : 80; /* a terminal that does not say, such as a serial line */
}

bool terminal_has_colour(int fd) {
    const char *refused = getenv("NO_COLOR"); /* whatever it says: https://no-color.org */
    const char *kind = getenv("TERM");
    return (refused == NULL || refused[0] == '\0') && kind != NULL && kind[0] != '\0' &&
           strcmp(kind, "dumb") != 0 && isatty(fd) == 1;
}
