/* messages_cases.c - what a variable of the configuration holds is in no message but where docs say so. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/options.h"
#include "support/ct.h"
#ifdef DLOCK_HAVE_MYSQL
#include "support/mysql_server.h"
#endif
#ifdef DLOCK_HAVE_REDIS
#include "support/redlock_nodes.h"
#endif

#define HELD "hunter2"
#define PART "hunt" /* of it: a message may be cut */
#define TEN HELD HELD HELD HELD HELD HELD HELD HELD HELD HELD

/* Some fit, some are refused by this option or that. */
static const char *const held[] = {HELD,        "1" HELD,       HELD " and more",
                                   HELD "'\"`", HELD "\nx",     "/nowhere/" HELD "/file",
                                   HELD "://x", TEN TEN TEN TEN};

/* Where a server is and who we are there is said: docs/configuration.md. */
static const char *const named[] = {"host", "port", "socket", "user", "username", "database"};

/* ---- what is said ------------------------------------------------------------------------------- */

typedef struct listener {
    ct_t *ct;
    const char *settings;
    bool checks; /* dl_client_check too, which takes its time */
} listener_t;

static void hear(listener_t *l, const char *text) {
    ct_t *ct = l->ct;
    CT_CHECKF(strcasestr(text, PART) == NULL, "under '%s', PW '%.20s': '%s'", l->settings, getenv("PW"),
              text);
}

static void hear_line(void *arg, dl_log_level_t level, const char *line) {
    (void)level;
    hear(arg, line);
}

static void hear_finding(void *arg, dl_finding_level_t level, const char *subject, const char *text) {
    (void)level;
    hear(arg, subject);
    hear(arg, text);
}

static void hear_events(listener_t *l, dl_client_t *client) {
    dl_event_t event;
    while (dl_event_next(client, &event) == DL_OK) {
        hear(l, event.text);
    }
}

/* The text of a call that failed. */
static bool worked(listener_t *l, dl_status_t status, const dl_error_t *err) {
    if (status != DL_OK) {
        hear(l, err->message);
    }
    return status == DL_OK;
}

/* ---- one client --------------------------------------------------------------------------------- */

#ifdef DLOCK_HAVE_REDIS
static void put_lists(redis_server_t *server) {
    static const char *const keys[] = {"order", HELD "order", "dlock:order", HELD, "dlock_tokens"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        (void)redis_ask(server, "DEL %s", keys[i]);
        (void)redis_ask(server, "LPUSH %s x", keys[i]);
    }
}
#endif

/* Makes the server refuse what follows, in words of its own or of the driver; or mends it again. */
static void spoil(ct_t *ct, bool mend) {
#ifdef DLOCK_HAVE_REDIS
    if ((ct_traits(ct) & CT_REDIS) != 0) {
        mend ? (void)redis_ask(ct_redis(ct), "FLUSHALL") : put_lists(ct_redis(ct));
    }
    for (size_t i = 0; (ct_traits(ct) & CT_REDLOCK) != 0 && i < ct_redlock(ct)->n - ct_redlock(ct)->dead;
         i++) {
        mend ? (void)redis_ask(ct_redlock(ct)->at[i], "FLUSHALL") : put_lists(ct_redlock(ct)->at[i]);
    }
#endif
#ifdef DLOCK_HAVE_MYSQL
    if ((ct_traits(ct) & CT_MYSQL) != 0 && !mend) {
        (void)mysql_try(ct_mysql(ct), "DROP TABLE %s." HELD, ct_mysql_database(ct));
    }
#endif
}

static int skip_one(void *arg, const char *name, const dl_lock_info_t *info) {
    (void)arg;
    (void)name;
    (void)info;
    return 0;
}

static void use_locks(ct_t *ct, listener_t *l, dl_client_t *client) {
    dl_lock_t *lock = ct_lock(ct, client, "order"), *other = ct_lock_owned(ct, client, "order", 7);
    dl_lock_info_t info = {.size = sizeof info};
    dl_error_t err;
    for (int round = 0; round < 2; round++) {
        bool is_held = worked(l, dl_trylock_for(lock, 10, 0, &err), &err);
        (void)worked(l, dl_trylock_for(other, 10, 0, &err), &err);
        (void)worked(l, dl_inspect(lock, &info, &err), &err);
        (void)worked(l, dl_list(client, NULL, skip_one, NULL, &err), &err);
        if (l->checks) {
            (void)worked(l, dl_client_check(client, hear_finding, l, &err), &err);
        }
        if (is_held) {
            (void)worked(l, dl_extend(lock, 5000, &err), &err);
            (void)worked(l, dl_unlock(lock, &err), &err);
        }
        (void)worked(l, dl_force_unlock(lock, &err), &err);
        hear_events(l, client);
        spoil(ct, round != 0);
    }
    ct_lock_close(ct, lock);
    ct_lock_close(ct, other);
}

/* A client of the case's server under these settings. */
static void listen_under(ct_t *ct, const char *settings, bool checks) {
    listener_t l = {ct, settings, checks};
    dl_client_t *client;
    dl_error_t err;
    if (worked(&l, ct_try_open(ct, settings, &client, &err), &err)) {
        CT_OK(dl_client_set_log(client, hear_line, &l));
        use_locks(ct, &l, client);
        ct_close(ct, client);
    }
}

/* ---- every option ------------------------------------------------------------------------------- */

/* Beside an option, what makes it count. */
static const char *beside(ct_t *ct, const char *option, char line[1024]) {
    line[0] = '\0';
    if (strncmp(option, "tls_", 4) != 0) {
        return strcmp(option, "token_key") == 0 && (ct_traits(ct) & CT_REDLOCK) != 0 ? "quarantine: false\n"
                                                                                     : "";
    }
    if ((ct_traits(ct) & CT_MYSQL) != 0) {
        return strcmp(option, "tls_ca") == 0 ? "tls: verify\nsocket: \"\"\nhost: localhost\n"
                                             : "tls: require\n";
    }
    FILE *file = fopen(ct_config(ct), "re");
    CT_CHECK(file != NULL);
    char read[1024];
    while (fgets(read, sizeof read, file) != NULL) {
        const char *from = read + strspn(read, " ");
        if (strncmp(from, "url:", 4) != 0 && strncmp(from, "nodes:", 6) != 0) {
            continue;
        }
        for (char *to = line; *from != '\0'; *to++ = *from++, *to = '\0') {
            if (strncmp(from, "redis://", 8) == 0) {
                to = stpcpy(to, "rediss");
                from += 5;
            }
        }
    }
    CT_EQ(fclose(file), 0);
    strcat(line, "connect_timeout: 10ms\n"); /* who is spoken to in TLS waits for the rest of a command */
    return line;
}

/* There, and no certificate. */
static const char *make_file(ct_t *ct, char path[CT_DIR_MAX + 16]) {
    snprintf(path, CT_DIR_MAX + 16, "%s/" HELD, ct->dir);
    FILE *file = fopen(path, "we");
    CT_CHECK(file != NULL);
    CT_GE(fputs("nothing\n", file), 0);
    CT_EQ(fclose(file), 0);
    return path;
}

static void try_text(ct_t *ct, const dl_option_t *option, const char *text) {
    char line[1024], settings[3072], path[CT_DIR_MAX + 16];
    const char *more = beside(ct, option->name, line);
    bool is_list = option->type == DL_OPTION_LIST;
    bool is_pair = strcmp(option->name, "tls_cert") == 0 || strcmp(option->name, "tls_key") == 0;
    snprintf(settings, sizeof settings, "%s%s: %s%s%s", more, option->name, is_list ? "[" : "", text,
             is_list ? ", \"redis://127.0.0.1:1\", \"redis://127.0.0.2:1\"]" : "");
    if (is_pair) {
        snprintf(settings, sizeof settings, "%stls_cert: %s\ntls_key: %s", more, text, text);
    }
    /* Others are the loader's to refuse, or anything goes. */
    bool is_text = is_list || (option->type == DL_OPTION_STRING && option->choices == NULL);
    for (size_t i = 0; i < (is_text ? sizeof held / sizeof held[0] : 1); i++) {
        setenv("PW", held[i], 1);
        listen_under(ct, settings, i == 0);
    }
    setenv("PW", make_file(ct, path), 1);
    listen_under(ct, settings, false);
}

static void try_options(ct_t *ct, const dl_option_t *options) {
    for (const dl_option_t *o = options; o != NULL && o->name != NULL; o++) {
        bool is_named = false;
        for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
            is_named = is_named || strcmp(o->name, named[i]) == 0;
        }
        if (!is_named) {
            try_text(ct, o, "\"${PW}\"");
        }
    }
}

/* A name whose key the driver needs for itself. */
static void meet_the_counter(ct_t *ct) {
    bool is_redlock = (ct_traits(ct) & CT_REDLOCK) != 0;
    listener_t l = {.ct = ct,
                    .settings = is_redlock ? "prefix: \"\"\ntoken_key: \"${PW}\"\nquarantine: false"
                                           : "prefix: \"\"\ntoken_key: \"${PW}\""};
    dl_lock_t *lock;
    dl_error_t err;
    setenv("PW", HELD, 1);
    CT_EQ(dl_lock_open(ct_open(ct, l.settings), HELD, &lock, &err), DL_EINVAL);
    hear(&l, err.message);
}

CT_CASE(messages, what_a_variable_holds_is_in_none, .timeout_s = 60) {
    char before[PATH_MAX];
    /* No server here is trusted, and each client of hundreds would read all that the system trusts. */
    setenv("SSL_CERT_FILE", "/dev/null", 1);
    setenv("SSL_CERT_DIR", ct->dir, 1);
    /* Some drivers make files by relative paths. */
    CT_CHECK(getcwd(before, sizeof before) != NULL);
    CT_EQ(chdir(ct->dir), 0);
    try_options(ct, dli_core_options);
    try_options(ct, ct->inner->options);
    if ((ct_traits(ct) & (CT_REDIS | CT_REDLOCK)) != 0) {
        meet_the_counter(ct);
    }
    CT_EQ(chdir(before), 0);
}

/* Of what lies above a file that a variable names. */
CT_CASE(messages, no_folder_that_a_variable_names_is_shown, .traits = CT_PROCESSES,
        .traits_not = CT_REDIS | CT_REDLOCK | CT_MYSQL, .needs = DL_CAP_NOTIFY) {
    char folder[PATH_MAX], path[PATH_MAX + 8];
    CT_GT(snprintf(folder, sizeof folder, "%s/" HELD, ct->dir), 0);
    CT_EQ(mkdir(folder, 0700), 0);
    CT_EQ(chmod(folder, 0777), 0); /* one to warn of */
    CT_GT(snprintf(path, sizeof path, "%s/locks", folder), 0);
    setenv("PW", path, 1);
    listen_under(ct, "path: \"${PW}\"\n", true);
}

#ifdef DLOCK_HAVE_REDIS
static void try_urls(ct_t *ct, const char *option) {
    static const char *const urls[] = {
        "\"redis://:${PW}@127.0.0.1:1\"",
        "\"redis://ann:${PW}@127.0.0.1:1/x\"",
        "\"redis://127.0.0.1:${PW}\"",
        "\"redis://127.0.0.1:1/${PW}\"",
        "\"redis://127.0.0.1:1?${PW}\"",
        "\"${PW}://127.0.0.1:1\"",
        "\"redis://[${PW}]:1\"",
        "\"redis://:${PW}%4@127.0.0.1:1\"",
        "\"redis://:${PW}@[::1\"",
        "\"unix:///nowhere?db=${PW}\"",
        "\"unix:///nowhere?${PW}\"",
        "\"rediss://:${PW}@127.0.0.1:1\"",
        "\"redis://a:b:${PW}127.0.0.1:1\"",
        "\"redis://:${PW}127.0.0.1:1\"",
    };
    const dl_option_t url = {.name = option,
                             .type = strcmp(option, "nodes") == 0 ? DL_OPTION_LIST : DL_OPTION_STRING};
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        try_text(ct, &url, urls[i]);
    }
}

CT_CASE(messages, a_url_is_not_repeated_but_for_its_host, .traits = CT_REDIS) {
    try_urls(ct, "url");
}

CT_CASE(messages, of_nodes_only_the_hosts_are_repeated, .traits = CT_REDLOCK) {
    try_urls(ct, "nodes");
}
#endif
