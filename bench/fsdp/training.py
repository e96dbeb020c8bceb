"""Steps of a GPT on two ranks: ours and PyTorch's sharded training, our DDP, and ranks that do not communicate."""

from harness.contest import Contest, Contestant, Figures, flat
from harness.outcome import Outcome

AGAINST_PEER = 1.00
AGAINST_ALONE = 1.05

PYTHON_ALONE = Contestant("alone, Python", "python", "alone")
ALONE = Contestant("alone, C++", "shm", "alone")
OURS_SHM = Contestant("ours, shm", "shm", "fsdp")
DDP_SHM = Contestant("our DDP, shm", "shm", "ddp")
DDP_GLOO = Contestant("our DDP, Gloo", "gloo", "ddp")
OURS_GLOO = Contestant("ours, Gloo", "gloo", "fsdp")
FSDP2 = Contestant("PyTorch's FSDP2, Gloo", "python", "fsdp2")
FSDP1 = Contestant("PyTorch's FSDP1, Gloo", "python", "fsdp1")
# Three steps warm up: the order of units is learnt in the first. A rank's step has 4 x 256 tokens.
CONTEST = Contest([PYTHON_ALONE, DDP_SHM, ALONE, OURS_SHM, DDP_GLOO, FSDP1, OURS_GLOO, FSDP2], ranks=2, rounds=15,
                  steps=2, warm_up_steps=3, tokens=2 * 4 * 256)
RATIOS = [(OURS_GLOO, FSDP2), (OURS_GLOO, FSDP1), (OURS_SHM, ALONE), (OURS_GLOO, ALONE), (OURS_SHM, DDP_SHM),
          (OURS_GLOO, DDP_GLOO), (FSDP2, PYTHON_ALONE), (FSDP1, PYTHON_ALONE), (ALONE, PYTHON_ALONE)]


def commands(context, shape=()):
    """For each program, the command that starts a rank. `shape` is that of a GPT other than the default one."""
    ours = context.build / "bench" / "fsdp" / "bench_fsdp"
    return {"shm": [ours, "shm", *shape], "gloo": [ours, "gloo", *shape],
            "python": [context.python, context.root / "bench" / "peers" / "fsdp_rank.py", *shape]}


def measure(context):
    context.settle()
    rounds = context.rounds or CONTEST.rounds
    # Ranks that do not talk train on batches of their own, and so to another loss.
    taken = CONTEST.run(commands(context), rounds, same_loss=lambda one: one.synchronised)
    figures = Figures(CONTEST, taken, rounds)
    notes = [CONTEST.note(taken),
             f"{CONTEST.ranks} ranks of a GPT: 6 layers, width 512, 8 heads, vocabulary 8192, batches of 4 x 256 "
             "tokens, fp32; fused AdamW. The same arithmetic in C++ and in Python, from the same weights; a unit for "
             "each layer and one for what is left, other options as they are by default.",
             "Alone: nobody talks; the mean of the ranks. The bar against PyTorch is for the faster of its two."]
    return Outcome(f"Sharded training of a GPT on {CONTEST.ranks} ranks",
                   tables=[figures.table(), figures.ratio_table(RATIOS)],
                   bars=[figures.bar(OURS_GLOO, figures.fastest(FSDP2, FSDP1), AGAINST_PEER),
                         figures.bar(OURS_SHM, ALONE, AGAINST_ALONE)],
                   notes=notes, samples=flat(taken))
