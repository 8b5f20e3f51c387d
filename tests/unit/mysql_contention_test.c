/* mysql_contention_test.c - locks in rows: many at once, news between two statements, purging. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "mysql_rows_fixture.h"

TestSuite(mysql_contention, .init = set_up, .fini = tear_down, .timeout = 180);

#define THREADS 16
#define ROUNDS 12
#define HIGH ((uint64_t)1 << 60) /* far above tokens that come from a clock */

typedef struct worker {
    pthread_t thread;
    client_t client; /* the state is shared; err is this worker's own */
    pthread_barrier_t *barrier;
    int number;
    bool same_name;
    dl_status_t statuses[ROUNDS];
    char message[256]; /* of the last failure that was no "busy" */
} worker_t;

static void *take_fresh_names(void *arg) {
    worker_t *w = arg;
    for (int i = 0; i < ROUNDS; i++) {
        char name[32], owner[64];
        snprintf(name, sizeof name, "fresh-%d-%d", i, w->same_name ? 0 : w->number);
        snprintf(owner, sizeof owner, UUID_A ":%d", w->number);
        pthread_barrier_wait(w->barrier);
        w->statuses[i] = lock_name(&w->client, name, owner, (uint64_t)i + 1);
        if (w->statuses[i] != DL_OK && w->statuses[i] != DL_EBUSY) {
            snprintf(w->message, sizeof w->message, "%s", w->client.err.message);
        }
    }
    return NULL;
}

static void run_workers(worker_t *workers, client_t *c, bool same_name) {
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker_t){.client = *c, .barrier = &barrier, .number = i, .same_name = same_name};
        cr_assert_eq(pthread_create(&workers[i].thread, NULL, take_fresh_names, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        cr_assert_str_eq(workers[i].message, "");
    }
    pthread_barrier_destroy(&barrier);
}

Test(mysql_contention, a_fresh_name_has_one_winner_and_nothing_fails) {
    static worker_t workers[THREADS];
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            run_workers(workers, &c, true);
            for (int i = 0; i < ROUNDS; i++) {
                int winners = 0;
                for (int t = 0; t < THREADS; t++) {
                    winners += workers[t].statuses[i] == DL_OK;
                }
                cr_assert_eq(winners, 1, "round %d: %d winners", i, winners);
            }
            shut(&c);
        }
}

Test(mysql_contention, fresh_names_do_not_hinder_each_other) {
    static worker_t workers[THREADS];
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            run_workers(workers, &c, false);
            for (int i = 0; i < ROUNDS * THREADS; i++) {
                cr_assert_eq(workers[i % THREADS].statuses[i / THREADS], DL_OK);
            }
            shut(&c);
        }
}

/* ---- between the reading and the taking of mysql-optimistic ------------------------------------------- */

static const kind_t *const optimistic = &kinds[1];
static const char *news; /* assignments that happen after the next round trip */

static void break_news(unsigned long n) {
    (void)n;
    after_round_trip = NULL;
    set_row(optimistic, "orders", news);
}

static dl_status_t lock_with_news(client_t *c, const char *assignments, dl_grant_t *grant) {
    dl_request_t r = request("orders", B, 1);
    news = assignments;
    after_round_trip = break_news;
    unsigned long trips = atomic_load(&round_trips);
    dl_status_t status = lock_full(c, &r, grant);
    cr_assert_null(after_round_trip, "nothing happened");
    cr_assert_eq(atomic_load(&round_trips), trips + 2, "it was not free when it was read");
    return status;
}

Test(mysql_contention, a_renewal_after_the_row_was_read_is_respected) {
    client_t c;
    dl_grant_t grant;
    must_open(&c, optimistic, UUID_A);
    must_lock(&c, "orders", A, 7);
    set_row(optimistic, "orders", "expires_at=UTC_TIMESTAMP(6)");
    dl_status_t status = lock_with_news(&c, "expires_at=UTC_TIMESTAMP(6)+INTERVAL 100 SECOND", &grant);
    cr_assert_eq(status, DL_EBUSY, "%s", c.err.message);
    cr_assert_gt(grant.busy_ms, 50000);
    cr_assert_leq(grant.busy_ms, 100000);
    cr_assert_eq(grant.busy_is_dlock, 1);
    cr_assert_str_eq(look(&c, "orders").owner, A);
    shut(&c);
}

Test(mysql_contention, whoever_was_faster_keeps_it) {
    client_t c;
    dl_grant_t grant;
    must_open(&c, optimistic, UUID_A);
    must_lock(&c, "orders", A, 7);
    cr_assert_eq(free_name(&c, "orders", A, 7), DL_OK);
    dl_status_t status = lock_with_news(&c,
                                        "owner='" A "',hold_id=8,version=version+1,"
                                        "expires_at=UTC_TIMESTAMP(6)+INTERVAL 100 SECOND",
                                        &grant);
    cr_assert_eq(status, DL_EBUSY, "%s", c.err.message);
    cr_assert_gt(grant.busy_ms, 50000);
    cr_assert_leq(grant.busy_ms, 100000);
    cr_assert_eq(grant.busy_is_dlock, 1);
    cr_assert_eq(look(&c, "orders").hold_id, 8);
    cr_assert_eq(free_name(&c, "orders", A, 8), DL_OK);
    /* Taken and freed again meanwhile: what was read is no more, although it is free. */
    status = lock_with_news(&c, "version=version+1", &grant);
    cr_assert_eq(status, DL_EBUSY, "%s", c.err.message);
    cr_assert_eq(grant.busy_ms, 0);
    cr_assert(!look(&c, "orders").held);
    /* A release alone leaves the version as it is. */
    must_lock(&c, "orders", A, 9);
    set_row(optimistic, "orders", "expires_at=UTC_TIMESTAMP(6)");
    status = lock_with_news(&c, "owner=NULL", &grant);
    cr_assert_eq(status, DL_OK, "%s", c.err.message);
    shut(&c);
}

/* As a purge does it. */
static void delete_row(unsigned long n) {
    (void)n;
    after_round_trip = NULL;
    mysql_ask(server, "DELETE FROM %s.%s WHERE name='orders'", database, optimistic->table);
}

Test(mysql_contention, a_row_that_is_deleted_after_it_was_read_is_made_again) {
    client_t c;
    dl_grant_t grant;
    dl_request_t r = request("orders", B, 1);
    must_open(&c, optimistic, UUID_A);
    uint64_t token = must_lock(&c, "orders", A, 7);
    cr_assert_eq(free_name(&c, "orders", A, 7), DL_OK);
    after_round_trip = delete_row;
    cr_assert_eq(lock_full(&c, &r, &grant), DL_OK, "%s", c.err.message);
    cr_assert_null(after_round_trip, "nothing happened");
    cr_assert_gt(grant.token, token);
    cr_assert_str_eq(look(&c, "orders").owner, B);
    shut(&c);
}

/* ---- purging ---------------------------------------------------------------------------------------- */

static void add_row(const kind_t *k, const char *name, const char *owner, const char *released,
                    const char *expires, uint64_t token) {
    mysql_ask(server,
              "INSERT INTO %s.%s(name,owner,hold_id,released_at,expires_at,%s) VALUES('%s',%s,7,%s,%s,%llu)",
              database, k->table, k->token, name, owner, released, expires, (unsigned long long)token);
}

/* Locks and frees a name so often that a purge has looked at every row, if there are few. */
static void use(client_t *c, const char *name) {
    for (uint64_t i = 1; i <= 400; i++) {
        must_lock(c, name, A, i);
        cr_assert_eq(free_name(c, name, A, i), DL_OK, "%s", c->err.message);
    }
}

#define LONG_AGO "UTC_TIMESTAMP(6)-INTERVAL 61 MINUTE"
#define LATELY "UTC_TIMESTAMP(6)-INTERVAL 10 MINUTE"
#define LATER "UTC_TIMESTAMP(6)+INTERVAL 10 MINUTE"

static void add_rows(const kind_t *k) {
    add_row(k, "a freed long ago", "NULL", LONG_AGO, "NULL", HIGH + 5);
    add_row(k, "z expired long ago", "'" A "'", "NULL", LONG_AGO, 7);
    add_row(k, "a freed lately", "NULL", LATELY, LONG_AGO, 7);
    add_row(k, "z expired lately", "'" A "'", LONG_AGO, LATELY, 7);
    add_row(k, "held", "'" A "'", LONG_AGO, LATER, 7);
    add_row(k, "endless", "'" A "'", LONG_AGO, "NULL", 7);
    add_row(k, "never used", "NULL", "NULL", "NULL", 7);
    add_row(k, "nonsense", "NULL", LONG_AGO, "NULL", UINT64_MAX);
}

Test(mysql_contention, what_is_unused_for_long_is_purged_and_its_token_is_not_forgotten) {
    for
        EACH_KIND(k) {
            client_t c;
            prepare(&c, k, UUID_A);
            set_number(&c, DLI_MYSQL_OPT_PURGE_AFTER, 3600000);
            cr_assert_eq(open_prepared(&c), DL_OK, "%s", c.err.message);
            add_rows(k);
            use(&c, "m");
            cr_assert_eq(mysql_number(server, "SELECT COUNT(*) FROM %s.%s", database, k->table), 8);
            cr_assert_str_eq(cell(k, "a freed long ago", "1"), "");
            cr_assert_str_eq(cell(k, "z expired long ago", "1"), "");
            char expected[32];
            snprintf(expected, sizeof expected, "%llu", (unsigned long long)HIGH + 5);
            cr_assert_str_eq(cell(k, "", k->token), expected);
            cr_assert_eq(must_lock(&c, "a freed long ago", A, 1), HIGH + 6);
            shut(&c);
        }
}

static const kind_t *rising_kind;
static uint64_t risen;

/* As if it had been used and left again, long ago, since anybody looked at it. */
static void raise_token(unsigned long n) {
    char text[64];
    (void)n;
    snprintf(text, sizeof text, "%s=%llu", rising_kind->token, (unsigned long long)(HIGH + ++risen));
    set_row(rising_kind, "a freed long ago", text);
}

Test(mysql_contention, a_row_whose_token_rose_since_it_was_looked_at_is_not_purged) {
    for
        EACH_KIND(k) {
            client_t c;
            prepare(&c, k, UUID_A);
            set_number(&c, DLI_MYSQL_OPT_PURGE_AFTER, 3600000);
            cr_assert_eq(open_prepared(&c), DL_OK, "%s", c.err.message);
            add_rows(k);
            rising_kind = k;
            risen = 0;
            after_round_trip = raise_token;
            use(&c, "m");
            after_round_trip = NULL;
            cr_assert_str_eq(cell(k, "z expired long ago", "1"), "", "nothing was purged");
            char expected[32];
            snprintf(expected, sizeof expected, "%llu", (unsigned long long)(HIGH + risen));
            cr_assert_str_eq(cell(k, "a freed long ago", k->token), expected);
            shut(&c);
        }
}

Test(mysql_contention, nothing_is_purged_where_nobody_wants_it) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A); /* purge_after: 0 */
            add_rows(k);
            use(&c, "m");
            cr_assert_eq(mysql_number(server, "SELECT COUNT(*) FROM %s.%s", database, k->table), 10);
            shut(&c);
        }
}

typedef struct newcomer {
    client_t *client;
    uint64_t token;
    atomic_bool done;
} newcomer_t;

static void *take_new(void *arg) {
    newcomer_t *n = arg;
    dl_request_t r = request("newcomer", A, 1);
    dl_grant_t grant;
    dl_status_t status;
    do { /* again, if the row was not let go of for longer than a server waits */
        status = lock_full(n->client, &r, &grant);
    } while (status == DL_EIO);
    n->token = status == DL_OK ? grant.token : 0;
    atomic_store(&n->done, true);
    return NULL;
}

Test(mysql_contention, a_new_row_waits_for_the_token_of_what_is_being_purged) {
    /* The server's table stays as it is while it is asked for more often than every 100 ms. */
    const struct timespec pause = {.tv_nsec = 150 * 1000000};
    for
        EACH_KIND(k) {
            client_t c;
            pthread_t thread;
            must_open(&c, k, UUID_A);
            must_lock(&c, "orders", A, 1);
            mysql_hand_t *hand = mysql_hand(server, database);
            mysql_hand_ask(hand, "BEGIN");
            mysql_hand_ask(hand, "UPDATE %s SET %s=%llu WHERE name=''", k->table, k->token,
                           (unsigned long long)HIGH);
            newcomer_t n = {.client = &c};
            cr_assert_eq(pthread_create(&thread, NULL, take_new, &n), 0);
            while (
                !atomic_load(&n.done) &&
                mysql_number(server,
                             "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state='LOCK WAIT'"
                             " AND trx_query LIKE CONCAT('%%',LOWER(HEX('newcomer')),'%%')") == 0) {
                nanosleep(&pause, NULL);
            }
            mysql_hand_ask(hand, "COMMIT");
            pthread_join(thread, NULL);
            cr_assert_eq(n.token, HIGH + 1, "%llu", (unsigned long long)n.token);
            mysql_hand_close(hand);
            shut(&c);
        }
}

/* In less time than a server waits for a row by itself. */
static dl_status_t force_a_kept_row(client_t *c, const kind_t *k) {
    mysql_hand_t *hand = mysql_hand(server, database);
    mysql_hand_ask(hand, "BEGIN");
    mysql_hand_ask(hand, "SELECT 1 FROM %s WHERE name='orders' FOR UPDATE", k->table);
    dl_status_t status = c->driver->force_release(c->state, "orders", 6, in_ms(600), &c->err);
    mysql_hand_ask(hand, "ROLLBACK");
    mysql_hand_close(hand);
    return status;
}

Test(mysql_contention, a_forced_release_of_a_kept_row_does_not_come_late) {
    for
        EACH_KIND(k) {
            client_t c;
            uint64_t hold_id = 1;
            must_open(&c, k, UUID_A);
            do { /* in time for a connection that ends statements */
                must_lock(&c, "orders", A, hold_id++);
                cr_assert_neq(force_a_kept_row(&c, k), DL_OK);
                cr_assert_lt(hold_id, 20, "%s", c.err.message);
            } while (strstr(c.err.message, "another transaction keeps the row locked") == NULL);
            cr_assert(look(&c, "orders").held);
            cr_assert_eq(free_name(&c, "orders", A, hold_id - 1), DL_OK);
            shut(&c);
        }
}

#define PURGERS 4
#define NAMES 8
#define TURNS 300

typedef struct user {
    pthread_t thread;
    client_t client; /* of its own */
    int number;
    _Atomic uint64_t *last; /* tokens by name; written by its holder only */
    int fallen, taken;
    uint64_t holds; /* asked for */
    char message[256];
} user_t;

static void *use_names(void *arg) {
    user_t *u = arg;
    char owner[64], name[8];
    snprintf(owner, sizeof owner, UUID_A ":%d", u->number);
    for (int i = 0; i < TURNS; i++) {
        int at = (i * (2 * u->number + 1)) % NAMES;
        dl_grant_t grant;
        snprintf(name, sizeof name, "n%d", at);
        uint64_t hold = ++u->holds;
        dl_request_t r = request(name, owner, hold);
        dl_status_t status = lock_full(&u->client, &r, &grant);
        if (status == DL_OK) {
            u->taken++;
            u->fallen += grant.token <= atomic_load(&u->last[at]);
            atomic_store(&u->last[at], grant.token);
            status = free_name(&u->client, name, owner, hold);
        }
        /* Rows live for a millisecond here. */
        bool was_purged = status == DL_EIO && strstr(u->client.err.message, "the row was deleted") != NULL;
        if (status != DL_OK && status != DL_EBUSY && !was_purged) {
            snprintf(u->message, sizeof u->message, "%s", u->client.err.message);
        }
    }
    return NULL;
}

/* What all tokens of rows that were deleted are below. */
static uint64_t floor_of(const kind_t *k) {
    return (uint64_t)mysql_number(server, "SELECT %s FROM %s.%s WHERE name=''", k->token, database, k->table);
}

Test(mysql_contention, no_token_falls_while_rows_are_purged_and_made_again) {
    static user_t users[PURGERS];
    for
        EACH_KIND(k) {
            static _Atomic uint64_t last[NAMES];
            for (int i = 0; i < NAMES; i++) {
                atomic_store(&last[i], HIGH + (uint64_t)i);
            }
            for (int i = 0; i < PURGERS; i++) {
                users[i] = (user_t){.number = i, .last = last};
                prepare(&users[i].client, k, UUID_A);
                set_number(&users[i].client, DLI_MYSQL_OPT_PURGE_AFTER, 1);
                cr_assert_eq(open_prepared(&users[i].client), DL_OK, "%s", users[i].client.err.message);
            }
            for (int i = 0; i < NAMES; i++) {
                char name[8];
                snprintf(name, sizeof name, "n%d", i);
                add_row(k, name, "NULL", LONG_AGO, "NULL", HIGH + (uint64_t)i);
            }
            /* A purge is given up where it would keep a release: until one had the time. */
            for (int turn = 0; turn == 0 || (floor_of(k) < HIGH && turn < 20); turn++) {
                for (int i = 0; i < PURGERS; i++) {
                    cr_assert_eq(pthread_create(&users[i].thread, NULL, use_names, &users[i]), 0);
                }
                for (int i = 0; i < PURGERS; i++) {
                    pthread_join(users[i].thread, NULL);
                }
            }
            for (int i = 0; i < PURGERS; i++) {
                cr_assert_str_eq(users[i].message, "");
                cr_assert_eq(users[i].fallen, 0);
                cr_assert_gt(users[i].taken, TURNS / 4);
                shut(&users[i].client);
            }
            cr_assert_geq(floor_of(k), HIGH, "nothing was purged");
        }
}
