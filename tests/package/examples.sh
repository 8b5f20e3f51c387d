#!/usr/bin/env bash
# examples.sh - every example that needs no server runs, does what it says, and ends with success.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

cd "$work"
bin=$build_dir/examples
export HOME=$work XDG_STATE_HOME=$work/state XDG_DATA_HOME=$work/data XDG_RUNTIME_DIR=$work/run XDG_CONFIG_HOME=$work/config
unset DLOCK_CONFIG DLOCK_BACKEND
mkdir -p -m 700 state data run config

run() {
    out=$("$@" 2>&1) || die "$* failed: $out"
}
expect() {
    [[ $out == *$1* ]] || die "expected '$1' in: $out"
}

try_hello() {
    local first
    echo "hello"
    run "$bin/hello"
    expect 'holding "hello" with token '
    first=${out##* }
    run "$bin/hello"
    [ "${out##* }" -gt "$first" ] || die "the second token ${out##* } is not larger than $first"
}

# That it runs on the other backends is what embedded.sh and swap.sh are for.
try_embedded() {
    echo "embedded"
    echo "{use: local, defaults: {lease: 5s, renew_every: 100ms}}" >embedded.yaml
    run "$bin/embedded" embedded.yaml 1
    expect "backend local, driver sqlite"
    expect "renewed "
    expect "unlocked"
    ! "$bin/embedded" no-such-file.yaml >/dev/null 2>&1 || die "a file that is not there was accepted"
}

# Four tasks, of which two want one name.
try_event_loop() { # NAME
    local pid
    echo "$1"
    run "$bin/$1" local 3 60000
    expect "task 3, orders: step 3"
    equal "tasks that $1 has ended well" "$(grep -c ': DL_OK' <<<"$out")" 4
    # One gives up: the first has its lock for twice as long.
    ! out=$("$bin/$1" local 100 1000 2>&1) || die "$1 ends with success although a task has given up"
    expect "task 3, orders: DL_ECANCELED"
    equal "tasks that $1 has ended well beside one that gives up" "$(grep -c ': DL_OK' <<<"$out")" 3
    # Each loses its lock, the second of one name its own after the first.
    echo "{use: local, defaults: {lease: 5s, renew_every: 100ms}}" >losing.yaml
    DLOCK_CONFIG=losing.yaml "$bin/$1" local 1000000 600000 >losing.out 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        for name in orders stock prices; do
            "$build_dir/cli/dlock" unlock --force --local $name >/dev/null 2>&1 || :
        done
    done
    ! wait $pid || die "$1 ends with success although its locks were lost"
    out=$(cat losing.out)
    expect "event: stock: "
    equal "tasks of $1 that have lost a lock" "$(grep -c ': DL_ELOST' <<<"$out")" 4
}

# Ten thousand clients of a hundred names: fewer only where so many descriptors are not allowed.
try_lock_server() {
    local clients=10000 limit port pid
    echo "lock_server"
    limit=$(ulimit -Hn)
    if [ "$limit" != unlimited ] && [ "$limit" -lt $((clients + 100)) ] && ! ulimit -Hn $((clients + 100)) 2>/dev/null; then
        [ "${DLOCK_REQUIRE_ALL:-0}" != 1 ] || die "ulimit -Hn allows $limit descriptors, $clients clients need more"
        clients=$((limit - 100))
        echo "ulimit -Hn allows only $clients clients"
    fi
    coproc server { exec "$bin/lock_server" local 2>&1; }
    pid=$!
    read -r _ port <&"${server[0]}"
    run "$build_dir/tests/package/lock_clients" "$port" "$pid" "$clients" 100
    echo "$out"
    kill "$pid"
    wait "$pid" || die "the lock server ends with exit status $?"
}

try_custom_driver() {
    echo "custom_driver"
    run "$bin/custom_driver" locks.table
    expect "orders is held by "
    # Not a file of locks: refused, and left alone.
    echo "something else" >other
    ! "$bin/custom_driver" other >/dev/null 2>&1 || die "a foreign file was accepted"
    [ "$(cat other)" = "something else" ] || die "a foreign file was changed"
}

try_reduce_stock() {
    echo "reduce_stock"
    echo "{use: demo, backends: {demo: {driver: sqlite, path: \"$work/locks.db\"}}}" >dlock.yaml
    run "$bin/reduce_stock" race inventory.db 100 8 dlock.yaml
    expect "sold=100 oversold=0 "
    # Without a lock too much is sold, sooner or later: otherwise the line above proves nothing.
    for _ in 1 2 3 4 5; do
        run "$bin/reduce_stock" race inventory.db 100 8 none
        [[ $out == *" oversold=0 "* ]] || return 0
    done
    die "without a lock nothing was oversold in five races: $out"
}

try_custom_driver
# The others use the embedded backend, which may be left out of the build.
if ! grep -q '^DLOCK_WITH_SQLITE:BOOL=OFF' "$build_dir/CMakeCache.txt"; then
    try_hello
    try_embedded
    try_event_loop event_loop_epoll
    # It is built where libuv is.
    if [ -x "$bin/event_loop_uv" ] || [ "${DLOCK_REQUIRE_ALL:-0}" = 1 ]; then
        try_event_loop event_loop_uv
    fi
    try_lock_server
    try_reduce_stock
fi
