#!/usr/bin/env python3
"""The Python side of the interchange of weights. Run by tests/parity/interchange/run.

  peer.py prepare FOLDER   config.json of a small random GPT-2, and tokens
  peer.py read FOLDER      opens what Tessera saved and exported, compares logits; trains on, and saves that
  peer.py compare FOLDER   the logits of what came back, against Python's
"""

import shutil
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, logging

MAX_LOGITS = 1e-5
VOCABULARY, LENGTH, BATCH = 96, 32, 4


def difference(a, b):
    return (a.double() - b.double()).abs().max().item()


class Checks:
    """Comparisons, each with a line."""

    def __init__(self):
        self.failed = 0

    def close(self, what, value):
        met = value <= MAX_LOGITS
        self.failed += not met
        print(f"{what}: largest difference {value:.2e}, bar {MAX_LOGITS:.0e}: {'met' if met else 'MISSED'}")

    def holds(self, what, found):
        self.failed += not found
        print(f"{what}: {'yes' if found else 'NO'}")

    def end(self):
        sys.exit(1 if self.failed else 0)


def prepare(folder):
    torch.manual_seed(0)
    GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=48, n_layer=3, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
               attn_pdrop=0.0, bos_token_id=0, eos_token_id=0).save_pretrained(folder)
    save_file({"tokens": torch.randint(VOCABULARY, (2, BATCH, LENGTH + 1))}, folder / "tokens.safetensors")


def tokens_of(folder):
    return load_file(folder / "tokens.safetensors")["tokens"]


def model_of(path):
    """Fails for anything missing, left over or of another shape, of which from_pretrained() only warns."""
    model, info = GPT2LMHeadModel.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    faults = {key: value for key, value in info.items() if value}
    if faults:
        sys.exit(f"{path}: {faults}")
    return model.eval()


def logits_of(model, folder):
    with torch.no_grad():
        return model(tokens_of(folder)[0, :, :-1], use_cache=False).logits


def tensors_of(folder):
    """With the library that the format comes from, file by file."""
    tensors = {}
    for path in folder.glob("model*.safetensors"):
        with safe_open(path, "pt") as file:
            tensors.update({name: file.get_tensor(name) for name in file.keys()})
    return tensors


def train_on(model, tokens):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in tokens:
        optimizer.zero_grad()
        logits = model(batch[:, :-1], use_cache=False).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()


def read(folder):
    checks = Checks()
    step = folder / "saved/step-00000005"
    ours = load_file(folder / "trained.safetensors")["logits"]
    exported = folder / "exported"
    for place in (step, exported):
        shutil.copy(folder / "config.json", place)
    model = model_of(step)
    checks.close("the step's own folder, opened by transformers: logits", difference(ours, logits_of(model, folder)))

    checks.holds("the export has several files and an index", (exported / "model.safetensors.index.json").exists())
    checks.close("what was exported, opened by transformers: logits",
                 difference(ours, logits_of(model_of(exported), folder)))
    saved, copied, loaded = tensors_of(step), tensors_of(exported), model.transformer.state_dict()
    checks.holds(f"safetensors reads {len(saved)} tensors of the step, the same bits as transformers and the export",
                 saved.keys() == copied.keys() == loaded.keys()
                 and all(torch.equal(saved[name], copied[name]) and torch.equal(saved[name], loaded[name])
                         for name in saved))

    train_on(model, tokens_of(folder))
    model.save_pretrained(folder / "returned", max_shard_size="200kB")
    checks.holds("transformers saves several files and an index",
                 (folder / "returned/model.safetensors.index.json").exists())
    theirs = logits_of(model, folder)
    checks.holds("training on in Python changed the logits", difference(ours, theirs) > 100 * MAX_LOGITS)
    save_file({"logits": theirs}, folder / "python.safetensors")
    checks.end()


def compare(folder):
    checks = Checks()
    theirs = load_file(folder / "python.safetensors")["logits"]
    for ranks in (4, 2):
        ours = load_file(folder / f"on{ranks}.safetensors")["logits"]
        checks.close(f"imported and loaded by {ranks} ranks: logits", difference(ours, theirs))
    checks.end()


if __name__ == "__main__":
    actions = {"prepare": prepare, "read": read, "compare": compare}
    if len(sys.argv) != 3 or sys.argv[1] not in actions:
        sys.exit(__doc__)
    logging.disable_progress_bar()
    actions[sys.argv[1]](Path(sys.argv[2]))
