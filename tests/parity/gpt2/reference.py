#!/usr/bin/env python3
"""GPT-2 as Hugging Face's transformers has it, to compare Tessera's with. Run by tests/parity/gpt2/run.

  reference.py prepare FOLDER [--size tiny|small|gpt2] [--steps N]   random weights, and tokens
  reference.py train FOLDER                                          python.safetensors: logits, losses; gradients
  reference.py compare FOLDER                                        what Tessera stored, against that

The stored reference of the quick test is remade with
  tools/python_peers tests/parity/gpt2/reference.py store tests/parity/gpt2/reference
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, logging

MAX_LOGITS = 1e-5
MAX_LOSS = 1e-4
# Weights of another process on the same arithmetic: what differs is the order of sums.
MAX_TRAINED_LOGITS = 1e-4

SIZES = {
    # vocabulary, positions, width, layers, heads, batch, length
    "tiny": (64, 16, 32, 2, 4, 2, 16),
    "small": (512, 128, 192, 4, 6, 4, 128),
    "gpt2": (50257, 1024, 768, 12, 12, 1, 64),
}


def prepare(folder, size, steps):
    vocabulary, positions, width, layers, heads, batch, length = SIZES[size]
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=vocabulary, n_positions=positions, n_embd=width, n_layer=layers, n_head=heads,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    # Each token follows from the one before, but for every fourth: there is something to learn, and never all of it.
    chance = torch.randint(vocabulary, (steps, batch, length + 1))
    keep = torch.rand(steps, batch, length + 1) < 0.75
    tokens = chance.clone()
    for i in range(1, length + 1):
        tokens[..., i] = torch.where(keep[..., i], (tokens[..., i - 1] * 5 + 7) % vocabulary, chance[..., i])
    save_file({"tokens": tokens}, folder / "tokens.safetensors",
              metadata={"learning_rate": "0.001", "weight_decay": "0.1"})
    print(f"model: {size}, {sum(p.numel() for p in GPT2LMHeadModel(config).parameters()):,} parameters, "
          f"{steps} steps of {batch} x {length} tokens")


def load(folder, attention="sdpa"):
    return GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).train()


def loss_of(model, batch):
    logits = model(batch[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def train(folder):
    with safe_open(folder / "tokens.safetensors", "pt") as file:
        tokens = file.get_tensor("tokens")
        settings = {key: float(value) for key, value in file.metadata().items()}
    with torch.no_grad():
        logits = {name: load(folder, name)(tokens[0, :, :-1], use_cache=False).logits for name in ("sdpa", "eager")}
    model = load(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"],
                                  weight_decay=settings["weight_decay"])
    losses = []
    start = time.monotonic()
    for batch in tokens:
        loss = loss_of(model, batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        if len(losses) == 1:
            save_file({name: one.grad.clone() for name, one in model.named_parameters()},
                      folder / "python_gradients.safetensors")
        optimizer.step()
    print(f"transformers: trained in {time.monotonic() - start:.0f} s, loss {losses[0]:.4f} to {losses[-1]:.4f}")
    save_file({"logits": logits["sdpa"].contiguous(), "eager_logits": logits["eager"].contiguous(),
               "losses": torch.tensor(losses, dtype=torch.float64)}, folder / "python.safetensors")
    return model


def difference(a, b):
    return (a.double() - b.double()).abs().max().item()


def gradients_difference(folder):
    """The largest, relative to the largest value of its tensor."""
    ours = load_file(folder / "tessera_gradients.safetensors")
    theirs = load_file(folder / "python_gradients.safetensors")
    if ours.keys() != theirs.keys():
        raise SystemExit(f"gradients of other names: {sorted(ours.keys() ^ theirs.keys())}")
    return max(difference(ours[name], theirs[name]) / theirs[name].abs().max().item() for name in theirs)


def greedy(model, tokens, count):
    for _ in range(count):
        tokens = torch.cat([tokens, model(tokens, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return tokens


def compare(folder):
    """Returns how many comparisons failed."""
    ours = load_file(folder / "tessera.safetensors")
    theirs = load_file(folder / "python.safetensors")
    tokens = load_file(folder / "tokens.safetensors")["tokens"]
    failed = 0

    def check(what, value, bar):
        nonlocal failed
        failed += not value <= bar
        print(f"{what}: largest difference {value:.2e}, bar {bar:.0e}: {'met' if value <= bar else 'MISSED'}")

    check("logits, against sdpa", difference(ours["logits"], theirs["logits"]), MAX_LOGITS)
    check("logits, against eager attention", difference(ours["logits"], theirs["eager_logits"]), MAX_LOGITS)
    check("gradients, of a tensor's largest", gradients_difference(folder), MAX_LOGITS)
    check(f"losses of {len(theirs['losses'])} steps", difference(ours["losses"], theirs["losses"]), MAX_LOSS)
    with torch.no_grad():
        trained = load(folder / "tessera").eval()
        check("logits of our trained weights, read by transformers",
              difference(ours["trained_logits"], trained(tokens[0, :, :-1], use_cache=False).logits),
              MAX_TRAINED_LOGITS)
        same = torch.equal(ours["greedy"], greedy(trained, ours["greedy"][:, :4], ours["greedy"].shape[1] - 4))
    failed += not same
    print(f"greedy text: {'the same' if same else 'ANOTHER'}")
    return failed


def store(folder):
    """The reference of the quick test: the smallest model, and what came of it."""
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        prepare(work, "tiny", 20)
        train(work)
        for file in ("config.json", "model.safetensors", "tokens.safetensors", "python.safetensors"):
            shutil.copy(work / file, folder / file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("prepare", "train", "compare", "store"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    logging.disable_progress_bar()
    if options.action == "prepare":
        prepare(options.folder, options.size, options.steps)
    elif options.action == "train":
        train(options.folder)
    elif options.action == "store":
        store(options.folder)
    elif compare(options.folder):
        sys.exit(1)


if __name__ == "__main__":
    main()
