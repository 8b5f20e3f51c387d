/* locks.c - dlock status, list and unlock: looking at locks, and freeing them by force. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>

#include "clock.h"
#include "commands.h"
#include "configured.h"
#include "dlock/driver.h"
#include "exits.h"
#include "json.h"
#include "report.h"

dl_status_t try_client(const options_t *options, const char *backend, dl_client_t **client, dl_error_t *err) {
    return options->local
               ? dl_client_open_text(LOCAL_CONFIG, sizeof LOCAL_CONFIG - 1, LOCAL_BACKEND, client, err)
               : dl_client_open(options->config, backend, client, err);
}

int open_client(const options_t *options, dl_client_t **client) {
    dl_error_t err;
    dl_status_t status = try_client(options, options->backend, client, &err);
    return status == DL_OK ? 0 : report_unopened(options, status, &err);
}

int open_lock(const options_t *options, dl_client_t **client, dl_lock_t **lock) {
    int failed = open_client(options, client);
    if (failed != 0) {
        return failed;
    }
    dl_error_t err;
    dl_status_t status = dl_lock_open(*client, options->args[0], lock, &err);
    if (status != DL_OK) {
        dl_client_close(*client);
        *client = NULL;
        return report_failure(status, &err);
    }
    return 0;
}

static void print_lock_json(const char *name, const dl_lock_info_t *info) {
    json_open(NULL, '{');
    json_text("name", name);
    json_bool("held", info->held);
    if (info->held) {
        json_text("owner", info->owner);
        json_unsigned("hold_id", info->hold_id);
        if (info->remaining_ms >= 0) {
            json_number("remaining_ms", info->remaining_ms);
        } else {
            json_null("remaining_ms");
        }
        json_unsigned("holds", info->holds);
        /* What the server does not know. */
        if (info->token != 0) {
            json_unsigned("token", info->token);
        } else {
            json_null("token");
        }
        json_text_or_null("client", info->client);
    }
    json_close('}');
}

static void print_lock_line(const char *name, const dl_lock_info_t *info) {
    if (!info->held) {
        (void)printf("%s: free\n", plain(name));
        return;
    }
    (void)printf("%s: held by %s", plain(name), plain(info->owner));
    if (info->client[0] != '\0') {
        (void)printf(" at %s", plain(info->client));
    }
    if (info->remaining_ms >= 0) {
        (void)printf(", lease ends in %s", dl_driver_measured(ns_of_ms(info->remaining_ms)).text);
    } else {
        (void)fputs(", no known expiry: it may stay until somebody frees it", stdout);
    }
    if (info->token != 0) {
        (void)printf(", token %" PRIu64, info->token);
    }
    if (info->holds > 1) {
        (void)printf(", entered %" PRIu32 " times", info->holds);
    }
    (void)putchar('\n');
}

int command_status(const options_t *options) {
    dl_client_t *client;
    dl_lock_t *lock;
    int failed = open_lock(options, &client, &lock);
    if (failed != 0) {
        return failed;
    }
    dl_error_t err;
    dl_lock_info_t info = DL_LOCK_INFO_INIT;
    dl_status_t status = dl_inspect(lock, &info, &err);
    dl_lock_close(lock);
    dl_client_close(client);
    if (status != DL_OK) {
        return report_failure(status, &err);
    }
    if (options->quiet) {
        return info.held ? 0 : EXIT_NO;
    }
    if (options->json) {
        print_lock_json(options->args[0], &info);
        json_end();
    } else {
        print_lock_line(options->args[0], &info);
    }
    return 0;
}

typedef struct listing {
    const options_t *options;
    size_t count;
} listing_t;

static int list_one(void *arg, const char *name, const dl_lock_info_t *info) {
    listing_t *listing = arg;
    listing->count++;
    if (listing->options->quiet) {
        return 1; /* one answers the question */
    }
    if (listing->options->json) {
        print_lock_json(name, info);
    } else {
        print_lock_line(name, info);
    }
    return 0;
}

int command_list(const options_t *options) {
    dl_client_t *client;
    int failed = open_client(options, &client);
    if (failed != 0) {
        return failed;
    }
    bool as_json = options->json && !options->quiet;
    listing_t listing = {options, 0};
    if (as_json) {
        json_open(NULL, '[');
    }
    dl_error_t err;
    stdout_hold();
    dl_status_t status = dl_list(client, options->args[0], list_one, &listing, &err);
    stdout_release();
    if (as_json) {
        json_close(']'); /* well-formed also when the list broke off; the exit status says that it did */
        json_end();
    }
    dl_client_close(client);
    if (status != DL_OK) {
        return report_failure(status, &err);
    }
    return options->quiet && listing.count == 0 ? EXIT_NO : 0;
}

int command_unlock(const options_t *options) {
    if (!options->force) {
        return usage_error(
            "'dlock unlock' takes the lock from whoever holds it, who may go on working as if it "
            "had it; say --force if you mean that");
    }
    dl_client_t *client;
    dl_lock_t *lock;
    int failed = open_lock(options, &client, &lock);
    if (failed != 0) {
        return failed;
    }
    dl_error_t err;
    dl_status_t status = dl_force_unlock(lock, &err);
    dl_lock_close(lock);
    dl_client_close(client);
    if (status == DL_EFOREIGN) {
        error_line("%s; --force frees only locks of its own backend: leave it to the program that made it, "
                   "or delete "
                   "it with the server's own tools",
                   err.message);
        return exit_status_of(status);
    }
    if (status != DL_OK && status != DL_ENOTOWNER) {
        return report_failure(status, &err);
    }
    if (options->json && !options->quiet) {
        json_open(NULL, '{');
        json_text("name", options->args[0]);
        json_bool("freed", status == DL_OK);
        json_close('}');
        json_end();
    } else if (status == DL_OK && !options->quiet) {
        (void)printf("%s: freed\n", plain(options->args[0]));
    } else if (status != DL_OK) {
        notice_line("nobody holds '%s'", plain(options->args[0]));
    }
    return status == DL_OK ? 0 : EXIT_NO;
}
