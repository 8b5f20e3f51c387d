/* exclusion_cases.c - contract: one holder at a time, whoever asks and from wherever. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/contract.h"

#define THREADS 4

/* ---- a counter that only a working lock keeps right ------------------------------------------ */

typedef struct counting {
    dl_lock_t *locks[THREADS];
    int next; /* which lock the next thread takes */
    int rounds;
    int counter; /* read, then written after a pause: lost updates show two holders */
    int inside;
} counting_t;

static void count_up(ct_t *ct, void *arg) {
    counting_t *c = arg;
    dl_lock_t *lock = c->locks[__atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)];
    for (int i = 0; i < c->rounds; i++) {
        CT_OK(dl_lock(lock, CT_ERR));
        CT_EQ(__atomic_fetch_add(&c->inside, 1, __ATOMIC_RELAXED), 0);
        int seen = __atomic_load_n(&c->counter, __ATOMIC_RELAXED);
        ct_sleep_ms(ct, 1);
        __atomic_store_n(&c->counter, seen + 1, __ATOMIC_RELAXED);
        CT_EQ(__atomic_fetch_sub(&c->inside, 1, __ATOMIC_RELAXED), 1);
        CT_OK(dl_unlock(lock, CT_ERR));
    }
}

static void count_with_threads(ct_t *ct, counting_t *c) {
    ct_thread_t *threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        threads[i] = ct_thread(ct, count_up, c);
    }
    for (int i = 0; i < THREADS; i++) {
        ct_join(ct, threads[i]);
    }
    CT_EQ(c->counter, THREADS * c->rounds);
}

CT_CASE(exclusion, threads_of_one_client_never_hold_at_once) {
    dl_client_t *client = ct_open(ct, NULL);
    counting_t c = {.rounds = 25};
    for (int i = 0; i < THREADS; i++) {
        c.locks[i] = ct_lock(ct, client, "counter");
    }
    count_with_threads(ct, &c);
    CT_EQ(ct_stats(ct, client).acquired, THREADS * 25);
    ct_expect_free(ct, "counter", 0);
}

CT_CASE(exclusion, clients_of_one_process_never_hold_at_once, .timeout_s = 60) {
    counting_t c = {.rounds = 10};
    for (int i = 0; i < THREADS; i++) {
        c.locks[i] = ct_lock(ct, ct_open(ct, NULL), "counter");
    }
    count_with_threads(ct, &c);
    ct_expect_free(ct, "counter", 0);
}

CT_CASE(exclusion, owned_handles_of_one_thread_count_as_different_owners) {
    dl_client_t *client = ct_open(ct, NULL);
    counting_t c = {.rounds = 10};
    for (int i = 0; i < THREADS; i++) {
        c.locks[i] = ct_lock_owned(ct, client, "counter", 100 + (uint64_t)i);
    }
    count_with_threads(ct, &c);
}

/* ---- processes ------------------------------------------------------------------------------- */

#define PROCESSES 3
#define PROCESS_ROUNDS 15

static int read_number(ct_t *ct, int fd) {
    char text[16] = "";
    CT_GE(pread(fd, text, sizeof text - 1, 0), 0);
    return atoi(text);
}

static void count_in_file(ct_t *ct, void *arg) {
    int fd = *(int *)arg;
    dl_lock_t *lock = ct_lock(ct, ct_open(ct, NULL), "file");
    ct_send(ct, NULL, 0);
    (void)ct_recv(ct, NULL); /* all begin together */
    for (int i = 0; i < PROCESS_ROUNDS; i++) {
        CT_OK(dl_lock(lock, CT_ERR));
        int seen = read_number(ct, fd);
        ct_sleep_ms(ct, 2);
        char text[16];
        int len = snprintf(text, sizeof text, "%d\n", seen + 1);
        CT_EQ(pwrite(fd, text, (size_t)len, 0), len);
        CT_OK(dl_unlock(lock, CT_ERR));
    }
}

CT_CASE(exclusion, processes_never_hold_at_once, .traits = CT_PROCESSES, .timeout_s = 60) {
    FILE *file = tmpfile();
    CT_CHECK(file != NULL);
    int fd = fileno(file);
    ct_process_t *processes[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        processes[i] = ct_process(ct, count_in_file, &fd);
    }
    for (int i = 0; i < PROCESSES; i++) {
        (void)ct_recv(ct, processes[i]);
    }
    for (int i = 0; i < PROCESSES; i++) {
        ct_send(ct, processes[i], 0);
    }
    for (int i = 0; i < PROCESSES; i++) {
        ct_process_wait(ct, processes[i]);
    }
    CT_EQ(read_number(ct, fd), PROCESSES * PROCESS_ROUNDS);
    fclose(file);
    ct_expect_free(ct, "file", 0);
}

/* ---- trylock --------------------------------------------------------------------------------- */

static void find_it_busy(ct_t *ct, void *lock) {
    CT_STATUS(dl_trylock(lock, CT_ERR), DL_EBUSY);
    CT_EQ(dl_valid_ms(lock), 0);
    CT_EQ(dl_hold_count(lock), 0);
}

CT_CASE(exclusion, a_held_lock_is_busy_for_everybody_else) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, a, "orders");
    CT_OK(dl_trylock(lock, CT_ERR));
    int64_t start_ms = ct_now_ms(ct);
    find_it_busy(ct, ct_lock(ct, b, "orders"));                       /* another client */
    find_it_busy(ct, ct_lock_owned(ct, a, "orders", 7));              /* another owner of this thread */
    ct_join(ct, ct_thread(ct, find_it_busy, lock));                   /* another thread, same handle */
    CT_BETWEEN(ct_now_ms(ct) - start_ms, 0, 3 * ct_tolerance_ms(ct)); /* nobody waited */
    CT_EQ(ct_stats(ct, a).busy, 2);
    CT_EQ(ct_stats(ct, b).busy, 1);
    CT_EQ(dl_hold_count(lock), 1);
    CT_GT(dl_valid_ms(lock), 0);
    ct_expect_held(ct, "orders");
    CT_OK(dl_unlock(lock, CT_ERR));
    ct_expect_free(ct, "orders", 0);
}

CT_CASE(exclusion, a_busy_answer_inside_the_process_costs_no_request) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_OK(dl_lock(lock, CT_ERR));
    int tries = ct_calls(ct, CT_OP_TRY);
    ct_join(ct, ct_thread(ct, find_it_busy, lock));
    find_it_busy(ct, ct_lock_owned(ct, client, "orders", 1));
    CT_EQ(ct_calls(ct, CT_OP_TRY), tries);
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(exclusion, a_number_of_a_task_never_meets_the_number_of_a_thread) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_call_t call = ct_call(ct, CT_OP_TRY, -1);
    /* The thread's own number is the text after the colon; a task may have chosen the same. */
    const char *number = strchr(call.owner, ':');
    CT_CHECK(number != NULL);
    uint64_t candidates[] = {strtoull(number + 1, NULL, 10), 0, 1, 2, 3, UINT64_MAX};
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        dl_lock_t *task = ct_lock_owned(ct, client, "orders", candidates[i]);
        find_it_busy(ct, task);
        CT_STATUS(dl_unlock(task, CT_ERR), DL_ENOTOWNER);
    }
    CT_OK(dl_unlock(lock, CT_ERR));
    /* And on the server: the two texts differ, whatever the number. */
    dl_lock_t *twin = ct_lock_owned(ct, client, "orders", candidates[0]);
    CT_OK(dl_lock(twin, CT_ERR));
    CT_NE(strcmp(ct_call(ct, CT_OP_TRY, -1).owner, call.owner), 0);
    CT_OK(dl_unlock(twin, CT_ERR));
}

static void lock_and_unlock(ct_t *ct, void *lock) {
    CT_OK(dl_lock(lock, CT_ERR));
    CT_OK(dl_unlock(lock, CT_ERR));
}

CT_CASE(exclusion, a_threads_number_is_never_used_again) {
    dl_client_t *client = ct_open(ct, NULL);
    dl_lock_t *lock = ct_lock(ct, client, "orders");
    char owners[5][DL_OWNER_MAX + 1];
    for (int i = 0; i < 5; i++) {
        ct_join(ct, ct_thread(ct, lock_and_unlock,
                              lock)); /* the system gives such threads one id again and again */
        ct_call_t call = ct_call(ct, CT_OP_TRY, -1);
        memcpy(owners[i], call.owner, sizeof owners[i]);
        for (int j = 0; j < i; j++) {
            CT_CHECKF(strcmp(owners[i], owners[j]) != 0, "two threads were both '%s'", owners[i]);
        }
    }
}

CT_CASE(exclusion, an_owner_is_the_clients_uuid_and_a_number) {
    dl_client_t *a = ct_open(ct, NULL), *b = ct_open(ct, NULL);
    dl_client_info_t info_a = DL_CLIENT_INFO_INIT, info_b = DL_CLIENT_INFO_INIT;
    CT_OK(dl_client_info(a, &info_a));
    CT_OK(dl_client_info(b, &info_b));
    CT_NE(strcmp(info_a.uuid, info_b.uuid), 0);
    dl_lock_t *lock = ct_lock(ct, a, "orders");
    CT_OK(dl_lock(lock, CT_ERR));
    ct_call_t call = ct_call(ct, CT_OP_TRY, -1);
    CT_CHECKF(strncmp(call.owner, info_a.uuid, 36) == 0 && call.owner[36] == ':', "owner '%s', uuid '%s'",
              call.owner, info_a.uuid);
    CT_OK(dl_unlock(lock, CT_ERR));
}
