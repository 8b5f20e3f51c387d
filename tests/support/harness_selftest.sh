#!/usr/bin/env bash
# harness_selftest.sh - every case of failing_cases.c fails, on every driver it concerns, and says why.
# SPDX-License-Identifier: Apache-2.0
#
# usage: harness_selftest.sh FAILING_RUNNER CAPS_TXT
set -u
runner=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
bad=0

# What each case has to print.
declare -A says=(
    [fails__on_a_false_condition]='ct_driver_name(ct) == NULL is false'
    [fails__on_a_wrong_number]='sheep == 2 is false: 3 and 2'
    [fails__on_a_number_that_does_not_come]='sheep == 2 did not come true in time: 3 and 2'
    [fails__on_a_text_without_a_part]="has no 'rye': it is 'wheat'"
    [fails__on_a_wrong_status]='is DL_ENOTOWNER, expected DL_OK'
    [fails__on_a_status_without_an_error]='but left err alone'
    [fails__on_an_error_with_another_status]='but err says DL_EIO'
    [fails__on_an_error_written_on_success]='but wrote to err'
    [fails__in_a_thread]='in a thread or process of the case'
    [fails__in_a_child_process]='in a child process: '
    [fails__when_a_child_process_dies]='died of signal 6'
    [fails__when_a_child_process_is_left]='neither waited for nor killed'
    [fails__when_a_thread_is_left]='a thread was not joined'
    [fails__when_a_latch_stays_closed]='a latch is still closed'
    [fails__when_an_event_does_not_come]='no event of kind 1'
    [fails__when_a_descriptor_is_left]='left open'
    [fails__when_it_hangs]='the case hangs'
    [fails__when_everybody_waits_for_ever]='deadlock: every thread waits'
    [breach__a_hold_id_that_falls]='does not rise'
    [breach__a_hold_id_of_two_names]='does not rise'
    [breach__a_deadline_too_far]='a deadline 3000 ms away'
    [breach__an_old_deadline]='a deadline that is over'
    [breach__a_level_without_counts]='try_acquire for level 2'
    [breach__a_grant_without_a_release]='was granted, and never released'
    [breach__an_op_after_close]='an op after close'
    [breach__a_hold_dropped_twice]='a hold was dropped twice'
    [breach__a_hold_not_dropped]='1 holds were not dropped'
    [breach__two_ops_at_once_on_one_hold]='two ops at once on one hold'
    [breach__one_name_twice_in_a_batch]='in one batch'
    [breach__a_watch_not_ended]="the watch of 'x' was not ended"
    [breach__two_watches_of_a_name]="two watches of 'x' at once"
    [breach__two_that_listen_at_once]='two threads between listen_fds and listen'
    [breach__a_listener_that_did_not_ask]='listen in a thread that has not asked listen_fds'
)

check() { # driver/case output: runs it alone; prints nothing if it did as it should
    local name=$1 case=${1#*/} status
    if [ -z "${says[$case]:-}" ]; then
        echo "$name: nobody knows what it should say"
        return
    fi
    "$runner" --driver "${name%%/*}" --case "$name" >"$2" 2>&1
    status=$?
    # The reason once more in the last lines, with the way to run it again.
    if [ $status -ne 1 ] || [[ $(tail -n 1 "$2") != '0 passed, 1 failed'* ]] || ! grep -qF -- "${says[$case]}" "$2" ||
        [[ $(tail -n 3 "$2" | head -n 1) != "  $name: "* ]] || [[ $(tail -n 2 "$2") != *" --case $name"* ]]; then
        echo "$name: exit status $status, and this output instead of '${says[$case]}':"
        cat "$2"
    fi
}

# They wait most of their time.
at_once=6 running=0 number=0
declare -A unseen=()
for case in "${!says[@]}"; do
    unseen[$case]=1
done
"$runner" --list >"$work/list" || exit 1
while IFS= read -r name; do
    unset "unseen[${name#*/}]"
    if [ $running -eq $at_once ]; then
        wait -n
        running=$((running - 1))
    fi
    check "$name" "$work/output-$number" </dev/null >"$work/wrong-$number" 2>&1 &
    running=$((running + 1)) number=$((number + 1))
done <"$work/list"
wait
for ((i = 0; i < number; i++)); do
    if [ -s "$work/wrong-$i" ] || [ ! -e "$work/output-$i" ]; then
        cat "$work/wrong-$i"
        bad=1
    fi
done
for case in "${!unseen[@]}"; do
    echo "$case: it ran on no driver"
    bad=1
done

# A table of caps that differs is a failure too, and so is a fixture that is gone.
for change in 's/^fake-lease LEASE,FENCE /fake-lease LEASE /' 's/^fake-count .*//' '$a fake-gone LEASE VIRTUAL'; do
    sed "$change" "$2" >"$work/caps.txt"
    if "$runner" --caps-file "$work/caps.txt" --case no_such_case >"$work/output" 2>&1 ||
        ! grep -q '^FAIL caps' "$work/output"; then
        echo "the caps table changed by '$change' was accepted"
        bad=1
    fi
done
"$runner" --caps-file "$2" --case no_such_case || bad=1
exit $bad
