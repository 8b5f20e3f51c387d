# parties.py - what the witnesses share: a Redis server of their own, our side as a process, and checks.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import ctypes
import operator
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import redis

PATIENCE_S = 20  # a process that says nothing for this long has failed


def die_with_us():
    """In a child: killed when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def fail(what):
    """Ends it, and says from which line of the test."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    file = os.path.realpath(frame.f_code.co_filename)
    raise SystemExit("tests/%s:%d: %s" % (file.split("/tests/")[-1], frame.f_lineno, what))


def check(truth, what):
    """For what is true or not; where two values are compared, compare says what they were."""
    if not truth:
        fail("not true: " + what)


def equal(actual, expected, what):
    if actual != expected:
        fail("%s is %r, expected %r" % (what, actual, expected))


RELATIONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt}


def compare(a, relation, b, what):
    if not RELATIONS[relation](a, b):
        fail("not true: %s: %r %s %r" % (what, a, relation, b))


PORTS = []


def take_port():
    """A free one, kept by a socket until we end: a server can listen there again after it was killed, and nobody else."""
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    PORTS.append(one)
    return one.getsockname()[1]


class Server:
    """A Redis server on a unix socket in a folder of its own; with_port: on a free port of this host too."""

    def __init__(self, with_port=False, *options):
        self.folder = tempfile.mkdtemp(prefix="dlock-interop-")
        self.socket = os.path.join(self.folder, "redis.sock")
        self.port = take_port() if with_port else 0
        if not self.start(options):
            raise SystemExit("redis-server did not start")

    def start(self, options):
        program = os.environ.get("DLOCK_REDIS_SERVER", "redis-server")
        self.process = subprocess.Popen(
            [program, "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.socket, "--save", "",
             "--appendonly", "no", "--repl-diskless-sync-delay", "0", "--dir", self.folder, "--logfile", "",
             *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_us)
        for line in self.process.stdout:
            if "eady to accept connections" in line:
                # Nobody reads on; the pipe must not fill.
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return True
        self.process.wait()
        return False

    def client(self):
        return redis.Redis(unix_socket_path=self.socket, socket_timeout=PATIENCE_S)

    def url(self):
        return "unix://" + self.socket

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self):
        """Returns when it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def cont(self):
        self.process.send_signal(signal.SIGCONT)

    def close(self):
        self.kill()
        shutil.rmtree(self.folder)


@contextlib.contextmanager
def server(with_port=False, *options):
    one = Server(with_port, *options)
    try:
        yield one
    finally:
        one.close()


class Answer:
    """One line of the holder: its status and the numbers behind it."""

    def __init__(self, line):
        self.line = line.strip()
        self.status = self.line.split(" ")[0]
        self.values = dict(word.split("=", 1) for word in self.line.split(" ")[1:] if "=" in word)

    def __getattr__(self, name):
        value = self.values[name]
        return value if name == "owner" else int(value)


class Holder:
    """Our side: the program holder.c. ask() waits for the answer; say() and answer() are its halves."""

    def __init__(self, program, config):
        self.process = subprocess.Popen([program, config], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, bufsize=1, preexec_fn=die_with_us)
        self.answer("DL_OK")

    def say(self, *words):
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()

    def answer(self, expected=None):
        watchdog = threading.Timer(PATIENCE_S * 10, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        answer = Answer(line)
        if expected is not None:
            equal(answer.status, expected, "the answer '%s'" % answer.line)
        return answer

    def ask(self, expected, *words):
        self.say(*words)
        return self.answer(expected)

    def close(self):
        self.process.stdin.close()
        equal(self.process.wait(PATIENCE_S), 0, "the holder's exit status")


@contextlib.contextmanager
def holder(program, config):
    one = Holder(program, config)
    try:
        yield one
    except BaseException:
        one.process.kill()
        raise
    one.close()


def write_config(where, driver, options="", url=None):
    """Of one backend; options begin with a comma."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=where.folder, delete=False) as file:
        file.write('use: here\nbackends:\n  here: {driver: %s, url: "%s"%s}\n' % (
            driver, url or where.url(), options))
    return file.name


def tries(client):
    """How often scripts were called by their hash: our side's way; the witnesses send theirs whole."""
    return client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)


def await_true(truth, what):
    """For what can only be asked for."""
    until = time.monotonic() + PATIENCE_S
    while not truth():
        check(time.monotonic() < until, "never: " + what)
        time.sleep(0.001)


def summary(label, times_ms):
    times_ms = sorted(times_ms)
    return "%s: %d times, median %.2f ms, longest %.2f ms" % (
        label, len(times_ms), times_ms[len(times_ms) // 2], times_ms[-1])


def increment(path):
    with open(path, "r+") as file:
        value = int(file.read())
        file.seek(0)
        file.write("%d\n" % (value + 1))


def count_together(where, count, ours, theirs):
    """Both sides add to one number, each in a way that only a lock makes safe. Returns the seconds."""
    path = os.path.join(where.folder, "number")
    with open(path, "w") as file:
        file.write("0\n")
    began = time.monotonic()
    ours.say("count", "shared", path, count)
    for _ in range(count):
        theirs(lambda: increment(path))
    ours.answer("DL_OK")
    seconds = time.monotonic() - began
    with open(path) as file:
        equal(int(file.read()), 2 * count, "the number that both sides counted to")
    return seconds


def arguments():
    """HOLDER [COUNT]"""
    return sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10000
