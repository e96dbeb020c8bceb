"""One rank of PyTorch: the peer of bench/ddp/main.cpp, with the same model, data and protocol (see there)."""

import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH, HEADS, VOCABULARY, SEQUENCE, BATCH = 6, 512, 8, 8192, 256, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        def heads(linear):
            return linear(x).view(x.size(0), x.size(1), HEADS, WIDTH // HEADS).transpose(1, 2)

        mixed = functional.scaled_dot_product_attention(heads(self.query), heads(self.key), heads(self.value),
                                                        is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_model():
    """The same weights as the C++ contestant's, bit for bit."""
    model = Gpt()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return model


def make_batch(rank):
    torch.manual_seed(1 + rank)
    text = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous().view(-1)


class Contestant:
    def __init__(self, kind, precision, batch):
        self.model = make_model()
        self.forward = self.model
        if kind == "ddp":
            self.forward = DistributedDataParallel(self.model, gradient_as_bucket_view=True, bucket_cap_mb=25)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.bf16 = precision == "bf16"
        self.tokens, self.targets = batch

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
            logits = self.forward(self.tokens)
            loss = functional.cross_entropy(logits.view(-1, VOCABULARY), self.targets)
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
    batch = make_batch(int(os.environ["RANK"]))
    contestants = {}
    for line in sys.stdin:
        kind, precision, steps = line.split()
        variant = f"{kind} {precision}"
        if variant not in contestants:
            contestants[variant] = Contestant(kind, precision, batch)
        print(json.dumps({"variant": variant, **measure(contestants[variant], int(steps))}), flush=True)
    dist.destroy_process_group()


main()
