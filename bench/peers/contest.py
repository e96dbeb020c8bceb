"""The peer of bench/gpt/contest.cpp: a rank that carries out lines, and answers each with a line of JSON."""

import json
import math
import os
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


def own_device():
    """This rank's GPU if the first argument is --device, else the CPU."""
    if sys.argv[1:2] != ["--device"]:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        sys.exit("expected a GPU for --device; torch.cuda finds none")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", torch.cuda.current_device())


def answer_lines(make_trainer):
    """`make_trainer(kind, shape)` is called when a kind is first asked for; the arguments of the program are a shape."""
    torch.set_num_threads(1)
    device = own_device()
    # What barriers and small things need goes by Gloo on GPUs too, as with ours.
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    shape = Shape(*map(int, (word for word in sys.argv[1:] if word != "--device")))
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
