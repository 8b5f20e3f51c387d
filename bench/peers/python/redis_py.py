# redis_py.py - redis-py's Lock in the scenarios of bench/peers: threads of one client, processes in `hot`.
# SPDX-License-Identifier: Apache-2.0
#
# usage: redis_py.py PORT pair|many|hot SECONDS
import multiprocessing
import statistics
import sys
import threading
import time

import redis

WARM_S = 1  # what is done in the first second is not counted
TASKS = 64
CLIENTS = 8
LEASE_S = 30  # without timeout= the key would stay for good when its holder dies; all else is the library's default


def connect(port):
    return redis.Redis(host="127.0.0.1", port=port)


def new_lock(client, scenario, number=0):
    return client.lock(f"redis-py:{scenario}/{number}", timeout=LEASE_S)


def pairs(lock, begin, end):
    """The seconds of each pair that began after begin and ended before end."""
    took = []
    now = time.monotonic()
    while now < end:
        before = now
        lock.acquire()
        lock.release()
        now = time.monotonic()
        if before >= begin and now < end:
            took.append(now - before)
    return took


def run_pair(port, seconds):
    begin = time.monotonic() + WARM_S
    took = pairs(new_lock(connect(port), "pair"), begin, begin + seconds)
    return f"{statistics.median(took) * 1e6:.1f}"


def run_many(port, seconds):
    client = connect(port)
    begin = time.monotonic() + WARM_S
    counts = []

    def work(number):
        counts.append(len(pairs(new_lock(client, "many", number), begin, begin + seconds)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(TASKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"{sum(counts) / seconds:.0f}"


def contend(port, seconds, ready, results):
    lock = new_lock(connect(port), "hot")
    lock.acquire()
    lock.release()
    ready.wait()
    holds, longest = 0, 0.0
    now = time.monotonic()
    begin = now + WARM_S
    end = begin + seconds
    while now < end:
        asked = now
        lock.acquire()  # waits without limit: that is the default
        got = time.monotonic()
        lock.release()
        now = time.monotonic()
        if got >= begin:
            holds += got < end
            longest = max(longest, got - asked)
    results.put((holds, longest))


def run_hot(port, seconds):
    context = multiprocessing.get_context("fork")
    ready, results = context.Barrier(CLIENTS), context.Queue()
    processes = [context.Process(target=contend, args=(port, seconds, ready, results), daemon=True) for _ in range(CLIENTS)]
    for process in processes:
        process.start()
    got = [results.get() for _ in processes]
    holds = [count for count, _ in got]
    jain = sum(holds) ** 2 / (CLIENTS * sum(count**2 for count in holds)) if any(holds) else 0
    return f"{sum(holds) / seconds:.0f} {max(longest for _, longest in got) * 1e3:.1f} {jain:.3f}"


def main():
    scenarios = {"pair": run_pair, "many": run_many, "hot": run_hot}
    if len(sys.argv) != 4 or sys.argv[2] not in scenarios:
        print("usage: redis_py.py PORT pair|many|hot SECONDS", file=sys.stderr)
        sys.exit(64)
    figures = scenarios[sys.argv[2]](int(sys.argv[1]), int(sys.argv[3]))
    print("redis-py", redis.__version__, sys.argv[2], figures)


main()
