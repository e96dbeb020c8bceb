"""Two replicas in one process: ours, which persist, against a clone of the model in each step."""

import json
import subprocess

from harness.outcome import Outcome, Table, at_most
from harness.spread import median, ratios, spread

STEPS = 20
BATCH = 32
OURS = "tessera"
CLONES = "libtorch_clones"


def measure(context):
    context.settle()
    program = context.build / "bench" / "ddp" / "bench_replicas"
    samples, rows, bars = [], [], []
    for model in ("mlp", "gpt"):
        done = subprocess.run([program, model, str(context.rounds or STEPS), str(BATCH)], check=True,
                              capture_output=True, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        samples += lines
        times = {}
        for line in lines:
            times.setdefault(line["contestant"], []).append(line["ms"])
        rows += [[model, name, spread(values, digits=1)] for name, values in times.items()]
        ratio = median(ratios(times[OURS], times[CLONES]))
        bars.append(at_most(f"a step of two replicas / a clone each step, {model}", ratio, 1.0))
    return Outcome(
        "Replicas in one process", tables=[Table(["model", "contestant", "ms a step"], rows)], bars=bars,
        notes=[f"Steps interleaved, batches of {BATCH}, two replicas of one thread each. LibTorch's data_parallel() needs "
               "the headers of CUDA; what it does is written out."], samples=samples)
