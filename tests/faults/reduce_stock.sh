#!/usr/bin/env bash
# reduce_stock.sh - the four ways to reduce a stock lose what docs/recipes.md says, and nothing else.
# SPDX-License-Identifier: Apache-2.0
#
# usage: tests/faults/reduce_stock.sh PROGRAM plain|BACKEND
#   plain     the ways without a lock: unsafe, version
#   BACKEND   the ways under a lock of this backend: lock, fenced
# Runs under with_mysql.
set -euo pipefail

program=$1 backend=$2
here=$(cd "$(dirname "$0")" && pwd)
page=$here/../../docs/recipes.md
# shellcheck source-path=SCRIPTDIR/../support
. "$(dirname "$0")/../support/checks.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset DLOCK_BACKEND DLOCK_CONFIG

cat >"$work/shop.cnf" <<END
[client]
socket=$DLOCK_TEST_MYSQL_SOCKET
user=$DLOCK_TEST_MYSQL_USER
password=$DLOCK_TEST_MYSQL_PASSWORD
database=$DLOCK_TEST_MYSQL_DATABASE
END
server="socket: \"$DLOCK_TEST_MYSQL_SOCKET\", user: $DLOCK_TEST_MYSQL_USER"
server+=", password: $DLOCK_TEST_MYSQL_PASSWORD, database: $DLOCK_TEST_MYSQL_DATABASE, create: true"
cat >"$work/dlock.yaml" <<END
use: $backend
backends:
  sqlite: {driver: sqlite, path: "$work/locks.db"}
  mysql-pessimistic: {driver: mysql-pessimistic, $server}
  mysql-lease: {driver: mysql-lease, $server}
  mysql-optimistic: {driver: mysql-optimistic, $server}
END

# run STATUS ARG...: runs the program and keeps what it says, its tokens as N.
run() {
    local wanted=$1 status=0
    shift
    out=$("$program" "$@" 2>&1) || status=$?
    out=$(sed -E 's/token [0-9]+/token N/' <<<"$out")
    [ "$status" -eq "$wanted" ] || die "$*: exit status $status, not $wanted: $out"
}
expect() {
    [[ $out == *"$1"* ]] || die "expected '$1' in: $out"
}

race() { # STATUS WAY
    run "$1" race "$work/shop.cnf" "$2" 200 4 2 "$work/dlock.yaml"
}
keeps_all_in_the_race() { # WAY
    race 0 "$1"
    expect "$1: the stock went from 200 to 0, and 200 were sold; "
    expect "$1: no update was lost, nothing was oversold"
}
# It may have luck once. Not five times: otherwise what the others keep proves nothing.
loses_in_the_race() { # WAY
    local status
    for _ in 1 2 3 4 5; do
        status=0
        out=$("$program" race "$work/shop.cnf" "$1" 200 4 2 2>&1) || status=$?
        [ $status -ne 4 ] || break
    done
    [ $status -eq 4 ] || die "$1 lost nothing in five races: $out"
    expect "updates were lost"
}

# The page shows the verdicts of all ways, and some of the plays in full: they are what the program says.
blocks_of() { # WAY: what stands on the page, each block ended by a line with a dot
    awk -v way="$1" '/^```/ { inside = !inside; if (shown) print "."; shown = 0; next }
        inside && index($0, way ", the first comes back") == 1 { shown = 1 }
        inside && shown' "$page" | sed -E 's/token [0-9]+/token N/'
}
pauses() { # STATUS WAY
    local block="" line
    run "$1" pause "$work/shop.cnf" "$2" "$work/dlock.yaml"
    [ "$(grep -c "^$2: 10 - 3 - 4 is 3, and the stock is " <<<"$out")" -eq 2 ] || die "not two verdicts: $out"
    grep "^$2: " <<<"$out" | while IFS= read -r line; do
        grep -qxF "$line" "$page" || die "docs/recipes.md does not say: $line"
    done
    while IFS= read -r line; do
        if [ "$line" = . ]; then
            expect "$block"
            block=""
        else
            block+=${block:+$'\n'}$line
        fi
    done < <(blocks_of "$2")
}

case $backend in
plain)
    loses_in_the_race unsafe
    keeps_all_in_the_race version
    pauses 4 unsafe
    expect "the stock is 7: the second's update was lost"
    expect "the stock is 6: the first's update was lost"
    pauses 0 version
    expect "first   is refused: the version is no longer 0"
    expect "second  is refused: the version is no longer 0"
    ;;
*)
    keeps_all_in_the_race lock
    keeps_all_in_the_race fenced
    pauses 4 lock
    expect "the stock is 7: the second's update was lost"
    expect "the stock is 6: the first's update was lost"
    [ "$(grep -c "first   unlocks: DL_ELOST" <<<"$out")" -eq 2 ] || die "the first was not told of its loss: $out"
    pauses 0 fenced
    expect "first   is refused: the table has seen a later token"
    expect "second  is refused: the table has seen a later token"
    ;;
esac
