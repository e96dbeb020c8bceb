"""Trains example 09 for some steps on one and on two ranks, and on two with a stop: check_train_gpt.py TESSERA TRAIN_GPT
TOML."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SMALL = ["--steps=12", "--global_batch=8", "--micro_batch=2", "--sequence_length=32", "--schedule.warmup_steps=2",
         "--validate_every=6", "--validation_samples=8", "--model.width=32", "--model.num_layers=1",
         "--model.num_heads=2", "--sample.max_new_tokens=8", "--observe.progress=off"]


def run(command, **arguments):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=100, **arguments)
    if done.returncode != 0:
        sys.exit(f"{command}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def losses(path):
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    return [step["loss"] for step in steps if "step" in step]


def check_stopped(train, folder, straight):
    """Six steps, and the same command for the rest: the losses of a run without a stop, bit for bit."""
    keeps = ["--checkpoints=kept", "--save_every=4", "--schedule.total_steps=12", "--observe.json=stopped.jsonl"]
    train(2, *keeps, "--steps=6")
    output = train(2, *keeps)
    if "goes on after step 6\n" not in output:
        sys.exit(f"it did not go on after step 6: {output}")
    found = losses(Path(folder, "stopped.jsonl"))
    if found != straight:
        sys.exit(f"stopped and gone on, the losses are others: {found} {straight}")
    kept = sorted(path.name for path in Path(folder, "kept").iterdir())
    if kept != ["step-00000008", "step-00000012"]:
        sys.exit(f"expected the last two steps, found {kept}")


def main(tessera, train_gpt, toml):
    with tempfile.TemporaryDirectory() as folder:
        text = "It is said that the licence of a program tells what may be done with it.\n" * 100
        for name in ("train", "validation"):
            Path(folder, "text").mkdir(exist_ok=True)
            Path(folder, f"text/{name}.txt").write_text(text)
            run([tessera, "data", "pack", f"text/{name}", f"text/{name}.txt"], cwd=folder)
        found = {}

        def train(ranks, *options):
            return run([tessera, "run", "--nproc-per-node", str(ranks), train_gpt, toml, *SMALL, *options], cwd=folder,
                       env=dict(os.environ, OMP_NUM_THREADS="1"))

        for ranks in (1, 2):
            train(ranks, f"--observe.json=steps{ranks}.jsonl", f"--observe.tensorboard=events{ranks}", f"--out=out{ranks}")
            found[ranks] = losses(Path(folder, f"steps{ranks}.jsonl"))
            if not Path(folder, f"out{ranks}/model.safetensors").exists():
                sys.exit(f"no weights were written: {sorted(Path(folder, f'out{ranks}').iterdir())}")
        one, two = found[1], found[2]
        if len(one) != 12 or one[-1] > 0.9 * one[0]:
            sys.exit(f"the loss did not fall: {one}")
        apart = max(abs(a - b) for a, b in zip(one, two))
        if len(two) != len(one) or apart > 1e-3:
            sys.exit(f"one process and two ranks differ by {apart}: {one} {two}")
        check_stopped(train, folder, two)
        print(f"loss {one[0]:.3f} to {one[-1]:.3f}; two ranks differ by {apart:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
