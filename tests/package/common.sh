#!/usr/bin/env bash
# common.sh - what the structural tests share; sourced with the script's own arguments.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

source_dir=$1
# Where the build under test lies; some scripts only look at the sources.
# shellcheck disable=SC2034
build_dir=${2:-}
# shellcheck source-path=SCRIPTDIR/../support
. "$source_dir/tests/support/checks.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# 77 counts as skipped, and under DLOCK_REQUIRE_ALL=1 as failed.
skip() {
    echo "$*"
    exit 77
}

# A tool that makes the test stricter, but without which it still says something.
optional() {
    command -v "$1" >/dev/null && return 0
    [ "${DLOCK_REQUIRE_ALL:-0}" != 1 ] || die "$1 is missing"
    return 1
}

# The files of the tree, relative to it: what git knows or would add; without git, what is there.
tree_files() {
    local file
    if command -v git >/dev/null && [ -e "$source_dir/.git" ]; then
        git -c safe.directory='*' -C "$source_dir" ls-files -co --exclude-standard
    else
        (cd "$source_dir" && find . -type f -not -path './build*' -not -path './out/*' -not -path './.git/*') | cut -c 3-
    fi | while IFS= read -r file; do
        # A file that was deleted and not committed yet is still listed.
        [ ! -f "$source_dir/$file" ] || echo "$file"
    done
}
