"""A small byte-level GPT in plain PyTorch: 282,624 parameters, 128 bytes of context.

Only the model; how it is trained is `train_gpt.py`. The norms have no weights: fewer tensors,
which is what a checkpoint of a small model spends its time on.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256
"""One token is one byte."""
CONTEXT = 128
"""Bytes that the model sees at once."""
WIDTH = 96
LAYERS = 2
HEADS = 3


class Block(nn.Module):
    """Causal self-attention, then a two-layer perceptron, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, WIDTH) to the same shape."""
        batch, time, _ = x.shape
        heads = self.qkv(norm(x)).view(batch, time, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, WIDTH))
        hidden: Tensor = self.down(functional.gelu(self.up(norm(x)), approximate="tanh"))
        return x + hidden


class GPT(nn.Module):
    """Predicts each next byte from the ones before it."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.06)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, time ≤ CONTEXT) to logits (batch, time, VOCABULARY)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(places)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(norm(x))
        return logits


def norm(x: Tensor) -> Tensor:
    """Scale the last dimension to a root mean square of 1."""
    return functional.rms_norm(x, (x.shape[-1],))


def next_byte_loss(model: nn.Module, windows: Tensor) -> Tensor:
    """Sum, over windows (batch, CONTEXT + 1), of the nats that the model spends per next byte."""
    logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="sum")
