#!/usr/bin/env bash
# docs_faults.sh - docs/faults.md names every test of a fault, and no test that is not there.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

page=$source_dir/docs/faults.md
grep -o '^| `row[^`]*`' "$page" | tr -d '|` ' | sort >"$work/page"
"$build_dir/tests/support/plain_runner" --list | sed -n 's,^[^/]*/faults__\(row.*\),\1,p' | sort -u >"$work/tests"
[ "$(wc -l <"$work/tests")" -gt 30 ] || die "only $(wc -l <"$work/tests") tests of faults are listed"

twice=$(uniq -d "$work/page")
[ -z "$twice" ] || die "more than once in docs/faults.md: $twice"
missing=$(comm -13 "$work/page" "$work/tests")
[ -z "$missing" ] || die "tests that docs/faults.md lacks: $missing"
# A build that leaves drivers out has fewer tests than the page.
if ! grep -q '^DLOCK_WITH_[A-Z]*:BOOL=OFF' "$build_dir/CMakeCache.txt"; then
    gone=$(comm -23 "$work/page" "$work/tests")
    [ -z "$gone" ] || die "tests of docs/faults.md that are not there: $gone"
fi
