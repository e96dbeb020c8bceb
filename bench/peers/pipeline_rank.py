"""One rank of PyTorch: the peer of bench/pipeline/main.cpp, with the same model, data, cuts and protocol.

  pipeline_rank.py                      KIND: alone/8, gpipe/8, 1f1b/8, interleaved/8, zb-v/8
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B,
                                          ScheduleZBVZeroBubble)
from torch.nn import functional

from contest import answer_lines
from gpt import loss_of, make_batch, make_model

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B,
             "zb-v": ScheduleZBVZeroBubble}
# The blocks with which stages begin; 7 is what follows the last one.
CUTS = {2: [0, 4, 7], 4: [0, 2, 4, 6, 7]}


class Stage(nn.Module):
    """A part of the model, cut out by hand."""

    def __init__(self, model, first, last):
        super().__init__()
        self.is_first, self.is_last = first == 0, last == 7
        if self.is_first:
            self.tokens, self.positions = model.tokens, model.positions
        self.blocks = nn.ModuleList(model.blocks[first:min(last, 6)])
        if self.is_last:
            self.norm, self.head = model.norm, model.head

    def forward(self, x):
        if self.is_first:
            x = self.tokens(x) + self.positions(torch.arange(x.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.is_last else x


def loss_of_logits(logits, targets):
    return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


class Alone:
    def __init__(self, shape, num_micro_batches):
        self.model = make_model(shape)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        tokens, targets = make_batch(0, shape)
        self.micros = list(zip(tokens.chunk(num_micro_batches), targets.chunk(num_micro_batches)))

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        total = 0
        for tokens, targets in self.micros:
            loss = loss_of(self.model, tokens, targets) / len(self.micros)
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        return total


class Staged:
    def __init__(self, name, shape, num_micro_batches):
        rank, size = dist.get_rank(), dist.get_world_size()
        has_chunks = name in ("interleaved", "zb-v")
        num_stages = size * (2 if has_chunks else 1)
        if name == "zb-v":
            mine = [rank, num_stages - 1 - rank]
        else:
            mine = list(range(rank, num_stages, size))
        model, cuts = make_model(shape), CUTS[num_stages]
        self.modules = [Stage(model, cuts[i], cuts[i + 1]) for i in mine]
        stages = [PipelineStage(module, i, num_stages, torch.device("cpu")) for module, i in zip(self.modules, mine)]
        # It divides the gradients by the number of micro-batches.
        self.schedule = SCHEDULES[name](stages if has_chunks else stages[0], num_micro_batches, loss_fn=loss_of_logits)
        self.is_first, self.is_last = 0 in mine, num_stages - 1 in mine
        self.optimizer = torch.optim.AdamW([p for module in self.modules for p in module.parameters()], lr=3e-4,
                                           fused=True)
        self.tokens, targets = make_batch(0, shape)
        self.targets = targets.view(self.tokens.shape)
        self.last_rank = 0 if name == "zb-v" else size - 1

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        self.schedule.step(*([self.tokens] if self.is_first else []), target=self.targets if self.is_last else None,
                           losses=losses if self.is_last else None)
        self.optimizer.step()
        # Ours tells every rank too.
        loss = torch.stack(losses).mean().detach() if self.is_last else torch.empty(())
        dist.broadcast(loss, self.last_rank)
        return loss.item()


def make_trainer(kind, shape):
    name, number = kind.split("/")
    return Alone(shape, int(number)) if name == "alone" else Staged(name, shape, int(number))


answer_lines(make_trainer)
