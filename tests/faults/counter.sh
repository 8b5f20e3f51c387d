#!/usr/bin/env bash
# counter.sh - runs the counter under one backend of a file that has them all: only `use:` differs.
# SPDX-License-Identifier: Apache-2.0
#
# usage: tests/faults/counter.sh COUNTER BACKEND [OPTION]...
#   sqlite, redis-string, redis-hash-reentrant, redlock, mysql-pessimistic, mysql-lease or mysql-optimistic
# Without options the full numbers: 8 processes x 4 threads, 20,000 increments. Starts a Redis server where it needs
# one; for redlock run it by with_redis, for the MySQL backends by with_mysql.
set -euo pipefail

counter=$1 backend=$2
shift 2
# shellcheck source-path=SCRIPTDIR/../support
. "$(dirname "$0")/../support/checks.sh"
work=$(mktemp -d)
redis=0
clean_up() {
    [ "$redis" -eq 0 ] || { kill "$redis" && wait "$redis" || :; }
    rm -rf "$work"
}
trap clean_up EXIT

if [[ $backend == mysql-* ]]; then
    : "${DLOCK_TEST_MYSQL_SOCKET:?run this by with_mysql}"
fi
if [[ $backend == redlock ]]; then
    : "${DLOCK_TEST_REDIS_NODES:?run this by with_redis}"
fi
mysql="socket: \"${DLOCK_TEST_MYSQL_SOCKET:-/nowhere}\", user: ${DLOCK_TEST_MYSQL_USER:-nobody},\
 password: ${DLOCK_TEST_MYSQL_PASSWORD:-none}, database: ${DLOCK_TEST_MYSQL_DATABASE:-none}, create: true"

cat >"$work/dlock.yaml" <<EOF
use: $backend
backends:
  sqlite: {driver: sqlite, path: "$work/locks.db"}
  redis-string: {driver: redis-string, url: "unix://$work/redis.sock"}
  redis-hash-reentrant: {driver: redis-hash-reentrant, url: "unix://$work/redis.sock"}
  redlock: {driver: redlock, nodes: ${DLOCK_TEST_REDIS_NODES:-["redis://a", "redis://b", "redis://c"]}}
  mysql-pessimistic: {driver: mysql-pessimistic, $mysql}
  mysql-lease: {driver: mysql-lease, $mysql}
  mysql-optimistic: {driver: mysql-optimistic, $mysql}
EOF

if [[ $backend == redis-* ]]; then
    server=${DLOCK_REDIS_SERVER:-redis-server}
    command -v "$server" >/dev/null || { echo "redis-server is missing"; exit 77; }
    mkfifo "$work/log"
    # It ends with this script, however that ends.
    setpriv --pdeathsig TERM "$server" --port 0 --unixsocket "$work/redis.sock" --save "" --appendonly no \
        --dir "$work" --logfile "" >"$work/log" 2>&1 </dev/null &
    redis=$!
    exec {log}<>"$work/log"
    while read -r -t 20 -u "$log" line; do
        [[ $line != *"eady to accept connections"* ]] || break
    done
fi
env -u DLOCK_BACKEND "$counter" "$@" "$work/dlock.yaml"
