#!/usr/bin/env bash
# install.sh - an outside program finds, links and runs the installed library by CMake and by pkg-config.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

prefix=$work/prefix
cmake --install "$build_dir" --prefix "$prefix" >"$work/log" 2>&1 || { cat "$work/log"; die "cmake --install failed"; }
libdir=$(dirname "$(find "$prefix" -name libdlock.so)")
# A sanitized library can only be linked by a sanitized program.
sanitize=$(sed -n 's/^DLOCK_SANITIZE:STRING=//p' "$build_dir/CMakeCache.txt")
compiler=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build_dir/CMakeCache.txt")
flags=()
[ -z "$sanitize" ] || flags=("-fsanitize=$sanitize")

for file in include/dlock/dlock.h include/dlock/driver.h bin/dlock share/man/man1/dlock.1 \
    share/bash-completion/completions/dlock share/doc/dlock/LICENSE; do
    [ -s "$prefix/$file" ] || die "$file was not installed"
done
for file in libdlock.so libdlock.a pkgconfig/dlock.pc cmake/dlock/dlock-config.cmake; do
    [ -s "$libdir/$file" ] || die "$file was not installed"
done
version=$(sed -n 's/^#define DL_VERSION_STRING "\(.*\)"/\1/p' "$prefix/include/dlock/dlock.h")
soname=$(objdump -p "$libdir/libdlock.so" | awk '/SONAME/ {print $2}')
[ "$soname" = "libdlock.so.${version%%.*}" ] || die "the soname is $soname"

# The embedded backend may be left out of the build; then its user is told how to get it.
has_sqlite=1
! grep -q '^DLOCK_WITH_SQLITE:BOOL=OFF' "$build_dir/CMakeCache.txt" || has_sqlite=0

# runs PROGRAM [LIBDIR]: it must take and free a lock of the embedded backend and print the version.
runs() {
    local status=0
    mkdir -p "$work/state"
    out=$(env -i PATH="$PATH" HOME="$work/state" XDG_STATE_HOME="$work/state" XDG_DATA_HOME="$work/state" \
        XDG_RUNTIME_DIR="$work/state" LD_LIBRARY_PATH="${2:-}" DLOCK_PATH="$work/locks.db" "$1" 2>&1) || status=$?
    if [ $has_sqlite -eq 1 ]; then
        [ "$status,$out" = "0,dlock $version" ] || die "$1 ends with $status and says: $out"
    else
        [[ $status,$out == 1,DL_ECONFIG:*DLOCK_WITH_SQLITE* ]] || die "$1 ends with $status and says: $out"
    fi
}

echo "by CMake"
cp -r "$source_dir/tests/package/consumer" "$work/consumer"
outside() {
    cmake -G Ninja -S "$work/consumer" -B "$work/consumer/build" -DCMAKE_PREFIX_PATH="$prefix" \
        -DCMAKE_C_COMPILER="$compiler" -DCMAKE_C_FLAGS="${flags[*]:-}" && cmake --build "$work/consumer/build"
}
outside >"$work/log" 2>&1 || { cat "$work/log"; die "the outside CMake project does not build"; }
runs "$work/consumer/build/consumer_shared"
runs "$work/consumer/build/consumer_static"

echo "by pkg-config"
export PKG_CONFIG_PATH=$libdir/pkgconfig
[ "$(pkg-config --modversion dlock)" = "$version" ] || die "dlock.pc has another version than dlock.h"
main=$work/consumer/main.c
read -ra cflags < <(pkg-config --cflags dlock)
read -ra shared < <(pkg-config --libs dlock)
read -ra static < <(pkg-config --static --libs dlock)
"$compiler" "${flags[@]}" "${cflags[@]}" "$main" "${shared[@]}" -o "$work/by_pc_shared"
runs "$work/by_pc_shared" "$libdir"
# The archive in place of -ldlock, as a build that wants only this library static would do.
static=("${static[@]/#-ldlock/$libdir/libdlock.a}")
"$compiler" "${flags[@]}" "${cflags[@]}" "$main" "${static[@]}" -o "$work/by_pc_static"
! objdump -p "$work/by_pc_static" | grep -q 'NEEDED.*libdlock' || die "the static program needs libdlock.so"
runs "$work/by_pc_static"
# A shared program must not be told to link what only the library needs.
for inner in sqlite3 hiredis ssl mariadb mysqlclient; do
    [[ " ${shared[*]} " != *"-l$inner "* ]] || die "dlock.pc tells users of the shared library to link $inner"
done

echo "the installed command"
[ "$(env -i PATH="$PATH" HOME="$work/state" "$prefix/bin/dlock" version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1)" = "$version" ] ||
    die "the installed command does not run or has another version"
