#!/usr/bin/env bash
# install.sh - an outside program finds, links and runs the installed library by CMake and by pkg-config; it can be removed.
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

for file in include/dlock/dlock.h include/dlock/dlock.hpp include/dlock/driver.h bin/dlock share/man/man1/dlock.1 \
    share/man/man3/libdlock.3 share/man/man3/dl_lock.3 share/man/man5/dlock.yaml.5 \
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

# As a user would: a copy of what the documentation has, and no more than the installed library. (Sanitizers make gcc
# warn without cause.)
echo "the examples"
cp -r "$prefix/share/doc/dlock/examples" "$work/examples"
outside_examples() {
    cmake -G Ninja -S "$work/examples" -B "$work/examples/build" -DCMAKE_PREFIX_PATH="$prefix" \
        -DCMAKE_C_COMPILER="$compiler" -DCMAKE_C_FLAGS="-Wall -Wextra ${flags[*]:--Werror}" && cmake --build "$work/examples/build"
}
outside_examples >"$work/log" 2>&1 || { cat "$work/log"; die "the installed examples do not build"; }
wanted=(embedded hello event_loop_epoll lock_server soak custom_driver reduce_stock)
# MySQL's client library may be missing where its drivers were left out.
! pkg-config --exists libmariadb && ! pkg-config --exists mysqlclient || wanted+=(reduce_stock_mysql)
! pkg-config --exists libuv || wanted+=(event_loop_uv)
for example in "${wanted[@]}"; do
    [ -x "$work/examples/build/$example" ] || die "the installed examples have built no $example"
done
if [ $has_sqlite -eq 1 ]; then
    env -i HOME="$work/state" XDG_STATE_HOME="$work/state" XDG_RUNTIME_DIR="$work/state" "$work/examples/build/hello" \
        >"$work/log" 2>&1 || { cat "$work/log"; die "the installed example hello failed"; }
    has "what hello says" "$(cat "$work/log")" '^holding "hello" with token [0-9]+'
fi

echo "the installed command"
[ "$(env -i PATH="$PATH" HOME="$work/state" "$prefix/bin/dlock" version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1)" = "$version" ] ||
    die "the installed command does not run or has another version"

echo "the target uninstall"
uninstall() {
    cmake --build "$build_dir" --target uninstall >"$work/log" 2>&1
}
uninstall || { cat "$work/log"; die "the target uninstall failed"; }
[ -z "$(ls -A "$prefix")" ] || die "left after the target uninstall: $(find "$prefix" -mindepth 1)"
! uninstall || die "uninstall succeeds where nothing is installed"
has "what uninstall says" "$(cat "$work/log")" '^ *nothing was installed from this build: there is no .*/install_manifest.txt$'
# Of a system's prefix, what others may rely on stays: its folders, and what they have put into ours.
export DESTDIR=$work/staged
cmake --install "$build_dir" --prefix /usr >/dev/null
touch "$DESTDIR/usr/include/dlock/theirs.h"
uninstall || { cat "$work/log"; die "the target uninstall failed below DESTDIR"; }
equal "what is left" "$(cd "$DESTDIR" && find . -type f -o -type l)" ./usr/include/dlock/theirs.h
[ -d "$DESTDIR/usr/bin" ] || die "uninstall has removed /usr/bin"
[ ! -e "$DESTDIR/usr/share/doc/dlock" ] || die "uninstall has left /usr/share/doc/dlock"
# CMake ends a line of the manifest at a semicolon in the prefix.
mkdir "$work/half"
printf '%s\n' "$prefix/a" b/c >"$work/half/install_manifest.txt"
! timeout 60 cmake -DBUILD_DIR="$work/half" -P "$source_dir/cmake/uninstall.cmake" >"$work/log" 2>&1 ||
    die "uninstall succeeds with half a path"
has "what uninstall says" "$(cat "$work/log")" '/install_manifest.txt has a line that is no whole path: b/c$'
