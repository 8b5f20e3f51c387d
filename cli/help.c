/* help.c - dlock help: a page for each subcommand, made from the tables. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "report.h"
#include "terminal.h"
#include "text.h"

static const char run_text[] =
    "\n"
    "Waits for the lock, runs the command, ends every process that it has started\n"
    "and left behind (dlock(1) names the exceptions), and frees the lock. The command\n"
    "has DLOCK_NAME and DLOCK_TOKEN in its environment. Should the lock be lost, the\n"
    "command and all that it has started are ended before it is.\n"
    "\n"
    "Exit status: the command's own (128 + N when signal N ended it), or\n"
    "   75  the lock was not obtained in time\n"
    "   76  the lock was lost, or could not be kept, and the command was ended\n"
    "  126  the command cannot be executed\n"
    "  127  there is no such command\n"
    "   64  wrong usage     69  server not reachable\n"
    "   77  no permission   78  wrong configuration\n"
    "\n"
    "Example, a line of a crontab that skips a turn while the last one still runs:\n"
    "  */5 * * * *  dlock run backup --wait 0 --quiet -- /usr/local/bin/backup\n";

static const char status_text[] =
    "\nExit status: 0; with --quiet 0 when the lock is held and 1 when it is free.\n";
static const char list_text[] = "\nExit status: 0; with --quiet 0 when a lock is held and 1 when none is.\n";
static const char unlock_text[] =
    "\n"
    "The holder learns of it as a loss, at its next renewal. With an explicit lease,\n"
    "which has none, it learns when it unlocks or extends, or when validity ends; on\n"
    "mysql-pessimistic at once.\n"
    "\n"
    "Exit status: 0 when the lock was freed, 1 when nobody held it.\n";
static const char check_text[] = "\nExit status: 0, or 1 when an error was found.\n";
static const char backends_text[] = "\nThe backend that is used by default is marked with a star.\n";

static const char compare_text[] =
    "\n"
    "Runs the same workload on all backends of the configuration, or on those that\n"
    "are named, one after the other. Threads of several processes each choose a name\n"
    "at random, wait for its lock, hold it and free it, until the time is over. The\n"
    "locks are called dlock.compare.RANDOM.N. It loads each server as much as the\n"
    "server allows: not for one that others need at the time.\n"
    "\n"
    "  acq/s       acquisitions a second, of all threads and names together\n"
    "  wait        from the lock call to its return with the lock; half of all are\n"
    "              shorter than p50, 99 % than p99, within 1 %. Waits that the end\n"
    "              cuts off do not count\n"
    "  hand-off    when others were waiting: from the beginning of the unlock call\n"
    "              to the return of the next owner's lock call, whether in the same\n"
    "              process or another\n"
    "  fairness    Jain's index of the threads' acquisitions: 1 is equal shares, 1/N\n"
    "              all for one of N\n"
    "  trips/pair  exchanges with the server for each acquisition, as the driver\n"
    "              counts them: tries that found the lock taken and renewals too\n"
    "  violations  two valid holders of one name at once, tokens that do not rise,\n"
    "              updates of a plain counter that got lost. 0 says that none was\n"
    "              seen, not that none can be\n"
    "\n"
    "All of it is this machine's view: its processors are shared by the workers and\n"
    "by whatever server runs on it, and over loopback there is no network. Compare\n"
    "rows of one run only.\n"
    "\n"
    "--backend adds a backend to those that are named. DLOCK_BACKEND and 'use:'\n"
    "choose none here.\n"
    "\n"
    "Exit status: 0, or 1 when a violation was seen, a backend could not be opened or\n"
    "gave no lock, or a worker died; 128 + N when signal N ended it and no violation\n"
    "was seen until then.\n";

static const char *more_text(const command_t *command) {
    switch (command->bit) {
    case IN_RUN:
        return run_text;
    case IN_STATUS:
        return status_text;
    case IN_LIST:
        return list_text;
    case IN_UNLOCK:
        return unlock_text;
    case IN_CHECK:
        return check_text;
    case IN_BACKENDS:
        return backends_text;
    case IN_COMPARE:
        return compare_text;
    default:
        return "";
    }
}

/* Of the lines that follow the first of an option; and where they end, if there is no terminal. */
#define HELP_INDENT 29
#define USUAL_WIDTH 80

static void print_options(unsigned bit, bool global) {
    int width = terminal_width(STDOUT_FILENO);
    for (const option_spec_t *spec = option_specs; spec->name != NULL; spec++) {
        bool is_global = (spec->commands & IN_STATUS) != 0; /* which has none of its own */
        if ((spec->commands & bit) == 0 || is_global != global) {
            continue;
        }
        char letter[8] = "";
        if (spec->letter != 0) {
            (void)snprintf(letter, sizeof letter, "-%c, ", spec->letter);
        }
        char left[64];
        (void)snprintf(left, sizeof left, "%4s%s%s%s", letter, spec->name, spec->value != NULL ? " " : "",
                       spec->value != NULL ? spec->value : "");
        wrap_t wrap = {.width = width > 0 ? width : USUAL_WIDTH, .indent = HELP_INDENT};
        wrap.column = printf("  %-26s ", left);
        print_wrapped(&wrap, spec->help);
        (void)putchar('\n');
    }
}

void print_help(const command_t *command) {
    if (command == NULL) {
        (void)fputs("usage: dlock COMMAND [options]\n\n", stdout);
        for (const command_t *each = commands; each->name != NULL; each++) {
            (void)printf("  %-10s %s\n", each->name, each->summary);
        }
        (void)fputs("\nOptions of every command, before or after it:\n", stdout);
        print_options(IN_ALL, true);
        (void)fputs("\n'dlock help COMMAND' tells more, and so does the manual page dlock(1).\n", stdout);
        return;
    }
    (void)printf("usage: dlock %s%s%s\n%s\n", command->name, command->args[0] != '\0' ? " " : "",
                 command->args, command->summary);
    (void)fputs("\nOptions:\n", stdout);
    print_options(command->bit, false);
    print_options(command->bit, true);
    (void)fputs(more_text(command), stdout);
}

int command_help(const options_t *options) {
    const command_t *command = NULL;
    if (options->arg_count > 0) {
        command = find_command(options->args[0]);
        if (command == NULL) {
            return usage_error("there is no command '%s'; see 'dlock help'", plain(options->args[0]));
        }
    }
    print_help(command);
    return 0;
}
