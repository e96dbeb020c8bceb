"""What watching costs: the same steps with and without an observer of everything, on two ranks."""

import json
import tempfile

from harness.machine import Foreign
from harness.outcome import Outcome, Table, at_most
from harness.ranks import Ranks, free_port, variables
from harness.spread import median, ratios, spread

SIZE = 2
ROUNDS = 40
TIMEOUT = 600
BAR = 0.5  # percent


def measure(context):
    context.settle()
    rounds = context.rounds or ROUNDS
    program = context.build / "bench" / "training" / "bench_watching"
    with tempfile.TemporaryDirectory() as folder, Ranks() as ranks:
        port = free_port()
        for rank in range(SIZE):
            ranks.start([program, rounds, folder], variables(rank, SIZE, "127.0.0.1", port))
        with Foreign([process.pid for process in ranks.processes]) as foreign:
            output = ranks.wait(TIMEOUT)
    samples = [json.loads(line) for line in output.splitlines()]
    plain, watched = ([one[kind] for one in samples] for kind in ("plain", "watched"))
    lost = [100 * (ratio - 1) for ratio in ratios(watched, plain)]
    background = [100 * (one["watched_background"] - one["plain_background"]) / one["plain"] for one in samples]
    return Outcome(
        "A step with and without watching: 10 spans, 64 calls, every sink",
        tables=[Table(["", "a step"], [
            ["without", spread(plain, 1e3, "ms")],
            ["with", spread(watched, 1e3, "ms")],
            ["lost", spread(lost, digits=3, unit="%")],
            ["processor time of the observer's thread", spread(background, digits=3, unit="% of the step")],
        ])],
        bars=[at_most("time lost to watching, % of the step", median(lost), BAR, "{:.3f}")],
        notes=[f"{rounds} rounds of 10 steps each way, {SIZE} ranks on all cores; others used {foreign.cores:.2f} cores.",
               "The second figure does not depend on what else the machine does."],
        samples=samples)
