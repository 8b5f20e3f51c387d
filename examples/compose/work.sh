#!/usr/bin/env bash
# work.sh - counts up a file that all replicas share, one step a lock. Which backend that is, the script does not know.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
export COUNT=${DLOCK_DATA:-/data}/count-$DLOCK_BACKEND

for ((i = 0; i < ${ROUNDS:-20}; i++)); do
    # shellcheck disable=SC2016
    dlock run counter --wait 1m -- bash -c '
        n=$(cat "$COUNT" 2>/dev/null || echo 0)
        sleep 0.1
        echo $((n + 1)) >"$COUNT"
        echo "$DLOCK_BACKEND: $((n + 1)), token $DLOCK_TOKEN"'
done
