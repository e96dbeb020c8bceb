"""Steps of a GPT on two ranks: ours and PyTorch's sharded training, our DDP, and ranks that do not communicate."""

import contextlib
import dataclasses
import math

from harness import rounds as turns
from harness.answering import Answering
from harness.outcome import Outcome, Table, at_most
from harness.spread import median, ratios, spread

SIZE = 2
ROUNDS = 15
STEPS = 2           # of one sample
WARM_UP_STEPS = 3   # the order of units is learnt in the first
TOKENS = 4 * 256    # of one rank's step
AGAINST_PEER = 1.00
AGAINST_ALONE = 1.05
# The same step, averaged in another order: only rounding differs.
LOSS_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Contestant:
    name: str
    program: str
    kind: str

    @property
    def synchronised(self):
        return self.kind != "alone"

    def seconds_of(self, answers):
        """The seconds of a step. Ranks that wait for each other are as fast as the slower one."""
        seconds = [answer["seconds"] / STEPS for answer in answers]
        return max(seconds) if self.synchronised else sum(seconds) / len(seconds)


PYTHON_ALONE = Contestant("alone, Python", "python", "alone")
ALONE = Contestant("alone, C++", "shm", "alone")
OURS_SHM = Contestant("ours, shm", "shm", "fsdp")
DDP_SHM = Contestant("our DDP, shm", "shm", "ddp")
DDP_GLOO = Contestant("our DDP, Gloo", "gloo", "ddp")
OURS_GLOO = Contestant("ours, Gloo", "gloo", "fsdp")
FSDP2 = Contestant("PyTorch's FSDP2, Gloo", "python", "fsdp2")
FSDP1 = Contestant("PyTorch's FSDP1, Gloo", "python", "fsdp1")
# Contestants that are compared run one after the other.
CONTESTANTS = [PYTHON_ALONE, DDP_SHM, ALONE, OURS_SHM, DDP_GLOO, FSDP1, OURS_GLOO, FSDP2]
RATIOS = [(OURS_GLOO, FSDP2), (OURS_GLOO, FSDP1), (OURS_SHM, ALONE), (OURS_GLOO, ALONE), (OURS_SHM, DDP_SHM),
          (OURS_GLOO, DDP_GLOO), (FSDP2, PYTHON_ALONE), (FSDP1, PYTHON_ALONE), (ALONE, PYTHON_ALONE)]


def commands(context, shape=()):
    """For each program, the command that starts a rank. `shape` is that of a GPT other than the default one."""
    ours = context.build / "bench" / "fsdp" / "bench_fsdp"
    return {"shm": [ours, "shm", *shape], "gloo": [ours, "gloo", *shape],
            "python": [context.python, context.root / "bench" / "peers" / "fsdp_rank.py", *shape]}


def warm_up(pairs):
    """Also checks that all contestants train the same: after equal steps their losses are equal."""
    losses = {}
    for one in CONTESTANTS:
        answers, _ = pairs[one].ask(one.kind, WARM_UP_STEPS)
        loss = answers[0]["loss"]
        first = losses.setdefault(one.synchronised, loss)
        if not math.isclose(loss, first, rel_tol=LOSS_TOLERANCE):
            raise RuntimeError(f"{one.name}: the loss after {WARM_UP_STEPS} steps is {loss}, "
                               f"that of the others {first}")


def run(context):
    """Returns the samples of each round. Every contestant has processes of its own: in a shared process, one could
    reuse the heap that another left."""
    with contextlib.ExitStack() as stack:
        pairs = {one: stack.enter_context(Answering(commands(context)[one.program], SIZE)) for one in CONTESTANTS}
        warm_up(pairs)

        def sample_of(one):
            answers, cores = pairs[one].ask(one.kind, STEPS)
            return {"contestant": one.name, "seconds": one.seconds_of(answers), "loss": answers[0]["loss"],
                    "processor_seconds": pairs[one].processor_seconds / STEPS / SIZE, "foreign_cores": cores}

        rounds = turns.take(CONTESTANTS, sample_of, context.rounds or ROUNDS)
        for pair in pairs.values():
            pair.finish()
    return rounds


class Figures:
    """The figures. Entry i of each list belongs to judged round i."""

    def __init__(self, rounds):
        self.rounds = rounds

    def of(self, contestant, key="seconds"):
        return [sample[key] for samples in self.rounds for sample in samples if sample["contestant"] == contestant.name]

    def ratios(self, one, other, key="seconds"):
        return ratios(self.of(one, key), self.of(other, key))


def tables(figures):
    yield Table(["contestant", "ms a step", "of a processor", "tokens/s", "loss"],
                [[one.name, spread(figures.of(one), 1e3, digits=0),
                  spread(figures.of(one, "processor_seconds"), 1e3, digits=0),
                  f"{SIZE * TOKENS / median(figures.of(one)):.0f}", f"{figures.of(one, 'loss')[-1]:.4f}"]
                 for one in CONTESTANTS])
    yield Table(["time of / time of", "by the clock", "by processor time"],
                [[f"{one.name} / {other.name}", spread(figures.ratios(one, other), digits=3),
                  spread(figures.ratios(one, other, "processor_seconds"), digits=3)] for one, other in RATIOS])


def bars(figures):
    peer = min(FSDP2, FSDP1, key=lambda one: median(figures.of(one)))
    for one, other, limit in ((OURS_GLOO, peer, AGAINST_PEER), (OURS_SHM, ALONE, AGAINST_ALONE)):
        yield at_most(f"a step of {one.name} / {other.name}", median(figures.ratios(one, other)), limit, "{:.3f}")


def measure(context):
    context.settle()
    rounds = run(context)
    figures = Figures(turns.judged(rounds, context.rounds or ROUNDS))
    notes = [f"Undisturbed rounds: {turns.calm_text(rounds)}. {STEPS} steps a round, one thread a rank, processes of "
             "its own for each contestant; ratios are within a round.",
             f"{SIZE} ranks of a GPT: 6 layers, width 512, 8 heads, vocabulary 8192, batches of 4 x 256 tokens, fp32; "
             "fused AdamW. The same arithmetic in C++ and in Python, from the same weights; a unit for each layer and "
             "one for what is left, other options as they are by default.",
             "Alone: nobody talks; the mean of the ranks. The bar against PyTorch is for the faster of its two."]
    return Outcome(f"Sharded training of a GPT on {SIZE} ranks", tables=list(tables(figures)),
                   bars=list(bars(figures)), notes=notes, samples=[sample for samples in rounds for sample in samples])
