/* reply.c - decodes what the server answers: hiredis parses, this sets the bounds. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A parser that has held more than this is exchanged for a small one when it is empty. */
#define KEEP_BYTES (64u * 1024)
/* "$", digits and the line end of a string's length. */
#define HEADER_BYTES 24

#if HIREDIS_MAJOR >= 1
typedef size_t items_t;
#else
typedef int items_t;
#endif

/* ---- what hiredis calls to make a list: NULL ends the parsing ----------------------------------------- */

static void *make_array(const redisReadTask *task, items_t items) {
    dli_decoder_t *decoder = task->privdata;
    /* hiredis reserves the room at once: a header of some bytes could ask for gigabytes. */
    if ((size_t)items > DLI_REPLY_ITEMS_MAX - decoder->items) {
        decoder->refused = "it has too many items";
        return NULL;
    }
    /* Replies are freed by recursion. hiredis 0.14 has a bound of its own, 1.x has none. */
    size_t depth = 1;
    for (const redisReadTask *parent = task->parent; parent != NULL; parent = parent->parent) {
        depth++;
    }
    if (depth > DLI_REPLY_DEPTH_MAX) {
        decoder->refused = "it is nested too deep";
        return NULL;
    }
    decoder->items += (size_t)items;
    return decoder->plain->createArray(task, items);
}

/* ---- the decoder ------------------------------------------------------------------------------------ */

static redisReader *make_reader(dli_decoder_t *decoder) {
    redisReader *reader = redisReaderCreate();
    if (reader == NULL) {
        return NULL;
    }
    decoder->plain = reader->fn;
    decoder->functions = *reader->fn;
    decoder->functions.createArray = make_array;
    reader->fn = &decoder->functions;
    reader->privdata = decoder;
    /* 0: never shrink. hiredis 0.14 aborts where there is no memory for that; renew_reader does it. */
    reader->maxbuf = 0;
    return reader;
}

bool dli_decoder_init(dli_decoder_t *decoder) {
    memset(decoder, 0, sizeof *decoder);
    decoder->reader = make_reader(decoder);
    return decoder->reader != NULL;
}

void dli_decoder_free(dli_decoder_t *decoder) {
    redisReaderFree(decoder->reader);
    memset(decoder, 0, sizeof *decoder);
}

/* Gives the memory of a large reply back. Without memory for another reader this one stays. */
static void renew_reader(dli_decoder_t *decoder) {
    redisReader *fresh = make_reader(decoder);
    if (fresh != NULL) {
        redisReaderFree(decoder->reader);
        decoder->reader = fresh;
        decoder->peak = 0;
    }
}

static dl_status_t fail(dli_decoder_t *decoder, dl_error_t *err) {
    redisReader *reader = decoder->reader;
    if (decoder->refused != NULL) {
        return dl_driver_fail(err, DL_EPROTO, 0, "the server's answer is refused: %s", decoder->refused);
    }
    if (reader->err == 0) {
        reader->err = REDIS_ERR_OOM; /* hiredis 1.x forgets to note it in one place */
    }
    if (reader->err == REDIS_ERR_OOM) {
        return dl_driver_fail(err, DL_ENOMEM, 0, "out of memory for the server's answer");
    }
    return dl_driver_fail(err, DL_EPROTO, 0, "the server's answer is not in the protocol of Redis: %s",
                          reader->errstr);
}

static bool is_broken(const dli_decoder_t *decoder) {
    return decoder->refused != NULL || decoder->reader->err != 0;
}

dl_status_t dli_decoder_feed(dli_decoder_t *decoder, const char *bytes, size_t len, dl_error_t *err) {
    if (!is_broken(decoder) && len > DLI_REPLY_BYTES_MAX - decoder->fed) {
        decoder->refused = "it is too long";
    }
    if (is_broken(decoder) || redisReaderFeed(decoder->reader, bytes, len) != REDIS_OK) {
        return fail(decoder, err);
    }
    decoder->fed += len;
    decoder->peak = decoder->fed > decoder->peak ? decoder->fed : decoder->peak;
    return DL_OK;
}

/* Is this a line without an end, which the parser would search anew after each feed? (The other thing that it
 * waits for is a string, and begins with the line of its length.) */
static bool has_endless_line(const redisReader *reader) {
    return reader->len - reader->pos > DLI_REPLY_LINE_MAX &&
           memmem(reader->buf + reader->pos, HEADER_BYTES, "\r\n", 2) == NULL;
}

/* RESP3 has more types, and we have not asked for it. */
static bool is_of_resp2(const redisReply *reply) {
    bool is = reply->type >= REDIS_REPLY_STRING && reply->type <= REDIS_REPLY_ERROR;
    for (size_t i = 0; i < reply->elements && is; i++) {
        is = is_of_resp2(reply->element[i]);
    }
    return is;
}

dl_status_t dli_decoder_next(dli_decoder_t *decoder, redisReply **reply, dl_error_t *err) {
    void *object = NULL;
    *reply = NULL;
    if (is_broken(decoder) || redisReaderGetReply(decoder->reader, &object) != REDIS_OK) {
        return fail(decoder, err);
    }
    if (object == NULL) {
        if (has_endless_line(decoder->reader)) {
            decoder->refused = "a line of it is too long";
            return fail(decoder, err);
        }
        return DL_OK;
    }
    if (!is_of_resp2(object)) {
        decoder->refused = "it has a type of RESP3";
        freeReplyObject(object);
        return fail(decoder, err);
    }
    decoder->fed = decoder->reader->len - decoder->reader->pos;
    decoder->items = 0;
    if (decoder->fed == 0 && decoder->peak > KEEP_BYTES) {
        renew_reader(decoder);
    }
    *reply = object;
    return DL_OK;
}

bool dli_decoder_is_empty(const dli_decoder_t *decoder) {
    return decoder->reader != NULL && !is_broken(decoder) && decoder->fed == 0;
}

/* ---- error replies ---------------------------------------------------------------------------------- */

typedef struct meaning {
    const char *code;
    const char *words; /* how the text after the code begins; "": anyhow */
    dl_status_t status;
    const char *text; /* what it means */
} meaning_t;

static const meaning_t meanings[] = {
    {"WRONGTYPE", "", DL_EFOREIGN, "the key holds something that is not a lock of this kind"},
    {"READONLY", "", DL_EIO, "the server is a read-only replica"},
    {"LOADING", "", DL_EIO, "the server is still loading its data"},
    {"BUSY", "", DL_EIO, "the server is held up by a script"},
    {"MASTERDOWN", "", DL_EIO, "the server is a replica that has lost its master"},
    {"CLUSTERDOWN", "", DL_EIO, "the cluster is down"},
    {"TRYAGAIN", "", DL_EIO, "the cluster is moving the keys"},
    {"NOREPLICAS", "", DL_EIO, "the server has too few replicas in step"},
    {"UNBLOCKED", "", DL_EIO, "the server became a replica"},
    {"OOM", "", DL_ELIMIT, "the server is out of memory"},
    {"MISCONF", "", DL_ELIMIT, "the server takes no writes because it cannot save to its disk"},
    {"ERR", "max number of clients", DL_ELIMIT, "the server has no room for another connection (maxclients)"},
    {"NOPERM", "", DL_EAUTH, "this user has no permission for it"},
    {"NOAUTH", "", DL_EAUTH, "the server asks for a password"},
    {"WRONGPASS", "", DL_EAUTH, "the server does not accept this user and password"},
    {"DENIED", "", DL_EAUTH, "the server lets in nobody from another host (protected mode)"},
    {"ERR", "invalid password", DL_EAUTH, "the server does not accept this password"},
    {"ERR", "AUTH ", DL_EAUTH, "the server asks for no password, but one is configured here"},
    {"ERR", "Client sent AUTH", DL_EAUTH, "the server asks for no password, but one is configured here"},
    {"MOVED", "", DL_ENOTSUP, "the server is a node of a cluster, and the key belongs to another node"},
    {"ASK", "", DL_ENOTSUP, "the server is a node of a cluster, and the key moves to another node"},
    {"CROSSSLOT", "", DL_ENOTSUP,
     "the server is a node of a cluster, and the keys belong to different nodes"},
    {"REDIRECT", "", DL_ENOTSUP, "the server sends its clients to another server"},
    {"NOPROTO", "", DL_ENOTSUP, "the server is too old or too new"},
    {"ERR", "unknown command", DL_ENOTSUP, "the server does not have this command"},
    {"ERR", "Unknown Redis command called", DL_ENOTSUP, "the server does not have a command of the script"},
    {"ERR", "Unknown command called", DL_ENOTSUP, "the server does not have a command of the script"},
    {"ERR", "Script killed", DL_EIO, "an administrator stopped the script"},
    {"ERR", "DB index is out of range", DL_ECONFIG, "the server has no database of this number"},
    {"NOSCRIPT", "", DL_EPROTO, "the server has forgotten a script"},
};

/* What scripts are told instead of NOPERM. */
static const char *const refusals[] = {
    "The user executing the script can't",
    "ACL failure in script",
};

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* The bytes of the code that the text begins with; 0: there is none. */
static size_t code_len(const char *text) {
    size_t len = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    return text[len] == ' ' || text[len] == '\0' ? len : 0;
}

/*
 * Redis 6.0 answers "ERR Error running script (call to f_HASH): @user_script:1: @user_script: 1: -OOM ...",
 * and "@user_script: 1: -OOM ..." where a script returns what pcall gave it. Returns what the script met,
 * "OOM ...", which has no code where the script itself complained.
 */
static const char *unwrap(const char *text) {
    const char *in = text;
    if (begins(text, "ERR Error running script (call to ") && strstr(text, "): ") != NULL) {
        in = strstr(text, "): ") + strlen("): ");
    }
    while (begins(in, "@user_script:")) {
        in += strlen("@user_script:");
        in += strspn(in, " 0123456789");
        in += begins(in, ": ") ? strlen(": ") : 0;
    }
    return in == text ? text : in + (in[0] == '-');
}

/* An error reply in its parts. */
typedef struct complaint {
    char code[16];
    const char *text;  /* the server's own, without wrapping */
    const char *words; /* of it, what follows the code */
} complaint_t;

static complaint_t read_complaint(const redisReply *reply) {
    complaint_t complaint = {"ERR", unwrap(reply->str), NULL};
    size_t len = code_len(complaint.text);
    complaint.words = complaint.text + len + (complaint.text[len] == ' ' && len > 0);
    if (len > 0) {
        snprintf(complaint.code, sizeof complaint.code, "%.*s", (int)len, complaint.text);
    }
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        if (strcmp(complaint.code, "ERR") == 0 && begins(complaint.words, refusals[i])) {
            strcpy(complaint.code, "NOPERM");
        }
    }
    return complaint;
}

static bool is_error(const redisReply *reply) {
    return reply != NULL && reply->type == REDIS_REPLY_ERROR && reply->str != NULL;
}

bool dli_reply_is_error(const redisReply *reply, const char *code) {
    return is_error(reply) && strcmp(read_complaint(reply).code, code) == 0;
}

bool dli_reply_is_refused(const redisReply *reply) {
    return dli_reply_is_error(reply, "NOPERM") || (is_error(reply) && begins(reply->str, "ERR unknown "));
}

/* The server's text as part of a message: no bytes that might be cut in half, and no arguments of commands,
 * which it repeats when it does not know a command: AUTH could be that command. */
static void quote(const char *text, char *quoted, size_t size) {
    const char *args = strstr(text, ", with args beginning with");
    snprintf(quoted, size, "%.*s", args != NULL ? (int)(args - text) : (int)strnlen(text, size), text);
    size_t len = strlen(quoted);
    for (; len > 0 && strchr(" \r\n", quoted[len - 1]) != NULL; len--) {
        quoted[len - 1] = '\0';
    }
    for (char *c = quoted; *c != '\0'; c++) {
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    }
}

/* NULL: it has none that is known. */
static const meaning_t *find_meaning(const complaint_t *complaint) {
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
        if (strcmp(complaint->code, meanings[i].code) == 0 && begins(complaint->words, meanings[i].words)) {
            return &meanings[i];
        }
    }
    return NULL;
}

static dl_status_t fail_quoted(const redisReply *reply, dl_error_t *err) {
    complaint_t complaint = read_complaint(reply);
    const meaning_t *meaning = find_meaning(&complaint);
    char quoted[200];
    quote(complaint.text, quoted, sizeof quoted);
    return meaning != NULL ? dl_driver_fail(err, meaning->status, 0, "%s: %s", meaning->text, quoted)
                           : dl_driver_fail(err, DL_EPROTO, 0, "the server answers an error: %s", quoted);
}

dl_status_t dli_reply_unexpected(const redisReply *reply, const char *what, dl_error_t *err) {
    static const char *const types[] = {
        [REDIS_REPLY_STRING] = "a string",  [REDIS_REPLY_ARRAY] = "a list",
        [REDIS_REPLY_INTEGER] = "a number", [REDIS_REPLY_NIL] = "nothing (nil)",
        [REDIS_REPLY_STATUS] = "a word",
    };
    if (is_error(reply)) {
        return fail_quoted(reply, err);
    }
    const char *type = reply == NULL ? "no answer" : NULL;
    if (type == NULL && reply->type > 0 && (size_t)reply->type < sizeof types / sizeof types[0]) {
        type = types[reply->type];
    }
    return dl_driver_fail(err, DL_EPROTO, 0, "the server's answer to %s makes no sense: %s", what,
                          type != NULL ? type : "an unknown type");
}

dl_status_t dli_reply_fail_unquoted(const redisReply *reply, const char *what, dl_error_t *err) {
    if (!is_error(reply)) {
        return dli_reply_unexpected(reply, what, err);
    }
    complaint_t complaint = read_complaint(reply);
    const meaning_t *meaning = find_meaning(&complaint);
    return meaning != NULL
               ? dl_driver_fail(err, meaning->status, 0, "%s: %s (%s)", what, meaning->text, meaning->code)
               : dl_driver_fail(err, DL_EPROTO, 0,
                                "the server answers %s with an error that is not shown, as it may repeat the "
                                "password",
                                what);
}

/* ---- numbers and texts ------------------------------------------------------------------------------ */

bool dli_reply_int(const redisReply *reply, int64_t *number) {
    if (reply == NULL || reply->type != REDIS_REPLY_INTEGER) {
        return false;
    }
    *number = reply->integer;
    return true;
}

bool dli_text_int(const char *text, size_t len, int64_t *number) {
    char copy[24], back[24];
    snprintf(copy, sizeof copy, "%.*s", len < sizeof copy ? (int)len : 0, text);
    long long value = strtoll(copy, NULL, 10);
    size_t digits = (size_t)snprintf(back, sizeof back, "%lld", value);
    if (digits != len || memcmp(back, text, len) != 0) {
        return false;
    }
    *number = value;
    return true;
}

bool dli_info_text(const char *info, const char *key, char *text, size_t size) {
    size_t len = strlen(key);
    while (info != NULL && !(begins(info, key) && info[len] == ':')) {
        info = strchr(info, '\n');
        info = info != NULL ? info + 1 : NULL;
    }
    if (info != NULL) {
        info += len + 1;
        snprintf(text, size, "%.*s", (int)strcspn(info, "\r\n"), info);
    }
    return info != NULL;
}

int64_t dli_info_number(const char *info, const char *key, int64_t otherwise) {
    char text[24];
    int64_t number;
    bool is_there = dli_info_text(info, key, text, sizeof text) && dli_text_int(text, strlen(text), &number);
    return is_there ? number : otherwise;
}
