/* fake_net.c - the waits of the fake drivers, all through the env that the core lends. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "support/fake_net.h"

const dl_option_t fake_options[] = {
    [FAKE_OPT_LATENCY] = {.name = "latency",
                          .type = DL_OPTION_DURATION,
                          .default_text = "0ms",
                          .max = 60000,
                          .help = "How long one exchange with the server takes."},
    [FAKE_OPT_COUNT] = {.name = NULL},
};

dl_status_t fake_await(const dl_driver_env_t *env, int fd, uint64_t until_ns, const dl_stop_t *stop) {
    struct pollfd fds[3] = {
        {.fd = fd, .events = POLLIN}, {.fd = -1, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    if (stop != NULL) {
        fds[1].fd = stop->fd[0];
        fds[2].fd = stop->fd[1];
    }
    if (env->poll(fds, 3, until_ns) <= 0) {
        return DL_ETIMEDOUT;
    }
    return fds[1].revents != 0 || fds[2].revents != 0 ? DL_ECANCELED : DL_OK;
}

dl_status_t fake_pass(const dl_driver_env_t *env, uint64_t ns, uint64_t deadline_ns, const dl_stop_t *stop) {
    if (ns == 0) {
        return DL_OK;
    }
    uint64_t end = env->now_ns() + ns;
    dl_status_t status = fake_await(env, -1, end < deadline_ns ? end : deadline_ns, stop);
    if (status == DL_ECANCELED) {
        return status;
    }
    return end <= deadline_ns ? DL_OK : DL_ETIMEDOUT;
}
