/* sqlite_power_test.c - tokens rise although processes die and the power fails at any write. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "sqlite_fixture.h"

#include <sys/mman.h>
#include <sys/syscall.h>

TestSuite(sqlite_power, .init = set_up, .fini = tear_down, .timeout = 120);

/*
 * The model of a power failure: of the lock file and its log, only what they were at their last sync is
 * left; the memory and the clocks begin anew. This program's own fsync and fdatasync, which SQLite finds
 * before the C library's, keep a copy of each file as it is synced. The wall clock stands at zero, so that
 * it cannot help.
 */

#define BOOTS 80
#define FILE_MAX (1 << 20)

typedef struct copy {
    size_t size;
    bool there;
    char bytes[FILE_MAX];
} copy_t;

typedef struct shared {
    copy_t file, log; /* on the disk */
    int syncs_left;   /* the process dies at this sync; -1: at none */
    bool after;       /* ... once it is done */
    int64_t ahead_ns; /* the clock of this boot, over all its processes */
    uint64_t last;    /* the largest token given out */
    unsigned tokens, deaths, wrong;
} shared_t;

static shared_t *shared;
static bool modelled; /* in processes that use the file */
static bool dies_half_made;

static void keep_copy(int fd, copy_t *copy) {
    struct stat file;
    if (fstat(fd, &file) != 0 || file.st_size > FILE_MAX ||
        pread(fd, copy->bytes, (size_t)file.st_size, 0) != file.st_size) {
        abort();
    }
    copy->size = (size_t)file.st_size;
    copy->there = true;
}

static void synced(int fd) {
    char link[64], target[256] = "", log[256];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    snprintf(log, sizeof log, "%s-wal", path);
    if (!(modelled || dies_half_made) || readlink(link, target, sizeof target - 1) <= 0) {
        return;
    }
    if (dies_half_made) {
        struct stat file;
        if (strcmp(target, path) == 0 && fstat(fd, &file) == 0 && file.st_size > 0) {
            _exit(0);
        }
        return;
    }
    bool dies = shared->syncs_left >= 0 && shared->syncs_left-- == 0;
    if (dies && !shared->after) {
        shared->deaths++;
        _exit(0);
    }
    if (strcmp(target, path) == 0) {
        keep_copy(fd, &shared->file);
    } else if (strcmp(target, log) == 0) {
        keep_copy(fd, &shared->log);
    }
    if (dies) {
        shared->deaths++;
        _exit(0);
    }
}

int fsync(int fd) {
    synced(fd);
    return 0;
}

int fdatasync(int fd) {
    synced(fd);
    return 0;
}

int clock_gettime(clockid_t id, struct timespec *t) {
    if (modelled && id == CLOCK_REALTIME) {
        *t = (struct timespec){.tv_sec = 0};
        return 0;
    }
    return (int)syscall(SYS_clock_gettime, id, t);
}

static void restore(const char *ending, const copy_t *copy) {
    char name[256];
    snprintf(name, sizeof name, "%s%s", path, ending);
    unlink(name);
    if (copy->there) {
        int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        cr_assert_eq(write(fd, copy->bytes, copy->size), (ssize_t)copy->size);
        close(fd);
    }
}

static void fail_power(void) {
    char name[256];
    restore("", &shared->file);
    restore("-wal", &shared->log);
    snprintf(name, sizeof name, "%s-shm", path);
    unlink(name);
    snprintf(name, sizeof name, "%s-journal", path);
    unlink(name);
}

/* One process: some holds, with time passing, until it dies or has done enough. */
static int live(void *arg) {
    unsigned *seed = arg;
    client_t c;
    modelled = true;
    shared->syncs_left = rand_r(seed) % 4 == 0 ? -1 : rand_r(seed) % 12;
    shared->after = rand_r(seed) % 2;
    if (open_options(&c, UUID_A, path, 1) != DL_OK) {
        return 1;
    }
    int holds = rand_r(seed) % 30;
    for (int i = 1; i <= holds; i++) {
        dl_request_t r = request("orders", A, (uint64_t)i + ((uint64_t)getpid() << 20));
        dl_grant_t grant;
        if (rand_r(seed) % 10 == 0) {
            r.token_floor = shared->last + (unsigned)rand_r(seed) % 2000000000u;
        }
        r.tokens = 1 + (unsigned)rand_r(seed) % 40 * ((unsigned)rand_r(seed) % 1000);
        if (take_full(&c, &r, &grant) != DL_OK) {
            return 2;
        }
        shared->wrong += grant.token <= shared->last;
        shared->last = grant.token + grant.tokens - 1;
        shared->tokens++;
        if (drop(&c, "orders", A, r.hold_id) != DL_OK) {
            return 3;
        }
        clock_ahead_ns += (int64_t)((unsigned)rand_r(seed) % 200 * SECOND);
        shared->ahead_ns = clock_ahead_ns;
        if (rand_r(seed) % 20 == 0) { /* somebody copies the log into the file */
            sqlite3 *db = NULL;
            if (sqlite3_open(path, &db) != SQLITE_OK) {
                return 4;
            }
            (void)sqlite3_exec(db, "PRAGMA wal_checkpoint(PASSIVE)", NULL, NULL, NULL);
            /* Not closed: closing would delete the log, and this process dies soon. */
        }
    }
    return 0;
}

Test(sqlite_power, tokens_rise_over_every_power_failure) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(shared, MAP_FAILED);
    unsigned seed = 20240607;
    for (int boot = 0; boot < BOOTS; boot++) {
        char id[32];
        snprintf(id, sizeof id, "boot-%d", boot);
        dli_sqlite_boot_for_test = id;
        clock_ahead_ns = shared->ahead_ns = (int64_t)(10 * SECOND) - (int64_t)dli_sys_real.now_ns();
        /* In one boot processes come and go: what a dead one wrote is there for the next, synced or not. */
        for (int process = 0; process < 4; process++) {
            unsigned own = (unsigned)rand_r(&seed);
            cr_assert_eq(ended(spawn(live, &own)), 0, "boot %d", boot);
            cr_assert_eq(shared->wrong, 0, "boot %d, process %d", boot, process);
            clock_ahead_ns = shared->ahead_ns + (int64_t)(31 * SECOND);
        }
        fail_power();
    }
    cr_assert_gt(shared->tokens, 500, "%u", shared->tokens);
    cr_assert_gt(shared->deaths, BOOTS / 2, "%u", shared->deaths);
}

/* ---- a process that dies while it fills the file ---------------------------------------------------- */

static int fill_half(void *unused) {
    (void)unused;
    client_t c;
    dies_half_made = true;
    (void)open_options(&c, UUID_B, path, 1);
    return 1;
}

/* As a reader does: nobody can roll back meanwhile. By SQLite's published format. */
static int keep_reading(void *ready) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 0x40000002, .l_len = 510};
    int fd = open(path, O_RDWR | O_CLOEXEC);
    return fd >= 0 && fcntl(fd, F_SETLK, &lock) == 0 && write(*(int *)ready, "x", 1) == 1 ? pause() : 1;
}

static pid_t reader;

/* The first pause is long enough for the reader to go. */
static int poll_until_nobody_reads(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
    if (reader > 0) {
        kill(reader, SIGKILL);
        cr_assert_eq(ended(reader), 128 + SIGKILL);
        reader = 0;
    }
    return poll_shifted(fds, n, deadline_ns);
}

static void open_half_made(bool is_read) {
    client_t c = {.env = make_env(UUID_A, note_report, note_count), .state = calloc(1, driver()->state_size)};
    char byte;
    int ready[2];
    struct stat file;
    cr_assert_eq(ended(spawn(fill_half, NULL)), 0);
    cr_assert_eq(stat(path, &file), 0);
    cr_assert_gt(file.st_size, 0);
    if (is_read) {
        cr_assert_eq(pipe(ready), 0);
        reader = spawn(keep_reading, &ready[1]);
        cr_assert_eq(read(ready[0], &byte, 1), 1);
    }
    c.env.poll = poll_until_nobody_reads;
    dl_option_value_t values[] = {{.is_set = 1, .string = path}, {.is_set = 1, .number = 1}};
    cr_assert_eq(driver()->open(c.state, values, &c.env, in_ms(2000), &c.err), DL_OK, "%s", c.err.message);
    cr_assert_eq(reader, 0);
    cr_assert_eq(take(&c, "orders", A, 1, 30000, NULL), DL_OK, "%s", c.err.message);
    must_close(&c);
    delete_all();
}

Test(sqlite_power, a_file_that_is_half_made_is_made_anew) {
    open_half_made(false);
    open_half_made(true);
}
