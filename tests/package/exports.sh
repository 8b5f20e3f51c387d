#!/usr/bin/env bash
# exports.sh - the shared library exports exactly the names in exports.txt, and no object pollutes a static link.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

list=$source_dir/tests/package/exports.txt
nm -D --defined-only "$build_dir/libdlock.so" | awk '{print $3}' | LC_ALL=C sort >"$work/actual"
diff -u "$list" "$work/actual" || die "the exported names are not those of tests/package/exports.txt"

# Every function that the headers declare is there, and nothing else.
grep -hoE '\bdl_[a-z0-9_]+\(' "$source_dir"/include/dlock/*.h >"$work/mentioned"
while IFS= read -r name; do
    grep -qx "$name(" "$work/mentioned" || die "$name is exported, but no header declares it"
done <"$work/actual"

nm -g --defined-only "$build_dir/libdlock.a" | awk 'NF == 3 && $3 !~ /^(dl_|dli_|__asan|__odr_asan|__tsan|__ubsan)/' >"$work/foreign"
[ ! -s "$work/foreign" ] || { cat "$work/foreign"; die "global names in libdlock.a that begin with neither dl_ nor dli_"; }

# Every one of them is tried with a pthread_cancel pending, but those that only return a text or fill one in.
cases=$source_dir/tests/contract/thread_cancel_cases.c
while IFS= read -r name; do
    case $name in dl_status_name | dl_status_text | dl_version | dl_driver_fail | dl_driver_shown | dl_driver_duration | dl_driver_measured) continue ;; esac
    grep -q "$name" "$cases" || die "$name is not in $(basename "$cases")"
done <"$list"
