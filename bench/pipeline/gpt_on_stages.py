"""The GPT on two stages, of which the parts `peers` and `limits` measure steps."""

from harness.contest import Contest

SHAPE = [6, 512, 8, 8192, 256, 8]  # GptShape, with 8 sequences
RANKS = 2
# One step takes up to a tenth more or less than the one before, in whichever program: the median of so many rounds
# tells apart what differs by a few hundredths.
ROUNDS = 20
SETTING = ("2 ranks of a GPT: 6 layers, width 512, 8 heads, vocabulary 8192, a batch of 8 x 256 tokens, fp32; fused "
           "AdamW, one thread a rank. Two stages: 4 layers, and 2 with the head; four: 2, 2, 2 and the head. Ours is the "
           "model as it is written for one process.")


def contest(contestants):
    return Contest(contestants, ranks=RANKS, rounds=ROUNDS, steps=1, warm_up_steps=2, tokens=8 * 256)


def commands(context):
    program = context.build / "bench" / "pipeline" / "bench_pipeline"
    shape = [str(number) for number in SHAPE]
    return {"shm": [program, "shm", *shape], "gloo": [program, "gloo", *shape],
            "python": [context.python, context.root / "bench" / "peers" / "pipeline_rank.py", *shape]}
