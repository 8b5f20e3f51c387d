#!/usr/bin/env bash
# tokens.sh - prints the tokens of consecutive holders when servers lose their data and clocks are set back.
# SPDX-License-Identifier: Apache-2.0
#
# usage: tests/faults/tokens.sh HOLDER CLOCK_SHIM WITH_MYSQL
# One line a driver: what its tokens are at first, after the server lost its data, with its clock an hour behind, and
# after both; each for the client that was there before, and for a new one. `+` is a token above all before it, `-` one
# below, each with the distance in seconds. What docs/guarantees.md promises has to hold, and where it says that the
# promise ends, it has to end.
set -euo pipefail

# shellcheck disable=SC2034
holder=$1 shim=$2 with_mysql=$3
back_s=-3600
# shellcheck source-path=SCRIPTDIR/../support
. "$(dirname "$0")/../support/checks.sh"
# shellcheck source=clocked.sh
. "$(dirname "$0")/clocked.sh"

# ---- servers that lose what they have ---------------------------------------------------------------------

empty_redis() { # NAME...: killed, and started without data
    local name
    for name in "$@"; do
        kill -9 "${pids[$name]}"
        wait "${pids[$name]}" 2>/dev/null || :
        start_redis "$name"
    done
}
sql() {
    local client
    client=$(command -v mariadb || command -v mysql) || die "there is neither mariadb nor mysql, the client"
    "$client" --no-defaults --loose-skip-ssl -u root -S "$DLOCK_TEST_MYSQL_SOCKET" -D "$DLOCK_TEST_MYSQL_DATABASE" -N -e "$1"
}

# ---- what is done to each kind of server ------------------------------------------------------------------

start() {
    local options=""
    case $kind in
    sqlite) options="path: \"$dir/locks.db\"" ;;
    redis)
        start_redis redis
        options="url: \"unix://$dir/redis.sock\""
        ;;
    mysql)
        options="socket: \"$DLOCK_TEST_MYSQL_SOCKET\", user: $DLOCK_TEST_MYSQL_USER"
        options+=", password: $DLOCK_TEST_MYSQL_PASSWORD, database: $DLOCK_TEST_MYSQL_DATABASE, create: true"
        ;;
    redlock)
        start_redis a
        start_redis b
        start_redis c
        options="nodes: [\"unix://$dir/a.sock\", \"unix://$dir/b.sock\", \"unix://$dir/c.sock\"], max_lease: 1s"
        ;;
    esac
    printf 'use: it\nbackends:\n  it: {driver: %s, lease: 600ms, %s}\n' "$driver" "$options" >"$dir/dlock.yaml"
}

# A node that came back empty has no vote until max_lease is over; somebody has to ask it, for that to begin.
await_vote() { # NODE
    local i
    for i in {1..200}; do
        take old
        [ "$(redis-cli -s "$dir/$1.sock" exists dlock_tokens:node dlock_tokens:quarantine)" != 1 ] || return 0
        read -r -t 0.05 <>"$dir/never" || :
    done
    die "$driver: the node $1 has no vote after $i questions"
}
lose_data() { # first|later
    case $kind in
    sqlite) rm -rf "$dir"/locks.db* ;;
    redis) empty_redis redis ;;
    mysql)
        local tables table
        tables=$(sql "SHOW TABLES")
        for table in $tables; do
            # A new client makes the tables anew; an old one has to find them.
            if [ "$1" = first ]; then sql "DROP TABLE $table"; else sql "DELETE FROM $table"; fi
        done
        ;;
    redlock)
        if [ "$at_once" -eq 1 ]; then
            empty_redis a b c
        else
            local node
            for node in a b c; do
                empty_redis "$node"
                await_vote "$node"
            done
        fi
        ;;
    esac
}

# ---- one driver ---------------------------------------------------------------------------------------------

# Compares with the largest token so far, and makes of it a cell; `expected` is rises, falls or a status.
judge() { # EXPECTED WHERE
    local expected=$1 where=$2 sign distance
    if [[ $token == DL_* ]]; then
        [ "$token" = "$expected" ] || die "$driver, $where: $token, and not '$expected'"
        cells+=("$token")
        return 0
    fi
    [[ $token =~ ^[0-9]+$ ]] || die "$driver, $where: no token: $token"
    if [ "$token" -gt "$largest" ]; then sign=+; else sign=-; fi
    distance=$((token > largest ? token - largest : largest - token))
    [ "$expected" = "$([ $sign = + ] && echo rises || echo falls)" ] ||
        die "$driver, $where: the token is $token after $largest, and not what the page says: '$expected'"
    # Below, it is by the clock, so by about the hour; the rest is what the run took.
    [ $sign = + ] || [ "$distance" -gt 3500000000 ] || die "$driver, $where: fell by $distance only"
    cells+=("$sign$(printf '%d.%06d' $((distance / 1000000)) $((distance % 1000000)))")
    [ $sign = - ] || largest=$token
}

# Three holders in turn, with the client "old" as the first and the last.
before() {
    local name previous=0
    open_client old
    open_client other
    for name in old other old; do
        take "$name"
        [[ $token =~ ^[0-9]+$ ]] || die "$driver: no token: $token"
        [ "$token" -gt "$previous" ] || die "$driver: the token is $token after $previous"
        first=${first:-$token}
        previous=$token
    done
    largest=$token
    cells+=("$first +$((token - first))")
}

run_driver() {
    local same=rises both=falls survivor=old
    cells=() first="" largest=0
    # The file is looked for by the path, so that its old client has to be opened again.
    [ "$kind" != sqlite ] || same=DL_EIO
    # While the other nodes keep their counters, one that loses its own takes nothing back.
    [ "$kind$at_once" != redlock0 ] || both=rises
    set_clock +0
    start
    before
    lose_data first
    open_client new
    take new
    judge rises "data lost, a new client"
    take old
    judge "$same" "data lost, the same client"
    [ "$same" = rises ] || { survivor=again && open_client again; }
    set_clock "$back_s"
    take "$survivor"
    judge rises "clock behind, the same client"
    open_client later
    take later
    judge rises "clock behind, a new client"
    # A client's floor is what it has seen: the one that is looked at last has to be the last holder.
    take "$survivor"
    judge rises "clock behind, the same client again"
    unset 'cells[-1]'
    lose_data later
    open_client newest
    take newest
    judge "$both" "data lost and clock behind, a new client"
    [ "$kind" = sqlite ] || lose_data later
    take "$survivor"
    judge "$same" "data lost and clock behind, the same client"
    set_clock +0
    show "$label" "${cells[0]}" "${cells[2]}" "${cells[1]}" "${cells[3]}" "${cells[4]}" "${cells[6]}" "${cells[5]}"
}

show() { # CELL...
    printf '%-20s | %-24s | %13s | %13s | %13s | %13s | %13s | %13s\n' "$@"
}

# ---- all of them ----------------------------------------------------------------------------------------------

case $3 in
--one) # FOLDER CLOCK KIND DRIVER LABEL AT_ONCE
    dir=$4 clock=$5 kind=$6 driver=$7 label=$8 at_once=$9
    mkdir -p "$dir"
    mkfifo "$dir/never"
    trap 'kill $(jobs -p) 2>/dev/null || :; wait' EXIT
    run_driver
    exit 0
    ;;
--mysql) # FOLDER
    # Only the server's clock is moved.
    unset LD_PRELOAD DLOCK_TEST_CLOCK
    for name in mysql-pessimistic mysql-lease mysql-optimistic; do
        "$0" "$holder" "$shim" --one "$4/$name" "$4/clock" mysql "$name" "$name" 0
    done
    exit 0
    ;;
esac

work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || :; wait; rm -rf "$work"' EXIT
command -v "${DLOCK_REDIS_SERVER:-redis-server}" >/dev/null || { echo "redis-server is missing"; exit 77; }
command -v redis-cli >/dev/null || { echo "redis-cli is missing"; exit 77; }

rows=() row_pids=()
begin_row() { # NAME COMMAND [ARG]...
    local name=$1
    shift
    rows+=("$name")
    "$@" >"$work/$name.row" 2>&1 </dev/null &
    row_pids+=($!)
}
one() { # NAME KIND DRIVER LABEL AT_ONCE
    begin_row "$1" "$0" "$holder" "$shim" --one "$work/$1" "$work/$1/clock" "${@:2}"
}
clock=$work/mysql-clock/clock
mkdir "$work/mysql-clock"
set_clock +0
one sqlite sqlite sqlite sqlite 0
one redis-string redis redis-string redis-string 0
one redis-hash redis redis-hash-reentrant redis-hash-reentrant 0
begin_row mysql clocked "$with_mysql" "$0" "$holder" "$shim" --mysql "$work/mysql-clock"
one redlock redlock redlock "redlock, one by one" 0
one redlock-all redlock redlock "redlock, all at once" 1

failed=0
echo "Tokens of consecutive holders: + above all before it, - below, by so many seconds of the server's clock."
show "" "before" "data lost:" "" "clock -1 h:" "" "both:" ""
show "driver" "first, and the third's" "same client" "new client" "same client" "new client" "same client" "new client"
for i in "${!rows[@]}"; do
    wait "${row_pids[$i]}" || failed=1
    cat "$work/${rows[$i]}.row"
done
echo "promised (docs/guarantees.md): + in the first four columns and for the same client; only sqlite refuses a"
echo "client whose file has gone (DL_EIO). Not promised: - in the last column, except where one node is lost at a time."
[ $failed -eq 0 ]
