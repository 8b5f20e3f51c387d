/* redis_link_faults_test.c - the link to Redis: servers that go away, unknown outcomes, killing, stress. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_link_fixture.h"

#include "drivers/redis/link/condemned.h"

TestSuite(redis_link_faults, .init = set_up, .fini = tear_down, .timeout = 60);

/* ---- a server that goes away ------------------------------------------------------------------------ */

Test(redis_link_faults, a_restarted_server_costs_no_error_and_is_reported) {
    open_link_over_tcp();
    warm_up(3);
    kill_server(&server);
    boot_server(&server);
    cr_assert_eq(ask("PING"), DL_OK);
    cr_assert_eq(connections(), 1);
    cr_assert_eq(atomic_load(&reconnects), 1);
    cr_assert_eq(atomic_load(&warnings), 1, "%s", reported);
    cr_assert(was_reported("restarted or replaced"), "%s", reported);
}

Test(redis_link_faults, a_server_that_is_down_is_tried_rarely_and_reported_once) {
    open_link();
    warm_up(1);
    kill_server(&server);
    int listener = listen_at(server.path, 64), accepted = 0, failed = 0, client;
    dl_error_t err = {.message = ""};
    uint64_t begun = now_ms();
    /* Accepts and hangs up: a proxy whose server is gone. */
    while (now_ms() - begun < 600) {
        call_t call;
        prepare(&call, "PING", 1000);
        begin(&call);
        struct pollfd fd = {.fd = listener, .events = POLLIN};
        while (poll(&fd, 1, 0) > 0 && (client = accept(listener, NULL, NULL)) >= 0) {
            close(client);
            accepted++;
        }
        cr_assert_eq(drive(&call), DL_EIO);
        err = call.err;
        failed++;
        clear(&call);
    }
    cr_assert_gt(failed, 1000, "only %d calls failed at once", failed);
    /* 20, 40, 80, 160, 320 ms at most, half of that on average. */
    cr_assert_geq(accepted, 3, "%d connections", accepted);
    cr_assert_lt(accepted, 40, "%d connections", accepted);
    cr_assert_neq(err.message[0], '\0');
    cr_assert_eq(atomic_load(&warnings), 1, "%s", reported);
    cr_assert(was_reported("cannot be used"), "%s", reported);
    close(listener);
    unlink(server.path);
    boot_server(&server);
    begun = now_ms();
    while (ask("PING") != DL_OK) {
        cr_assert_lt(now_ms() - begun, 700);
        (void)poll(NULL, 0, 1);
    }
    cr_assert_eq(atomic_load(&notices), 1);
    cr_assert(was_reported("is back"), "%s", reported);
}

Test(redis_link_faults, only_one_call_at_a_time_tries_a_server_that_is_down) {
    kill_server(&server);
    open_link();
    cr_assert_eq(ask("PING"), DL_EIO); /* refused */
    int listener = listen_at(server.path, 64);
    call_t calls[8];
    int trying = 0;
    AWAIT(({
        prepare(&calls[0], "PING", 1000);
        begin(&calls[0]);
        bool tries = !dli_link_is_done(&calls[0].x);
        if (!tries) {
            clear(&calls[0]);
        }
        tries;
    }));
    for (int i = 1; i < 8; i++) {
        prepare(&calls[i], "PING", 1000);
        begin(&calls[i]);
        trying += !dli_link_is_done(&calls[i].x);
    }
    cr_assert_eq(trying, 0);
    /* Whoever tries and has no time left makes room for the next. */
    dli_link_abandon(link_, &calls[0].x, DL_EIO);
    for (int i = 0; i < 8; i++) {
        clear(&calls[i]);
    }
    prepare(&calls[0], "PING", 1000);
    begin(&calls[0]);
    cr_assert_not(dli_link_is_done(&calls[0].x));
    dli_link_abandon(link_, &calls[0].x, DL_ECANCELED);
    cr_assert_eq(calls[0].x.status, DL_ECANCELED);
    clear(&calls[0]);
    close(listener);
    unlink(server.path);
    boot_server(&server);
}

/* It may hang on a network that has come back meanwhile. */
Test(redis_link_faults, who_tries_for_long_does_not_keep_others_from_trying) {
    kill_server(&server);
    open_link();
    cr_assert_eq(ask("PING"), DL_EIO);
    int listener = listen_at(server.path, 64); /* greets nobody */
    call_t calls[2];
    for (int i = 0; i < 2; i++) {
        AWAIT(({
            prepare(&calls[i], "PING", 5000);
            begin(&calls[i]);
            bool tries = !dli_link_is_done(&calls[i].x);
            if (!tries) {
                clear(&calls[i]);
            }
            tries;
        }));
    }
    cr_assert_not(dli_link_is_done(&calls[0].x));
    for (int i = 0; i < 2; i++) {
        dli_link_abandon(link_, &calls[i].x, DL_EIO);
        clear(&calls[i]);
    }
    close(listener);
    unlink(server.path);
    boot_server(&server);
}

Test(redis_link_faults, a_wrong_password_is_told_as_such_and_does_not_hammer) {
    tell(&server, "ACL SETUSER default >right");
    tell(&server, "ACL SETUSER admin on nopass ~* +@all");
    open_link_as(server.path, "default", "wrong");
    long long before = info(&server, "stats", "total_connections_received:");
    uint64_t begun = now_ms();
    int n = 0;
    for (; now_ms() - begun < 300; n++) {
        cr_assert_eq(ask("PING"), DL_EAUTH);
    }
    long long made = info(&server, "stats", "total_connections_received:") - before;
    cr_assert_lt(made, 30, "%lld connections in %d calls", made, n);
    cr_assert_gt(n, 10 * made, "%lld connections in %d calls", made, n);
    cr_assert_eq(atomic_load(&warnings), 1);
    cr_assert_not(was_reported("wrong "), "%s", reported);
}

Test(redis_link_faults, after_a_failover_no_connection_of_before_is_used_again) {
    open_link();
    warm_up(4);
    tell(&server, "REPLICAOF 127.0.0.1 1");
    call_t call;
    prepare(&call, "SET a 1", 2000);
    cr_assert_eq(run(&call), DL_OK, "%s", call.err.message);
    cr_assert_eq(strncmp(call.replies[0]->str, "READONLY", 8), 0);
    clear(&call);
    AWAIT_THAT(connections(), ==, 0);
    cr_assert_eq(ask("PING"), DL_EIO); /* a replica is refused */
    tell(&server, "REPLICAOF NO ONE");
    AWAIT_THAT(ask("SET a 1"), ==, DL_OK);
}

/* ---- unknown outcomes ------------------------------------------------------------------------------- */

static int has(const char *key) {
    return (int)tell(&server, "EXISTS %s", key);
}

/* A claim that the network holds back on the first connection while the caller gives up. */
static void give_up_claim(const char *line) {
    atomic_store(&relay_held[0], 1);
    cr_assert_eq(ask_full(line, DLI_CLAIM, 40, NULL, NULL), DL_EUNKNOWN);
}

Test(redis_link_faults, a_claim_given_up_is_never_carried_out_after_its_release) {
    open_link_over_relay();
    warm_up(1);
    give_up_claim("SET lock mine");
    dl_error_t err;
    cr_assert_eq(ask_full("DEL lock", DLI_FREE, 2000, NULL, &err), DL_OK, "%s", err.message);
    cr_assert_not(has("lock"));
    atomic_store(&relay_held[0], 0); /* now the claim arrives */
    AWAIT(!atomic_load(&relay_open[0]));
    AWAIT_THAT(connections(), ==, 1);
    cr_assert_not(has("lock"), "the claim overtook its release");
    /* Confirmed: nobody is killed twice. */
    long long kills = info(&server, "commandstats", "cmdstat_client|kill:calls=");
    cr_assert_eq(kills, 1);
    cr_assert_eq(ask_full("DEL lock", DLI_FREE, 2000, NULL, NULL), DL_OK);
    cr_assert_eq(info(&server, "commandstats", "cmdstat_client|kill:calls="), kills);
    cr_assert_eq(atomic_load(&warnings), 0, "%s", reported);
}

Test(redis_link_faults, only_a_claim_is_killed_and_only_by_a_release) {
    open_link_over_relay();
    warm_up(1);
    atomic_store(&relay_held[0], 1);
    cr_assert_eq(ask_full("SET plain 1", DLI_PLAIN, 40, NULL, NULL), DL_EUNKNOWN);
    cr_assert_eq(ask_full("DEL lock", DLI_FREE, 2000, NULL, NULL), DL_OK);
    cr_assert_eq(info(&server, "commandstats", "cmdstat_client|kill:calls="), -1);
    atomic_store(&relay_held[0], 0);
    AWAIT(has("plain"));
    atomic_store(&relay_held[1], 1);
    cr_assert_eq(ask_full("SET lock 1", DLI_CLAIM, 40, NULL, NULL), DL_EUNKNOWN);
    cr_assert_eq(ask_full("GET lock", DLI_PLAIN, 2000, NULL, NULL), DL_OK);
    cr_assert_eq(ask_full("SET other 1", DLI_CLAIM, 2000, NULL, NULL), DL_OK);
    cr_assert_eq(info(&server, "commandstats", "cmdstat_client|kill:calls="), -1);
}

Test(redis_link_faults, each_release_kills_until_one_kill_is_confirmed) {
    open_link_over_relay();
    warm_up(3); /* 2 was given back last, and is taken first */
    atomic_store(&relay_held[2], 1);
    cr_assert_eq(ask_full("SET lock mine", DLI_CLAIM, 40, NULL, NULL), DL_EUNKNOWN);
    atomic_store(&relay_held[1], 1);
    call_t slow;
    prepare(&slow, "DEL lock", 2000);
    slow.x.intent = DLI_FREE;
    begin(&slow); /* its kill waits in the network */
    cr_assert_eq(ask_full("DEL lock", DLI_FREE, 2000, NULL, NULL), DL_OK);
    atomic_store(&relay_held[2], 0);
    AWAIT(!atomic_load(&relay_open[2]));
    AWAIT_THAT(connections(), ==, 2);
    cr_assert_not(has("lock"));
    atomic_store(&relay_held[1], 0);
    cr_assert_eq(drive(&slow), DL_OK);
    cr_assert_eq(slow.replies[0]->integer, 0); /* its own answer, not that of a kill */
    clear(&slow);
}

Test(redis_link_faults, a_server_that_refuses_to_kill_is_asked_once) {
    tell(&server, "ACL SETUSER tame on >pw ~* +@all -client|kill");
    relay_listener = listen_at(relay_path, PAIRS);
    cr_assert_eq(pthread_create(&relay_thread, NULL, relay, NULL), 0);
    open_link_as(relay_path, "tame", "pw");
    for (int i = 0; i < 3; i++) {
        warm_up(1);
        int newest = atomic_load(&relay_pairs) - 1;
        atomic_store(&relay_held[newest], 1);
        cr_assert_eq(ask_full("SET lock mine", DLI_CLAIM, 40, NULL, NULL), DL_EUNKNOWN);
        cr_assert_eq(ask_full("DEL lock", DLI_FREE, 2000, NULL, NULL), DL_OK);
    }
    cr_assert_eq(info(&server, "commandstats", "cmdstat_client|kill:calls="), 0);
    redisReply *stats = redisCommand(server.admin, "INFO commandstats");
    cr_assert_has(stats->str, "cmdstat_client|kill:calls=0,usec=0,usec_per_call=0.00,rejected_calls=1");
    freeReplyObject(stats);
    cr_assert_eq(atomic_load(&warnings), 1, "%s", reported);
    cr_assert(was_reported("CLIENT KILL"), "%s", reported);
}

Test(redis_link_faults, what_another_server_was_asked_is_not_killed_here) {
    open_link_over_relay();
    warm_up(1);
    give_up_claim("SET lock mine");
    kill_server(&server);
    boot_server(&server);
    AWAIT_THAT(ask("PING"), ==, DL_OK);
    cr_assert_eq(ask_full("DEL lock", DLI_FREE, 2000, NULL, NULL), DL_OK);
    cr_assert_eq(info(&server, "commandstats", "cmdstat_client|kill:calls="), -1);
    cr_assert(was_reported("restarted or replaced"), "%s", reported);
}

Test(redis_link_faults, many_claims_given_up_are_all_killed_by_one_release) {
    options.max_total = 16;
    options.max_idle = 16;
    open_link();
    call_t calls[12];
    warm_up(12);
    kill(server.pid, SIGSTOP);
    for (int i = 0; i < 12; i++) {
        prepare(&calls[i], "INCR claims", 2000);
        calls[i].x.intent = DLI_CLAIM;
        begin(&calls[i]);
    }
    for (int i = 0; i < 12; i++) {
        dli_link_abandon(link_, &calls[i].x, DL_ECANCELED);
        cr_assert_eq(calls[i].x.status, DL_EUNKNOWN);
        cr_assert_has(calls[i].err.message, "cancelled");
        clear(&calls[i]);
    }
    kill(server.pid, SIGCONT);
    cr_assert_eq(ask_full("SET claims 0", DLI_FREE, 2000, NULL, NULL), DL_OK);
    cr_assert_eq(info(&server, "commandstats", "cmdstat_client|kill:calls="), 12);
    AWAIT_THAT(connections(), ==, 1);
    char answer[64];
    cr_assert_eq(ask_full("GET claims", DLI_PLAIN, 2000, answer, NULL), DL_OK);
    cr_assert_str_eq(answer, "0");
}

Test(redis_link_faults, of_too_many_claims_given_up_the_newest_are_remembered) {
    dli_condemned_t condemned;
    dli_facts_t facts = {.run_id = "here"}, other = {.run_id = "there", .client_id = 7},
                nameless = {.client_id = 8};
    dli_kills_t *kills;
    dl_error_t err;
    dli_condemned_init(&condemned);
    dli_condemned_meet(&condemned, &facts);
    for (int i = 1; i <= DLI_CONDEMNED_MAX + 10; i++) {
        facts.client_id = i;
        dli_condemned_add(&condemned, &facts);
    }
    dli_condemned_add(&condemned, &other);
    dli_condemned_add(&condemned, &nameless);
    cr_assert_eq(dli_condemned_kills(&condemned, &facts, &kills, &err), DL_OK);
    cr_assert_eq(kills->count, DLI_CONDEMNED_MAX);
    cr_assert_eq(kills->ids[0], 11);
    cr_assert_eq(kills->ids[DLI_CONDEMNED_MAX - 1], DLI_CONDEMNED_MAX + 10);
    cr_assert_eq(kills->commands.count, DLI_CONDEMNED_MAX);
    /* An answer of the moment confirms nothing. */
    char busy[] = "BUSY Redis is busy running a script.";
    redisReply reply = {.type = REDIS_REPLY_ERROR, .str = busy, .len = strlen(busy)};
    cr_assert_not(dli_condemned_answer(&condemned, &facts, kills, &reply));
    cr_assert_eq(atomic_load(&condemned.count), DLI_CONDEMNED_MAX);
    reply = (redisReply){.type = REDIS_REPLY_INTEGER, .integer = 0};
    cr_assert_not(dli_condemned_answer(&condemned, &facts, kills, &reply));
    cr_assert_eq(atomic_load(&condemned.count), DLI_CONDEMNED_MAX - 1);
    dli_kills_free(kills);
    cr_assert_eq(dli_condemned_kills(&condemned, &other, &kills, &err), DL_OK);
    cr_assert_null(kills);
    cr_assert_eq(dli_condemned_kills(&condemned, &nameless, &kills, &err), DL_OK);
    cr_assert_null(kills);
    dli_condemned_free(&condemned);
}

Test(redis_link_faults, replies_that_came_before_the_end_stay_with_the_caller) {
    open_link();
    call_t call;
    prepare(&call, "ECHO here", 2000);
    dli_commands_add_words(&call.commands, "BLPOP", "nothing", "0", NULL);
    begin(&call);
    while (call.replies[0] == NULL) {
        struct pollfd fd;
        uint64_t until_ns;
        dli_link_want(&call.x, &fd, &until_ns);
        cr_assert_gt(env.poll(&fd, 1, until_ns), 0);
        dli_link_step(link_, &call.x, fd.revents);
    }
    tell(&server, "CLIENT KILL TYPE normal SKIPME yes");
    cr_assert_eq(drive(&call), DL_EUNKNOWN);
    cr_assert_str_eq(call.replies[0]->str, "here");
    cr_assert_null(call.replies[1]);
    cr_assert_has(call.err.message, "closed the connection");
    clear(&call);
}

/* ---- many threads ----------------------------------------------------------------------------------- */

#define THREADS 16

static atomic_int answered, given_up;

static void *ask_often(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    for (int i = 0; i < 200; i++) {
        static const dli_intent_t intents[] = {DLI_PLAIN, DLI_CLAIM, DLI_FREE};
        char line[64], answer[64];
        snprintf(line, sizeof line, "ECHO %u-%d", (unsigned)(uintptr_t)arg, i);
        uint64_t ms = rand_r(&seed) % 8 == 0 ? 1 : 2000;
        dl_error_t err;
        dl_status_t status = ask_full(line, intents[i % 3], ms, answer, &err);
        if (status == DL_OK) {
            cr_assert_str_eq(answer, line + 5);
            atomic_fetch_add(&answered, 1);
        } else {
            cr_assert(status == DL_EUNKNOWN || status == DL_EIO, "%d: %s", (int)status, err.message);
            atomic_fetch_add(&given_up, 1);
            (void)poll(NULL, 0, 2); /* as the core does; a server that is down would be asked in vain */
        }
    }
    return NULL;
}

Test(redis_link_faults, many_threads_get_each_their_own_answers) {
    options.max_total = 6;
    options.max_idle = 3;
    options.min_idle = 2;
    options.test_while_idle = true;
    options.idle_check_ms = 10;
    open_link();
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, ask_often, (void *)(i + 1)), 0);
    }
    for (int i = 0; i < 20; i++) {
        tell(&server, "CLIENT PAUSE 5");
        (void)poll(NULL, 0, 5);
        if (i % 4 == 0) {
            tell(&server, "CLIENT KILL TYPE normal SKIPME yes");
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    cr_assert_eq(atomic_load(&answered) + atomic_load(&given_up), THREADS * 200);
    cr_assert_gt(atomic_load(&answered), THREADS * 100, "%d", atomic_load(&answered));
    cr_assert_eq(ask("PING"), DL_OK);
    AWAIT_THAT(connections(), <=, 3);
}
