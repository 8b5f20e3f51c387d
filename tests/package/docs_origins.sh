#!/usr/bin/env bash
# docs_origins.sh - docs/origins.md names no test that is not there, and its links lead somewhere.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

page=$source_dir/docs/origins.md
grep -oE '`[a-z_]+/[a-z0-9_]+`' "$page" | tr -d '`' | sort -u >"$work/named"
[ "$(wc -l <"$work/named")" -gt 20 ] || die "only $(wc -l <"$work/named") tests are named in docs/origins.md"
# A name that is too long for its line stands on the next one.
cat "$source_dir"/tests/*/*_cases.c "$source_dir"/tests/unit/*_test.c | tr '\n' ' ' |
    grep -oE '(CT_CASE|Test)\([a-z_0-9]+, *[a-z0-9_]+' | sed -E 's,^[^(]*\(([a-z_0-9]+)\, *,\1/,' | sort -u >"$work/tests"
gone=$(comm -23 "$work/named" "$work/tests")
[ -z "$gone" ] || die "tests of docs/origins.md that are not there: $gone"

grep -oE '\]\([^)#]*' "$page" | cut -c 3- | while IFS= read -r link; do
    [ -z "$link" ] || [ -e "$source_dir/docs/$link" ] || die "docs/origins.md links to $link, which is not there"
done
