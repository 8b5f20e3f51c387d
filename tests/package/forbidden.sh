#!/usr/bin/env bash
# forbidden.sh - no file carries leftovers: unfinished-work marks, paths of the machine it was built on, hosts of packages.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

# Spelled in pieces, so that this file does not find itself.
words=("TO""DO" "FIX""ME" "X""XX" "HA""CK" "/wo""rk/" "/ho""me/[a-z]" "/ro""ot/" "/Us""ers/")
pattern="\\b($(IFS='|'; echo "${words[*]:0:4}"))\\b|$(IFS='|'; echo "${words[*]:4}")"
# Where packages come from is for each machine to say: its package sources do, or an option.
hosts=("debi""an.org" "ubu""ntu.com" "py""pi.org" "pythonho""sted.org" "npm""js.org" "crat""es.io" "proxy.gol""ang.org" "ruby""gems.org"
    "repo[0-9]*.mav""en.org" "repo.mav""en.apache.org" "anac""onda.org" "fedorapro""ject.org" "alpineli""nux.org")
pattern+="|$(IFS='|'; echo "${hosts[*]}")"

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
for planted in "see /wo""rk/x" "http://deb.debi""an.org/debian" "archive.ubu""ntu.com" "repo1.mav""en.org/maven2" "py""pi.org"; do
    grep -qE "$pattern" <<<"$planted" || die "self-check: the pattern does not find $planted"
done
