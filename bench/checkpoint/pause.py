"""A save in the background: how long it stops training, and how long a step takes meanwhile."""

from checkpoint.contest import SETTING, Contest, Contestant, Figures
from harness.outcome import Outcome, Table, at_most
from harness.spread import median, spread

ROUNDS = 9
AGAINST_COPY = 1.2
SLOWED = 1.10

COPY = Contestant("a copy in memory", "python", "memcpy")
OURS = Contestant("ours", "ours", "save_async")
DCP = Contestant("PyTorch's async_save", "python", "dcp_async")
CONTESTANTS = [DCP, COPY, OURS]


def slowed(figures, one):
    return [during / alone for during, alone in zip(figures.of(one, "step_during"), figures.of(one, "step_alone"))]


def measure(context):
    context.settle()
    wanted = context.rounds or ROUNDS
    with Contest(context) as contest:
        figures = Figures(contest.take(CONTESTANTS, wanted), wanted)
    rows = [[COPY.name, spread(figures.of(COPY), 1e3, digits=0), "1", "", "", "", ""]]
    for one in (OURS, DCP):
        rows.append([one.name, spread(figures.of(one), 1e3, digits=0), spread(figures.ratios(one, COPY)),
                     spread(figures.of(one, "saving"), 1e3, digits=0),
                     spread(figures.of(one, "step_alone"), 1e3), spread(figures.of(one, "step_during"), 1e3),
                     spread(slowed(figures, one))])
    return Outcome(
        "A save in the background",
        tables=[Table(["", "ms of pause", "/ copy", "ms until it is saved", "ms a step alone", "meanwhile", "/ alone"],
                      rows)],
        bars=[at_most("the pause of an asynchronous save / a copy of its bytes", median(figures.ratios(OURS, COPY)),
                      AGAINST_COPY),
              at_most("a step during an asynchronous save / alone", median(slowed(figures, OURS)), SLOWED)],
        notes=[SETTING, figures.calm_text(),
               "The copy is of one piece of memory to another, both used before. A step multiplies two matrices of "
               "512 x 512; it is measured alone, before the save and behind it, and from the moment that the call returns "
               "until the save is done. Both "
               "cores compute then: what the save takes from them is what slows the steps."],
        samples=figures.samples())
