"""Steps of a GPT on two ranks: ours and PyTorch's DDP, a blocking all-reduce, and ranks that do not communicate."""

import contextlib
import dataclasses
import math

from harness import rounds as turns
from harness.answering import Answering
from harness.outcome import Outcome, Table, at_most
from harness.spread import median, ratios, spread

SIZE = 2
PRECISIONS = ["fp32", "bf16"]
ROUNDS = 15
STEPS = 2           # of one sample
WARM_UP_STEPS = 3   # buckets are arranged anew after the first
TOKENS = 4 * 256    # of one rank's step
AGAINST_PEER = 1.00
AGAINST_ALONE = 1.04
# The same step, averaged in another order: only rounding differs.
LOSS_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Contestant:
    name: str
    pair: str
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
OURS_SHM = Contestant("ours, shm", "shm", "ours")
BLOCKING_SHM = Contestant("blocking all-reduce, shm", "shm", "blocking")
BLOCKING_GLOO = Contestant("blocking all-reduce, Gloo", "gloo", "blocking")
OURS_GLOO = Contestant("ours, Gloo", "gloo", "ours")
PYTHON_DDP = Contestant("PyTorch's DDP, Gloo", "python", "ddp")
# Contestants that are compared run one after the other.
CONTESTANTS = [PYTHON_ALONE, ALONE, OURS_SHM, BLOCKING_SHM, BLOCKING_GLOO, OURS_GLOO, PYTHON_DDP]
RATIOS = [(OURS_GLOO, PYTHON_DDP), (OURS_SHM, ALONE), (OURS_GLOO, ALONE), (BLOCKING_SHM, ALONE),
          (BLOCKING_GLOO, ALONE), (PYTHON_DDP, PYTHON_ALONE), (ALONE, PYTHON_ALONE)]


def commands(context):
    ours = context.build / "bench" / "ddp" / "bench_ddp"
    return {"shm": [ours, "shm"], "gloo": [ours, "gloo"],
            "python": [context.python, context.root / "bench" / "peers" / "ddp_rank.py"]}


def check_agreement(contestant, precision, answers):
    """Averaged gradients keep the ranks' weights the same, bit for bit."""
    sums = [answer["weights"] for answer in answers]
    if contestant.synchronised and len(set(sums)) != 1:
        raise RuntimeError(f"{contestant.name}, {precision}: the ranks' weights sum up to {sums}, which should agree")


def warm_up(pairs, precision):
    """Also checks that all contestants train the same: after equal steps their losses are equal."""
    losses = {}
    for one in CONTESTANTS:
        answers, _ = pairs[one].ask(f"{one.kind} {precision}", WARM_UP_STEPS)
        check_agreement(one, precision, answers)
        loss = answers[0]["loss"]
        first = losses.setdefault(one.synchronised, loss)
        if not math.isclose(loss, first, rel_tol=LOSS_TOLERANCE):
            raise RuntimeError(f"{one.name}, {precision}: the loss after {WARM_UP_STEPS} steps is {loss}, "
                               f"that of the others {first}")


def run(context, precision):
    """Returns the samples of each round. Every contestant has processes of its own: in a shared process, one could
    reuse the heap that another left, and would have a third fewer page faults."""
    with contextlib.ExitStack() as stack:
        pairs = {one: stack.enter_context(Answering(commands(context)[one.pair], SIZE)) for one in CONTESTANTS}
        warm_up(pairs, precision)

        def sample_of(one):
            answers, cores = pairs[one].ask(f"{one.kind} {precision}", STEPS)
            check_agreement(one, precision, answers)
            return {"contestant": one.name, "precision": precision, "seconds": one.seconds_of(answers),
                    "processor_seconds": pairs[one].processor_seconds / STEPS / SIZE, "loss": answers[0]["loss"],
                    "foreign_cores": cores}

        rounds = turns.take(CONTESTANTS, sample_of, context.rounds or ROUNDS)
        for pair in pairs.values():
            pair.finish()
    return rounds


class Figures:
    """The figures by precision. Entry i of each list belongs to judged round i."""

    def __init__(self, rounds):
        self.rounds = rounds

    def of(self, contestant, precision, key="seconds"):
        return [sample[key] for samples in self.rounds[precision] for sample in samples
                if sample["contestant"] == contestant.name]

    def ratios(self, one, other, precision, key="seconds"):
        return ratios(self.of(one, precision, key), self.of(other, precision, key))


def step_table(figures):
    def cells(one, precision):
        seconds = figures.of(one, precision)
        return [spread(seconds, 1e3, digits=0), f"{SIZE * TOKENS / median(seconds):.0f}",
                f"{figures.of(one, precision, 'loss')[-1]:.4f}"]

    columns = [f"{precision} {what}" for precision in PRECISIONS for what in ("ms a step", "tokens/s", "loss")]
    return Table(["contestant", *columns],
                 [[one.name, *(cell for precision in PRECISIONS for cell in cells(one, precision))]
                  for one in CONTESTANTS])


def ratio_table(figures):
    columns = [(precision, key) for precision in PRECISIONS for key in ("seconds", "processor_seconds")]
    return Table(["time of / time of", *(f"{precision}, by {'the clock' if key == 'seconds' else 'processor time'}"
                                         for precision, key in columns)],
                 [[f"{one.name} / {other.name}",
                   *(spread(figures.ratios(one, other, precision, key), digits=3) for precision, key in columns)]
                  for one, other in RATIOS])


def bars(figures):
    for one, other, limit in ((OURS_GLOO, PYTHON_DDP, AGAINST_PEER), (OURS_SHM, ALONE, AGAINST_ALONE)):
        for precision in PRECISIONS:
            yield at_most(f"a step of {one.name} / {other.name}, {precision}",
                          median(figures.ratios(one, other, precision)), limit, "{:.3f}")


def measure(context):
    context.settle()
    rounds = {precision: run(context, precision) for precision in PRECISIONS}
    figures = Figures({precision: turns.judged(of_precision, context.rounds or ROUNDS)
                       for precision, of_precision in rounds.items()})
    calm = {precision: turns.calm_text(of_precision) for precision, of_precision in rounds.items()}
    notes = [f"Undisturbed rounds: {calm['fp32']} in fp32, {calm['bf16']} in bf16. {STEPS} steps a round, one thread a "
             "rank, processes of its own for each contestant; ratios are within a round.",
             f"{SIZE} ranks of a GPT: 6 layers, width 512, 8 heads, vocabulary 8192, batches of 4 x 256 tokens; fused "
             "AdamW. The same arithmetic in C++ and in Python, from the same weights.",
             "Alone: nobody talks; the mean of the ranks. Blocking: one all-reduce of all gradients after backward."]
    return Outcome(f"Training a GPT on {SIZE} ranks", tables=[step_table(figures), ratio_table(figures)],
                   bars=list(bars(figures)), notes=notes,
                   samples=[sample for precision in PRECISIONS for samples in rounds[precision] for sample in samples])
