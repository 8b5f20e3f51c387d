/* command_duration_test.c - how the dlock command reads and writes times. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "cli/duration.h"

#define MS UINT64_C(1000000)

Test(command_duration, a_number_and_a_unit_are_read_to_the_millisecond) {
    static const struct {
        const char *text;
        int64_t ms;
    } cases[] = {{"0", 0},
                 {"0s", 0},
                 {"250ms", 250},
                 {"28.5s", 28500},
                 {"1.36s", 1360},
                 {"90m", 5400000},
                 {"1.5h", 5400000},
                 {"0.000000001d", -1},
                 {"1.0ms", 1},
                 {"365d", 31536000000},
                 {"2.0005s", -1},
                 {"1", -1},
                 {"", -1},
                 {".5s", -1},
                 {"1.s", -1},
                 {"1,5s", -1},
                 {"-1s", -1},
                 {"1 s", -1},
                 {"1.5", -1},
                 {"0.0", -1},
                 {"1.0000000000s", -1},
                 {"99999999999999999999.5d", INT64_MAX}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t ms = -1;
        bool is_duration = parse_duration(cases[i].text, &ms);
        cr_assert_eq(is_duration, cases[i].ms >= 0, "'%s'", cases[i].text);
        if (is_duration) {
            cr_assert_eq(ms, cases[i].ms, "'%s'", cases[i].text);
        }
    }
}

Test(command_duration, a_setting_is_written_so_that_it_can_be_given_again) {
    static const struct {
        int64_t ms;
        const char *text;
    } cases[] = {
        {0, "0"},         {1, "1ms"},         {250, "250ms"},       {1000, "1s"},   {1360, "1.36s"},
        {2400, "2.4s"},   {28464, "28.464s"}, {60000, "1m"},        {61000, "61s"}, {60001, "60.001s"},
        {5400000, "90m"}, {7200000, "2h"},    {31536000000, "365d"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        duration_t written = exact_duration(cases[i].ms);
        cr_assert_str_eq(written.text, cases[i].text);
        int64_t again = -1;
        cr_assert(parse_duration(written.text, &again), "'%s'", written.text);
        cr_assert_eq(again, cases[i].ms);
    }
}

Test(command_duration, what_was_measured_has_three_digits) {
    static const struct {
        uint64_t ns;
        const char *text;
    } cases[] = {{0, "0.00\xc2\xb5s"},      {83100, "83.1\xc2\xb5s"}, {999499, "999\xc2\xb5s"},
                 {999500, "1.00ms"},        {250 * MS, "250ms"},      {999 * MS, "999ms"},
                 {28464 * MS, "28.5s"},     {90000 * MS, "1.50m"},    {5400000 * MS, "1.50h"},
                 {31536000000 * MS, "365d"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_str_eq(measured_duration(cases[i].ns).text, cases[i].text);
    }
}
