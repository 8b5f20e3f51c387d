/* compare_board.c - the memory that the processes of dlock compare share, and its sums. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "compare.h"

/* Zeroed; pages that nobody touches cost nothing. */
static void *share(size_t count, size_t size) {
    void *memory =
        mmap(NULL, count * size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void give_back(void *memory, size_t count, size_t size) {
    if (memory != NULL) {
        (void)munmap(memory, count * size);
    }
}

static size_t owner_count(const plan_t *plan) {
    return (size_t)plan->processes * (size_t)plan->threads;
}

static bool make_pipe(int *reader, int *writer) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return false;
    }
    *reader = ends[0];
    *writer = ends[1];
    return true;
}

bool board_open(board_t *board, const plan_t *plan) {
    *board = (board_t){
        .plan = plan, .go_fd = -1, .go_writer = -1, .stop_fd = -1, .stop_writer = -1, .news_fd = -1};
    board->orders = share(1, sizeof *board->orders);
    board->places = share((size_t)plan->names, sizeof *board->places);
    board->processes = share((size_t)plan->processes, sizeof *board->processes);
    board->owners = share(owner_count(plan), sizeof *board->owners);
    bool made =
        board->orders != NULL && board->places != NULL && board->processes != NULL && board->owners != NULL;
    int failed = made ? 0 : errno;
    for (int i = 0; failed == 0 && i < plan->names; i++) {
        failed = place_begin(&board->places[i]);
    }
    if (failed == 0) {
        board->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        made = board->news_fd >= 0 && make_pipe(&board->go_fd, &board->go_writer) &&
               make_pipe(&board->stop_fd, &board->stop_writer);
        failed = made ? 0 : errno;
    }
    if (failed != 0) {
        board_close(board);
        errno = failed;
    }
    return failed == 0;
}

void hang_up(int *writer) {
    if (*writer >= 0) {
        (void)close(*writer);
        *writer = -1;
    }
}

void board_close(board_t *board) {
    hang_up(&board->go_fd);
    hang_up(&board->go_writer);
    hang_up(&board->stop_fd);
    hang_up(&board->stop_writer);
    hang_up(&board->news_fd);
    give_back(board->orders, 1, sizeof *board->orders);
    give_back(board->places, (size_t)board->plan->names, sizeof *board->places);
    give_back(board->processes, (size_t)board->plan->processes, sizeof *board->processes);
    give_back(board->owners, owner_count(board->plan), sizeof *board->owners);
}

uint64_t board_acquired(const board_t *board) {
    uint64_t sum = 0;
    for (size_t i = 0; i < owner_count(board->plan); i++) {
        sum += atomic_load_explicit(&board->owners[i].acquired, memory_order_relaxed);
    }
    return sum;
}

static void collect_owners(const board_t *board, row_t *row) {
    size_t count = owner_count(board->plan);
    uint64_t *acquired = calloc(count, sizeof *acquired);
    for (size_t i = 0; i < count; i++) {
        const owner_notes_t *owner = &board->owners[i];
        uint64_t mine = atomic_load(&owner->acquired);
        row->acquisitions += mine;
        if (acquired != NULL) {
            acquired[i] = mine;
        }
        row->lost += owner->lost;
        row->unfinished += owner->unfinished;
        if (owner->unfinished_max_ns > row->unfinished_max_ns) {
            row->unfinished_max_ns = owner->unfinished_max_ns;
        }
        for (size_t status = 0; status < DL_STATUS_COUNT; status++) {
            row->errors[status] += owner->errors[status];
        }
        histogram_merge(&row->waits, &owner->waits);
        histogram_merge(&row->handoffs, &owner->handoffs);
    }
    row->fairness = acquired != NULL ? jain_index(acquired, count) : 0;
    free(acquired);
}

void board_collect(const board_t *board, uint64_t ended_ns, row_t *row) {
    uint64_t begin_ns = board->orders->begin_ns;
    row->measured = begin_ns != 0;
    row->planned_ns = board->plan->duration_ns;
    row->measured_ns = row->measured && ended_ns > begin_ns ? ended_ns - begin_ns : 0;
    for (int i = 0; i < board->plan->processes; i++) {
        const process_notes_t *process = &board->processes[i];
        int state = atomic_load(&process->state);
        if (process->driver[0] != '\0') {
            (void)snprintf(row->driver, sizeof row->driver, "%.31s", process->driver);
            (void)snprintf(row->server, sizeof row->server, "%.127s", process->server);
        }
        if (state == WORKER_FAILED && row->error[0] == '\0') {
            (void)snprintf(row->error, sizeof row->error, "%.255s", process->error);
        }
        if (row->first_error[0] == '\0') {
            (void)snprintf(row->first_error, sizeof row->first_error, "%.255s", process->error);
        }
        row->pairs += process->pairs;
        row->round_trips += process->round_trips;
    }
    collect_owners(board, row);
    row->tokens_checked = places_had_tokens(board->places, (size_t)board->plan->names);
    row->violations = places_violations(board->places, (size_t)board->plan->names);
}
