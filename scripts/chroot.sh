#!/usr/bin/env bash
# chroot.sh - a Debian in a folder: made, mounted, entered, unmounted; sourced after common.sh.
# SPDX-License-Identifier: Apache-2.0

# chroot_make FOLDER SUITE MIRROR: a bare Debian with git in an empty folder.
chroot_make() {
    local log
    [ "$(id -u)" -eq 0 ] || die "it has to be root, for chroot"
    command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
    # As a real root is: others may enter it.
    mkdir -p "$1"
    chmod 755 "$1"
    log=$(mktemp)
    quietly "$log" debootstrap --variant=minbase --include=git "$2" "$1" "$3" || die "debootstrap failed"
    rm -f "$log"
    cp /etc/resolv.conf "$1/etc/resolv.conf"
}

# chroot_mount FOLDER: what a machine has and a bare folder has not: a root that is a mount point, and pseudo
# terminals. Where they cannot be had, the few tests that need them are skipped.
chroot_mount() {
    mount --bind "$1" "$1" 2>/dev/null || :
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts" 2>/dev/null &&
        ln -sf pts/ptmx "$1/dev/ptmx" || :
}

# chroot_unmount FOLDER: false if something is still mounted there, so that nobody deletes through it.
chroot_unmount() {
    local place
    for place in "$1/proc" "$1/dev/pts" "$1"; do
        ! mountpoint -q "$place" || umount "$place" || return
    done
}

# chroot_run FOLDER COMMAND: as a new user would run it, without a terminal and without our environment.
chroot_run() {
    chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        setsid --wait bash -c "$2" </dev/null 2>&1
}
