/* redis.h - a Redis server of the bench's own, and the same locks on it by bare hiredis. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLOCK_BENCH_REDIS_H
#define DLOCK_BENCH_REDIS_H

#include <hiredis/hiredis.h>

#include "bench.h"

/* A driver, and the text of the scripts that it runs. */
typedef struct layout {
    const char *driver;
    const char *acquire, *release;
} layout_t;

#define LAYOUTS 2
extern const layout_t layouts[LAYOUTS];
/* The text of the scripts that a pair of redlock runs. */
typedef struct redlock_scripts {
    const char *acquire, *raise, *release;
} redlock_scripts_t;
extern const redlock_scripts_t redlock_scripts;

/* Starts redis-server ($DLOCK_REDIS_SERVER names another program) on a free port of 127.0.0.1, once; it keeps
 * nothing on disk and ends with this program. */
void redis_start(const char *folder);
/* One more; its port. */
int redis_start_another(const char *folder);
/* Stops it for a while, lets it go on, or kills it. */
void redis_signal(int port, int signal);
int free_port(void); /* of 127.0.0.1, that nobody else is given until this program ends */
/* `more` is further options of the backend, such as ", lease: 3s". */
dl_client_t *redis_open_client(const layout_t *layout, const char *more);

/* One connection and the commands of one lock, encoded by hiredis, called and awaited one by one. */
typedef struct bare {
    redisContext *redis;
    char acquire[41], release[41], compare[41]; /* what EVALSHA names the scripts by */
    char key[48], channel[64], owner[48];
    unsigned long long hold_id;
} bare_t;

void bare_open(bare_t *bare, const layout_t *layout, const char *name);
void bare_close(bare_t *bare);
/* The driver's own two scripts. */
void bare_acquire(bare_t *bare);
void bare_release(bare_t *bare);
/* The same, sent with what has begun before when an answer is asked for and none has come. */
void bare_begin_acquire(bare_t *bare);
void bare_begin_release(bare_t *bare);
/* The next answer: its integer; -1 for nil. */
long long bare_end(const bare_t *bare);
/* The recipe: SET NX PX, and a script that compares, deletes and publishes. 0: another holds it. */
int bare_set(bare_t *bare);
void bare_compare_and_delete(bare_t *bare);

/* Bare publish and SET NX PX, opened with a layout: each user is subscribed, and tries at each message. */
extern const way_t redis_bare_way;

/* A process that passes on what comes to the port that is returned, to this one, and back, each way so many
 * milliseconds later. It ends with this program. */
int relay_start(int port, int delay_ms);

void bench_redlock_pair(const char *folder, unsigned scale);
void bench_redis_pair(const char *folder, unsigned scale);
void bench_redis_handoff(const char *folder, unsigned scale);
void bench_redis_crowd(const char *folder, unsigned scale);
void bench_redis_crowd_passing(const char *folder, unsigned scale);
void bench_redis_crowd_turns(const char *folder, unsigned scale);
void bench_redis_many(const char *folder, unsigned scale);
void bench_redlock_crowd(const char *folder, unsigned scale);
void bench_redis_threads(const char *folder, unsigned scale);
void bench_redis_behind(const char *folder, unsigned scale);
void bench_redis_queue_pair(const char *folder, unsigned scale);
void bench_redis_queue_scale(const char *folder, unsigned scale);

#endif
