#!/usr/bin/env bash
# switching.sh - the three phases of docs/switching.md: which of them keep each other out, and which do not.
# SPDX-License-Identifier: Apache-2.0
#
# usage: tests/faults/switching.sh SOURCE_DIR DLOCK     from the lock file to Redis
set -euo pipefail

source_dir=$1 dlock=$2
# shellcheck source-path=SCRIPTDIR/../support
. "$source_dir/tests/support/checks.sh"
work=$(mktemp -d)
. "$source_dir/tests/support/servers.sh"
trap 'stop_servers; rm -rf "$work"' EXIT
unset DLOCK_BACKEND DLOCK_REDIS_URL

start_servers sqlite redis-string
cp "$source_dir/config/examples/matrix.yaml" "$work/dlock.yaml"
export DLOCK_CONFIG=$work/dlock.yaml
# The wait of a lock that the other phase keeps; enough for one that it does not.
wait=500ms
old=("$dlock" run orders --backend local --wait "$wait" --)
new=("$dlock" run orders --backend redis-string --wait "$wait" --)
# shellcheck disable=SC2034 # named by number below
phase_1=("${old[@]}") phase_2=("${old[@]}" "${new[@]}") phase_3=("${new[@]}")

# expect STATUS HOLDER OTHER: what OTHER ends with when it asks while HOLDER holds. 75: kept out.
expect() {
    local -n holder=phase_$2 other=phase_$3
    local status=0
    rm -f "$work/was_in"
    "${holder[@]}" "${other[@]}" touch "$work/was_in" >"$work/out" 2>&1 || status=$?
    if [ $status -ne "$1" ] || { [ "$1" -eq 75 ] && [ -e "$work/was_in" ]; }; then
        die "while phase $2 holds, phase $3 ends with $status, not $1: $(cat "$work/out")"
    fi
    echo "while phase $2 holds, phase $3 $([ "$1" -eq 0 ] && echo "gets in" || echo "is kept out")"
}

for phase in 1 2 3; do
    expect 75 $phase $phase
done
expect 75 1 2
expect 75 2 1
expect 75 2 3
expect 75 3 2
# Why phase 2 has to be everywhere before the first 3.
expect 0 1 3
expect 0 3 1

# Whoever holds by one lock only is seen on the old backend, and when the last has gone nobody is.
has "the list" "$("${phase_1[@]}" "$dlock" --backend local list)" "^orders: held by "
"${phase_3[@]}" "$dlock" --backend local --json list >"$work/out"
equal "what is listed of orders" "$(grep orders "$work/out")" ""
