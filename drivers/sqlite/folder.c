/* folder.c - opens the folder of the lock file, and follows no link of a stranger's on the way. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * A link belongs to somebody, and leads a process that may do more than its owner to where the owner could
 * not go. So each part of the path is opened by itself, and a link is only followed if it is this user's or
 * root's, or if the folder that it leads to in the end belongs to its owner too. Nobody can exchange what was
 * looked at: everything goes on from descriptors.
 */
#define LINKS_MAX 40

typedef struct walk {
    int at; /* the folder that was reached, O_PATH */
    char rest[PATH_MAX];
    int links;
    bool by_stranger; /* a stranger's link was followed */
    uid_t stranger;
} walk_t;

/* Goes on from `fd`. 0, or an errno. */
static int move_to(walk_t *w, int fd) {
    if (fd < 0) {
        return errno;
    }
    close(w->at);
    w->at = fd;
    return 0;
}

static int follow(walk_t *w, int link, uid_t owner) {
    char target[PATH_MAX], rest[PATH_MAX];
    ssize_t len = readlinkat(link, "", target, sizeof target - 1);
    if (len < 0) {
        return errno;
    }
    target[len] = '\0';
    if (++w->links > LINKS_MAX) {
        return ELOOP;
    }
    if (owner != 0 && owner != geteuid()) {
        if (w->by_stranger && w->stranger != owner) {
            return EPERM;
        }
        w->by_stranger = true;
        w->stranger = owner;
    }
    memcpy(rest, w->rest, sizeof rest);
    if (snprintf(w->rest, sizeof w->rest, "%s/%s", target, rest) >= (int)sizeof w->rest) {
        return ENAMETOOLONG;
    }
    return target[0] == '/' ? move_to(w, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) : 0;
}

/* Takes the next part of the path into `name`, which is "" at its end. *last: nothing follows. */
static int next_part(walk_t *w, char name[NAME_MAX + 1], bool *last) {
    char *part = w->rest + strspn(w->rest, "/");
    size_t len = strcspn(part, "/");
    if (len > NAME_MAX) {
        return ENAMETOOLONG;
    }
    memcpy(name, part, len);
    name[len] = '\0';
    part += len;
    part += strspn(part, "/");
    *last = *part == '\0';
    memmove(w->rest, part, strlen(part) + 1);
    return 0;
}

/* Until only the file's own name is left. 0, or an errno. */
static int walk(walk_t *w, char name[NAME_MAX + 1]) {
    bool last, file_is_link = false;
    for (;;) {
        struct stat what;
        int error = next_part(w, name, &last);
        if (error != 0) {
            return error;
        }
        int fd = openat(w->at, name[0] != '\0' ? name : ".", O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) {
            /* A missing file is made, but not where a link leads to. */
            return errno == ENOENT && last && !file_is_link ? 0 : errno;
        }
        if (fstat(fd, &what) != 0) {
            error = errno;
        } else if (S_ISLNK(what.st_mode)) {
            file_is_link |= last;
            error = follow(w, fd, what.st_uid);
        } else if (!last) {
            error = move_to(w, openat(fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
        }
        close(fd);
        if (error != 0 || (last && !S_ISLNK(what.st_mode))) {
            return error;
        }
    }
}

/* The resolved path, from what the kernel says of the folder. 0, or an errno. */
static int name_place(const walk_t *w, const char *name, dli_place_t *place) {
    char self[32], folder[PATH_MAX];
    snprintf(self, sizeof self, "/proc/self/fd/%d", w->at);
    ssize_t len = readlink(self, folder, sizeof folder - 1);
    if (len < 0) {
        return errno;
    }
    folder[len] = '\0';
    if (folder[0] != '/') {
        return ENOENT; /* not in this process's root */
    }
    if (strcmp(folder, "/") == 0) {
        folder[0] = '\0';
    }
    /* The longest of the names beside it has to be one, too. */
    if (strlen(folder) + 1 + strlen(name) > DLI_PATH_LIMIT || strlen(name) + strlen("-journal") > NAME_MAX) {
        return ENAMETOOLONG;
    }
    if (asprintf(&place->path, "%s/%s", folder, name) < 0) {
        place->path = NULL;
        return ENOMEM;
    }
    place->name = place->path + strlen(folder) + 1;
    return 0;
}

static int open_place(walk_t *w, dli_place_t *place) {
    char name[NAME_MAX + 1];
    struct stat folder;
    int error = walk(w, name);
    if (error != 0) {
        return error;
    }
    if (w->by_stranger && (fstat(w->at, &folder) != 0 || folder.st_uid != w->stranger)) {
        return EPERM;
    }
    return name_place(w, name, place);
}

dl_status_t dli_folder_open(const char *path, const char *text, dli_place_t *place, dl_error_t *err) {
    walk_t w = {.at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)};
    snprintf(w.rest, sizeof w.rest, "%s", path);
    int error = w.at < 0 ? errno : open_place(&w, place);
    if (error == 0 && text != path && (place->written = strdup(text)) == NULL) {
        free(place->path);
        place->path = NULL;
        error = ENOMEM;
    }
    if (error == 0) {
        place->folder = w.at;
        return DL_OK;
    }
    if (w.at >= 0) {
        close(w.at);
    }
    switch (error) {
    case EPERM:
        return dl_driver_fail(
            err, DL_ECONFIG, error,
            "the path of the lock file goes through a link of another user's to what is not "
            "theirs; give the path without it: %s",
            text);
    case EACCES:
        return dl_driver_fail(err, DL_EAUTH, error, "no permission to look into the lock file's folder: %s",
                              text);
    case ENOMEM:
        return dl_driver_fail(err, DL_ENOMEM, error, "out of memory");
    default:
        return dl_driver_fail(err,
                              error == EMFILE || error == ENFILE ? DL_ELIMIT
                              : error == EIO                     ? DL_EIO
                                                                 : DL_ECONFIG,
                              error, "cannot get to the lock file (%s): %s", strerror(error), text);
    }
}

void dli_folder_close(dli_place_t *place) {
    if (place->path != NULL) {
        close(place->folder);
        free(place->path);
        free(place->written);
        place->path = place->written = NULL;
    }
}
