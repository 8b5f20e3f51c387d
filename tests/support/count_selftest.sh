#!/usr/bin/env bash
# count_selftest.sh - a failure while the host kept the processors is run again; any other failure counts at once.
# SPDX-License-Identifier: Apache-2.0
#
# usage: count_selftest.sh TESTS_DIR
set -u
count=$1/count weather=$1/weather
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
bad=0

# forecast PERCENT: what the host keeps, in all the time there is.
forecast() {
    awk -v percent="$1" 'BEGIN { for (i = 0; i < 40; i++) print i * 1e8, i * 100, i * percent }' >"$work/weather"
}

# A test program of each kind, with one case that fails until its Nth run. It says $SAYS, and goes by what $ENDS says.
cat >"$work/program" <<'PROGRAM'
#!/usr/bin/env bash
read -r up _ </proc/uptime
case " $* " in *' --list '*) printf 'suite: 1 tests\n    a_case\n'; exit 0 ;; esac
echo run >>"$RUNS"
runs=$(wc -l <"$RUNS")
tap=/dev/null
for word in "$@"; do case $word in --tap=*) tap=${word#--tap=} ;; esac; done
if [ "$runs" -ge "$GOOD_FROM" ]; then
    echo "ok - suite::a_case  (0.00s)" >"$tap"
    echo "[====] Synthesis: Tested: 1 | Passing: 1 | Failing: 0 | Crashing: 0"
    case " $* " in *' --case '*) echo '1 passed, 0 failed, 0 not applicable' ;; esac
    exit 0
fi
echo "suite/a_case: $SAYS"
[ -z "${NOISE:-}" ] || echo "$NOISE"
case $KIND in
contract)
    echo "ok   suite/another (1 ms)"
    echo "FAIL suite/a_case: see its own line (from $up s to $up s)"
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

# expect KIND GOOD_FROM SAYS RUNS COUNTS AGAIN: the account of it.
expect() {
    local got
    rm -f "$work/runs" "$work/name"
    KIND=$1 GOOD_FROM=$2 SAYS=$3 RUNS=$work/runs DLOCK_FILTER='' DLOCK_TEST_RESULTS=$work DLOCK_TEST_WEATHER=$work/weather \
        DLOCK_WEATHER_WAIT=0 "$count" "$1" name "$work/program" >"$work/output" 2>&1
    got="$(wc -l <"$work/runs") $(head -n 1 "$work/name") $(grep -c '^again ' "$work/name")"
    if [ "$got" != "$4 $5 $6" ]; then
        echo "$1, good from run $2, '$3': runs, passed, failed, skipped, again are $got, expected $4 $5 $6"
        cat "$work/output"
        bad=1
    fi
}

late='979 ms, expected 0 to 750'
# What else passes in the same call: only these kinds have another case.
declare -A other=([single]=0 [criterion]=0 [contract]=1 [crowd]=1)
for kind in single criterion contract crowd; do
    more=${other[$kind]}
    forecast 30
    expect $kind 2 "$late" 2 "$((more + 1)) 0 0" 1
    expect $kind 4 "$late" 4 "$((more + 1)) 0 0" 3
    expect $kind 9 "$late" 4 "$more 1 0" 3
    expect $kind 2 "tokens_cases.c:149: $late" 2 "$((more + 1)) 0 0" 1
    expect $kind 2 "dlock: holding 'x', token 7, valid until 9 ms: $late" 2 "$((more + 1)) 0 0" 1
    expect $kind 2 "is DL_EIO: the token is not on a majority of the nodes: no time is left" 2 "$((more + 1)) 0 0" 1
    expect $kind 2 'dl_lock(ct_lock(ct, holder, "signal"), CT_ERR) is DL_EIO, expected DL_OK' 2 "$((more + 1)) 0 0" 1
    expect $kind 2 'dl_token(lock) == token is false: 0 and 7' 2 "$((more + 1)) 0 0" 1
    expect $kind 2 '9 killed, 0 second holders, 0 lost updates, 0 violations, "violations": 0, too late' 2 "$((more + 1)) 0 0" 1
    expect $kind 2 "late_cases.c:149: the token is 6 and was 7" 1 "$more 1 0" 0
    expect $kind 2 'dl_token(lock) == token is false: 6 and 7' 1 "$more 1 0" 0
    expect $kind 2 'dl_token(lock) == 0 is false: 7 and 0' 1 "$more 1 0" 0
    expect $kind 2 'token 6 after 7' 1 "$more 1 0" 0
    expect $kind 2 "the successor's token is not larger" 1 "$more 1 0" 0
    expect $kind 2 '__atomic_fetch_add(&c->inside, 1, 0) == 0 is false: 1 and 0' 1 "$more 1 0" 0
    expect $kind 2 'a second holder got in' 1 "$more 1 0" 0
    expect $kind 2 'total 99, lost updates 1' 1 "$more 1 0" 0
    expect $kind 2 'sold=100 oversold=10 seconds=1' 1 "$more 1 0" 0
    expect $kind 2 '10 violations' 1 "$more 1 0" 0
    expect $kind 2 'the child died of signal 11' 1 "$more 1 0" 0
    expect $kind 2 'two were inside' 1 "$more 1 0" 0
    expect $kind 2 'WARNING: ThreadSanitizer: data race' 1 "$more 1 0" 0
    forecast 10
    expect $kind 2 "$late" 1 "$more 1 0" 0
    rm "$work/weather"
    expect $kind 2 "$late" 1 "$more 1 0" 0
done

# A sanitizer's line has no name of a case in it.
forecast 30
NOISE='a.c:1:2: runtime error: signed integer overflow' expect contract 2 "$late" 2 '2 1 0' 1
NOISE='a.c:1:2: runtime error: signed integer overflow' expect crowd 2 "$late" 2 '2 1 0' 1
NOISE='a.c:1:2: runtime error: signed integer overflow' expect single 2 "$late" 1 '0 1 0' 0

# A case that ended at an assertion has freed nothing; any other leak counts, and whatever else was found.
asserted='[----] a.c:1: Assertion Failed'
leak=$'ERROR: LeakSanitizer: detected memory leaks\n #0 in draw_token\nSUMMARY: AddressSanitizer: 9 byte(s) leaked'
NOISE=$asserted$'\n'$leak expect criterion 2 "$late" 2 '1 0 0' 1
NOISE=$leak expect criterion 2 "$late" 1 '0 1 0' 0
NOISE=$asserted$'\n==1==ERROR: AddressSanitizer: heap-use-after-free\n'$leak expect criterion 2 "$late" 1 '0 1 0' 0

# Only what happened in the time counts, and the worst of it.
printf '%s\n' '10.00 1000 0' '10.25 1050 0' '10.50 1100 40' '10.75 1150 41' '11.00 1200 41' '11.25 1250 41' >"$work/weather"
for row in '0 9 0' '10.3 10.4 41' '10.6 10.7 41' '10.8 10.9 1' '11.1 11.2 0' '12 13 0'; do
    read -r from to percent <<<"$row"
    got=$("$weather" worst "$work/weather" "$from" "$to")
    [ "$got" = "$percent" ] || { echo "worst from $from to $to: $got, expected $percent"; bad=1; }
done

# It ends with who started it, and what it notes can be read.
rm "$work/weather"
bash -c "'$weather' watch '$work/weather' & echo \$! >'$work/pid'; until [ -s '$work/weather' ]; do :; done"
while kill -0 "$(cat "$work/pid")" 2>/dev/null; do :; done
[ "$(awk 'NF == 3 && $2 > $3 && $1 > 0' "$work/weather" | wc -l)" -ge 1 ] || { echo "it noted: $(cat "$work/weather")"; bad=1; }

# It can be ended.
rm "$work/weather"
"$weather" watch "$work/weather" &
until [ -s "$work/weather" ]; do :; done
kill $! && wait $! || { echo "it ended with exit status $?"; bad=1; }
exit $bad
