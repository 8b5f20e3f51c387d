/* tls.c - TLS for a connection whose bytes we carry ourselves: no socket here, nothing blocks. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "tls.h"

#include "drivers/unforked.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dli_tls {
    const dli_endpoint_t *endpoint;
    SSL_CTX *context;
    SSL *ssl;
    BIO *in, *out; /* the SSL's own */
};

/* ---- errors ------------------------------------------------------------------------------------------ */

/* OpenSSL keeps one queue of errors a thread; what is read of it here leaves nothing behind for others. */
static const char *reason_of(unsigned long code) {
    if (ERR_SYSTEM_ERROR(code)) {
        return strerror(ERR_GET_REASON(code));
    }
    const char *reason = ERR_reason_error_string(code);
    return reason != NULL ? reason : "unknown reason";
}

static bool is_no_memory(unsigned long code) {
    return ERR_GET_REASON(code) == ERR_R_MALLOC_FAILURE ||
           (ERR_SYSTEM_ERROR(code) && ERR_GET_REASON(code) == ENOMEM);
}

static dl_status_t fail_memory(dl_error_t *err) {
    ERR_clear_error();
    return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory");
}

/* The first error of the queue, which says what; those behind it may tell that it was for want of memory. */
static unsigned long take_error(bool *lacked_memory) {
    unsigned long first = ERR_get_error();
    *lacked_memory = false;
    for (unsigned long code = first; code != 0; code = ERR_get_error()) {
        *lacked_memory |= is_no_memory(code);
    }
    return first;
}

/* A file that the configuration names. */
static dl_status_t fail_file(const char *option, const char *path, const char *shown, dl_error_t *err) {
    bool lacked_memory;
    unsigned long code = take_error(&lacked_memory);
    int reason = ERR_SYSTEM_ERROR(code) ? ERR_GET_REASON(code) : 0;
    if (lacked_memory) {
        return fail_memory(err);
    }
    return dl_driver_fail(err, reason == EMFILE || reason == ENFILE ? DL_ELIMIT : DL_ECONFIG, reason,
                          "%s: %.120s: %s", option, shown != NULL ? shown : path, reason_of(code));
}

/* Has the other side refused what we showed, or failed to show? */
static bool is_refusal(int reason) {
    switch (reason) {
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
        return true;
    default:
        return false;
    }
}

/* ---- a certificate that is not trusted ----------------------------------------------------------------- */

#define NAMES_MAX 80 /* of those that a certificate has, as far as there is room */

/* false: there is no room for it, which the names say. */
static bool add_name(char names[NAMES_MAX], const char *name, size_t len) {
    size_t used = strlen(names);
    bool fits = used + strlen(", ") + len + strlen(" ...") < NAMES_MAX;
    (void)snprintf(names + used, NAMES_MAX - used, "%s%.*s",
                   !fits      ? " ..."
                   : used > 0 ? ", "
                              : "",
                   fits ? (int)len : 0, name);
    for (char *at = names + used; *at != '\0'; at++) {
        *at = *at >= ' ' && *at <= '~' ? *at : '?'; /* nobody vouches for what stands there */
    }
    return fits;
}

static bool add_general_name(char names[NAMES_MAX], const GENERAL_NAME *name) {
    if (name->type == GEN_DNS) {
        return add_name(names, (const char *)ASN1_STRING_get0_data(name->d.dNSName),
                        (size_t)ASN1_STRING_length(name->d.dNSName));
    }
    int len = name->type == GEN_IPADD ? ASN1_STRING_length(name->d.iPAddress) : 0;
    char text[INET6_ADDRSTRLEN];
    if ((len != 4 && len != 16) ||
        inet_ntop(len == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(name->d.iPAddress), text,
                  sizeof text) == NULL) {
        return true; /* of no use here */
    }
    return add_name(names, text, strlen(text));
}

/* The names that the server's certificate is for; "others" where they cannot be had. */
static void list_names(const dli_tls_t *tls, char names[NAMES_MAX]) {
    STACK_OF(X509) *chain = SSL_get0_verified_chain(tls->ssl); /* also after a refusal */
    X509 *own = chain != NULL && sk_X509_num(chain) > 0 ? sk_X509_value(chain, 0) : NULL;
    GENERAL_NAMES *all = own != NULL ? X509_get_ext_d2i(own, NID_subject_alt_name, NULL, NULL) : NULL;
    char common[64];
    names[0] = '\0';
    for (int i = 0; all != NULL && i < sk_GENERAL_NAME_num(all); i++) {
        if (!add_general_name(names, sk_GENERAL_NAME_value(all, i))) {
            break;
        }
    }
    GENERAL_NAMES_free(all);
    if (names[0] == '\0' && own != NULL &&
        X509_NAME_get_text_by_NID(X509_get_subject_name(own), NID_commonName, common, sizeof common) > 0) {
        (void)add_name(names, common, strlen(common));
    }
    if (names[0] == '\0') {
        strcpy(names, "others");
    }
    ERR_clear_error();
}

/* What is wrong with it, and which option helps. */
static dl_status_t fail_distrust(const dli_tls_t *tls, long verified, dl_error_t *err) {
    const dli_endpoint_t *e = tls->endpoint;
    char names[NAMES_MAX], hint[2 * NAMES_MAX + 64] = "";
    switch (verified) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        list_names(tls, names);
        (void)snprintf(hint, sizeof hint, ": it is for %s, not for %s%.60s: set tls_server_name to its name",
                       names, e->tls_server_name != NULL ? "tls_server_name" : "host ",
                       e->tls_server_name != NULL ? "" : e->host);
        break;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
        (void)snprintf(hint, sizeof hint, ": set tls_ca to the certificate of the authority that signed it%s",
                       e->tls_ca != NULL ? ", which the one in tls_ca did not" : " (unset: the system's)");
        break;
    default: /* no option helps */
        break;
    }
    return dl_driver_fail(err, DL_EAUTH, (int)verified, "%.80s: the server's certificate: %s%s", e->label,
                          X509_verify_cert_error_string(verified), hint);
}

static dl_status_t fail_ssl(const dli_tls_t *tls, dl_error_t *err) {
    const char *label = tls->endpoint->label;
    bool lacked_memory;
    unsigned long code = take_error(&lacked_memory);
    int reason = ERR_GET_REASON(code);
    long verified = SSL_get_verify_result(tls->ssl);
    bool is_distrust = reason == SSL_R_CERTIFICATE_VERIFY_FAILED;
    if (lacked_memory || verified == X509_V_ERR_OUT_OF_MEM || (is_distrust && verified == X509_V_OK)) {
        return fail_memory(err); /* the last: it could not even look */
    }
    if (is_distrust) {
        return fail_distrust(tls, verified, err);
    }
    if (is_refusal(reason)) {
        return dl_driver_fail(err, DL_EAUTH, reason, "%s: the server refused us: %s", label, reason_of(code));
    }
    return dl_driver_fail(err, DL_EPROTO, reason, "%s: TLS: %s%s", label, reason_of(code),
                          reason == SSL_R_WRONG_VERSION_NUMBER ? " (does the server speak TLS on this port?)"
                                                               : "");
}

/* ---- opening ----------------------------------------------------------------------------------------- */

/* A key with a passphrase must not make the library ask at the terminal. */
static int know_no_passphrase(char *buffer, int size, int for_writing, void *arg) {
    (void)buffer;
    (void)size;
    (void)for_writing;
    (void)arg;
    return -1;
}

static dl_status_t load_files(SSL_CTX *context, const dli_endpoint_t *endpoint, dl_error_t *err) {
    SSL_CTX_set_default_passwd_cb(context, know_no_passphrase);
    SSL_CTX_set_verify(context, endpoint->tls_verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    if (endpoint->tls_verify && endpoint->tls_ca == NULL && SSL_CTX_set_default_verify_paths(context) != 1) {
        return fail_file("tls_ca", "the system's certificates", NULL, err);
    }
    if (endpoint->tls_verify && endpoint->tls_ca != NULL &&
        SSL_CTX_load_verify_locations(context, endpoint->tls_ca, NULL) != 1) {
        return fail_file("tls_ca", endpoint->tls_ca, endpoint->tls_ca_shown, err);
    }
    if (endpoint->tls_cert != NULL && SSL_CTX_use_certificate_chain_file(context, endpoint->tls_cert) != 1) {
        return fail_file("tls_cert", endpoint->tls_cert, endpoint->tls_cert_shown, err);
    }
    /* Both are given or neither. */
    const char *key = endpoint->tls_key;
    if (key != NULL && (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1 ||
                        SSL_CTX_check_private_key(context) != 1)) {
        return fail_file("tls_key", key, endpoint->tls_key_shown, err);
    }
    return DL_OK;
}

/* Whom we mean to talk to: said to the server, and looked for in its certificate. */
static dl_status_t expect_name(SSL *ssl, const dli_endpoint_t *endpoint, dl_error_t *err) {
    char *name = endpoint->tls_server_name != NULL ? endpoint->tls_server_name : endpoint->host;
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1) {
        return DL_OK; /* addresses are not said */
    }
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (SSL_set1_host(ssl, name) != 1 || SSL_set_tlsext_host_name(ssl, name) != 1) {
        return fail_memory(err);
    }
    return DL_OK;
}

static dl_status_t build(dli_tls_t *tls, dl_error_t *err) {
    tls->context = SSL_CTX_new(TLS_client_method());
    if (tls->context == NULL || SSL_CTX_set_min_proto_version(tls->context, TLS1_2_VERSION) != 1) {
        return fail_memory(err);
    }
    SSL_CTX_set_options(tls->context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    dl_status_t status = load_files(tls->context, tls->endpoint, err);
    if (status != DL_OK) {
        return status;
    }
    tls->ssl = SSL_new(tls->context);
    tls->in = BIO_new(BIO_s_mem());
    tls->out = BIO_new(BIO_s_mem());
    if (tls->ssl == NULL || tls->in == NULL || tls->out == NULL) {
        BIO_free(tls->in);
        BIO_free(tls->out);
        return fail_memory(err);
    }
    SSL_set_bio(tls->ssl, tls->in, tls->out);
    SSL_set_connect_state(tls->ssl);
    return expect_name(tls->ssl, tls->endpoint, err);
}

static void free_tls(dli_tls_t *tls) {
    SSL_free(tls->ssl);
    SSL_CTX_free(tls->context);
    free(tls);
}

dl_status_t dli_tls_open(const dli_endpoint_t *endpoint, dli_tls_t **out, dl_error_t *err) {
    DLI_UNFORKED;
    *out = NULL;
    /* Background threads may still be talking while the program exits: OpenSSL must stay until the end. */
    if (OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL) != 1) {
        return fail_memory(err);
    }
    dli_tls_t *tls = calloc(1, sizeof *tls);
    if (tls == NULL) {
        return fail_memory(err);
    }
    tls->endpoint = endpoint;
    ERR_clear_error();
    dl_status_t status = build(tls, err);
    ERR_clear_error();
    if (status != DL_OK) {
        free_tls(tls);
        return status;
    }
    *out = tls;
    return DL_OK;
}

void dli_tls_close(dli_tls_t *tls) {
    if (tls != NULL) {
        DLI_UNFORKED;
        free_tls(tls);
    }
}

/* ---- bytes ------------------------------------------------------------------------------------------- */

dl_status_t dli_tls_feed(dli_tls_t *tls, const char *bytes, size_t len, dl_error_t *err) {
    return BIO_write(tls->in, bytes, (int)len) == (int)len ? DL_OK : fail_memory(err);
}

const char *dli_tls_pending(dli_tls_t *tls, size_t *len) {
    char *at = NULL;
    long n = BIO_get_mem_data(tls->out, &at);
    *len = n > 0 ? (size_t)n : 0;
    return at;
}

void dli_tls_sent(dli_tls_t *tls, size_t len) {
    char gone[4096];
    for (int n = 1; len > 0 && n > 0; len -= (size_t)n) {
        n = BIO_read(tls->out, gone, (int)(len < sizeof gone ? len : sizeof gone));
    }
}

dl_status_t dli_tls_shake(dli_tls_t *tls, bool *is_done, dl_error_t *err) {
    DLI_UNFORKED;
    ERR_clear_error();
    int rc = SSL_do_handshake(tls->ssl);
    *is_done = rc == 1;
    if (rc == 1 || SSL_get_error(tls->ssl, rc) == SSL_ERROR_WANT_READ) {
        return DL_OK;
    }
    return fail_ssl(tls, err);
}

dl_status_t dli_tls_write(dli_tls_t *tls, const char *bytes, size_t len, dl_error_t *err) {
    DLI_UNFORKED;
    ERR_clear_error();
    /* Memory takes all of it, and no second handshake is allowed that could come between. */
    return SSL_write(tls->ssl, bytes, (int)len) == (int)len ? DL_OK : fail_ssl(tls, err);
}

dl_status_t dli_tls_read(dli_tls_t *tls, char bytes[DLI_TLS_RECORD_MAX], size_t *got, bool *is_over,
                         dl_error_t *err) {
    DLI_UNFORKED;
    ERR_clear_error();
    int rc = SSL_read(tls->ssl, bytes, DLI_TLS_RECORD_MAX);
    int why = rc > 0 ? SSL_ERROR_NONE : SSL_get_error(tls->ssl, rc);
    *got = rc > 0 ? (size_t)rc : 0;
    *is_over = why == SSL_ERROR_ZERO_RETURN;
    if (why == SSL_ERROR_NONE || why == SSL_ERROR_WANT_READ || *is_over) {
        return DL_OK;
    }
    return fail_ssl(tls, err);
}
