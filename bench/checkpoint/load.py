"""A load into existing memory, with checks, beside PyTorch's and a bare read: from the disk and from the page cache."""

from checkpoint.contest import SETTING, Contest, Contestant, Figures, speed_row
from harness.outcome import Outcome, Table, at_most
from harness.spread import median

ROUNDS = 7
AGAINST_RAW = 1.1

KINDS = [("torch.load", "python", "torch_load"), ("PyTorch's distributed checkpoint", "python", "dcp_load"),
         ("read() into 4 MiB", "python", "raw_read_small"), ("read()", "python", "raw_read"), ("ours", "ours", "load")]
STATES = ["cold", "warm"]
CONTESTANTS = {state: [Contestant(f"{name}, {state}", program, f"{variant} {state}") for name, program, variant in KINDS]
               for state in STATES}


def measure(context):
    context.settle()
    wanted = context.rounds or ROUNDS
    with Contest(context) as contest:
        for program in contest.programs:
            contest.ask(Contestant("", program, "fill"))
        figures = Figures(contest.take([one for state in STATES for one in CONTESTANTS[state]], wanted), wanted)
    rows, bars = [], []
    for state in STATES:
        *_, raw, ours = CONTESTANTS[state]
        rows += [speed_row(figures, one, raw) for one in CONTESTANTS[state]]
        bars.append(at_most(f"a {state} load / a bare read of the same bytes", median(figures.ratios(ours, raw)),
                            AGAINST_RAW))
    return Outcome(
        "A load", tables=[Table(["", "ms", "GB/s", "/ bare read", "ms of the processor"], rows)], bars=bars,
        notes=[SETTING, figures.calm_text(),
               "Cold: the page cache holds nothing of the files. The bare read is of a file a rank, in pieces of 4 MiB, "
               "into tensors that have been used before, as ours and PyTorch's distributed checkpoint; what reads the "
               "same into 4 MiB again and again is beside it. Ours checks every block."],
        samples=figures.samples())
