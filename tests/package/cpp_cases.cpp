/* cpp_cases.cpp - what dlock.hpp promises, tried with real locks of the embedded backend. */
/* SPDX-License-Identifier: Apache-2.0 */
#include <dlock/dlock.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <mutex>
#include <poll.h>
#include <thread>
#include <type_traits>

using namespace std::chrono_literals;

static_assert(std::is_nothrow_move_constructible_v<dl::lock> && std::is_nothrow_move_assignable_v<dl::lock>);
static_assert(!std::is_copy_constructible_v<dl::lock> && !std::is_copy_assignable_v<dl::lock>);
static_assert(std::is_nothrow_move_constructible_v<dl::client> && !std::is_copy_constructible_v<dl::client>);
static_assert(std::is_nothrow_move_constructible_v<dl::queue> && !std::is_copy_constructible_v<dl::queue>);
static_assert(std::is_base_of_v<std::system_error, dl::error>);
static_assert(noexcept(std::declval<dl::lock &>().unlock()));

namespace {

/* Ends the program; a thread that waits for what cannot come any more would hold it up otherwise. */
[[noreturn]] void fail(int line) {
    std::cout << std::flush;
    std::cerr << "cpp_cases.cpp:" << line << ": see above" << std::endl;
    std::_Exit(1);
}

template <class A, class B> void equal(int line, const char *what, const A &is, const B &wanted) {
    if (is == wanted)
        return;
    std::cerr << "cpp_cases.cpp:" << line << ": " << what << " is " << is << ", expected " << wanted << '\n';
    fail(line);
}
#define EQ(is, wanted) equal(__LINE__, #is, is, wanted)

template <class A, class B> void above(int line, const char *what, const A &is, const B &least) {
    if (is > least)
        return;
    std::cerr << "cpp_cases.cpp:" << line << ": " << what << " is " << is << ", expected above " << least
              << '\n';
    fail(line);
}
#define ABOVE(is, least) above(__LINE__, #is, is, least)

/* The error that a call throws; none is a failure. */
template <class Call> dl::error thrown(int line, Call call) {
    try {
        call();
    } catch (const dl::error &e) {
        return e;
    }
    std::cerr << "cpp_cases.cpp:" << line << ": nothing was thrown\n";
    fail(line);
}
#define THROWN(call) thrown(__LINE__, [&] { call; })

/* What another thread finds: the lock's owner is the thread. */
bool free_for_others(dl::lock &lock) {
    return std::async(std::launch::async,
                      [&] { return std::unique_lock(lock, std::try_to_lock).owns_lock(); })
        .get();
}

void take_away(dl::lock &lock) {
    dl_error_t err{};
    EQ(dl_force_unlock(lock.get(), &err), DL_OK);
}

/* Two locks named in two orders: each has to keep the other thread out, and neither may wait for ever. */
void two_threads_exclude_each_other(const dl::client &client) {
    dl::lock stock(client, "stock"), orders(client, "orders");
    int inside = 0, most = 0, done = 0;
    auto work = [&](dl::lock &first, dl::lock &second) {
        for (int i = 0; i < 200; i++) {
            std::scoped_lock both(first, second);
            /* Plain numbers: a sanitizer, or the sum, tells if somebody else is here. */
            most = std::max(most, ++inside);
            done++;
            inside--;
        }
    };
    std::thread other(work, std::ref(orders), std::ref(stock));
    work(stock, orders);
    other.join();
    EQ(done, 400);
    EQ(most, 1);
    EQ(stock.hold_count() + orders.hold_count(), 0u);
    EQ(dl::take_unlock_error().status, DL_OK);
}

std::uint64_t timed_out(const dl::client &client) {
    dl_client_stats_t stats = DL_CLIENT_STATS_INIT;
    EQ(dl_client_stats(client.get(), &stats), DL_OK);
    return stats.timed_out;
}

void a_wait_has_an_end(const dl::client &client) {
    dl::lock lock(client, "waits");
    std::lock_guard guard(lock);
    std::async(std::launch::async, [&] {
        using clock = std::chrono::steady_clock;
        EQ(lock.try_lock(), false);
        auto before = clock::now();
        EQ(lock.try_lock_for(0.05s), false);
        ABOVE((clock::now() - before).count(), clock::duration(49ms).count());
        EQ(lock.try_lock_for(-1s), false);
        /* Waited for, if only a little: not as the one before. */
        const std::uint64_t waited = timed_out(client);
        EQ(lock.try_lock_for(1us), false);
        EQ(timed_out(client), waited + 1);
        before = clock::now();
        EQ(lock.try_lock_until(before + 50ms), false);
        ABOVE((clock::now() - before).count(), clock::duration(49ms).count());
        const auto wall = std::chrono::system_clock::now() + 50ms;
        EQ(std::unique_lock(lock, wall).owns_lock(), false);
        EQ(std::chrono::system_clock::now() < wall, false);
        EQ(lock.try_lock_until(std::chrono::system_clock::time_point::min()), false);
    }).get();
    /* Longer than the library takes, and than a number of milliseconds can say. */
    EQ(lock.try_lock_for(std::chrono::hours::max()), true);
    lock.unlock();
    EQ(lock.try_lock_until(std::chrono::steady_clock::time_point::max()), true);
    lock.unlock();
}

/* A clock that is set back while somebody waits by it. */
struct set_clock {
    using duration = std::chrono::milliseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<set_clock>;
    static inline int asked = 0;
    static time_point now() {
        return time_point(asked++ < 2 ? 0ms : 100ms);
    }
};

void a_clock_that_is_set_back_is_waited_for(const dl::client &client) {
    dl::lock lock(client, "set back");
    std::lock_guard guard(lock);
    EQ(std::async(std::launch::async, [&] { return lock.try_lock_until(set_clock::time_point(20ms)); }).get(),
       false);
    /* Before the first wait and after it, when it is early still; before the second, and after it. */
    EQ(set_clock::asked, 4);
}

void a_guard_holds_and_tells(const dl::client &client) {
    dl::lock lock(client, "told");
    EQ(lock.token(), 0u);
    EQ(lock.valid_for().count(), 0);
    std::uint64_t first = 0;
    {
        std::unique_lock guard(lock);
        first = lock.token();
        ABOVE(first, 0u);
        ABOVE(lock.valid_for().count(), 0);
        EQ(free_for_others(lock), false);
        std::lock_guard again(lock);
        EQ(lock.hold_count(), 2u);
        lock.extend(10min);
        ABOVE(lock.valid_for().count(), std::chrono::milliseconds(9min).count());
        lock.extend();
        ABOVE(lock.valid_for().count(), std::chrono::milliseconds(9min).count());
    }
    EQ(free_for_others(lock), true);
    std::lock_guard guard(lock);
    ABOVE(lock.token(), first);
}

void a_loss_is_seen_and_ends_nothing(const dl::client &client) {
    dl::lock lock(client, "lost"), fine(client, "fine");
    {
        std::scoped_lock both(fine, lock);
        take_away(lock);
    }
    dl::error lost = THROWN(dl::check_unlock());
    EQ(lost.status(), DL_ELOST);
    EQ(lost.code() == std::error_code(DL_ELOST, dl::category()), true);
    EQ(std::string(lost.code().category().name()), "dlock");
    EQ(lost.code().message(), dl_status_text(DL_ELOST));
    dl::check_unlock(); /* told once */

    /* An inner guard's loss is not forgotten by the next one. */
    {
        std::lock_guard outer(fine);
        {
            std::lock_guard inner(lock);
            take_away(lock);
        }
        std::lock_guard next(lock);
    }
    lock.unlock(); /* DL_ENOTOWNER: only the first is kept */
    EQ(dl::take_unlock_error().status, DL_ELOST);

    /* It stays until it is asked for, and is not told to another thread. */
    {
        std::lock_guard guard(lock);
        take_away(lock);
    }
    std::async(std::launch::async, [] { dl::check_unlock(); }).get();
    { std::lock_guard guard(lock); }
    EQ(dl::take_unlock_error().status, DL_ELOST);

    lock.unlock();
    EQ(dl::take_unlock_error().status, DL_ENOTOWNER);
}

void errors_say_status_and_message(const dl::client &client) {
    dl::error missing = THROWN(dl::client("/no/such/file.yaml"));
    EQ(missing.status(), DL_ECONFIG);
    ABOVE(std::string(missing.what()).find("/no/such/file.yaml") + 1, 0u);
    EQ(THROWN(dl::lock(client, "")).status(), DL_EINVAL);
    EQ(THROWN(dl::lock(client, std::string("a\0b", 3))).status(), DL_EINVAL);
    EQ(THROWN(dl::lock(client, "free").extend()).status(), DL_ENOTOWNER);
    EQ(THROWN(dl::lock(client, "free").extend(5ms)).status(), DL_EINVAL);

    dl::client *shut = new dl::client(dl::client::from_text("use: local", "local"));
    dl::lock orphan(*shut, "orphan");
    delete shut;
    try {
        std::lock_guard guard(orphan);
        fail(__LINE__);
    } catch (const std::system_error &e) { /* as whoever knows only the standard would */
        EQ(e.code().value(), static_cast<int>(DL_ECLOSED));
    }
    EQ(THROWN(orphan.try_lock()).status(), DL_ECLOSED);
}

void what_is_moved_goes_on(dl::client &client) {
    dl::lock lock(client, "moved");
    lock.lock();
    dl::lock there(std::move(lock));
    EQ(there.hold_count(), 1u);
    EQ(THROWN(lock.lock()).status(), DL_EINVAL);
    EQ(lock.token() + lock.hold_count(), 0u);
    lock = std::move(there);
    lock.unlock();
    EQ(free_for_others(lock), true);

    dl::client moved(std::move(client));
    EQ(lock.try_lock(), true);
    lock.unlock();
    EQ(THROWN(dl::lock(client, "none")).status(), DL_EINVAL);
    client = std::move(moved);
    dl::check_unlock();
}

void a_task_owns_from_any_thread(const dl::client &client) {
    dl::lock task(client, "task", 7), other(client, "task", 8);
    task.lock();
    EQ(other.try_lock(), false);
    std::async(std::launch::async, [&] { task.unlock(); }).get();
    EQ(other.try_lock(), true);
    other.unlock();
}

void a_wait_is_cancelled(const dl::client &client) {
    dl::cancel_source stop;
    dl::lock lock(client, "cancelled");
    std::lock_guard guard(lock);
    auto waits = std::async(std::launch::async, [&] {
        dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
        opts.cancel = stop.get();
        return THROWN(lock.try_lock(opts)).status();
    });
    stop.trigger();
    EQ(waits.get(), DL_ECANCELED);
}

void an_explicit_lease_can_be_asked_for(const dl::client &client) {
    dl::lock lock(client, "leased");
    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.lease_ms = 60000;
    EQ(lock.try_lock(opts), true);
    std::lock_guard guard(lock, std::adopt_lock);
    ABOVE(lock.valid_for().count(), 50000);
}

/* Waits for one completion of the queue. */
dl_completion_t next_of(dl::queue &queue) {
    dl_completion_t one{};
    pollfd ready{queue.fd(), POLLIN, 0};
    EQ(poll(&ready, 1, 10000), 1);
    EQ(queue.take([&](const dl_completion_t &done) { one = done; }, 1), 1u);
    return one;
}

void a_queue_tells_what_became_of_each(const dl::client &client) {
    dl::queue queue;
    dl::lock first(client, "queued", 1), second(client, "queued", 2);
    int tags[2];
    EQ(queue.take([](const dl_completion_t &) { fail(__LINE__); }), 0u);
    const std::uint64_t id = queue.begin_lock(first, &tags[0]);
    dl_completion_t held = next_of(queue);
    EQ(held.kind, DL_OP_ACQUIRE);
    EQ(held.status, DL_OK);
    EQ(held.id, id);
    EQ(held.tag == &tags[0] && held.lock == first.get(), true);
    EQ(held.token, first.token());
    ABOVE(held.hold_id, 0u);
    ABOVE(held.valid_ms, 0);
    EQ(queue.cancel(id), DL_EINVAL); /* it was taken */

    dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
    opts.wait_ms = 0;
    queue.begin_lock(second, nullptr, opts);
    EQ(next_of(queue).status, DL_EBUSY);
    const std::uint64_t waiting = queue.begin_lock(second, &tags[1]);
    EQ(queue.cancel(waiting), DL_OK);
    EQ(next_of(queue).status, DL_ECANCELED);

    queue.begin_extend(first, nullptr, 10min);
    ABOVE(next_of(queue).valid_ms, std::chrono::milliseconds(9min).count());
    dl::queue moved(std::move(queue));
    EQ(THROWN(queue.begin_lock(first, nullptr)).status(), DL_EINVAL);
    moved.begin_unlock(first, nullptr);
    EQ(next_of(moved).status, DL_OK);
    EQ(second.try_lock(), true);
    second.unlock();
    EQ(THROWN(moved.begin_lock(dl::lock(client, "a thread's"), nullptr)).status(), DL_EINVAL);
}

void what_a_function_throws_leaves_the_rest(const dl::client &client) {
    dl::queue queue;
    dl::lock lock(client, "thrown", 1);
    lock.lock();
    queue.begin_extend(lock, nullptr);
    queue.begin_unlock(lock, nullptr);
    int taken = 0;
    while (taken < 2) {
        pollfd ready{queue.fd(), POLLIN, 0};
        EQ(poll(&ready, 1, 10000), 1);
        try {
            queue.take([&](const dl_completion_t &) {
                taken++;
                throw 1;
            });
            fail(__LINE__);
        } catch (int) {}
    }
}

void the_end_of_a_queue_frees_what_nobody_took(const dl::client &client) {
    dl::lock first(client, "dropped", 1), second(client, "dropped", 2);
    {
        dl::queue queue;
        queue.begin_lock(first, nullptr);
        pollfd ready{queue.fd(), POLLIN, 0};
        EQ(poll(&ready, 1, 10000), 1);
        EQ(second.try_lock(), false);
        queue.begin_lock(second, nullptr);
    }
    EQ(second.try_lock_for(10s), true);
    second.unlock();
    EQ(dl::take_unlock_error().status, DL_OK);
}

} // namespace

/* usage: cpp_cases FILE, a configuration that has a backend "here". */
int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    try {
        dl::client client(argv[1], "here");
#define RUN(name)                    \
    std::cout << #name << std::endl; \
    name(client)
        RUN(two_threads_exclude_each_other);
        RUN(a_wait_has_an_end);
        RUN(a_clock_that_is_set_back_is_waited_for);
        RUN(a_guard_holds_and_tells);
        RUN(a_loss_is_seen_and_ends_nothing);
        RUN(errors_say_status_and_message);
        RUN(what_is_moved_goes_on);
        RUN(a_task_owns_from_any_thread);
        RUN(a_wait_is_cancelled);
        RUN(an_explicit_lease_can_be_asked_for);
        RUN(a_queue_tells_what_became_of_each);
        RUN(what_a_function_throws_leaves_the_rest);
        RUN(the_end_of_a_queue_frees_what_nobody_took);
    } catch (const std::exception &e) {
        std::cerr << "thrown: " << e.what() << std::endl;
        return 1;
    }
    return 0;
}
