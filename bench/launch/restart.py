"""From the death of a rank to the first step of the job that was started again."""

import os
import re
import signal
import threading
import time

from harness.outcome import Outcome, Table, at_least, at_most
from harness.ranks import free_port
from harness.spread import spread
from launch.contestants import PEER_VARIABLES, fault_rank, job, peer_rank, tessera, torchrun

KILLS = 50
PEER_KILLS = 6
RANKS = 2
SECONDS = 1.5
PEER_CAP = 20        # seconds for a restart of the peer; a longer one counts as failed
TRAINS_FOR = 0.2     # before the next kill
# Anchored at the line's beginning, because the launcher repeats the last lines of a rank that failed.
SAYS = re.compile(r"^(?:\[rank \d+\] )?rank (\d+) of generation (\d+) is process (\d+)")


class Victims:
    """Kills one rank of each generation, and records how long it takes until the next generation trains."""

    def __init__(self, kills, stop):
        self.kills = kills
        self.stop = stop
        self.ranks = {}      # rank to process, in the newest generation
        self.generation = -1
        self.killed_at = None
        self.seconds = []

    def __call__(self, line):
        found = SAYS.search(line)
        if not found:
            return
        rank, generation, process = map(int, found.groups())
        if generation > self.generation:
            self.generation, self.ranks = generation, {}
        self.ranks[rank] = process
        if len(self.ranks) < RANKS:
            return
        if self.killed_at is not None:
            self.seconds.append(time.monotonic() - self.killed_at)
        if len(self.seconds) == self.kills:
            self.stop()
        else:
            threading.Timer(TRAINS_FOR, self.kill, [self.ranks[generation % RANKS]]).start()

    def kill(self, process):
        self.killed_at = time.monotonic()
        os.kill(process, signal.SIGKILL)


def kill_in_turn(command, kills, timeout, variables=None):
    running = job.Job(command, variables)
    victims = Victims(kills, lambda: running.process.send_signal(signal.SIGTERM))
    running.read_all(timeout, victims)
    if left := running.survivors(10):
        running.kill()
        raise RuntimeError(f"processes {left} outlive the job")
    return victims.seconds, running


def ours(context, backend, kills):
    command = [tessera(context), "run", "--nproc-per-node", RANKS, "--max-restarts", kills, "--",
               fault_rank(context), "steady", 0, backend, 60]
    seconds, running = kill_in_turn(command, kills, 60 + 5 * kills)
    if len(seconds) < kills:
        print(running.text()[-2000:], flush=True)
    return seconds


def peer(context):
    """Each restart is measured in a job of its own, because many of these jobs never train again."""
    command = [*torchrun(context, RANKS, "--max-restarts", 1, "--master-addr", "127.0.0.1", "--master-port",
                         free_port()), peer_rank(context), "steady", 0]
    seconds, _ = kill_in_turn(command, 1, PEER_CAP + 10, PEER_VARIABLES)
    return seconds


def start_of(context, backend):
    """Seconds from the start of the launcher to the first step, without any fault."""
    began = time.monotonic()
    first = []

    def look(line):
        if SAYS.search(line):
            first.append(time.monotonic() - began)
            if len(first) == RANKS:
                running.process.send_signal(signal.SIGTERM)

    running = job.Job([tessera(context), "run", "--nproc-per-node", RANKS, "--", fault_rank(context), "steady", 0,
                       backend, 60])
    running.read_all(60, look)
    return max(first, default=float("inf"))


def measure(context):
    context.settle()
    kills = context.rounds or KILLS
    seconds = {backend: ours(context, backend, kills) for backend in ("gloo", "shm")}
    peers = [one for _ in range(min(kills, PEER_KILLS)) for one in (peer(context) or [None])]
    trained = [one for one in peers if one is not None]
    starts = {backend: [start_of(context, backend) for _ in range(3)] for backend in seconds}
    rows = [[f"tessera run, {backend}", f"{len(values)} of {kills}", spread(values) if values else "-",
             spread(starts[backend])] for backend, values in seconds.items()]
    rows.append(["torchrun, gloo", f"{len(trained)} of {len(peers)}", spread(trained) if trained else "-", ""])
    bars = []
    for backend, values in seconds.items():
        bars.append(at_least(f"{backend}: restarts that trained again", len(values), kills, "{:d}"))
        bars.append(at_most(f"{backend}: slowest restart, s", max(values, default=float("inf")), SECONDS))
    return Outcome(
        f"From SIGKILL of one of {RANKS} ranks to the first step after the restart",
        tables=[Table(["launcher", "trained again", "seconds from the kill", "seconds of a first start"], rows)],
        bars=bars,
        notes=[f"Ours: {kills} kills in a row of one job. "
               f"torchrun: a job for each kill, given {PEER_CAP} s."],
        samples=[{"backend": backend, "seconds": value} for backend, values in seconds.items() for value in values]
        + [{"peer": "torchrun", "seconds": one} for one in peers])
