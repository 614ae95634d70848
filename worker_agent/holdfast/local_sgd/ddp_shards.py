"""State of local SGD under DDP as `Shards`: each parameter is a unit, whole on each rank.

Belongs here: what DDP does otherwise than FSDP2. Does not belong here: the names and the rest of
that state, which is the same for both (`shards`): each loads what the other has saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.flash.trainer.leaves import Leaves
from holdfast.flash.trainer.shards import ReplicaShards, Shards, Together
from holdfast.flash.trainer.state_dict import parameters
from holdfast.flash.trainer.torch_shards import TorchShards
from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.shards import LocalSGDShards, chunks_of
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.reducers import Lost
from holdfast.local_sgd.sync.units import Unit

if TYPE_CHECKING:
    import torch


class Averager(Protocol):
    """An averager, as far as its state goes."""

    config: LocalSGDConfig
    units: list[Unit]
    group: Group

    @property
    def own(self) -> Group:
        """Return the ranks of this replica."""

    def clock(self) -> dict[str, Any]:
        """Return this replica's counters."""

    def set_clock(self, clock: Mapping[str, Any]) -> None:
        """Go on from counters."""


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter of the optimizer under its name in the model."""

    name: str
    parameter: Any

    @property
    def local(self) -> torch.Tensor:
        """The parameter's values."""
        values: torch.Tensor = self.parameter.detach()
        return values


@dataclass(frozen=True, slots=True)
class _ParameterUnit:
    """The one parameter of a unit."""

    trained: tuple[_Parameter, ...]


class _Rounds:
    """An averager as `LocalSGDShards` asks of a framework."""

    def __init__(self, averager: Averager, trained: Sequence[_ParameterUnit]) -> None:
        self._averager, self.trained = averager, trained
        self.config = averager.config
        self.clock, self.set_clock = averager.clock, averager.set_clock

    @property
    def units(self) -> list[Unit]:
        """Those of the averager, also after it has made others."""
        return self._averager.units

    @property
    def replicas(self) -> Group:
        """The replicas that are there now."""
        return self._averager.group

    @property
    def shard_group(self) -> Group:
        """The ranks of this replica, which all have the same."""
        return self._averager.own


class _DDPShards(LocalSGDShards):
    """What an averager keeps between rounds; the first rank of a replica stores it."""

    def __init__(self, local: _Rounds, replica: ReplicaShards, place: tuple[int, int]) -> None:
        super().__init__(local, replica, place)
        self._is_first = local.shard_group.rank == 0

    def _collect_anchors(self, leaves: Leaves, unit: Unit, module: Any, *, stored: bool) -> None:
        super()._collect_anchors(leaves, unit, module, stored=stored and self._is_first)

    def _collect_lost(self, leaves: Leaves, lost: Lost, module: Any) -> None:
        if self._is_first:
            super()._collect_lost(leaves, lost, module)

    def _chunk(self, module: Any, size: int) -> tuple[int, int]:
        """Return begin and end of what this rank merges of a unit: all go in one transfer."""
        del size
        sizes = {one: one.trained[0].local.numel() for _, one in self._units()}
        chunks = chunks_of(list(sizes.values()), self._number, self._count)
        own: tuple[int, int] = dict(zip(sizes, chunks, strict=True))[module]
        return own


def shards_of(
    averager: Averager, model: Any, inner: torch.optim.Optimizer, place: tuple[int, int]
) -> Shards:
    """Return the whole training state of one replica.

    Args:
        averager: Has a unit for each parameter of the optimizer.
        model: A DistributedDataParallel, or what is in it.
        inner: The script's own optimizer.
        place: The replica's number in the checkpoint, and how many there are.

    Raises:
        LocalSGDError: the optimizer has a parameter that the model has not.
    """
    replica = ReplicaShards(
        TorchShards({"": model}, {"": inner}), place[0], shard=averager.own.rank
    )
    local = _Rounds(averager, _named(model, inner))
    return Together(replica, _DDPShards(local, replica, place))


def _named(model: Any, inner: torch.optim.Optimizer) -> list[_ParameterUnit]:
    names = {id(holder[key]): name for name, holder, key in reversed(list(parameters(model)))}
    flat = [one for group in inner.param_groups for one in group["params"]]
    if foreign := [tuple(one.shape) for one in flat if id(one) not in names]:
        raise LocalSGDError(
            f"shards(model): {len(foreign)} parameters of the optimizer are not in the model, such "
            f"as one of shape {foreign[0]}: pass the model whose parameters the optimizer has"
        )
    return [_ParameterUnit((_Parameter(names[id(one)], one),)) for one in flat]
