#!/usr/bin/env bash
# redlock_clocks.sh - sets the clocks of redlock's nodes: what docs/redlock.md says of it is what happens.
# SPDX-License-Identifier: Apache-2.0
#
# usage: tests/faults/redlock_clocks.sh HOLDER CLOCK_SHIM
# Five nodes. While one client holds a lock, clocks are set forward by an hour, one after the other, and another client
# tries to get the lock; once with the lock on all nodes, and once where two of them were not reached. Then with clocks
# set back.
set -euo pipefail

# shellcheck disable=SC2034
holder=$1 shim=$2 driver=redlock
# shellcheck source-path=SCRIPTDIR/../support
. "$(dirname "$0")/../support/checks.sh"
dir=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || :; wait; rm -rf "$dir"' EXIT
# shellcheck source=clocked.sh
. "$(dirname "$0")/clocked.sh"
command -v "${DLOCK_REDIS_SERVER:-redis-server}" >/dev/null || { echo "redis-server is missing"; exit 77; }
command -v redis-cli >/dev/null || { echo "redis-cli is missing"; exit 77; }

node_names=(a b c d e)
mkfifo "$dir/never"
nodes=""
for node in "${node_names[@]}"; do
    clock=$dir/clock-$node
    set_clock +0
    start_redis "$node"
    # As `dlock init` does with fresh nodes, so that they vote at once.
    run_id=$(redis-cli -s "$dir/$node.sock" info server | sed -n 's/^run_id:\([0-9a-f]*\).*/\1/p')
    equal "the answer of $node" "$(redis-cli -s "$dir/$node.sock" set dlock_tokens:node "$run_id")" OK
    nodes+="${nodes:+, }\"unix://$dir/$node.sock\""
done
cat >"$dir/dlock.yaml" <<END
use: quorum
backends:
  quorum: {driver: redlock, nodes: [$nodes], lease: 60s, max_lease: 60s, node_timeout: 2s}
END
open_client first
open_client second

move() { # NODE SECONDS
    clock=$dir/clock-$1
    set_clock "$2"
}
# An explicit lease: no renewal mends anything. Sets token.
hold() { # CLIENT NAME
    ask "$1" lock "$2" 10000 60000
    [[ $heard == DL_OK* ]] || die "$1 cannot lock $2: $heard"
    token=${heard#*token=} token=${token%% *}
}
# The first has it as soon as a majority does; the rest of its claims arrive a moment later.
on_all_nodes() { # NAME
    local node
    for node in "${node_names[@]}"; do
        until [ "$(redis-cli -s "$dir/$node.sock" exists "dlock:$1")" = 1 ]; do
            [ $SECONDS -lt 20 ] || die "the lock $1 does not come to $node"
            read -r -t 0.01 <>"$dir/never" || :
        done
    done
}
busy() { # CLIENT NAME WHY
    ask "$1" lock "$2" 500 1000
    [[ $heard == DL_ETIMEDOUT* ]] || die "$3: $1 is a second holder of $2, or cannot say: $heard"
    echo "$3: no second holder"
}
# The first is within its validity all the same.
second_holder() { # NAME WHY
    local first_token=$token
    hold second "$1"
    ask first valid "$1"
    [[ $heard == DL_OK\ valid=[1-9]* ]] || die "$2: the first is not valid any more: $heard"
    [ "$token" -gt "$first_token" ] || die "$2: the second's token $token is not above the first's $first_token"
    echo "$2: a second holder, with a larger token"
    ask second unlock "$1"
    [[ $heard == DL_OK* ]] || die "the second cannot unlock: $heard"
    # What is left of it is not worth a majority: its holder is told.
    ask first unlock "$1"
    [[ $heard == DL_ELOST* ]] || die "the first unlocked $1: $heard"
}
back_in_time() {
    local node
    for node in "${node_names[@]}"; do move "$node" +0; done
}

hold first everywhere
on_all_nodes everywhere
move a +3600
busy second everywhere "the lock on 5 of 5 nodes, 1 clock set forward"
move b +3600
busy second everywhere "the lock on 5 of 5 nodes, 2 clocks set forward"
move c +3600
second_holder everywhere "the lock on 5 of 5 nodes, 3 clocks set forward"
back_in_time

# As a claim that two nodes did not get in time: the lock is on a, b and c only.
hold first bare
on_all_nodes bare
for node in d e; do
    [ "$(redis-cli -s "$dir/$node.sock" del dlock:bare)" = 1 ] || die "the lock was not on $node"
done
busy second bare "the lock on 3 of 5 nodes"
move a +3600
second_holder bare "the lock on 3 of 5 nodes, 1 clock set forward"
back_in_time

hold first behind
on_all_nodes behind
for node in "${node_names[@]}"; do move "$node" -3600; done
busy second behind "all clocks set back"
ask first unlock behind
[[ $heard == DL_OK* ]] || die "the first cannot unlock: $heard"
previous=$token
hold second behind
[ "$token" -gt "$previous" ] || die "all clocks set back: the token fell from $previous to $token"
echo "all clocks set back: the next has the lock, with a larger token"
