"""The model of bench/gpt/gpt.h in PyTorch: the same arithmetic, weights and data."""

import dataclasses

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Shape:
    """The defaults are the shape with which speeds are measured: 27 million parameters."""
    layers: int = 6
    width: int = 512
    heads: int = 8
    vocabulary: int = 8192
    sequence: int = 256
    batch: int = 4


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads = shape.heads
        self.query = nn.Linear(shape.width, shape.width)
        self.key = nn.Linear(shape.width, shape.width)
        self.value = nn.Linear(shape.width, shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x):
        def heads(linear):
            return linear(x).view(x.size(0), x.size(1), self.heads, x.size(2) // self.heads).transpose(1, 2)

        mixed = functional.scaled_dot_product_attention(heads(self.query), heads(self.key), heads(self.value),
                                                        is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.sequence, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_model(shape):
    """The same weights as the C++ contestant's, bit for bit."""
    model = Gpt(shape)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return model


def make_batch(rank, shape):
    torch.manual_seed(1 + rank)
    text = torch.randint(shape.vocabulary, (shape.batch, shape.sequence + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous().view(-1)


def loss_of(forward, tokens, targets):
    logits = forward(tokens)
    return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets)
