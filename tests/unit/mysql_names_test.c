/* mysql_names_test.c - locks in rows: names are exact, lists whole, and force reaches anybody. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "mysql_rows_fixture.h"

TestSuite(mysql_names, .init = set_up, .fini = tear_down, .timeout = 120);

/* Names that some comparison or another takes for the same, or that break out of careless statements. */
static const char *const twins[] = {"a",          "A",     "a ",
                                    "a\t",        " a",    "\xc3\xa4",
                                    "a\xcc\x88",  "\xe4",  "ss",
                                    "\xc3\x9f",   "\xff",  "\xff\xff",
                                    "%",          "_",     "a%",
                                    "a'",         "\\",    "\\'",
                                    "x'61'",      "$x",    "'; DROP TABLE leases; -- ",
                                    "\x01\x02\n", "a\x01", "\xf0\x9f\x94\x92",
                                    "0",          "00",    "0x61",
                                    "NULL"};

#define TWINS (sizeof twins / sizeof twins[0])

typedef struct seen {
    unsigned n, stop_at;
    char last[256];
    bool disordered;
} seen_t;

static int see(void *arg, const char *name, const dl_lock_info_t *info) {
    seen_t *seen = arg;
    cr_assert(info->held);
    seen->disordered = seen->disordered || strcmp(seen->last, name) >= 0;
    snprintf(seen->last, sizeof seen->last, "%s", name);
    return ++seen->n == seen->stop_at;
}

static seen_t list_bytes(client_t *c, const char *prefix, size_t len, unsigned stop_at) {
    seen_t seen = {.stop_at = stop_at};
    cr_assert_eq(c->driver->list(c->state, prefix, len, see, &seen, in_ms(5000), &c->err), DL_OK, "%s",
                 c->err.message);
    cr_assert(!seen.disordered);
    return seen;
}

static unsigned count(client_t *c, const char *prefix) {
    return list_bytes(c, prefix, strlen(prefix), 0).n;
}

Test(mysql_names, no_two_names_meet) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            for (size_t i = 0; i < TWINS; i++) {
                cr_assert(!look(&c, twins[i]).held, "'%s'", twins[i]);
                must_lock(&c, twins[i], A, i + 1);
            }
            cr_assert_eq(count(&c, ""), TWINS);
            for (size_t i = 0; i < TWINS; i++) {
                cr_assert_eq(look(&c, twins[i]).hold_id, i + 1, "'%s'", twins[i]);
                cr_assert_eq(renew_name(&c, twins[i], A, i + 1, 30000), DL_OK);
            }
            for (size_t i = 0; i < TWINS; i++) {
                cr_assert_eq(free_name(&c, twins[i], A, i + 1), DL_OK, "'%s'", twins[i]);
                cr_assert_eq(count(&c, ""), TWINS - 1 - i);
            }
            shut(&c);
        }
}

Test(mysql_names, the_longest_names_are_whole) {
    char name[256], twin[256];
    memset(name, 'n', 255);
    name[255] = '\0';
    memcpy(twin, name, sizeof name);
    twin[254] = 'm';
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            must_lock(&c, name, A, 1);
            cr_assert_eq(lock_name(&c, twin, B, 1), DL_OK, "%s", c.err.message);
            cr_assert_eq(lock_name(&c, name, B, 2), DL_EBUSY);
            cr_assert_str_eq(list_bytes(&c, name, 255, 0).last, name);
            cr_assert_eq(free_name(&c, twin, B, 1), DL_OK);
            cr_assert(look(&c, name).held);
            shut(&c);
        }
}

Test(mysql_names, a_list_goes_over_any_number_of_pages) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            cr_assert_eq(count(&c, ""), 0);
            hold_rows(k, "many/", 1000);
            must_lock(&c, "last", A, 1);
            cr_assert_eq(count(&c, "many/"), 1000, "two full pages");
            cr_assert_eq(count(&c, ""), 1001);
            cr_assert_eq(count(&c, "many/7"), 111);
            cr_assert_eq(count(&c, "many/77"), 11);
            cr_assert_eq(count(&c, "many/777"), 1);
            cr_assert_eq(count(&c, "many/7777"), 0);
            cr_assert_eq(list_bytes(&c, "", 0, 1).n, 1);
            cr_assert_eq(list_bytes(&c, "", 0, 777).n, 777);
            shut(&c);
        }
}

Test(mysql_names, a_list_takes_its_prefix_byte_by_byte) {
    static const struct {
        const char *prefix;
        unsigned n;
    } cases[] = {{"a", 7},        {"A", 1},  {"a ", 1}, {"%", 1}, {"_", 1}, {"\xff", 2},
                 {"\xff\xff", 1}, {"\\", 2}, {"0", 3},  {"$", 1}, {"n", 0}, {"\xfe", 0}};
    char longest[257];
    memset(longest, '\xff', 256);
    longest[256] = '\0';
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            for (size_t i = 0; i < TWINS; i++) {
                must_lock(&c, twins[i], A, i + 1);
            }
            for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                cr_assert_eq(count(&c, cases[i].prefix), cases[i].n, "'%s': %u", cases[i].prefix,
                             count(&c, cases[i].prefix));
            }
            cr_assert_eq(list_bytes(&c, longest, 255, 0).n, 0);
            cr_assert_eq(list_bytes(&c, longest, 256, 0).n, 0);
            cr_assert_eq(list_bytes(&c, NULL, 0, 0).n, TWINS);
            shut(&c);
        }
}

Test(mysql_names, a_list_shows_what_is_held_and_can_be_a_name) {
    for
        EACH_KIND(k) {
            client_t c;
            must_open(&c, k, UUID_A);
            must_lock(&c, "held", A, 1);
            must_lock(&c, "freed", A, 2);
            must_lock(&c, "over", A, 3);
            must_lock(&c, "endless", A, 4);
            cr_assert_eq(free_name(&c, "freed", A, 2), DL_OK);
            set_row(k, "over", "expires_at=UTC_TIMESTAMP(6)");
            set_row(k, "endless", "owner='somebody',expires_at=NULL");
            set_row(k, "", "owner='" A "',expires_at=UTC_TIMESTAMP(6)+INTERVAL 1 DAY");
            mysql_ask(server, "INSERT INTO %s.%s(name,owner,%s) VALUES(x'610062','" A "',1)", database,
                      k->table, k->token);
            cr_assert_eq(count(&c, ""), 2);
            cr_assert_eq(count(&c, "endless"), 1);
            cr_assert_eq(count(&c, "held"), 1);
            shut(&c);
        }
}

Test(mysql_names, force_frees_whoever_holds_it_and_the_holder_learns_it) {
    for
        EACH_KIND(k) {
            client_t a, b;
            must_open(&a, k, UUID_A);
            must_open(&b, k, UUID_B);
            cr_assert_eq(force_name(&b, "orders"), DL_ENOTOWNER, "there is no such row");
            uint64_t token = must_lock(&a, "orders", A, 7);
            cr_assert_eq(force_name(&b, "orders"), DL_OK, "%s", b.err.message);
            cr_assert_eq(force_name(&b, "orders"), DL_ENOTOWNER);
            cr_assert_eq(renew_name(&a, "orders", A, 7, 30000), DL_ELOST);
            cr_assert_eq(free_name(&a, "orders", A, 7), DL_ELOST);
            cr_assert_gt(must_lock(&b, "orders", B, 1), token);
            shut(&a);
            shut(&b);
        }
}
