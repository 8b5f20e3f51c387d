#!/usr/bin/env bash
# rights.sh - writes what an account for locks may do on each server, as dlock says it; without passwords.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
rights=${DLOCK_RIGHTS:-/rights}

dlock --backend redis init --print | sed -n 's/^note *rule: //p' >"$rights/redis.rule"
# The account stands in a comment, as its password is for others to choose.
dlock --backend mariadb init --sql | sed 's/^-- \(CREATE USER \)/\1/' >"$rights/mariadb.sql"
grep -q '^ACL SETUSER ' "$rights/redis.rule"
grep -q '^CREATE USER ' "$rights/mariadb.sql"
grep -q '^GRANT ' "$rights/mariadb.sql"
