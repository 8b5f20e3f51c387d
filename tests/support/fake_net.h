/* fake_net.h - how long a request and its reply are on their way between a fake driver and its server. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_NET_H
#define FAKE_NET_H

#include "dlock/driver.h"

#define FAKE_NS_PER_MS 1000000u

/* The options of every fake. */
enum { FAKE_OPT_LATENCY, FAKE_OPT_COUNT };
extern const dl_option_t fake_options[];

/* Lets `ns` pass. 0; or DL_ECANCELED when a stop became readable, DL_ETIMEDOUT when the deadline came
 * first. */
dl_status_t fake_pass(const dl_driver_env_t *env, uint64_t ns, uint64_t deadline_ns, const dl_stop_t *stop);
/* Waits until fd is readable or `until_ns`. DL_OK: readable; DL_ETIMEDOUT; DL_ECANCELED. fd -1: none. */
dl_status_t fake_await(const dl_driver_env_t *env, int fd, uint64_t until_ns, const dl_stop_t *stop);

#endif
