"""Steps of a GPT on GPUs: our DDP and FSDP, PyTorch's, and ranks that do not communicate."""

import subprocess

from harness.contest import Contest, Contestant, Figures, flat
from harness.outcome import Outcome

MOST_RANKS = 8
# As on the CPU: bench/ddp and bench/fsdp.
AGAINST_PEER = 1.00
DDP_AGAINST_ALONE = 1.04
FSDP_AGAINST_ALONE = 1.05

PYTHON_ALONE = Contestant("alone, Python", "python", "alone")
ALONE = Contestant("alone, C++", "ours", "alone")
OUR_DDP = Contestant("our DDP", "ours", "ddp")
THEIR_DDP = Contestant("PyTorch's DDP", "python", "ddp")
OUR_FSDP = Contestant("our FSDP", "ours", "fsdp")
FSDP2 = Contestant("PyTorch's FSDP2", "python", "fsdp2")
FSDP1 = Contestant("PyTorch's FSDP1", "python", "fsdp1")
# Contestants that are compared run one after the other.
CONTESTANTS = [PYTHON_ALONE, ALONE, OUR_DDP, THEIR_DDP, FSDP1, OUR_FSDP, FSDP2]
RATIOS = [(OUR_DDP, THEIR_DDP), (OUR_FSDP, FSDP2), (OUR_FSDP, FSDP1), (OUR_DDP, ALONE), (OUR_FSDP, ALONE),
          (OUR_FSDP, OUR_DDP), (THEIR_DDP, PYTHON_ALONE), (FSDP2, PYTHON_ALONE), (ALONE, PYTHON_ALONE)]

SHAPE = (6, 512, 8, 8192, 256, 4)           # layers, width, heads, vocabulary, sequence, batch: 27 million parameters
SIMULATED_SHAPE = (2, 64, 2, 256, 32, 2)
MEANINGLESS = ("SIMULATED: ours ran on the simulated device, PyTorch's programs on the CPU. The figures only show that "
               "the programs run; the ratios mean nothing, and no bar is judged.")


def num_gpus():
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(line.startswith("GPU ") for line in listed)


def sizes(context):
    """Numbers of ranks: two, and all that there are."""
    if context.simulate:
        return [2]
    count = min(num_gpus(), MOST_RANKS)
    if count == 0:
        raise RuntimeError("nvidia-smi -L lists no GPU; --simulate runs without one")
    return sorted({min(2, count), count})


def contest_of(context, size):
    shape = SIMULATED_SHAPE if context.simulate else SHAPE
    tokens = size * shape[4] * shape[5]
    if context.simulate:
        return Contest(CONTESTANTS, size, rounds=2, steps=1, warm_up_steps=3, tokens=tokens)
    return Contest(CONTESTANTS, size, rounds=10, steps=20, warm_up_steps=5, tokens=tokens)


def commands(context):
    folder = context.build / "bench" / "fsdp"
    peer = context.root / "bench" / "peers" / "fsdp_rank.py"
    if context.simulate:
        return {"ours": [folder / "bench_fsdp_simulated", "--device", "gloo", *SIMULATED_SHAPE],
                "python": [context.python, peer, *SIMULATED_SHAPE]}
    # Gloo carries what is on the CPU, as with PyTorch; NCCL what is on the GPUs.
    return {"ours": [folder / "bench_fsdp", "--device", "gloo", *SHAPE],
            "python": [context.python, peer, "--device", *SHAPE]}


def bars(figures, size):
    peers = figures.fastest(FSDP2, FSDP1)
    for one, other, limit in ((OUR_DDP, THEIR_DDP, AGAINST_PEER), (OUR_FSDP, peers, AGAINST_PEER),
                              (OUR_DDP, ALONE, DDP_AGAINST_ALONE), (OUR_FSDP, ALONE, FSDP_AGAINST_ALONE)):
        bar = figures.bar(one, other, limit)
        bar.name += f", {size} ranks"
        yield bar


def measure(context):
    if context.simulate:
        print(f"  {MEANINGLESS}\n", flush=True)
    context.settle()
    tables, judged, samples, notes = [], [], [], [MEANINGLESS] if context.simulate else []
    for size in sizes(context):
        contest = contest_of(context, size)
        rounds = context.rounds or contest.rounds
        taken = contest.run(commands(context), rounds, same_loss=lambda one: one.synchronised)
        figures = Figures(contest, taken, rounds)
        tables += [figures.table(), figures.ratio_table(RATIOS)]
        judged += bars(figures, size)
        samples += [{"ranks": size, **sample} for sample in flat(taken)]
        notes.append(f"Tables of {size} ranks: {contest.note(taken)}")
    for bar in judged:
        bar.judged = not context.simulate
    layers, width, heads, vocabulary, sequence, batch = SIMULATED_SHAPE if context.simulate else SHAPE
    notes += [f"A GPT: {layers} layers, width {width}, {heads} heads, vocabulary {vocabulary}, batches of {batch} x "
              f"{sequence} tokens, fp32; fused AdamW. The same arithmetic in C++ and in Python, from the same weights.",
              "Alone: nobody talks; the mean of the ranks. The bar of FSDP is for the faster of PyTorch's two."]
    title = "Training a GPT, ours on the simulated device" if context.simulate else "Training a GPT on GPUs"
    return Outcome(title, tables=tables, bars=judged, notes=notes, samples=samples)
