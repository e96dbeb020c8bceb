"""What interception costs an operator and a step: the same operators with and without it, in one process."""

from harness.outcome import Outcome, Table, at_most
from harness.program_rounds import read_rounds
from harness.spread import median, spread

ROUNDS = 25
MICROSECONDS = 0.5  # an operator
PERCENT = 0.5       # of a step


def measure(context):
    context.settle()
    rounds = context.rounds or ROUNDS
    program = context.build / "bench" / "fsdp" / "bench_interception"
    counts, samples, foreign = read_rounds(program, rounds)

    def costs(name, count=1):
        """Seconds for one of `count` repetitions."""
        return [(one[name]["on"] - one[name]["off"]) / count for one in samples]

    stranger, parameter = costs("stranger"), costs("parameter")
    mixed = costs("tiny_step", counts["tiny_operators"])
    step = median([one["real_step"]["off"] for one in samples])
    share = [100 * cost * counts["real_operators"] / step for cost in mixed]
    clock = [100 * (one["real_step"]["on"] / one["real_step"]["off"] - 1) for one in samples]
    return Outcome(
        "What interception costs, with every unit whole",
        tables=[Table(["", "cost"], [
            ["an operator without parameters", spread(stranger, 1e6, "us", 3)],
            ["an operator with a parameter", spread(parameter, 1e6, "us", 3)],
            ["an operator of a step, mean", spread(mixed, 1e6, "us", 3)],
            ["a step: operators x mean", spread(share, digits=3, unit="% of the step")],
            ["a step: with and without", spread(clock, digits=3, unit="% of the step")],
        ])],
        bars=[at_most("interception of an operator of a step, us", 1e6 * median(mixed), MICROSECONDS, "{:.3f}"),
              at_most("interception of an operator with a parameter, us", 1e6 * median(parameter), MICROSECONDS,
                      "{:.3f}"),
              at_most("interception, % of a step", median(share), PERCENT, "{:.3f}")],
        notes=[f"{rounds} rounds of each with LibTorch's callbacks on and off, in turns, in seconds of the processor; "
               f"others used {foreign.cores:.2f} cores.",
               f"A step of the GPT of the speeds calls {counts['real_operators']} operators, nested ones included, and "
               f"takes {step:.2f} s of one core. Their mean cost is that in a model of the same make that is too small "
               f"to compute anything ({counts['tiny_operators']} operators): by the clock two steps differ by more."],
        samples=[counts, *samples])
