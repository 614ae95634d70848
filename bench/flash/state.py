"""The state that is saved: shapes like a GPT's with Adam's moments, or very many small tensors."""

from __future__ import annotations

from typing import Any


def gpt(mib: int, *, sharded: bool = False, device: str = "cpu") -> tuple[Any, Any]:
    """Return a module and its AdamW, together of about `mib` MiB, all of it touched.

    sharded: by FSDP2 over all ranks, which hold that much together.
    """
    import torch
    from torch import nn

    width, layers = 1024, max(1, mib // 3 // 56)
    block = 12 * width * width * 4 * 3 / 2**20
    words = max(1000, int((mib - layers * block) / (width * 4 * 3) * 2**20))
    model = nn.Module()
    shapes = {"tokens": (words, width), "norm": (width,)}
    for number in range(layers):
        shapes |= {
            f"{number}_qkv": (3 * width, width),
            f"{number}_proj": (width, width),
            f"{number}_up": (4 * width, width),
            f"{number}_down": (width, 4 * width),
            f"{number}_bias": (width,),
        }
    for name, shape in shapes.items():
        model.register_parameter(name, nn.Parameter(torch.full(shape, 0.5, device=device)))
    if sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    return model, _stepped(model)


def many(count: int, device: str = "cpu") -> tuple[Any, None]:
    """Return a module with `count` tensors of 64 numbers, without an optimizer."""
    import torch
    from torch import nn

    model = nn.Module()
    for number in range(count):
        model.register_buffer(f"b{number}", torch.full((64,), 1.0, device=device))
    return model, None


def _stepped(model: Any) -> Any:
    """Return an optimizer with the state that it has after a step."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(1.0),
            "exp_avg": torch.full_like(parameter, 0.1, requires_grad=False),
            "exp_avg_sq": torch.full_like(parameter, 0.2, requires_grad=False),
        }
    return optimizer


def nested(model: Any, optimizer: Any) -> dict[str, Any]:
    """Return the state as torch's own ways of saving take it."""
    state: dict[str, Any] = {"model": dict(model.state_dict())}
    if optimizer is not None:
        names = [name for name, _ in model.named_parameters()]
        entries = zip(names, optimizer.state.values(), strict=True)
        state["optimizer"] = {name: dict(entry) for name, entry in entries}
    return state


def leaves(state: Any) -> list[Any]:
    """Return all tensors of a nested state."""
    if isinstance(state, dict):
        return [leaf for value in state.values() for leaf in leaves(value)]
    return [state]


def local(tensor: Any) -> Any:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
