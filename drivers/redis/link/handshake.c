/* handshake.c - what is said first on a connection, and what the answers tell about the server. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "handshake.h"

#include <stdio.h>
#include <string.h>

#define OLDEST_VERSION 60000 /* HELLO, and TIME before writes in scripts */

void dli_handshake_write(const dli_endpoint_t *endpoint, const char *label, dli_commands_t *commands) {
    char name[160], number[24];
    dli_slice_t argv[7];
    size_t argc = 0;
    snprintf(name, sizeof name, "dlock:%s", label);
    for (char *at = name; *at != '\0'; at++) {
        *at = *at >= '!' && *at <= '~' ? *at : '_'; /* what the server allows in names of clients */
    }
    argv[argc++] = dli_slice("HELLO");
    argv[argc++] = dli_slice("2");
    if (endpoint->username != NULL || endpoint->password != NULL) {
        argv[argc++] = dli_slice("AUTH");
        argv[argc++] = dli_slice(endpoint->username != NULL ? endpoint->username : "default");
        argv[argc++] = dli_slice(endpoint->password != NULL ? endpoint->password : "");
    }
    argv[argc++] = dli_slice("SETNAME");
    argv[argc++] = dli_slice(name);
    dli_commands_add(commands, argc, argv);
    if (endpoint->database != 0) {
        argv[0] = dli_slice("SELECT");
        argv[1] = dli_slice_int(number, endpoint->database);
        dli_commands_add(commands, 2, argv);
    }
    dli_commands_add_words(commands, "INFO", "server", NULL);
    dli_commands_add_words(commands, "EVAL", "return 0", "0", NULL);
    dli_commands_add_words(commands, "HELLO", "2", NULL);
}

/* ---- HELLO ------------------------------------------------------------------------------------------- */

static bool is_text(const redisReply *reply) {
    return reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_STATUS;
}

/* The value of a key among the pairs of HELLO's answer; NULL: not there. */
static const redisReply *value_of(const redisReply *hello, const char *key) {
    for (size_t i = 0; i + 1 < hello->elements; i += 2) {
        const redisReply *name = hello->element[i];
        if (is_text(name) && name->len == strlen(key) && memcmp(name->str, key, name->len) == 0) {
            return hello->element[i + 1];
        }
    }
    return NULL;
}

/* false: it is not there, or no text. */
static bool text_of(const redisReply *hello, const char *key, char *text, size_t size) {
    const redisReply *value = value_of(hello, key);
    text[0] = '\0';
    if (value == NULL || !is_text(value)) {
        return false;
    }
    snprintf(text, size, "%s", value->str);
    return true;
}

/* 7.0.15 is 70015; 0: no version. */
static int number_of(const char *version) {
    unsigned part[3] = {0, 0, 0};
    if (sscanf(version, "%4u.%2u.%2u", &part[0], &part[1], &part[2]) < 2) {
        return 0;
    }
    return (int)(part[0] * 10000 + part[1] * 100 + part[2]);
}

static dl_status_t judge(const dli_endpoint_t *endpoint, const dli_facts_t *facts, const char *role,
                         dl_error_t *err) {
    const char *label = endpoint->label;
    if (facts->version_number < OLDEST_VERSION) {
        return dl_driver_fail(err, DL_ENOTSUP, 0, "%s: %s %s is older than Redis 6.0", label, facts->product,
                              facts->version);
    }
    if (facts->is_cluster) {
        return dl_driver_fail(err, DL_ENOTSUP, 0, "%s is a node of a cluster; locks need a server of its own",
                              label);
    }
    if (strcmp(role, "master") != 0) {
        return dl_driver_fail(err, DL_EIO, 0, "%s is a replica; locks need the primary", label);
    }
    return DL_OK;
}

static dl_status_t read_hello(const dli_endpoint_t *endpoint, const redisReply *reply, dli_facts_t *facts,
                              dl_error_t *err) {
    char mode[16], role[16];
    int64_t proto = 0;
    if (reply->type != REDIS_REPLY_ARRAY || !text_of(reply, "mode", mode, sizeof mode)) {
        return dli_reply_unexpected(reply, "HELLO", err);
    }
    if (strcmp(mode, "sentinel") == 0) { /* which has no role */
        return dl_driver_fail(err, DL_ENOTSUP, 0,
                              "%s is a sentinel, which keeps no locks; name the primary that it watches",
                              endpoint->label);
    }
    if (!text_of(reply, "server", facts->product, sizeof facts->product) ||
        !text_of(reply, "version", facts->version, sizeof facts->version) ||
        !text_of(reply, "role", role, sizeof role) ||
        !dli_reply_int(value_of(reply, "id"), &facts->client_id) ||
        !dli_reply_int(value_of(reply, "proto"), &proto) || proto != 2) {
        return dli_reply_unexpected(reply, "HELLO", err);
    }
    /* Both are shown, and a server that repeats what it was told could have put the password there. */
    facts->version[strspn(facts->version, "0123456789.")] = '\0';
    if (strcmp(facts->product, "redis") != 0 && strcmp(facts->product, "valkey") != 0) {
        strcpy(facts->product, "server");
    }
    facts->version_number = number_of(facts->version);
    facts->is_cluster = strcmp(mode, "cluster") == 0;
    return judge(endpoint, facts, role, err);
}

/* ---- INFO -------------------------------------------------------------------------------------------- */

static void read_server(const redisReply *info, dli_facts_t *facts) {
    char version[sizeof facts->version];
    (void)dli_info_text(info->str, "run_id", facts->run_id, sizeof facts->run_id);
    if (dli_info_text(info->str, "valkey_version", version, sizeof version)) {
        memcpy(facts->version, version, sizeof version);
        strcpy(facts->product, "valkey");
        facts->version_number = number_of(version);
    }
}

/* ---- errors ------------------------------------------------------------------------------------------ */

/* WRONGPASS is the answer to a wrong password, to one that is missing, to a user that is not there and to one
 * that is turned off; only who says which of them were given helps to find out. */
static dl_status_t refused_login(const dli_endpoint_t *endpoint, dl_error_t *err) {
    const char *before = "the password is not that of ";
    const char *after = ", or that user is unknown or turned off: correct username or password";
    char user[DLI_ENDPOINT_USER_MAX];
    if (endpoint->password == NULL) {
        before = "";
        after = " has a password, is unknown or turned off: set password or password_file";
    } else if (endpoint->username == NULL) {
        after = ", or that user is turned off: correct password, or set username too";
    }
    dli_endpoint_show_user(endpoint, user);
    return dl_driver_fail(err, DL_EAUTH, 0, "%.80s: %s%s%s (WRONGPASS)", endpoint->label, before, user,
                          after);
}

static dl_status_t refused(dli_handshake_t at, const dli_endpoint_t *endpoint, const redisReply *reply,
                           dl_error_t *err) {
    static const char *const names[] = {[DLI_HANDSHAKE_HELLO] = "HELLO",
                                        [DLI_HANDSHAKE_SELECT] = "SELECT",
                                        [DLI_HANDSHAKE_SERVER] = "INFO",
                                        [DLI_HANDSHAKE_ROLE] = "HELLO"};
    const char *label = endpoint->label;
    dl_error_t said;
    if (at == DLI_HANDSHAKE_HELLO && strstr(reply->str, "unknown command") != NULL) {
        return dl_driver_fail(err, DL_ENOTSUP, 0,
                              "%s does not know HELLO: it is older than Redis 6.0, or HELLO is renamed",
                              label);
    }
    if (at == DLI_HANDSHAKE_SELECT && strstr(reply->str, "out of range") != NULL) {
        return dl_driver_fail(err, DL_ECONFIG, 0, "%s: the server has no database %d", label,
                              endpoint->database);
    }
    if (dli_reply_is_error(reply, "NOAUTH") && endpoint->password == NULL) {
        return dl_driver_fail(err, DL_EAUTH, 0,
                              "%s: the server asks for a password: set password or password_file, and "
                              "username where it is not the default user's",
                              label);
    }
    if (dli_reply_is_error(reply, "WRONGPASS")) {
        return refused_login(endpoint, err);
    }
    /* All of it is sent at once, so any answer may repeat what another request has said. */
    bool has_secret = endpoint->password != NULL && endpoint->password[0] != '\0';
    dl_status_t status = has_secret ? dli_reply_fail_unquoted(reply, names[at], &said)
                                    : dli_reply_unexpected(reply, names[at], &said);
    return dl_driver_fail(err, status, 0, "%s: %s", label, said.message);
}

dl_status_t dli_handshake_read(dli_handshake_t *at, const dli_endpoint_t *endpoint, const redisReply *reply,
                               dli_facts_t *facts, dl_error_t *err) {
    bool is_error = reply->type == REDIS_REPLY_ERROR;
    /* Where the user may not ask who the server is, or nobody may, locks work without the answer. Of the
     * script it only matters that it is answered. */
    bool may_fail =
        *at == DLI_HANDSHAKE_SCRIPT || (*at == DLI_HANDSHAKE_SERVER && dli_reply_is_refused(reply));
    dli_facts_t late = *facts; /* INFO has told better what it is */
    if (is_error && !may_fail) {
        return refused(*at, endpoint, reply, err);
    }
    switch (*at) {
    case DLI_HANDSHAKE_HELLO:
        *at = endpoint->database != 0 ? DLI_HANDSHAKE_SELECT : DLI_HANDSHAKE_SERVER;
        return read_hello(endpoint, reply, facts, err);
    case DLI_HANDSHAKE_SELECT:
        *at = DLI_HANDSHAKE_SERVER;
        return reply->type == REDIS_REPLY_STATUS ? DL_OK : dli_reply_unexpected(reply, "SELECT", err);
    case DLI_HANDSHAKE_SERVER:
        *at = DLI_HANDSHAKE_SCRIPT;
        if (!is_error && !is_text(reply)) {
            return dli_reply_unexpected(reply, "INFO", err);
        }
        if (!is_error) {
            read_server(reply, facts);
        }
        return DL_OK;
    case DLI_HANDSHAKE_SCRIPT:
        *at = DLI_HANDSHAKE_ROLE;
        return is_error || reply->type == REDIS_REPLY_INTEGER ? DL_OK
                                                              : dli_reply_unexpected(reply, "EVAL", err);
    case DLI_HANDSHAKE_ROLE:
        *at = DLI_HANDSHAKE_DONE;
        return read_hello(endpoint, reply, &late, err);
    case DLI_HANDSHAKE_DONE:
        break;
    }
    return dl_driver_fail(err, DL_EPROTO, 0, "%s: the server answers what nobody asked", endpoint->label);
}
