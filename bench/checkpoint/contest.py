"""Contestants in turns: two ranks of each, 400 MB a rank, on one disk."""

import contextlib
import dataclasses
import tempfile

from harness import rounds as turns
from harness.answering import Answering
from harness.spread import median, ratios, spread

SIZE = 2
BYTES = 100 * (4 << 20)  # per rank


@dataclasses.dataclass(frozen=True)
class Contestant:
    name: str
    program: str  # "ours" or "python"
    variant: str


class Contest:
    """`with Contest(context) as contest:`, then ask() and take(). Each program has two processes and a folder of its own
    on the disk of the build."""

    def __init__(self, context, programs=("ours", "python")):
        self.context = context
        self.programs = programs
        self.stack = contextlib.ExitStack()
        self.pairs = {}

    def __enter__(self):
        context = self.context
        commands = {"ours": [context.build / "bench" / "checkpoint" / "bench_checkpoint"],
                    "python": [context.python, context.root / "bench" / "peers" / "checkpoint_rank.py"]}
        for program in self.programs:
            folder = self.stack.enter_context(tempfile.TemporaryDirectory(dir=context.output, prefix="checkpoint-"))
            self.pairs[program] = self.stack.enter_context(Answering([*commands[program], folder], SIZE))
        return self

    def __exit__(self, *failure):
        return self.stack.__exit__(*failure)

    def ask(self, contestant):
        answers, cores = self.pairs[contestant.program].ask(contestant.variant, 1)
        # Ranks that save together are as fast as the slower one.
        return {"contestant": contestant.name, "foreign_cores": cores,
                **{key: max(answer[key] for answer in answers) for key in answers[0] if key != "variant"}}

    def take(self, contestants, wanted):
        """Returns the rounds. One that is not counted comes first, so that memory and files have been used once."""
        for one in contestants:
            self.ask(one)
        rounds = turns.take(contestants, self.ask, wanted)
        for pair in self.pairs.values():
            pair.finish()
        return rounds


class Figures:
    """The figures. Entry i of each list belongs to judged round i."""

    def __init__(self, rounds, wanted):
        self.all = rounds
        self.rounds = turns.judged(rounds, wanted)

    def of(self, contestant, key="seconds"):
        return [sample[key] for samples in self.rounds for sample in samples if sample["contestant"] == contestant.name]

    def ratios(self, one, other, key="seconds"):
        return ratios(self.of(one, key), self.of(other, key))

    def samples(self):
        return [sample for samples in self.all for sample in samples]

    def calm_text(self):
        return f"Undisturbed rounds: {turns.calm_text(self.all)}; ratios are within a round."


def speed_row(figures, one, base):
    """Name, milliseconds, gigabytes a second of all ranks together, the ratio to the bare system, and milliseconds of
    processor time."""
    seconds = figures.of(one)
    return [one.name, spread(seconds, 1e3, digits=0), f"{SIZE * BYTES / median(seconds) / 1e9:.2f}",
            spread(figures.ratios(one, base), digits=3), spread(figures.of(one, "processor"), 1e3, digits=0)]


SETTING = (f"{SIZE} ranks save or load at once, {BYTES / 1e6:.0f} MB each: 100 tensors of fp32, of each of which a rank "
           "has the rows of one half, 4 MiB. One thread a rank; the slower rank counts. Between turns the files are "
           "removed and the disk comes to rest (sync).")
