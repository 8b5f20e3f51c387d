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

try_event_loop() {
    echo "event_loop"
    run "$bin/event_loop" 3 10
    expect "step 3 of 3"
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
    try_event_loop
    try_reduce_stock
fi
