"""A small byte-level model built as Llama is: RMS norms, rotary positions, SwiGLU, no biases."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256
"""One token is one byte."""
CONTEXT = 64
"""Bytes that the model sees at once."""
WIDTH = 64
LAYERS = 3
HEADS = 4


class Block(nn.Module):
    """Causal self-attention, then SwiGLU, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, WIDTH) to the same shape."""
        batch, time, _ = x.shape
        heads = self.qkv(self.before(x)).view(batch, time, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            rotated(query), rotated(key), value, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, WIDTH))
        inner = self.between(x)
        hidden: Tensor = self.down(functional.silu(self.gate(inner)) * self.up(inner))
        return x + hidden


class Llama(nn.Module):
    """Predicts each next byte from the ones before it."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, time ≤ CONTEXT) to logits (batch, time, VOCABULARY)."""
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def rotated(x: Tensor) -> Tensor:
    """Turn pairs of features by an angle that grows with the position."""
    half = x.shape[-1] // 2
    speeds = 10_000 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * speeds
    first, second = x[..., :half], x[..., half:]
    return torch.cat(
        (
            first * angles.cos() - second * angles.sin(),
            second * angles.cos() + first * angles.sin(),
        ),
        dim=-1,
    )


def next_byte_loss(model: nn.Module, windows: Tensor) -> Tensor:
    """Mean, over windows (batch, CONTEXT + 1), of the nats that the model spends per next byte."""
    logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
