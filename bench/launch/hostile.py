"""A job whose listeners are attacked by somebody without the secret: whether its speed suffers, and by how much."""

import multiprocessing
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from harness.outcome import Outcome, Table, at_least, at_most
from harness.spread import median, spread
from launch.contestants import fault_rank, job, tessera

RANKS = 2
ROUNDS = 40
WINDOW = 2.0             # seconds of peace, and then of attack
CONNECTIONS = 10_000     # on every listener
SLOWER = 0.05
JOB_CORE, ATTACKER_CORE = 0, 1
STEPS = re.compile(r"(\d+) steps")


class Counting:
    """A job that reports its progress."""

    def __init__(self, context):
        # The whole job runs on one core, so that the time a listener spends on strangers is taken from the ranks.
        self.job = job.Job(["taskset", "-c", JOB_CORE, tessera(context), "run", "--nproc-per-node", RANKS, "--",
                            fault_rank(context), "counting", 0, "shm", 60])
        self.steps = []      # (seconds, steps)
        self.exit_code = None
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        self.exit_code = self.job.read_all(600, self.look)

    def look(self, line):
        if found := STEPS.search(line):
            self.steps.append((time.monotonic(), int(found.group(1))))

    def rate(self, begin, end):
        inside = [one for one in self.steps if begin <= one[0] <= end]
        if len(inside) < 2:
            raise RuntimeError("the job made no steps\n" + self.job.text()[-2000:])
        (first, low), (last, high) = inside[0], inside[-1]
        return (high - low) / (last - first)

    def end(self):
        self.job.process.send_signal(signal.SIGTERM)
        self.thread.join()


def inodes_of(pid):
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def listeners(token):
    """Every port on which a process of the job listens, with the process."""
    owners = {inode: pid for pid in job.processes_with(token) for inode in inodes_of(pid)}
    return {int(place.rpartition(":")[2], 16): owners[inode] for place, inode in job.listening() if inode in owners}


def recorded_hello(context, token):
    """The first bytes that a rank of this job sends, with the job's own secret: for replays."""
    for pid in job.processes_with(token):
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        variables = dict(entry.decode().split("=", 1) for entry in entries if b"=" in entry)
        if "TESSERA_SECRET" in variables and "RANK" in variables:
            break
    else:
        raise RuntimeError("no rank of the job has a secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        variables["TESSERA_STORE"] = f"127.0.0.1:{listener.getsockname()[1]}"
        del variables["TESSERA_BLACK_BOX"]  # it belongs to the rank whose variables these are
        client = subprocess.Popen([fault_rank(context), "steady", "0", "shm", "5"], env=variables,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            listener.settimeout(20)
            connection, _ = listener.accept()
            with connection:
                return connection.recv(65536)
        finally:
            client.kill()
            client.wait()


def one_attack(chance, port, hello):
    with socket.create_connection(("127.0.0.1", port), 0.1) as connection:
        kind = chance.randrange(5)
        if kind == 0:
            connection.sendall(chance.randbytes(chance.randrange(3000)))
        elif kind == 1:
            connection.sendall(hello[:chance.randrange(len(hello))])
        elif kind == 2:
            place = chance.randrange(len(hello))
            connection.sendall(hello[:place] + bytes([hello[place] ^ chance.randrange(1, 256)]) + hello[place + 1:])
        elif kind == 3:
            connection.sendall(hello + chance.randbytes(200))
            connection.settimeout(0.05)
            try:
                connection.recv(4096)
            except TimeoutError:
                pass


def attacker(port, hello, go, stop, count):
    """Connects as fast as the listener allows."""
    os.sched_setaffinity(0, {ATTACKER_CORE})
    chance = random.Random(port)
    while not stop.is_set():
        if not go.wait(0.1):
            continue
        try:
            one_attack(chance, port, hello)
        except (TimeoutError, ConnectionRefusedError):
            continue  # the listener's queue is full, or it is gone: no connection
        except OSError:
            pass  # refused or reset in the middle of it
        with count.get_lock():
            count.value += 1


def measure(context):
    if len(os.sched_getaffinity(0)) < 2:
        raise RuntimeError("needs two cores: one for the job, one for who attacks it")
    context.settle()
    rounds = context.rounds or ROUNDS
    counting = Counting(context)
    go, stop = multiprocessing.Event(), multiprocessing.Event()
    samples = []
    try:
        while len(counting.steps) < 20 and counting.thread.is_alive():
            time.sleep(0.05)
        ports = listeners(counting.job.token)
        hello = recorded_hello(context, counting.job.token)
        counts = {port: multiprocessing.Value("q", 0) for port in ports}
        attackers = [multiprocessing.Process(target=attacker, args=(port, hello, go, stop, count))
                     for port, count in counts.items()]
        for process in attackers:
            process.start()
        try:
            for number in range(rounds):
                samples.append(one_round(counting, go, number))
        finally:
            stop.set()
            for process in attackers:
                process.join()
        open_sockets = {pid: len(inodes_of(pid)) for pid in set(ports.values())}
    finally:
        counting.end()
    each = min(count.value for count in counts.values())
    total = sum(count.value for count in counts.values())
    loss = [1 - one["attacked"] / one["quiet"] for one in samples]
    ok = counting.exit_code == 128 + signal.SIGTERM and "tessera: rank" not in counting.job.text()
    return Outcome(
        f"{len(ports)} listeners of a job of {RANKS} ranks, attacked without the secret",
        tables=[Table(["", "steps a second"], [["in peace", spread([one["quiet"] for one in samples], digits=0)],
                                               ["attacked", spread([one["attacked"] for one in samples], digits=0)]])],
        bars=[at_least("connections on every listener", each, CONNECTIONS, "{:d}"),
              at_most("slower under attack", median(loss), SLOWER, "{:.3f}"),
              at_least("the job went on until it was asked to end", int(ok), 1, "{:d}")],
        notes=[f"Ports {sorted(ports)}; {total / (rounds * WINDOW):.0f} connections a second. The job has one "
               "core, the attacker another one.",
               f"Sockets open afterwards, by process: {open_sockets}."],
        samples=samples)


def one_round(counting, go, number):
    begin = time.monotonic()
    time.sleep(WINDOW)
    middle = time.monotonic()
    go.set()
    time.sleep(WINDOW)
    go.clear()
    end = time.monotonic()
    time.sleep(0.5)  # until the listeners have handled what has arrived
    return {"round": number, "quiet": counting.rate(begin, middle), "attacked": counting.rate(middle, end)}
