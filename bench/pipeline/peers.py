"""Steps of a GPT on two stages: ours and PyTorch's with the same schedule, both on Gloo."""

from harness.contest import Contestant, Figures, flat
from harness.outcome import Outcome
from pipeline import gpt_on_stages

AGAINST_PEER = 0.98
SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb-v"]

OURS = {name: Contestant(f"ours, {name}, Gloo", "gloo", f"{name}/8") for name in SCHEDULES}
PEERS = {name: Contestant(f"PyTorch, {name}, Gloo", "python", f"{name}/8") for name in SCHEDULES}
CONTEST = gpt_on_stages.contest([one for name in SCHEDULES for one in (OURS[name], PEERS[name])])


def measure(context):
    context.settle()
    rounds = context.rounds or CONTEST.rounds
    taken = CONTEST.run(gpt_on_stages.commands(context), rounds)
    figures = Figures(CONTEST, taken, rounds)
    bars = [figures.bar(OURS[name], PEERS[name], AGAINST_PEER) for name in SCHEDULES]
    notes = [CONTEST.note(taken), gpt_on_stages.SETTING,
             "The same arithmetic in C++ and in Python, from the same weights. PyTorch's stages are cut out by hand."]
    return Outcome("A GPT on two stages, beside PyTorch's pipelines",
                   tables=[figures.table(), figures.ratio_table((OURS[name], PEERS[name]) for name in SCHEDULES)],
                   bars=bars, notes=notes, samples=flat(taken))
