/* fault_renew.c - batches of renewals through the fault wrapper, and late duplicates of old requests. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "core/sys.h"
#include "support/alloc_fail.h"
#include "support/drive.h"
#include "support/driver_bench.h"
#include "support/fault.h"

static void note_entry(fault_run_t *run, fault_state_t *state, const dl_renewal_t *entry,
                       uint64_t deadline_ns) {
    /* The owner and the hold id make it a request for the record. */
    dl_request_t request = {.name = entry->name,
                            .name_len = entry->name_len,
                            .owner = entry->owner,
                            .hold_id = entry->hold_id,
                            .lease_ms = entry->lease_ms,
                            .deadline_ns = deadline_ns,
                            .stop = {{-1, -1}}};
    fault_check_hold_begin(state, entry->hold);
    fault_note_request(run, state, CT_OP_RENEW, &request);
    run->call.token = entry->token;
}

static int reaches_server_at_once(const fault_run_t *run) {
    ct_mode_t mode = run->fault.mode;
    return mode == 0 || mode == CT_LOSE_REPLY || mode == CT_LATE_REPLY || mode == CT_NEVER_ACTED;
}

/* Sends the entries that reach the server at once, as one batch. */
static void send_now(fault_state_t *state, fault_run_t *runs, dl_renewal_t *entries, size_t n,
                     uint64_t deadline_ns) {
    dl_renewal_t *batch = alloc_real(n * sizeof *batch);
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (reaches_server_at_once(&runs[i])) {
            batch[count] = entries[i];
            batch[count].hold = fault_inner_hold(entries[i].hold);
            count++;
        }
    }
    if (count > 0) {
        fault_inner->renew(fault_inner_state(state), batch, count, deadline_ns);
    }
    count = 0;
    for (size_t i = 0; i < n; i++) {
        if (reaches_server_at_once(&runs[i])) {
            entries[i].status = batch[count].status;
            entries[i].loss = batch[count].loss;
            entries[i].sent_ns = batch[count].sent_ns;
            count++;
        }
    }
    alloc_real_free(batch);
}

/* What becomes of one entry once the batch has been sent. Waits are from the beginning of the batch, so that
 * those of several entries pass together. */
static dl_status_t finish_entry(fault_run_t *run, dl_renewal_t *entry, uint64_t deadline_ns) {
    const ct_fault_t *f = &run->fault;
    switch (f->mode) {
    case CT_FAIL_BEFORE:
        return f->status == DL_OK ? DL_EIO : f->status;
    case CT_LOSE_REQUEST:
    case CT_LOSE_REPLY:
        return DL_EUNKNOWN;
    case CT_ANSWER:
        return f->delay_ms > 0 && fault_wait_ms(run, f->delay_ms, NULL) != FAULT_ON_TIME ? DL_EUNKNOWN
                                                                                         : f->status;
    case CT_NEVER:
    case CT_NEVER_ACTED:
        (void)fault_wait_ms(run, -1, NULL);
        return DL_EUNKNOWN;
    case CT_LATE_REPLY:
        return fault_wait_ms(run, f->delay_ms, NULL) == FAULT_ON_TIME ? entry->status : DL_EUNKNOWN;
    case CT_LATE: {
        if (fault_wait_ms(run, f->delay_ms, NULL) != FAULT_ON_TIME) {
            return DL_EUNKNOWN;
        }
        dl_renewal_t late = *entry;
        late.hold = fault_inner_hold(entry->hold);
        fault_inner->renew(fault_inner_state(run->state), &late, 1, deadline_ns);
        entry->loss = late.loss;
        return late.status; /* sent when the batch began */
    }
    default:
        return entry->status;
    }
}

void fault_batch_note(fault_batch_t *batch, fault_state_t *state, dl_renewal_t *renewals, size_t n,
                      uint64_t deadline_ns) {
    fault_note(&batch->whole, state, CT_OP_BATCH, NULL, 0, deadline_ns);
    fault_check_batch(state, renewals, n, deadline_ns);
    batch->n = n;
    batch->runs = alloc_real(n * sizeof *batch->runs);
    batch->is_plain = fault_is_plain(&batch->whole);
    for (size_t i = 0; i < n; i++) {
        note_entry(&batch->runs[i], state, &renewals[i], deadline_ns);
        batch->is_plain = batch->is_plain && fault_is_plain(&batch->runs[i]);
    }
}

void fault_batch_end(fault_batch_t *batch, const dl_renewal_t *renewals) {
    for (size_t i = 0; i < batch->n; i++) {
        batch->runs[i].call.sent_ns = renewals[i].sent_ns;
        fault_end(&batch->runs[i], renewals[i].status);
        fault_check_hold_end(renewals[i].hold);
    }
    alloc_real_free(batch->runs);
    fault_end(&batch->whole, DL_OK);
}

void fault_batch_run(fault_batch_t *batch, dl_renewal_t *renewals) {
    fault_state_t *state = batch->whole.state;
    uint64_t deadline_ns = batch->whole.call.deadline_ns;
    fault_enter(&batch->whole);
    if (batch->whole.fault.mode == CT_LATE) {
        (void)fault_wait_ms(&batch->whole, batch->whole.fault.delay_ms, NULL);
    }
    for (size_t i = 0; i < batch->n; i++) {
        fault_enter(&batch->runs[i]);
        batch->runs[i].call.begin_ns = dli_sys->now_ns(); /* of its waits */
        renewals[i].sent_ns = batch->runs[i].call.begin_ns;
        renewals[i].status = DL_EUNKNOWN;
    }
    send_now(state, batch->runs, renewals, batch->n, deadline_ns);
    if (batch->answered != NULL) {
        batch->answered(batch);
    }
    for (size_t i = 0; i < batch->n; i++) {
        renewals[i].status = finish_entry(&batch->runs[i], &renewals[i], deadline_ns);
    }
    fault_batch_end(batch, renewals);
}

void fault_renew(void *state, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    fault_batch_t batch = {.answered = NULL};
    fault_batch_note(&batch, state, renewals, n, deadline_ns);
    fault_batch_run(&batch, renewals);
}

static dl_status_t replay_renewal(void *inner, const ct_call_t *call, uint64_t deadline_ns) {
    dl_renewal_t entry = {.name = call->name,
                          .name_len = strlen(call->name),
                          .owner = call->owner,
                          .hold_id = call->hold_id,
                          .token = call->token,
                          .lease_ms = call->lease_ms,
                          .status = DL_EUNKNOWN};
    fault_inner->renew(inner, &entry, 1, deadline_ns);
    return entry.status;
}

static dl_status_t replay(void *inner, const ct_call_t *call, uint64_t deadline_ns) {
    dl_request_t request = {.name = call->name,
                            .name_len = strlen(call->name),
                            .owner = call->owner,
                            .hold_id = call->hold_id,
                            .level = call->level,
                            .lease_ms = call->lease_ms,
                            .token_floor = call->token_floor,
                            .deadline_ns = deadline_ns,
                            .stop = {{-1, -1}},
                            .tokens = call->tokens};
    dl_error_t err = {.status = DL_OK};
    dl_grant_t grant = {.session_fd = -1};
    switch (call->op) {
    case CT_OP_TRY:
        return fault_inner->try_acquire(inner, NULL, &request, &grant, &err);
    case CT_OP_RELEASE:
        return fault_inner->release(inner, NULL, &request, &err);
    default:
        return replay_renewal(inner, call, deadline_ns);
    }
}

dl_status_t ct_replay(ct_t *ct, const ct_call_t *call) {
    fault_state_t *state = fault_state_of(call->client);
    CT_CHECKF(state != NULL, "the client of the call to replay is closed");
    CT_CHECKF((fault_inner->caps & DL_CAP_LEASE) != 0, "ct_replay needs the trait CT_REPLAY");
    CT_CHECKF(call->op == CT_OP_TRY || call->op == CT_OP_RELEASE || call->op == CT_OP_RENEW,
              "op %d cannot be replayed", (int)call->op);
    uint64_t deadline_ns = dli_sys->now_ns() + (uint64_t)ct_call_timeout_ms(ct) * DLI_NS_PER_MS;
    if (drive_backend_of(fault_inner) == NULL) {
        return replay(fault_inner_state(state), call, deadline_ns);
    }
    bench_t bench; /* the client's own core may not be listening */
    bench_open(ct, &bench, fault_inner, "replay:1");
    dl_status_t status = replay(bench.state, call, deadline_ns);
    bench_close(&bench);
    return status;
}
