/* command_screen.c - runs the built dlock command on a terminal. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "command_screen.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <pty.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void screen_start(screen_t *screen, int columns, ...) {
    static char command[] = DLOCK_COMMAND;
    static char option[] = "--config";
    char *words[32] = {command, option, config_path};
    va_list args;
    va_start(args, columns);
    for (size_t at = 3; (words[at] = va_arg(args, char *)) != NULL; at++) {
        cr_assert_lt(at, 31u);
    }
    va_end(args);
    *screen = (screen_t){.fd = -1};
    struct winsize size = {.ws_row = 25, .ws_col = (unsigned short)columns};
    screen->pid = forkpty(&screen->fd, NULL, NULL, &size);
    if (screen->pid < 0) {
        cr_skip("no pseudo terminals here"); /* a bare chroot without /dev/pts */
    }
    if (screen->pid == 0) {
        (void)execv(words[0], words);
        _exit(99);
    }
}

bool screen_read(screen_t *screen) {
    struct pollfd ready = {.fd = screen->fd, .events = POLLIN};
    cr_assert_eq(poll(&ready, 1, PATIENCE_MS), 1, "nothing more comes: %s", screen->text);
    char bytes[1024];
    ssize_t got = read(screen->fd, bytes, sizeof bytes); /* EIO: nobody has the terminal any more */
    for (ssize_t i = 0; i < got; i++) {
        if (bytes[i] != '\r') {
            cr_assert_lt(screen->len, sizeof screen->text - 1);
            screen->text[screen->len++] = bytes[i];
        }
    }
    return got > 0;
}

void screen_read_until(screen_t *screen, const char *words) {
    while (strstr(screen->text, words) == NULL) {
        cr_assert(screen_read(screen), "'%s' does not come: %s", words, screen->text);
    }
}

int screen_end(screen_t *screen) {
    while (screen_read(screen)) {}
    int status;
    cr_assert_eq(waitpid(screen->pid, &status, 0), screen->pid);
    (void)close(screen->fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}
