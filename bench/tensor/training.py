"""Steps of a GPT whose layers two ranks share: ours, one written by hand, PyTorch's, and ranks that have all of it."""

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
WARM_UP_STEPS = 3
TOKENS = 4 * 256    # of a step
AGAINST_HAND = 1.03
AGAINST_PEER = 1 / 1.05
AGAINST_ALONE = 0.62
# The same step, added up in another order: only rounding differs.
LOSS_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Contestant:
    name: str
    program: str
    kind: str

    def seconds_of(self, answers):
        """The seconds of a step. Ranks that wait for each other are as fast as the slower one."""
        seconds = [answer["seconds"] / STEPS for answer in answers]
        return sum(seconds) / len(seconds) if self.kind == "alone" else max(seconds)


ALONE = Contestant("alone, C++", "shm", "alone")
OURS_SHM = Contestant("ours, shm", "shm", "ours")
HAND_SHM = Contestant("by hand in C++, shm", "shm", "hand_written")
HAND_GLOO = Contestant("by hand in C++, Gloo", "gloo", "hand_written")
OURS_GLOO = Contestant("ours, Gloo", "gloo", "ours")
BLOCKS = Contestant("PyTorch's DTensor, blocks, Gloo", "python", "dtensor")
BLOCKS_AND_HEAD = Contestant("PyTorch's DTensor, blocks, head and loss, Gloo", "python", "dtensor_head")
PYTHON_ALONE = Contestant("alone, Python", "python", "alone")
# Contestants that are compared run one after the other.
CONTESTANTS = [ALONE, OURS_SHM, HAND_SHM, HAND_GLOO, OURS_GLOO, BLOCKS, BLOCKS_AND_HEAD, PYTHON_ALONE]
RATIOS = [(OURS_SHM, HAND_SHM), (OURS_GLOO, HAND_GLOO), (OURS_GLOO, BLOCKS), (OURS_GLOO, BLOCKS_AND_HEAD),
          (OURS_SHM, ALONE), (OURS_GLOO, ALONE), (BLOCKS, PYTHON_ALONE), (BLOCKS_AND_HEAD, PYTHON_ALONE)]


def commands(context):
    """For each program, the command that starts a rank."""
    ours = context.build / "bench" / "tensor" / "bench_tensor"
    return {"shm": [ours, "shm"], "gloo": [ours, "gloo"],
            "python": [context.python, context.root / "bench" / "peers" / "tensor_rank.py"]}


def warm_up(pairs):
    """Also checks that all contestants train the same: after equal steps their losses are equal."""
    losses = {one: pairs[one].ask(one.kind, WARM_UP_STEPS)[0][0]["loss"] for one in CONTESTANTS}
    for one, loss in losses.items():
        if not math.isclose(loss, losses[ALONE], rel_tol=LOSS_TOLERANCE):
            raise RuntimeError(f"{one.name}: the loss after {WARM_UP_STEPS} steps is {loss}, "
                               f"that of one process {losses[ALONE]}")


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
                  f"{TOKENS / median(figures.of(one)):.0f}", f"{figures.of(one, 'loss')[-1]:.4f}"]
                 for one in CONTESTANTS])
    yield Table(["time of / time of", "by the clock", "by processor time"],
                [[f"{one.name} / {other.name}", spread(figures.ratios(one, other), digits=3),
                  spread(figures.ratios(one, other, "processor_seconds"), digits=3)] for one, other in RATIOS])


def bars(figures):
    peer = min(BLOCKS, BLOCKS_AND_HEAD, key=lambda one: median(figures.of(one)))
    for one, other, limit in ((OURS_SHM, HAND_SHM, AGAINST_HAND), (OURS_GLOO, HAND_GLOO, AGAINST_HAND),
                              (OURS_GLOO, peer, AGAINST_PEER), (OURS_SHM, ALONE, AGAINST_ALONE)):
        yield at_most(f"a step of {one.name} / {other.name}", median(figures.ratios(one, other)), limit, "{:.3f}")


def measure(context):
    context.settle()
    rounds = run(context)
    figures = Figures(turns.judged(rounds, context.rounds or ROUNDS))
    notes = [f"Undisturbed rounds: {turns.calm_text(rounds)}. {STEPS} steps a round, one thread a rank, processes of "
             "its own for each contestant; ratios are within a round.",
             f"{SIZE} ranks share a GPT: 6 layers, width 512, 8 heads, vocabulary 8192, one batch of 4 x 256 tokens, "
             "fp32; fused AdamW. The same arithmetic in C++ and in Python, from the same weights. Heads, columns and "
             "rows of the layers are cut; but for the first of PyTorch's, the head and the loss too.",
             "Ours is the model of `alone`, unmodified. By hand: a model written for it. PyTorch's plan needs a forward "
             "that does not name the number of heads, and a context around the loss.",
             "Alone: each rank trains all of the model, and nobody talks; the mean of the ranks. So 0.5 is what two "
             "ranks can reach. The bar against PyTorch is for the faster of its two."]
    return Outcome(f"Tensor parallelism of a GPT on {SIZE} ranks", tables=list(tables(figures)),
                   bars=list(bars(figures)), notes=notes, samples=[sample for samples in rounds for sample in samples])
