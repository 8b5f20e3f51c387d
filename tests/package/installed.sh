#!/usr/bin/env bash
# installed.sh - the Debian packages in a system that has nothing else: installed, built with, read, and purged.
# SPDX-License-Identifier: Apache-2.0
#
# usage: installed.sh FOLDER    where the packages are; as root, in a root that is made for it: scripts/bare-packages
# Each function try_... is a case; the last line counts them.
. "$(dirname "$0")/../../scripts/common.sh"

packages=("$1"/*.deb)
[ ! -e /var/lib/dlock ] && ! command -v dlock >/dev/null || die "this is no bare system: it has a dlock, which would be purged"
with_proc
work=$(mktemp -d)
at_exit "rm -rf '$work'"
cd "$work"
export DEBIAN_FRONTEND=noninteractive

apt() {
    quietly "$work/apt.log" apt-get -q -y -o Acquire::Retries=3 "$@"
}
# expect TEXT COMMAND...: it succeeds and prints a line that matches.
expect() {
    local text=$1 out
    shift
    out=$("$@" 2>&1) || die "exit status $? of $*: $out"
    grep -qE -- "$text" <<<"$out" || die "expected '$text' of $*: $out"
}
# example LANGUAGE: README's first program in it.
example() {
    awk -v begin="\`\`\`$1" '$0 == "```" && on { exit } on; $0 == begin { on = 1 }' "$root/README.md"
}

# What a user needs besides is installed for the cases below.
try_install() {
    apt update
    apt install --no-install-recommends "${packages[@]}"
    apt install --no-install-recommends gcc libc6-dev pkg-config make cmake man-db
}

try_program() {
    example c >hello.c
    # shellcheck disable=SC2046
    cc hello.c $(pkg-config --cflags --libs dlock) -o hello
    expect '^token [1-9][0-9]*, valid for [0-9]+ ms$' ./hello
}

try_static_program() {
    local flags
    flags=$(pkg-config --static --libs dlock)
    # The archive in place of -ldlock, or the linker would take the shared library.
    # shellcheck disable=SC2086
    cc hello.c ${flags/-ldlock/-l:libdlock.a} -o hello_static
    ! objdump -p hello_static | grep 'NEEDED.*libdlock' || die "the static program needs the shared library"
    expect '^token ' ./hello_static
}

try_cpp_program() {
    apt install --no-install-recommends g++
    example cpp >hello.cpp
    # shellcheck disable=SC2046
    g++ -std=c++17 hello.cpp $(pkg-config --cflags --libs dlock) -o hello_cpp
    expect . ./hello_cpp
}

try_manuals() {
    local page
    for page in "1 dlock" "5 dlock.yaml" "3 libdlock" "3 dl_lock" "3 dl_acquire"; do
        # shellcheck disable=SC2086
        expect "^ +.*\\<${page#* }\\>.* (-|—|–) |^ +.*\\<${page#* }\\>," man $page
    done
}

try_examples() {
    cp -r /usr/share/doc/dlock/examples examples
    quietly "$work/log" cmake -S examples -B examples/build
    quietly "$work/log" cmake --build examples/build -j "$jobs"
    expect '^holding "hello" with token [1-9]' examples/build/hello
    [ -x examples/build/reduce_stock_mysql ] || die "the package of MySQL's client library came along, and reduce_stock_mysql was not built"
}

try_command() {
    expect '^dlock [0-9]' dlock version
    expect '^token [1-9]' dlock run nightly --local --wait 10s -- sh -c 'echo "token $DLOCK_TOKEN"'
}

# Last: it takes away what the others need.
try_purge() {
    local file left=()
    for file in "${packages[@]}"; do dpkg-deb --fsys-tarfile "$file" | tar -t | sed -n 's,^\.\(/.*[^/]\)$,\1,p'; done >files
    [ "$(wc -l <files)" -gt 60 ] && [ -e "$(head -n 1 files)" ] || die "the list of the packages' files is not what is installed"
    [ -d /var/lib/dlock ] || die "the cases before have left no locks"
    apt purge libdlock0 libdlock-dev dlock
    while IFS= read -r file; do
        [ ! -e "$file" ] && [ ! -L "$file" ] || left+=("$file")
    done <files
    # What man-db keeps of pages that were read is its own.
    mapfile -t -O "${#left[@]}" left < <(find / -xdev \( -path /proc -o -path /dlock -o -path /packages -o -path "$work" -o \
        -path /var/cache/man \) -prune -o \( -name 'dlock*' -o -name 'libdlock*' \) -print)
    [ ${#left[@]} -eq 0 ] || die "left after the purge: ${left[*]}"
}

cases=(install program static_program manuals examples command)
# The C++ header comes with a program of its own.
[ ! -e "$root/include/dlock/dlock.hpp" ] || cases+=(cpp_program)
cases+=(purge)
passed=0 failed=0
set +e
for name in "${cases[@]}"; do
    (set -e; "try_$name")
    # Not as a condition: then a command that fails in it would end nothing.
    # shellcheck disable=SC2181
    if [ $? -eq 0 ]; then
        passed=$((passed + 1))
        say "passed  $name"
    else
        failed=$((failed + 1))
        say "FAILED  $name"
    fi
done
say "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
