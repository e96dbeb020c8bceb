"""One rank of PyTorch: the peer of bench/ddp/main.cpp, with the same model, data and protocol (see there)."""

import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpt import Shape, loss_of, make_batch, make_model


class Contestant:
    def __init__(self, kind, precision, batch):
        self.model = make_model(Shape())
        self.forward = self.model
        if kind == "ddp":
            self.forward = DistributedDataParallel(self.model, gradient_as_bucket_view=True, bucket_cap_mb=25)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.bf16 = precision == "bf16"
        self.tokens, self.targets = batch

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
            loss = loss_of(self.forward, self.tokens, self.targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def sum_of_weights(self):
        with torch.no_grad():
            return sum(parameter.sum(dtype=torch.float64).item() for parameter in self.model.parameters())


def measure(contestant, steps):
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        loss = contestant.step()
    seconds = time.perf_counter() - began
    if not math.isfinite(loss):
        raise RuntimeError(f"the loss is {loss}")
    return {"seconds": seconds, "loss": loss, "weights": contestant.sum_of_weights()}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    batch = make_batch(int(os.environ["RANK"]), Shape())
    contestants = {}
    for line in sys.stdin:
        kind, precision, steps = line.split()
        variant = f"{kind} {precision}"
        if variant not in contestants:
            contestants[variant] = Contestant(kind, precision, batch)
        print(json.dumps({"variant": variant, **measure(contestants[variant], int(steps))}), flush=True)
    dist.destroy_process_group()


main()
