"""Members that come and go under Megatron: each replica is a Megatron world of its own.

Belongs here: a `MegatronLocalSGD` as `ddp_members` sees an averager. Does not belong here: counters
and rounds of members (`ddp_members`), how a change is carried out (`elastic`, `sync.regroup`).

Megatron's groups are those of the replica: its default group, its parallel state and its gradients
know no other. So rounds end with a step, as under DDP, and the same code follows the members.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.integrations.megatron.owned_ranges import owned
from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.ddp_members import DDPMembers
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.inner_state import TorchInnerState
from holdfast.local_sgd.megatron.groups import own_sync_group
from holdfast.local_sgd.megatron.parts import Part
from holdfast.local_sgd.members import Members
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.unit_sync import UnitSync
from holdfast.local_sgd.sync.units import Unit
from holdfast.local_sgd.turns import Turns

if TYPE_CHECKING:
    import torch.distributed as dist


class Local(Protocol):
    """A `MegatronLocalSGD`, as far as its members go."""

    config: LocalSGDConfig
    optimizer: Any
    chunks: list[Any]
    units: list[Unit]
    replicas: Group
    steps: int
    joined: bool
    turns: Turns | None

    @property
    def trained(self) -> Sequence[Part | None]:
        """This rank's part of each unit."""


class _Averager:
    """A `MegatronLocalSGD` by the names that an averager has."""

    def __init__(self, local: Local) -> None:
        self._local, self.config, self.units = local, local.config, local.units

    @property
    def group(self) -> Group:
        return self._local.replicas

    @group.setter
    def group(self, group: Group) -> None:
        self._local.replicas = group

    @property
    def step(self) -> int:
        return self._local.steps

    @step.setter
    def step(self, step: int) -> None:
        self._local.steps = step

    @property
    def joined(self) -> bool:
        return self._local.joined

    @joined.setter
    def joined(self, joined: bool) -> None:
        self._local.joined = joined

    def make_units(self, params: Iterable[Any]) -> None:
        """Make none: a `MegatronLocalSGD` has made its units."""


def members_of(local: Local, members: Members, sync: UnitSync) -> DDPMembers:
    """Return the members of a `MegatronLocalSGD`, none of which was met yet.

    Raises:
        LocalSGDConfigError: the settings want what such replicas have not.
    """
    made = DDPMembers(_Averager(local), members, sync, inner=_inner_of(local), turns=local.turns)
    made.inner.add_buffers(*local.chunks)
    return made


def start(local: Local, members: DDPMembers) -> None:
    """Meet the others, before the first step; see `DDPMembers.start`."""
    inner = owned(local.optimizer)
    members.start(inner.groups, *inner.inner)


def _inner_of(local: Local) -> TorchInnerState:
    def slots(number: int) -> list[Any]:
        part = local.trained[number]
        return [] if part is None else [part.owned.slot]

    return TorchInnerState(slots, lambda: len(local.units))


def replicas_of(
    given: dist.ProcessGroup | Members | None, own: Group, timeout: float
) -> tuple[Members | None, Group]:
    """Return the members, if they are given, and the replicas that are there at the start."""
    import torch.distributed as dist

    if given is None or isinstance(given, dist.ProcessGroup):
        found = own_sync_group() if given is None else given
        return None, _group_of(found, timeout)
    check_members(given, own)
    return given, Group.of_one()


def _group_of(ranks: dist.ProcessGroup | None, timeout: float) -> Group:
    return Group.of_one() if ranks is None else Group(ranks, timeout=timeout)


def check_members(members: Members, own: Group) -> None:
    """Refuse members whose replica is not Megatron's.

    Raises:
        LocalSGDError: names the ranks, and what to do.
    """
    if members.shard_group.size != own.size:
        raise LocalSGDError(
            f"members: their replica has {members.shard_group.size} ranks, Megatron's has "
            f"{own.size}: give each replica a world of its own, with "
            "num_distributed_optimizer_instances=1 and members of the same ranks"
        )
