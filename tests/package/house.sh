#!/usr/bin/env bash
# house.sh - every C and C++ file says its purpose and its licence first, no line is too long, no assertion hides what it compares.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

all=() code=() texts=()
while IFS= read -r file; do
    all+=("$file")
    case $file in
    *.c | *.h | *.cpp | *.hpp) code+=("$file") texts+=("$file") ;;
    # Markdown may end a line with two blanks; patches keep what they are about.
    *.sh | *.cmake | *.txt) texts+=("$file") ;;
    esac
done < <(tree_files)
cd "$source_dir"

{
    awk 'FNR == 1 { name = FILENAME; sub(/.*\//, "", name) }
         FNR == 1 && !(index($0, "/* " name " - ") == 1 && / \*\/$/) { print FILENAME ":1: begin with /* " name " - purpose. */" }
         FNR == 2 && $0 != "/* SPDX-License-Identifier: Apache-2.0 */" { print FILENAME ":2: the SPDX line" }
         length($0) > 110 { print FILENAME ":" FNR ": longer than 110 columns" }' "${code[@]}"
    # A comparison inside a condition would hide its two sides.
    grep -nE '\<(cr_assert|cr_expect|CT_CHECK|CT_AWAIT|AWAIT|CHECK)\(.* (==|!=|<=|>=|<|>) ' "${code[@]}" |
        grep -vE '\|\||\?|NULL|&&|#define' | sed 's/$/ : compare by what says both sides, such as CT_EQ or cr_assert_eq/' || :
    grep -nE '[[:blank:]]+$' "${texts[@]}" | sed 's/$/ : blanks at the end/' || :
    grep -nE '^(<<<<<<<|>>>>>>>) ' "${all[@]}" | sed 's/$/ : left by a merge/' || :
    for file in "${texts[@]}"; do
        [ ! -s "$file" ] || [ -z "$(tail -c 1 "$file")" ] || echo "$file: no newline at the end"
    done
} >"$work/complaints"
cat "$work/complaints"
[ ! -s "$work/complaints" ]
