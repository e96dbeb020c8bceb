"""A step of AdamW over 100 M parameters: ours, LibTorch's, PyTorch's fused one in Python, and memcpy."""

import contextlib
import math

from harness import rounds as turns
from harness.answering import Answering
from harness.outcome import Outcome, Table, at_least
from harness.spread import median, ratios, spread

ROUNDS = 15
WARM_UP_STEPS = 2
NUM_PARAMETERS = 100_000_512
STEP_BYTES = 7 * 4 * NUM_PARAMETERS   # reads weight, gradient and two averages, writes all but the gradient
COPY_BYTES = 2 * 4 * NUM_PARAMETERS   # reads and writes
OURS, LIBTORCH, PYTHON, MEMCPY = "ours", "libtorch", "fused", "memcpy"
NAMES = {OURS: "tessera::optim::AdamW", LIBTORCH: "torch::optim::AdamW, C++",
         PYTHON: "torch.optim.AdamW(fused=True), Python", MEMCPY: "memcpy"}
CONTESTANTS = [LIBTORCH, OURS, PYTHON, MEMCPY]  # contestants that are compared run one after the other
AGAINST_LIBTORCH = 4.0
AGAINST_PYTHON = 0.9
# The same arithmetic, rounded at other places.
TOLERANCE = 1e-6


def command(context, contestant):
    if contestant == PYTHON:
        return [context.python, context.root / "bench" / "peers" / "adamw.py"]
    return [context.build / "bench" / "training" / "bench_adamw"]


def check_agreement(weights):
    """After equal steps the weights are the same, up to rounding."""
    for name, sum_of_sizes in weights.items():
        if name != MEMCPY and not math.isclose(sum_of_sizes, weights[OURS], rel_tol=TOLERANCE):
            raise RuntimeError(f"{NAMES[name]}: the weights sum up to {sum_of_sizes}, ours to {weights[OURS]}")


def run(context):
    weights = {}
    with contextlib.ExitStack() as stack:
        processes = {one: stack.enter_context(Answering(command(context, one))) for one in CONTESTANTS}
        for one, process in processes.items():
            weights[one] = process.ask(one, WARM_UP_STEPS)[0][0]["weights"]
        check_agreement(weights)

        def sample_of(one):
            (answer,), cores = processes[one].ask(one, 1)
            weights[one] = answer["weights"]
            return {"contestant": one, "seconds": answer["seconds"], "foreign_cores": cores}

        rounds = turns.take(CONTESTANTS, sample_of, context.rounds or ROUNDS)
        check_agreement(weights)
        for process in processes.values():
            process.finish()
    return rounds


def measure(context):
    context.settle()
    rounds = run(context)
    judged = turns.judged(rounds, context.rounds or ROUNDS)
    seconds = {one: [sample["seconds"] for samples in judged for sample in samples if sample["contestant"] == one]
               for one in CONTESTANTS}
    rates = {one: [(COPY_BYTES if one == MEMCPY else STEP_BYTES) / value for value in seconds[one]]
             for one in CONTESTANTS}
    rows = [[NAMES[one], spread(seconds[one], 1e3, digits=0), spread(rates[one], 1e-9, digits=1)]
            for one in CONTESTANTS]
    bars = [at_least(f"speed of ours / {NAMES[other]}", median(ratios(seconds[other], seconds[OURS])), limit)
            for other, limit in ((LIBTORCH, AGAINST_LIBTORCH), (PYTHON, AGAINST_PYTHON))]
    notes = [f"Undisturbed rounds: {turns.calm_text(rounds)}. One thread, a process for each contestant, a step of "
             "each in every round; ratios are within a round. After equal steps all have the same weights, but for "
             "rounding.",
             "The 145 shapes of a GPT-2 of 12 layers of width 768. GB/s counts 28 bytes a parameter for a step and 8 "
             "for a copy: what the arithmetic must read and write, not what temporaries add.",
             f"The GB/s of ours are {median(ratios(rates[OURS], rates[MEMCPY])):.2f} of memcpy's."]
    return Outcome("AdamW over 100 M parameters", tables=[Table(["contestant", "ms a step", "GB/s"], rows)], bars=bars,
                   notes=notes, samples=[sample for samples in rounds for sample in samples])
