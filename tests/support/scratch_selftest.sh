#!/usr/bin/env bash
# scratch_selftest.sh - whatever of a test run is killed: a moment later its servers have ended and its folders are gone.
# SPDX-License-Identifier: Apache-2.0
#
# usage: scratch_selftest.sh SOURCE_DIR [redis WITH_REDIS RUNNER] [mysql WITH_MYSQL]
set -u
source_dir=$1
shift
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
# Each run here has a folder of its own.
unset DLOCK_TEST_SCRATCH DLOCK_TEST_RESULTS DLOCK_FILTER DLOCK_TEST_MYSQL
bad=0 runs=0

# In the environment or among the arguments of a process, or where it works: the folder of this run.
processes() {
    # By a file, so that it does not find itself.
    echo "$TMPDIR/" >"$work/pattern"
    grep -lzF -f "$work/pattern" /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null
    find /proc/[0-9]*/cwd -maxdepth 0 -lname "$TMPDIR/*" 2>/dev/null
}

# await WHAT COMMAND...: until it succeeds; nobody tells when.
await() {
    local what=$1 i
    shift
    for ((i = 0; i < 1000; i++)); do
        ! "$@" || return 0
        sleep 0.02
    done
    echo "$what: not after 20 s"
    return 1
}
is_ready() { [ -e "$ready" ]; }
# shellcheck disable=SC2012
has_servers() { [ "$(ls "$TMPDIR"/dlock-*/case-*/redis.sock 2>/dev/null | wc -l)" -ge 2 ]; }
is_gone() { [ -z "$(ls -A "$TMPDIR")" ] && [ -z "$(processes)" ]; }

# kills WHAT IS_READY KILL COMMAND...: KILL, by eval, kills the run, whose process is $pid.
kills() {
    local what=$1 when=$2 how=$3 pid
    shift 3
    export TMPDIR=$work/run$runs
    ready=$work/ready$runs
    runs=$((runs + 1))
    mkdir "$TMPDIR"
    ready=$ready setsid "$@" >"$work/output" 2>&1 </dev/null &
    pid=$!
    if ! await "$what starts" "$when"; then
        cat "$work/output"
        bad=1
    elif [ -z "$(ls -A "$TMPDIR")" ] || [ -z "$(processes)" ]; then
        echo "$what: neither folders nor processes while it runs, so this proves nothing"
        bad=1
    fi
    eval "$how"
    wait $pid 2>/dev/null
    await "$what: all is gone" is_gone || {
        find "$TMPDIR" | head -n 20
        processes
        bad=1
    }
}

# shellcheck disable=SC2016
stay='touch "$ready"; exec sleep 1000'
# As scripts/test does it; what it has started does not end by itself.
cat >"$work/runner" <<'END'
#!/usr/bin/env bash
. "$1/scripts/common.sh"
shift
temporary_files
"$@" &
wait
END
chmod +x "$work/runner"

while [ $# -gt 0 ]; do
    case $1 in
    redis)
        with=("$2" 2) runner=$3
        shift 3
        # shellcheck disable=SC2016
        kills "the runner of the contract" has_servers 'kill -KILL $pid' "$runner" --driver redis-string --jobs 4
        ;;
    mysql)
        with=("$2")
        shift 2
        ;;
    *) exit 2 ;;
    esac
    # shellcheck disable=SC2016
    for how in 'kill -KILL $pid' 'kill -KILL -- -$pid' 'kill -TERM -- -$pid'; do
        kills "${with[0]##*/} by $how" is_ready "$how" "${with[@]}" sh -c "$stay"
        kills "count by $how" is_ready "$how" "$source_dir/tests/count" single name "${with[@]}" sh -c "$stay"
        kills "a script by $how" is_ready "$how" "$work/runner" "$source_dir" "${with[@]}" sh -c "$stay"
    done
done
[ $runs -gt 0 ] || { echo "no servers in this build"; exit 77; }
echo "$runs runs killed"
exit $bad
