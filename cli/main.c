/* main.c - the dlock command: finds the subcommand and runs it. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <unistd.h>

#include "commands.h"
#include "report.h"

const command_t commands[] = {
    {"run", IN_RUN, 1, 1, "NAME [options] -- command [argument ...]", "a lock name is missing",
     "run a command while holding a lock", command_run},
    {"status", IN_STATUS, 1, 1, "NAME", "a lock name is missing", "say who holds a lock", command_status},
    {"list", IN_LIST, 0, 1, "[PREFIX]", "", "show the locks that are held", command_list},
    {"unlock", IN_UNLOCK, 1, 1, "--force NAME", "a lock name is missing",
     "free a lock that another process holds", command_unlock},
    {"check", IN_CHECK, 0, 0, "", "", "say what the backend guarantees, and what weakens it", command_check},
    {"init", IN_INIT, 0, 0, "[--print | --sql]", "", "create what the backend needs on its server",
     command_init},
    {"backends", IN_BACKENDS, 0, 0, "", "", "show the backends of the configuration", command_backends},
    {"compare", IN_COMPARE, 0, ARGUMENTS_MAX, "[BACKEND]...", "",
     "run one workload over several backends, as a table", command_compare},
    {"version", IN_VERSION, 0, 0, "", "", "print the version and the drivers of this build", command_version},
    {"help", IN_HELP, 0, 1, "[command]", "", "explain a command", command_help},
    {NULL, 0, 0, 0, NULL, NULL, NULL, NULL},
};

/* A descriptor 0, 1 or 2 that is closed would be given to the next file or socket that is opened, and what is
 * printed would end up there. */
static void fill_standard_descriptors(void) {
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= 2);
    if (fd > 2) {
        (void)close(fd);
    }
}

/* What was started without a standard output says so as soon as it prints something. */
static void refuse_output(void) {
    int fd = open("/dev/null", O_RDONLY);
    if (fd >= 0) {
        (void)dup2(fd, STDOUT_FILENO);
        (void)close(fd);
    }
}

static bool prints(const options_t *options) {
    return options->version || options->help || options->command->bit != IN_RUN;
}

int main(int argc, char **argv) {
    (void)argc;
    bool has_output = fcntl(STDOUT_FILENO, F_GETFD) >= 0;
    fill_standard_descriptors();
    options_t options;
    int failed = options_parse(argv, &options);
    if (failed != 0) {
        return failed;
    }
    if (!has_output && prints(&options)) { /* what is run prints, or does not, to what fills the descriptor */
        refuse_output();
    }
    report_level(options.quiet, options.verbose);
    if (options.version) {
        return finish_stdout(command_version(&options));
    }
    if (options.help) {
        print_help(options.command);
        return finish_stdout(0);
    }
    return finish_stdout(options.command->run(&options));
}
