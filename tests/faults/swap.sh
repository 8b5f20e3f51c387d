#!/usr/bin/env bash
# swap.sh - one binary, one file: each edit of the word after `use:` puts the same locks on another backend.
# SPDX-License-Identifier: Apache-2.0
#
# usage: tests/faults/swap.sh SOURCE_DIR PROGRAM DLOCK DRIVER...
#   PROGRAM is examples/embedded, DLOCK the command; run it by with_mysql where a DRIVER is one of MySQL's
set -euo pipefail

source_dir=$1 program=$2 dlock=$3
shift 3
# shellcheck source-path=SCRIPTDIR/../support
. "$source_dir/tests/support/checks.sh"
work=$(mktemp -d)
. "$source_dir/tests/support/servers.sh"
trap 'stop_servers; rm -rf "$work"' EXIT
unset DLOCK_CONFIG DLOCK_BACKEND DLOCK_REDIS_URL

start_servers "$@"
config=$work/dlock.yaml
cp "$source_dir/config/examples/matrix.yaml" "$config"
sum=$(sha256sum <"$program")

previous=""
for driver in "$@"; do
    backend=$(backend_of "$driver")
    cp "$config" "$work/before"
    use "$backend" "$config"
    # One word is another, or none for the first.
    [ "$(diff "$work/before" "$config" | grep -c '^>')" -le 1 ] || die "more than one line was edited"
    # New nodes of a quorum have no vote until they are known.
    [ "$driver" != redlock ] || "$dlock" --config "$config" init

    # The lock is taken by somebody on the backend of before: that is no lock any more for who uses this one. This is
    # what docs/switching.md warns of.
    if [ -n "$previous" ]; then
        out=$("$dlock" --config "$config" --backend "$previous" run embedded -- "$program" "$config" 2>&1) ||
            die "$driver, with the lock of $previous held: $out"
    else
        out=$("$program" "$config" 2>&1) || die "$driver: $out"
    fi
    for expected in "backend $backend, driver $driver" "(ours)" "unlocked"; do
        [[ $out == *"$expected"* ]] || die "$driver: expected '$expected' in: $out"
    done
    # On its own backend it excludes.
    status=0
    "$dlock" --config "$config" run embedded -- \
        "$dlock" --config "$config" run --wait 1s embedded -- true >"$work/out" 2>&1 || status=$?
    [ $status -ne 0 ] || die "$driver: a second holder got in: $(cat "$work/out")"
    [ $status -eq 75 ] || die "$driver: the second to ask ends with $status: $(cat "$work/out")"
    ! "$dlock" --config "$config" list | grep -w embedded || die "$driver: a lock was left behind"
    echo "use: $backend"
    previous=$backend
done
[ "$(sha256sum <"$program")" = "$sum" ] || die "the program is another one now"
