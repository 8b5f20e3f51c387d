#!/usr/bin/env bash
# cpp.sh - C++ programs lock through dlock.hpp: its cases, and every program that a page shows, by each compiler.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

# A sanitized library can only be linked by the same compiler's sanitized program.
sanitize=$(sed -n 's/^DLOCK_SANITIZE:STRING=//p' "$build_dir/CMakeCache.txt")
flags=(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -I "$source_dir/include" -pthread)
compilers=(g++ clang++)
if [ -n "$sanitize" ]; then
    flags+=("-fsanitize=$sanitize")
    grep -q '^CMAKE_C_COMPILER:.*clang' "$build_dir/CMakeCache.txt" && compilers=(clang++) || compilers=(g++)
fi

# The programs in Markdown: page.1.cpp, page.2.cpp, ...
while IFS= read -r page; do
    awk -v base="$work/$(basename "$page" .md)" '
        /^```cpp$/ { on = 1; out = base "." ++n ".cpp"; next }
        /^```/ { on = 0 }
        on { print >out }' "$source_dir/$page"
done < <(cd "$source_dir" && ls README.md docs/*.md)
shown=("$work"/*.cpp)
[ -e "${shown[0]}" ] || die "no page shows a C++ program"

# The embedded backend may be left out of the build; then they are only built.
runs=1
! grep -q '^DLOCK_WITH_SQLITE:BOOL=OFF' "$build_dir/CMakeCache.txt" || runs=0
echo "backends: {here: {driver: sqlite, path: \"$work/here.db\"}}" >"$work/here.yaml"
export HOME=$work XDG_STATE_HOME=$work/state XDG_DATA_HOME=$work/data XDG_RUNTIME_DIR=$work/run XDG_CONFIG_HOME=$work/config
unset DLOCK_CONFIG DLOCK_BACKEND

build() { # COMPILER SOURCE ARG...
    "$1" -std=c++17 "${flags[@]}" "$2" "${@:3}" -L "$build_dir" -ldlock "-Wl,-rpath,$build_dir" -o "$work/program" ||
        die "$1 ${*:3} does not build $2"
}
tried=0
for cxx in "${compilers[@]}"; do
    optional "$cxx" || continue
    tried=1
    build "$cxx" "$source_dir/tests/package/cpp_cases.cpp"
    echo "$cxx"
    [ $runs -eq 0 ] || "$work/program" "$work/here.yaml" || die "the cases that $cxx has built fail: exit status $?"
    # A library with everything hidden keeps a loss where its program looks for it.
    "$cxx" -std=c++17 "${flags[@]}" -fvisibility=hidden -fPIC -shared "$source_dir/tests/package/cpp_hidden.cpp" -o "$work/libhidden.so" ||
        die "$cxx does not build cpp_hidden.cpp"
    build "$cxx" "$source_dir/tests/package/cpp_hidden_main.cpp" -L "$work" -lhidden "-Wl,-rpath,$work"
    [ $runs -eq 0 ] || "$work/program" "$work/here.yaml" || die "a loss in a hidden library, built by $cxx, is not told"
    for program in "${shown[@]}"; do
        build "$cxx" "$program" -fno-rtti
        [ $runs -eq 0 ] || out=$("$work/program" 2>&1) || die "$(basename "$program") fails: $out"
    done
done
[ $tried -eq 1 ] || skip "no compiler named ${compilers[*]}"
