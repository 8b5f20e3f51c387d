/* sqlite_strangers_test.c - the SQLite driver where another user puts links and files beside its own. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "sqlite_strangers.h"

#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ptrace.h>

TestSuite(sqlite_strangers, .init = set_up_both, .fini = tear_down, .timeout = 60);

/* ---- wake-up files ---------------------------------------------------------------------------------- */

Test(sqlite_strangers, wake_up_files_are_made_and_touched_behind_no_link) {
    client_t c;
    dl_watch_t *w;
    must_open(&c, UUID_A);
    cr_assert_eq(symlink(ours, beside("-wake")), 0);
    cr_assert_eq(watch(&c, "orders", &w), DL_ENOTSUP, "a wait goes through a link");
    cr_assert_eq(entries_in(ours), 0);
    for (int i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "%02x", i);
        make_precious(in_ours(name));
    }
    use(&c, EVERY_WAKE_UP_FILE);
    for (int i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "%02x", i);
        expect_precious(in_ours(name), name);
    }
    must_close(&c);
}

Test(sqlite_strangers, a_wake_up_file_that_is_there_is_not_changed) {
    client_t c;
    dl_watch_t *w;
    must_open(&c, UUID_A);
    cr_assert_eq(chmod(path, 0666), 0);
    cr_assert_eq(mkdir(beside("-wake"), 0700), 0);
    make_precious(in_ours("linked"));
    make_precious(in_ours("pointed at"));
    for (int i = 0; i < 256; i++) {
        char ending[16];
        snprintf(ending, sizeof ending, "-wake/%02x", i);
        cr_assert_eq(link(in_ours("linked"), beside(ending)), 0);
    }
    cr_assert_eq(watch(&c, "orders", &w), DL_OK, "%s", c.err.message);
    expect_precious(in_ours("linked"), "a hard link");
    driver()->unwatch(c.state, w);
    for (int i = 0; i < 256; i++) {
        char ending[16], to[160];
        snprintf(ending, sizeof ending, "-wake/%02x", i);
        snprintf(to, sizeof to, "%s", in_ours("pointed at"));
        cr_assert_eq(unlink(beside(ending)), 0);
        cr_assert_eq(symlink(to, beside(ending)), 0);
    }
    cr_assert_eq(watch(&c, "orders", &w), DL_OK, "%s", c.err.message);
    use(&c, EVERY_WAKE_UP_FILE);
    expect_precious(in_ours("pointed at"), "a link");
    driver()->unwatch(c.state, w);
    must_close(&c);
}

Test(sqlite_strangers, root_makes_wake_up_files_as_the_lock_files_owner) {
    client_t c;
    dl_watch_t *w;
    struct stat file;
    meet_another_user();
    they(hold, "orders");
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_EBUSY);
    /* Their folder has a folder of root's in it, which they give the name. */
    cr_assert_eq(mkdir(beside("-wake"), 0755), 0);
    cr_assert_eq(watch(&c, "orders", &w), DL_ENOTSUP);
    cr_assert_eq(entries_in(beside("-wake")), 0, "a file in a folder of root's");
    cr_assert_eq(rmdir(beside("-wake")), 0);
    /* Nor one in a folder where they may make nothing. */
    cr_assert_eq(chown(theirs, 0, 0), 0);
    cr_assert_eq(watch(&c, "orders", &w), DL_ENOTSUP);
    cr_assert_eq(c.err.native, EACCES, "%s", c.err.message);
    cr_assert_eq(chown(theirs, NOBODY, NOBODY), 0);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK, "%s", c.err.message);
    cr_assert_eq(stat(beside("-wake"), &file), 0);
    cr_assert_eq(file.st_uid, NOBODY);
    cr_assert_eq(file.st_gid, NOBODY);
    cr_assert_eq(entries_in(beside("-wake")), 1);
    driver()->unwatch(c.state, w);
    /* Nor is a file touched that they could not touch. */
    for (int i = 0; i < 256; i++) {
        char ending[16];
        snprintf(ending, sizeof ending, "-wake/%02x", i);
        (void)unlink(beside(ending));
        make_precious(beside(ending));
    }
    use(&c, EVERY_WAKE_UP_FILE);
    for (int i = 0; i < 256; i++) {
        char ending[16];
        snprintf(ending, sizeof ending, "-wake/%02x", i);
        expect_precious(beside(ending), ending);
    }
    must_close(&c);
    int fd = open(in_ours("still root"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    cr_assert_eq(fstat(fd, &file), 0);
    cr_assert_eq(file.st_uid, 0);
    close(fd);
}

static int watch_in_vain(const void *name) {
    client_t c;
    dl_watch_t *w;
    if (open_options(&c, UUID_B, path, 1) != DL_OK) {
        return 1;
    }
    dl_status_t status = watch(&c, name, &w);
    fprintf(stderr, "%s\n", c.err.message);
    return status == DL_ENOTSUP && c.err.native == EACCES ? 0 : 2;
}

Test(sqlite_strangers, why_the_wake_up_folder_cannot_be_made_is_said) {
    client_t c;
    meet_another_user();
    cr_assert_eq(chown(theirs, 0, 0), 0);
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_OK);
    cr_assert_eq(chmod(path, 0666), 0);
    cr_assert_eq(chmod(beside("-wal"), 0666), 0);
    cr_assert_eq(chmod(beside("-shm"), 0666), 0);
    they(watch_in_vain, "orders");
    must_close(&c);
}

/* What setfsuid() would change. */
static void check_process(int pdeathsig, int dumpable, const char *when) {
    int now = -1;
    cr_assert_eq(prctl(PR_GET_PDEATHSIG, &now), 0);
    cr_assert_eq(now, pdeathsig, "%s", when);
    cr_assert_eq(prctl(PR_GET_DUMPABLE), dumpable, "%s", when);
}

Test(sqlite_strangers, root_waits_and_wakes_as_itself) {
    client_t c;
    dl_watch_t *w;
    meet_another_user();
    they(hold, "orders");
    cr_assert_eq(prctl(PR_SET_PDEATHSIG, SIGUSR1), 0);
    cr_assert_eq(prctl(PR_SET_DUMPABLE, 1), 0);
    must_open(&c, UUID_A);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK, "%s", c.err.message);
    check_process(SIGUSR1, 1, "a wait");
    use(&c, EVERY_WAKE_UP_FILE);
    check_process(SIGUSR1, 1, "wake-ups");
    driver()->unwatch(c.state, w);
    must_close(&c);
    check_process(SIGUSR1, 1, "a close");
}

Test(sqlite_strangers, root_makes_nothing_behind_another_users_link) {
    client_t c;
    dl_watch_t *w;
    meet_another_user();
    they(hold, "orders");
    they_link(ours, beside("-wake"));
    must_open(&c, UUID_A);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_EBUSY);
    cr_assert_eq(watch(&c, "orders", &w), DL_ENOTSUP);
    cr_assert_eq(entries_in(ours), 0);
    must_close(&c);
}

/* ---- what SQLite opens beside the file -------------------------------------------------------------- */

static const char *const neighbours[] = {"-wal", "-shm", "-journal"};

static void plant(int (*link_fn)(const char *, const char *), const char *when) {
    char message[256];
    for (int i = 0; i < 3; i++) {
        (void)unlink(beside("-wal"));
        (void)unlink(beside("-shm"));
        (void)unlink(beside("-journal"));
        make_precious(in_ours(neighbours[i]));
        cr_assert_eq(link_fn(in_ours(neighbours[i]), beside(neighbours[i])), 0);
        dl_status_t status = try_open(path, message, sizeof message);
        cr_assert_eq(status, DL_EIO, "%s at %s: %s", when, neighbours[i], message);
        cr_assert_has(message, "plain files with one name each");
        expect_precious(in_ours(neighbours[i]), neighbours[i]);
        cr_assert_eq(unlink(in_ours(neighbours[i])), 0);
    }
    (void)unlink(beside("-journal"));
    cr_assert_eq(try_open(path, message, sizeof message), DL_OK, "%s", message);
}

Test(sqlite_strangers, files_beside_the_lock_file_are_never_links) {
    client_t c;
    must_open(&c, UUID_A);
    must_close(&c);
    plant(symlink, "a link");
    plant(link, "a hard link");
}

Test(sqlite_strangers, root_gives_away_only_what_it_has_made) {
    client_t c;
    struct stat file;
    meet_another_user();
    they(hold, "orders");
    plant(link, "a hard link");
    /* Made by root just now, for the owner. */
    cr_assert_eq(unlink(beside("-wal")), 0);
    cr_assert_eq(unlink(beside("-shm")), 0);
    must_open(&c, UUID_A);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(stat(beside(neighbours[i]), &file), 0);
        cr_assert_eq(file.st_uid, NOBODY, "%s", neighbours[i]);
    }
    must_close(&c);
    /* There already. */
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(chown(beside(neighbours[i]), 0, 0), 0);
    }
    must_open(&c, UUID_A);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(stat(beside(neighbours[i]), &file), 0);
        cr_assert_eq(file.st_uid, 0, "%s", neighbours[i]);
    }
    must_close(&c);
}

static int put_files(const void *unused) {
    (void)unused;
    for (int i = 0; i < 3; i++) {
        int fd = open(beside(neighbours[i]), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 || write(fd, "x", 1) != 1) {
            return 1;
        }
        close(fd);
    }
    return mkdir(beside("-wake"), 0777);
}

/* As anybody can in /tmp, before the lock file is made or while it is not in use. */
Test(sqlite_strangers, files_of_those_who_may_not_write_the_lock_file_are_not_used) {
    client_t c;
    dl_watch_t *w;
    char message[256];
    meet_another_user();
    cr_assert_eq(chown(theirs, 0, 0), 0);
    cr_assert_eq(chmod(theirs, 01777), 0);
    must_open(&c, UUID_A);
    must_close(&c);
    (void)unlink(beside("-wal"));
    (void)unlink(beside("-shm"));
    they(put_files, NULL);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(try_open(path, message, sizeof message), DL_EIO, "%s: %s", neighbours[i], message);
        cr_assert_eq(unlink(beside(neighbours[i])), 0);
    }
    must_open(&c, UUID_A);
    cr_assert_eq(watch(&c, "orders", &w), DL_ENOTSUP);
    cr_assert_eq(entries_in(beside("-wake")), 0);
    /* They may, if they may write the file. */
    cr_assert_eq(chmod(path, 0666), 0);
    cr_assert_eq(watch(&c, "orders", &w), DL_OK, "%s", c.err.message);
    driver()->unwatch(c.state, w);
    must_close(&c);
    cr_assert_eq(unlink(beside("-wal")), 0);
    cr_assert_eq(unlink(beside("-shm")), 0);
    cr_assert_eq(rmdir(beside("-wake")), -1);
    delete_folder(beside("-wake"));
    they(put_files, NULL);
    cr_assert_eq(try_open(path, message, sizeof message), DL_OK, "%s", message);
}

static void put_number(unsigned char *at, uint32_t n) {
    for (int i = 0; i < 4; i++) {
        at[i] = (unsigned char)(n >> (24 - 8 * i));
    }
}

/* A rollback journal without pages that says it is part of a larger transaction, and which file has the list
 * of its journals: SQLite deletes that file when it has played the last of them. By its published format. */
static int write_journal(const void *of) {
    static const unsigned char magic[] = {0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7};
    unsigned char journal[1024] = {0}, *at = journal + 512;
    const char *name = of;
    uint32_t sum = 0, len = (uint32_t)strlen(name);
    memcpy(journal, magic, sizeof magic);
    put_number(journal + 16, 3);
    put_number(journal + 20, 512);
    put_number(journal + 24, 1024);
    put_number(at, (0x40000000 / 1024) + 1);
    memcpy(at + 4, name, len);
    for (uint32_t i = 0; i < len; i++) {
        sum += (unsigned char)name[i];
    }
    put_number(at + 4 + len, len);
    put_number(at + 8 + len, sum);
    memcpy(at + 12 + len, magic, sizeof magic);
    size_t size = 512 + 20 + len;
    int fd = open(beside("-journal"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    bool written = fd >= 0 && write(fd, journal, size) == (ssize_t)size;
    close(fd);
    return written ? 0 : 1;
}

Test(sqlite_strangers, a_journal_cannot_have_another_file_deleted) {
    client_t c;
    char message[256];
    must_open(&c, UUID_A);
    must_close(&c);
    make_precious(in_ours("list"));
    cr_assert_eq(write_journal(in_ours("list")), 0);
    (void)try_open(path, message, sizeof message);
    expect_precious(in_ours("list"), message);
}

/* ---- a group that shares a lock file ---------------------------------------------------------------- */

#define FIRST_MEMBER 1001 /* users, each of a group of the same number */
#define SECOND_MEMBER 1002
#define SHARED_GROUP 2000

typedef struct member {
    uid_t user;
    int (*fn)(const void *);
} member_t;

static int act_as_member(void *arg) {
    const member_t *m = arg;
    const gid_t groups[] = {SHARED_GROUP};
    return setgroups(1, groups) == 0 && setgid(m->user) == 0 && setuid(m->user) == 0 ? m->fn("orders") : 99;
}

static void as_member(uid_t user, int (*fn)(const void *)) {
    member_t m = {.user = user, .fn = fn};
    cr_assert_eq(ended(spawn(act_as_member, &m)), 0, "%u", (unsigned)user);
}

/* The folder is theirs; new files in it are of their makers' groups. */
static void share_with_group(void) {
    meet_another_user();
    umask(077);
    cr_assert_eq(chown(theirs, FIRST_MEMBER, SHARED_GROUP), 0);
    cr_assert_eq(chmod(theirs, 0770), 0);
}

static void note_finding(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    (void)level;
    (void)subject;
    snprintf(arg, 1024, "%s", text);
}

static int init_file(const void *unused) {
    (void)unused;
    client_t c = {.env = make_env(UUID_A, note_report, note_count)};
    static char said[1024];
    dl_option_value_t values[] = {{.is_set = 1, .string = path}, {.is_set = 1, .number = 1}};
    return driver()->init(values, &c.env, 0, note_finding, said, in_ms(2000), &c.err) != DL_OK;
}

static int release_by_force(const void *name) {
    client_t c;
    dl_status_t status = open_options(&c, UUID_B, path, 1);
    if (status == DL_OK) {
        status = driver()->force_release(c.state, name, strlen(name), in_ms(2000), &c.err);
        driver()->close(c.state, 0);
    }
    if (status != DL_OK) {
        fprintf(stderr, "%d %s\n", status, c.err.message);
    }
    return status != DL_OK;
}

static int give_to_group(const void *unused) {
    (void)unused;
    return chown(path, (uid_t)-1, SHARED_GROUP) != 0 || chmod(path, 0660) != 0;
}

Test(sqlite_strangers, a_file_that_was_given_to_a_group_after_init_is_everybodys_in_it) {
    share_with_group();
    as_member(FIRST_MEMBER, init_file);
    as_member(FIRST_MEMBER, give_to_group);
    as_member(SECOND_MEMBER, hold);
    as_member(FIRST_MEMBER, release_by_force);
}

static int make_empty(const void *unused) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    close(fd);
    return fd < 0 || give_to_group(unused);
}

Test(sqlite_strangers, what_lies_beside_the_file_is_of_its_group) {
    struct stat file;
    share_with_group();
    as_member(FIRST_MEMBER, make_empty);
    as_member(SECOND_MEMBER, hold);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(stat(beside(neighbours[i]), &file), 0);
        cr_assert_eq(file.st_uid, SECOND_MEMBER);
        cr_assert_eq(file.st_gid, SHARED_GROUP, "%s", neighbours[i]);
        cr_assert_eq(file.st_mode & 07777, 0660, "%s", neighbours[i]);
    }
    as_member(FIRST_MEMBER, release_by_force);
}

static int watch_one(const void *name) {
    client_t c;
    dl_watch_t *w;
    return open_options(&c, UUID_B, path, 1) != DL_OK || watch(&c, name, &w) != DL_OK;
}

static int make_wake_folder(const void *unused) {
    (void)unused;
    return mkdir(beside("-wake"), 0700);
}

Test(sqlite_strangers, a_wake_up_folder_whose_maker_died_too_early_gets_its_mode) {
    struct stat file;
    share_with_group();
    as_member(FIRST_MEMBER, make_empty);
    as_member(SECOND_MEMBER, make_wake_folder);
    as_member(SECOND_MEMBER, watch_one);
    cr_assert_eq(stat(beside("-wake"), &file), 0);
    cr_assert_eq(file.st_gid, SHARED_GROUP);
    cr_assert_eq(file.st_mode & 07777, 0770, "%04o", file.st_mode & 07777);
    as_member(FIRST_MEMBER, watch_one);
}

/* Stops, for who traces it. */
static bool be_traced(void) {
    return ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0 && raise(SIGSTOP) == 0;
}

static int watch_traced(const void *name) {
    client_t c;
    dl_watch_t *w;
    return open_options(&c, UUID_B, path, 1) != DL_OK || !be_traced() || watch(&c, name, &w) != DL_OK;
}

static int open_traced(const void *unused) {
    (void)unused;
    client_t c;
    return !be_traced() || open_options(&c, UUID_B, path, 1) != DL_OK;
}

/* Kills one that does this where it begins or ends its system call of this number; false: it has fewer, and
 * has ended. */
static bool is_killed_at(int stop, int (*fn)(const void *)) {
    member_t m = {.user = SECOND_MEMBER, .fn = fn};
    int status = 0;
    pid_t pid = spawn(act_as_member, &m);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFSTOPPED(status), "it has ended: %d", status);
    cr_assert_eq(ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_EXITKILL), 0);
    for (int i = 0; i < stop && WIFSTOPPED(status); i++) {
        cr_assert_eq(ptrace(PTRACE_SYSCALL, pid, NULL, NULL), 0);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
    }
    if (!WIFSTOPPED(status)) {
        cr_assert_eq(status, 0);
        return false;
    }
    cr_assert_eq(kill(pid, SIGKILL), 0);
    cr_assert_eq(ended(pid), 128 + SIGKILL);
    return true;
}

Test(sqlite_strangers, wherever_the_maker_of_a_wake_up_file_dies_others_can_wait) {
    share_with_group();
    as_member(FIRST_MEMBER, make_empty);
    as_member(SECOND_MEMBER, watch_one); /* makes the folder */
    int stops = 0;
    do {
        for (int i = 0; i < 256; i++) {
            char ending[16];
            snprintf(ending, sizeof ending, "-wake/%02x", i);
            (void)unlink(beside(ending));
        }
        cr_assert_eq(entries_in(beside("-wake")), 0, "left after its stop %d", stops);
        stops++;
    } while (is_killed_at(stops, watch_traced) && (as_member(FIRST_MEMBER, watch_one), true));
    cr_assert_gt(stops, 10);
}

static int watch_without_unnamed_files(const void *name) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof rules / sizeof rules[0], rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0 || watch_one(name);
}

Test(sqlite_strangers, a_filesystem_without_unnamed_files_has_wake_up_files_all_the_same) {
    if (prctl(PR_GET_SECCOMP) < 0) {
        cr_skip("no filters of system calls here");
    }
    share_with_group();
    as_member(FIRST_MEMBER, make_empty);
    as_member(SECOND_MEMBER, watch_without_unnamed_files);
    cr_assert_eq(entries_in(beside("-wake")), 1);
    as_member(FIRST_MEMBER, watch_one);
}

Test(sqlite_strangers, wherever_the_maker_of_the_lock_file_dies_it_leaves_one_that_can_be_used_or_none) {
    share_with_group();
    int stops = 0;
    bool has_log;
    do {
        delete_all();
        cr_assert_eq(entries_in(theirs), 0, "left after its stop %d", stops);
        cr_assert(is_killed_at(++stops, open_traced), "SQLite has made no log");
        has_log = access(beside("-wal"), F_OK) == 0;
        as_member(SECOND_MEMBER, hold);
    } while (!has_log);
    cr_assert_gt(stops, 10);
}
