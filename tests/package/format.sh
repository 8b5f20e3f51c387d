#!/usr/bin/env bash
# format.sh - every C and C++ file looks as the committed .clang-format says.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

# Other versions of clang-format decide some lines differently, so only this one counts.
tool=$(command -v clang-format-14 || command -v clang-format || true)
[ -n "$tool" ] || skip "clang-format 14 is missing"
"$tool" --version | grep -q 'version 14\.' || skip "not clang-format 14: $("$tool" --version)"

cd "$source_dir"
tree_files | grep -E '\.[ch](pp)?$' | tr '\n' '\0' | xargs -0 -r "$tool" --dry-run -Werror --ferror-limit=3
