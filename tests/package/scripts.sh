#!/usr/bin/env bash
# scripts.sh - every shell script parses, is executable, and passes shellcheck.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"

cd "$source_dir"
scripts=()
while IFS= read -r file; do
    case $(head -c 40 "$file" | head -n 1 | tr -d '\0') in
    '#!'*bash*)
        [ -x "$file" ] || [ "$(basename "$file")" = common.sh ] || die "$file is not executable"
        bash -n "$file"
        scripts+=("$file")
        ;;
    '#!'*) die "$file: scripts here are bash, called by #!/usr/bin/env bash" ;;
    esac
done < <(tree_files)
[ ${#scripts[@]} -gt 5 ] || die "only ${#scripts[@]} scripts found"
if optional shellcheck; then
    shellcheck --severity=warning -x -P SCRIPTDIR "${scripts[@]}"
fi
