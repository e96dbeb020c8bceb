"""What an operator costs on a tensor that is cut, beside the same operator on a plain one, in one process."""

import json
import subprocess

from harness.machine import Foreign
from harness.outcome import Outcome, Table, at_most
from harness.ranks import Ranks, free_port, variables
from harness.spread import median, spread

ROUNDS = 15
TIMEOUT = 60
MICROSECONDS = 2.5


def measure(context):
    context.settle()
    rounds = context.rounds or ROUNDS
    program = context.build / "bench" / "tensor" / "bench_cut_operators"
    with Ranks() as ranks:
        # The process stays until its input ends, so that its processor time can be separated from that of others.
        process = ranks.start([program, rounds], variables(0, 1, "127.0.0.1", free_port()), stdin=subprocess.PIPE)
        with Foreign([process.pid]) as foreign:
            lines = [process.stdout.readline() for _ in range(rounds)]
            if not all(lines):
                ranks.fail("the program has ended")
        ranks.wait(TIMEOUT)
    samples = [json.loads(line) for line in lines]

    def of(name, kind):
        return [one[name][kind] for one in samples]

    costs = {name: [one[name]["cut"] - one[name]["plain"] for one in samples] for name in samples[0]}
    worst = max(costs, key=lambda name: median(costs[name]))
    rows = [[name, spread(of(name, "plain"), 1e6, "us"), spread(of(name, "cut"), 1e6, "us"),
             spread(costs[name], 1e6, "us")] for name in costs]
    return Outcome(
        "What an operator costs on a tensor that is cut",
        tables=[Table(["operator", "plain", "cut", "cost"], rows)],
        bars=[at_most(f"an operator on a cut tensor above a plain one, us (the worst: {worst})",
                      1e6 * median(costs[worst]), MICROSECONDS)],
        notes=[f"{rounds} rounds of each, in turns, in seconds of the processor; others used {foreign.cores:.2f} cores. "
               "Tensors of 2 x 4 x 16 numbers that require gradients, on one of two ranks that move nothing."],
        samples=samples)
