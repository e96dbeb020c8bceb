"""PyTorch's AdamW on 100 M parameters: the peer of bench/training/adamw.cpp, with the same parameters and protocol."""

import json
import sys
import time

import torch

WIDTH, LAYERS, ROWS = 768, 12, 19461


def shapes():
    yield (ROWS, WIDTH)
    for _ in range(LAYERS):
        yield from [(3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,), (4 * WIDTH, WIDTH)]
        yield from [(4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,), (WIDTH,), (WIDTH,), (WIDTH,), (WIDTH,)]


def make_parameters():
    torch.manual_seed(0)
    parameters = []
    for shape in shapes():
        parameters.append(torch.empty(shape).normal_(0, 0.02).requires_grad_())
        parameters[-1].grad = torch.empty(shape).normal_(0, 1e-3)
    return parameters


def sum_of_sizes(parameters):
    with torch.no_grad():
        return sum(parameter.abs().sum(dtype=torch.float64).item() for parameter in parameters)


def main():
    torch.set_num_threads(1)
    parameters = make_parameters()
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, fused=True)
    for line in sys.stdin:
        kind, steps = line.split()
        if kind != "fused":
            raise ValueError(f"expected fused, found {kind}")
        began = time.perf_counter()
        for _ in range(int(steps)):
            optimizer.step()
        seconds = time.perf_counter() - began
        print(json.dumps({"variant": kind, "seconds": seconds, "weights": sum_of_sizes(parameters)}), flush=True)


main()
