"""What it costs to record a collective."""

import json
import subprocess

from harness.outcome import Outcome, Table, at_most
from harness.spread import median, spread

BLOCKS = 20
MICROSECONDS = 1.0


def measure(context):
    context.settle()
    program = context.build / "bench" / "launch" / "bench_recording"
    done = subprocess.run([program, str(context.rounds or BLOCKS)], check=True, capture_output=True, text=True)
    samples = [json.loads(line) for line in done.stdout.splitlines()]
    values = [one["ns"] / 1e3 for one in samples]
    return Outcome(
        "Recording a collective, begin and end",
        tables=[Table(["into", "us a call"], [["a launcher's black box", spread(values, digits=3)]])],
        bars=[at_most("recording a collective, us", median(values), MICROSECONDS, "{:.3f}")],
        notes=["Each figure is the mean of 100,000 calls."], samples=samples)
