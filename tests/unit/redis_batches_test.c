/* redis_batches_test.c - what the Redis drivers do for many locks at once, and with replicas. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_driver_fixture.h"

TestSuite(redis_batches, .init = set_up, .fini = tear_down, .timeout = 60);

/* ---- renewals --------------------------------------------------------------------------------------- */

#define HOLDS 600

static char names[HOLDS][16];
static dl_renewal_t renewals[HOLDS];

static void fill_renewals(void) {
    for (int i = 0; i < HOLDS; i++) {
        snprintf(names[i], sizeof names[i], "lock%d", i);
        renewals[i] = (dl_renewal_t){.name = names[i],
                                     .name_len = strlen(names[i]),
                                     .owner = A,
                                     .hold_id = (uint64_t)i + 1,
                                     .lease_ms = 60000,
                                     .status = DL_EPROTO};
    }
}

Test(redis_batches, each_entry_of_a_batch_has_an_outcome_of_its_own) {
    for
        EACH_DRIVER(d) {
            client_t c;
            must_open(&c, *d, UUID_A);
            fill_renewals();
            for (int i = 0; i < HOLDS; i++) {
                cr_assert_eq(lock_name(&c, names[i], A, (uint64_t)i + 1), DL_OK, "%s", c.err.message);
            }
            ask("DEL", "dlock:lock3", "dlock:lock300", "dlock:lock301", NULL);
            ask("RPUSH", "dlock:lock300", "x", NULL);
            ask("HSET", "dlock:lock301", "mode", "read", NULL);
            renewals[4].hold_id++;
            renewals[7].lease_ms = 1000;
            uint64_t before_ns = ran_ns();
            unsigned long trips = atomic_load(&round_trips);
            c.driver->renew(c.state, renewals, HOLDS, in_ms(2000));
            cr_assert_leq(atomic_load(&round_trips), trips + 3);
            for (int i = 0; i < HOLDS; i++) {
                dl_status_t expected = i == 3 || i == 4 || i == 300 || i == 301 ? DL_ELOST : DL_OK;
                cr_assert_eq(renewals[i].status, expected, "%d: %d", i, renewals[i].status);
                cr_assert_geq(renewals[i].sent_ns, before_ns, "%d", i);
                cr_assert_leq(renewals[i].sent_ns, ran_ns());
            }
            cr_assert_gt(look(&c, "lock599").remaining_ms, 59000);
            cr_assert_gt(look(&c, "lock7").remaining_ms, 20000, "shortened");
            cr_assert_str_eq(ask("EXISTS", "dlock:lock3", NULL), "0");
            ask("FLUSHALL", NULL);
            shut(&c);
        }
}

Test(redis_batches, a_batch_to_a_stopped_server_ends_in_time_with_outcomes) {
    client_t c;
    must_open(&c, drivers[0], UUID_A);
    fill_renewals();
    c.driver->renew(c.state, renewals, HOLDS, in_ms(2000));
    cr_assert_eq(renewals[HOLDS - 1].status, DL_ELOST);
    kill(server.pid, SIGSTOP);
    fill_renewals();
    uint64_t began_ns = ran_ns();
    c.driver->renew(c.state, renewals, HOLDS, began_ns + 300 * MS);
    uint64_t ended_ns = ran_ns();
    kill(server.pid, SIGCONT);
    cr_assert_lt(ended_ns - began_ns, 400 * MS, "%lu ms", (unsigned long)((ended_ns - began_ns) / MS));
    for (int i = 0; i < HOLDS; i++) {
        cr_assert(renewals[i].status == DL_EUNKNOWN || renewals[i].status == DL_EIO, "%d",
                  renewals[i].status);
        cr_assert_eq(renewals[i].sent_ns, 0);
    }
    cr_assert_eq(renewals[0].status, DL_EUNKNOWN);
    fill_renewals();
    c.driver->renew(c.state, renewals, HOLDS, in_ms(2000));
    cr_assert_eq(renewals[HOLDS - 1].status, DL_ELOST, "%d", renewals[HOLDS - 1].status);
    shut(&c);
}

/* ---- list ------------------------------------------------------------------------------------------- */

typedef struct seen {
    int n, stop_at, foreign;
    char text[4096]; /* ",one,two," */
} seen_t;

static int see(void *arg, const char *name, const dl_lock_info_t *info) {
    seen_t *seen = arg;
    size_t at = strlen(seen->text);
    cr_assert(info->held);
    seen->foreign += info->hold_id == 0;
    snprintf(seen->text + at, sizeof seen->text - at, "%s%s,", at == 0 ? "," : "", name);
    return ++seen->n == seen->stop_at;
}

static seen_t list(client_t *c, const char *prefix, int stop_at) {
    seen_t seen = {.stop_at = stop_at};
    cr_assert_eq(c->driver->list(c->state, prefix, strlen(prefix), see, &seen, in_ms(2000), &c->err), DL_OK,
                 "%s", c->err.message);
    return seen;
}

Test(redis_batches, a_list_shows_each_lock_once) {
    for
        EACH_DRIVER(d) {
            client_t c;
            must_open(&c, *d, UUID_A);
            cr_assert_eq(list(&c, "", 0).n, 0);
            fill_renewals();
            for (int i = 0; i < HOLDS; i++) {
                cr_assert_eq(lock_name(&c, names[i], A, (uint64_t)i + 1), DL_OK);
            }
            cr_assert_eq(list(&c, "", 0).n, HOLDS);
            cr_assert_eq(list(&c, "lock5", 0).n, 111);
            cr_assert_eq(list(&c, "", 17).n, 17);
            cr_assert_eq(list(&c, "lock599", 0).n, 1);
            cr_assert_eq(list(&c, "nothing", 0).n, 0);
            ask("FLUSHALL", NULL);
            shut(&c);
        }
}

Test(redis_batches, a_prefix_of_a_list_is_taken_literally) {
    static const char *const odd[] = {"a*b", "a?b", "a[x]b", "a\\b", "axb", "a^b", "ab"};
    for
        EACH_DRIVER(d) {
            client_t c;
            prepare(&c, *d, UUID_A);
            set_text(&c, DLI_REDIS_OPT_PREFIX, "p[q]*:");
            cr_assert_eq(open_prepared(&c), DL_OK);
            for (int i = 0; i < 7; i++) {
                cr_assert_eq(lock_name(&c, odd[i], A, (uint64_t)i + 1), DL_OK);
            }
            cr_assert_eq(list(&c, "a", 0).n, 7);
            for (int i = 0; i < 6; i++) {
                char prefix[8];
                snprintf(prefix, sizeof prefix, "%.*s", (int)strlen(odd[i]) - 1, odd[i]);
                cr_assert_eq(list(&c, prefix, 0).n, 1, "'%s': %s", prefix, list(&c, prefix, 0).text);
            }
            ask("FLUSHALL", NULL);
            shut(&c);
        }
}

Test(redis_batches, a_list_leaves_out_what_is_no_lock) {
    for
        EACH_DRIVER(d) {
            bool string = d == &drivers[0];
            client_t c, bare;
            must_open(&c, *d, UUID_A);
            prepare(&bare, *d, UUID_A);
            set_text(&bare, DLI_REDIS_OPT_PREFIX, "");
            cr_assert_eq(open_prepared(&bare), DL_OK);
            cr_assert_eq(lock_name(&c, "mine", A, 1), DL_OK);
            ask("SET", "dlock:theirs", "0123456789abcdef", "PX", "20000", NULL);
            ask("SET", "dlock:endless", "no end", NULL); /* a lock of the recipe without PX */
            ask("HSET", "dlock:stuck", UUID_B ":78", "1", NULL);
            ask("SET", "session", "x", "PX", "20000", NULL);
            ask("HSET", "dlock:peer", UUID_B ":77", "2", NULL);
            ask("PEXPIRE", "dlock:peer", "20000", NULL);
            ask("HSET", "dlock:user", "mode", "read", NULL);
            ask("RPUSH", "dlock:jobs", "x", NULL);
            seen_t seen = list(&c, "", 0);
            cr_assert_eq(seen.n, 3, "%s", seen.text);
            cr_assert_eq(seen.foreign, 2, "%s", seen.text);
            cr_assert_has(seen.text, ",mine,");
            cr_assert_has(seen.text, string ? ",theirs," : ",peer,");
            cr_assert_has(seen.text, string ? ",endless," : ",stuck,");
            cr_assert(look(&c, string ? "endless" : "stuck").held, "as is shown of each");
            seen = list(&bare, "", 0);
            cr_assert_eq(seen.n, string ? 1 : 3, "%s", seen.text);
            cr_assert_has(seen.text, ",dlock:mine,");
            ask("FLUSHALL", NULL);
            shut(&c);
            shut(&bare);
        }
}

static int stop_the_server(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)arg;
    (void)name;
    (void)info;
    kill(server.pid, SIGSTOP);
    return 0;
}

/* A list and an inspection while the server is stopped. */
static void expect_no_answer(client_t *c) {
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    cr_assert_eq(c->driver->list(c->state, "", 0, stop_the_server, NULL, in_ms(100), &c->err), DL_EIO);
    cr_assert_null(strstr(c->err.message, "unknown"), "%s", c->err.message);
    cr_assert_has(c->err.message, ": no answer in time");
    cr_assert_eq(c->driver->inspect(c->state, "x", 1, in_ms(100), &info, &c->err), DL_EIO);
    cr_assert_null(strstr(c->err.message, "unknown"), "%s", c->err.message);
}

Test(redis_batches, what_only_reads_has_no_unknown_outcome) {
    for
        EACH_DRIVER(d) {
            client_t c;
            must_open(&c, *d, UUID_A);
            fill_renewals();
            for (int i = 0; i < HOLDS; i++) {
                cr_assert_eq(lock_name(&c, names[i], A, (uint64_t)i + 1), DL_OK);
            }
            ask("EVAL", "for i = 1, 9000 do redis.call('set', KEYS[1] .. i, i) end", "1", "dlock:other",
                NULL);
            dl_status_t listed = c.driver->list(c.state, "", 0, stop_the_server, NULL, in_ms(300), &c.err);
            kill(server.pid, SIGCONT);
            cr_assert_eq(listed, DL_EIO, "%s", c.err.message);
            cr_assert_has(c.err.message, "listing took longer than call_timeout");
            cr_assert(look(&c, names[0]).held);
            cr_assert_eq(list(&c, "lock599", 0).n, 1, "on a connection that is there then");
            kill(server.pid, SIGSTOP);
            cr_assert_eq((*d)->force_release(c.state, "x", 1, in_ms(100), &c.err), DL_EIO, "it only looked");
            kill(server.pid, SIGCONT);
            cr_assert(look(&c, names[0]).held);
            kill(server.pid, SIGSTOP);
            expect_no_answer(&c);
            kill(server.pid, SIGCONT);
            ask("FLUSHALL", NULL);
            shut(&c);
        }
}

/* ---- replicas --------------------------------------------------------------------------------------- */

Test(redis_batches, a_lock_without_its_replicas_is_refused_and_gone) {
    for
        EACH_DRIVER(d) {
            client_t c;
            prepare(&c, *d, UUID_A);
            set_number(&c, DLI_REDIS_OPT_MIN_REPLICAS, 2);
            set_number(&c, DLI_REDIS_OPT_REPLICA_TIMEOUT, 30);
            cr_assert_eq(open_prepared(&c), DL_OK);
            ask("SCRIPT", "FLUSH", NULL);
            cr_assert_eq(lock_name(&c, "orders", A, 1), DL_EIO, "%s", c.err.message);
            cr_assert_has(c.err.message, "only 0 of 2 replicas");
            cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
            cr_assert(is_token(take(&layouts[d - drivers], B, "1")));
            cr_assert_eq(lock_name(&c, "orders", A, 2), DL_EBUSY, "%s", c.err.message);
            ask("FLUSHALL", NULL);
            shut(&c);
        }
}

Test(redis_batches, a_lock_without_its_replicas_is_warned_of_now_and_then) {
    client_t c;
    prepare(&c, drivers[1], UUID_A);
    set_number(&c, DLI_REDIS_OPT_MIN_REPLICAS, 1);
    set_number(&c, DLI_REDIS_OPT_REPLICA_TIMEOUT, 20);
    set_text(&c, DLI_REDIS_OPT_REPLICA_SHORTFALL, "warn");
    cr_assert_eq(open_prepared(&c), DL_OK);
    cr_assert_eq(atomic_load(&warnings), 0);
    for (uint64_t i = 1; i < 5; i++) {
        cr_assert_eq(lock_name(&c, "orders", A, i), DL_OK, "%s", c.err.message);
    }
    cr_assert_eq(atomic_load(&warnings), 1);
    cr_assert_has(warned, "only 0 of 1 replicas");
    cr_assert(look(&c, "orders").held);
    shut(&c);
}

Test(redis_batches, a_call_that_ends_soon_does_not_wait_long_for_replicas) {
    client_t c;
    dl_grant_t grant;
    prepare(&c, drivers[0], UUID_A);
    set_number(&c, DLI_REDIS_OPT_MIN_REPLICAS, 1);
    set_number(&c, DLI_REDIS_OPT_REPLICA_TIMEOUT, 1900);
    cr_assert_eq(open_prepared(&c), DL_OK);
    dl_request_t r = request("orders", A, 1);
    r.deadline_ns = in_ms(1000); /* the server looks at its timeouts every 100 ms, and may be late */
    cr_assert_eq(lock_full(&c, &r, &grant), DL_EIO, "%s", c.err.message);
    cr_assert_lt(ran_ns(), r.deadline_ns);
    cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
    /* Nor does it know what to do of a script whose text there is no time to send. */
    int clear = 0;
    for (int i = 0; i < 5; i++) {
        ask("SCRIPT", "FLUSH", NULL);
        r.deadline_ns = in_ms(120);
        dl_status_t status = lock_full(&c, &r, &grant);
        /* A quarter of it is left for the release: one that takes longer is not known. */
        cr_assert(status == DL_EIO || (status == DL_EUNKNOWN && ran_ns() >= r.deadline_ns), "%s",
                  c.err.message);
        clear += status == DL_EIO;
        cr_assert(status != DL_EIO || ask("EXISTS", LOCK, NULL)[0] == '0');
        ask("DEL", LOCK, NULL);
    }
    cr_assert_gt(clear, 0);
    shut(&c);
}

Test(redis_batches, a_wait_for_replicas_that_is_refused_is_the_users_matter) {
    client_t c;
    ask("ACL", "SETUSER", "default", "-wait", NULL);
    prepare(&c, drivers[0], UUID_A);
    set_number(&c, DLI_REDIS_OPT_MIN_REPLICAS, 1);
    cr_assert_eq(open_prepared(&c), DL_OK);
    cr_assert_eq(lock_name(&c, "orders", A, 1), DL_EAUTH, "%s", c.err.message);
    cr_assert(strstr(c.err.message, "WAIT") != NULL || strstr(c.err.message, "wait") != NULL, "%s",
              c.err.message);
    cr_assert_str_eq(ask("EXISTS", LOCK, NULL), "0");
    shut(&c);
}

/* The server, from now on one that carries out another command than it is asked for. */
static void confuse(const char *asked, const char *done) {
    kill_server(&server);
    server.asked = asked;
    server.done = done;
    boot_server(&server);
}

Test(redis_batches, after_an_answer_to_wait_that_is_none_nothing_is_known) {
    client_t c;
    confuse("WAIT", "HGET");
    prepare(&c, drivers[0], UUID_A);
    set_number(&c, DLI_REDIS_OPT_MIN_REPLICAS, 1);
    cr_assert_eq(open_prepared(&c), DL_OK);
    cr_assert_eq(lock_name(&c, "orders", A, 1), DL_EUNKNOWN, "%s", c.err.message);
    shut(&c);
}

Test(redis_batches, a_force_that_does_not_learn_who_holds_it_frees_nobody) {
    for
        EACH_DRIVER(d) {
            client_t c;
            confuse("EVALSHA", "MGET");
            must_open(&c, *d, UUID_A);
            cr_assert_eq(force_name(&c, "orders"), DL_EPROTO, "%s", c.err.message);
            shut(&c);
        }
}

Test(redis_batches, a_lock_that_a_replica_has_is_taken) {
    client_t c;
    server_t first = server, replica;
    ask("CONFIG", "SET", "repl-diskless-sync", "yes", NULL);
    prepare(&c, drivers[0], UUID_A);
    set_number(&c, DLI_REDIS_OPT_MIN_REPLICAS, 1);
    cr_assert_eq(open_prepared(&c), DL_OK);
    start_server(&replica, port_keep());
    tell(&replica, "REPLICAOF 127.0.0.1 %d", server.port);
    /* The first write may reach it within the copy it begins with, the second comes after that. */
    for (int i = 0; i < 2; i++) {
        ask("SET", "before", "1", NULL);
        cr_assert_str_eq(ask("WAIT", "1", "20000", NULL), "1");
    }
    cr_assert_eq(lock_name(&c, "orders", A, 1), DL_OK, "%s", c.err.message);
    server = replica;
    cr_assert_str_eq(ask("GET", LOCK, NULL), A ":1");
    server = first;
    shut(&c);
    end_server(&replica);
}
