#!/usr/bin/env bash
# account_selftest.sh - what failed says where, what both sides were, and how to run it again; and that is what it runs.
# SPDX-License-Identifier: Apache-2.0
#
# usage: account_selftest.sh COUNT FAILING_RUNNER [FAILING_VALUES]
# The values are a Criterion program, the runner one of the contract.
# shellcheck source=checks.sh
. "$(dirname "$0")/checks.sh"
set -euo pipefail
count=$1 runner=$2 values=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset DLOCK_REQUIRE_ALL DLOCK_TEST_TIME_SCALE

# account FILTER KIND NAME COMMAND...: the note on it, in $note.
account() {
    rm -f "$work/$3"
    DLOCK_FILTER=$1 DLOCK_TEST_RESULTS=$work DLOCK_TEST_COMMAND="scripts/test --preset it" "$count" "${@:2}" \
        >"$work/output" 2>&1 || :
    note=$(cat "$work/$3")
}

# expect LABEL REASON: the note has the three lines of this failure, one after the other.
expect() {
    local got
    got=$(grep -F -A 2 "FAILED  $1: " <<<"$note") || die "$1 is not in: $note"
    [[ $(sed -n 2p <<<"$got") == "        "*"$2" ]] || die "expected '$2' behind: $got"
    equal "the way to run it again" "$(sed -n 3p <<<"$got")" "        again: scripts/test --preset it --filter $1"
}

# only LABEL KIND NAME COMMAND...: by the name that the account has, this case is run and no other.
only() {
    account "$@"
    equal "how many lines of failures there are by $1" "$(grep -c '^FAILED' <<<"$note")" 1
    has "the account by $1" "$note" "^FAILED  $1: "
}

if [ -n "$values" ]; then
    declare -A says=(
        [of_integers]='sheep == 2 is false: 3 and 2; of the fold'
        [of_negative_integers]='left >= 0 is false: -3 and 0'
        [of_texts]="grain == \"rye\" is false: 'wheat' and 'rye'"
        [of_a_text_without_a_part]="grain has no 'rye': it is 'wheat'"
        [of_bytes]="grain == \"a\\nc\" is false: from byte 2 of 3 on 'b' and 'c'"
        [of_numbers_that_are_near]='weight == 0.25 is false: 0.5 and 0.25'
        [of_pointers]='sheep != NULL is false: NULL and NULL'
        [that_do_not_come]='sheep == 2 did not come true in time: 3 and 2'
    )
    for kind in criterion crowd; do
        account "" $kind grain "$values"
        for case in "${!says[@]}"; do
            line=$(awk -v case="(values, $case)" 'index($0, case) { on = 1 } on && /cr_assert|AWAIT/ { print NR; exit }' \
                "$(dirname "$0")/failing_values.c")
            expect "grain/values/$case" "tests/support/failing_values.c:$line: ${says[$case]}"
        done
        equal "the counts" "$(head -n 1 <<<"$note")" "1 ${#says[@]} 0"
        only grain/values/of_texts $kind grain "$values"
    done
fi

account "" contract contract-fake-lease "$runner" --driver fake-lease --case fails__on_a_
expect contract-fake-lease/fails__on_a_wrong_number ": sheep == 2 is false: 3 and 2"
has "the place of it" "$note" "tests/support/failing_cases.c:[0-9]+: sheep == 2 is false"
only contract-fake-lease/fails__on_a_wrong_number contract contract-fake-lease "$runner" --driver fake-lease

printf '#!/bin/sh\necho first\necho "tests/x.sh:7: sheep is 3, expected 2"\nexit 1\n' >"$work/program"
chmod +x "$work/program"
account "" single script "$work/program"
equal "the note on a script" "$(tail -n +2 <<<"$note")" "FAILED  script/all: exit status 1
        first
        tests/x.sh:7: sheep is 3, expected 2
        again: scripts/test --preset it --filter script/all"
only script/all single script "$work/program"

# What ends a script of ours says the line and the command.
printf '#!/usr/bin/env bash\nset -euo pipefail\n. "%s"\nsheep() { [ "$1" = 2 ]; }\nsheep 3\n' \
    "$(realpath "$(dirname "$0")/checks.sh")" >"$work/program"
account "" single script "$work/program"
has "the note on a script" "$note" 'program:4: exit status 1: \[ "\$1" = 2 \]'
