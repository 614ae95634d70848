"""Catching up of replicas that have missed rounds: the anchors and momentum of those that have not.

Belongs here: transfers between those who begin a round, and the delta of one that was late. Does
not belong here: what a late delta is worth (`policies.quorum`), and who is in the round.

Before a round all its members tell at which round they have each unit. One that is ahead sends
anchor and momentum to each that is behind; donors take turns by units. The late one goes on from
A' - dᵏΔ. A unit changes only when all of it has come. So after a `SyncError` each unit is behind,
as it was, or has caught up, with its delta.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.local_sgd.policies import quorum
from holdfast.local_sgd.policies.quorum import QuorumSettings
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.unit_sync import all_or_none
from holdfast.local_sgd.sync.units import Unit

if TYPE_CHECKING:
    import torch


def catch_up(
    units: Sequence[Unit],
    group: Group,
    settings: QuorumSettings,
    before_write: Callable[[int], None],
    voters: Group | None = None,
) -> int:
    """Bring all members of a group to one round of each unit; all of them call this.

    Args:
        units: The same on all ranks, with anchors.
        group: Who begins a round together.
        settings: Discount of a late delta.
        before_write: Called with the number of a unit whose weights are to be written next.
        voters: The ranks of this replica, where replicas come and go: a unit then catches up on
            all of them, or on none.

    Returns:
        Rounds that this replica had missed; 0: it was not late.

    Raises:
        SyncError: a rank is gone.
    """
    mine = [float(number) for unit in units for number in (unit.round, _kept(unit))]
    told = all_or_none(voters, lambda: group.gather_scalars(mine))
    missed = 0
    for number, unit in enumerate(units):
        rounds = [int(row[2 * number]) for row in told]
        newest = max(rounds)
        ahead = [rank for rank, one in enumerate(rounds) if one == newest]
        behind = [rank for rank, one in enumerate(rounds) if one < newest]
        if not behind:
            continue
        donor = ahead[number % len(ahead)]
        has_state = told[donor][2 * number + 1] > 0
        give = functools.partial(_give, unit, group, donor, behind, has_state=has_state)
        state = all_or_none(voters, give)
        if state is not None:
            late = newest - unit.round
            before_write(number)
            _take(unit, state, quorum.carry(1.0, late, settings).factor)
            unit.round = newest
            missed = max(missed, late)
    return missed


def _kept(unit: Unit) -> int:
    """Return how many tensors the outer optimizer keeps."""
    optimizer = unit.anchors.optimizer
    return len(_state_of(optimizer, unit)) if optimizer is not None else 0


def _state_of(optimizer: Any, unit: Unit) -> list[torch.Tensor]:
    """Return an outer optimizer's tensors, in one order on all ranks."""
    import torch

    return [
        value
        for anchor in unit.anchors.values
        for _, value in sorted(optimizer.state.get(anchor, {}).items())
        if torch.is_tensor(value)
    ]


def _give(
    unit: Unit, group: Group, donor: int, behind: Sequence[int], *, has_state: bool
) -> _State | None:
    """Have one rank give a unit to others; return what this rank is given.

    One exchange of all ranks: a send cannot be left while the other side is frozen.
    """
    import torch

    spare = _spare(unit, has_state=has_state) if group.rank in behind else None
    come, go = [0] * group.size, [0] * group.size
    sent = received = torch.empty(0, dtype=torch.uint8, device=group.device)
    if group.rank == donor:
        packed = _packed(_all_of(unit), group.device)
        sent = torch.cat([packed] * len(behind))
        for rank in behind:
            go[rank] = packed.numel()
    elif spare is not None:
        received = _packed(_all_of(spare), group.device)
        come[donor] = received.numel()
    group.begin_deliver(received, sent, (come, go)).wait()
    if spare is not None:
        _unpack(received, _all_of(spare))
    return spare


def _spare(unit: Unit, *, has_state: bool) -> _State:
    """Return anchors and momentum of the unit's form, to be filled."""
    spare = Unit(unit.name, unit.tensors, unit.outer)
    spare.take_anchors()
    if has_state:
        spare.anchors.step_along_nothing()
    return spare


_State = Unit
"""Anchors and momentum, in a unit that only holds them."""


def _all_of(unit: Unit) -> list[torch.Tensor]:
    optimizer = unit.anchors.optimizer
    state = _state_of(optimizer, unit) if optimizer is not None else []
    return [*unit.anchors.values, *state]


def _packed(tensors: Sequence[torch.Tensor], device: str) -> torch.Tensor:
    """Return the bytes of some tensors, one behind the other, where the backend takes them."""
    import torch

    rows = [one.detach().contiguous().reshape(-1).view(torch.uint8) for one in tensors]
    return (torch.cat(rows) if rows else torch.empty(0, dtype=torch.uint8)).to(device)


def _unpack(packed: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    at = 0
    for one in tensors:
        part = packed[at : at + one.nbytes]
        at += one.nbytes
        # A copy begins where any dtype may, at the start of its memory.
        one.detach().copy_(part.clone().view(one.dtype).reshape(one.shape))


def _take(unit: Unit, state: _State, factor: float) -> None:
    """Put A' and v' in place, and the weights at A' - factor·Δ."""
    import torch

    old, new = unit.anchors.values, state.anchors.values
    with torch.no_grad():
        for weight, before, after in zip(unit.tensors(), old, new, strict=True):
            if factor == 0:  # a delta that is not finite is thrown away too
                weight.copy_(after)
                continue
            delta = before.to(weight.device) - weight
            weight.copy_(after.to(weight.device) - factor * delta)
    unit.adopt(state)
