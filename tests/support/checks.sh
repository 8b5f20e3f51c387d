#!/usr/bin/env bash
# checks.sh - for shell tests: temporary files that go with the run, and failures that say where and what; sourced.
# SPDX-License-Identifier: Apache-2.0
# shellcheck source=scratch.sh
. "$(dirname "${BASH_SOURCE[0]}")/scratch.sh"
set -E

# checks_say FILE LINE WORDS...: the file as the tree has it.
checks_say() {
    local file
    file=$(realpath "$1")
    case $file in */tests/*) file=tests/${file##*/tests/} ;; esac
    printf '%s:%d: %s\n' "$file" "$2" "${*:3}"
}

# What ends the script by `set -e` says which command it was. In a subshell its parent decides whether it matters.
checks_failed() { # STATUS FILE LINE COMMAND
    [ "$BASH_SUBSHELL" -gt 0 ] || checks_say "$2" "$3" "exit status $1: $4"
}
trap 'checks_failed $? "${BASH_SOURCE[0]}" $LINENO "$BASH_COMMAND"' ERR

# die WORDS...
die() {
    trap - ERR
    checks_say "${BASH_SOURCE[1]}" "${BASH_LINENO[0]}" "$*"
    exit 1
}

# equal WHAT ACTUAL EXPECTED
equal() {
    [ "$2" = "$3" ] || {
        trap - ERR
        checks_say "${BASH_SOURCE[1]}" "${BASH_LINENO[0]}" "$1 is '$2', expected '$3'"
        exit 1
    }
}

# has WHAT TEXT PATTERN: an extended regular expression, for some line.
has() {
    grep -qE -- "$3" <<<"$2" || {
        trap - ERR
        checks_say "${BASH_SOURCE[1]}" "${BASH_LINENO[0]}" "$1 has no '$3': $2"
        exit 1
    }
}
