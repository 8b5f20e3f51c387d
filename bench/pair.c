/* pair.c - an uncontended lock and unlock against the same statements called bare. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"

#define ROUNDS 9
#define PAIRS 2000

/* The floor: what one must do on SQLite at least, with the settings of the driver. */
typedef struct bare {
    sqlite3 *db;
    sqlite3_stmt *acquire, *release;
} bare_t;

static void check(const bare_t *bare, int rc, int wanted) {
    if (rc != wanted) {
        die(sqlite3_errmsg(bare->db), NULL);
    }
}

static void open_bare(bare_t *bare, const char *folder) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/bare.db", folder);
    check(bare, sqlite3_open(path, &bare->db), SQLITE_OK);
    check(bare,
          sqlite3_exec(bare->db,
                       "PRAGMA page_size=1024; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                       "CREATE TABLE lk(name BLOB PRIMARY KEY, owner TEXT, hold_id INTEGER, exp INTEGER,"
                       " tok INTEGER) WITHOUT ROWID;",
                       NULL, NULL, NULL),
          SQLITE_OK);
    const char *acquire = "INSERT INTO lk VALUES(?1,?2,?3,?4,?3) ON CONFLICT(name) DO UPDATE SET"
                          " owner=excluded.owner, hold_id=excluded.hold_id, exp=excluded.exp, tok=tok+1"
                          " WHERE exp<=?5 OR (owner=excluded.owner AND hold_id<=excluded.hold_id)";
    const char *release = "DELETE FROM lk WHERE name=?1 AND owner=?2 AND hold_id=?3";
    check(bare, sqlite3_prepare_v2(bare->db, acquire, -1, &bare->acquire, NULL), SQLITE_OK);
    check(bare, sqlite3_prepare_v2(bare->db, release, -1, &bare->release, NULL), SQLITE_OK);
}

static void step(const bare_t *bare, sqlite3_stmt *statement, int64_t hold_id) {
    sqlite3_bind_blob(statement, 1, "orders", 6, SQLITE_STATIC);
    sqlite3_bind_text(statement, 2, "00000000-0000-0000-0000-000000000000:1", -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 3, hold_id);
    if (statement == bare->acquire) {
        int64_t now = (int64_t)now_ns();
        sqlite3_bind_int64(statement, 4, now + 30000000000);
        sqlite3_bind_int64(statement, 5, now);
    }
    check(bare, sqlite3_step(statement), SQLITE_DONE);
    check(bare, sqlite3_changes(bare->db), 1);
    sqlite3_reset(statement);
}

static void measure_bare(const bare_t *bare, samples_t *samples, int pairs) {
    static int64_t hold_id;
    for (int i = 0; i < pairs; i++) {
        uint64_t begin = now_ns();
        hold_id++;
        step(bare, bare->acquire, hold_id);
        step(bare, bare->release, hold_id);
        samples_add(samples, now_ns() - begin);
    }
}

static void measure_dlock(dl_lock_t *lock, samples_t *samples, int pairs) {
    dl_error_t err;
    for (int i = 0; i < pairs; i++) {
        uint64_t begin = now_ns();
        if (dl_lock(lock, &err) != DL_OK || dl_unlock(lock, &err) != DL_OK) {
            die("pair", &err);
        }
        samples_add(samples, now_ns() - begin);
    }
}

void bench_pair(const char *folder, unsigned scale) {
    bare_t bare;
    open_bare(&bare, folder);
    dl_client_t *client = open_client(folder, "");
    dl_lock_t *lock;
    dl_error_t err;
    if (dl_lock_open(client, "orders", &lock, &err) != DL_OK) {
        die("open", &err);
    }
    int pairs = (int)(PAIRS * scale);
    samples_t floor = {0}, ours = {0}, ratios = {0};
    /* Alternating rounds, so that a change of the machine's speed meets both. */
    for (int round = 0; round < ROUNDS; round++) {
        samples_t a = {0}, b = {0};
        measure_bare(&bare, &a, pairs);
        measure_dlock(lock, &b, pairs);
        uint64_t am = samples_percentile(&a, 50), bm = samples_percentile(&b, 50);
        samples_add(&floor, am);
        samples_add(&ours, bm);
        samples_add(&ratios, bm * 1000 / am);
        samples_free(&a);
        samples_free(&b);
    }
    printf("uncontended pair: bare statements %.1f us, dl_lock+dl_unlock %.1f us, ratio %.2f (of %d rounds: "
           "%.2f to %.2f)\n",
           (double)samples_percentile(&floor, 50) / 1e3, (double)samples_percentile(&ours, 50) / 1e3,
           (double)samples_percentile(&ratios, 50) / 1e3, ROUNDS,
           (double)samples_percentile(&ratios, 0) / 1e3, (double)samples_percentile(&ratios, 100) / 1e3);
    samples_free(&floor);
    samples_free(&ours);
    samples_free(&ratios);
    dl_lock_close(lock);
    dl_client_close(client);
    sqlite3_finalize(bare.acquire);
    sqlite3_finalize(bare.release);
    sqlite3_close(bare.db);
}
