"""First step of an optimizer, made ahead: a joiner's would hold the others up.

Belongs here: the step that changes nothing. Does not belong here: when it is made (`replicated`).

torch does work once in a process: it finds out how each operation is done on sharded tensors,
compiles kernels, and imports. AdamW under FSDP2 took 0.6 s of a core in its first step and 5 ms in
the next. Checkpoints of torch make such a step too, for the sake of the state (DCP's
`_init_optim_state`).
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

log: Final = logging.getLogger("holdfast")


def warm_up(optimizers: Sequence[Any]) -> None:
    """Step each optimizer with gradients of zero and no learning rate; leave all as it was.

    Weights and state are kept on the CPU meanwhile. An optimizer that cannot step so is left out.
    """
    for one in optimizers:
        try:
            _step(one)
        except Exception as error:  # noqa: BLE001 - somebody's optimizer; all is put back
            log.info("replicas: %s was not warmed up: %s", type(one).__name__, error)


def _step(optimizer: Any) -> None:
    import torch

    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    trained = [one for one in parameters if one.requires_grad]
    known = set(optimizer.state)
    kept = [(one, one.detach().to("cpu", copy=True)) for one in _tensors(optimizer, trained)]
    numbers = [dict(optimizer.state[one]) for one in parameters if one in known]
    groups = [_entries(group) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if torch.is_tensor(group["lr"]) else 0.0
    for one in trained:
        one.grad = torch.zeros_like(one)
    try:
        optimizer.step()
    finally:
        for group, entries in zip(optimizer.param_groups, groups, strict=True):
            group.update(entries)
        for one in trained:
            one.grad = None
        with torch.no_grad():
            for tensor, value in kept:
                tensor.copy_(value)
        for one in set(optimizer.state) - known:
            del optimizer.state[one]
        for one, state in zip((each for each in parameters if each in known), numbers, strict=True):
            optimizer.state[one] = state


def _entries(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a group has besides parameters: some optimizers count their steps there."""
    import torch

    return {
        key: one.clone() if torch.is_tensor(one) else copy.copy(one)
        for key, one in group.items()
        if key != "params"
    }


def _tensors(optimizer: Any, parameters: Sequence[Any]) -> Iterator[Any]:
    """Yield this rank's parts of all tensors that a step may change."""
    import torch

    from holdfast.replicas.buckets import local

    for one in parameters:
        yield local(one.detach())
    for state in optimizer.state.values():
        yield from (local(value) for value in state.values() if torch.is_tensor(value))
