#!/usr/bin/env bash
# house.sh - every C file says its purpose and its licence first, and no line is too long to read.
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
    *.c | *.h)
        first=$(sed -n 1p "$path")
        [[ $first == "/* $name - "*" */" ]] || complain "$file:1: begin with /* $name - purpose. */"
        [ "$(sed -n 2p "$path")" = "/* SPDX-License-Identifier: Apache-2.0 */" ] || complain "$file:2: the SPDX line"
        awk -v f="$file" 'length($0) > 110 { print f ":" NR ": longer than 110 columns"; bad = 1 } END { exit bad }' \
            "$path" || bad=1
        ;;
    esac
    # Markdown may end a line with two blanks; patches keep what they are about.
    case $file in
    *.c | *.h | *.sh | *.cmake | *.txt)
        grep -nE '[[:blank:]]+$' "$path" >"$work/blanks" && complain "$file:$(head -n 1 "$work/blanks" | cut -d: -f1): blanks at the end"
        [ ! -s "$path" ] || [ -z "$(tail -c 1 "$path")" ] || complain "$file: no newline at the end"
        ;;
    esac
done < <(tree_files)
[ $bad -eq 0 ]
