"""What an operator costs on a tensor that is cut, beside the same operator on a plain one, in one process."""

from harness.outcome import Outcome, Table, at_most
from harness.program_rounds import read_rounds
from harness.spread import median, spread

ROUNDS = 15
MICROSECONDS = 2.5


def measure(context):
    context.settle()
    rounds = context.rounds or ROUNDS
    program = context.build / "bench" / "tensor" / "bench_cut_operators"
    counts, samples, foreign = read_rounds(program, rounds)

    def of(name, kind):
        return [one[name][kind] for one in samples]

    costs = {name: [one[name]["cut"] - one[name]["plain"] for one in samples] for name in samples[0]}
    rows = [[name, spread(of(name, "plain"), 1e6, "us"), spread(of(name, "cut"), 1e6, "us"),
             spread(costs[name], 1e6, "us")] for name in costs]
    number = counts["forward_operators"]
    mean = [cost / number for cost in costs["forward"]]
    rows.append([f"an operator of that forward, mean of {number}", "", "", spread(mean, 1e6, "us")])
    return Outcome(
        "What an operator costs on a tensor that is cut",
        tables=[Table(["operator", "plain", "cut", "cost"], rows)],
        bars=[at_most("an operator of a cut GPT's forward above a plain one, mean, us", 1e6 * median(mean),
                      MICROSECONDS)],
        notes=[f"{rounds} rounds of each, in turns, in seconds of the processor; others used {foreign.cores:.2f} cores. "
               "Tensors of 2 x 4 x 16 numbers that require gradients, on one of two ranks that move nothing.",
               "forward: of a GPT of 6 layers of width 8, beside one written by hand. A layer costs more than other "
               "operators, since its parameters act too."],
        samples=[counts, *samples])
