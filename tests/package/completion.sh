#!/usr/bin/env bash
# completion.sh - what the completion for bash offers, and that the names of locks are no commands to it.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

. "$source_dir/cli/dlock.bash-completion"

# In place of the command: held locks of all sorts, and the backends of one configuration.
dlock() {
    case "$*" in
    "--config my.yaml --backend db list")
        printf '%s: held by somebody\n' plain 'app/job-1.2' '9' "\$(touch\${IFS}$work/run)" "\`>$work/run\`" \
            "\${HOME}" '~' 'a*' 'a?' '[a-z]*' "'a" '"a' 'a;b' 'a&b' 'a|b' '{a,b}' '-x' '!a' '#a' 'a(b)' 'a>b' \
            'a\\x20b'
        ;;
    "--config my.yaml backends") printf '* db: driver sqlite\n  other: driver redis-string\n' ;;
    esac
}

# offers EXPECTED WORD...: for the last of the words, as bash takes them apart.
offers() {
    local expected=$1
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    COMPREPLY=()
    _dlock || true
    [ "${COMPREPLY[*]-}" = "$expected" ] ||
        die "${*:2}: offered '${COMPREPLY[*]-}', expected '$expected'"
}

for command in status unlock list; do
    offers "plain app/job-1.2 9" dlock --config my.yaml --backend db $command ""
    offers "app/job-1.2" dlock --config my.yaml --backend db $command "app"
    offers "plain app/job-1.2 9" dlock --config = my.yaml --backend = db $command ""
done
[ ! -e "$work/run" ] || die "the name of a lock was run"
offers "db local other" dlock --config my.yaml --backend ""
offers "db" dlock --config = my.yaml compare --backend = d
offers "db local other" dlock compare --config = my.yaml --hold = 1ms --backend =
offers "10s 10m" dlock run --wait 10
offers "10s 10m" dlock run --wait = 10
offers "status" dlock stat
offers "--" dlock run --lease = 10s nightly ""
