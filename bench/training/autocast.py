"""Training a GPT in one process: fp32 and bf16 autocast, ours and PyTorch in Python."""

import contextlib
import dataclasses
import math

from harness import rounds as turns
from harness.answering import Answering
from harness.outcome import Outcome, Table, at_least
from harness.spread import median, ratios, spread

ROUNDS = 15
STEPS = 2           # of one sample
WARM_UP_STEPS = 3
TOKENS = 4 * 256    # of a step
BF16_AGAINST_FP32 = 2.0
AGAINST_PEER = 0.95
LOSS_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Contestant:
    language: str
    precision: str

    @property
    def name(self):
        return f"{'PyTorch' if self.language == 'Python' else 'Tessera'}, {self.precision}"

    @property
    def variant(self):
        return f"alone {self.precision}"

    def command(self, context):
        if self.language == "Python":
            return [context.python, context.root / "bench" / "peers" / "ddp_rank.py"]
        return [context.build / "bench" / "ddp" / "bench_ddp", "shm"]


OURS_FP32, OURS_BF16 = Contestant("C++", "fp32"), Contestant("C++", "bf16")
PEER_FP32, PEER_BF16 = Contestant("Python", "fp32"), Contestant("Python", "bf16")
# Contestants that are compared run one after the other.
CONTESTANTS = [PEER_FP32, OURS_FP32, OURS_BF16, PEER_BF16]
SPEEDS = [(OURS_BF16, OURS_FP32), (OURS_BF16, PEER_BF16), (PEER_BF16, PEER_FP32), (OURS_FP32, PEER_FP32)]


def run(context):
    """Every contestant has a process of its own, a world of one rank."""
    losses = {}
    with contextlib.ExitStack() as stack:
        processes = {one: stack.enter_context(Answering(one.command(context))) for one in CONTESTANTS}
        for one, process in processes.items():
            loss = process.ask(one.variant, WARM_UP_STEPS)[0][0]["loss"]
            first = losses.setdefault(one.precision, loss)
            if not math.isclose(loss, first, rel_tol=LOSS_TOLERANCE):
                raise RuntimeError(f"{one.name}: the loss after {WARM_UP_STEPS} steps is {loss}, the other's {first}")

        def sample_of(one):
            (answer,), cores = processes[one].ask(one.variant, STEPS)
            return {"contestant": one.name, "seconds": answer["seconds"] / STEPS, "loss": answer["loss"],
                    "foreign_cores": cores}

        rounds = turns.take(CONTESTANTS, sample_of, context.rounds or ROUNDS)
        for process in processes.values():
            process.finish()
    return rounds


def measure(context):
    context.settle()
    rounds = run(context)
    judged = turns.judged(rounds, context.rounds or ROUNDS)

    def values(one, key):
        return [sample[key] for samples in judged for sample in samples if sample["contestant"] == one.name]

    def speeds(one, other):
        return ratios(values(other, "seconds"), values(one, "seconds"))

    steps = Table(["contestant", "ms a step", "tokens/s", "loss"],
                  [[one.name, spread(values(one, "seconds"), 1e3, digits=0),
                    f"{TOKENS / median(values(one, 'seconds')):.0f}", f"{values(one, 'loss')[-1]:.4f}"]
                   for one in CONTESTANTS])
    compared = Table(["tokens/s of / tokens/s of", "ratio"],
                     [[f"{one.name} / {other.name}", spread(speeds(one, other), digits=3)] for one, other in SPEEDS])
    limits = ((OURS_BF16, OURS_FP32, BF16_AGAINST_FP32), (OURS_BF16, PEER_BF16, AGAINST_PEER))
    bars = [at_least(f"tokens/s of {one.name} / {other.name}", median(speeds(one, other)), limit)
            for one, other, limit in limits]
    notes = [f"Undisturbed rounds: {turns.calm_text(rounds)}. {STEPS} steps a round, one process and one thread for "
             "each contestant; ratios are within a round.",
             "A GPT: 6 layers, width 512, 8 heads, vocabulary 8192, batches of 4 x 256 tokens; fused AdamW. The same "
             "arithmetic in C++ and in Python, from the same weights."]
    return Outcome("bf16 autocast in training a GPT", tables=[steps, compared], bars=bars, notes=notes,
                   samples=[sample for samples in rounds for sample in samples])
