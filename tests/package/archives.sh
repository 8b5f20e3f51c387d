#!/usr/bin/env bash
# archives.sh - the scripts that make roots find the archive of a suite among a machine's own package sources.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "$0")/common.sh"
# shellcheck source-path=SCRIPTDIR/../../scripts
say() { printf '%s\n' "$*"; }
. "$source_dir/scripts/archives.sh"

# Both forms, with what people write into them.
mkdir -p "$work/apt/sources.list.d"
cat >"$work/apt/sources.list" <<'END'
# deb http://commented.test/debian trixie main
deb-src http://source.test/debian trixie main
deb http://one.test/debian trixie main
deb [arch=amd64 signed-by=/usr/share/keyrings/a.gpg] https://two.test/debian/ trixie main
deb http://one.test/debian trixie-updates main
END
cat >"$work/apt/sources.list.d/a.sources" <<'END'
# A comment.
Types: deb deb-src
URIs: http://three.test/debian
  http://four.test/debian
Suites: trixie
Components: main

Types: deb-src
URIs: http://source.test/debian
Suites: trixie

Enabled: no
Types: deb
URIs: http://disabled.test/debian
Suites: trixie

types: deb
uris: http://five.test/ubuntu/
suites: noble
END
echo 'deb http://other.test/debian trixie main' >"$work/apt/sources.list.d/not-a-source.save"
equal "what apt is told of" "$(archives_of "$work/apt" | tr '\n' ' ')" "http://one.test/debian https://two.test/debian \
http://three.test/debian http://four.test/debian http://five.test/ubuntu "

# The first that has all of the suite: neither one of somebody's own packages, nor one of its updates.
release() { # FOLDER SUITE ORIGIN CODENAME
    mkdir -p "$work/$1/dists/$2"
    printf 'Origin: %s\nSuite: stable\nCodename: %s\n' "$3" "$4" >"$work/$1/dists/$2/Release"
}
release vendor trixie Vendor trixie
release security trixie Debian trixie-security
release debian trixie Debian trixie
release mirror trixie Debian trixie
release ubuntu noble Ubuntu noble
rm -r "$work/apt"
mkdir "$work/apt"
for name in nothing vendor security debian mirror ubuntu; do echo "deb file:$work/$name trixie main"; done >"$work/apt/sources.list"
equal "the archive of trixie" "$(archive_with trixie "$work/apt")" "file:$work/debian"
equal "the archive of noble" "$(archive_with noble "$work/apt")" "file:$work/ubuntu"
equal "the distribution of noble" "$(distribution_of "file:$work/ubuntu" noble)" Ubuntu
! archive_with sid "$work/apt" || die "an archive of sid was found where there is none"
