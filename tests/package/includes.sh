#!/usr/bin/env bash
# includes.sh - every folder includes only what the house rule allows.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

# resolve FILE MARK INCLUDE: sets $target to the file of the tree that the include means; empty for the system's.
# The mark is < or ": with < the folders beside the file are not looked at.
resolve() {
    local base path bases=(include/ "")
    [ "$2" = '<' ] || bases=("${1%/*}/" "${1%/*}/../" include/ "")
    target=""
    for base in "${bases[@]}"; do
        [ -f "$base$3" ] || continue
        path=$base$3
        while [[ $path =~ ^(.*/)?[^/.]+/\.\./(.*)$ ]]; do path=${BASH_REMATCH[1]}${BASH_REMATCH[2]}; done
        target=${path#./}
        return
    done
}

# allowed FILE TARGET: may this file include that one?
allowed() {
    # What a driver that speaks over sockets is for the core, and what is nobody's in particular.
    [[ $1 != drivers/* || ( $2 != core/backend.h && $2 != core/digits.h ) ]] || return 0
    case $1 in
    include/*) [[ $2 == include/* ]] ;;
    core/*) [[ $2 == core/* || $2 == include/* ]] ;;
    # What is UTF-8 is said once.
    config/*) [[ $2 == config/* || $2 == include/* || $2 == core/utf8.h ]] ;;
    # Opening joins the three by what they offer.
    open/*) [[ $2 == core/* || $2 == config/config.h || $2 == drivers/registry.h || $2 == include/* ]] ;;
    # What lies below a driver's folder may look up to it, except for its link, which knows nothing of locks.
    drivers/*/link/*) [[ $2 == "${1%/*}"/* || $2 == include/* || ($2 == drivers/* && $2 != drivers/*/*) ]] ;;
    drivers/*/*/*)
        local below=${1#drivers/*/}
        [[ $2 == "${1%"$below"}"* || $2 == include/* || ($2 == drivers/* && $2 != drivers/*/*) ]]
        ;;
    drivers/*/*) [[ $2 == "${1%/*}"/* || $2 == include/* || ($2 == drivers/* && $2 != drivers/*/*) ]] ;;
    # The registry names the tables of the drivers, each in the header of that driver's folder.
    drivers/*) [[ $2 == drivers/* || $2 == include/* ]] ;;
    examples/custom_driver/*) [[ $2 == examples/custom_driver/* || $2 == include/* ]] ;;
    # The command reads times as the configuration does, and UTF-8 as all do.
    cli/*) [[ $2 == cli/* || $2 == include/* || $2 == config/scalar.h || $2 == core/utf8.h ]] ;;
    bench/* | examples/*) [[ $2 == "${1%%/*}"/* || $2 == include/dlock/dlock.h ]] ;;
    *) true ;;
    esac
}

# check TREE: prints every include that breaks the rule; fails if there is one.
check() (
    cd "$1"
    bad=0 seen=0
    while IFS=: read -r file line text; do
        [[ $text =~ ([\<\"])([^\>\"]+)[\>\"] ]] || continue
        resolve "$file" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
        [ -n "$target" ] || continue
        seen=$((seen + 1))
        allowed "$file" "$target" || { echo "$file:$line: must not include $target"; bad=1; }
    done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include' --include='*.[ch]' --include='*.[ch]pp' \
        include core config drivers open cli bench examples)
    [ $seen -gt 0 ] || { echo "no include found at all"; bad=1; }
    [ $bad -eq 0 ]
)

check "$source_dir" || die "the include rule is broken"

# The test must be able to fail: each of these lines breaks the rule in a tree that has what it names.
# (Without the line it passes, so it is that line that it finds.)
while read -r file include; do
    rm -rf "$work/tree"
    mkdir -p "$work/tree"/{include/dlock,core,config,drivers/sqlite,drivers/mysql/link,drivers/redis/redlock,open,cli,bench,examples}
    touch "$work/tree"/{include/dlock/dlock.h,include/dlock/driver.h,core/sys.h,config/{config,loader}.h,drivers/{breaker,registry}.h}
    touch "$work/tree/drivers/mysql/lock.h"
    echo '#include "dlock/dlock.h"' >"$work/tree/include/dlock/driver.h"
    check "$work/tree" || die "self-check: a clean tree does not pass"
    echo "#include \"$include\"" >"$work/tree/$file"
    ! check "$work/tree" >/dev/null || die "self-check: $file may include $include"
done <<'EOF'
drivers/sqlite/planted.c core/sys.h
drivers/sqlite/planted.c ../../core/sys.h
drivers/mysql/link/planted.c drivers/mysql/lock.h
drivers/mysql/link/planted.c ../lock.h
drivers/redis/redlock/planted.c drivers/mysql/lock.h
drivers/planted.c core/sys.h
core/planted.c config/config.h
core/planted.c drivers/registry.h
config/planted.c core/sys.h
open/planted.c config/loader.h
open/planted.c drivers/breaker.h
open/planted.c drivers/mysql/lock.h
cli/planted.c core/sys.h
cli/planted.c config/config.h
bench/planted.c core/sys.h
examples/planted.c dlock/driver.h
include/dlock/planted.h core/sys.h
include/dlock/planted.hpp core/sys.h
EOF
