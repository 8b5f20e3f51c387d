/* failing_values.c - assertions of Criterion that fail, but for one; account_selftest.sh knows the words. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

Test(values, that_are_the_same) {
    cr_assert_eq(2 + 1, 3);
}

Test(values, of_integers) {
    size_t sheep = 3;
    cr_assert_eq(sheep, 2, "of %s", "the fold");
}

Test(values, of_negative_integers) {
    long left = -3;
    cr_assert_geq(left, 0);
}

Test(values, of_texts) {
    const char *grain = "wheat";
    cr_assert_str_eq(grain, "rye");
}

Test(values, of_a_text_without_a_part) {
    const char *grain = "wheat";
    cr_assert_has(grain, "rye");
}

Test(values, of_bytes) {
    const char *grain = "a\nb";
    cr_assert_arr_eq(grain, "a\nc", 3);
}

Test(values, of_numbers_that_are_near) {
    double weight = 0.5;
    cr_assert_float_eq(weight, 0.25, 0.1);
}

Test(values, of_pointers) {
    int *sheep = NULL;
    cr_assert_neq(sheep, NULL);
}

Test(values, that_do_not_come) {
    int sheep = 3;
    VALUES_AWAIT(sheep, ==, 2, 20);
}
