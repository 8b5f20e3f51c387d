/* dlock.hpp - libdlock for C++17: objects that close themselves, and locks for the standard's guards. */
/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLOCK_DLOCK_HPP
#define DLOCK_DLOCK_HPP

#if __cplusplus < 201703L
#error "dlock.hpp needs C++17 (-std=c++17)"
#endif

#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "dlock/dlock.h"

/*
 * Inline functions over dlock.h, whose comments hold here too. What fails throws dl::error, but for what is
 * noexcept. Objects can be moved, not copied; one that was moved from answers DL_EINVAL. get() gives the C
 * object, for all that has no member here; it still belongs to the C++ object. Callbacks of C must not throw.
 */
#ifdef __GNUC__ /* One thread's failures, and one category, for all libraries of a program, hidden or not. */
#pragma GCC visibility push(default)
#endif
namespace dl {

/* The category of dl_status_t: an error_code of it has the status as its value. */
inline const std::error_category &category() noexcept {
    struct statuses final : std::error_category {
        const char *name() const noexcept override {
            return "dlock";
        }
        std::string message(int status) const override {
            return dl_status_text(static_cast<dl_status_t>(status));
        }
    };
    static const statuses only;
    return only;
}

/* What every failure throws. what() is the library's message: one line without secrets. */
class error : public std::system_error {
  public:
    explicit error(const dl_error_t &err)
        : std::system_error(static_cast<int>(err.status), category()), error_(err) {
    }
    const char *what() const noexcept override {
        return error_.message;
    }
    dl_status_t status() const noexcept {
        return error_.status;
    }
    /* The backend's or errno's own code; 0 when there is none. */
    int native() const noexcept {
        return error_.native;
    }

  private:
    dl_error_t error_;
};

namespace detail {

template <auto Close> struct closer {
    template <class Object> void operator()(Object *object) const noexcept {
        Close(object);
    }
};
using client_handle = std::unique_ptr<dl_client_t, closer<dl_client_close>>;
using lock_handle = std::unique_ptr<dl_lock_t, closer<dl_lock_close>>;
using cancel_handle = std::unique_ptr<dl_cancel_t, closer<dl_cancel_free>>;
using queue_handle = std::unique_ptr<dl_queue_t, closer<dl_queue_free>>;

template <class Handle, class Open> Handle open(Open call) {
    typename Handle::pointer made = nullptr;
    dl_error_t err{};
    if (call(&made, &err) != DL_OK)
        throw error(err);
    return Handle(made);
}

/* The first unlock of this thread that failed, and that nobody has asked for yet. */
inline thread_local dl_error_t unlock_error{};

/* Rounded up, so that nobody waits for less than was asked for. */
inline std::int64_t wait_of(std::chrono::duration<double, std::milli> wait) noexcept {
    if (!(wait.count() > 0))
        return 0;
    return wait.count() < static_cast<double>(DL_WAIT_MAX_MS)
               ? static_cast<std::int64_t>(std::ceil(wait.count()))
               : DL_WAIT_MAX_MS;
}

} // namespace detail

/* One opened backend. Its end releases what is held; its locks may live longer, and answer DL_ECLOSED. */
class client {
  public:
    /* As dl_client_open: nullptr is the usual file, and the backend that environment or file names. */
    explicit client(const char *path = nullptr, const char *backend = nullptr)
        : client(detail::open<detail::client_handle>(
              [&](auto made, auto err) { return dl_client_open(path, backend, made, err); })) {
    }
    /* As dl_client_open_text, from YAML in memory. */
    static client from_text(const std::string &yaml, const char *backend = nullptr) {
        return client(detail::open<detail::client_handle>([&](auto made, auto err) {
            return dl_client_open_text(yaml.data(), yaml.size(), backend, made, err);
        }));
    }
    dl_client_t *get() const noexcept {
        return handle_.get();
    }

  private:
    explicit client(detail::client_handle handle) noexcept : handle_(std::move(handle)) {
    }
    detail::client_handle handle_;
};

/* Ends waits: give get() to dl_acquire_opts_t.cancel. It has to outlive the calls that use it. */
class cancel_source {
  public:
    cancel_source() : handle_(detail::open<detail::cancel_handle>(dl_cancel_new)) {
    }
    /* For good, from any thread or signal handler. */
    void trigger() const noexcept {
        dl_cancel_trigger(handle_.get());
    }
    dl_cancel_t *get() const noexcept {
        return handle_.get();
    }

  private:
    detail::cancel_handle handle_;
};

/*
 * One named lock; dl::lock is the name to use. It is Lockable and TimedLockable, for std::lock_guard,
 * std::unique_lock and std::scoped_lock, and recursive. Any thread may use it at any time; the thread that
 * calls is the owner, except where the lock was opened with the number of one. The end of the object does not
 * unlock: that is for a guard.
 */
class named_lock {
  public:
    /* As dl_lock_open. A name with a zero byte is DL_EINVAL. */
    named_lock(const client &of, const std::string &name)
        : handle_(detail::open<detail::lock_handle>(
              [&](auto made, auto err) { return dl_lock_open(of.get(), whole(name), made, err); })) {
    }
    /* As dl_lock_open_owned: every call acts for `owner`, from any thread. */
    named_lock(const client &of, const std::string &name, std::uint64_t owner)
        : handle_(detail::open<detail::lock_handle>([&](auto made, auto err) {
              return dl_lock_open_owned(of.get(), whole(name), owner, made, err);
          })) {
    }

    /* Waits for as long as another holder has it; renewed in the background. Throws on all but DL_OK. */
    void lock() {
        dl_error_t err{};
        if (dl_lock(handle_.get(), &err) != DL_OK)
            throw error(err);
    }
    /* These four: false on DL_EBUSY and DL_ETIMEDOUT, and throw on all else but DL_OK. Renewed as lock(),
     * unless opts has a lease of its own. */
    bool try_lock() {
        return try_lock_for(std::chrono::milliseconds::zero());
    }
    /* Waits up to 365 days. */
    template <class Rep, class Period> bool try_lock_for(const std::chrono::duration<Rep, Period> &wait) {
        dl_acquire_opts_t opts = DL_ACQUIRE_OPTS_INIT;
        opts.wait_ms = detail::wait_of(wait);
        return try_lock(opts);
    }
    template <class Clock, class Duration>
    bool try_lock_until(const std::chrono::time_point<Clock, Duration> &when) {
        /* In double nothing overflows. Waits are measured by another clock, so `when` is looked at again. */
        using ms = std::chrono::duration<double, std::milli>;
        for (;;) {
            const ms left = ms(when.time_since_epoch()) - ms(Clock::now().time_since_epoch());
            if (try_lock_for(left))
                return true;
            if (!(Clock::now() < when))
                return false;
        }
    }
    /* As dl_acquire, with a wait, a lease, a max_hold and a cancel of its own: a cancelled wait throws. */
    bool try_lock(const dl_acquire_opts_t &opts) {
        dl_error_t err{};
        const dl_status_t status = dl_acquire(handle_.get(), &opts, &err);
        if (status != DL_OK && status != DL_EBUSY && status != DL_ETIMEDOUT)
            throw error(err);
        return status == DL_OK;
    }
    /* As dl_unlock. Guards call it as they end, so it never throws: see check_unlock() below. */
    void unlock() noexcept {
        dl_error_t err{};
        if (dl_unlock(handle_.get(), &err) != DL_OK && detail::unlock_error.status == DL_OK)
            detail::unlock_error = err;
    }

    /* As dl_extend; without an argument by the client's lease. */
    void extend(std::chrono::milliseconds lease = std::chrono::milliseconds(DL_LEASE_AUTO)) {
        dl_error_t err{};
        if (dl_extend(handle_.get(), lease.count(), &err) != DL_OK)
            throw error(err);
    }
    /* How long the owner may still act as holder; 0: not held or lost. Ask before each step that matters. */
    std::chrono::milliseconds valid_for() const noexcept {
        return std::chrono::milliseconds(dl_valid_ms(handle_.get()));
    }
    /* The fencing token of the owner's hold; 0: not held, or the backend has none. */
    std::uint64_t token() const noexcept {
        return dl_token(handle_.get());
    }
    /* How many levels the owner has entered and not left, lost ones included. */
    std::uint32_t hold_count() const noexcept {
        return dl_hold_count(handle_.get());
    }
    dl_lock_t *get() const noexcept {
        return handle_.get();
    }

  private:
    /* "" is refused by the library; a name that C would see cut short would be another lock's. */
    static const char *whole(const std::string &name) noexcept {
        return name.find('\0') == std::string::npos ? name.c_str() : "";
    }
    detail::lock_handle handle_;
};
using lock = named_lock; /* lock(), which guards ask for, cannot be a member of a class of that name */

/*
 * What unlock() could not say: the first failure of an unlock() by this thread since it was last asked for.
 * Its status is DL_OK when there was none; DL_ELOST: the work was not protected to its end. To be called by
 * the thread that unlocked, after each guard.
 */
inline dl_error_t take_unlock_error() noexcept {
    const dl_error_t first = detail::unlock_error;
    detail::unlock_error.status = DL_OK;
    return first;
}
/* The same, thrown. */
inline void check_unlock() {
    const dl_error_t first = take_unlock_error();
    if (first.status != DL_OK)
        throw error(first);
}

/*
 * Operations that nobody waits for, as the queues of dlock.h: they begin here, and take() tells what became
 * of them. For locks that were opened with the number of an owner. The end of the object cancels what is
 * under way, and frees in the background what was acquired and not taken.
 */
class queue {
  public:
    queue() : handle_(detail::open<detail::queue_handle>(dl_queue_new)) {
    }
    /* Readable while take() has something to tell; only poll it. */
    int fd() const noexcept {
        return dl_queue_fd(handle_.get());
    }
    /* These three: a number for cancel(), and `tag` comes back with the completion. */
    std::uint64_t begin_lock(const named_lock &of, void *tag,
                             const dl_acquire_opts_t &opts = DL_ACQUIRE_OPTS_INIT) {
        return begin([&](auto id, auto err) {
            return dl_acquire_begin(of.get(), &opts, handle_.get(), tag, id, err);
        });
    }
    std::uint64_t begin_unlock(const named_lock &of, void *tag) {
        return begin(
            [&](auto id, auto err) { return dl_unlock_begin(of.get(), handle_.get(), tag, id, err); });
    }
    std::uint64_t begin_extend(const named_lock &of, void *tag,
                               std::chrono::milliseconds lease = std::chrono::milliseconds(DL_LEASE_AUTO)) {
        return begin([&](auto id, auto err) {
            return dl_extend_begin(of.get(), lease.count(), handle_.get(), tag, id, err);
        });
    }
    /* As dl_op_cancel. */
    dl_status_t cancel(std::uint64_t id) noexcept {
        return dl_op_cancel(handle_.get(), id);
    }
    /* Calls each(const dl_completion_t &) for what waits, oldest first, `max` times at most, and returns how
     * often. It never blocks. `each` may begin and cancel here; what it throws leaves the rest to the next
     * call. */
    template <class Function> std::size_t take(Function each, std::size_t max = 64) {
        std::size_t taken = 0;
        for (dl_completion_t done{};
             taken < max && dl_queue_take(handle_.get(), &done, sizeof done, 1) == 1;) {
            taken++;
            each(static_cast<const dl_completion_t &>(done));
        }
        return taken;
    }
    dl_queue_t *get() const noexcept {
        return handle_.get();
    }

  private:
    template <class Begin> static std::uint64_t begin(Begin call) {
        std::uint64_t id = 0;
        dl_error_t err{};
        if (call(&id, &err) != DL_OK)
            throw error(err);
        return id;
    }
    detail::queue_handle handle_;
};

} // namespace dl
#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#endif
