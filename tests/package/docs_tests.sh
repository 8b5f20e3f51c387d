#!/usr/bin/env bash
# docs_tests.sh - each row of docs/origins.md, docs/threats.md and docs/guarantees.md names its test, and these are there.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

# ---- the tests that there are: `suite/case` of what is built, and scripts that a CMakeLists.txt runs

# Cases of the contract, by the runner itself: those that some driver runs.
"$build_dir/tests/support/plain_runner" --list | sed -nE 's,^[^/]*/(.*)__(.*)$,\1/\2,p' >"$work/listed"
[ "$(wc -l <"$work/listed")" -gt 500 ] || die "the contract lists only $(wc -l <"$work/listed") cases"
# Unit tests: from the sources that are compiled, without their comments, as a name may stand on the line below.
sed -nE 's/^ *"file": "(.*)",?$/\1/p' "$build_dir/compile_commands.json" | grep -E '/tests/[a-z]+/[a-z0-9_]+_test\.c$' |
    sort -u >"$work/sources"
[ "$(wc -l <"$work/sources")" -gt 30 ] || die "only $(wc -l <"$work/sources") programs of unit tests are built"
while IFS= read -r source; do
    cc -fpreprocessed -dD -E -P "$source" 2>/dev/null | tr '\n' ' ' |
        grep -oE '\<Test\([a-z_0-9]+, *[a-z0-9_]+' | sed -E 's,^Test\(([a-z_0-9]+)\, *,\1/,' || :
done <"$work/sources" >>"$work/listed"
sort -u "$work/listed" >"$work/tests"

# ---- the rows: in every table whose last column is `test`, what stands in that column

check_name() { # PAGE LINE NAME
    case $3 in
    tests/*)
        [ -f "$source_dir/$3" ] || die "$1:$2: there is no $3" >&2
        grep -qw "$(basename "${3%.*}")" "$source_dir/$(dirname "$3")/CMakeLists.txt" || die "$1:$2: nothing runs $3" >&2
        ;;
    *) grep -qxF "$3" "$work/tests" || echo "$1:$2: there is no test $3" ;;
    esac
}

check_page() { # PAGE ROWS: it has more of them than this
    local line cell name
    awk -F '|' '
        !/^\|/ { in_table = 0; next }
        !in_table { in_table = 1; last = $(NF - 1); gsub(/ /, "", last); tests = last == "test"; columns = NF; next }
        /^\|[-| ]*$/ || !tests { next }
        NF != columns { print FNR "|" "a row of " NF - 2 " columns"; next }
        { print FNR "|" $(NF - 1) }
    ' "$source_dir/$1" >"$work/rows"
    [ "$(wc -l <"$work/rows")" -gt "$2" ] || die "only $(wc -l <"$work/rows") rows with tests in $1"
    while IFS='|' read -r line cell; do
        cell=$(sed -E 's/^ +| +$//g' <<<"$cell")
        # Nothing to be tested: that has to be said, not left out.
        [ "$cell" != "–" ] || continue
        [[ $cell =~ ^\`[a-z0-9_./-]+\`(,\ \`[a-z0-9_./-]+\`)*$ ]] || die "$1:$line: no names of tests: '$cell'" >&2
        for name in $(tr -d '`,' <<<"$cell"); do
            check_name "$1" "$line" "$name"
        done
    done <"$work/rows" >>"$work/missing"
}
check_page docs/origins.md 80
check_page docs/threats.md 30
check_page docs/guarantees.md 10

# A build that leaves drivers out has fewer tests than the pages.
if [ -s "$work/missing" ] && ! grep -q '^DLOCK_WITH_[A-Z]*:BOOL=OFF' "$build_dir/CMakeCache.txt"; then
    cat "$work/missing"
    die "tests that are not there"
fi
