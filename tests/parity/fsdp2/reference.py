#!/usr/bin/env python3
"""A GPT-2 of Hugging Face's transformers under PyTorch's FSDP2 on two ranks, to compare ours with. Run by
tests/parity/fsdp2/run.

  reference.py prepare FOLDER [--size small|gpt2] [--steps N]   random weights, and tokens
  reference.py train FOLDER                                     python.safetensors: the losses
  reference.py compare FOLDER                                   what Tessera stored, against that

The stored losses of the quick test are remade with
  tools/python_peers tests/parity/fsdp2/reference.py store tests/parity/fsdp2/reference
"""

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import logging

NUM_RANKS = 2
STEPS = 50
MAX_LOSS = 1e-4
GPT2 = Path(__file__).resolve().parent.parent / "gpt2"


def gpt2_reference():
    """The test of GPT-2 alone, which has the model, the tokens and the loss."""
    spec = importlib.util.spec_from_file_location("gpt2_reference", GPT2 / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings_of(folder):
    with safe_open(folder / "tokens.safetensors", "pt") as file:
        return file.get_tensor("tokens"), {key: float(value) for key, value in file.metadata().items()}


def prepare(folder, size, steps):
    gpt2_reference().prepare(folder, size, steps)
    tokens, settings = settings_of(folder)
    save_file({"tokens": tokens}, folder / "tokens.safetensors",
              metadata={"num_steps": str(steps), **{key: str(value) for key, value in settings.items()}})


def train_rank(rank, folder, steps, result):
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{result}.store", rank=rank, world_size=NUM_RANKS)
    reference = gpt2_reference()
    tokens, settings = settings_of(folder)
    model = reference.load(folder)
    mesh = init_device_mesh("cpu", (NUM_RANKS,))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"],
                                  weight_decay=settings["weight_decay"])
    losses = []
    start = time.monotonic()
    for step in range(steps):
        loss = reference.loss_of(model, tokens[step % len(tokens)].chunk(NUM_RANKS)[rank])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    all_losses = [None] * NUM_RANKS
    dist.all_gather_object(all_losses, losses)
    if rank == 0:
        print(f"PyTorch's FSDP2: trained in {time.monotonic() - start:.0f} s, loss {losses[0]:.4f} to {losses[-1]:.4f}")
        save_file({"losses": torch.tensor(all_losses, dtype=torch.float64).T.contiguous()}, result)
    dist.destroy_process_group()


def train(folder, steps, result):
    torch.multiprocessing.spawn(train_rank, (folder, steps, result), nprocs=NUM_RANKS)


def compare(folder):
    ours = load_file(folder / "tessera.safetensors")["losses"]
    theirs = load_file(folder / "python.safetensors")["losses"]
    if ours.shape != theirs.shape:
        sys.exit(f"there are losses {list(ours.shape)} of ours and {list(theirs.shape)} of theirs")
    difference = (ours - theirs).abs().max().item()
    holds = difference <= MAX_LOSS
    print(f"losses of {ours.shape[0]} steps on {ours.shape[1]} ranks: largest difference {difference:.2e}, "
          f"bar {MAX_LOSS:.0e}: {'met' if holds else 'MISSED'}")
    return holds


def store(folder):
    """The reference of the quick test, from the model and the tokens of the quick test of GPT-2."""
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        result = Path(name) / "losses.safetensors"
        train(GPT2 / "reference", STEPS, result)
        (folder / "losses.safetensors").write_bytes(result.read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("prepare", "train", "compare", "store"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=("tiny", "small", "gpt2"), default="small")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    logging.disable_progress_bar()
    if options.action == "prepare":
        prepare(options.folder, options.size, options.steps)
    elif options.action == "train":
        train(options.folder, int(settings_of(options.folder)[1]["num_steps"]), options.folder / "python.safetensors")
    elif options.action == "store":
        store(options.folder)
    elif not compare(options.folder):
        sys.exit(1)


if __name__ == "__main__":
    main()
