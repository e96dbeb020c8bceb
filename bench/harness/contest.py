"""Contestants that train the same model in processes of their own, one after the other in every round."""

import contextlib
import dataclasses
import math

from harness import rounds as turns
from harness.answering import Answering
from harness.outcome import Table, at_most
from harness.spread import median, ratios, spread

# The same step, added up in another order: only rounding differs.
LOSS_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Contestant:
    name: str
    program: str
    kind: str  # "alone", or "alone/8": its ranks do not talk

    @property
    def synchronised(self):
        return self.kind.split("/")[0] != "alone"


@dataclasses.dataclass(frozen=True)
class Contest:
    """Contestants that are compared stand one after the other."""
    contestants: list
    ranks: int
    rounds: int
    steps: int          # of one sample
    warm_up_steps: int
    tokens: int         # of a step, over all ranks

    def run(self, commands, rounds, same_loss=lambda one: True):
        """Returns the samples of each round. `commands`: for each program, the command that starts a rank. All
        contestants of equal `same_loss` must have equal losses after the steps that warm up. Every contestant has
        processes of its own: in a shared process, one could reuse the heap that another left."""
        with contextlib.ExitStack() as stack:
            answering = {one: stack.enter_context(Answering(commands[one.program], self.ranks))
                         for one in self.contestants}
            self._warm_up(answering, same_loss)
            taken = turns.take(self.contestants, lambda one: self._sample(one, answering[one]), rounds)
            for one in answering.values():
                one.finish()
        return taken

    def _warm_up(self, answering, same_loss):
        firsts = {}
        for one in self.contestants:
            loss = answering[one].ask(one.kind, self.warm_up_steps)[0][0]["loss"]
            first = firsts.setdefault(same_loss(one), loss)
            if not math.isclose(loss, first, rel_tol=LOSS_TOLERANCE):
                raise RuntimeError(f"{one.name}: the loss after {self.warm_up_steps} steps is {loss}, "
                                   f"that of the others {first}")

    def _sample(self, one, processes):
        answers, cores = processes.ask(one.kind, self.steps)
        seconds = [answer["seconds"] / self.steps for answer in answers]
        # Ranks that wait for each other are as fast as the slower one.
        return {"contestant": one.name, "seconds": max(seconds) if one.synchronised else sum(seconds) / len(seconds),
                "loss": answers[0]["loss"], "processor_seconds": processes.processor_seconds / self.steps / self.ranks,
                "foreign_cores": cores}

    def note(self, taken):
        return (f"Undisturbed rounds: {turns.calm_text(taken)}. {self.steps} steps a round, one thread a rank, "
                "processes of its own for each contestant; ratios are within a round.")


class Figures:
    """The figures. Entry i of each list belongs to judged round i."""

    def __init__(self, contest, taken, rounds):
        self.contest = contest
        self.rounds = turns.judged(taken, rounds)

    def of(self, contestant, key="seconds"):
        return [sample[key] for samples in self.rounds for sample in samples if sample["contestant"] == contestant.name]

    def ratios(self, one, other, key="seconds"):
        return ratios(self.of(one, key), self.of(other, key))

    def fastest(self, *contestants):
        return min(contestants, key=lambda one: median(self.of(one)))

    def table(self):
        return Table(["contestant", "ms a step", "of a processor", "tokens/s", "loss"],
                     [[one.name, spread(self.of(one), 1e3, digits=0),
                       spread(self.of(one, "processor_seconds"), 1e3, digits=0),
                       f"{self.contest.tokens / median(self.of(one)):.0f}", f"{self.of(one, 'loss')[-1]:.4f}"]
                      for one in self.contest.contestants])

    def ratio_table(self, pairs):
        return Table(["time of / time of", "by the clock", "by processor time"],
                     [[f"{one.name} / {other.name}", spread(self.ratios(one, other), digits=3),
                       spread(self.ratios(one, other, "processor_seconds"), digits=3)] for one, other in pairs])

    def bar(self, one, other, limit):
        return at_most(f"a step of {one.name} / {other.name}", median(self.ratios(one, other)), limit, "{:.3f}")


def flat(taken):
    return [sample for samples in taken for sample in samples]
