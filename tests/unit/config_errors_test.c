/* config_errors_test.c - the exact line that each kind of mistake in a configuration gives. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "config_fake.h"

static void expect(const char *yaml, size_t len, const char *message) {
    dli_config_t *config = NULL;
    dl_error_t err;
    dl_status_t status = fake_load(yaml, len, &config, &err);
    cr_assert_eq(status, DL_ECONFIG, "it was accepted");
    cr_assert_eq(err.status, DL_ECONFIG);
    cr_assert_null(config);
    cr_assert_str_eq(err.message, message);
    /* The same without anybody to tell. */
    cr_assert_eq(dli_config_load_text(yaml, len, "t", fake_core, &fake_drivers, &config, NULL), DL_ECONFIG);
}

/* The whole text of a file, and the line it gives. */
#define WRONG(name, yaml, message)              \
    Test(config_errors, name) {                 \
        expect(yaml, sizeof yaml - 1, message); \
    }

/* The same for what stands under a backend of the driver `store`; it begins in line 5, column 5. */
#define HEAD "backends:\n  a:\n    driver: store\n    path: p\n    "
#define WRONG_OPTION(name, line, message) WRONG(name, HEAD line "\n", "t:5:" message)

/* ---- keys ------------------------------------------------------------------------------------------ */

WRONG_OPTION(unknown_key_near_another, "lese: 30s", "5: unknown key 'lese', did you mean 'lease'?")
WRONG_OPTION(unknown_key_in_other_case, "Port: 1", "5: unknown key 'Port', did you mean 'port'?")
WRONG_OPTION(unknown_key_like_a_secrets_file, "password_fil: x",
             "5: unknown key 'password_fil', did you mean 'password_file'?")
WRONG_OPTION(
    unknown_key_near_nothing, "zzzzzz: 1",
    "5: unknown key 'zzzzzz', expected one of driver, path, mode, cache, password, nodes, tls, port, lease, "
    "max_hold, grace")
WRONG_OPTION(
    unknown_key_with_controls, "\"\\e[2J\\n\\u202E\\u0085x\": 1",
    "5: unknown key '\\x1B[2J\\n\\u202E\\x85x', expected one of driver, path, mode, cache, password, nodes, "
    "tls, port, lease, max_hold, grace")
WRONG_OPTION(
    unknown_key_that_is_long, "\"abcdefghijklmnopqrstuvwxyzabcdefghijkl\xC3\xA4\xC3\xA4\": 1",
    "5: unknown key 'abcdefghijklmnopqrstuvwxyzabcdefghijk...', expected one of driver, path, mode, cache, "
    "password, nodes, tls, port, lease, max_hold, grace")
WRONG(unknown_key_at_the_top, "backend:\n  a: {driver: plain}\n",
      "t:1:1: unknown key 'backend', did you mean 'backends'?")
WRONG(unknown_key_at_the_top_near_nothing, "use: local\nlocks: 1\n",
      "t:2:1: unknown key 'locks', expected one of use, defaults, backends")
WRONG(drivers_key_in_defaults, "defaults: {lease: 3s, path: x}\nbackends: {a: {driver: plain}}\n",
      "t:1:23: unknown key 'path', expected one of lease, max_hold, grace")
WRONG(key_without_a_space, "backends:\n  a: {driver: store, path: p, password:hunter2}\n",
      "t:2:31: no space after 'password:', expected 'password: value'")
WRONG_OPTION(duplicate_key, "path: q", "5: duplicate key 'path', expected it once; the first is in line 4")
WRONG(duplicate_key_at_the_top, "use: local\nuse: local\n",
      "t:2:1: duplicate key 'use', expected it once; the first is in line 1")
WRONG(duplicate_backend, "backends:\n  a: {driver: plain}\n  b: {driver: plain}\n  \"a\": {driver: plain}\n",
      "t:4:3: duplicate key 'a', expected it once; the first is in line 2")
WRONG(duplicate_key_of_an_absent_driver, "backends: {a: {driver: absent, x: 1, y: 2, x: 3}}",
      "t:1:44: duplicate key 'x', expected it once; the first is in line 1")
WRONG(list_as_a_key, "? [a]\n: b\n", "t:1:3: a list or mapping as a key, expected a name")
WRONG(empty_key, "\"\": b\n", "t:1:1: an empty key, expected a name")
WRONG(merge_key, "backends:\n  a: {driver: plain, <<: {lease: 3s}}\n",
      "t:2:22: a merge key '<<', expected the keys themselves")

/* ---- kinds ----------------------------------------------------------------------------------------- */

WRONG_OPTION(list_for_a_text, "mode: [wal]", "11: 'mode' is a list, expected text")
WRONG_OPTION(mapping_for_a_secret, "password: {a: b}", "15: 'password' is a mapping, expected text")
WRONG_OPTION(text_for_a_list, "nodes: n1", "12: 'nodes' is text, expected a list such as [a, b]")
WRONG_OPTION(mapping_in_a_list, "nodes: [n1, {a: b}]", "17: 'item 2 of nodes' is a mapping, expected text")
WRONG_OPTION(nothing_in_a_list, "nodes: [n1, ~]", "17: 'item 2 of nodes' is empty, expected text")
WRONG_OPTION(nothing_for_a_duration,
             "lease:", "5: 'lease' is empty, expected a duration such as 30s (units: ms, s, m, h, d)")
WRONG_OPTION(null_for_a_text, "password: null", "15: 'password' is empty, expected text")
WRONG_OPTION(yes_for_a_boolean, "tls: yes", "10: 'tls' is 'yes', expected true or false")
WRONG_OPTION(one_for_a_boolean, "tls: 1", "10: 'tls' is '1', expected true or false")
WRONG_OPTION(text_for_a_number, "port: http", "11: 'port' is 'http', expected a whole number")
WRONG_OPTION(fraction_for_a_number, "port: 1.0", "11: 'port' is '1.0', expected a whole number")
WRONG_OPTION(octal_for_a_number, "port: 0644", "11: 'port' is '0644', expected a whole number")
WRONG_OPTION(hexadecimal_for_a_number, "port: 0x10", "11: 'port' is '0x10', expected a whole number")
WRONG_OPTION(mistyped_choice, "mode: walt", "11: 'mode' is 'walt', did you mean 'wal'?")
WRONG_OPTION(wrong_choice, "mode: memory", "11: 'mode' is 'memory', expected one of wal, delete, off")

/* ---- units and ranges ------------------------------------------------------------------------------ */

#define DURATION "expected a duration such as 30s (units: ms, s, m, h, d)"
WRONG_OPTION(missing_unit, "lease: 30", "12: 'lease' is '30', which has no unit, " DURATION)
WRONG_OPTION(missing_unit_in_quotes, "lease: \"30\"", "12: 'lease' is '30', which has no unit, " DURATION)
WRONG_OPTION(unknown_unit, "lease: 30sec", "12: 'lease' is '30sec', which has an unknown unit, " DURATION)
WRONG_OPTION(unit_in_capitals, "lease: 30S", "12: 'lease' is '30S', which has an unknown unit, " DURATION)
WRONG_OPTION(unit_after_a_space, "lease: 30 s",
             "12: 'lease' is '30 s', which has a space before the unit, " DURATION)
WRONG_OPTION(word_for_a_duration, "lease: soon", "12: 'lease' is 'soon', " DURATION)
WRONG_OPTION(point_without_decimals, "lease: 1.s", "12: 'lease' is '1.s', " DURATION)
WRONG_OPTION(duration_too_fine, "lease: 200.5ms",
             "12: 'lease' is '200.5ms', which is too fine, expected whole milliseconds")
WRONG_OPTION(duration_below_zero, "lease: -5s",
             "12: 'lease' is '-5s', which is negative, expected 100ms to 365d")
WRONG_OPTION(duration_too_short, "lease: 50ms",
             "12: 'lease' is '50ms', which is out of range, expected 100ms to 365d")
WRONG_OPTION(duration_of_zero, "lease: 0",
             "12: 'lease' is '0', which is out of range, expected 100ms to 365d")
WRONG_OPTION(duration_too_long, "lease: 366d",
             "12: 'lease' is '366d', which is out of range, expected 100ms to 365d")
WRONG_OPTION(duration_that_overflows, "lease: 99999999999999999999d",
             "12: 'lease' is '99999999999999999999d', which is too large, expected 100ms to 365d")
WRONG_OPTION(unbounded_duration_that_overflows, "grace: 106751991168d",
             "12: 'grace' is '106751991168d', which is too large, " DURATION)
WRONG_OPTION(
    decimal_unit_of_a_size, "cache: 2MB",
    "12: 'cache' is '2MB', which has a decimal unit, expected KiB, MiB or GiB, which are 1024 of the next "
    "smaller")
WRONG_OPTION(
    missing_unit_of_a_size, "cache: 2048",
    "12: 'cache' is '2048', which has no unit, expected a size such as 64KiB (units: B, KiB, MiB, GiB)")
WRONG_OPTION(size_out_of_range, "cache: 2GiB",
             "12: 'cache' is '2GiB', which is out of range, expected 1KiB to 1GiB")
WRONG_OPTION(size_too_fine, "cache: 1.0001KiB",
             "12: 'cache' is '1.0001KiB', which is too fine, expected whole bytes")
WRONG_OPTION(number_out_of_range, "port: 65536",
             "11: 'port' is '65536', which is out of range, expected 1 to 65535")
WRONG_OPTION(number_that_overflows, "port: 9223372036854775808",
             "11: 'port' is '9223372036854775808', which is too large, expected 1 to 65535")
WRONG_OPTION(too_few_items, "nodes: []", "12: 'nodes' has 0 items, expected 1 to 3")
WRONG_OPTION(too_many_items, "nodes: [a, b, c, d]", "12: 'nodes' has 4 items, expected 1 to 3")
WRONG(wrong_unit_in_defaults, "defaults:\n  lease: 5\nbackends: {a: {driver: plain}}\n",
      "t:2:10: 'lease' is '5', which has no unit, " DURATION)
WRONG(wrong_unit_of_an_absent_driver, "backends: {a: {driver: absent, url: [x], lease: 5}}",
      "t:1:49: 'lease' is '5', which has no unit, " DURATION)
WRONG(wrong_value_of_another_backend,
      "use: a\nbackends:\n  a: {driver: plain}\n  b: {driver: plain, lease: 1x}\n",
      "t:4:29: 'lease' is '1x', which has an unknown unit, " DURATION)

/* ---- variables and secrets ------------------------------------------------------------------------- */

#define DOLLAR "begins no variable, expected ${NAME}, ${NAME:-default} or $$ for a dollar"
WRONG_OPTION(lone_dollar, "password: hunter$2", "15: a dollar in 'password' " DOLLAR)
WRONG_OPTION(variable_without_braces, "password: $PASSWORD", "15: a dollar in 'password' " DOLLAR)
WRONG_OPTION(variable_never_closed, "password: \"${PASSWORD\"", "15: a dollar in 'password' " DOLLAR)
WRONG_OPTION(variable_without_a_name, "password: ${}", "15: a dollar in 'password' " DOLLAR)
WRONG_OPTION(variable_in_a_default, "password: \"${A:-${B}}\"", "15: a dollar in 'password' " DOLLAR)
WRONG_OPTION(variable_without_quotes_in_braces, "nodes: [${A}]",
             "13: '${' without quotes inside [ ], expected quotes around the text")
WRONG(secret_given_twice, HEAD "password_file: /x\n    password: hunter2\n",
      "t:6:5: both 'password' and 'password_file' are given, expected one of them")
WRONG_OPTION(empty_path_of_a_secret, "password_file: \"\"",
             "20: 'password_file' is empty, expected the path of a file")

/* ---- backends and drivers -------------------------------------------------------------------------- */

WRONG(unknown_driver, "backends:\n  a: {driver: stor}\n",
      "t:2:15: unknown driver 'stor', did you mean 'store'?")
WRONG(unknown_driver_near_nothing, "backends:\n  a: {driver: zookeeper}\n",
      "t:2:15: unknown driver 'zookeeper', expected one of store, vault, plain, absent")
WRONG(missing_driver, "backends:\n  a: {path: p}\n",
      "t:2:3: backend 'a' lacks 'driver', expected 'driver: name'")
WRONG(driver_is_a_list, "backends:\n  a: {driver: [store]}\n",
      "t:2:15: 'driver' is a list, expected the name of a driver")
WRONG(driver_is_a_variable, "backends:\n  a: {driver: \"${DRIVER}\"}\n",
      "t:2:15: a variable in 'driver', expected the name of a driver as it is")
WRONG(missing_option, "backends:\n  b: {driver: store, lease: 1s}\n",
      "t:2:3: backend 'b' lacks 'path', expected 'path: value'")
WRONG(missing_secret, "backends:\n  b: {driver: vault}\n",
      "t:2:3: backend 'b' lacks 'key', expected 'key: value' or 'key_file: path'")
WRONG(backend_with_a_bad_name, "backends:\n  a b: {driver: plain}\n",
      "t:2:3: 'a b' cannot name a backend, expected 1 to 63 of the characters A-Z a-z 0-9 _ . -")
WRONG(backend_with_a_long_name,
      "backends:\n  a123456789012345678901234567890123456789012345678901234567890123: {driver: plain}\n",
      "t:2:3: 'a123456789012345678901234567890123456...' cannot name a backend, expected 1 to 63 of the "
      "characters "
      "A-Z a-z 0-9 _ . -")
WRONG(backend_is_text, "backends:\n  a: plain\n",
      "t:2:6: backend 'a' is text, expected a mapping with 'driver'")
WRONG(backend_is_nothing, "backends:\n  a:\n",
      "t:2:3: backend 'a' is empty, expected a mapping with 'driver'")
WRONG(use_names_no_backend, "use: ordes\nbackends:\n  orders: {driver: plain}\n",
      "t:1:6: 'use' names the backend 'ordes', which is not in the file, did you mean 'orders'?")
WRONG(use_names_nothing_near, "use: b\nbackends:\n  a: {driver: plain}\n",
      "t:1:6: 'use' names the backend 'b', which is not in the file, expected a name under 'backends'")
WRONG(use_is_a_list, "use: [a]\nbackends:\n  a: {driver: plain}\n",
      "t:1:6: 'use' is a list, expected the name of a backend")
WRONG(use_is_nothing, "use:\nbackends:\n  a: {driver: plain}\n",
      "t:1:1: 'use' is empty, expected the name of a backend")
WRONG(backends_is_a_list, "backends:\n- a\n",
      "t:2:1: 'backends' is a list, expected a mapping of names to backends")
WRONG(backends_is_empty, "backends: {}\n",
      "t:1:11: 'backends' is empty, expected a mapping of names to backends")
WRONG(defaults_is_text, "defaults: x\nbackends: {a: {driver: plain}}\n",
      "t:1:11: 'defaults' is text, expected a mapping of options")
WRONG(no_backends, "defaults: {lease: 3s}\n", "t:1:1: 'backends' is missing, expected a mapping with it")

/* ---- the text -------------------------------------------------------------------------------------- */

WRONG(empty_file, "", "t:1:1: nothing is configured, expected a mapping with 'backends'")
WRONG(only_comments, "# nothing\n\n", "t:1:1: nothing is configured, expected a mapping with 'backends'")
WRONG(file_is_a_text, "hello\n", "t:1:1: the configuration is text, expected a mapping with 'backends'")
WRONG(file_is_a_list, "\n- a\n", "t:2:1: the configuration is a list, expected a mapping with 'backends'")
WRONG(not_utf8, "use: local\n# \xC3\xA4\xC3\xA4 \xFF\n",
      "t:2:6: the byte 0xFF is not UTF-8, expected UTF-8 text")
WRONG(overlong_utf8, "use: \xC0\xAF\n", "t:1:6: the byte 0xC0 is not UTF-8, expected UTF-8 text")
WRONG(surrogate_in_utf8, "use: \xED\xA0\x80\n", "t:1:6: the byte 0xED is not UTF-8, expected UTF-8 text")
WRONG(cut_utf8, "use: \xE2\x82", "t:1:6: the byte 0xE2 is not UTF-8, expected UTF-8 text")
WRONG(utf16, "\xFF\xFEu\0s\0e\0", "t:1:1: the byte 0xFF is not UTF-8, expected UTF-8 text")
WRONG(nul_byte, "use: lo\0cal\n", "t:1:8: a NUL byte, expected text")
WRONG(nul_character, "use: \"lo\\0cal\"\n", "t:1:6: a NUL character in a text, expected text without one")
WRONG(control_character, "use: \x1B[31m\n", "t:1:6: a control character, expected printable text")
WRONG(line_separator,
      "use: a\xE2\x80\xA8"
      "b\n",
      "t:1:7: a Unicode line separator, expected an ordinary line end")
WRONG(byte_order_mark_inside, "use: a\n\xEF\xBB\xBF\n",
      "t:2:1: a byte order mark inside the text, expected one at most at the start")

/* ---- syntax ---------------------------------------------------------------------------------------- */

WRONG_OPTION(anchor, "lease: &l 3s", "12: an anchor '&', expected the value alone")
WRONG_OPTION(anchor_without_a_name, "lease: & 3s", "12: an anchor '&', expected the value alone")
WRONG_OPTION(alias, "lease: *l", "12: an alias '*', expected the value itself")
WRONG_OPTION(tag, "port: !!int 5", "11: a tag '!', expected the value alone")
WRONG_OPTION(unknown_tag, "port: !x!y 5", "11: a tag '!', expected the value alone")
WRONG(directive, "%YAML 1.1\n---\nuse: local\n", "t:1:1: a directive '%', expected the document alone")
WRONG(unknown_directive, "%FOO bar\n---\nuse: local\n", "t:1:1: a directive '%', expected the document alone")
WRONG(second_document, "use: local\n---\nuse: local\n", "t:2:1: a second document, expected one in a file")
WRONG(text_after_the_end, "use: local\n...\nuse: local\n",
      "t:3:1: more text after the end of the document, expected nothing")
WRONG(tab_for_indentation, "backends:\n\ta: {driver: plain}\n", "t:2:1: a tab, expected spaces")
WRONG_OPTION(missing_colon, "lease 3s\n    port: 1", "5: no ':' after this word, expected 'key: value'")
WRONG(colon_without_a_space, "backends: {a: {driver: plain, nodes:[b]}}\n",
      "t:1:36: no space after this ':', expected 'key: value'")
WRONG_OPTION(
    second_colon, "path: a: b",
    "12: a ':' where no key can be, expected quotes around a text with ': ' in it, or another indentation")
WRONG(wrong_indentation, "backends:\n  a:\n    driver: plain\n   lease: 3s\n",
      "t:4:4: does not line up with line 2, expected 'key: value' in the same column")
WRONG(quote_never_closed, "backends:\n  a: {driver: \"plain}\n",
      "t:2:15: a quote that is never closed, expected the closing quote")
WRONG(brace_never_closed, "backends: {a: {driver: plain}\n",
      "t:1:11: a '{' that is never closed, expected '}'")
WRONG(bracket_never_closed, HEAD "nodes: [a,\n  b", "t:5:12: a '[' that is never closed, expected ']'")
WRONG(brace_still_open, "backends:\n  a: {driver: plain, lease: 3s\n  b: {driver: plain}\n",
      "t:3:4: the '{' of line 2 is still open here, expected ',' or '}'")
WRONG(text_that_begins_with_a_reserved_character, "use: @local\n",
      "t:1:6: a text that begins with '@', expected it in quotes")
WRONG_OPTION(unknown_escape, "path: \"C:\\path\"",
             "14: an unknown escape after '\\', expected one of YAML's or single quotes")
WRONG(nested_too_deeply, "backends: {a: {driver: absent, x: [[[[[[[1]]]]]]]}}",
      "t:1:40: nested too deeply, expected at most 8 levels")
