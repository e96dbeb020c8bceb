"""One rank of PyTorch: the peer of bench/fsdp/main.cpp, with the same model, data and protocol.

  fsdp_rank.py [--device] [LAYERS WIDTH HEADS VOCABULARY SEQUENCE BATCH]      KIND: alone, ddp, fsdp2, fsdp1

With --device the model is on this rank's GPU.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

from contest import answer_lines, own_device
from gpt import Block, loss_of, make_batch, make_model


def shard(kind, model, device):
    """A unit for each block, and one for the rest of the model; default options. "ddp": a copy on each rank."""
    if kind == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=25)
    if kind == "fsdp2":
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if kind == "fsdp1":
        return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}),
                                        device_id=device, use_orig_params=True)
    if kind != "alone":
        raise ValueError(f"expected alone, ddp, fsdp2 or fsdp1, found {kind}")
    return model


class Trainer:
    def __init__(self, kind, shape):
        device = own_device()
        self.model = shard(kind, make_model(shape).to(device), device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.tokens, self.targets = (part.to(device) for part in make_batch(dist.get_rank(), shape))

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.model, self.tokens, self.targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()


answer_lines(Trainer)
