#!/usr/bin/env bash
# common.sh - what the scripts share; sourced.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

# shellcheck disable=SC2034
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034
jobs=$(nproc 2>/dev/null || echo 2)
export LC_ALL=C.UTF-8

say() {
    printf '%s\n' "$*"
}

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# quietly LOG COMMAND...: shows the output only if the command fails, without the steps of the build that went well.
quietly() {
    local log=$1
    shift
    "$@" >"$log" 2>&1 </dev/null || {
        grep -vE '^\[[0-9]+/[0-9]+\] ' "$log" || :
        return 1
    }
}

# shellcheck disable=SC2317
run_at_exit() {
    local command
    for command in "${at_exit_commands[@]}"; do eval "$command"; done
}

# at_exit COMMAND: when this shell ends, the latest first. A subshell has its own.
at_exit() {
    if [ "${at_exit_shell:-}" != "$BASHPID" ]; then
        at_exit_shell=$BASHPID at_exit_commands=()
        trap run_at_exit EXIT
    fi
    at_exit_commands=("$1" "${at_exit_commands[@]}")
}

# The library asks /proc for the machine's boot id, and ctest for its children. A bare chroot has no /proc: root
# mounts it for this run only.
with_proc() {
    [ -r /proc/self/stat ] && return 0
    if ! mount -t proc proc /proc 2>/dev/null; then
        die "/proc is not mounted, and is needed: mount -t proc proc /proc"
    fi
    at_exit 'umount /proc 2>/dev/null || umount -l /proc'
    say "/proc was not mounted: mounted for this run"
}

# temporary_files: from here on they are in a folder of this run, which is removed whatever ends it; in TMPDIR, or else in
# memory where there is room and programs may run: a disk that stands still for a second fails whoever measures.
temporary_files() {
    local least_kib=$((4 * 1024 * 1024)) free
    free=$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)
    if [ -z "${TMPDIR:-}" ] && [ -w /dev/shm ] && [ "${free:-0}" -ge $least_kib ] &&
        awk '$2 == "/dev/shm" && $3 == "tmpfs" && $4 !~ /noexec/ { found = 1 } END { exit !found }' /proc/mounts; then
        export TMPDIR=/dev/shm
    fi
    # shellcheck source-path=SCRIPTDIR/../tests/support
    . "$root/tests/support/scratch.sh"
    at_exit end_scratch
}
