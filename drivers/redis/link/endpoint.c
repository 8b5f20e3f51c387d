/* endpoint.c - reads a server's URL and what stands beside it in the configuration. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "endpoint.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "command.h"

#define DEFAULT_PORT "6379"
#define HOST_MAX 255
#define LETTERS_AND_DIGITS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

/* Messages repeat nothing of a URL that is wrong: its password may stand anywhere. */
#define FORMS "redis://host:6379/0, rediss://host:6379/0 (TLS) or unix:///path?db=0"

static dl_status_t wrong(dl_error_t *err, const char *what) {
    return dl_driver_fail(err, DL_ECONFIG, 0, "url: %s", what);
}

static dl_status_t out_of_memory(dl_error_t *err) {
    return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
}

/* The part up to the first of these bytes, which `rest` then begins with. */
static dli_slice_t cut(dli_slice_t *rest, const char *ends) {
    dli_slice_t first = {rest->at, 0};
    while (first.len < rest->len && strchr(ends, rest->at[first.len]) == NULL) {
        first.len++;
    }
    rest->at += first.len;
    rest->len -= first.len;
    return first;
}

static bool skip(dli_slice_t *rest, char byte) {
    if (rest->len == 0 || rest->at[0] != byte) {
        return false;
    }
    rest->at++;
    rest->len--;
    return true;
}

static bool has(dli_slice_t part, char byte) {
    return memchr(part.at, byte, part.len) != NULL;
}

/* ---- strings of our own ------------------------------------------------------------------------------ */

static int hex(char digit) {
    static const char digits[] = "0123456789abcdef";
    const char *at = digit != '\0' ? strchr(digits, digit >= 'A' && digit <= 'F' ? digit + 32 : digit) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

/* Without the percent-encoding. `where` is for the message. */
static dl_status_t decode(dli_slice_t part, const char *where, char **to, dl_error_t *err) {
    char *text = calloc(1, part.len + 1);
    size_t len = 0;
    *to = text; /* freed with the endpoint, also after a failure */
    if (text == NULL) {
        return out_of_memory(err);
    }
    for (size_t i = 0; i < part.len; i++) {
        char byte = part.at[i];
        if (byte == '%') {
            int high = part.len - i > 2 ? hex(part.at[i + 1]) : -1;
            int low = high >= 0 ? hex(part.at[i + 2]) : -1;
            if (low < 0) {
                return dl_driver_fail(
                    err, DL_ECONFIG, 0,
                    "url: a '%%' in the %s must be followed by two hex digits; write '%%25' for "
                    "a plain '%%'",
                    where);
            }
            byte = (char)(high * 16 + low);
            i += 2;
        }
        if (byte == '\0') {
            return dl_driver_fail(err, DL_ECONFIG, 0, "url: the %s must not contain '%%00'", where);
        }
        text[len++] = byte;
    }
    return DL_OK;
}

static void wipe(char *secret) {
    if (secret != NULL) {
        explicit_bzero(secret, strlen(secret));
        free(secret);
    }
}

/* A decimal number of at most `max`. */
static bool number(dli_slice_t part, int64_t max, int *to) {
    int64_t value = 0;
    for (size_t i = 0; i < part.len; i++) {
        if (part.at[i] < '0' || part.at[i] > '9' || value > max) {
            return false;
        }
        value = value * 10 + (part.at[i] - '0');
    }
    *to = value <= max ? (int)value : 0;
    return part.len > 0 && value <= max;
}

/* ---- the parts of redis:// and rediss:// --------------------------------------------------------------- */

static dl_status_t read_user(dli_endpoint_t *endpoint, dli_slice_t info, dl_error_t *err) {
    dli_slice_t user = cut(&info, ":");
    bool has_password = skip(&info, ':') && info.len > 0;
    dl_status_t status = user.len > 0 ? decode(user, "user", &endpoint->username, err) : DL_OK;
    return status == DL_OK && has_password ? decode(info, "password", &endpoint->password, err) : status;
}

static bool is_host_name(dli_slice_t host) {
    return strspn(host.at, LETTERS_AND_DIGITS "-._") >= host.len;
}

static bool is_ipv6(dli_slice_t host) {
    char address[INET6_ADDRSTRLEN];
    unsigned char bytes[16];
    if (host.len >= sizeof address) {
        return false;
    }
    memcpy(address, host.at, host.len);
    address[host.len] = '\0';
    return inet_pton(AF_INET6, address, bytes) == 1;
}

static dl_status_t read_host(dli_endpoint_t *endpoint, dli_slice_t *rest, dl_error_t *err) {
    dli_slice_t host;
    if (skip(rest, '[')) {
        host = cut(rest, "]");
        if (!skip(rest, ']') || !is_ipv6(host)) {
            return wrong(err, "between '[' and ']' stands no IPv6 address, such as [::1]");
        }
        if (rest->len > 0 && rest->at[0] != ':') {
            return wrong(err, "after ']' comes ':' and the port, or nothing");
        }
    } else {
        host = cut(rest, ":");
        if (rest->len > 1 && memchr(rest->at + 1, ':', rest->len - 1) != NULL) {
            return wrong(err, "the host has more than one ':'; an IPv6 address stands in brackets, as in "
                              "redis://[::1]:6379/0");
        }
        if (!is_host_name(host)) {
            return wrong(err, "the host has a byte that no host name has");
        }
    }
    if (host.len == 0) {
        return wrong(err, "the host is missing; expected " FORMS);
    }
    if (host.len > HOST_MAX) {
        return wrong(err, "the host is longer than 255 bytes");
    }
    endpoint->host = strndup(host.at, host.len);
    return endpoint->host != NULL ? DL_OK : out_of_memory(err);
}

static dl_status_t read_port(dli_endpoint_t *endpoint, dli_slice_t rest, dl_error_t *err) {
    int port = 0;
    strcpy(endpoint->port, DEFAULT_PORT);
    if (rest.len == 0) {
        return DL_OK;
    }
    skip(&rest, ':');
    if (!number(rest, 65535, &port) || port == 0) {
        return wrong(err, "the port must be a number from 1 to 65535");
    }
    snprintf(endpoint->port, sizeof endpoint->port, "%d", port);
    return DL_OK;
}

static dl_status_t read_database(dli_endpoint_t *endpoint, dli_slice_t part, dl_error_t *err) {
    if (number(part, INT_MAX, &endpoint->database)) {
        return DL_OK;
    }
    return wrong(err, "the database must be a number from 0 on, as in redis://host:6379/0");
}

static dl_status_t read_tcp(dli_endpoint_t *endpoint, dli_slice_t rest, dl_error_t *err) {
    dli_slice_t authority = cut(&rest, "/?#");
    const char *at = memrchr(authority.at, '@', authority.len);
    dl_status_t status = DL_OK;
    if (has(rest, '@')) {
        return wrong(err, "in a user or a password write '%2F' for '/', '%3F' for '?', '%23' for '#'");
    }
    if (at != NULL) {
        dli_slice_t info = {authority.at, (size_t)(at - authority.at)};
        authority.len -= info.len + 1;
        authority.at = at + 1;
        status = read_user(endpoint, info, err);
    }
    status = status == DL_OK ? read_host(endpoint, &authority, err) : status;
    status = status == DL_OK ? read_port(endpoint, authority, err) : status;
    if (status == DL_OK && has(rest, '?')) {
        return wrong(err, "redis:// and rediss:// take no parameters after '?'; write options of their own");
    }
    skip(&rest, '/');
    return status == DL_OK && rest.len > 0 ? read_database(endpoint, rest, err) : status;
}

/* ---- unix:// ----------------------------------------------------------------------------------------- */

static dl_status_t read_unix(dli_endpoint_t *endpoint, dli_slice_t rest, dl_error_t *err) {
    dli_slice_t path = cut(&rest, "?");
    if (path.len < 2 || path.at[0] != '/') {
        return wrong(err, "unix:// is followed by the whole path of the socket, which begins with '/', as in "
                          "unix:///run/redis.sock");
    }
    dl_status_t status = decode(path, "path", &endpoint->path, err);
    if (status == DL_OK && strlen(endpoint->path) >= sizeof((struct sockaddr_un *)0)->sun_path) {
        status = wrong(err, "the path of the socket is longer than 107 bytes");
    }
    if (status == DL_OK && skip(&rest, '?')) {
        if (rest.len < 3 || memcmp(rest.at, "db=", 3) != 0) {
            return wrong(err, "the only parameter after '?' is db, as in unix:///run/redis.sock?db=0");
        }
        rest.at += 3;
        rest.len -= 3;
        status = read_database(endpoint, rest, err);
    }
    return status;
}

static dl_status_t read_url(dli_endpoint_t *endpoint, const char *url, dl_error_t *err) {
    size_t len = strspn(url, LETTERS_AND_DIGITS "+.-");
    if (len == 0 || strncmp(url + len, "://", 3) != 0) {
        return wrong(err, "it must be " FORMS);
    }
    dli_slice_t rest = {url + len + 3, strlen(url + len + 3)};
    if (len == 5 && strncasecmp(url, "redis", len) == 0) {
        return read_tcp(endpoint, rest, err);
    }
    if (len == 4 && strncasecmp(url, "unix", len) == 0) {
        return read_unix(endpoint, rest, err);
    }
    if (len == 6 && strncasecmp(url, "rediss", len) == 0) {
        endpoint->tls = true;
        return read_tcp(endpoint, rest, err);
    }
    return wrong(err, "its scheme is not known; it must be " FORMS);
}

/* ---- what stands beside the URL ------------------------------------------------------------------------ */

/* "" is none. */
static dl_status_t replace(char **to, const char *extra, dl_error_t *err) {
    if (extra == NULL) {
        return DL_OK;
    }
    wipe(*to);
    *to = extra[0] != '\0' ? strdup(extra) : NULL;
    return *to != NULL || extra[0] == '\0' ? DL_OK : out_of_memory(err);
}

/* What the URL says too has to be the same: nobody can tell which is meant. "" takes it away. */
static dl_status_t settle(char **to, const char *extra, const char *option, dl_error_t *err) {
    if (extra != NULL && extra[0] != '\0' && *to != NULL && strcmp(*to, extra) != 0) {
        return dl_driver_fail(err, DL_ECONFIG, 0, "%s: given twice: the url says another", option);
    }
    return replace(to, extra, err);
}

static dl_status_t read_tls(dli_endpoint_t *endpoint, const dli_endpoint_extras_t *extras, dl_error_t *err) {
    const struct {
        const char *name, *value, *shown;
        char **to, **shown_to;
    } files[] = {
        {"tls_ca", extras->tls_ca, extras->tls_ca_shown, &endpoint->tls_ca, &endpoint->tls_ca_shown},
        {"tls_cert", extras->tls_cert, extras->tls_cert_shown, &endpoint->tls_cert,
         &endpoint->tls_cert_shown},
        {"tls_key", extras->tls_key, extras->tls_key_shown, &endpoint->tls_key, &endpoint->tls_key_shown},
        {"tls_server_name", extras->tls_server_name, NULL, &endpoint->tls_server_name, NULL},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        /* Who names a certificate believes that the connection is secret. */
        if (files[i].value != NULL && files[i].value[0] != '\0' && !endpoint->tls) {
            return dl_driver_fail(err, DL_ECONFIG, 0,
                                  "%s is given, but the url does not begin with rediss://", files[i].name);
        }
        dl_status_t status = replace(files[i].to, files[i].value, err);
        status = status == DL_OK ? replace(files[i].shown_to, files[i].shown, err) : status;
        if (status != DL_OK) {
            return status;
        }
    }
    if ((endpoint->tls_cert == NULL) != (endpoint->tls_key == NULL)) {
        return dl_driver_fail(err, DL_ECONFIG, 0, "tls_cert and tls_key are given together or not at all");
    }
#ifndef DLOCK_HAVE_TLS
    if (endpoint->tls) {
        return dl_driver_fail(err, DL_ENOTSUP, 0, "rediss:// needs TLS, and dlock was built without it");
    }
#endif
    return DL_OK;
}

static dl_status_t settle_database(dli_endpoint_t *endpoint, int64_t database, dl_error_t *err) {
    bool is_twice = database >= 0 && endpoint->database >= 0 && database != endpoint->database;
    if (database > INT_MAX || is_twice) {
        const char *why =
            database > INT_MAX ? "the number is too large" : "given twice: the url says another";
        return dl_driver_fail(err, DL_ECONFIG, 0, "database: %s", why);
    }
    int given = database >= 0 ? (int)database : 0;
    endpoint->database = endpoint->database >= 0 ? endpoint->database : given;
    return DL_OK;
}

static dl_status_t read_extras(dli_endpoint_t *endpoint, const dli_endpoint_extras_t *extras,
                               dl_error_t *err) {
    dl_status_t status = settle(&endpoint->username, extras->username, "username", err);
    if (status == DL_OK && extras->username != NULL && extras->username[0] != '\0') {
        status = replace(&endpoint->username_shown,
                         extras->username_shown != NULL ? extras->username_shown : extras->username, err);
    }
    /* The rule that `dlock init` prints would be another one. */
    if (status == DL_OK && endpoint->username != NULL && strpbrk(endpoint->username, " \t\n\v\f\r") != NULL) {
        status = dl_driver_fail(err, DL_ECONFIG, 0, "username: it has a blank, which no user of Redis has");
    }
    status = status == DL_OK ? settle(&endpoint->password, extras->password, "password", err) : status;
    status = status == DL_OK ? read_tls(endpoint, extras, err) : status;
    status = status == DL_OK ? settle_database(endpoint, extras->database, err) : status;
    endpoint->tls_verify = extras->tls_verify;
    endpoint->connect_timeout_ms = extras->connect_timeout_ms;
    endpoint->keepalive_s = extras->keepalive_ms > 0 ? (extras->keepalive_ms - 1) / 1000 + 1 : 0;
    return status;
}

static void write_label(dli_endpoint_t *endpoint) {
    if (endpoint->path != NULL) {
        snprintf(endpoint->label, sizeof endpoint->label, "unix://%s?db=%d", endpoint->path,
                 endpoint->database);
        return;
    }
    bool ipv6 = strchr(endpoint->host, ':') != NULL;
    snprintf(endpoint->label, sizeof endpoint->label, "%s://%s%s%s:%s/%d", endpoint->tls ? "rediss" : "redis",
             ipv6 ? "[" : "", endpoint->host, ipv6 ? "]" : "", endpoint->port, endpoint->database);
}

dl_status_t dli_endpoint_make(dli_endpoint_t *endpoint, const char *url, const dli_endpoint_extras_t *extras,
                              dl_error_t *err) {
    memset(endpoint, 0, sizeof *endpoint);
    endpoint->database = -1; /* not known yet */
    dl_status_t status = read_url(endpoint, url, err);
    status = status == DL_OK ? read_extras(endpoint, extras, err) : status;
    if (status != DL_OK) {
        dli_endpoint_free(endpoint);
        return status;
    }
    write_label(endpoint);
    return DL_OK;
}

void dli_endpoint_show_user(const dli_endpoint_t *endpoint, char text[DLI_ENDPOINT_USER_MAX]) {
    if (endpoint->username != NULL && endpoint->username_shown == NULL) {
        snprintf(text, DLI_ENDPOINT_USER_MAX, "the user in the URL");
    } else {
        snprintf(text, DLI_ENDPOINT_USER_MAX, "user '%.32s'",
                 endpoint->username != NULL ? endpoint->username_shown : "default");
    }
}

void dli_endpoint_free(dli_endpoint_t *endpoint) {
    char *const texts[] = {
        endpoint->host,         endpoint->path,           endpoint->username,     endpoint->username_shown,
        endpoint->tls_ca,       endpoint->tls_cert,       endpoint->tls_key,      endpoint->tls_server_name,
        endpoint->tls_ca_shown, endpoint->tls_cert_shown, endpoint->tls_key_shown};
    wipe(endpoint->password);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        free(texts[i]);
    }
    memset(endpoint, 0, sizeof *endpoint);
}
