"""The peer of bench/gpt/contest.cpp: a rank that carries out lines, and answers each with a line of JSON."""

import json
import math
import sys
import time

import torch
import torch.distributed as dist

from gpt import Shape


def measure(trainer, steps):
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        loss = trainer.step()
    seconds = time.perf_counter() - began
    if not math.isfinite(loss):
        raise RuntimeError(f"the loss is {loss}")
    return {"seconds": seconds, "loss": loss}


def answer_lines(make_trainer):
    """`make_trainer(kind, shape)` is called when a kind is first asked for; the arguments of the program are a shape."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shape = Shape(*map(int, sys.argv[1:]))
    trainers = {}
    for line in sys.stdin:
        kind, steps = line.split()
        if kind == "start":
            dist.barrier()
            print(json.dumps({"variant": kind}), flush=True)
            continue
        if kind not in trainers:
            trainers[kind] = make_trainer(kind, shape)
        print(json.dumps({"variant": kind, **measure(trainers[kind], int(steps))}), flush=True)
    dist.destroy_process_group()
