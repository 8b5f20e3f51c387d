#!/usr/bin/env bash
# soak.sh - three clients of one process on three kinds of servers at once: nothing is violated, nothing grows.
# SPDX-License-Identifier: Apache-2.0
#
# usage: tests/faults/soak.sh SOURCE_DIR SOAK SECONDS     run it by with_mysql
set -euo pipefail

source_dir=$1 soak=$2 seconds=$3
# shellcheck source-path=SCRIPTDIR/../support
. "$source_dir/tests/support/checks.sh"
work=$(mktemp -d)
. "$source_dir/tests/support/servers.sh"
trap 'stop_servers; rm -rf "$work"' EXIT
unset DLOCK_BACKEND DLOCK_REDIS_URL

backends=(local redis-string mysql-lease)
start_servers sqlite redis-string mysql-lease
# Renewals are what the time is too short for otherwise.
sed 's/^  lease: 10s$/&\n  renew_every: 100ms/' "$source_dir/config/examples/matrix.yaml" >"$work/dlock.yaml"
"$soak" "$work/dlock.yaml" "$seconds" "${backends[@]}" | tee "$work/out"

# The program has judged what must never be; with servers that nobody disturbs there is more that must not.
for backend in "${backends[@]}"; do
    has "the account" "$(cat "$work/out")" "^$backend \(.*\): [1-9][0-9]* acquisitions, .*; renewed [1-9][0-9]* times?$"
done
equal "how many backends did well" "$(grep -c "unreachable or unknown 0, lost 0, violations 0$" "$work/out")" ${#backends[@]}
has "the account" "$(cat "$work/out")" ": all was well$"
