/* redis_link_step_test.c - connections not to be used again after a good call; commands made late. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_link_fixture.h"

TestSuite(redis_link_step, .init = set_up, .fini = tear_down, .timeout = 60);

static uint64_t frozen_ns;

static uint64_t stand_still(void) {
    return frozen_ns;
}

Test(redis_link_step, an_answer_that_nobody_asked_for_ends_its_connection) {
    open_link();
    warm_up(1);
    for (int i = 0; i < 3; i++) {
        call_t call;
        prepare(&call, "ECHO asked", 2000);
        dli_commands_add_words(&call.commands, "ECHO", "surplus", NULL);
        call.commands.count = 1; /* the link expects one answer, and the server gives two at once */
        /* No time passes until the next call: nobody looks at a connection that was used just now. */
        frozen_ns = env.now_ns();
        env.now_ns = stand_still;
        cr_assert_eq(run(&call), DL_OK, "%s", call.err.message);
        cr_assert_str_eq(call.replies[0]->str, "asked");
        clear(&call);
        char answer[64];
        cr_assert_eq(ask_full("ECHO mine", DLI_PLAIN, 2000, answer, NULL), DL_OK);
        cr_assert_str_eq(answer, "mine");
        env.now_ns = dli_sys_real.now_ns;
        cr_assert_eq(atomic_load(&reconnects), i + 1);
    }
}

Test(redis_link_step, a_connection_that_was_in_use_during_a_failover_is_not_used_again) {
    open_link_over_relay();
    warm_up(2); /* 1 was given back last, and is taken first */
    atomic_store(&relay_held[1], 1);
    call_t slow, refused;
    prepare(&slow, "ECHO slow", 2000);
    begin(&slow);
    tell(&server, "REPLICAOF 127.0.0.1 1");
    prepare(&refused, "SET a 1", 2000);
    cr_assert_eq(run(&refused), DL_OK, "%s", refused.err.message);
    cr_assert_eq(strncmp(refused.replies[0]->str, "READONLY", 8), 0);
    clear(&refused);
    tell(&server, "REPLICAOF NO ONE");
    atomic_store(&relay_held[1], 0);
    cr_assert_eq(drive(&slow), DL_OK, "%s", slow.err.message);
    cr_assert_str_eq(slow.replies[0]->str, "slow");
    clear(&slow);
    int before = atomic_load(&relay_pairs);
    cr_assert_eq(ask("PING"), DL_OK);
    cr_assert_eq(atomic_load(&relay_pairs), before + 1);
}

/* ---- commands that are made when the connection is known --------------------------------------------- */

/* What its `prepare` saw, and what it does. */
typedef struct maker {
    int calls;
    dli_facts_t facts; /* of the last call */
    dl_status_t refusal;
    dli_commands_t commands;
} maker_t;

static dl_status_t make(dli_exchange_t *x, const dli_facts_t *facts, dl_error_t *err) {
    maker_t *maker = x->arg;
    maker->calls++;
    maker->facts = *facts;
    if (maker->refusal != DL_OK) {
        return dl_driver_fail(err, maker->refusal, 0, "not to this server");
    }
    x->commands = &maker->commands;
    return DL_OK;
}

static void prepare_to_make(call_t *call, maker_t *maker, const char *line) {
    prepare(call, line, 2000);
    *maker = (maker_t){.calls = 0};
    dli_commands_add_words(&maker->commands, "CLIENT", "ID", NULL);
    call->x.commands = NULL;
    call->x.prepare = make;
    call->x.arg = maker;
}

static void clear_made(call_t *call, maker_t *maker) {
    clear(call);
    dli_commands_free(&maker->commands);
}

Test(redis_link_step, commands_are_made_for_the_very_connection_that_carries_them) {
    char run_id[64] = "run_id:";
    call_t calls[3];
    maker_t makers[3];
    open_link();
    warm_up(2); /* and the third is made for it */
    for (int i = 0; i < 3; i++) {
        prepare_to_make(&calls[i], &makers[i], "PING");
        begin(&calls[i]);
    }
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(drive(&calls[i]), DL_OK, "%s", calls[i].err.message);
        cr_assert_eq(makers[i].calls, 1);
        cr_assert_eq(calls[i].replies[0]->integer, makers[i].facts.client_id, "another connection's");
        snprintf(run_id + 7, sizeof run_id - 7, "%s", makers[i].facts.run_id);
        cr_assert_eq(strlen(run_id), 47);
        cr_assert_neq(info(&server, "server", run_id), -1, "%s", run_id);
        for (int k = 0; k < i; k++) {
            cr_assert_neq(makers[i].facts.client_id, makers[k].facts.client_id);
        }
        clear_made(&calls[i], &makers[i]);
    }
}

/* The connection lies idle and is dead, which shows when it is written to. */
Test(redis_link_step, commands_are_made_anew_for_another_connection) {
    call_t call;
    maker_t maker;
    open_link();
    warm_up(1);
    prepare_to_make(&call, &maker, "PING");
    frozen_ns = env.now_ns();
    env.now_ns = stand_still; /* nobody looks at a connection that was used just now */
    cr_assert_eq(ask("PING"), DL_OK);
    tell(&server, "CLIENT KILL TYPE normal SKIPME yes");
    AWAIT_THAT(connections(), ==, 0);
    begin(&call);
    env.now_ns = dli_sys_real.now_ns;
    cr_assert_eq(drive(&call), DL_OK, "%s", call.err.message);
    cr_assert_eq(call.replies[0]->integer, maker.facts.client_id, "made for the dead one");
    cr_assert_eq(maker.calls, 2);
    clear_made(&call, &maker);
}

/* Whether the connection lay idle, was tested first or is new: it is as good as before. */
Test(redis_link_step, what_is_refused_is_not_sent) {
    for (int way = 0; way < 3; way++) {
        call_t call;
        maker_t maker;
        options.test_on_borrow = way == 1;
        open_link();
        if (way < 2) {
            warm_up(1);
        }
        for (int i = 0; i < 3; i++) {
            int before = atomic_load(&round_trips);
            prepare_to_make(&call, &maker, "PING");
            maker.refusal = DL_ECONFIG;
            begin(&call);
            cr_assert_eq(drive(&call), DL_ECONFIG);
            cr_assert_str_eq(call.err.message, "not to this server");
            cr_assert_eq(maker.calls, 1);
            cr_assert_eq(call.x.sent_ns, 0);
            cr_assert_null(call.replies[0]);
            cr_assert_eq(atomic_load(&round_trips), before);
            clear_made(&call, &maker);
        }
        cr_assert_eq(ask("PING"), DL_OK);
        cr_assert_eq(connections(), 1, "%d", way);
        cr_assert_eq(info(&server, "commandstats", "cmdstat_client|id:calls="), -1);
        close_link();
        AWAIT_THAT(connections(), ==, 0);
    }
    open_link();
}

Test(redis_link_step, commands_that_did_not_fit_into_memory_are_not_sent) {
    call_t call;
    maker_t maker;
    open_link();
    for (int i = 0; i < 2; i++) { /* on a new connection, and on one that lies idle */
        prepare_to_make(&call, &maker, "PING");
        maker.commands.out_of_memory = true;
        cr_assert_eq(run(&call), DL_ENOMEM);
        cr_assert_eq(call.x.sent_ns, 0);
        cr_assert_eq(maker.calls, 1);
        clear_made(&call, &maker);
    }
    cr_assert_eq(info(&server, "commandstats", "cmdstat_client|id:calls="), -1);
    cr_assert_eq(ask("PING"), DL_OK);
    cr_assert_eq(connections(), 1);
}
