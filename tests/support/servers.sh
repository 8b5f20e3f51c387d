#!/usr/bin/env bash
# servers.sh - for scripts that run programs on config/examples/matrix.yaml: its servers; sourced.
# SPDX-License-Identifier: Apache-2.0
#
# Needs checks.sh, and $work, a folder that is there. MySQL is what with_mysql has exported. At the end `stop_servers` has to be called.
# Whoever sources this has made it.
work=${work:?}
redis_pids=()

# The drivers that this library promises, by the committed table, one a line.
promised_drivers() { # SOURCE_DIR
    sed -nE 's/^(sqlite|redis-[a-z-]+|redlock|mysql-[a-z-]+) .*/\1/p' "$1/tests/contract/caps.txt"
}

# The name that a driver's backend has in the matrix.
backend_of() {
    if [ "$1" = sqlite ]; then echo local; else echo "$1"; fi
}

# start_redis NAME: a server on the socket $work/NAME.sock, without persistence. 77 where there is none to be had.
start_redis() {
    local server=${DLOCK_REDIS_SERVER:-redis-server} line log
    command -v "$server" >/dev/null || { echo "redis-server is missing"; exit 77; }
    mkdir -p "$work/$1"
    mkfifo "$work/$1/log"
    # It ends with this script, however that ends.
    setpriv --pdeathsig TERM "$server" --port 0 --unixsocket "$work/$1.sock" --save "" --appendonly no \
        --dir "$work/$1" --logfile "" >"$work/$1/log" 2>&1 </dev/null &
    redis_pids+=($!)
    # Kept open, so that the server can go on writing into it.
    exec {log}<>"$work/$1/log"
    while read -r -t 20 -u "$log" line; do
        [[ $line != *"eady to accept connections"* ]] || return 0
    done
    echo "$server does not start"
    exit 1
}

stop_servers() {
    local pid
    for pid in "${redis_pids[@]}"; do
        kill "$pid" 2>/dev/null && wait "$pid" || :
    done
    redis_pids=()
}

# Starts what the drivers need and says in the environment where it is.
start_servers() { # DRIVER...
    local driver node
    export DLOCK_SQLITE_PATH=$work/locks.db
    for driver in "$@"; do
        case $driver in
        redis-*)
            [ -n "${DLOCK_REDIS_URL:-}" ] || start_redis one
            export DLOCK_REDIS_URL=unix://$work/one.sock
            ;;
        redlock)
            for node in A B C; do
                start_redis "node$node"
                export "DLOCK_REDLOCK_$node=unix://$work/node$node.sock"
            done
            ;;
        mysql-*)
            : "${DLOCK_TEST_MYSQL_PORT:?run this by with_mysql}"
            export DLOCK_MYSQL_HOST=127.0.0.1 DLOCK_MYSQL_PORT=$DLOCK_TEST_MYSQL_PORT
            export DLOCK_MYSQL_USER=$DLOCK_TEST_MYSQL_USER DLOCK_MYSQL_PASSWORD=$DLOCK_TEST_MYSQL_PASSWORD
            export DLOCK_MYSQL_DATABASE=$DLOCK_TEST_MYSQL_DATABASE
            ;;
        esac
    done
}

# use BACKEND FILE: edits the one word, as a person would.
use() {
    sed -i "s/^use: .*/use: $1/" "$2"
    equal "the line that was edited" "$(grep '^use: ' "$2")" "use: $1"
}
