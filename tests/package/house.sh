#!/usr/bin/env bash
# house.sh - every C and C++ file says its purpose and its licence first, no line is too long, no assertion hides what it compares.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

bad=0
complain() {
    echo "$*"
    bad=1
}

while IFS= read -r file; do
    path=$source_dir/$file name=$(basename "$file")
    case $file in
    *.c | *.h | *.cpp | *.hpp)
        first=$(sed -n 1p "$path")
        [[ $first == "/* $name - "*" */" ]] || complain "$file:1: begin with /* $name - purpose. */"
        [ "$(sed -n 2p "$path")" = "/* SPDX-License-Identifier: Apache-2.0 */" ] || complain "$file:2: the SPDX line"
        # A comparison inside a condition would hide its two sides.
        grep -nE '\<(cr_assert|cr_expect|CT_CHECK|CT_AWAIT|AWAIT|CHECK)\(.* (==|!=|<=|>=|<|>) ' "$path" |
            grep -vE '\|\||\?|NULL|&&|#define' >"$work/hidden" &&
            complain "$file:$(head -n 1 "$work/hidden" | cut -d: -f1): compare by what says both sides, such as CT_EQ or cr_assert_eq"
        awk -v f="$file" 'length($0) > 110 { print f ":" NR ": longer than 110 columns"; bad = 1 } END { exit bad }' \
            "$path" || bad=1
        ;;
    esac
    # Markdown may end a line with two blanks; patches keep what they are about.
    case $file in
    *.c | *.h | *.cpp | *.hpp | *.sh | *.cmake | *.txt)
        grep -nE '[[:blank:]]+$' "$path" >"$work/blanks" && complain "$file:$(head -n 1 "$work/blanks" | cut -d: -f1): blanks at the end"
        [ ! -s "$path" ] || [ -z "$(tail -c 1 "$path")" ] || complain "$file: no newline at the end"
        ;;
    esac
done < <(tree_files)
[ $bad -eq 0 ]
