#!/usr/bin/env bash
# count_selftest.sh - tests/count runs each case once, and what did not pass counts as failed.
# SPDX-License-Identifier: Apache-2.0
#
# usage: count_selftest.sh TESTS_DIR
set -u
count=$1/count
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
bad=0

# A test program of each kind, with one case; of two kinds a second one passes. $ENDS: passed, failed or silent.
cat >"$work/program" <<'PROGRAM'
#!/usr/bin/env bash
case " $* " in *' --list '*) printf 'suite: 1 tests\n    a_case\n'; exit 0 ;; esac
echo run >>"$RUNS"
[ -z "${NOISE:-}" ] || echo "$NOISE"
tap=/dev/null
for word in "$@"; do case $word in --tap=*) tap=${word#--tap=} ;; esac; done
[ "$ENDS" != silent ] || exit 0
if [ "$ENDS" = passed ]; then
    echo "ok - suite::a_case  (0.00s)" >"$tap"
    echo "[====] Synthesis: Tested: 2 | Passing: 2 | Failing: 0 | Crashing: 0"
    echo '2 passed, 0 failed, 0 not applicable'
    exit 0
fi
echo "suite/a_case: it is 9, expected 7"
case $KIND in
contract)
    echo "ok   suite/another (1 ms)"
    echo "FAIL suite/a_case: it is 9, expected 7 (from 1.00 s to 2.00 s)"
    echo '1 passed, 1 failed, 0 not applicable'
    ;;
crowd)
    echo "[FAIL] suite::a_case: (0.00s)"
    echo "[====] Synthesis: Tested: 2 | Passing: 1 | Failing: 1 | Crashing: 0"
    ;;
esac
exit 1
PROGRAM
chmod +x "$work/program"

# expect KIND ENDS COUNTS: the account of it.
expect() {
    local got
    rm -f "$work/runs" "$work/name"
    KIND=$1 ENDS=$2 RUNS=$work/runs DLOCK_FILTER='' DLOCK_TEST_RESULTS=$work \
        "$count" "$1" name "$work/program" >"$work/output" 2>&1
    got="$(wc -l <"$work/runs") $(head -n 1 "$work/name") $(grep -c '^FAILED ' "$work/name")"
    if [ "$got" != "1 $3 $(cut -d ' ' -f 2 <<<"$3")" ]; then
        echo "$1, $2${NOISE:+, it says $NOISE}: runs, passed, failed, skipped, accounts are $got, expected once $3"
        cat "$work/output"
        bad=1
    fi
}

# What else passes in the same call: only these kinds have another case.
declare -A other=([single]=0 [criterion]=0 [contract]=1 [crowd]=1)
for kind in single criterion contract crowd; do
    more=${other[$kind]}
    expect $kind passed "$((more + 1)) 0 0"
    expect $kind failed "$more 1 0"
    NOISE='a.c:1:2: runtime error: signed integer overflow' expect $kind failed "$more 1 0"
    if [ $kind != single ]; then expect $kind silent '0 1 0'; fi
done
# A program that ends well has not passed if a sanitizer complained; the cases that it counts have.
NOISE='a.c:1:2: runtime error: signed integer overflow' expect single passed '0 1 0'
NOISE='a.c:1:2: runtime error: signed integer overflow' expect criterion passed '0 1 0'
NOISE='a.c:1:2: runtime error: signed integer overflow' expect contract passed '2 1 0'
NOISE='a.c:1:2: runtime error: signed integer overflow' expect crowd passed '2 1 0'
exit $bad
