"""Steps of a GPT whose layers two ranks share: ours, one written by hand, PyTorch's, and ranks that have all of it."""

from harness.contest import Contest, Contestant, Figures, flat
from harness.outcome import Outcome

AGAINST_HAND = 1.03
AGAINST_PEER = 1 / 1.05
AGAINST_ALONE = 0.62

ALONE = Contestant("alone, C++", "shm", "alone")
OURS_SHM = Contestant("ours, shm", "shm", "ours")
HAND_SHM = Contestant("by hand in C++, shm", "shm", "hand_written")
HAND_GLOO = Contestant("by hand in C++, Gloo", "gloo", "hand_written")
OURS_GLOO = Contestant("ours, Gloo", "gloo", "ours")
BLOCKS = Contestant("PyTorch's DTensor, blocks, Gloo", "python", "dtensor")
BLOCKS_AND_HEAD = Contestant("PyTorch's DTensor, blocks, head and loss, Gloo", "python", "dtensor_head")
PYTHON_ALONE = Contestant("alone, Python", "python", "alone")
# A step has one batch of 4 x 256 tokens, which the ranks share.
CONTEST = Contest([ALONE, OURS_SHM, HAND_SHM, HAND_GLOO, OURS_GLOO, BLOCKS, BLOCKS_AND_HEAD, PYTHON_ALONE], ranks=2,
                  rounds=15, steps=2, warm_up_steps=3, tokens=4 * 256)
RATIOS = [(OURS_SHM, HAND_SHM), (OURS_GLOO, HAND_GLOO), (OURS_GLOO, BLOCKS), (OURS_GLOO, BLOCKS_AND_HEAD),
          (OURS_SHM, ALONE), (OURS_GLOO, ALONE), (BLOCKS, PYTHON_ALONE), (BLOCKS_AND_HEAD, PYTHON_ALONE)]


def commands(context):
    """For each program, the command that starts a rank."""
    ours = context.build / "bench" / "tensor" / "bench_tensor"
    return {"shm": [ours, "shm"], "gloo": [ours, "gloo"],
            "python": [context.python, context.root / "bench" / "peers" / "tensor_rank.py"]}


def measure(context):
    context.settle()
    rounds = context.rounds or CONTEST.rounds
    taken = CONTEST.run(commands(context), rounds)
    figures = Figures(CONTEST, taken, rounds)
    notes = [CONTEST.note(taken),
             f"{CONTEST.ranks} ranks share a GPT: 6 layers, width 512, 8 heads, vocabulary 8192, one batch of 4 x 256 "
             "tokens, fp32; fused AdamW. The same arithmetic in C++ and in Python, from the same weights. Heads, "
             "columns and rows of the layers are cut; but for the first of PyTorch's, the head and the loss too.",
             "Ours is the model of `alone`, unmodified. By hand: a model written for it. PyTorch's plan needs a "
             "forward that does not name the number of heads, and a context around the loss.",
             "Alone: each rank trains all of the model, and nobody talks; the mean of the ranks. So 0.5 is what two "
             "ranks can reach. The bar against PyTorch is for the faster of its two."]
    peer = figures.fastest(BLOCKS, BLOCKS_AND_HEAD)
    return Outcome(f"Tensor parallelism of a GPT on {CONTEST.ranks} ranks",
                   tables=[figures.table(), figures.ratio_table(RATIOS)],
                   bars=[figures.bar(OURS_SHM, HAND_SHM, AGAINST_HAND), figures.bar(OURS_GLOO, HAND_GLOO, AGAINST_HAND),
                         figures.bar(OURS_GLOO, peer, AGAINST_PEER), figures.bar(OURS_SHM, ALONE, AGAINST_ALONE)],
                   notes=notes, samples=flat(taken))
