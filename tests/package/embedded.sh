#!/usr/bin/env bash
# embedded.sh - a program that knows no backend builds and runs on this build, on each driver that it has, and no other.
# SPDX-License-Identifier: Apache-2.0
#
# usage: tests/package/embedded.sh SOURCE_DIR BUILD_DIR      by with_mysql where the build has the MySQL drivers
# The program is examples/embedded.c, compiled here as an outside program would be. Needs libdlock.so and the command.
. "$(dirname "$0")/common.sh"
# shellcheck source-path=SCRIPTDIR/../support
. "$source_dir/tests/support/servers.sh"
trap 'stop_servers; rm -rf "$work"' EXIT
unset DLOCK_CONFIG DLOCK_BACKEND DLOCK_REDIS_URL

has() {
    ! grep -q "^DLOCK_WITH_$1:BOOL=OFF" "$build_dir/CMakeCache.txt"
}
option_of() {
    case $1 in sqlite) echo SQLITE ;; redis-* | redlock) echo REDIS ;; mysql-*) echo MYSQL ;; esac
}

# A sanitized library can only be linked by a sanitized program.
sanitize=$(sed -n 's/^DLOCK_SANITIZE:STRING=//p' "$build_dir/CMakeCache.txt")
compiler=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build_dir/CMakeCache.txt")
"$compiler" -std=c11 -pedantic -Wall -Wextra -Werror ${sanitize:+"-fsanitize=$sanitize"} -I "$source_dir/include" \
    "$source_dir/examples/embedded.c" -L "$build_dir" -ldlock "-Wl,-rpath,$build_dir" -o "$work/embedded"

# What it is linked with: the client libraries of its own drivers, and none of the others'.
objdump -p "$build_dir/libdlock.so" | awk '$1 == "NEEDED" { print $2 }' >"$work/needed"
ldd "$work/embedded" | awk '{ print $1 }' >"$work/loaded"
for pair in SQLITE:libsqlite3 REDIS:libhiredis 'MYSQL:lib(mariadb|mysqlclient)'; do
    if has "${pair%%:*}"; then
        grep -qE "^${pair#*:}\." "$work/needed" || die "libdlock.so is not linked with ${pair#*:}"
    else
        ! grep -E "^${pair#*:}\." "$work/loaded" || die "and no driver of this build needs it"
    fi
done

drivers=() others=()
for driver in $(promised_drivers "$source_dir"); do
    if has "$(option_of "$driver")"; then drivers+=("$driver"); else others+=("$driver"); fi
done
[ $((${#drivers[@]} + ${#others[@]})) -ge 6 ] || die "only these drivers are promised: ${drivers[*]} ${others[*]}"
start_servers "${drivers[@]}"
config=$work/dlock.yaml
sed 's/^  lease: 10s$/&\n  renew_every: 100ms/' "$source_dir/config/examples/matrix.yaml" >"$config"

for driver in "${drivers[@]}"; do
    use "$(backend_of "$driver")" "$config"
    # Fresh nodes have no vote until they are known.
    [ "$driver" != redlock ] || "$build_dir/cli/dlock" --config "$config" init
    out=$("$work/embedded" "$config" 2 2>&1) || die "$driver: $out"
    for expected in "driver $driver" "(ours)" "token " "extended, valid for " "renewed " "unlocked"; do
        [[ $out == *"$expected"* ]] || die "$driver: expected '$expected' in: $out"
    done
    echo "$driver: $(grep renewed <<<"$out")"
done
for driver in "${others[@]}"; do
    use "$(backend_of "$driver")" "$config"
    ! out=$("$work/embedded" "$config" 2>&1) || die "$driver is not in this build, but: $out"
    expected="DL_ECONFIG: driver '$driver' is not in this build of libdlock; it comes with -DDLOCK_WITH_$(option_of "$driver")=ON"
    [[ $out == *"$expected"* ]] || die "expected '$expected' in: $out"
    echo "$driver: not in this build"
done
