/* link.c - opens and closes a link, says what exchanges wait for, and runs them at one go. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange.h"

#include <stdlib.h>

dl_status_t dli_link_open(const dli_endpoint_t *endpoint, const dli_pool_options_t *options,
                          const dl_driver_env_t *env, dli_link_t **link, dl_error_t *err) {
    *link = NULL;
    dli_link_t *new_link = calloc(1, sizeof *new_link);
    if (new_link == NULL) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
    }
    dli_pool_init(&new_link->pool, endpoint, options, env);
    dl_status_t status = dli_keeper_start(&new_link->keeper, &new_link->pool, err);
    if (status != DL_OK) {
        dli_pool_free(&new_link->pool, false);
        free(new_link);
        return status;
    }
    *link = new_link;
    return DL_OK;
}

/* Takes the label back, where a connection lies idle; nobody waits for the answer. */
static void forget_label(dli_pool_t *pool) {
    const dli_commands_t *forget = &pool->label.forget;
    bool is_said = !atomic_load(&pool->label.is_there);
    for (int i = 0; i < DLI_LANES && !is_said; i++) {
        dli_member_t *member = pool->lanes[i].newest;
        dl_error_t err;
        is_said = member != NULL && member->owed == 0 && dli_conn_is_quiet(member->conn) &&
                  dli_conn_send(member->conn, forget->bytes, forget->len, &err) == DL_OK;
    }
}

void dli_link_close(dli_link_t *link, bool forked) {
    if (link != NULL) {
        dli_keeper_stop(&link->keeper, forked);
        if (!forked) {
            forget_label(&link->pool);
        }
        dli_pool_free(&link->pool, forked);
        free(link);
    }
}

void dli_link_distrust(dli_link_t *link) {
    dli_pool_distrust(&link->pool, link->pool.env->now_ns());
}

void dli_link_facts(dli_link_t *link, dli_facts_t *facts) {
    pthread_mutex_lock(&link->pool.mutex);
    *facts = link->pool.facts;
    pthread_mutex_unlock(&link->pool.mutex);
}

const dli_endpoint_t *dli_link_endpoint(const dli_link_t *link) {
    return link->pool.endpoint;
}

int64_t dli_link_max_total(const dli_link_t *link) {
    return link->pool.options.max_total;
}

bool dli_link_is_done(const dli_exchange_t *x) {
    return x->step == DLI_STEP_DONE;
}

void dli_link_want(const dli_exchange_t *x, struct pollfd *fd, uint64_t *until_ns) {
    *fd = (struct pollfd){.fd = -1};
    *until_ns = x->deadline_ns;
    uint64_t until = DL_NO_DEADLINE;
    if (x->step == DLI_STEP_QUEUED) {
        *fd = (struct pollfd){.fd = x->ticket->fd, .events = POLLIN};
        until = x->borrow_until_ns;
    } else if (x->step != DLI_STEP_DONE) {
        dli_conn_want(x->member->conn, fd);
        until = dli_conn_until(x->member->conn);
    }
    if (until < *until_ns) {
        *until_ns = until;
    }
}

dl_status_t dli_link_run(dli_link_t *link, dli_exchange_t *x, dl_error_t *err) {
    const dl_driver_env_t *env = link->pool.env;
    nfds_t n = x->stop != NULL && (x->stop->fd[0] >= 0 || x->stop->fd[1] >= 0) ? 3 : 1;
    struct pollfd fds[3] = {{.fd = -1}, {.fd = -1}, {.fd = -1}};
    uint64_t until_ns;
    if (n == 3) {
        fds[1] = (struct pollfd){.fd = x->stop->fd[0], .events = POLLIN};
        fds[2] = (struct pollfd){.fd = x->stop->fd[1], .events = POLLIN};
    }
    dli_link_begin(link, x, err);
    while (x->step != DLI_STEP_DONE) {
        dli_link_want(x, &fds[0], &until_ns);
        int ready = env->poll(fds, n, until_ns);
        if (ready >= 0) {
            dli_link_step(link, x, fds[0].revents);
        }
        if (x->step == DLI_STEP_DONE) {
            break;
        }
        if (ready < 0) {
            dli_link_abandon(link, x, DL_EIO);
        } else if (fds[1].revents != 0 || fds[2].revents != 0) {
            dli_link_abandon(link, x, DL_ECANCELED);
        } else if (env->now_ns() >= x->deadline_ns) {
            dli_link_abandon(link, x, DL_EIO);
        }
    }
    return x->status;
}
