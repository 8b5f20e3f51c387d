/* reply.h - decodes what the server answers, within bounds; pure functions. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLI_REDIS_REPLY_H
#define DLI_REDIS_REPLY_H

#include <hiredis/hiredis.h>
#include <stdbool.h>

#include "dlock/driver.h"

/* Bounds of one reply. Items are the elements of all its arrays together. */
#define DLI_REPLY_BYTES_MAX (16u * 1024 * 1024)
#define DLI_REPLY_ITEMS_MAX (1u << 17)
#define DLI_REPLY_DEPTH_MAX 8
/* An error, a status or a number; the longest of a real server have some hundred bytes. */
#define DLI_REPLY_LINE_MAX (64u * 1024)

/* hiredis' parser, RESP2 only, with the bounds above. It must stay where it was initialised: the parser
 * points back to it. */
typedef struct dli_decoder {
    redisReader *reader;
    const redisReplyObjectFunctions *plain; /* hiredis' own, which make the replies */
    redisReplyObjectFunctions functions;    /* ours, which refuse or call them */
    const char *refused;                    /* why; NULL: nothing was */
    size_t fed;                             /* bytes that belong to no whole reply yet */
    size_t peak;                            /* the most of them since the parser is there */
    size_t items;                           /* of the reply that is being read */
} dli_decoder_t;

/* false: out of memory. */
bool dli_decoder_init(dli_decoder_t *decoder);
/* Safe on a zeroed one. */
void dli_decoder_free(dli_decoder_t *decoder);
/* DL_OK, DL_ENOMEM, DL_EPROTO (more than DLI_REPLY_BYTES_MAX without a whole reply: take the replies that are
 * there before feeding on). After a failure the decoder can only be freed. */
dl_status_t dli_decoder_feed(dli_decoder_t *decoder, const char *bytes, size_t len, dl_error_t *err);
/* DL_OK with the next whole reply, or with NULL when more bytes are needed; DL_EPROTO, DL_ENOMEM.
 * A reply belongs to the caller: freeReplyObject. */
dl_status_t dli_decoder_next(dli_decoder_t *decoder, redisReply **reply, dl_error_t *err);
/* Is no byte there that belongs to a reply that was not taken? False after a failure. */
bool dli_decoder_is_empty(const dli_decoder_t *decoder);

/* Does an error reply begin with this code, such as "READONLY"? Looks through the wrapping that Redis 6.0
 * puts around errors of scripts; NOPERM also where the ACL stopped a script. */
bool dli_reply_is_error(const redisReply *reply, const char *code);
/* Has the ACL refused a command, or the server none of this name? rename-command can take it out. */
bool dli_reply_is_refused(const redisReply *reply);
/* A reply that is an error: the status that it means, with err in plain words and in the server's own; or of
 * an unexpected shape: DL_EPROTO. `what` was asked for, such as "INFO". NULL is a reply too. Never DL_OK. */
dl_status_t dli_reply_unexpected(const redisReply *reply, const char *what, dl_error_t *err);
/* The same where `what` carried a secret: the server may repeat it, so none of its text is in err. */
dl_status_t dli_reply_fail_unquoted(const redisReply *reply, const char *what, dl_error_t *err);
/* An integer reply: true and *number. */
bool dli_reply_int(const redisReply *reply, int64_t *number);
/* A decimal number as the server writes it (no plus, no leading zeros) that is the whole text: true and
 * *number. */
bool dli_text_int(const char *text, size_t len, int64_t *number);
/* The value of a line "key:value" of what INFO answered, which may be NULL. false: no such line. */
bool dli_info_text(const char *info, const char *key, char *text, size_t size);
/* The same as a number; `otherwise` when it is not there. */
int64_t dli_info_number(const char *info, const char *key, int64_t otherwise);

#endif
