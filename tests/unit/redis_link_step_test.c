/* redis_link_step_test.c - connections that must not be used again, though their last call went well. */
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
