/* driver_duration_test.c - how messages write times. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "config/scalar.h"

#define MS UINT64_C(1000000)

Test(driver_duration, a_setting_is_written_so_that_it_can_be_given_again) {
    static const struct {
        int64_t ms;
        const char *text;
    } cases[] = {
        {0, "0"},         {1, "1ms"},         {250, "250ms"},       {1000, "1s"},   {1360, "1.36s"},
        {2400, "2.4s"},   {28464, "28.464s"}, {60000, "1m"},        {61000, "61s"}, {60001, "60.001s"},
        {5400000, "90m"}, {7200000, "2h"},    {31536000000, "365d"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dl_duration_text_t written = dl_driver_duration(cases[i].ms);
        cr_assert_str_eq(written.text, cases[i].text);
        int64_t again = -1;
        cr_assert_eq(dli_scalar_read(DL_OPTION_DURATION, written.text, &again), DLI_SCALAR_OK, "'%s'",
                     written.text);
        cr_assert_eq(again, cases[i].ms);
    }
}

Test(driver_duration, what_was_measured_has_three_digits) {
    static const struct {
        uint64_t ns;
        const char *text;
    } cases[] = {{0, "0.00\xc2\xb5s"},      {83100, "83.1\xc2\xb5s"}, {999499, "999\xc2\xb5s"},
                 {999500, "1.00ms"},        {250 * MS, "250ms"},      {999 * MS, "999ms"},
                 {28464 * MS, "28.5s"},     {90000 * MS, "1.50m"},    {5400000 * MS, "1.50h"},
                 {31536000000 * MS, "365d"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_str_eq(dl_driver_measured(cases[i].ns).text, cases[i].text);
    }
}
