#!/usr/bin/env bash
# compose.sh - examples/compose holds together, and what its containers run does what they should, without containers.
# SPDX-License-Identifier: Apache-2.0
#
# usage: tests/package/compose.sh SOURCE_DIR BUILD_DIR      by with_mysql. Needs the command with the drivers for both servers.
. "$(dirname "$0")/common.sh"
# shellcheck source-path=SCRIPTDIR/../support
. "$source_dir/tests/support/servers.sh"
trap 'stop_servers; rm -rf "$work"' EXIT
compose=$source_dir/examples/compose

python=""
for candidate in /usr/bin/python3 python3; do
    ! "$candidate" -c 'import yaml' 2>/dev/null || { python=$candidate; break; }
done
[ -n "$python" ] || skip "no Python has the module yaml"
"$python" "$source_dir/tests/package/compose.py" "$compose/compose.yaml"
health=$("$python" "$source_dir/tests/package/compose.py" --health redis "$compose/compose.yaml")

command -v mariadb >/dev/null || skip "the mariadb client is missing"
case ${DLOCK_TEST_MYSQL_SERVER:?run this by with_mysql} in *MariaDB*) ;; *) skip "the server is not MariaDB" ;; esac

# The places that are other ones here.
export PATH=$build_dir/cli:$PATH DLOCK_CONFIG=$compose/dlock.yaml
export DLOCK_SECRETS=$work/secrets DLOCK_RIGHTS=$work/rights DLOCK_DATA=$work/data TMPDIR=$work
export DLOCK_REDIS_URL=unix://$work/server.sock
export DLOCK_MYSQL_HOST=127.0.0.1 DLOCK_MYSQL_PORT=$DLOCK_TEST_MYSQL_PORT DLOCK_MYSQL_DATABASE=$DLOCK_TEST_MYSQL_DATABASE
# Where the client of the image finds its server by itself.
export HOME=$work
printf '[client]\nsocket=%s\n' "$DLOCK_TEST_MYSQL_SOCKET" >"$HOME/.my.cnf"
unset DLOCK_BACKEND
mkdir "$DLOCK_RIGHTS" "$DLOCK_DATA"

echo "secrets"
"$compose/secrets.sh" "$DLOCK_SECRETS"
equal "the mode of the folder" "$(stat -c %a "$DLOCK_SECRETS")" 700
before=$(cat "$DLOCK_SECRETS"/*)
has "the passwords" "$before" '^[0-9a-f]{144}$'
"$compose/secrets.sh" "$DLOCK_SECRETS"
equal "what is there after a second time" "$(cat "$DLOCK_SECRETS"/*)" "$before"

echo "rights"
"$compose/rights.sh"
! grep -rqF -f <(cat "$DLOCK_SECRETS/redis_password"; echo; cat "$DLOCK_SECRETS/mariadb_password") "$DLOCK_RIGHTS" || die "a password is among the rights"

echo "servers"
DLOCK_REDIS_SERVER=$compose/redis.sh start_redis server
"$compose/mariadb.sh"
health=${health//\/run\/secrets/$DLOCK_SECRETS}
bash -c "${health//redis-cli /redis-cli -s $work/server.sock }" || die "the server is not healthy, by: $health"

# denied COMMAND...: Redis refuses it to who says no password, and to the account for locks.
denied() {
    local out
    out=$(redis-cli -s "$work/server.sock" "$@" 2>&1) || :
    has "the answer to $* of nobody" "$out" '^NOAUTH'
    out=$(REDISCLI_AUTH=$(cat "$DLOCK_SECRETS/redis_password") redis-cli -s "$work/server.sock" --user app_locks "$@" 2>&1) || :
    has "the answer to $* of the account" "$out" '^NOPERM'
}
denied get other
denied flushall
denied config get requirepass
out=$(MYSQL_PWD=$(cat "$DLOCK_SECRETS/mariadb_password") mariadb --protocol=tcp --host=127.0.0.1 --port="$DLOCK_MYSQL_PORT" --user=app_locks \
    "$DLOCK_MYSQL_DATABASE" -e 'CREATE TABLE other (i INT)' 2>&1) && die "the account may make tables"
has "the answer of MariaDB" "$out" 'denied'

for backend in redis mariadb; do
    echo "$backend"
    export DLOCK_BACKEND=$backend
    out=$(dlock check) || die "$out"
    ! grep -E '^error' <<<"$out" || die "and no check should find that"
    # Two replicas.
    ROUNDS=4 "$compose/work.sh" >"$work/$backend.1" 2>&1 &
    first=$!
    ROUNDS=4 "$compose/work.sh" >"$work/$backend.2" 2>&1 || die "$(cat "$work/$backend.2")"
    wait $first || die "$(cat "$work/$backend.1")"
    equal "the count" "$(cat "$DLOCK_DATA/count-$backend")" 8
    # In the order of the count, tokens rise.
    sort -t ' ' -k 2n "$work/$backend".[12] | tee "$work/steps"
    sed 's/.*token //' "$work/steps" | sort -nuc || die "a token does not rise"
    equal "the steps" "$(wc -l <"$work/steps")" 8
done
