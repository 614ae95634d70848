"""Checkpoints of DeepSpeed's engine, and what its own loader makes of ours. See `worlds`."""

from __future__ import annotations

from typing import Any


def prepare() -> None:
    """Import what every rank needs."""
    import deepspeed  # noqa: F401


def model() -> Any:
    """Return a model with odd sizes and a buffer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    made: Any = nn.Module()
    made.a, made.n, made.b = nn.Linear(7, 11), nn.LayerNorm(11), nn.Linear(11, 3)
    made.register_buffer("count", torch.arange(3.0))
    made.forward = lambda rows: made.b(made.n(made.a(rows)))
    return made


def _engine(stage: int, dtype: str, *, universal: bool = False) -> Any:
    import deepspeed
    import torch

    made = model()
    every = list(made.parameters())
    groups = [
        {"params": [one for one in every if one.dim() > 1], "weight_decay": 0.1},
        {"params": [one for one in every if one.dim() < 2], "weight_decay": 0.0},
    ]
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "sub_group_size": 60},
        "steps_per_print": 10**9,
        "checkpoint": {"load_universal": universal},
    }
    if dtype == "bf16":
        config["bf16"] = {"enabled": True}
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    engine, *_ = deepspeed.initialize(model=made, optimizer=optimizer, config=config)
    return engine


def save(stage: int, folder: str, dtype: str = "bf16", truth: str = "") -> None:
    """Train three steps and save; also the masters as DeepSpeed itself gathers them."""
    import torch
    import torch.distributed as dist
    from deepspeed.utils import safe_get_full_fp32_param

    engine = _engine(stage, dtype)
    for step in range(3):
        torch.manual_seed(10 * step + dist.get_rank())
        rows = torch.randn(2, 7, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
        loss = engine(rows).float().square().mean()
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(folder, tag="global_step3")
    named = list(engine.module.named_parameters())
    masters = {name: safe_get_full_fp32_param(one) for name, one in named}
    if truth and dist.get_rank() == 0:
        torch.save(masters, truth)


def load_and_save(stage: int, folder: str, tag: str, again: str) -> None:
    """Load a universal checkpoint by DeepSpeed's own code, and save it natively."""
    engine = _engine(stage, "bf16", universal=True)
    path, _ = engine.load_checkpoint(folder, tag=tag)
    assert path is not None, f"DeepSpeed found no checkpoint in {folder}/{tag}"
    engine.save_checkpoint(again, tag="again")
