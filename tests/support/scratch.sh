#!/usr/bin/env bash
# scratch.sh - from here on temporary files are in a folder of this run, which is removed whatever ends it; sourced.
# SPDX-License-Identifier: Apache-2.0
#
# Everything that is run by this script has it in DLOCK_TEST_SCRATCH and as TMPDIR, and makes none of its own.
if [ -z "${DLOCK_TEST_SCRATCH:-}" ]; then
    # Not by a process substitution or as a job, for which `wait` would wait.
    scratch_owner=$BASHPID
    exec {scratch_said}<> <(:)
    setsid setpriv --pdeathsig TERM "$(dirname "${BASH_SOURCE[0]}")/sweep" "$scratch_owner" >&"$scratch_said" &
    disown $!
    scratch_sweeper=$!
    read -r -t 20 -u "$scratch_said" DLOCK_TEST_SCRATCH || exit 1
    exec {scratch_said}<&-
    export DLOCK_TEST_SCRATCH TMPDIR=$DLOCK_TEST_SCRATCH
fi

# Removes it now, if it was made here, and ends what still uses it. Without this call that happens a moment after the end.
end_scratch() {
    local folder=${DLOCK_TEST_SCRATCH:-}
    [ -n "${scratch_sweeper:-}" ] || return 0
    # What has it in its environment is killed.
    unset DLOCK_TEST_SCRATCH TMPDIR
    kill "$scratch_sweeper" 2>/dev/null || :
    while [ -e "$folder" ]; do sleep 0.01; done
}
