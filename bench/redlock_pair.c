/* redlock_pair.c - an uncontended lock and unlock on several nodes: against one server, and bare sockets. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>

#include "redis.h"
#include "redlock_floor.h"

#define NODES_MAX 5
#define ROUNDS 9
#define PAIRS 200
#define FAR_PAIRS 6
#define FAR_MS 5 /* there, and back again */

enum { REFUSING = 1, SILENT };

/* The servers: those that answer, and two of which one is gone and one has stopped. */
typedef struct places {
    int ports[NODES_MAX], dead[SILENT + 1];
} places_t;

/* One client with one lock, and what was measured. */
typedef struct setting {
    const char *title;
    const char *options; /* of redlock; NULL: redis-string on the first of the ports */
    int nodes, dead;     /* dead: REFUSING or SILENT, what the last of the nodes is; 0: none is */
    dl_client_t *client;
    dl_lock_t *lock;
    samples_t medians, ratios; /* of the rounds; the ratios are to the first setting, in thousandths */
    uint64_t round_trips, pairs;
    bare_nodes_t *bare; /* the same by bare sockets; NULL: not measured */
    samples_t bare_medians, to_bare;
} setting_t;

static void open_setting(setting_t *setting, const places_t *places) {
    char yaml[512], nodes[256] = "";
    int n = 0, len;
    dl_error_t err;
    for (int i = 0; i < setting->nodes; i++) {
        int is_dead = setting->dead != 0 && i == setting->nodes - 1;
        int port = is_dead ? places->dead[setting->dead] : places->ports[i];
        n += snprintf(nodes + n, sizeof nodes - (size_t)n, "%s\"redis://127.0.0.1:%d\"", i > 0 ? ", " : "",
                      port);
    }
    /* Fresh nodes have no vote for max_lease: short leases make that a second. */
    if (setting->options == NULL) {
        len = snprintf(yaml, sizeof yaml,
                       "use: b\nbackends:\n  b: {driver: redis-string, lease: 1s, url: %s}\n", nodes);
    } else {
        len = snprintf(yaml, sizeof yaml,
                       "use: b\nbackends:\n  b: {driver: redlock, lease: 1s, max_lease: 1s, nodes: [%s]%s}\n",
                       nodes, setting->options);
    }
    if (dl_client_open_text(yaml, (size_t)len, NULL, &setting->client, &err) != DL_OK ||
        dl_lock_open(setting->client, setting->title, &setting->lock, &err) != DL_OK) {
        die("open", &err);
    }
}

static void close_setting(setting_t *setting) {
    dl_lock_close(setting->lock);
    dl_client_close(setting->client);
    samples_free(&setting->medians);
    samples_free(&setting->ratios);
    if (setting->bare != NULL) {
        bare_nodes_close(setting->bare);
        samples_free(&setting->bare_medians);
        samples_free(&setting->to_bare);
    }
}

static void pair(setting_t *setting) {
    dl_error_t err;
    if (dl_lock(setting->lock, &err) != DL_OK || dl_unlock(setting->lock, &err) != DL_OK) {
        die(setting->title, &err);
    }
}

static uint64_t round_trips_of(const setting_t *setting) {
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    dl_client_stats(setting->client, &stats);
    return stats.round_trips;
}

static uint64_t measure(setting_t *setting, unsigned pairs) {
    samples_t samples = {0};
    uint64_t before = round_trips_of(setting);
    for (unsigned i = 0; i < pairs; i++) {
        uint64_t begin = now_ns();
        pair(setting);
        samples_add(&samples, now_ns() - begin);
    }
    setting->round_trips += round_trips_of(setting) - before;
    setting->pairs += pairs;
    uint64_t median = samples_percentile(&samples, 50);
    samples_free(&samples);
    return median;
}

static uint64_t measure_bare(bare_nodes_t *bare, unsigned pairs) {
    samples_t samples = {0};
    for (unsigned i = 0; i < pairs; i++) {
        uint64_t begin = now_ns();
        bare_nodes_acquire(bare);
        bare_nodes_release(bare);
        samples_add(&samples, now_ns() - begin);
    }
    uint64_t median = samples_percentile(&samples, 50);
    samples_free(&samples);
    return median;
}

static void measure_beside_bare(setting_t *setting, uint64_t median, unsigned pairs) {
    uint64_t bare = measure_bare(setting->bare, pairs);
    samples_add(&setting->bare_medians, bare);
    samples_add(&setting->to_bare, median * 1000 / bare);
}

static void print_bare(setting_t *setting) {
    printf("  %-42s %8.1f us, ratio to it %.2f (of %d rounds: %.2f to %.2f), %.1f messages a pair\n",
           "  the same by bare sockets in one poll loop",
           (double)samples_percentile(&setting->bare_medians, 50) / 1e3,
           (double)samples_percentile(&setting->to_bare, 50) / 1e3, ROUNDS,
           (double)samples_percentile(&setting->to_bare, 0) / 1e3,
           (double)samples_percentile(&setting->to_bare, 100) / 1e3,
           (double)bare_nodes_sent(setting->bare) / (double)setting->pairs);
}

static void print_setting(setting_t *setting, setting_t *floor) {
    double messages = (double)setting->round_trips / (double)setting->pairs;
    int answering = setting->nodes - (setting->dead != 0);
    printf(
        "  %-42s %8.1f us, ratio %.2f (of %d rounds: %.2f to %.2f), %.1f messages a pair, %.1f to a node\n",
        setting->title, (double)samples_percentile(&setting->medians, 50) / 1e3,
        setting == floor ? 1.0 : (double)samples_percentile(&setting->ratios, 50) / 1e3, ROUNDS,
        setting == floor ? 1.0 : (double)samples_percentile(&setting->ratios, 0) / 1e3,
        setting == floor ? 1.0 : (double)samples_percentile(&setting->ratios, 100) / 1e3, messages,
        messages / answering);
    if (setting->bare != NULL) {
        print_bare(setting);
    }
}

static int has_bare(const setting_t *setting) {
    return setting->options != NULL && setting->dead == 0;
}

/* The first setting is the floor; with_bare: those that can have another have it. */
static void compare(const char *title, const places_t *places, unsigned pairs, int with_bare) {
    setting_t settings[] = {
        {.title = "redis-string, one server", .nodes = 1},
        {.title = "redlock, 3 nodes", .options = "", .nodes = 3},
        {.title = "redlock, 3 nodes, without fencing", .options = ", fencing: false", .nodes = 3},
        {.title = "redlock, 5 nodes", .options = "", .nodes = 5},
        {.title = "redlock, 5 nodes, without fencing", .options = ", fencing: false", .nodes = 5},
        {.title = "redlock, 5 nodes, one refuses", .options = "", .nodes = 5, .dead = REFUSING},
        {.title = "redlock, 5 nodes, one is silent", .options = "", .nodes = 5, .dead = SILENT},
    };
    size_t n = sizeof settings / sizeof settings[0];
    for (size_t i = 0; i < n; i++) {
        open_setting(&settings[i], places);
        pair(&settings[i]); /* which waits until fresh nodes have their vote */
        pair(&settings[i]);
        if (with_bare && has_bare(&settings[i])) {
            settings[i].bare = bare_nodes_open(places->ports, settings[i].nodes,
                                               settings[i].options[0] == '\0', settings[i].title);
        }
    }
    /* Alternating rounds, so that a change of the machine's speed meets all. */
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t floor = 0;
        for (size_t i = 0; i < n; i++) {
            uint64_t median = measure(&settings[i], pairs);
            floor = i == 0 ? median : floor;
            samples_add(&settings[i].medians, median);
            samples_add(&settings[i].ratios, median * 1000 / floor);
            if (settings[i].bare != NULL) {
                measure_beside_bare(&settings[i], median, pairs);
            }
        }
    }
    printf("redlock uncontended pair, %s:\n", title);
    for (size_t i = 0; i < n; i++) {
        print_setting(&settings[i], &settings[0]);
    }
    for (size_t i = 0; i < n; i++) {
        close_setting(&settings[i]);
    }
}

void bench_redlock_pair(const char *folder, unsigned scale) {
    places_t places;
    char title[64];
    for (int i = 0; i < NODES_MAX; i++) {
        places.ports[i] = redis_start_another(folder);
    }
    places.dead[REFUSING] = redis_start_another(folder);
    places.dead[SILENT] = redis_start_another(folder);
    redis_signal(places.dead[REFUSING], SIGKILL);
    redis_signal(places.dead[SILENT], SIGSTOP);
    compare("over loopback", &places, PAIRS * scale, 1);
    for (int i = 0; i < NODES_MAX; i++) {
        places.ports[i] = relay_start(places.ports[i], FAR_MS);
    }
    (void)snprintf(title, sizeof title, "with %d ms to each server and %d ms back", FAR_MS, FAR_MS);
    compare(title, &places, FAR_PAIRS * scale, 0);
}
