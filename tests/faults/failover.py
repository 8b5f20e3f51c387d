# failover.py - a replica that lags takes over: two holders at once; what tokens and min_replicas do about it.
# SPDX-License-Identifier: Apache-2.0
#
# usage: tests/interop/witness failover.py HOLDER
# The address of the service is a link to a socket: a failover moves the link, as it would a name.
import os
import time

import parties
from parties import check, compare, equal

NAME = "orders"
KEY = "dlock:orders"
LEASE_MS = 6000  # so renewed every 2 s


class Service:
    """A server with one replica, behind one address."""

    def __init__(self, master, replica):
        self.master, self.replica = master, replica
        self.address = os.path.join(master.folder, "current")
        os.symlink(master.socket, self.address)
        replica.client().execute_command("REPLICAOF", "127.0.0.1", master.port)
        client = replica.client()
        parties.await_true(lambda: client.info("replication")["master_link_status"] == "up", "replicated")

    def config(self, options=""):
        return parties.write_config(self.master, "redis-string", ", lease: %dms%s" % (LEASE_MS, options),
                                    "unix://" + self.address)

    def let_lag(self):
        """From now on the replica gets nothing, and does not know it."""
        self.replica.stop()
        self.master.client().execute_command("CLIENT", "KILL", "TYPE", "replica")

    def in_sync(self):
        """When it returns the replica has all of it. WAIT waits for what its own connection wrote."""
        with self.master.client().pipeline(transaction=False) as pipe:
            replies = pipe.set("marker", 1).execute_command("WAIT", 1, 5000).execute()
        equal(replies[1], 1, "replicas that have it")

    def channels(self, server):
        return server.client().execute_command("PUBSUB", "CHANNELS")

    def swap(self):
        self.in_sync()
        self.master.client().execute_command("FAILOVER")
        parties.await_true(lambda: self.replica.client().info("replication")["role"] == "master", "swapped")
        parties.await_true(lambda: self.master.client().info("replication")["role"] == "slave", "swapped")
        self.lead_to_replica()

    def fail_over(self):
        self.master.kill()
        self.replica.cont()
        self.replica.client().execute_command("REPLICAOF", "NO", "ONE")
        self.lead_to_replica()

    def lead_to_replica(self):
        fresh = self.address + ".new"
        os.symlink(self.replica.socket, fresh)
        os.rename(fresh, self.address)


class Resource:
    """What the lock guards. It keeps the largest token that it has seen, and refuses smaller ones."""

    def __init__(self):
        self.token, self.text = 0, ""

    def write(self, token, text):
        if token < self.token:
            return False
        self.token, self.text = token, text
        return True


def with_service(case):
    """A case of (program, service)."""
    def run(program):
        with parties.server(True) as master, parties.server(True) as replica:
            case(program, Service(master, replica))
        print("%s: as it must be" % case.__name__)
    return run


@with_service
def a_replica_in_sync_keeps_the_lock(program, service):
    """The control: without lag there is no second holder."""
    config = service.config()
    with parties.holder(program, config) as first, parties.holder(program, config) as second:
        first.ask("DL_OK", "lock", NAME)
        service.in_sync()
        service.fail_over()
        second.ask("DL_EBUSY", "lock", NAME, 0)
        compare(first.ask("DL_OK", "valid", NAME).valid, ">", 0, "the first holder still holds")
        first.ask("DL_OK", "unlock", NAME)
        second.ask("DL_OK", "lock", NAME, 0)
        second.ask("DL_OK", "unlock", NAME)


@with_service
def a_lagging_replica_loses_it_and_tokens_stop_the_stale_holder(program, service):
    resource = Resource()
    config = service.config()
    with parties.holder(program, config) as first, parties.holder(program, config) as second:
        service.let_lag()
        token = first.ask("DL_OK", "lock", NAME).token
        check(resource.write(token, "first"), "the first holder writes")
        service.fail_over()
        later = second.ask("DL_OK", "lock", NAME, 0)
        overlap_ms = first.ask("DL_OK", "valid", NAME).valid
        compare(overlap_ms, ">", 0, "the first holds it")
        compare(later.valid, ">", 0, "and so does the second: asynchronous replication can do that")
        compare(later.token, ">", token, "the later holder's token is larger, although the counter was lost too")
        check(resource.write(later.token, "second"), "the second holder writes")
        check(not resource.write(token, "first again"), "the resource refuses the stale holder")
        equal(resource.text, "second", "what the resource holds")
        # The next renewal tells the first, a third of the lease later at most.
        parties.await_true(lambda: first.ask("DL_OK", "valid", NAME).valid == 0, "told")
        events = []
        while not events or events[-1].status == "DL_OK":
            events.append(first.ask(None, "event"))
        equal(sum("DL_OK lost:" in event.line for event in events), 1, "events of the loss")
        first.ask("DL_ELOST", "unlock", NAME)
        compare(second.ask("DL_OK", "valid", NAME).valid, ">", 0, "the successor is untouched")
        seen = second.ask("DL_OK", "inspect", NAME)
        equal((seen.held, seen.ours), (1, 1), "the lock on the server")
        second.ask("DL_OK", "unlock", NAME)
    print("both held it for up to %d ms more; tokens %d < %d" % (overlap_ms, token, later.token))


@with_service
def who_waits_hears_at_the_new_primary(program, service):
    """Both go on, in each other's place, and no connection ends."""
    config = service.config()
    with parties.holder(program, config) as first, parties.holder(program, config) as second:
        first.ask("DL_OK", "lock", NAME)
        second.say("lock", NAME)
        parties.await_true(lambda: service.channels(service.master), "the second waits")
        service.swap()
        parties.await_true(lambda: service.channels(service.replica), "the second hears at the new primary")
        compare(first.ask("DL_OK", "valid", NAME).valid, ">", 0, "the first still holds")
        # Its connection may not have met the change yet: then it is freed in the background.
        check(first.ask(None, "unlock", NAME).status in ("DL_OK", "DL_EIO"), "the first frees it")
        second.answer("DL_OK")
        second.ask("DL_OK", "unlock", NAME)


def expect_refused(program, service):
    with parties.holder(program, service.config(", min_replicas: 1, replica_timeout: 100ms")) as careful:
        began = time.monotonic()
        careful.ask("DL_EIO", "lock", NAME, 0)
        compare(time.monotonic() - began, "<", 2.1, "within the call_timeout")
        # Waiting does not help: the answer is as clear, after the time that a server is given.
        careful.ask("DL_EIO", "lock", NAME)
        # What had been taken is given back.
        client = service.master.client()
        parties.await_true(lambda: client.exists(KEY) == 0, "freed")


@with_service
def min_replicas_refuses_a_lock_that_only_the_master_has(program, service):
    options = ", min_replicas: 1, replica_timeout: 5s, call_timeout: 10s"
    with parties.holder(program, service.config(options)) as careful:
        careful.ask("DL_OK", "lock", NAME)
        equal(service.replica.client().exists(KEY), 1, "keys on the replica when the lock is granted")
        careful.ask("DL_OK", "unlock", NAME)
    service.let_lag()
    expect_refused(program, service)


@with_service
def min_replicas_refuses_when_the_replica_is_dead(program, service):
    service.replica.kill()
    expect_refused(program, service)


@with_service
def min_replicas_may_warn_only(program, service):
    service.replica.kill()
    options = ", min_replicas: 1, replica_timeout: 100ms, replica_shortfall: warn"
    with parties.holder(program, service.config(options)) as careful:
        careful.ask("DL_OK", "lock", NAME)
        event = careful.ask("DL_OK", "event")
        check("DL_OK warning:" in event.line and "replica" in event.line, "a warning, not '%s'" % event.line)
        careful.ask("DL_OK", "unlock", NAME)
    print("the warning: " + event.line)


def main():
    program, _ = parties.arguments()
    a_replica_in_sync_keeps_the_lock(program)
    a_lagging_replica_loses_it_and_tokens_stop_the_stale_holder(program)
    who_waits_hears_at_the_new_primary(program)
    min_replicas_refuses_a_lock_that_only_the_master_has(program)
    min_replicas_refuses_when_the_replica_is_dead(program)
    min_replicas_may_warn_only(program)


main()
