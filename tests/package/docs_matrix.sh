#!/usr/bin/env bash
# docs_matrix.sh - docs/matrix.md and its cases are those of this build, and the table of guarantees says what caps.txt has.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

"$source_dir/scripts/matrix" --check "$build_dir" || die "docs/matrix.md or tests/contract/matrix.tsv is out of date"

# What the table says in words has to be what the driver promises in caps.
guarantees=$source_dir/docs/guarantees.md
check_row() { # NAME CAPS ROW
    local expires wakes fences
    IFS='|' read -r _ _ expires _ _ wakes fences _ <<<"$3"
    case ,$2, in
    *,SESSION,*) [[ $expires == *session* ]] || die "$1 is a session, and the page says it expires by:$expires" ;;
    *,LEASE,*) [[ $expires == *clock* ]] || die "$1 has a lease, and the page says it expires by:$expires" ;;
    *) die "$1 has neither lease nor session" ;;
    esac
    case ,$2, in
    *,NOTIFY,*) [[ $wakes =~ publish|inotify ]] || die "$1 tells waiters, and the page says it wakes by:$wakes" ;;
    *,NATIVE_WAIT,*) [[ $wakes == *"row lock"* ]] || die "$1 waits on the server, and the page says it wakes by:$wakes" ;;
    *) [[ $wakes == " polling " ]] || die "$1 tells nobody, and the page says it wakes by:$wakes" ;;
    esac
    case ,$2, in
    *,FENCE,*) [[ $fences == " token"* ]] || die "$1 has tokens, and the page says it fences by:$fences" ;;
    *) [[ $fences != *token* ]] || die "$1 has no tokens, and the page says it fences by:$fences" ;;
    esac
}
rows=0
while read -r name caps _; do
    row=$(sed -n '/^## Driver by driver/,/^## When/p' "$guarantees" | grep "^| \[$name\]") ||
        die "docs/guarantees.md has no row for $name"
    check_row "$name" "$caps" "$row"
    rows=$((rows + 1))
done < <(grep -E '^(sqlite|redis-string|redis-hash-reentrant|redlock|mysql-[a-z]+) ' "$source_dir/tests/contract/caps.txt")
[ $rows -eq 7 ] || die "$rows drivers, not seven"

# The test must be able to fail.
good='| [x](x.md) | the clock | a | b | polling | token |'
(check_row x LEASE,FENCE "$good") >/dev/null || die "self-check: a good row does not pass"
for bad in SESSION,FENCE LEASE LEASE,FENCE,NOTIFY LEASE,FENCE,NATIVE_WAIT; do
    ! (check_row x $bad "$good") >/dev/null || die "self-check: a row passes for $bad"
done

# The links of all pages beside it lead somewhere. In a block of code there is none: a lambda of C++ looks like one.
for page in "$source_dir"/docs/*.md; do
    { sed '/^```/,/^```/d' "$page" | grep -oE '\]\([^)#]+' || :; } | cut -c 3- | sort -u | while IFS= read -r link; do
        [ -e "$source_dir/docs/$link" ] || die "docs/$(basename "$page") links to $link, which is not there"
    done
done

# What docs/redlock.md names as tests has to be there: cases of faults, and programs.
"$build_dir/tests/support/plain_runner" --list | sed -n 's,^[^/]*/faults__,,p' | sort -u >"$work/cases"
if grep -q '^redlock/' <("$build_dir/tests/support/plain_runner" --list); then
    gone=$(grep -oE '`row[0-9a-z_]+`' "$source_dir/docs/redlock.md" | tr -d '`' | sort -u | comm -23 - "$work/cases")
    [ -z "$gone" ] || die "tests of docs/redlock.md that are not there: $gone"
    ctest --test-dir "$build_dir" -N | sed -n 's/^ *Test *#[0-9]*: //p' | sort >"$work/programs"
    for name in redlock-chaos redlock-chaos-control redlock-clocks tokens; do
        grep -q "\`$name\`" "$source_dir/docs/redlock.md" || die "docs/redlock.md does not name $name"
        grep -qx "$name" "$work/programs" || die "docs/redlock.md names $name, which is no test"
    done
fi
