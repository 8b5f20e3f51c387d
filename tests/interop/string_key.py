# string_key.py - redis-py's Lock, redis-cli's SET NX PX and redis-string exclude each other on one key.
# SPDX-License-Identifier: Apache-2.0
#
# usage: string_key.py HOLDER [COUNT]      COUNT: how far each side counts under the one lock (10000)
import subprocess
import time
import uuid

from redis.exceptions import LockNotOwnedError
from redis.lock import Lock

import parties
from parties import check, compare, equal

KEY = "app:shared"
LEASE_MS = 30000

# A registry of Spring's, written from the description: its own or a free key is taken; the unlock compares, and tells
# the key on a channel of its own.
REGISTRY_OBTAIN = """
local held = redis.call('get', KEYS[1])
if held and held ~= ARGV[1] then
    return 0
end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return 1
"""
REGISTRY_UNLOCK = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then
    return 0
end
redis.call('unlink', KEYS[1])
redis.call('publish', ARGV[2], KEYS[1])
return 1
"""


def set_by_cli(where, value, lease_ms):
    """SET NX PX as a script would do it. True: it has the lock."""
    answer = subprocess.run(
        ["redis-cli", "-s", where.socket, "SET", KEY, value, "NX", "PX", str(lease_ms)],
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, check=True, timeout=parties.PATIENCE_S)
    return answer.stdout.strip() == "OK"


def theirs_excludes_us(client, lock, ours):
    check(lock.acquire(blocking=False), "redis-py takes the free lock")
    ours.ask("DL_EBUSY", "lock", "shared", 0)
    seen = ours.ask("DL_OK", "inspect", "shared")
    equal((seen.held, seen.ours, seen.owner), (1, 0, lock.local.token.decode()), "who holds, as we see it")
    # An unlock of what is not ours changes nothing.
    ours.ask("DL_ENOTOWNER", "unlock", "shared")
    check(lock.owned(), "redis-py still has its lock")
    # It wakes nobody: we look again after 1 s at most.
    before = parties.tries(client)
    ours.say("lock", "shared")
    parties.await_true(lambda: parties.tries(client) >= before + 2, "we wait")
    lock.release()
    released_ns = time.monotonic_ns()
    waited_ms = (ours.answer("DL_OK").at - released_ns) / 1e6
    compare(waited_ms, "<", 1500, "we look every second, so we have it soon after its release")
    print("redis-py to us: %.0f ms (it does not notify)" % waited_ms)
    ours.ask("DL_OK", "unlock", "shared")


def ours_excludes_theirs(server, client, lock, ours):
    ours.ask("DL_OK", "lock", "shared")
    check(not lock.acquire(blocking=False), "redis-py does not get our lock")
    check(not set_by_cli(server, "me", LEASE_MS), "SET NX PX does not get our lock")
    value = client.get(KEY)
    # What a confused client would send: its own release of a lock that it does not have.
    lock.local.token = b"somebody else"
    try:
        lock.release()
        check(False, "redis-py released our lock")
    except LockNotOwnedError:
        pass
    equal(client.get(KEY), value, "our key after their release")
    compare(ours.ask("DL_OK", "valid", "shared").valid, ">", 0, "we still have it")
    ours.ask("DL_OK", "unlock", "shared")
    check(lock.acquire(blocking=False), "redis-py gets it after our unlock")
    lock.release()


def cli_excludes_us(server, client, ours):
    check(set_by_cli(server, "me", 700), "SET NX PX takes the free lock")
    began = time.monotonic()
    ours.ask("DL_EBUSY", "lock", "shared", 0)
    # It never frees it: the key's own end does.
    token = ours.ask("DL_OK", "lock", "shared", 5000).token
    waited_ms = (time.monotonic() - began) * 1000
    compare(600, "<", waited_ms, "the lock came with the end of the key")
    compare(waited_ms, "<", 1500, "the lock came with the end of the key")
    compare(token, ">", 0, "a token")
    ours.ask("DL_OK", "unlock", "shared")
    equal(client.exists(KEY), 0, "keys left")


def a_hash_is_foreign(client, ours):
    client.hset(KEY, "somebody:1", 1)
    ours.ask("DL_EFOREIGN", "lock", "shared", 0)
    equal(client.hgetall(KEY), {b"somebody:1": b"1"}, "the foreign hash")
    client.delete(KEY)


def a_registry_shares(client, ours):
    """The registry "app": its waiters listen to a pattern, and look for their key in the message."""
    me, channel = str(uuid.uuid4()), "app-channel:" + KEY
    listener = client.pubsub()
    listener.psubscribe("app-channel:*")
    equal(listener.get_message(timeout=parties.PATIENCE_S)["type"], "psubscribe", "the acknowledgement")
    for _ in range(3):
        ours.ask("DL_OK", "lock", "shared")
        equal(client.eval(REGISTRY_OBTAIN, 1, KEY, me, LEASE_MS), 0, "the registry does not get our lock")
        equal(client.eval(REGISTRY_UNLOCK, 1, KEY, me, channel), 0, "nor free it")
        ours.ask("DL_OK", "unlock", "shared")
        message = listener.get_message(timeout=parties.PATIENCE_S)
        check(message is not None, "our unlock wakes those who wait by the registry")
        equal((message["channel"], message["data"]), (channel.encode(), KEY.encode()), "the message")
        equal(client.eval(REGISTRY_OBTAIN, 1, KEY, me, LEASE_MS), 1, "it then has the lock")
        ours.ask("DL_EBUSY", "lock", "shared", 0)
        equal(client.eval(REGISTRY_UNLOCK, 1, KEY, me, channel), 1, "its unlock")
        equal(listener.get_message(timeout=parties.PATIENCE_S)["data"], KEY.encode(), "the echo")
    # It wakes nobody of ours: we look every second.
    equal(client.eval(REGISTRY_OBTAIN, 1, KEY, me, LEASE_MS), 1, "the registry takes the free lock")
    before = parties.tries(client)
    ours.say("lock", "shared")
    parties.await_true(lambda: parties.tries(client) >= before + 2, "we wait")
    equal(client.eval(REGISTRY_UNLOCK, 1, KEY, me, channel), 1, "its unlock")
    ours.answer("DL_OK")
    ours.ask("DL_OK", "unlock", "shared")
    listener.close()


def both_count(server, client, ours, count):
    """redis-py would sleep 100 ms between two tries: here it tries as fast as it can."""
    lock = Lock(client, KEY, timeout=LEASE_MS / 1000, sleep=0.0005, thread_local=False)

    def theirs(work):
        with lock:
            work()

    seconds = parties.count_together(server, count, ours, theirs)
    print("redis-py and we counted to %d, none lost, in %.1f s" % (2 * count, seconds))


def main():
    program, count = parties.arguments()
    with parties.server() as server:
        client = server.client()
        config = parties.write_config(server, "redis-string", ', prefix: "app:"')
        lock = Lock(client, KEY, timeout=LEASE_MS / 1000)
        with parties.holder(program, config) as ours:
            theirs_excludes_us(client, lock, ours)
            ours_excludes_theirs(server, client, lock, ours)
            cli_excludes_us(server, client, ours)
            a_hash_is_foreign(client, ours)
            both_count(server, client, ours, count)
        config = parties.write_config(server, "redis-string", ', prefix: "app:", also_publish: "app-channel:"')
        with parties.holder(program, config) as ours:
            a_registry_shares(client, ours)


main()
