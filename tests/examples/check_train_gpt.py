"""Trains example 09 on one rank, and on several in every way to share the model; stops and goes on, also in another way.

  check_train_gpt.py TESSERA TRAIN_GPT TOML
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SMALL = ["--steps=12", "--global_batch=8", "--micro_batch=2", "--sequence_length=32", "--schedule.warmup_steps=2",
         "--validate_every=6", "--validation_samples=7", "--model.width=32", "--model.num_layers=2",
         "--model.num_heads=2", "--sample.max_new_tokens=8", "--observe.progress=off"]
FSDP = "--parallel.data_parallelism=fsdp"
PLAN = ("--parallel.tp_plan=h.*.attn.c_attn: heads(2).packed(3).transposed,h.*.attn.c_proj: rows.heads(2).transposed,"
        "h.*.mlp.c_fc: columns.transposed,h.*.mlp.c_proj: rows.transposed,wte: vocabulary")
WAYS = {
    "ddp": [],
    "zero1": [FSDP, "--parallel.fsdp.strategy=zero1"],
    "zero2": [FSDP, "--parallel.fsdp.strategy=shard_grad_op"],
    "zero3": [FSDP, "--parallel.fsdp.strategy=full_shard", "--parallel.recompute=true"],
    "tp": ["--parallel.tp=2", PLAN],
    "pp": ["--parallel.pp=2", "--parallel.pipeline_schedule=zb-h1"],
    "three_d": ["--parallel.tp=2", PLAN, "--parallel.pp=2", FSDP],
    "hybrid": [FSDP, "--parallel.fsdp.strategy=hybrid_shard", "--parallel.shard_ranks=2"],
}
RELATIVE = 1e-5


def ranks_of(way):
    return {"hybrid": 4, "three_d": 8}.get(way, 2)


def run(command, **arguments):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=100, **arguments)
    if done.returncode != 0:
        sys.exit(f"{command}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def losses(path):
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    return [step["loss"] for step in steps if "step" in step]


def difference(found, expected, what):
    """The largest, relative to the loss; ends the test when it is too large."""
    if len(found) != len(expected):
        sys.exit(f"{what}: {len(found)} losses instead of {len(expected)}")
    apart = max(abs(a - b) / abs(b) for a, b in zip(found, expected))
    if not apart <= RELATIVE:
        sys.exit(f"{what}: differs by {apart:.1e}: {found} {expected}")
    return apart


class Example:
    def __init__(self, tessera, train_gpt, toml, folder):
        self.tessera, self.train_gpt, self.toml, self.folder = tessera, train_gpt, toml, Path(folder)

    def pack(self):
        text = "It is said that the licence of a program tells what may be done with it.\n" * 100
        (self.folder / "text").mkdir()
        for name in ("train", "validation"):
            (self.folder / f"text/{name}.txt").write_text(text)
            run([self.tessera, "data", "pack", f"text/{name}", f"text/{name}.txt"], cwd=self.folder)

    def train(self, ranks, *options):
        return run([self.tessera, "run", "--nproc-per-node", str(ranks), self.train_gpt, self.toml, *SMALL, *options],
                   cwd=self.folder, env=dict(os.environ, OMP_NUM_THREADS="1"))

    def losses(self, name, ranks, *options):
        self.train(ranks, f"--observe.json={name}.jsonl", f"--observe.tensorboard=events_{name}", f"--out=out_{name}",
                   *options)
        if not (self.folder / f"out_{name}/model.safetensors").exists():
            sys.exit(f"{name}: no weights were written")
        return losses(self.folder / f"{name}.jsonl")


def check_stopped(example, straight):
    """Six steps, and the same command for the rest: the losses of a run without a stop, bit for bit."""
    keeps = ["--checkpoints=kept", "--save_every=4", "--schedule.total_steps=12", "--observe.json=stopped.jsonl"]
    example.train(2, *keeps, "--steps=6")
    output = example.train(2, *keeps)
    if "goes on after step 6\n" not in output:
        sys.exit(f"it did not go on after step 6: {output}")
    found = losses(example.folder / "stopped.jsonl")
    if found != straight:
        sys.exit(f"stopped and gone on, the losses are others: {found} {straight}")
    kept = sorted(path.name for path in (example.folder / "kept").iterdir())
    if kept != ["step-00000008", "step-00000012"]:
        sys.exit(f"expected the last two steps, found {kept}")


# Layouts with tensor parallelism or stages go on as each other and as shards; the others in every way among themselves.
LAYERS = ["tp", "pp", "three_d"]


def goes_on_as(saved):
    if saved in LAYERS:
        return [*LAYERS, "zero3"]
    return [way for way in WAYS if way not in LAYERS] + (LAYERS if saved == "zero3" else [])


def check_pairs(example, straight):
    """A step that was saved in one way goes on in others."""
    largest, num_pairs = 0, 0
    for saved in WAYS:
        keeps = ["--schedule.total_steps=12", "--save_every=6", "--validation="]
        example.train(ranks_of(saved), *keeps, f"--checkpoints=by_{saved}", "--steps=6", "--observe.json=none.jsonl",
                      *WAYS[saved])
        for goes_on in goes_on_as(saved):
            folder, lines = f"{saved}_{goes_on}", f"{saved}_{goes_on}.jsonl"
            shutil.copytree(example.folder / f"by_{saved}", example.folder / folder)
            output = example.train(ranks_of(goes_on), *keeps, f"--checkpoints={folder}", f"--observe.json={lines}",
                                   *WAYS[goes_on])
            if "goes on after step 6\n" not in output:
                sys.exit(f"saved by {saved}, {goes_on} did not go on: {output}")
            apart = difference(losses(example.folder / lines), straight[6:], f"saved by {saved}, gone on by {goes_on}")
            largest, num_pairs = max(largest, apart), num_pairs + 1
    print(f"{num_pairs} pairs of who saved and who went on: losses within {largest:.1e} of a run without a stop")


def main(tessera, train_gpt, toml):
    with tempfile.TemporaryDirectory() as folder:
        example = Example(tessera, train_gpt, toml, folder)
        example.pack()
        one = example.losses("one", 1)
        if len(one) != 12 or one[-1] > 0.9 * one[0]:
            sys.exit(f"the loss did not fall: {one}")
        for way, options in WAYS.items():
            found = example.losses(way, ranks_of(way), *options)
            apart = difference(found, one, way)
            print(f"{way} on {ranks_of(way)} ranks: loss {found[0]:.3f} to {found[-1]:.3f}, within {apart:.1e} of one")
            if way == "ddp":
                check_stopped(example, found)
        check_pairs(example, one)


if __name__ == "__main__":
    main(*sys.argv[1:])
