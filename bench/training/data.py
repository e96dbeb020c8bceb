"""How fast tokens are read: uint16 in a mapped file to batches of int64, on one core."""

import array
import json
import os
import subprocess
import tempfile
from pathlib import Path

from harness.outcome import Outcome, Table, at_least
from harness.spread import median, spread

ROUNDS = 9
MILLION_TOKENS = 50.0
FILE_TOKENS = 64 << 20  # 128 MB: beyond the caches, within memory
CONTESTANTS = {
    "shuffled": "windows of 1,025 tokens in shuffled order, 32 a batch",
    "sequential": "the same, in the file's order",
    "loader": "shuffled, made ahead by one thread",
    "memcpy": "memcpy of as many bytes of int64",
}


def write_tokens(path):
    """Writes a file in llm.c's format whose tokens repeat a random extent."""
    header = array.array("i", [20240520, 1, FILE_TOKENS] + [0] * 253)
    extent = os.urandom(2 << 20)
    with open(path, "wb") as file:
        file.write(header.tobytes())
        for _ in range(FILE_TOKENS * 2 // len(extent)):
            file.write(extent)


def measure(context):
    with tempfile.TemporaryDirectory(dir=context.output) as folder:
        path = Path(folder) / "tokens.bin"
        write_tokens(path)
        context.settle()
        # One core for the program and all its threads.
        core = min(os.sched_getaffinity(0))
        done = subprocess.run([context.build / "bench" / "training" / "bench_data", path, str(context.rounds or ROUNDS)],
                              check=True, capture_output=True, text=True,
                              preexec_fn=lambda: os.sched_setaffinity(0, {core}))
    samples = [json.loads(line) for line in done.stdout.splitlines()]
    clock, core = ({name: [one[kind] for one in samples if one["name"] == name] for name in CONTESTANTS}
                   for kind in ("by_clock", "by_core"))
    middle = {name: median(values) for name, values in clock.items()}
    rows = [[text, spread(clock[name], digits=0), spread(core[name], digits=0),
             f"{median(core[name]) / median(core['memcpy']):.2f}"] for name, text in CONTESTANTS.items()]
    return Outcome(
        "Reading tokens, uint16 to int64, on one core",
        tables=[Table(["what", "million tokens/s", "by the core's time", "of memcpy"], rows)],
        bars=[at_least("reading shuffled tokens, million/s", middle["shuffled"], MILLION_TOKENS, "{:.0f}"),
              at_least("reading through the loader, million/s", middle["loader"], MILLION_TOKENS, "{:.0f}")],
        notes=["Each figure is of 400 batches. A token is read as 2 bytes and written as 8, so what limits is writing "
               "the batches: memcpy of int64 writes as much and reads four times as much."],
        samples=samples)
