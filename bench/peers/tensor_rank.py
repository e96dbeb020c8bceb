"""One rank of PyTorch: the peer of bench/tensor/main.cpp, with the same model, data and protocol.

  tensor_rank.py                        KIND: alone, dtensor, dtensor_head
"""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

from contest import answer_lines
from gpt import Attention, loss_of, make_batch, make_model


def heads_of_any_number(attention, x):
    """The model's own forward names the number of heads; a plan of PyTorch leaves a part of them on each rank."""
    def heads(linear):
        return linear(x).view(x.size(0), x.size(1), -1, x.size(2) // attention.heads).transpose(1, 2)

    mixed = torch.nn.functional.scaled_dot_product_attention(
        heads(attention.query), heads(attention.key), heads(attention.value), is_causal=True)
    return attention.out(mixed.transpose(1, 2).reshape(x.size(0), x.size(1), -1))


def cut(kind, model, mesh):
    """`dtensor`: the layers of each block. `dtensor_head`: the head and the loss too."""
    Attention.forward = heads_of_any_number
    columns = ["attention.query", "attention.key", "attention.value", "up"]
    for block in model.blocks:
        parallelize_module(block, mesh, {**{name: ColwiseParallel() for name in columns},
                                         "attention.out": RowwiseParallel(), "down": RowwiseParallel()})
    if kind == "dtensor_head":
        parallelize_module(model, mesh,
                           {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})


class Trainer:
    def __init__(self, kind, shape):
        self.model = make_model(shape)
        if kind in ("dtensor", "dtensor_head"):
            cut(kind, self.model, init_device_mesh("cpu", (dist.get_world_size(),)))
        elif kind != "alone":
            raise ValueError(f"expected alone, dtensor or dtensor_head, found {kind}")
        self.has_cut_loss = kind == "dtensor_head"
        # The fused optimizer cannot mix the two.
        parameters = list(self.model.parameters())
        groups = [[one for one in parameters if isinstance(one, DTensor) == is_cut] for is_cut in (True, False)]
        self.optimizer = torch.optim.AdamW([{"params": group} for group in groups if group], lr=3e-4, fused=True)
        self.tokens, self.targets = make_batch(0, shape)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with loss_parallel() if self.has_cut_loss else contextlib.nullcontext():
            loss = loss_of(self.model, self.tokens, self.targets)
            loss.backward()
        self.optimizer.step()
        return (loss.full_tensor() if isinstance(loss, DTensor) else loss).item()


answer_lines(Trainer)
