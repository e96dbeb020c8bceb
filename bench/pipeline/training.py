"""Steps of a GPT on two stages: ours and PyTorch's with the same schedule, the stages alone, and one process."""

import json
import subprocess

from harness.contest import Contest, Contestant, Figures, flat
from harness.outcome import Outcome, at_most
from harness.spread import median, spread

AGAINST_PEER = 0.98
AGAINST_MODEL = 1.04
ZERO_BUBBLE = 1 / 1.05
GHOSTS = 0.01
SHAPE = [6, 512, 8, 8192, 256, 8]  # GptShape, with 8 sequences
SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb-v"]

ALONE = Contestant("alone, C++", "shm", "alone/8")
STAGES = Contestant("stages alone, C++", "shm", "stages/8")
TINY = Contestant("forwards of tiny layers, C++", "shm", "tiny/8")
GHOSTS_TOO = Contestant("forwards of tiny layers and of ghosts, C++", "shm", "ghosts/8")
TURNS = 20  # of one step of these two
OURS = {name: Contestant(f"ours, {name}, Gloo", "gloo", f"{name}/8") for name in SCHEDULES}
PEERS = {name: Contestant(f"PyTorch, {name}, Gloo", "python", f"{name}/8") for name in SCHEDULES}
OURS_SHM = {name: Contestant(f"ours, {name}, shm", "shm", f"{name}/8") for name in [*SCHEDULES, "zb-h1"]}
FEW = {name: Contestant(f"ours, {name}, 4 micro-batches, shm", "shm", f"{name}/4") for name in ("1f1b", "zb-h1", "zb-v")}

CONTEST = Contest([ALONE, STAGES, TINY, GHOSTS_TOO, *(one for name in SCHEDULES for one in (OURS[name], PEERS[name])),
                   *OURS_SHM.values(), *FEW.values()], ranks=2, rounds=9, steps=1, warm_up_steps=2, tokens=8 * 256)


def commands(context):
    program = context.build / "bench" / "pipeline" / "bench_pipeline"
    shape = [str(number) for number in SHAPE]
    return {"shm": [program, "shm", *shape], "gloo": [program, "gloo", *shape],
            "python": [context.python, context.root / "bench" / "peers" / "pipeline_rank.py", *shape]}


def same_loss(one):
    return one not in (STAGES, TINY, GHOSTS_TOO) or one.name


def simulated(context, kind, micro_batches, times):
    """The makespan of a schedule on two ranks whose stages take these times for a batch, in the times' unit."""
    app = context.build / "apps" / "tessera" / "tessera"
    # A forward takes a third of a step of a stage; the stages of a rank with two of them take half of it each.
    costs = [f"{seconds / micro_batches / 3:.9f}" for seconds in times]
    output = context.output / f"{kind}-{micro_batches}.json"
    each = ",".join(costs if kind not in ("interleaved", "zb-v") else [])
    options = [f"--forward={each}", f"--backward={each}", f"--weight={each}"] if each else []
    subprocess.run([app, "plan", "schedule", f"--kind={kind}", "--ranks=2", f"--micro-batches={micro_batches}",
                    *options, f"--json={output}"], check=True, stdout=subprocess.DEVNULL)
    return json.loads(output.read_text())["makespan"]


def measure(context):
    context.settle()
    rounds = context.rounds or CONTEST.rounds
    taken = CONTEST.run(commands(context), rounds, same_loss)
    figures = Figures(CONTEST, taken, rounds)
    bars = [figures.bar(OURS[name], PEERS[name], AGAINST_PEER) for name in SCHEDULES]
    slowest = median(figures.of(STAGES))
    for name in ("gpipe", "1f1b", "zb-h1"):
        # As if both stages took as long as the slower one.
        expected = simulated(context, name, 8, [slowest, slowest])
        bars.append(at_most(f"a step of {OURS_SHM[name].name} / (slowest stage alone x simulated makespan)",
                            median(figures.of(OURS_SHM[name])) / expected, AGAINST_MODEL, "{:.3f}"))
    fastest = min(("zb-h1", "zb-v"), key=lambda name: median(figures.of(FEW[name])))
    bars.append(figures.bar(FEW[fastest], FEW["1f1b"], ZERO_BUBBLE))
    share = [(both - tiny) / TURNS / step for both, tiny, step in
             zip(figures.of(GHOSTS_TOO), figures.of(TINY), figures.of(OURS_SHM["1f1b"]))]
    bars.append(at_most("forwards of ghosts / a step of ours, 1f1b, shm", median(share), GHOSTS, "{:.4f}"))
    ratios = [(OURS[name], PEERS[name]) for name in SCHEDULES]
    ratios += [(one, ALONE) for one in OURS_SHM.values()] + [(FEW[name], FEW["1f1b"]) for name in ("zb-h1", "zb-v")]
    notes = [CONTEST.note(taken),
             "2 ranks of a GPT: 6 layers, width 512, 8 heads, vocabulary 8192, a batch of 8 x 256 tokens, fp32; fused "
             "AdamW. The same arithmetic in C++ and in Python, from the same weights. Two stages: 4 layers, and 2 with "
             "the head; four: 2, 2, 2 and the head.",
             "Ours is the model of `alone`, unmodified; PyTorch's stages are cut out by hand.",
             "Stages alone: each rank computes its stage, fed with zeros, while the other computes its own; the slower "
             "one counts. Ghosts: what 8 forwards without bytes cost, which is more than a step has; the difference of the "
             f"two rows of tiny layers, which have {TURNS} times as many: {spread(share, 100, digits=2)} % of a step."]
    return Outcome("A GPT on two stages", tables=[figures.table(), figures.ratio_table(ratios)], bars=bars, notes=notes,
                   samples=flat(taken))
