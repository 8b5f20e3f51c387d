#!/usr/bin/env bash
# chroot.sh - a Debian in a folder: made, mounted, entered, unmounted, and steps in it; sourced after common.sh.
# SPDX-License-Identifier: Apache-2.0
# shellcheck source=archives.sh
. "$(dirname "${BASH_SOURCE[0]}")/archives.sh"

# chroot_make FOLDER SUITE ARCHIVE KEYRING: a bare Debian or Ubuntu with git in an empty folder. Without an archive it is the
# first that this machine gets packages from and that has the suite; without a keyring, debootstrap knows where it is.
chroot_make() {
    local log archive=$3 distribution script="" how=(--variant=minbase --include=git --force-check-gpg)
    [ "$(id -u)" -eq 0 ] || die "it has to be root, for chroot"
    command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
    [ -n "$archive" ] || archive=$(archive_with "$2") ||
        die "none of this machine's package sources has $2: name an archive by --mirror URL (and its keys by --keyring FILE)"
    distribution=$(distribution_of "$archive" "$2") || die "$archive has no $2 of Debian or Ubuntu"
    # An older debootstrap does not know the names of newer suites.
    case $distribution in
    Debian) script=sid ;;
    Ubuntu) script=gutsy how+=("--components=main,universe") ;;
    esac
    [ ! -e "/usr/share/debootstrap/scripts/$2" ] || script=$2
    [ -z "$4" ] || how+=("--keyring=$4")
    # As a real root is: others may enter it.
    mkdir -p "$1"
    chmod 755 "$1"
    log=$(mktemp)
    quietly "$log" debootstrap "${how[@]}" "$2" "$1" "$archive" "$script" || die "debootstrap failed"
    rm -f "$log"
    cp /etc/resolv.conf "$1/etc/resolv.conf"
}

# chroot_mount FOLDER: what a machine has and a bare folder has not: a root that is a mount point, pseudo terminals, and
# a place for files in memory. Where they cannot be had, the few tests that need them are skipped.
chroot_mount() {
    mount --bind "$1" "$1" 2>/dev/null || :
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts" 2>/dev/null &&
        ln -sf pts/ptmx "$1/dev/ptmx" || :
    mkdir -p "$1/dev/shm" && mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm" 2>/dev/null || :
}

# chroot_unmount FOLDER: false if something is still mounted there, so that nobody deletes through it.
chroot_unmount() {
    local place
    for place in "$1/proc" "$1/dev/pts" "$1/dev/shm" "$1"; do
        ! mountpoint -q "$place" || umount "$place" || return
    done
}

# chroot_run FOLDER COMMAND: as a new user would run it, without a terminal and without our environment.
chroot_run() {
    chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        setsid --wait bash -c "$2" </dev/null 2>&1
}

# What scripts/bare-root and scripts/bare-packages are: begin_bare, some steps, end_bare.

# begin_bare [OPTION]... [FOLDER]: a bare root in $folder, with what is committed here in its /dlock, and nothing counted yet;
# usage as in scripts/bare-root, where $suite is what --suite says if it says nothing, and $programs what --programs says. It goes when this script ends.
# shellcheck disable=SC2034
begin_bare() {
    local mirror="" keyring=""
    keep=0 folder=""
    while [ $# -gt 0 ]; do
        case $1 in
        --keep) keep=1; shift ;;
        --suite) suite=${2:?}; shift 2 ;;
        --programs) programs=${2:?}; shift 2 ;;
        --mirror) mirror=${2:?}; shift 2 ;;
        --keyring) keyring=${2:?}; shift 2 ;;
        -*) die "unknown argument $1" ;;
        *) folder=$1; shift ;;
        esac
    done
    [ -n "$folder" ] || folder=$(mktemp -d)
    [ -z "$(ls -A "$folder" 2>/dev/null)" ] || die "$folder is not empty"
    trap clean_up_bare EXIT

    say "making a bare $suite in $folder"
    chroot_make "$folder" "$suite" "$mirror" "$keyring"
    chroot_mount "$folder"
    # shellcheck disable=SC2154
    git -c safe.directory='*' clone -q --no-local "$root" "$folder/dlock" || die "the clone failed"
    passed=0 failed=0 skipped=0 times=()
}

# shellcheck disable=SC2317
clean_up_bare() {
    chroot_unmount "$folder" || return
    if [ "$keep" -eq 1 ]; then say "the root is kept: $folder"; else rm -rf --one-file-system "$folder"; fi
}

# step WHAT COMMAND...: what its last line does not count is one case.
step() {
    local what=$1 began=$SECONDS result=0 counts log=$folder/bare-root.log p f s
    shift
    "$@" 2>&1 | tee "$log" || result=$?
    counts=$(tail -n 1 "$log" | sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p')
    if [ -z "$counts" ]; then counts="$((result == 0)) $((result != 0)) 0"; fi
    read -r p f s <<<"$counts"
    [ $result -eq 0 ] || [ "$f" -gt 0 ] || f=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    times+=("$(printf '%-14s exit status %d, %4d s' "$what" $result $((SECONDS - began)))")
}

# inside COMMAND: a step, as a new user would run it there.
inside() {
    step "$1" chroot_run "$folder" "cd /dlock && $*"
}

# end_bare: false if something failed.
end_bare() {
    printf '%s\n' "${times[@]}"
    clean_up_bare && trap - EXIT
    say "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ]
}
