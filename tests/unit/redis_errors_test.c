/* redis_errors_test.c - what the exact error replies of Redis 6.0, 7.0, 8.0 and Valkey 8.1 mean. */
/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_codec.h"

TestSuite(redis_errors, .timeout = 30);

/* What Redis 6.0 and the others put around the errors of scripts. */
#define OLD "ERR Error running script (call to f_73dd5a4145aa78453dd32ab89d7ffe9422ed150d): @user_script:1: "
#define NEW " script: 73dd5a4145aa78453dd32ab89d7ffe9422ed150d, on @user_script:1."

static const struct {
    const char *text, *code;
    dl_status_t status;
    const char *begins; /* the message */
} cases[] = {
    {"WRONGTYPE Operation against a key holding the wrong kind of value", "WRONGTYPE", DL_EFOREIGN,
     "the key holds something that is not a lock of this kind: WRONGTYPE Operation against a key holding the "
     "wrong kind of value"},
    {OLD "WRONGTYPE Operation against a key holding the wrong kind of value", "WRONGTYPE", DL_EFOREIGN,
     "the key holds something that is not a lock of this kind: WRONGTYPE Operation against a key"},
    {"WRONGTYPE Operation against a key holding the wrong kind of value" NEW, "WRONGTYPE", DL_EFOREIGN,
     "the key holds something that is not a lock of this kind: WRONGTYPE Operation against a key"},

    {"READONLY You can't write against a read only replica.", "READONLY", DL_EIO,
     "the server is a read-only replica: READONLY You can't write against a read only replica."},
    {OLD "@user_script: 1: -READONLY You can't write against a read only replica.", "READONLY", DL_EIO,
     "the server is a read-only replica: READONLY You can't write against a read only replica."},
    {"@user_script: 1: -READONLY You can't write against a read only replica.  ", "READONLY", DL_EIO,
     "the server is a read-only replica: READONLY You can't write against a read only replica."},
    {"READONLY You can't write against a read only replica." NEW, "READONLY", DL_EIO,
     "the server is a read-only replica: READONLY You can't write against a read only replica. script: "},
    {"LOADING Redis is loading the dataset in memory", "LOADING", DL_EIO,
     "the server is still loading its data: LOADING Redis is loading the dataset in memory"},
    {"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", "BUSY", DL_EIO,
     "the server is held up by a script: BUSY Redis is busy running a script."},
    {"BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", "BUSY",
     DL_EIO, "the server is held up by a script: BUSY Valkey is busy running a script."},
    {"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "MASTERDOWN", DL_EIO,
     "the server is a replica that has lost its master: MASTERDOWN Link"},
    {"CLUSTERDOWN Hash slot not served", "CLUSTERDOWN", DL_EIO, "the cluster is down: CLUSTERDOWN Hash slot"},
    {"CLUSTERDOWN The cluster is down", "CLUSTERDOWN", DL_EIO,
     "the cluster is down: CLUSTERDOWN The cluster"},
    {"TRYAGAIN Multiple keys request during rehashing of slot", "TRYAGAIN", DL_EIO,
     "the cluster is moving the keys: TRYAGAIN Multiple keys"},
    {"NOREPLICAS Not enough good replicas to write.", "NOREPLICAS", DL_EIO,
     "the server has too few replicas in step: NOREPLICAS Not enough good replicas to write."},
    {"NOREPLICAS Not enough good replicas to write." NEW, "NOREPLICAS", DL_EIO,
     "the server has too few replicas in step: NOREPLICAS Not enough good replicas to write. script:"},
    {"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
     "UNBLOCKED", DL_EIO, "the server became a replica: UNBLOCKED force unblock"},
    {"ERR Script killed by user with SCRIPT KILL..." NEW, "ERR", DL_EIO,
     "an administrator stopped the script: ERR Script killed by user with SCRIPT KILL... script:"},
    {OLD "Script killed by user with SCRIPT KILL...", "ERR", DL_EIO,
     "an administrator stopped the script: Script killed by user with SCRIPT KILL..."},

    {"OOM command not allowed when used memory > 'maxmemory'.", "OOM", DL_ELIMIT,
     "the server is out of memory: OOM command not allowed when used memory > 'maxmemory'."},
    {OLD "@user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.", "OOM", DL_ELIMIT,
     "the server is out of memory: OOM command not allowed when used memory > 'maxmemory'."},
    {"@user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.  ", "OOM", DL_ELIMIT,
     "the server is out of memory: OOM command not allowed when used memory > 'maxmemory'."},
    {"OOM command not allowed when used memory > 'maxmemory'." NEW, "OOM", DL_ELIMIT,
     "the server is out of memory: OOM command not allowed when used memory > 'maxmemory'. script: 73dd"},
    {"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
     "MISCONF", DL_ELIMIT,
     "the server takes no writes because it cannot save to its disk: MISCONF Redis is configured"},
    {"MISCONF Errors writing to the AOF file: No space left on device", "MISCONF", DL_ELIMIT,
     "the server takes no writes because it cannot save to its disk: MISCONF Errors writing"},
    {"ERR max number of clients reached", "ERR", DL_ELIMIT,
     "the server has no room for another connection (maxclients): ERR max number of clients reached"},
    {"ERR max number of clients + cluster connections reached", "ERR", DL_ELIMIT,
     "the server has no room for another connection (maxclients): ERR max number of clients + "},

    {"NOPERM this user has no permissions to access one of the keys used as arguments", "NOPERM", DL_EAUTH,
     "this user has no permission for it: NOPERM this user has no permissions to access one of the keys"},
    {"NOPERM this user has no permissions to run the 'publish' command or its subcommand", "NOPERM", DL_EAUTH,
     "this user has no permission for it: NOPERM this user has no permissions to run the 'publish'"},
    {"NOPERM User al has no permissions to run the 'publish' command", "NOPERM", DL_EAUTH,
     "this user has no permission for it: NOPERM User al has no permissions to run the 'publish' command"},
    {OLD "@user_script: 1: The user executing the script can't run this command or subcommand", "NOPERM",
     DL_EAUTH,
     "this user has no permission for it: The user executing the script can't run this command or "
     "subcommand"},
    {"@user_script: 1: The user executing the script can't run this command or subcommand", "NOPERM",
     DL_EAUTH,
     "this user has no permission for it: The user executing the script can't run this command or "
     "subcommand"},
    {OLD
     "@user_script: 1: The user executing the script can't access at least one of the keys mentioned in the "
     "command arguments",
     "NOPERM", DL_EAUTH, "this user has no permission for it: The user executing the script can't access at"},
    {"ERR The user executing the script can't run this command or subcommand" NEW, "NOPERM", DL_EAUTH,
     "this user has no permission for it: ERR The user executing the script can't run this command"},
    {"ERR The user executing the script can't access at least one of the keys mentioned in the command "
     "arguments" NEW,
     "NOPERM", DL_EAUTH,
     "this user has no permission for it: ERR The user executing the script can't access"},
    {"ERR ACL failure in script: User al has no permissions to run the 'publish' command" NEW, "NOPERM",
     DL_EAUTH,
     "this user has no permission for it: ERR ACL failure in script: User al has no permissions to run"},
    {"ERR ACL failure in script: No permissions to access a key" NEW, "NOPERM", DL_EAUTH,
     "this user has no permission for it: ERR ACL failure in script: No permissions to access a key script:"},
    {"NOAUTH Authentication required.", "NOAUTH", DL_EAUTH,
     "the server asks for a password: NOAUTH Authentication required."},
    {"NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> "
     "<pass> "
     "option can be used to authenticate the client and select the RESP protocol version at the same time",
     "NOAUTH", DL_EAUTH, "the server asks for a password: NOAUTH HELLO must be called"},
    {"WRONGPASS invalid username-password pair", "WRONGPASS", DL_EAUTH,
     "the server does not accept this user and password: WRONGPASS invalid username-password pair"},
    {"WRONGPASS invalid username-password pair or user is disabled.", "WRONGPASS", DL_EAUTH,
     "the server does not accept this user and password: WRONGPASS invalid username-password pair or user"},
    {"ERR invalid password", "ERR", DL_EAUTH,
     "the server does not accept this password: ERR invalid password"},
    {"ERR AUTH <password> called without any password configured for the default user. Are you sure your "
     "configuration is correct?",
     "ERR", DL_EAUTH,
     "the server asks for no password, but one is configured here: ERR AUTH <password> called"},
    {"ERR Client sent AUTH, but no password is set", "ERR", DL_EAUTH,
     "the server asks for no password, but one is configured here: ERR Client sent AUTH"},
    {"DENIED Redis is running in protected mode because protected mode is enabled", "DENIED", DL_EAUTH,
     "the server lets in nobody from another host (protected mode): DENIED Redis is running"},

    {"MOVED 3999 127.0.0.1:6381", "MOVED", DL_ENOTSUP,
     "the server is a node of a cluster, and the key belongs to another node: MOVED 3999 127.0.0.1:6381"},
    {"ASK 3999 127.0.0.1:6381", "ASK", DL_ENOTSUP, "the server is a node of a cluster, and the key moves to"},
    {"CROSSSLOT Keys in request don't hash to the same slot", "CROSSSLOT", DL_ENOTSUP,
     "the server is a node of a cluster, and the keys belong to different nodes: CROSSSLOT Keys in request"},
    {"REDIRECT 127.0.0.1:6381", "REDIRECT", DL_ENOTSUP,
     "the server sends its clients to another server: REDIRECT"},
    {"NOPROTO unsupported protocol version", "NOPROTO", DL_ENOTSUP,
     "the server is too old or too new: NOPROTO unsupported protocol version"},
    {"ERR unknown command `foo`, with args beginning with: `bar`, `baz`, ", "ERR", DL_ENOTSUP,
     "the server does not have this command: ERR unknown command `foo`"},
    {"ERR unknown command 'foo', with args beginning with: 'bar' 'baz' ", "ERR", DL_ENOTSUP,
     "the server does not have this command: ERR unknown command 'foo'"},
    {OLD "@user_script: 1: Unknown Redis command called from Lua script", "ERR", DL_ENOTSUP,
     "the server does not have a command of the script: Unknown Redis command called from Lua script"},
    {"ERR Unknown Redis command called from script" NEW, "ERR", DL_ENOTSUP,
     "the server does not have a command of the script: ERR Unknown Redis command called from script "
     "script:"},
    {"ERR Unknown command called from script" NEW, "ERR", DL_ENOTSUP,
     "the server does not have a command of the script: ERR Unknown command called from script script:"},
    {"ERR DB index is out of range", "ERR", DL_ECONFIG,
     "the server has no database of this number: ERR DB index is out of range"},

    {"NOSCRIPT No matching script. Please use EVAL.", "NOSCRIPT", DL_EPROTO,
     "the server has forgotten a script: NOSCRIPT No matching script. Please use EVAL."},
    {"NOSCRIPT No matching script.", "NOSCRIPT", DL_EPROTO,
     "the server has forgotten a script: NOSCRIPT No matching script."},
    {"ERR value is not an integer or out of range", "ERR", DL_EPROTO,
     "the server answers an error: ERR value is not an integer or out of range"},
    {OLD "user_script:1: attempt to concatenate a nil value", "ERR", DL_EPROTO,
     "the server answers an error: user_script:1: attempt to concatenate a nil value"},
    {"ERR user_script:1: attempt to concatenate a nil value" NEW, "ERR", DL_EPROTO,
     "the server answers an error: ERR user_script:1: attempt to concatenate a nil value script:"},
    {"ERR Error running script (call to f_03c387736bb5cc009ff35151572cee04677aa374): @enable_strict_lua:15: "
     "user_script:1: Script attempted to access nonexistent global variable 'x'",
     "ERR", DL_EPROTO, "the server answers an error: @enable_strict_lua:15: user_script:1: Script attempted"},
    {"ERR Error running script (call to ", "ERR", DL_EPROTO,
     "the server answers an error: ERR Error running"},
    {"@user_script:", "ERR", DL_EPROTO, "the server answers an error: "},
    {"ERR", "ERR", DL_EPROTO, "the server answers an error: ERR"},
    {"", "ERR", DL_EPROTO, "the server answers an error: "},
    {"MY thing", "MY", DL_EPROTO, "the server answers an error: MY thing"},
    {"something in lower case", "ERR", DL_EPROTO, "the server answers an error: something in lower case"},
    {"READONLYISH x", "READONLYISH", DL_EPROTO, "the server answers an error: READONLYISH x"},
    {"READ-ONLY x", "ERR", DL_EPROTO, "the server answers an error: READ-ONLY x"},
    {"ERR the AUTH x", "ERR", DL_EPROTO, "the server answers an error: ERR the AUTH x"},
};

Test(redis_errors, each_text_has_its_code_its_status_and_a_plain_meaning) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char wire[600];
        snprintf(wire, sizeof wire, "-%s\r\n", cases[i].text);
        redisReply *reply = decode(wire);
        cr_assert_eq(reply->type, REDIS_REPLY_ERROR);
        cr_expect(dli_reply_is_error(reply, cases[i].code), "%s", cases[i].text);
        cr_expect(!dli_reply_is_error(reply, "OTHER"));
        memset(&err, 0x55, sizeof err);
        cr_expect_eq(dli_reply_unexpected(reply, "a command", &err), cases[i].status, "%s", cases[i].text);
        cr_expect_eq(err.status, cases[i].status);
        cr_expect_eq(err.native, 0);
        cr_expect_eq(strncmp(err.message, cases[i].begins, strlen(cases[i].begins)), 0, "%s", err.message);
        cr_expect_eq(dli_reply_unexpected(reply, "GET", &err), cases[i].status);
        freeReplyObject(reply);
    }
}

Test(redis_errors, a_password_that_the_server_repeats_is_not_shown) {
    static const char *const texts[] = {
        "-ERR unknown command `AUTH`, with args beginning with: `hunter2`, \r\n",
        "-ERR unknown command 'HELLO', with args beginning with: '2' 'AUTH' 'app' 'hunter2' \r\n",
        "-ERR Error running script (call to f_1): @user_script:1: ERR unknown command 'AUTH', with args "
        "beginning "
        "with: 'hunter2' \r\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        redisReply *reply = decode(texts[i]);
        cr_assert_eq(dli_reply_unexpected(reply, "a command", &err), DL_ENOTSUP);
        cr_assert_null(strstr(err.message, "hunter2"), "%s", err.message);
        freeReplyObject(reply);
    }
}

Test(redis_errors, a_message_is_one_line_of_ascii_however_long_the_text_is) {
    char wire[2000] = "-OOM \x01\x7f\xc3\xa4";
    memset(wire + 9, '\xc3', 1900);
    strcpy(wire + 1909, "\r\n");
    redisReply *reply = decode(wire);
    cr_assert_eq(dli_reply_unexpected(reply, "a command", &err), DL_ELIMIT);
    cr_assert_lt(strlen(err.message), sizeof err.message);
    cr_assert_gt(strlen(err.message), 200);
    for (const char *c = err.message; *c != '\0'; c++) {
        cr_assert_geq(*c, 0x20, "%s", err.message);
        cr_assert_lt(*c, 0x7f, "%s", err.message);
    }
    freeReplyObject(reply);
}

Test(redis_errors, only_errors_have_a_code) {
    static const char *const others[] = {"+READONLY\r\n", "$8\r\nREADONLY\r\n", ":1\r\n", "*0\r\n",
                                         "$-1\r\n"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        redisReply *reply = decode(others[i]);
        cr_assert(!dli_reply_is_error(reply, "READONLY"));
        cr_assert(!dli_reply_is_error(reply, ""));
        freeReplyObject(reply);
    }
    cr_assert(!dli_reply_is_error(NULL, "ERR"));
    /* A long word is no code of ours, whatever it begins with. */
    redisReply *reply = decode("-WRONGTYPEWRONGTYPEWRONGTYPE x\r\n");
    cr_assert_eq(dli_reply_unexpected(reply, "a command", &err), DL_EPROTO);
    freeReplyObject(reply);
}

Test(redis_errors, an_answer_of_another_shape_is_named) {
    static const struct {
        const char *wire, *message;
    } shapes[] = {
        {"+OK\r\n", "the server's answer to INFO makes no sense: a word"},
        {"$2\r\nab\r\n", "the server's answer to INFO makes no sense: a string"},
        {":1\r\n", "the server's answer to INFO makes no sense: a number"},
        {"*0\r\n", "the server's answer to INFO makes no sense: a list"},
        {"$-1\r\n", "the server's answer to INFO makes no sense: nothing (nil)"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        redisReply *reply = decode(shapes[i].wire);
        cr_assert_eq(dli_reply_unexpected(reply, "INFO", &err), DL_EPROTO);
        cr_assert_str_eq(err.message, shapes[i].message);
        cr_assert_eq(dli_reply_unexpected(reply, "a command", &err), DL_EPROTO, "never DL_OK");
        freeReplyObject(reply);
    }
    cr_assert_eq(dli_reply_unexpected(NULL, "INFO", &err), DL_EPROTO);
    cr_assert_str_eq(err.message, "the server's answer to INFO makes no sense: no answer");
    cr_assert_eq(dli_reply_unexpected(NULL, "a command", &err), DL_EPROTO);
    redisReply strange = {.type = 99};
    cr_assert_eq(dli_reply_unexpected(&strange, "INFO", &err), DL_EPROTO);
    cr_assert_str_eq(err.message, "the server's answer to INFO makes no sense: an unknown type");
}

Test(redis_errors, only_an_integer_is_a_number) {
    int64_t number = 77;
    redisReply *reply = decode("$1\r\n5\r\n");
    cr_assert(!dli_reply_int(reply, &number));
    freeReplyObject(reply);
    cr_assert(!dli_reply_int(NULL, &number));
    cr_assert_eq(number, 77);
    reply = decode(":-9223372036854775808\r\n");
    cr_assert(dli_reply_int(reply, &number));
    cr_assert_eq(number, INT64_MIN);
    freeReplyObject(reply);
}
