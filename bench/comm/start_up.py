"""From the start of two processes to their first all-reduce: ours in a plain loop, and torchrun's."""

import os
import select
import time

from harness.machine import Foreign, wait_until_quiet
from harness.outcome import Outcome, Table, at_most
from harness.ranks import Ranks, free_port, variables
from harness.spread import median, ratios, spread

RANKS = 2
ROUNDS = 9
SECONDS = 0.6
QUIET_CORES = 0.3  # a sample during which other processes used more is not judged if enough quiet samples are left
TIMEOUT = 60
READY = b"ready"  # not the whole line: under torchrun, Python writes the end of the line separately


def until_ready(name, ranks):
    """Reads the processes' output until every rank has printed that it is ready."""
    pipes = [process.stdout.fileno() for process in ranks.processes]
    text = b""
    end = time.monotonic() + TIMEOUT
    while text.count(READY) < RANKS:
        readable = select.select(pipes, [], [], max(0, end - time.monotonic()))[0] if pipes else []
        if not readable:
            ranks.fail(f"{name}: {text.count(READY)} of {RANKS} ranks were ready when "
                       f"{f'{TIMEOUT} s had passed' if pipes else 'the last one ended'}")
        for pipe in readable:
            read = os.read(pipe, 4096)
            text += read
            if not read:
                pipes.remove(pipe)


def ours(context, ranks):
    port = free_port()
    for rank in range(RANKS):
        ranks.start([context.app, "bench", "all-reduce", "--first"], variables(rank, RANKS, "127.0.0.1", port))


def torchrun(context, ranks):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks.start([context.python, "-m", "torch.distributed.run", "--nproc-per-node", RANKS, "--master-addr", "127.0.0.1",
                 "--master-port", free_port(), context.root / "bench" / "peers" / "first_all_reduce.py"], environment)


CONTESTANTS = {"tessera, a plain loop": ours, "torchrun": torchrun}


def sample(context, name, start):
    with Foreign() as foreign, Ranks() as ranks:
        began = time.monotonic()
        start(context, ranks)
        until_ready(name, ranks)
        seconds = time.monotonic() - began
        ranks.wait(TIMEOUT)
    return seconds, foreign.cores


def round_of(context, number):
    wait_until_quiet(min(30, context.wait), calm=1.0)
    figures = {name: sample(context, name, start) for name, start in CONTESTANTS.items()}
    return {"round": number, "seconds": {name: seconds for name, (seconds, _) in figures.items()},
            "foreign_cores": max(cores for _, cores in figures.values())}


def measure(context):
    context.settle()
    wanted = context.rounds or ROUNDS
    round_of(context, -1)  # loads the files of both into the page cache
    rounds, calm = [], []
    while len(calm) < wanted and len(rounds) < 3 * wanted:
        rounds.append(round_of(context, len(rounds)))
        calm = [one for one in rounds if one["foreign_cores"] <= QUIET_CORES]
    judged = calm if len(calm) >= wanted else rounds
    seconds = {name: [one["seconds"][name] for one in judged] for name in CONTESTANTS}
    own, peer = seconds.values()
    notes = [f"{len(calm)} of {len(rounds)} rounds undisturbed; judged: {len(judged)}.",
             f"torchrun takes {spread(ratios(peer, own), digits=1)} times as long."]
    return Outcome(
        f"From start to the first all-reduce, {RANKS} ranks",
        tables=[Table(["contestant", "seconds"], [[name, spread(values)] for name, values in seconds.items()])],
        bars=[at_most(f"start of {RANKS} ranks to their first all-reduce, s", median(own), SECONDS)],
        notes=notes, samples=rounds)
