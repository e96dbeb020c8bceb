"""Every backend and algorithm beside bare Gloo, bare MPI and memcpy: `tessera bench comm`, judged."""

import json
import os
import subprocess

from harness.machine import Foreign
from harness.outcome import Bar, Outcome, Table, at_least, at_most
from harness.spread import bytes_text, median, ratios, spread

RANKS = [2, 4, 8]
OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter"]
PEER = "bare gloo"
LARGE = 64 << 20
SMALL = 4 << 10
TIMEOUT = 3600
# The cost of our layer is far below the noise of a call of Gloo. So it is measured within the call, as the time that
# our call does not spend in bare Gloo. Besides, whole calls of both are measured in turns, over the same connection.
OWN_PART = "gloo's own part"
PAIRED = ["--only", f"=gloo,=bare gloo,={OWN_PART}", "--paired-seconds", "1.5"]
# Gloo puts several threads to sleep and wakes them for each message. That becomes much slower when other processes use
# the cores. So a disturbed attempt is repeated, and the quietest one is judged.
ATTEMPTS = 3
QUIET_CORES = 0.2


class Samples:
    """Seconds by number of ranks, operation, contestant and bytes; entry i of each list belongs to round i."""

    def __init__(self, samples):
        self.seconds = {(one["ranks"], one["operation"], one["contestant"], one["bytes"]): one["seconds"]
                        for one in samples}

    def of(self, ranks, operation, contestant, size):
        try:
            return self.seconds[ranks, operation, contestant, size]
        except KeyError:
            raise RuntimeError(f"no sample of {contestant}: {operation}, {ranks} ranks, {bytes_text(size)}") from None

    def has(self, ranks, operation, contestant, size):
        return (ranks, operation, contestant, size) in self.seconds

    def sizes(self, ranks):
        return sorted({key[3] for key in self.seconds if key[0] == ranks})

    def contestants(self, ranks):
        return list(dict.fromkeys(key[2] for key in self.seconds if key[0] == ranks))

    def speed(self, ranks, operation, contestant, size, peer=PEER):
        """How many times as fast as the peer. Both send equal bytes, so this is also the ratio of bus bandwidths."""
        return median(ratios(self.of(ranks, operation, peer, size), self.of(ranks, operation, contestant, size)))


def extra(samples, ranks, operation, size):
    """Seconds that our call takes beyond bare Gloo's. Where another algorithm of ours replaces Gloo's, our part cannot
    be separated, and whole calls are compared."""
    if samples.has(ranks, operation, OWN_PART, size):
        return median(samples.of(ranks, operation, OWN_PART, size))
    return median(samples.of(ranks, operation, "gloo", size)) - median(samples.of(ranks, operation, PEER, size))


def overhead_bar(samples, ranks, operation):
    """The cost of our Gloo backend above bare Gloo, at the size where it is worst."""
    worst = None
    for size in samples.sizes(ranks):
        more = extra(samples, ranks, operation, size)
        share = more / median(samples.of(ranks, operation, PEER, size))
        excess = min(share / 0.03, more / 3e-6)  # either allowance is enough
        if worst is None or excess > worst[0]:
            worst = (excess, f"{share:+.2%}, {more * 1e6:+.2f} us at {bytes_text(size)}")
    return Bar(f"gloo above bare gloo, {operation}, {ranks} ranks", worst[1], "at most 3% or 3 us at every size",
               worst[0] <= 1)


def shared_memory_bars(samples):
    bars = []
    for operation in OPERATIONS:
        what = f"{operation} of {bytes_text(LARGE)}, 2 ranks"
        bars.append(at_least(f"shm's bus bandwidth / bare gloo's, {what}",
                             samples.speed(2, operation, "shm", LARGE), 6))
        bars.append(at_least(f"shm / memcpy, {what}", samples.speed(2, operation, "shm", LARGE, peer="memcpy"), 0.6))
        bars.append(at_least(f"shm any's bus bandwidth / bare gloo's, {what}",
                             samples.speed(2, operation, "shm any", LARGE), 1.8))
    latency = ratios(samples.of(2, "all_reduce", "shm", SMALL), samples.of(2, "all_reduce", PEER, SMALL))
    bars.append(at_most(f"shm's latency / bare gloo's, all_reduce of {bytes_text(SMALL)}, 2 ranks",
                        median(latency), 0.2, "{:.3f}"))
    return bars


def crowded_bar(samples, ranks, contestant):
    """More ranks than cores: the least lead over all operations and sizes."""
    lead, where = min((samples.speed(ranks, operation, contestant, size), f"{operation} of {bytes_text(size)}")
                      for operation in OPERATIONS for size in samples.sizes(ranks))
    return Bar(f"{contestant}'s speed / bare gloo's, {ranks} ranks, worst case", f"{lead:.2f} ({where})",
               "above 1.00 at every size", lead > 1)


def table(samples, ranks):
    contestants = samples.contestants(ranks)

    def cell(operation, name, size):
        if not samples.has(ranks, operation, name, size):
            return "-"
        digits = 0 if size >= 1 << 20 and name != OWN_PART else 1
        return spread(samples.of(ranks, operation, name, size), 1e6, digits=digits)

    rows = [[operation, bytes_text(size)] + [cell(operation, name, size) for name in contestants]
            for size in samples.sizes(ranks) for operation in OPERATIONS]
    return Table([f"{ranks} ranks, us", "bytes", *contestants], rows, printed=False)


def run_app(context, ranks, extra):
    """The app prints its own tables."""
    file = context.output / f"collectives-{os.getpid()}-{ranks}.json"
    command = [context.app, "bench", "comm", "--ranks", str(ranks), "--json", file, *extra]
    if context.rounds:
        command += ["--rounds", str(context.rounds)]
    try:
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=TIMEOUT)
        return json.loads(file.read_text())["samples"]
    finally:
        file.unlink(missing_ok=True)


def calmest(context, ranks, extra=()):
    best, cores = None, None
    for _ in range(ATTEMPTS):
        context.settle()
        with Foreign() as foreign:
            samples = run_app(context, ranks, extra)
        if best is None or foreign.cores < cores:
            best, cores = samples, foreign.cores
        if cores <= QUIET_CORES:
            break
    return best, f"{ranks} ranks: others used {cores:.2f} cores meanwhile."


def measure(context):
    measured, notes = [], []
    for ranks in RANKS:
        samples, note = calmest(context, ranks)
        measured += samples
        notes.append(note)
    samples = Samples(measured)
    bars = []
    tables = [table(samples, ranks) for ranks in RANKS]
    for ranks in RANKS[:2]:
        turns, note = calmest(context, ranks, PAIRED)
        tables.append(table(Samples(turns), ranks))
        bars += [overhead_bar(Samples(turns), ranks, operation) for operation in OPERATIONS]
        notes.append(note)
    bars += shared_memory_bars(samples)
    bars += [crowded_bar(samples, ranks, contestant) for ranks in RANKS[1:] for contestant in ("shm", "shm any")]
    notes.append(f"{OWN_PART}: the time of a call that was not spent in bare Gloo; the last two tables are of calls "
                 "that took turns. A dash: all of the call is ours.")
    notes.append("shm: tensors from the communicator's allocator; shm any: ordinary ones. memcpy: a plain copy that "
                 "reads and writes what the operation must, by all ranks at once.")
    return Outcome("Collectives on one machine", tables=tables, bars=bars,
                   notes=notes, samples=measured)
