/* cpp_hidden.cpp - a library that hides what it has, and loses a lock. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <dlock/dlock.hpp>
#include <mutex>

__attribute__((visibility("default"))) void lose_a_lock(const dl::client &client);

void lose_a_lock(const dl::client &client) {
    dl::lock lock(client, "hidden");
    std::lock_guard guard(lock);
    dl_force_unlock(lock.get(), nullptr);
}
