/* mysql_tls_fixture.h - certificates, and servers that have them. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MYSQL_TLS_FIXTURE_H
#define MYSQL_TLS_FIXTURE_H

#include "mysql_conn_fixture.h"
#include "shell.h"

static char folder[64];

static inline void set_up_tls(void) {
    set_up_env();
    make_folder(folder, sizeof folder);
}

static inline void tear_down_tls(void) {
    tear_down();
    delete_folder(folder);
}

static char paths[8][96];

/* The file in the folder; the text lasts for seven more calls. */
static inline char *file(const char *name) {
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Authorities "ca" and "other"; of the first: "here" for this host, "away" for another name, and "me". */
static inline void make_certificates(void) {
    shell(
        "cd '%s' && exec 2>openssl.log && P='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes' &&"
        "for a in ca other; do openssl req -x509 $P -keyout $a.key -out $a.pem -days 2 -subj /CN=$a; done &&"
        "echo 'subjectAltName=DNS:localhost,IP:127.0.0.1' >here.ext &&"
        "echo 'subjectAltName=DNS:locks.test' >away.ext && echo 'subjectAltName=DNS:me' >me.ext &&"
        "for n in here away me; do openssl req $P -keyout $n.key -out $n.csr -subj /CN=$n.test &&"
        "openssl x509 -req -in $n.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile $n.ext "
        "-out $n.pem; done",
        folder);
}

static inline void start_with(const char *certificate) {
    char ca[128], cert[128], key[128], name[16];
    make_certificates();
    snprintf(ca, sizeof ca, "--ssl-ca=%s", file("ca.pem"));
    snprintf(name, sizeof name, "%s.pem", certificate);
    snprintf(cert, sizeof cert, "--ssl-cert=%s", file(name));
    snprintf(name, sizeof name, "%s.key", certificate);
    snprintf(key, sizeof key, "--ssl-key=%s", file(name));
    use_server(mysql_server_start(NULL, NULL, ca, cert, key, NULL));
}

#endif
