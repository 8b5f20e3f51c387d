#!/usr/bin/env bash
# archives.sh - which package archive has a suite: by the machine's own package sources; sourced after common.sh.
# SPDX-License-Identifier: Apache-2.0

# archives_of FOLDER: the archives of binary packages that apt is told of there (/etc/apt), one a line, in its order.
archives_of() {
    local file
    for file in "$1/sources.list" "$1"/sources.list.d/*; do
        [ -f "$file" ] || continue
        case $file in
        *.list) sed -nE 's/^[[:blank:]]*deb[[:blank:]]+(\[[^]]*\][[:blank:]]*)?([^[:blank:]]+).*/\2/p' "$file" ;;
        # Stanzas of fields, which go on in lines that begin with a blank.
        *.sources)
            awk '
                function end() {
                    if (types ~ /(^|[ \t])deb([ \t]|$)/ && enabled !~ /^[ \t]*(no|false|off|0)[ \t]*$/) {
                        n = split(uris, each)
                        for (i = 1; i <= n; i++) print each[i]
                    }
                    types = uris = enabled = field = ""
                }
                /^#/ { next }
                /^[ \t]*$/ { end(); next }
                /^[^ \t]/ { at = index($0, ":"); field = tolower(substr($0, 1, at - 1)); $0 = substr($0, at + 1) }
                field == "types" { types = types " " $0 }
                field == "uris" { uris = uris " " $0 }
                field == "enabled" { enabled = enabled $0 }
                END { end() }
            ' "$file"
            ;;
        esac
    done | sed 's,/*$,,' | awk '!seen[$0]++'
}

# release_of ARCHIVE SUITE: what the archive says of it; debootstrap needs wget too.
release_of() {
    case $1 in
    http://* | https://*) wget -q -O - --timeout=20 --tries=3 "$1/dists/$2/Release" ;;
    file:*) cat "${1#file:}/dists/$2/Release" 2>/dev/null ;;
    *) false ;;
    esac
}

# distribution_of ARCHIVE SUITE: Debian or Ubuntu, if this is an archive of the whole of it.
distribution_of() {
    release_of "$1" "$2" | awk -v suite="$2" '
        $1 == "Origin:" { origin = $2 }
        ($1 == "Suite:" || $1 == "Codename:") && $2 == suite { named = 1 }
        END { if (!named || (origin != "Debian" && origin != "Ubuntu")) exit 1; print origin }
    '
}

# archive_with SUITE [FOLDER]: the first of them that has the whole suite.
archive_with() {
    local archive
    while IFS= read -r archive; do
        if distribution_of "$archive" "$1" >/dev/null; then
            say "$archive"
            return 0
        fi
    done < <(archives_of "${2:-/etc/apt}")
    return 1
}
