"""One rank that saves and loads with PyTorch: the peer of bench/checkpoint/main.cpp, with the same bytes and protocol.

  checkpoint_rank.py FOLDER      variants: see VARIANTS; those that load take " cold" or " warm" after their name

The bytes of a rank are those of 100 tensors of 4 MiB. All ranks share the folder, which exists.
"""

import json
import logging
import os
import shutil
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

NUM_TENSORS = 100
ROWS, COLUMNS = 1024, 1024  # of one rank's part of a tensor
PIECE = 4 << 20             # bytes of one system call
STEP_SIZE = 512             # of the matrices that a step of the training multiplies
STEPS_ALONE = 150


def make_state(mesh, value=None):
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)

    def local():
        if value is not None:
            return torch.full((ROWS, COLUMNS), value)
        return torch.randn(ROWS, COLUMNS, generator=generator)
    return {f"w{i:03d}": DTensor.from_local(local(), mesh, [Shard(0)]) for i in range(NUM_TENSORS)}


def bring_to_disk(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def forget(folder):
    """Removes the files from the page cache."""
    for path in Path(folder).rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


class Rank:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.rank = dist.get_rank()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.state = make_state(mesh)
        self.target = make_state(mesh, 0.0)
        self.local = {name: tensor.to_local() for name, tensor in self.state.items()}
        self.flat = torch.cat([tensor.reshape(-1) for tensor in self.local.values()]).numpy().view("uint8")
        self.copy = torch.from_numpy(self.flat).clone().numpy()
        self.views = [memoryview(tensor.to_local().numpy()).cast("B") for tensor in self.target.values()]
        self.matrix = torch.randn(STEP_SIZE, STEP_SIZE)

    # Each of these is timed from a barrier of all ranks on.

    def raw_write(self):
        descriptor = os.open(self.folder / f"raw{self.rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        view = memoryview(self.flat)
        for begin in range(0, len(view), PIECE):
            if os.write(descriptor, view[begin:begin + PIECE]) != PIECE:
                raise RuntimeError("a short write")
        os.fsync(descriptor)
        os.close(descriptor)

    def torch_save(self):
        path = self.folder / f"rank{self.rank}.pt"
        torch.save(self.local, path)
        bring_to_disk(path)

    def dcp_save(self):
        dcp.save(self.state, checkpoint_id=self.folder / "dcp")

    def raw_read(self):
        """Reads into the tensors that the other variants load into, whose pages have been used before."""
        descriptor = os.open(self.folder / f"raw{self.rank}", os.O_RDONLY)
        for view in self.views:
            if os.readv(descriptor, [view]) != PIECE:
                raise RuntimeError("a short read")
        os.close(descriptor)

    def raw_read_small(self):
        """Reads into the same 4 MiB again and again, which stay in the processor's caches."""
        descriptor = os.open(self.folder / f"raw{self.rank}", os.O_RDONLY)
        buffer = memoryview(self.copy)[:PIECE]
        while os.readv(descriptor, [buffer]):
            pass
        os.close(descriptor)

    def torch_load(self):
        return torch.load(self.folder / f"rank{self.rank}.pt")

    def dcp_load(self):
        dcp.load(self.target, checkpoint_id=self.folder / "dcp")

    def memcpy(self):
        self.copy[:] = self.flat

    def step(self):
        return self.matrix @ self.matrix

    def steps_alone(self):
        for _ in range(STEPS_ALONE):
            self.step()

    # Protocol

    def clean(self):
        """Removes the files of earlier turns and waits until the disk is idle."""
        dist.barrier()
        if self.rank == 0:
            for path in self.folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            os.sync()
        dist.barrier()

    def timed(self, function):
        """The time by the clock, and the processor time."""
        dist.barrier()
        began, used = time.perf_counter(), time.process_time()
        function()
        return {"seconds": time.perf_counter() - began, "processor": time.process_time() - used}

    def save(self, kind):
        self.clean()
        return self.timed(getattr(self, kind))

    def load(self, kind, state):
        if state == "cold":
            dist.barrier()
            if self.rank == 0:
                forget(self.folder)
        else:
            getattr(self, kind)()
        return self.timed(getattr(self, kind))

    def pause(self):
        """A save in the background of training steps: how long it stops them, and how long a step takes meanwhile."""
        self.clean()
        before = self.timed(self.steps_alone)["seconds"] / STEPS_ALONE
        dist.barrier()
        began = time.perf_counter()
        saving = dcp.async_save(self.state, checkpoint_id=self.folder / "dcp")
        paused = time.perf_counter() - began
        num_steps = 0
        while not saving.done():
            self.step()
            num_steps += 1
        during = time.perf_counter() - began - paused
        saving.result()
        after = self.timed(self.steps_alone)["seconds"] / STEPS_ALONE
        return {"seconds": paused, "step_alone": (before + after) / 2, "step_during": during / max(1, num_steps), "saving": during}

    def check(self):
        """Checks that a load returns the values that were saved."""
        self.dcp_load()
        if not all(torch.equal(self.target[name].to_local(), self.local[name]) for name in self.local):
            raise RuntimeError("another state was loaded than was saved")

    def answer(self, variant):
        kind, *state = variant.split()
        if kind in ("raw_write", "torch_save", "dcp_save"):
            return self.save(kind)
        if kind in ("raw_read", "raw_read_small", "torch_load", "dcp_load"):
            return self.load(kind, *state)
        if kind == "dcp_async":
            return self.pause()
        if kind == "memcpy":
            return self.timed(self.memcpy)
        if kind == "fill":  # writes all files that the loads need
            self.clean()
            for save in (self.raw_write, self.torch_save, self.dcp_save, self.check):
                save()
            return {"seconds": 0}
        raise ValueError(f"unknown: {variant}")


def main():
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo")
    rank = Rank(sys.argv[1])
    for line in sys.stdin:
        variant = line.rsplit(maxsplit=1)[0]
        print(json.dumps({"variant": variant, **rank.answer(variant)}), flush=True)
    rank.clean()
    dist.destroy_process_group()


main()
