/* custom_driver.c - a complete driver: leases with tokens in one file, for the processes of a machine. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "custom_driver.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "table.h"

#define NS_PER_MS UINT64_C(1000000)

/* What one client keeps. No descriptor stays open between two ops, so a forked child inherits nothing. */
typedef struct state {
    const dl_driver_env_t *env;
    char *path, *shown; /* the second in messages */
    char boot_id[TABLE_BOOT_ID_MAX];
} state_t;

enum { OPTION_PATH };
static const dl_option_t options[] = {
    [OPTION_PATH] = {.name = "path", .type = DL_OPTION_STRING, .required = 1, .help = "The file of locks."},
    {.name = NULL},
};

/* ---- entering the table -------------------------------------------------------------------------- */

/* Until when an op may wait for the file, and what ends it earlier. */
typedef struct patience {
    const dl_driver_env_t *env;
    uint64_t deadline_ns;
    const dl_stop_t *stop; /* NULL: nothing */
} patience_t;

/* A lock of flock cannot be waited for with a deadline, so it is tried each millisecond; it is only ever held
 * for a few reads and writes. */
static int pause_a_little(void *arg) {
    const patience_t *patience = arg;
    struct pollfd fds[2] = {{-1, POLLIN, 0}, {-1, POLLIN, 0}};
    uint64_t now_ns = patience->env->now_ns();

    if (now_ns >= patience->deadline_ns)
        return ETIMEDOUT;
    for (int i = 0; patience->stop && i < 2; i++)
        fds[i].fd = patience->stop->fd[i];
    uint64_t until_ns = now_ns + NS_PER_MS;
    if (until_ns > patience->deadline_ns)
        until_ns = patience->deadline_ns;
    return patience->env->poll(fds, 2, until_ns) > 0 ? ECANCELED : 0;
}

/* What an errno means to the caller. Only EIO may have come from a write that arrived all the same. */
static dl_status_t failed_with(dl_error_t *err, const state_t *state, int error) {
    switch (error) {
    case ECANCELED:
        return dl_driver_fail(err, DL_ECANCELED, 0, "stopped");
    case EIO:
        return dl_driver_fail(err, DL_EUNKNOWN, error, "%s: %s", state->shown, strerror(error));
    case EINVAL:
        return dl_driver_fail(err, DL_EPROTO, 0, "%s is not a file of locks", state->shown);
    case EMFILE:
    case ENFILE:
        return dl_driver_fail(err, DL_ELIMIT, error, "%s: %s", state->shown, strerror(error));
    case EACCES:
    case EPERM:
    case EROFS:
        return dl_driver_fail(err, DL_EAUTH, error, "%s: %s", state->shown, strerror(error));
    default:
        return dl_driver_fail(err, DL_EIO, error, "%s: %s", state->shown, strerror(error));
    }
}

static int enter(const state_t *state, uint64_t deadline_ns, const dl_stop_t *stop) {
    patience_t patience = {state->env, deadline_ns, stop};

    return table_begin(state->path, state->boot_id, &(table_patience_t){pause_a_little, &patience});
}

static int is_own(const table_record_t *record, const char *owner, uint64_t hold_id) {
    return record->hold_id == hold_id && strcmp(record->owner, owner) == 0;
}

/* Held, and not only written there: an expired hold is no hold. */
static int is_held(const table_record_t *record, uint64_t now_ns) {
    return record->name_len > 0 && record->ends_ns > now_ns;
}

static int64_t remaining_ms(const table_record_t *record, uint64_t now_ns) {
    /* Rounded up: who waits this long finds it free. */
    return (int64_t)((record->ends_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS);
}

/* ---- the ops --------------------------------------------------------------------------------------- */

static int read_boot_id(char *boot_id, size_t size) {
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, boot_id, size - 1);
    int error = errno;

    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return error ? error : EIO;
    boot_id[n] = '\0';
    boot_id[strcspn(boot_id, "\n")] = '\0';
    return 0;
}

static dl_status_t custom_open(void *opaque, const dl_option_value_t *values, const dl_driver_env_t *env,
                               uint64_t deadline_ns, dl_error_t *err) {
    state_t *state = opaque;

    state->env = env;
    state->path = strdup(values[OPTION_PATH].string);
    state->shown = strdup(dl_driver_shown(env, values, OPTION_PATH));
    if (!state->path || !state->shown)
        return dl_driver_fail(err, DL_ENOMEM, ENOMEM, "out of memory");
    int error = read_boot_id(state->boot_id, sizeof state->boot_id);
    if (error == EMFILE || error == ENFILE)
        return failed_with(err, state, error);
    if (error)
        return dl_driver_fail(err, error == EMFILE || error == ENFILE ? DL_ELIMIT : DL_ENOTSUP, error,
                              "the machine's boot id cannot be read: %s", strerror(error));
    int fd = enter(state, deadline_ns, NULL);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == EISDIR))
        return dl_driver_fail(err, DL_ECONFIG, errno, "%s: %s", state->shown, strerror(errno));
    if (fd < 0)
        return failed_with(err, state, errno);
    table_end(fd);
    return DL_OK;
}

static void custom_close(void *opaque, int forked) {
    state_t *state = opaque;

    /* Nothing here is shared with a parent process, so both cases are one. */
    (void)forked;
    free(state->path);
    free(state->shown);
    state->path = state->shown = NULL;
}

/* Larger than every token before it: the file's own, the client's floor, and, should the file have been
 * lost, the wall clock in microseconds. */
static uint64_t next_token(uint64_t last, uint64_t floor) {
    struct timespec wall;

    clock_gettime(CLOCK_REALTIME, &wall);
    uint64_t token = (uint64_t)wall.tv_sec * 1000000 + (uint64_t)wall.tv_nsec / 1000;
    if (token < last)
        token = last;
    if (token < floor)
        token = floor;
    return token + 1;
}

/* Writes the hold. The token is kept first: one that was written and not used is no harm, one used twice
 * is. */
static int take(state_t *state, int fd, size_t index, table_record_t *record, const dl_request_t *request,
                uint64_t now_ns) {
    table_header_t header;
    int error = table_read_header(fd, &header);

    if (error)
        return error;
    header.token = next_token(header.token, request->token_floor);
    error = table_write_header(fd, &header);
    if (error)
        return error;
    memset(record, 0, sizeof *record);
    record->name_len = (uint32_t)request->name_len;
    memcpy(record->name, request->name, request->name_len);
    snprintf(record->owner, sizeof record->owner, "%s", request->owner);
    snprintf(record->client, sizeof record->client, "%s", state->env->client_label);
    record->hold_id = request->hold_id;
    record->token = header.token;
    record->ends_ns = now_ns + (uint64_t)request->lease_ms * NS_PER_MS;
    return table_write(fd, index, record);
}

static dl_status_t custom_try_acquire(void *opaque, void *hold, const dl_request_t *request,
                                      dl_grant_t *grant, dl_error_t *err) {
    state_t *state = opaque;
    table_record_t record;
    size_t index;
    uint64_t sent_ns = state->env->now_ns();
    dl_status_t status = DL_OK;

    (void)hold;
    int fd = enter(state, request->deadline_ns, &request->stop);
    if (fd < 0)
        return failed_with(err, state, errno);
    state->env->count(state->env->core, DL_COUNT_ROUND_TRIP, 1);
    int error = table_find(fd, request->name, request->name_len, &index, &record);
    uint64_t now_ns = state->env->now_ns();
    /* A larger hold id of the same owner is a newer hold: a late request must not replace it. */
    int ours = !error && strcmp(record.owner, request->owner) == 0 && record.hold_id <= request->hold_id;
    if (!error && is_held(&record, now_ns) && !ours) {
        grant->busy_ms = remaining_ms(&record, now_ns);
        grant->busy_is_dlock = 1;
        status = dl_driver_fail(err, DL_EBUSY, 0, "held by %s", record.owner);
    } else if (!error) {
        error = take(state, fd, index, &record, request, now_ns);
    }
    if (error)
        status = failed_with(err, state, error);
    table_end(fd);
    if (status == DL_OK) {
        grant->token = record.token;
        grant->sent_ns = sent_ns;
        grant->session_fd = -1;
    }
    return status;
}

static dl_status_t custom_release(void *opaque, void *hold, const dl_request_t *request, dl_error_t *err) {
    state_t *state = opaque;
    table_record_t record;
    size_t index;
    dl_status_t status = DL_OK;

    (void)hold;
    int fd = enter(state, request->deadline_ns, &request->stop);
    if (fd < 0)
        return failed_with(err, state, errno);
    state->env->count(state->env->core, DL_COUNT_ROUND_TRIP, 1);
    int error = table_find(fd, request->name, request->name_len, &index, &record);
    if (!error && is_own(&record, request->owner, request->hold_id)) {
        int held = is_held(&record, state->env->now_ns());
        memset(&record, 0, sizeof record);
        error = table_write(fd, index, &record);
        if (!held)
            status = dl_driver_fail(err, DL_ELOST, 0, "the lease had run out");
    } else if (!error) {
        status = dl_driver_fail(err, DL_ELOST, 0, "not held by this owner");
    }
    if (error)
        status = failed_with(err, state, error);
    table_end(fd);
    return status;
}

static dl_status_t renew_one(const state_t *state, int fd, const dl_renewal_t *renewal) {
    table_record_t record;
    size_t index;
    int error = table_find(fd, renewal->name, renewal->name_len, &index, &record);
    uint64_t now_ns = state->env->now_ns();
    uint64_t ends_ns = now_ns + (uint64_t)renewal->lease_ms * NS_PER_MS;

    if (error)
        return error == EIO ? DL_EUNKNOWN : DL_EIO;
    /* What has run out stays so, even if nobody has taken it yet. */
    if (!is_held(&record, now_ns) || !is_own(&record, renewal->owner, renewal->hold_id))
        return DL_ELOST;
    if (ends_ns <= record.ends_ns)
        return DL_OK; /* a renewal never shortens */
    record.ends_ns = ends_ns;
    return table_write(fd, index, &record) == 0 ? DL_OK : DL_EUNKNOWN;
}

static void custom_renew(void *opaque, dl_renewal_t *renewals, size_t n, uint64_t deadline_ns) {
    state_t *state = opaque;
    uint64_t sent_ns = state->env->now_ns();
    int fd = enter(state, deadline_ns, NULL);

    state->env->count(state->env->core, DL_COUNT_ROUND_TRIP, 1);
    for (size_t i = 0; i < n; i++) {
        renewals[i].sent_ns = sent_ns;
        renewals[i].status = fd < 0 ? DL_EIO : renew_one(state, fd, &renewals[i]);
    }
    if (fd >= 0)
        table_end(fd);
}

/* ---- for administrators ---------------------------------------------------------------------------- */

static void describe_record(const table_record_t *record, uint64_t now_ns, dl_lock_info_t *info) {
    info->held = 1;
    snprintf(info->owner, sizeof info->owner, "%s", record->owner);
    snprintf(info->client, sizeof info->client, "%s", record->client);
    info->hold_id = record->hold_id;
    info->remaining_ms = remaining_ms(record, now_ns);
    info->holds = 1;
    info->token = record->token;
}

static dl_status_t custom_inspect(void *opaque, const char *name, size_t name_len, uint64_t deadline_ns,
                                  dl_lock_info_t *info, dl_error_t *err) {
    state_t *state = opaque;
    table_record_t record;
    size_t index;
    int fd = enter(state, deadline_ns, NULL);

    if (fd < 0)
        return failed_with(err, state, errno);
    int error = table_find(fd, name, name_len, &index, &record);
    uint64_t now_ns = state->env->now_ns();
    table_end(fd);
    if (error)
        return failed_with(err, state, error);
    if (is_held(&record, now_ns))
        describe_record(&record, now_ns, info);
    return DL_OK;
}

static dl_status_t custom_force_release(void *opaque, const char *name, size_t name_len, uint64_t deadline_ns,
                                        dl_error_t *err) {
    state_t *state = opaque;
    table_record_t record;
    size_t index;
    int fd = enter(state, deadline_ns, NULL);

    if (fd < 0)
        return failed_with(err, state, errno);
    int error = table_find(fd, name, name_len, &index, &record);
    int held = !error && is_held(&record, state->env->now_ns());
    if (held) {
        memset(&record, 0, sizeof record);
        error = table_write(fd, index, &record);
    }
    table_end(fd);
    if (error)
        return failed_with(err, state, error);
    return held ? DL_OK : dl_driver_fail(err, DL_ENOTOWNER, 0, "nobody held it");
}

/* Enters the table anew for each record: the callback may itself use the locks. */
static dl_status_t custom_list(void *opaque, const char *prefix, size_t prefix_len, dl_list_fn fn, void *arg,
                               uint64_t deadline_ns, dl_error_t *err) {
    state_t *state = opaque;
    int error = 0, stopped = 0;

    for (size_t i = 0; !error && !stopped; i++) {
        table_record_t record;
        dl_lock_info_t info = DL_LOCK_INFO_INIT;
        int fd = enter(state, deadline_ns, NULL);
        error = fd < 0 ? errno : table_read(fd, i, &record);
        uint64_t now_ns = state->env->now_ns();
        if (fd >= 0)
            table_end(fd);
        if (fd < 0 || error || !is_held(&record, now_ns) || record.name_len < prefix_len ||
            memcmp(record.name, prefix, prefix_len) != 0)
            continue;
        describe_record(&record, now_ns, &info);
        stopped = fn(arg, record.name, &info);
    }
    return !error || error == ENOENT ? DL_OK : failed_with(err, state, error);
}

static void custom_describe(void *opaque, char *text, size_t size) {
    const state_t *state = opaque;

    snprintf(text, size, "%s", state->shown);
}

static const dl_driver_t driver = {
    .abi = DL_DRIVER_ABI,
    .size = sizeof(dl_driver_t),
    .name = "file-table",
    .summary = "An example: locks in one file, for the processes of one machine",
    .caps = DL_CAP_LEASE | DL_CAP_FENCE,
    .state_size = sizeof(state_t),
    .options = options,
    .open = custom_open,
    .close = custom_close,
    .try_acquire = custom_try_acquire,
    .release = custom_release,
    .renew = custom_renew,
    .inspect = custom_inspect,
    .force_release = custom_force_release,
    .list = custom_list,
    .describe = custom_describe,
};

const dl_driver_t *custom_driver(void) {
    return &driver;
}
