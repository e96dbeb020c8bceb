"""What one rank of 16,384 pays for a mesh of four axes and the use of each of its groups. No peer can do this with
one process."""

import json
import subprocess

from harness.outcome import Bar, Outcome, Table
from harness.spread import median, spread

SIZE = 16384
AXES = ["pp=4", "dp=128", "cp=4", "tp=8"]
RANKS = [0, 12345, SIZE - 1]  # the first one also looks for layout warnings
ROUNDS = 5
MILLISECONDS = 100
MEGABYTES = 20


def sample(app, rank):
    command = [app, "bench", "mesh", "--rank", str(rank), "--size", str(SIZE), "--axes", ",".join(AXES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"tessera bench mesh ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def measure(context):
    context.settle()
    samples = [sample(context.app, rank) for _ in range(context.rounds or ROUNDS) for rank in RANKS]
    of_rank = {rank: [one for one in samples if one["rank"] == rank] for rank in RANKS}
    figures = {rank: {key: [one[key] for one in ones] for key in ("milliseconds", "rss_megabytes", "num_groups")}
               for rank, ones in of_rank.items()}
    slowest = max(median(figure["milliseconds"]) for figure in figures.values())
    largest = max(median(figure["rss_megabytes"]) for figure in figures.values())
    groups = sorted({one["num_groups"] for one in samples})
    return Outcome(
        f"One rank of {SIZE}: a mesh {', '.join(AXES)}, every group used once",
        tables=[Table(["rank", "ms", "MB", "groups"],
                      [[str(rank), spread(figure["milliseconds"]), spread(figure["rss_megabytes"]),
                        spread(figure["num_groups"], digits=0)] for rank, figure in figures.items()])],
        bars=[
            Bar(f"mesh of {SIZE} ranks, time", f"{slowest:.2f} ms", f"less than {MILLISECONDS} ms",
                slowest < MILLISECONDS),
            Bar(f"mesh of {SIZE} ranks, memory", f"{largest:.2f} MB", f"less than {MEGABYTES} MB", largest < MEGABYTES),
            Bar(f"mesh of {SIZE} ranks, groups connected", ", ".join(map(str, groups)), f"exactly {len(AXES)}",
                groups == [len(AXES)]),
        ],
        samples=samples)
