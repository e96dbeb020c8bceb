"""A save that training waits for, checksums and fsync included, beside PyTorch's and a bare write."""

from checkpoint.contest import SETTING, Contest, Contestant, Figures, speed_row
from harness.outcome import Outcome, Table, at_most
from harness.spread import median

ROUNDS = 9
AGAINST_RAW = 1.1

RAW = Contestant("write() and fsync, a file a rank", "python", "raw_write")
OURS = Contestant("ours", "ours", "save")
DCP = Contestant("PyTorch's distributed checkpoint", "python", "dcp_save")
TORCH = Contestant("torch.save and fsync, a file a rank", "python", "torch_save")
# Contestants that are compared run one after the other.
CONTESTANTS = [TORCH, RAW, OURS, DCP]


def measure(context):
    context.settle()
    wanted = context.rounds or ROUNDS
    with Contest(context) as contest:
        figures = Figures(contest.take(CONTESTANTS, wanted), wanted)
    return Outcome(
        "A save that training waits for",
        tables=[Table(["", "ms", "GB/s", "/ bare write", "ms of the processor"], [speed_row(figures, one, RAW) for one in CONTESTANTS])],
        bars=[at_most("a save / a bare write of the same bytes", median(figures.ratios(OURS, RAW)), AGAINST_RAW)],
        notes=[SETTING, figures.calm_text(),
               "Ours: all ranks write into one file, the checksums of every block are taken, files and folders are "
               "brought to the disk, and the step has its name. PyTorch's brings its files to the disk too, and takes "
               "no checksums; torch.save is followed by an fsync of ours."],
        samples=figures.samples())
