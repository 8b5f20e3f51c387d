/* sqlite_strangers.h - a lock file in a folder that may be another user's, and files that must not change. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SQLITE_STRANGERS_H
#define SQLITE_STRANGERS_H

#include "sqlite_fixture.h"

#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>

#include "drivers/sqlite/store.h"

#define NOBODY 65534
#define PRECIOUS "precious"
#define EVERY_WAKE_UP_FILE 2000 /* so many names are touched by them, as good as certainly */

static char theirs[100]; /* another user's folder, with their lock file */
static char ours[100];   /* one of this test's user, where nothing of theirs may come */

static inline void set_up_both(void) {
    set_up();
    umask(022);
    snprintf(theirs, sizeof theirs, "%s/theirs", folder);
    snprintf(ours, sizeof ours, "%s/ours", folder);
    snprintf(path, sizeof path, "%s/locks.db", theirs);
    cr_assert_eq(chmod(folder, 0755), 0);
    cr_assert_eq(mkdir(theirs, 0755), 0);
    cr_assert_eq(mkdir(ours, 0755), 0);
}

/* ---- another user ----------------------------------------------------------------------------------- */

/* From here on the folder `theirs` is another user's, and this is root. */
static inline void meet_another_user(void) {
    struct stat top;
    if (geteuid() != 0) {
        cr_skip("needs root to have another user");
    }
    if (stat("/", &top) != 0 || (top.st_mode & S_IXOTH) == 0) {
        cr_skip("only root may enter this root folder");
    }
    cr_assert_eq(chown(theirs, NOBODY, NOBODY), 0);
}

typedef struct deed {
    int (*fn)(const void *);
    const void *arg;
} deed_t;

static inline int act(void *arg) {
    const deed_t *deed = arg;
    return setgid(NOBODY) == 0 && setuid(NOBODY) == 0 ? deed->fn(deed->arg) : 99;
}

/* What another user does; it has to work. */
static inline void they(int (*fn)(const void *), const void *arg) {
    deed_t deed = {.fn = fn, .arg = arg};
    cr_assert_eq(ended(spawn(act, &deed)), 0);
}

static inline int hold(const void *name) {
    client_t c;
    if (open_options(&c, UUID_B, path, 1) != DL_OK || take(&c, name, B, 1, 30000, NULL) != DL_OK) {
        return 1;
    }
    driver()->close(c.state, 0);
    return 0;
}

typedef struct link_of_theirs {
    const char *to, *at;
} link_of_theirs_t;

static inline int make_link(const void *arg) {
    const link_of_theirs_t *l = arg;
    return symlink(l->to, l->at);
}

static inline void they_link(const char *to, const char *at) {
    link_of_theirs_t l = {.to = to, .at = at};
    they(make_link, &l);
}

/* ---- files ------------------------------------------------------------------------------------------ */

static inline const char *beside(const char *ending) {
    static char name[160];
    snprintf(name, sizeof name, "%s%s", path, ending);
    return name;
}

static inline const char *in_ours(const char *file) {
    static char name[160];
    snprintf(name, sizeof name, "%s/%s", ours, file);
    return name;
}

static inline int entries_in(const char *name) {
    DIR *entries = opendir(name);
    int n = -2; /* . and .. */
    cr_assert_not_null(entries);
    while (readdir(entries) != NULL) {
        n++;
    }
    closedir(entries);
    return n;
}

/* A file that must stay as it is: mode 0600, old. */
static inline void make_precious(const char *name) {
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    cr_assert_eq(write(fd, PRECIOUS, strlen(PRECIOUS)), (ssize_t)strlen(PRECIOUS));
    cr_assert_eq(futimens(fd, old), 0);
    close(fd);
}

static inline void expect_precious(const char *name, const char *when) {
    struct stat file;
    char text[32] = "";
    cr_assert_eq(stat(name, &file), 0, "%s: gone", when);
    cr_assert_eq(file.st_uid, geteuid(), "%s: given away", when);
    cr_assert_eq(file.st_mode & 07777, 0600, "%s: mode %04o", when, file.st_mode & 07777);
    cr_assert_eq(file.st_mtim.tv_sec, 1000, "%s: touched", when);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    cr_assert_eq(read(fd, text, sizeof text - 1), (ssize_t)strlen(PRECIOUS), "%s: written", when);
    close(fd);
    cr_assert_str_eq(text, PRECIOUS);
}

static inline dl_status_t try_open(const char *file, char *message, size_t size) {
    client_t c;
    dl_status_t status = open_options(&c, UUID_A, file, 1);
    snprintf(message, size, "%s", c.err.message);
    must_close(&c);
    return status;
}

/* Takes and frees locks of so many names. */
static inline void use(client_t *c, uint64_t names) {
    for (uint64_t i = 1; i <= names; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%llu", (unsigned long long)i);
        cr_assert_eq(take(c, name, A, i, 30000, NULL), DL_OK, "%s", c->err.message);
        cr_assert_eq(drop(c, name, A, i), DL_OK);
    }
}

#endif
