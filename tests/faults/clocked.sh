#!/usr/bin/env bash
# clocked.sh - for scripts that set clocks: servers and clients whose time is moved by clock_shim.c; sourced.
# SPDX-License-Identifier: Apache-2.0
#
# Needs, when its functions are called: checks.sh; $holder, the program; $shim, what is preloaded; $driver; $dir, a folder that is
# there; $clock, the file that moves the clock. What it starts ends with the script.
# shellcheck disable=SC2034,SC2154
export LC_ALL=C.UTF-8
unset DLOCK_BACKEND DLOCK_CONFIG

# Whoever runs by this has a wall clock that is as far from the machine's as the file $clock says, from one question to
# the next.
set_clock() { # SECONDS
    echo "$1" >"$clock.new"
    mv "$clock.new" "$clock"
}
clocked() { # COMMAND [ARG]...: in place of this process
    exec env LD_PRELOAD="$shim" DLOCK_TEST_CLOCK="$clock" setpriv --pdeathsig KILL "$@"
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
    local log line said=""
    exec {log}<>"$dir/$1.log"
    # Nobody reads on after that: what it still says has room in the pipe, and the descriptor keeps it open.
    until [[ $said == *"eady to accept connections"* ]]; do
        if read -r -t 1 -u "$log" line; then
            said+=$line$'\n'
        elif ! kill -0 "${pids[$1]}" 2>/dev/null; then
            die "$driver: the server $1 has ended: $said"
        fi
    done
    rm "$dir/$1.log"
}
