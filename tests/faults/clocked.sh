#!/usr/bin/env bash
# clocked.sh - for scripts that set clocks: servers and clients whose time is moved by libfaketime; sourced.
# SPDX-License-Identifier: Apache-2.0
#
# Needs, when its functions are called: $holder, the program; $driver; $dir, a folder that is there; $clock, the file that
# moves the clock. Ends the script with 77 (skipped) without libfaketime. What it starts ends with the script.
# shellcheck disable=SC2034,SC2154
export LC_ALL=C.UTF-8
unset DLOCK_BACKEND DLOCK_CONFIG

die() {
    printf '%s\n' "$*"
    exit 1
}

faketime=""
for file in /usr/lib/*/faketime/libfaketimeMT.so.1 /usr/lib{,64}/faketime/libfaketimeMT.so.1; do
    [ ! -e "$file" ] || faketime=$file
done
[ -n "$faketime" ] || { echo "libfaketime is missing"; exit 77; }

# Whoever runs by this has a wall clock that is as far from the machine's as the file $clock says, from one question to
# the next. Behind it the C library by name, because the allocator of some servers asks for the time before libfaketime
# is ready.
set_clock() { # SECONDS
    echo "$1" >"$clock.new"
    mv "$clock.new" "$clock"
}
clocked() { # COMMAND [ARG]...: in place of this process
    exec env LD_PRELOAD="$faketime libc.so.6" FAKETIME_TIMESTAMP_FILE="$clock" FAKETIME_NO_CACHE=1 \
        FAKETIME_DONT_FAKE_MONOTONIC=1 setpriv --pdeathsig KILL "$@"
}

declare -A to from
open_client() { # NAME: a holder with the file dlock.yaml
    mkfifo "$dir/$1.in" "$dir/$1.out"
    if [ "$driver" = sqlite ]; then
        (clocked "$holder" "$dir/dlock.yaml") <"$dir/$1.in" >"$dir/$1.out" &
    else
        setpriv --pdeathsig KILL "$holder" "$dir/dlock.yaml" <"$dir/$1.in" >"$dir/$1.out" &
    fi
    local in out
    exec {in}>"$dir/$1.in" {out}<"$dir/$1.out"
    to[$1]=$in from[$1]=$out
    hear "$1"
    [[ $heard == DL_OK* ]] || die "$driver: the client $1 cannot open: $heard"
}
hear() { # NAME
    read -r -t 30 heard <&"${from[$1]}" || die "$driver: the client $1 does not answer"
}
ask() { # NAME COMMAND...
    local name=$1
    shift
    echo "$*" >&"${to[$name]}"
    hear "$name"
}
# Sets `token`: what the client gets, or the status that it gets instead.
take() { # NAME
    ask "$1" lock orders 10000
    token=${heard%% *}
    [ "$token" = DL_OK ] || return 0
    token=${heard#*token=} token=${token%% *}
    ask "$1" unlock orders
    [[ $heard == DL_OK* ]] || die "$driver: the client $1 cannot unlock: $heard"
}

declare -A pids
start_redis() { # NAME: empty, by the clock of the file
    mkfifo "$dir/$1.log"
    (clocked "${DLOCK_REDIS_SERVER:-redis-server}" --port 0 --unixsocket "$dir/$1.sock" --save "" --appendonly no \
        --dir "$dir" --logfile "") >"$dir/$1.log" 2>&1 </dev/null &
    pids[$1]=$!
    local log line
    exec {log}<>"$dir/$1.log"
    while read -r -t 20 -u "$log" line; do
        [[ $line != *"eady to accept connections"* ]] || break
    done
    # Nobody reads on: what it still says has room in the pipe, and the descriptor keeps it open.
    rm "$dir/$1.log"
}
