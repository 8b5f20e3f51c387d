#!/usr/bin/env bash
# secrets.sh - makes a password for each account, in the folder that compose.yaml takes them from. Those that are there stay.
# SPDX-License-Identifier: Apache-2.0
#
# usage: secrets.sh [FOLDER]
set -euo pipefail
folder=${1:-$(dirname "$0")/secrets}

# Only who may enter the folder can read the files. In the containers, where they have no folder, each user can.
umask 077
mkdir -p "$folder"
chmod 700 "$folder"
for name in redis_password mariadb_password mariadb_root_password; do
    [ -s "$folder/$name" ] || head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$folder/$name"
    chmod 644 "$folder/$name"
done
