"""What PyTorch does with a damaged checkpoint: the peer of bench/checkpoint/corruption.cpp, with the same protocol.

  corruption_rank.py dcp|torch save FOLDER STEP    one of two ranks that save
  corruption_rank.py dcp|torch load FOLDER STEP    one process that loads once for each line of its input
"""

import json
import logging
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

NUM_TENSORS = 64
ROWS, COLUMNS = 32, 64
NUM_SAVING = 2


def whole(step):
    return {f"w{i}": torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(step * NUM_TENSORS + i))
            for i in range(NUM_TENSORS)}


def rows_of(tensor, rank):
    return tensor.chunk(NUM_SAVING)[rank].clone()


def save(kind, folder, step):
    dist.init_process_group("cpu:gloo")
    parts = {name: rows_of(tensor, dist.get_rank()) for name, tensor in whole(step).items()}
    if kind == "torch":
        torch.save(parts, folder / f"rank{dist.get_rank()}.pt")
    else:
        mesh = init_device_mesh("cpu", (NUM_SAVING,))
        state = {name: DTensor.from_local(part, mesh, [Shard(0)]) for name, part in parts.items()}
        dcp.save(state, checkpoint_id=folder)
    dist.destroy_process_group()


def loaded(kind, folder):
    """Whole tensors by name."""
    if kind == "dcp":
        target = {name: torch.zeros_like(tensor) for name, tensor in whole(0).items()}
        dcp.load(target, checkpoint_id=folder, no_dist=True)
        return target
    parts = [torch.load(folder / f"rank{rank}.pt") for rank in range(NUM_SAVING)]
    return {f"w{i}": torch.cat([part[f"w{i}"] for part in parts]) for i in range(NUM_TENSORS)}


def answer(kind, folder, expected):
    try:
        found = loaded(kind, folder)
        same = all(torch.equal(found[name], tensor) for name, tensor in expected.items())
        return {"loaded": True, "same": same, "error": ""}
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a damaged pickle, and the code that it calls, can raise anything
        return {"loaded": False, "same": False, "error": f"{type(error).__name__}: {error}"}


def main():
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    kind, action, folder, step = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    if action == "save":
        save(kind, folder, step)
        return
    expected = whole(step)
    for _ in sys.stdin:
        print(json.dumps({"variant": "load", **answer(kind, folder, expected)}), flush=True)


main()
