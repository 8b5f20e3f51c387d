/* processes.c - finds and signals what descends from this process, by /proc. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "processes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct process {
    pid_t pid, parent, group, session;
    bool alive;
    unsigned long long started; /* tells a process from a later one with the same number */
    bool ours;
} process_t;

typedef struct snapshot {
    process_t *rows; /* by pid */
    size_t count;
} snapshot_t;

static bool read_process(pid_t pid, process_t *process) {
    char path[64];
    char text[1024];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t len = read(fd, text, sizeof text - 1);
    (void)close(fd);
    if (len <= 0) {
        return false;
    }
    text[len] = '\0';
    const char *after_name = strrchr(text, ')'); /* the name itself may hold anything */
    char state;
    int parent, group, session;
    long threads;
    unsigned long long started;
    if (after_name == NULL ||
        sscanf(after_name + 1,
               " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu", &state,
               &parent, &group, &session, &threads, &started) != 6) {
        return false;
    }
    /* The first thread of a process shows as a zombie while others go on. */
    bool alive = (state != 'Z' && state != 'X') || threads > 1;
    *process = (process_t){pid, parent, group, session, alive, started, false};
    return true;
}

static int by_pid(const void *a, const void *b) {
    const process_t *left = a;
    const process_t *right = b;
    return (left->pid > right->pid) - (left->pid < right->pid);
}

static bool take_snapshot(snapshot_t *snapshot) {
    *snapshot = (snapshot_t){NULL, 0};
    DIR *proc = opendir("/proc");
    if (proc == NULL) {
        return false;
    }
    size_t room = 0;
    bool complete = true;
    for (struct dirent *entry; complete && (entry = readdir(proc)) != NULL;) {
        int pid = atoi(entry->d_name);
        if (pid <= 0) {
            continue;
        }
        if (snapshot->count == room) {
            room = room == 0 ? 256 : room * 2;
            process_t *more = realloc(snapshot->rows, room * sizeof *more);
            complete = more != NULL;
            snapshot->rows = complete ? more : snapshot->rows;
        }
        if (complete && read_process(pid, &snapshot->rows[snapshot->count])) {
            snapshot->count++;
        }
    }
    (void)closedir(proc);
    if (snapshot->count > 0) {
        qsort(snapshot->rows, snapshot->count, sizeof *snapshot->rows, by_pid);
    }
    return complete;
}

static const process_t *find_process(const snapshot_t *snapshot, pid_t pid) {
    process_t key = {.pid = pid};
    return snapshot->count == 0 ? NULL : bsearch(&key, snapshot->rows, snapshot->count, sizeof key, by_pid);
}

/* See processes_spare_descendants. */
static snapshot_t spared;

static bool is_spared(const process_t *process) {
    const process_t *before = find_process(&spared, process->pid);
    return before != NULL && before->started == process->started;
}

/* Marks the descendants of this process, but for what is spared: pass by pass, until a pass finds no more. */
static void mark_descendants(const snapshot_t *snapshot) {
    pid_t self = getpid();
    bool found = true;
    while (found) {
        found = false;
        for (size_t i = 0; i < snapshot->count; i++) {
            process_t *process = &snapshot->rows[i];
            if (process->ours) {
                continue;
            }
            const process_t *parent =
                process->parent != self ? find_process(snapshot, process->parent) : NULL;
            bool is_child = process->parent == self && !is_spared(process);
            if (is_child || (parent != NULL && parent->ours)) {
                process->ours = true;
                found = true;
            }
        }
    }
}

/* The number may belong to another process by now: its descriptor is taken first and looked at again. Where
 * none can be had (an old kernel, a filter of system calls), the number is used at once. */
static void signal_process(const process_t *process, int number) {
    int fd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    if (fd < 0 && errno == ESRCH) {
        return;
    }
    process_t again;
    bool same = read_process(process->pid, &again) && again.started == process->started;
    if (same && fd >= 0) {
        (void)syscall(SYS_pidfd_send_signal, fd, number, NULL, 0);
    } else if (same) {
        (void)kill(process->pid, number);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}

/* Does the group exist? 0, which kill() would take for our own, does not. */
static bool signal_group(pid_t group, int number) {
    return group > 0 && (kill(-group, number) == 0 || errno == EPERM);
}

/* As processes_signal; also says whether a descendant, dead or alive, keeps the number of the group. */
static size_t reach(pid_t group, int number, bool *is_ours) {
    bool group_exists = signal_group(group, number);
    snapshot_t snapshot;
    size_t reached = 0;
    *is_ours = false;
    if (!take_snapshot(&snapshot) || snapshot.count == 0) {
        reached = group_exists; /* without /proc the group is all there is to know */
        *is_ours = group_exists;
    }
    mark_descendants(&snapshot);
    pid_t session = getsid(0);
    for (size_t i = 0; i < snapshot.count; i++) {
        const process_t *process = &snapshot.rows[i];
        if (process->group == group && group_exists) {
            reached += process->alive;
            *is_ours = *is_ours || (process->ours && process->session == session);
        } else if (process->ours && process->session == session && process->alive) {
            reached++;
            if (number != 0) {
                signal_process(process, number);
            }
        }
    }
    free(snapshot.rows);
    return reached;
}

size_t processes_signal(pid_t group, int number) {
    bool is_ours;
    return reach(group, number, &is_ours);
}

bool processes_is_child(pid_t pid, pid_t parent) {
    process_t process;
    return read_process(pid, &process) && process.parent == parent;
}

static bool is_childless(void) {
    siginfo_t info;
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD;
}

void processes_spare_descendants(void) {
    snapshot_t all;
    if (is_childless() || !take_snapshot(&all)) {
        return; /* the usual case, without a look at /proc */
    }
    mark_descendants(&all);
    size_t count = 0;
    for (size_t i = 0; i < all.count; i++) {
        if (all.rows[i].ours) {
            all.rows[count++] = all.rows[i];
        }
    }
    spared = (snapshot_t){all.rows, count};
}

bool processes_left(pid_t *group) {
    bool group_exists = signal_group(*group, 0);
    if (is_childless() && !group_exists) {
        return false; /* the usual end, without a look at /proc */
    }
    /* A snapshot is no instant: a process may hide behind a parent that ends meanwhile, but not twice. */
    bool is_ours;
    bool seen = reach(*group, 0, &is_ours) > 0 || reach(*group, 0, &is_ours) > 0;
    *group = is_ours ? *group : 0;
    return seen;
}
