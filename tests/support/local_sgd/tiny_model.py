"""A tiny model of tokens, under FSDP2 in every way that a script may choose; for ranks only."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

TOKENS: Final = 11
_WIDTH: Final = 6


def tiny_model(options: Mapping[str, Any]) -> Any:
    """Return embedding, three blocks and head, not sharded.

    options: names of what is to be unusual:
        tied: embedding and head have one weight.
        frozen: the second block is not trained.
        adapters: nothing but a low-rank adapter of each block is trained.
        recompute: blocks are computed again in the backward ("reentrant" or True).
        unused: the last block takes no part in the forward.
    """
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(_WIDTH, 5), nn.Linear(5, _WIDTH)
            self.gate = nn.Linear(_WIDTH, 1)  # a shard of it is empty
            if options.get("adapters"):
                self.requires_grad_(requires_grad=False)
                self.left, self.right = nn.Linear(_WIDTH, 2), nn.Linear(2, _WIDTH)

        def forward(self, x: Any) -> Any:
            out = self.down(functional.gelu(self.up(x))) * self.gate(x).sigmoid()
            return out + self.right(self.left(x)) if options.get("adapters") else out

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(TOKENS, _WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.head = nn.Linear(_WIDTH, TOKENS, bias=False)
            if options.get("tied"):
                self.head.weight = self.embed.weight

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            used = self.blocks[:-1] if options.get("unused") else self.blocks
            for block in used:
                if how := options.get("recompute"):
                    x = x + checkpoint(block, x, use_reentrant=how == "reentrant")
                else:
                    x = x + block(x)
            return self.head(x)

    torch.manual_seed(0)
    model = Tiny()
    _freeze(model, options)
    return model


def _freeze(model: Any, options: Mapping[str, Any]) -> None:
    if options.get("frozen"):
        model.blocks[1].requires_grad_(requires_grad=False)
    if options.get("adapters"):
        model.embed.requires_grad_(requires_grad=False)
        model.head.requires_grad_(requires_grad=False)


def sharded(model: Any, mesh: Any, options: Mapping[str, Any]) -> Any:
    """Return the model after `fully_shard`.

    options: besides those of the model:
        nested: a part of each block is a unit inside the block's.
        grouped: first and second block are one unit.
        whole: units stay gathered after the forward.
        prefetch: each block gathers the next one's parameters.
    """
    from torch.distributed.fsdp import fully_shard

    more = {"mesh": mesh, **({"reshard_after_forward": False} if options.get("whole") else {})}
    blocks = list(model.blocks)
    if options.get("nested"):
        for block in blocks:
            fully_shard(block.up, **more)
    if options.get("grouped"):
        fully_shard(blocks[:2], **more)
    for block in blocks[2:] if options.get("grouped") else blocks:
        fully_shard(block, **more)
    fully_shard(model, **more)
    if options.get("prefetch"):
        model.set_modules_to_forward_prefetch([blocks[0], blocks[1]])
        for one, following in itertools.pairwise(blocks):
            one.set_modules_to_forward_prefetch([following])
    return model


def tokens_of(step: int, micro: int, replica: int, shard: int, rows: int = 3) -> Any:
    """Return the samples of one rank for one micro-batch."""
    import torch

    seed = ((step * 10 + micro) * 10 + replica) * 10 + shard
    return torch.randint(TOKENS, (rows, 4), generator=torch.Generator().manual_seed(seed))


def loss_of(model: Any, tokens: Any) -> Any:
    """Return the loss of predicting a token from itself, which is quickly learned."""
    from torch.nn import functional

    return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
