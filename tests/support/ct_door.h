/* ct_door.h - the two doors to the library: a case's lock calls block, or go through a completion queue. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CT_DOOR_H
#define CT_DOOR_H

#include <stdint.h>

#include "dlock/dlock.h"

typedef enum ct_door { CT_DOOR_BLOCKING, CT_DOOR_QUEUE } ct_door_t;

/* As the functions of dlock.h. With the queue door a call begins the operation on a queue of its own, and
 * waits for its completion; a thread that calls on a handle of threads has an owner number of its own. */
dl_status_t ct_door_lock_open(dl_client_t *client, const char *name, dl_lock_t **lock, dl_error_t *err);
void ct_door_lock_close(dl_lock_t *lock);
dl_status_t ct_door_acquire(dl_lock_t *lock, const dl_acquire_opts_t *opts, dl_error_t *err);
dl_status_t ct_door_lock(dl_lock_t *lock, dl_error_t *err);
dl_status_t ct_door_trylock(dl_lock_t *lock, dl_error_t *err);
dl_status_t ct_door_trylock_for(dl_lock_t *lock, int64_t wait_ms, int64_t lease_ms, dl_error_t *err);
dl_status_t ct_door_unlock(dl_lock_t *lock, dl_error_t *err);
dl_status_t ct_door_extend(dl_lock_t *lock, int64_t lease_ms, dl_error_t *err);
dl_status_t ct_door_inspect(dl_lock_t *lock, dl_lock_info_t *info, dl_error_t *err);
int64_t ct_door_valid_ms(dl_lock_t *lock);
uint64_t ct_door_token(dl_lock_t *lock);
uint32_t ct_door_hold_count(dl_lock_t *lock);

/* Defined where cases are compiled: the harness itself blocks. */
#ifdef CT_DOORS
#define dl_lock_open(client, name, lock, err) ct_door_lock_open(client, name, lock, err)
#define dl_lock_close(lock) ct_door_lock_close(lock)
#define dl_acquire(lock, opts, err) ct_door_acquire(lock, opts, err)
#define dl_lock(lock, err) ct_door_lock(lock, err)
#define dl_trylock(lock, err) ct_door_trylock(lock, err)
#define dl_trylock_for(lock, wait_ms, lease_ms, err) ct_door_trylock_for(lock, wait_ms, lease_ms, err)
#define dl_unlock(lock, err) ct_door_unlock(lock, err)
#define dl_extend(lock, lease_ms, err) ct_door_extend(lock, lease_ms, err)
#define dl_inspect(lock, info, err) ct_door_inspect(lock, info, err)
#define dl_valid_ms(lock) ct_door_valid_ms(lock)
#define dl_token(lock) ct_door_token(lock)
#define dl_hold_count(lock) ct_door_hold_count(lock)
#endif

#endif
