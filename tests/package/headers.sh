#!/usr/bin/env bash
# headers.sh - each public header compiles alone, as C99 and as C++17 where it is C, without one warning.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

flags=(-pedantic -Wall -Wextra -Wundef -Werror -fsyntax-only -I "$source_dir/include")
tried=0

check() { # compiler language standard header [option]...
    tried=$((tried + 1))
    # Twice, for the include guard; and every initializer fits its struct.
    printf '#include "%s"\n#include "%s"\nextern int dlock_header_test;\n' "$4" "$4" >"$work/alone"
    sed -n 's/^#define DL_\([A-Z_]*\)_INIT .*/\1/p' "$source_dir/include/$4" | while read -r name; do
        echo "extern dl_$(tr '[:upper:]' '[:lower:]' <<<"$name")_t of_$name;"
        echo "dl_$(tr '[:upper:]' '[:lower:]' <<<"$name")_t of_$name = DL_${name}_INIT;"
    done >>"$work/alone"
    "$1" -x "$2" -std="$3" "${flags[@]}" "${@:5}" "$work/alone" || die "$4 does not compile as $3 ${*:5} with $1"
}

for header in dlock/dlock.h dlock/driver.h; do
    for cc in gcc clang; do
        ! optional $cc || for std in c99 c11 gnu11; do check $cc c $std $header; done
    done
    for cxx in g++ clang++; do
        ! optional $cxx || for std in c++17 c++20; do check $cxx c++ $std $header; done
    done
done
# What users of C++ build with may be stricter, and they see the C header through this one.
for cxx in g++ clang++; do
    ! optional $cxx || for std in c++17 c++20; do
        check $cxx c++ $std dlock/dlock.hpp -Wshadow -Wconversion
        check $cxx c++ $std dlock/dlock.hpp -Wshadow -Wconversion -fno-rtti
    done
done
[ $tried -gt 0 ] || skip "no compiler named gcc, clang, g++ or clang++"
echo "$tried compilations"
