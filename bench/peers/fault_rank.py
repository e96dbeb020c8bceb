"""The faults of tests/fault/fault_rank.cpp with torch.distributed and Gloo, with their default settings.

    fault_rank.py FAULT VICTIM
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def announce():
    print(f"fault at {time.monotonic():.9f}", flush=True)


def read_forever():
    os.read(os.pipe()[0], 1)


def spin():
    while True:
        pass


ALONE = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "abort": os.abort,
    "loop": spin,
    "read": read_forever,
    "slow": lambda: time.sleep(7),
    "exit": lambda: os._exit(0),
}


def step(fault=""):
    gradient = torch.ones(1024)
    if fault == "skip":
        dist.barrier()
        return
    if fault == "throw":
        raise RuntimeError("the dog ate the batch")
    if fault == "operation":
        dist.broadcast(gradient, 0)
    else:
        if fault == "shape":
            gradient = torch.ones(512)
        if fault == "dtype":
            gradient = torch.ones(1024, dtype=torch.int64)
        dist.all_reduce(gradient)
    dist.barrier()


def main(fault, victim):
    if fault == "absent" and os.environ["RANK"] == victim:
        announce()
        read_forever()
    dist.init_process_group("gloo")
    if fault == "steady":
        step()
        print(f"rank {dist.get_rank()} of generation {os.environ['TORCHELASTIC_RESTART_COUNT']} is process "
              f"{os.getpid()}", flush=True)
        while True:
            step()
    for _ in range(3):
        step()
    is_victim = str(dist.get_rank()) == victim
    if is_victim:
        announce()
        if fault in ALONE:
            ALONE[fault]()
    step(fault if is_victim else "")
    print(f"rank {dist.get_rank()} is done", flush=True)
    dist.destroy_process_group()


main(*sys.argv[1:])
