#!/usr/bin/env bash
# forbidden.sh - no file carries leftovers: unfinished-work marks, or paths of the machine that it was built on.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

# Spelled in pieces, so that this file does not find itself.
words=("TO""DO" "FIX""ME" "X""XX" "HA""CK" "/wo""rk/" "/ho""me/[a-z]" "/ro""ot/" "/Us""ers/")
pattern="\\b($(IFS='|'; echo "${words[*]:0:4}"))\\b|$(IFS='|'; echo "${words[*]:4}")"

found=0
while IFS= read -r file; do
    case $file in LICENSE) continue ;; esac
    grep -InE "$pattern" "$source_dir/$file" /dev/null && found=1
done < <(tree_files)
# This build's own path must not be in what is installed (debug information is stripped by packagers).
for file in dlock.pc dlock-config.cmake; do
    [ ! -f "$build_dir/$file" ] || ! grep -nF -e "$source_dir/" -e "$build_dir/" "$build_dir/$file" || found=1
done
[ $found -eq 0 ] || die "leftovers found"

# The test must be able to fail.
echo "see /wo""rk/x" >"$work/planted"
grep -qE "$pattern" "$work/planted" || die "self-check: the pattern finds nothing"
