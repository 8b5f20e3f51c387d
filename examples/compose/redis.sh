#!/usr/bin/env bash
# redis.sh - starts Redis with one user, who may do what locks need; each write is on the disk before it is answered.
# SPDX-License-Identifier: Apache-2.0
#
# usage: redis.sh [OPTION OF redis-server]...
set -euo pipefail
umask 077
hash=$(tr -d '\n' <"${DLOCK_SECRETS:-/run/secrets}/redis_password" | sha256sum | cut -d ' ' -f 1)
users=${TMPDIR:-/tmp}/users.acl

echo "user default off" >"$users"
sed "s/^ACL SETUSER /user /; s/ >PASSWORD / #$hash /" "${DLOCK_RIGHTS:-/rights}/redis.rule" >>"$users"
exec redis-server --aclfile "$users" --appendonly yes --appendfsync always "$@"
