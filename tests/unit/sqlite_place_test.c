/* sqlite_place_test.c - the SQLite driver: links on the way, other names, folders of others. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "sqlite_strangers.h"

#include <sys/time.h>

TestSuite(sqlite_place, .init = set_up_both, .fini = tear_down, .timeout = 60);

/* ---- the way to the file ---------------------------------------------------------------------------- */

Test(sqlite_place, a_link_of_another_users_leads_only_to_what_is_theirs) {
    char message[256], way[160], file[200];
    meet_another_user();
    snprintf(way, sizeof way, "%s/way", theirs);
    snprintf(file, sizeof file, "%s/locks.db", way);
    they_link(ours, way);
    cr_assert_eq(try_open(file, message, sizeof message), DL_ECONFIG, "%s", message);
    cr_assert_has(message, "a link of another user's");
    cr_assert_eq(entries_in(ours), 0);
    /* The file itself. */
    make_precious(in_ours("file"));
    cr_assert_eq(truncate(in_ours("file"), 0), 0);
    they_link(in_ours("file"), path);
    cr_assert_eq(try_open(path, message, sizeof message), DL_ECONFIG, "%s", message);
    struct stat now;
    cr_assert_eq(stat(in_ours("file"), &now), 0);
    cr_assert_eq(now.st_size, 0, "an empty file of root's was filled");
    cr_assert_eq(unlink(path), 0);
    /* To their own folder, and links of root's to anywhere. */
    cr_assert_eq(unlink(way), 0);
    they_link(".", way);
    cr_assert_eq(try_open(file, message, sizeof message), DL_OK, "%s", message);
    cr_assert_eq(access(path, F_OK), 0);
    snprintf(way, sizeof way, "%s/rooted", ours);
    snprintf(file, sizeof file, "%s/locks.db", way);
    cr_assert_eq(symlink("../theirs/way/..//theirs", way), 0);
    cr_assert_eq(try_open(file, message, sizeof message), DL_OK, "%s", message);
    cr_assert_eq(unlink(way), 0);
    cr_assert_eq(symlink("rooted", way), 0);
    cr_assert_eq(try_open(file, message, sizeof message), DL_ECONFIG, "%s", message);
}

static int open_below(const void *home) {
    client_t c;
    (void)unsetenv("XDG_STATE_HOME");
    (void)setenv("HOME", home, 1);
    dl_status_t status = open_options(&c, UUID_B, NULL, 1);
    fprintf(stderr, "%s\n", c.err.message);
    return status == DL_EAUTH && c.err.native == EACCES ? 0 : 1;
}

Test(sqlite_place, why_the_users_own_folder_cannot_be_made_is_said) {
    meet_another_user();
    they(open_below, ours);
}

/* In bursts, with ever other pauses between them: what opens the file meets exchanges at every step of its,
 * and now and then a folder that stays for long enough. */
static int exchange_for_ever(const void *unused) {
    (void)unused;
    char link_name[160];
    snprintf(link_name, sizeof link_name, "%s/link", theirs);
    char app[160];
    snprintf(app, sizeof app, "%s/app", theirs);
    for (unsigned turn = 0; access(theirs, F_OK) == 0; turn++) {
        for (unsigned i = 0; i <= turn % 100; i++) {
            (void)syscall(SYS_renameat2, AT_FDCWD, app, AT_FDCWD, link_name, RENAME_EXCHANGE);
        }
        struct timespec pause = {.tv_nsec = 100000 * (long)(turn % 73)};
        nanosleep(&pause, NULL);
    }
    return 0;
}

static int make_app(const void *unused) {
    (void)unused;
    char name[160];
    snprintf(name, sizeof name, "%s/app", theirs);
    if (mkdir(name, 0755) != 0) {
        return 1;
    }
    snprintf(name, sizeof name, "%s/link", theirs);
    return symlink(ours, name);
}

Test(sqlite_place, a_folder_that_is_exchanged_all_the_time_leads_nowhere_else) {
    client_t c;
    int opened = 0, refused = 0;
    meet_another_user();
    they(make_app, NULL);
    snprintf(path, sizeof path, "%s/app/locks.db", theirs);
    deed_t deed = {.fn = exchange_for_ever};
    pid_t child = spawn(act, &deed);
    for (uint64_t i = 1; opened < 50 || refused < 50 || i <= 500; i++) {
        dl_status_t status = open_options(&c, UUID_A, path, 1);
        refused += status == DL_ECONFIG;
        if (status == DL_OK) {
            opened++;
            if (take(&c, "orders", A, i, 30000, NULL) == DL_OK) {
                (void)drop(&c, "orders", A, i);
            }
        }
        must_close(&c);
        cr_assert_eq(entries_in(ours), 0, "after %d opened, %d refused", opened, refused);
    }
    kill(child, SIGKILL);
    cr_assert_eq(ended(child), 128 + SIGKILL);
}

/* Had SQLite been led to believe that it is one of its files. */
Test(sqlite_place, sqlite_deletes_nothing_but_the_files_beside_the_lock_file) {
    client_t c;
    dli_guard_t guard;
    must_open(&c, UUID_A);
    sqlite3_vfs *vfs = sqlite3_vfs_find(dli_guard_vfs);
    cr_assert_not_null(vfs);
    const char *never[] = {in_ours("locks.db-wal"), beside("-other")};
    for (int i = 0; i < 2; i++) {
        make_precious(never[i]);
        dli_guard_enter(&guard, c.state, (dli_limits_t){.deadline_ns = in_ms(2000)});
        cr_assert_neq(vfs->xDelete(vfs, never[i], 0), SQLITE_OK);
        dli_guard_leave();
        expect_precious(never[i], never[i]);
        cr_assert_eq(vfs->xDelete(vfs, never[i], 0), SQLITE_OK, "the program's own files");
    }
    make_precious(beside("-journal"));
    dli_guard_enter(&guard, c.state, (dli_limits_t){.deadline_ns = in_ms(2000)});
    cr_assert_eq(vfs->xDelete(vfs, beside("-journal"), 0), SQLITE_OK);
    dli_guard_leave();
    cr_assert_neq(access(beside("-journal"), F_OK), 0);
    must_close(&c);
}

/* ---- a file by another name ------------------------------------------------------------------------- */

Test(sqlite_place, a_file_with_two_names_is_refused) {
    client_t c;
    char message[256], other[160];
    must_open(&c, UUID_A);
    snprintf(other, sizeof other, "%s", in_ours("locks.db"));
    cr_assert_eq(link(path, other), 0);
    cr_assert_eq(try_open(other, message, sizeof message), DL_ECONFIG, "%s", message);
    cr_assert_has(message, "several names");
    cr_assert_eq(try_open(path, message, sizeof message), DL_ECONFIG, "%s", message);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_OK, "%s", c.err.message);
    cr_assert_eq(unlink(other), 0);
    cr_assert_eq(try_open(path, message, sizeof message), DL_OK, "%s", message);
    must_close(&c);
}

Test(sqlite_place, a_file_that_is_mounted_without_its_folder_is_refused) {
    client_t c;
    char message[256], other[160];
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        cr_skip("needs the right to mount");
    }
    must_open(&c, UUID_A);
    must_close(&c);
    snprintf(other, sizeof other, "%s", in_ours("locks.db"));
    make_precious(other);
    cr_assert_eq(mount(path, other, NULL, MS_BIND, NULL), 0);
    cr_assert_eq(try_open(other, message, sizeof message), DL_ECONFIG, "%s", message);
    cr_assert_has(message, "mounted by itself");
    cr_assert_eq(umount(other), 0);
    cr_assert_eq(mount(theirs, ours, NULL, MS_BIND, NULL), 0); /* the folder may be */
    cr_assert_eq(try_open(other, message, sizeof message), DL_OK, "%s", message);
    cr_assert_eq(umount(ours), 0);
}

/* ---- leases of the kernel --------------------------------------------------------------------------- */

static int ready[2];

static int keep_lease(void *name) {
    signal(SIGIO, SIG_IGN); /* somebody else wants it; not heard */
    int fd = open(name, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fcntl(fd, F_SETLEASE, F_WRLCK) != 0 || write(ready[1], "x", 1) != 1) {
        return 1;
    }
    return pause();
}

static int keep_lease_briefly(void *name) {
    const struct itimerval soon = {.it_value.tv_usec = 200000};
    setitimer(ITIMER_REAL, &soon, NULL);
    return keep_lease(name);
}

static pid_t lease(int (*keep)(void *), const char *name) {
    char copy[160], byte;
    snprintf(copy, sizeof copy, "%s", name);
    cr_assert_eq(pipe(ready), 0);
    pid_t child = spawn(keep, copy);
    close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1, "no lease");
    close(ready[0]);
    return child;
}

Test(sqlite_place, a_lease_on_the_file_does_not_hold_up_an_opening) {
    client_t c;
    char message[256];
    must_open(&c, UUID_A);
    must_close(&c);
    pid_t child = lease(keep_lease, path);
    uint64_t before_ns = now_shifted();
    dl_status_t status = try_open(path, message, sizeof message);
    cr_assert_lt(now_shifted() - before_ns, 2100 * MS);
    cr_assert_eq(status, DL_EIO, "%s", message);
    kill(child, SIGKILL);
    cr_assert_eq(ended(child), 128 + SIGKILL);
    cr_assert_eq(try_open(path, message, sizeof message), DL_OK, "%s", message);
}

Test(sqlite_place, a_lease_on_the_file_or_beside_it_is_waited_for) {
    static const char *const endings[] = {"", "-wal", "-shm"};
    client_t c;
    must_open(&c, UUID_A);
    must_close(&c);
    for (int i = 0; i < 3; i++) {
        pid_t child = lease(keep_lease_briefly, beside(endings[i]));
        must_open(&c, UUID_A);
        cr_assert_eq(ended(child), 128 + SIGALRM);
        must_close(&c);
    }
}

/* ---- what is said about it -------------------------------------------------------------------------- */

static void note_finding(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    if (level == DL_FINDING_WARNING || level == DL_FINDING_ERROR) {
        char *all = arg;
        size_t len = strlen(all);
        snprintf(all + len, 4096 - len, "%s: %s\n", subject, text);
    }
}

Test(sqlite_place, check_tells_the_truth_about_a_file_and_a_folder_of_others) {
    client_t c;
    char said[4096] = "";
    must_open(&c, UUID_A);
    cr_assert_eq(driver()->check(c.state, note_finding, said, in_ms(2000), &c.err), DL_OK);
    cr_assert_str_eq(said, "");
    cr_assert_eq(chmod(theirs, 0777), 0);
    cr_assert_eq(driver()->check(c.state, note_finding, said, in_ms(2000), &c.err), DL_OK);
    cr_assert_has(said, "every user of this host can replace the lock file");
    said[0] = '\0';
    cr_assert_eq(chmod(theirs, 01777), 0);
    cr_assert_eq(driver()->check(c.state, note_finding, said, in_ms(2000), &c.err), DL_OK);
    cr_assert_has(said, "others can put files of theirs beside the lock file");
    said[0] = '\0';
    cr_assert_eq(chmod(theirs, 0755), 0);
    cr_assert_eq(chmod(folder, 0777), 0); /* one further up */
    cr_assert_eq(driver()->check(c.state, note_finding, said, in_ms(2000), &c.err), DL_OK);
    cr_assert_has(said, "every user of this host can replace the lock file");
    said[0] = '\0';
    cr_assert_eq(chmod(folder, 0755), 0);
    must_close(&c);
    meet_another_user();
    must_open(&c, UUID_A);
    cr_assert_eq(driver()->check(c.state, note_finding, said, in_ms(2000), &c.err), DL_OK);
    cr_assert_has(said, "its owner, another user, can replace the lock file");
    cr_assert_eq(chown(path, NOBODY, NOBODY), 0);
    cr_assert_eq(driver()->check(c.state, note_finding, said, in_ms(2000), &c.err), DL_OK);
    cr_assert_has(said, "that is another user, who can free or forge");
    must_close(&c);
}

static void look_for_boot(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    (void)level;
    *(bool *)arg |= strcmp(subject, "boot") == 0 && strstr(text, "a boot id of its own") != NULL;
}

Test(sqlite_place, check_tells_of_a_boot_id_that_only_a_container_has) {
    client_t c;
    bool told = false;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        cr_skip("needs the right to mount");
    }
    must_open(&c, UUID_A);
    cr_assert_eq(driver()->check(c.state, look_for_boot, &told, in_ms(2000), &c.err), DL_OK);
    cr_assert(!told);
    make_precious(in_ours("boot_id"));
    cr_assert_eq(mount(in_ours("boot_id"), "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL), 0);
    cr_assert_eq(driver()->check(c.state, look_for_boot, &told, in_ms(2000), &c.err), DL_OK);
    cr_assert(told);
    must_close(&c);
    cr_assert_eq(umount("/proc/sys/kernel/random/boot_id"), 0);
}
