/* check_settings.c - what the server's settings and its replicas do to locks. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

/* ---- asking ------------------------------------------------------------------------------------------ */

static const char *const settings[] = {"save",    "appendfsync",   "maxmemory",  "maxmemory-policy",
                                       "timeout", "tcp-keepalive", "maxclients", "min-replicas-to-write"};
#define SETTINGS (sizeof settings / sizeof settings[0])

void dli_check_ask_settings(dli_check_t *check) {
    check->settings_at = check->commands.count;
    for (size_t i = 0; i < SETTINGS; i++) {
        dli_commands_add_words(&check->commands, "CONFIG", "GET", settings[i], NULL);
    }
}

/* What CONFIG GET answered; NULL: it is refused, as hosted servers do. */
static const char *setting(const dli_check_t *check, const char *name) {
    const char *value = NULL;
    for (size_t i = 0; i < SETTINGS && value == NULL; i++) {
        const redisReply *r = check->replies[check->settings_at + i];
        bool is_it = r->type == REDIS_REPLY_ARRAY && r->elements == 2 && strcmp(settings[i], name) == 0;
        value = is_it ? r->element[1]->str : NULL;
    }
    return value;
}

static int64_t setting_number(const dli_check_t *check, const char *name, int64_t otherwise) {
    const char *text = setting(check, name);
    int64_t number;
    return text != NULL && dli_text_int(text, strlen(text), &number) ? number : otherwise;
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static void report_eviction(const dli_check_t *check) {
    char policy[32] = "";
    const char *set = setting(check, "maxmemory-policy");
    if (!dli_info_text(check->info, "maxmemory_policy", policy, sizeof policy) && set != NULL) {
        (void)snprintf(policy, sizeof policy, "%.31s", set);
    }
    int64_t max = dli_info_number(check->info, "maxmemory", setting_number(check, "maxmemory", -1));
    int64_t used = dli_info_number(check->info, "used_memory", -1);
    if (policy[0] == '\0' || max < 0) {
        dli_check_say(
            check, DL_FINDING_NOTE, "eviction",
            "the policy is not known: if it is another than noeviction, a full server drops held locks");
        return;
    }
    if (strcmp(policy, "noeviction") == 0) {
        bool tight = max > 0 && used >= max / 10 * 9;
        dli_check_say(
            check, tight ? DL_FINDING_WARNING : DL_FINDING_OK, "eviction",
            "noeviction: no lock is dropped for want of memory%s",
            max == 0 ? ""
            : tight  ? "; but more than 90 % of maxmemory is used, and when it is full no new lock can be "
                       "taken (held ones are renewed and freed)"
                     : "; when maxmemory is reached, new locks are refused, held ones are renewed and freed");
        return;
    }
    bool any_key = strncmp(policy, "allkeys", 7) == 0;
    dli_check_say(check, max > 0 ? DL_FINDING_WARNING : DL_FINDING_NOTE, "eviction", "%s: %s%s%s", policy,
                  max > 0 ? "when maxmemory is reached, held locks are dropped and a second holder gets in"
                          : "without effect while maxmemory is 0; with a limit, held locks would be dropped "
                            "when it is reached",
                  any_key ? " (the token counter too)"
                          : " (keys that expire are the first to go, and locks expire)",
                  "; set noeviction, or keep locks on a server without a cache");
}

/* ---- what a crash takes ------------------------------------------------------------------------------ */

static void report_persistence_trouble(const dli_check_t *check) {
    char status[16] = "ok";
    (void)dli_info_text(check->info, "aof_last_write_status", status, sizeof status);
    if (strcmp(status, "ok") != 0) {
        dli_check_say(check, DL_FINDING_ERROR, "persistence",
                      "the last write to the append-only file failed: the server refuses writes, so no lock "
                      "can be taken or freed");
    }
    (void)snprintf(status, sizeof status, "ok");
    (void)dli_info_text(check->info, "rdb_last_bgsave_status", status, sizeof status);
    if (strcmp(status, "ok") != 0) {
        dli_check_say(check, DL_FINDING_WARNING, "persistence",
                      "the last snapshot failed: with stop-writes-on-bgsave-error the server refuses writes, "
                      "so no lock can be taken or freed");
    }
}

/* What every loss of data has in common. */
#define SECOND_HOLDER                                                                                     \
    "a second holder can then get in while the first one's lease still runs; tokens go on rising, since " \
    "they start from the server's clock"

static void report_append_only(const dli_check_t *check) {
    const char *fsync = setting(check, "appendfsync");
    if (fsync == NULL) {
        dli_check_say(check, DL_FINDING_NOTE, "persistence",
                      "an append-only file; how often it is synced (appendfsync) is not known. Unless "
                      "always, a power failure of the server loses the last locks: " SECOND_HOLDER);
    } else if (strcmp(fsync, "always") == 0) {
        dli_check_say(check, DL_FINDING_OK, "persistence",
                      "an append-only file with appendfsync always: a crash of the server loses no lock that "
                      "was granted");
    } else {
        dli_check_say(
            check, strcmp(fsync, "everysec") == 0 ? DL_FINDING_NOTE : DL_FINDING_WARNING, "persistence",
            "an append-only file with appendfsync %s: a power failure of the server loses the locks of the "
            "last %s: " SECOND_HOLDER ". appendfsync always prevents it, at a sync for each lock",
            fsync, strcmp(fsync, "everysec") == 0 ? "second or two" : "half minute or so");
    }
}

/* A node that forgets has no vote for a while, unless the configuration says that it forgets nothing. */
static void report_persistence_of_node(const dli_check_t *check) {
    int64_t append_only = dli_info_number(check->info, "aof_enabled", -1);
    const char *fsync = setting(check, "appendfsync");
    bool is_known = append_only == 0 || (append_only > 0 && fsync != NULL);
    bool always = append_only > 0 && fsync != NULL && strcmp(fsync, "always") == 0;
    if (always) {
        dli_check_say(check, DL_FINDING_OK, "persistence",
                      "an append-only file with appendfsync always: a restart forgets no lock%s",
                      check->redis->voting->durable ? ", as durable says"
                                                    : "; with durable: true it would vote again at once");
    } else if (check->redis->voting->durable) {
        dli_check_say(check, is_known ? DL_FINDING_ERROR : DL_FINDING_WARNING, "persistence",
                      "durable: true says that this node forgets nothing in a restart, but %s; it needs "
                      "appendonly yes and appendfsync always, or else it votes for a second holder",
                      !is_known          ? "how it keeps its data is not known"
                      : append_only == 0 ? "it has no append-only file"
                                         : "its append-only file is not synced with each write");
    } else if (check->redis->voting->quarantines) {
        dli_check_say(check, DL_FINDING_OK, "persistence",
                      "none is needed: after a restart the node has no vote for %" PRId64
                      " ms (max_lease), so what it forgot has ended by then",
                      check->redis->voting->max_lease_ms);
    } else {
        dli_check_say(check, DL_FINDING_WARNING, "persistence",
                      "a restart may forget locks, and with quarantine: false the node then votes for a "
                      "second holder at once");
    }
}

static void report_persistence(const dli_check_t *check) {
    int64_t append_only = dli_info_number(check->info, "aof_enabled", -1);
    const char *save = setting(check, "save");
    report_persistence_trouble(check);
    if (check->redis->voting != NULL) {
        report_persistence_of_node(check);
    } else if (append_only < 0) {
        dli_check_say(
            check, DL_FINDING_NOTE, "persistence",
            "not known: if the server restarts without its data, every lock is free at once: " SECOND_HOLDER);
    } else if (append_only > 0) {
        report_append_only(check);
    } else if (save != NULL && save[0] == '\0') {
        dli_check_say(check, DL_FINDING_WARNING, "persistence",
                      "none (no append-only file, no snapshots): a restart of the server frees every lock at "
                      "once: " SECOND_HOLDER);
    } else {
        dli_check_say(
            check, DL_FINDING_WARNING, "persistence",
            "%s: a crash of the server loses every lock taken since the last snapshot: " SECOND_HOLDER
            ". A lock that was freed since can come back until its lease ends",
            save != NULL ? "snapshots only" : "no append-only file, snapshots at best");
    }
}

/* ---- replicas ---------------------------------------------------------------------------------------- */

/* A value inside "ip=...,port=...,lag=...". */
static int64_t part_number(const char *text, const char *name) {
    const char *at = strstr(text, name);
    int64_t number;
    size_t len;
    if (at == NULL) {
        return -1;
    }
    at += strlen(name);
    len = strcspn(at, ",");
    return dli_text_int(at, len, &number) ? number : -1;
}

static void report_each_replica(const dli_check_t *check, int64_t count) {
    int64_t written = dli_info_number(check->info, "master_repl_offset", 0);
    for (int64_t i = 0; i < count && i < 16; i++) {
        char field[32], text[256];
        (void)snprintf(field, sizeof field, "slave%" PRId64, i);
        if (!dli_info_text(check->info, field, text, sizeof text)) {
            continue;
        }
        int64_t lag = part_number(text, "lag="), offset = part_number(text, "offset=");
        bool online = strstr(text, "state=online") != NULL;
        bool late = !online || lag > 2;
        dli_check_say(check, late ? DL_FINDING_WARNING : DL_FINDING_OK, "replica",
                      "number %" PRId64 " is %s, answered %" PRId64 "s ago and is %" PRId64 " bytes behind%s",
                      i, online ? "online" : "not in step", lag,
                      offset >= 0 && written > offset ? written - offset : 0,
                      late ? ": made the new server now, it would miss locks that are held" : "");
    }
}

static void report_wanted_replicas(const dli_check_t *check, int64_t count) {
    const dli_redis_t *redis = check->redis;
    bool refuses = !redis->warns_of_shortfall;
    if (count >= redis->min_replicas) {
        dli_check_say(check, DL_FINDING_OK, "replication",
                      "%" PRId64 " replicas; a lock counts only after %" PRId64
                      " of them have it (min_replicas). A failover to one that had it not can still lose it: "
                      "WAIT narrows this, it does not close it",
                      count, redis->min_replicas);
    } else {
        dli_check_say(check, refuses ? DL_FINDING_ERROR : DL_FINDING_WARNING, "replication",
                      "%" PRId64 " replicas are connected and min_replicas is %" PRId64 ": %s", count,
                      redis->min_replicas,
                      refuses ? "no lock can be taken"
                              : "locks are granted all the same, and a failover loses them");
    }
}

static void report_replicas_of_node(const dli_check_t *check, int64_t count) {
    bool is_quarantined = check->redis->voting->quarantines && !check->redis->voting->durable;
    dli_check_say(check,
                  count == 0       ? DL_FINDING_OK
                  : is_quarantined ? DL_FINDING_NOTE
                                   : DL_FINDING_WARNING,
                  "replication", "%" PRId64 " replicas%s", count,
                  count == 0 ? ": one server, one vote, as it should be"
                  : is_quarantined
                      ? ": one that takes this node's place has no vote for max_lease; nodes need none"
                      : ": one that takes this node's place may lack locks that were granted, and votes for "
                        "a second holder at once; nodes need none");
}

static void report_replication(const dli_check_t *check) {
    char role[16] = "";
    int64_t count = dli_info_number(check->info, "connected_slaves", -1);
    (void)dli_info_text(check->info, "role", role, sizeof role);
    if (strcmp(role, "slave") == 0) {
        dli_check_say(check, DL_FINDING_ERROR, "replication",
                      "this server has become a replica: no lock can be taken or freed here");
        return;
    }
    if (count < 0) {
        dli_check_say(
            check, DL_FINDING_NOTE, "replication",
            "not known: where there are replicas, a failover may lose a lock that was just granted");
    } else if (check->redis->voting != NULL) {
        report_replicas_of_node(check, count);
    } else if (check->redis->min_replicas > 0) {
        report_wanted_replicas(check, count);
    } else if (count > 0) {
        dli_check_say(check, DL_FINDING_WARNING, "replication",
                      "%" PRId64 " replicas, asynchronous: a failover may lose a lock that was just granted, "
                      "and a second holder gets in. min_replicas: 1 makes each grant wait for a "
                      "replica, which narrows the gap but does not close it",
                      count);
    } else {
        dli_check_say(
            check, DL_FINDING_OK, "replication",
            "no replica, so no failover that could lose a lock; while the server is down nobody can lock");
    }
    if (check->redis->voting == NULL) {
        report_each_replica(check, count);
    }
    int64_t needed = setting_number(check, "min-replicas-to-write", 0);
    if (needed > count && count >= 0) {
        dli_check_say(check, DL_FINDING_ERROR, "min-replicas-to-write",
                      "the server wants %" PRId64 " replicas and has %" PRId64
                      ": it refuses writes, so no lock can be taken or freed",
                      needed, count);
    }
}

/* ---- connections ------------------------------------------------------------------------------------- */

static void report_connections(const dli_check_t *check) {
    int64_t limit = dli_info_number(check->info, "maxclients", setting_number(check, "maxclients", -1));
    int64_t used = dli_info_number(check->info, "connected_clients", -1);
    int64_t wanted = (int64_t)check->redis->mux.count + 1; /* which hears of releases */
    if (limit > 0 && used >= 0) {
        bool tight = used >= limit / 10 * 9, may_be_tight = limit - used < wanted;
        dli_check_say(
            check, tight || may_be_tight ? DL_FINDING_WARNING : DL_FINDING_OK, "connections",
            "%" PRId64 " of %" PRId64 " (maxclients) are in use, and this client opens up to %" PRId64 "%s",
            used, limit, wanted,
            tight || may_be_tight ? ": when none is left, clients that have to connect cannot lock or renew"
                                  : "");
    }
    int64_t idle_s = setting_number(check, "timeout", -1);
    if (idle_s > 0) {
        dli_check_say(check, DL_FINDING_NOTE, "timeout",
                      "the server closes connections that are idle for %" PRId64
                      " s: no lock is lost by it, but the next call connects anew; an idle_timeout below it "
                      "avoids that",
                      idle_s);
    }
    int64_t keepalive_s = setting_number(check, "tcp-keepalive", -1);
    if (keepalive_s >= 0 && check->redis->endpoint.host != NULL) {
        dli_check_say(check, keepalive_s == 0 ? DL_FINDING_NOTE : DL_FINDING_OK, "tcp-keepalive",
                      keepalive_s == 0 ? "off at the server: connections of hosts that vanished stay counted "
                                         "against maxclients; no lock depends on it"
                                       : "the server notices vanished hosts; no lock depends on it");
    }
}

void dli_check_settings(const dli_check_t *check) {
    if (setting(check, "save") == NULL) {
        dli_check_say(check, DL_FINDING_NOTE, "settings",
                      "CONFIG GET is refused, so a part of them is not known here; locks do not need it");
    }
    report_eviction(check);
    report_persistence(check);
    report_replication(check);
    report_connections(check);
}
