#!/usr/bin/env bash
# mariadb.sh - run once by MariaDB's image, for a new database: the table of the locks, and an account for them.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
quoted="'$(cat "${DLOCK_SECRETS:-/run/secrets}/mariadb_password")'"

# Not as an argument, which the process list would show.
while IFS= read -r statement; do
    printf '%s\n' "${statement//"'PASSWORD'"/"$quoted"}"
done <"${DLOCK_RIGHTS:-/rights}/mariadb.sql" | MYSQL_PWD=${MARIADB_ROOT_PASSWORD:-} mariadb --user=root
