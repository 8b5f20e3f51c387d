#!/usr/bin/env bash
# manuals.sh - every public function has a manual page; all pages are set without a warning, and have their first sections.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

command -v groff >/dev/null || skip "groff is missing"

# check PAGE: prints what is wrong with it.
check() {
    groff -Tascii -P-cbou -mandoc -ww -rLL=80n "$1" >"$work/set" 2>"$work/warnings" || echo "groff ends with $?"
    head -n 3 "$work/warnings"
    for section in NAME SYNOPSIS DESCRIPTION; do
        grep -qx $section "$work/set" || echo "no section $section"
    done
}

for page in "$source_dir"/docs/*.[1-8] "$build_dir"/man3/*.3; do
    ! grep -qF -e "$source_dir/include" -e "$build_dir" "$page" || die "$(basename "$page") has a path of this machine"
    # The page of another name leads to one that is looked at too.
    [[ $(head -n 1 "$page") == .so\ man3/* ]] || equal "what is wrong with $(basename "$page")" "$(check "$page")" ""
done

# page_of FUNCTION: the page that explains it, which may be another's.
page_of() {
    local page=$build_dir/man3/$1.3
    page=$build_dir/$(sed -n 's/^\.so //p' "$page" | grep . || echo "man3/$1.3")
    grep -qx "\.Fo $1" "$page" && grep -qxE "\.Nm $1( ,)?" "$page"
}
while IFS= read -r name; do
    page_of "$name" || die "the manual page of $name does not say how it is called"
done <"$source_dir/tests/package/exports.txt"

# The test must be able to fail.
sed 's/^\.El$/.Xx/' "$source_dir/docs/dlock.yaml.5" >"$work/planted.5"
[ -n "$(check "$work/planted.5")" ] || die "self-check: a macro that does not exist is not found"
sed 's/^DL_API int64_t dl_valid_ms/DL_API int64_t dl_planted/' "$source_dir/include/dlock/dlock.h" >"$work/dlock.h"
build_dir=$work
mkdir "$work/man3"
awk -v folder="$work/man3" -f "$source_dir/scripts/manual.awk" "$work/dlock.h"
page_of dl_planted && page_of dl_token && ! page_of dl_valid_ms 2>/dev/null || die "self-check: the page of a function is not found"
sed -i 's|^/\* Fills `info`.*|/* DL_EINVAL. */|' "$work/dlock.h"
! awk -v folder="$work/man3" -f "$source_dir/scripts/manual.awk" "$work/dlock.h" 2>/dev/null || die "self-check: a page may begin with a status"
