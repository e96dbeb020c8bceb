"""Steps of a GPT on two stages in shared memory, beside what the stages and their schedule allow."""

import json
import subprocess

from harness.contest import Contestant, Figures, flat
from harness.outcome import Outcome, at_most
from harness.spread import median, spread
from pipeline import gpt_on_stages

AGAINST_MODEL = 1.04
ZERO_BUBBLE = 1 / 1.05
GHOSTS = 0.01

ALONE = Contestant("alone", "shm", "alone/8")
STAGES = Contestant("stages alone", "shm", "stages/8")
TINY = Contestant("forwards of tiny layers", "shm", "tiny/8")
GHOSTS_TOO = Contestant("forwards of tiny layers and of ghosts", "shm", "ghosts/8")
TURNS = 20  # of one step of these two
OURS = {name: Contestant(f"{name}", "shm", f"{name}/8") for name in ("gpipe", "1f1b", "zb-h1", "interleaved", "zb-v")}
FEW = {name: Contestant(f"{name}, 4 micro-batches", "shm", f"{name}/4") for name in ("zb-h1", "1f1b", "zb-v")}
JUDGED = ("gpipe", "1f1b", "zb-h1")

# Those that are judged beside the stages stand near them.
CONTEST = gpt_on_stages.contest([ALONE, OURS["interleaved"], OURS["gpipe"], OURS["1f1b"], STAGES, OURS["zb-h1"],
                                 OURS["zb-v"], *FEW.values(), TINY, GHOSTS_TOO])


def same_loss(one):
    return one not in (STAGES, TINY, GHOSTS_TOO) or one.name


def makespan(context, kind):
    """Of the schedule on two ranks, in times of a stage."""
    app = context.build / "apps" / "tessera" / "tessera"
    output = context.output / f"{kind}.json"
    third = f"{1 / 8 / 3:.9f}"  # a forward, the gradient of its input, those of its weights
    subprocess.run([app, "plan", "schedule", f"--kind={kind}", "--ranks=2", "--micro-batches=8", f"--forward={third}",
                    f"--backward={third}", f"--weight={third}", f"--json={output}"], check=True, stdout=subprocess.DEVNULL)
    return json.loads(output.read_text())["makespan"]


def measure(context):
    context.settle()
    rounds = context.rounds or CONTEST.rounds
    taken = CONTEST.run(gpt_on_stages.commands(context), rounds, same_loss)
    figures = Figures(CONTEST, taken, rounds)
    bars = []
    for name in JUDGED:
        # As if both stages took as long as the slower one.
        beside = median(figures.ratios(OURS[name], STAGES)) / makespan(context, name)
        bars.append(at_most(f"a step of {name} / (slowest stage alone x simulated makespan)", beside, AGAINST_MODEL,
                            "{:.3f}"))
    fastest = min(("zb-h1", "zb-v"), key=lambda name: median(figures.of(FEW[name])))
    bars.append(figures.bar(FEW[fastest], FEW["1f1b"], ZERO_BUBBLE))
    share = [(both - tiny) / TURNS / step for both, tiny, step in
             zip(figures.of(GHOSTS_TOO), figures.of(TINY), figures.of(OURS["1f1b"]))]
    bars.append(at_most("forwards of ghosts / a step of 1f1b", median(share), GHOSTS, "{:.4f}"))
    ratios = [(OURS[name], STAGES) for name in JUDGED] + [(one, ALONE) for one in OURS.values()]
    ratios += [(FEW[name], FEW["1f1b"]) for name in ("zb-h1", "zb-v")]
    notes = [CONTEST.note(taken), gpt_on_stages.SETTING,
             "Stages alone: each rank computes its stage, fed with zeros, while the other computes its own; the slower "
             "one counts. It has malloc's heap, as any program of LibTorch; pipelines keep large tensors apart "
             "(`docs/decisions/0016-large-blocks.md`). Ghosts: what 8 forwards without bytes cost, which is more than a "
             f"step has; the difference of the two rows of tiny layers, which have {TURNS} times as many: "
             f"{spread(share, 100, digits=2)} % of a step."]
    return Outcome("A GPT on two stages, beside what its stages and the schedule allow",
                   tables=[figures.table(), figures.ratio_table(ratios)], bars=bars, notes=notes, samples=flat(taken))
