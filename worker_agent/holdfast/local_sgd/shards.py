"""Local SGD's state as `Shards`: anchors, momentum, what a codec lost, rounds, detectors, counters.

Belongs here: names and boxes of that state, and how a start in another world takes it over. Does
not belong here: weights and inner optimizer, which `ReplicaShards` lists beside it.

| name | box or value | stored by |
|---|---|---|
| `local_sgd.anchor.<parameter>` | A | one replica, by turns of units |
| `local_sgd.outer.<parameter>.<key>` | v, or whatever the outer optimizer keeps | the same |
| `local_sgd.merge_error.<parameter>` | what the codec lost of merged deltas | each rank |
| `replicas.<n>.local_sgd.error.<parameter>` | what it lost of replica n's delta | replica n |
| `local_sgd.rounds`, `.detectors`, `.outer_settings` | by unit | one rank |
| `replicas.<n>.local_sgd.clock` | replica n's steps | one of its ranks |

A replica that the checkpoint does not have starts from the anchors, with replica 0's inner state. A
checkpoint without anchors, of a warm-up or of a plain job, begins with the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.trainer.flat_range import boxes_of_range
from holdfast.flash.trainer.leaves import REPLICAS, Leaves
from holdfast.flash.trainer.planner import LocalPart, RankPosition, locate_tensor
from holdfast.flash.trainer.reshard import Filling
from holdfast.flash.trainer.shards import ReplicaShards, Shards, Together
from holdfast.flash.trainer.torch_shards import TorchShards
from holdfast.local_sgd.driver.framework import Framework
from holdfast.local_sgd.policies.anomaly import Ewma
from holdfast.local_sgd.sync.codecs import BLOCK
from holdfast.local_sgd.sync.reducers import Lost
from holdfast.local_sgd.sync.units import Unit

if TYPE_CHECKING:
    import torch


_OURS: Final = "local_sgd"
ANCHOR: Final = (_OURS, "anchor")
OUTER: Final = (_OURS, "outer")
MERGE_ERROR: Final = (_OURS, "merge_error")
_NO_OUTER: Final = (
    "local_sgd.outer: the checkpoint has the state of an outer optimizer, this job has none: pass "
    "the OuterOptimizerConfig of the run that saved"
)


@dataclass(slots=True)
class Coming:
    """One unit's state while nothing is changed yet."""

    unit: Unit
    spare: Unit
    """Has the anchors that are filled: the unit's own, or fresh ones."""
    states: list[tuple[torch.Tensor, str, torch.Tensor]] = field(default_factory=list)
    """(anchor, key, value) of the outer optimizer's state."""
    lost: Lost | None = None


class LocalSGDShards:
    """State of a `LocalSGD` between rounds; see `holdfast.flash.trainer.shards.Shards`."""

    def __init__(self, local: Framework, trained: Sequence[Any], replica: ReplicaShards) -> None:
        """Take the state of this rank's replica, which is filled before.

        Args:
            local: The replicas.
            trained: For each unit, the place of its elements; here a `ShardedUnit`.
            replica: State of this one.
        """
        self._local, self._trained, self._replica = local, trained, replica
        self._number, self._count = local.place
        self._coming: list[Coming] = []
        self._values: dict[str, Any] = {}

    def collect(self, leaves: Leaves) -> None:
        """List the state; see `Shards.collect`."""
        for number, (unit, module) in enumerate(self._units()):
            held = vars(unit)
            leaves.links += [(held, key, held[key]) for key in ("_anchors", "lost")]
            if unit.has_anchors:
                stored = number % self._count == self._number
                self._collect_anchors(leaves, unit, module, stored=stored)
            if unit.lost is not None:
                self._collect_lost(leaves, unit.lost, module)
        local = self._local
        leaves.add_value((_OURS, "rounds"), lambda: {one.name: one.round for one in local.units})
        leaves.add_value((_OURS, "detectors"), lambda: _detectors(local.units, self._names()))
        if self._outer_settings() is not None:
            leaves.add_value((_OURS, "outer_settings"), self._outer_settings)
        leaves.add_value(self._own("clock"), local.clock)

    def accept(self, filling: Filling) -> None:
        """Plan the copies into anchors and momentum; see `Shards.accept`."""
        self._coming, values = [], filling.values
        clock = values.get(".".join(map(str, self._own("clock"))))
        self._values = {
            "clock": clock or values.get(f"{REPLICAS}.0.{_OURS}.clock"),
            **{key: values.get(f"{_OURS}.{key}", {}) for key in ("rounds", "detectors")},
            "outer_settings": values.get(f"{_OURS}.outer_settings", {}),
        }
        if not any(path[:2] == ANCHOR for path in filling.paths.values()):
            return
        self._refuse_other_outer(filling)
        for unit, module in self._units():
            self._coming.append(self._accept_unit(filling, unit, module))

    def finish(self, *, partial: bool) -> None:
        """Take over what was filled; a replica that was not saved starts from the anchors."""
        for unit in self._local.units if not self._coming else ():
            unit.adopt(Unit(unit.name, unit.tensors))
        for one in self._coming:
            one.spare.lost = one.lost
            one.unit.adopt(one.spare)
            optimizer = one.unit.anchors.optimizer
            for anchor, key, value in one.states:
                assert optimizer is not None  # noqa: S101 - refused in accept()
                optimizer.state[anchor][key] = value
            _set(optimizer, _of_unit(self._values["outer_settings"], one.unit) or {})
            if not self._replica.found:
                one.unit.anchors.write_weights(one.unit.tensors())
        self._give_values()
        self._coming = []

    def _give_values(self) -> None:
        rounds, detectors = self._values["rounds"], self._values["detectors"]
        for unit in self._local.units:
            unit.round = _of_unit(rounds, unit) or 0
            known = detectors.get(unit.name, {}).items()
            ranks = {name: rank for rank, name in self._names().items()}
            unit.detectors = {
                ranks[int(name)]: Ewma.of(state) for name, state in known if int(name) in ranks
            }
        if self._values["clock"] is not None:
            self._local.set_clock(self._values["clock"])

    def _names(self) -> dict[int, int]:
        """Return the number in the checkpoint of each rank of the sync group that is in it."""
        if self._count == self._local.replicas.size:
            return {number: number for number in range(self._count)}
        return {self._local.replicas.rank: self._number}

    def _units(self) -> Iterator[tuple[Unit, Any]]:
        """Yield each unit with the place of its elements."""
        yield from zip(self._local.units, self._trained, strict=True)

    def _outer_settings(self) -> dict[str, dict[str, Any]] | None:
        """Return the outer optimizers' numbers, by unit; None: this rank has none."""
        return _settings(self._local.units)

    def _own(self, *keys: str) -> Path:
        return (REPLICAS, str(self._number), _OURS, *keys)

    def _collect_anchors(self, leaves: Leaves, unit: Unit, module: Any, *, stored: bool) -> None:
        optimizer = unit.anchors.optimizer
        if optimizer is not None:
            leaves.counts.append((optimizer.state, len(optimizer.state)))
        for anchor, one in zip(unit.anchors.values, self._parts(module), strict=True):
            self._add(leaves, ANCHOR, anchor, one, stored=stored)
            for key, value in (optimizer.state.get(anchor, {}) if optimizer else {}).items():
                if not hasattr(value, "shape"):
                    continue  # SGD's momentum of 0: None
                if value.shape == anchor.shape:
                    self._add(leaves, OUTER, value, one, key, stored=stored)
                else:
                    path, zeros = (*OUTER, one.name, key), (0,) * value.dim()
                    first = stored and self._is_first(one)
                    leaves.add_box(path, value, value.shape, zeros, trained=False, stored=first)

    def _collect_lost(self, leaves: Leaves, lost: Lost, module: Any) -> None:
        for path, values, one, begin in self._lost_of(lost, module):
            self._add(leaves, path, values, one, begin=begin)

    def _accept_unit(self, filling: Filling, unit: Unit, module: Any) -> Coming:
        spare = Unit(unit.name, unit.tensors, unit.outer)
        if unit.has_anchors:
            spare.adopt(unit)
        else:
            spare.take_anchors()
        coming = Coming(unit, spare)
        for anchor, one in zip(spare.anchors.values, self._parts(module), strict=True):
            self._fill(filling, ANCHOR, anchor, one)
            coming.states += self._accept_outer(filling, anchor, one)
        coming.lost = self._accept_lost(filling, unit, module)
        return coming

    def _accept_outer(
        self, filling: Filling, anchor: torch.Tensor, one: Any
    ) -> Iterator[tuple[torch.Tensor, str, torch.Tensor]]:
        """Plan the copies into the outer optimizer's state of an anchor."""
        import torch

        keys = self._keys(one)
        for (owner, key), stored in filling.below(OUTER).items():
            form = filling.form(stored)
            if form is None or owner not in (*keys, one.name):
                continue
            dtype, shape = getattr(torch, form[0]), form[1]
            if owner in keys and self._is_cut(one, shape):
                value = torch.zeros_like(anchor, dtype=dtype)
                self._fill(filling, OUTER, value, one, key)
            else:
                value = torch.zeros(shape, dtype=dtype)
                filling.fill_box(stored, value, shape, (0,) * len(shape))
            yield anchor, key, value

    def _accept_lost(self, filling: Filling, unit: Unit, module: Any) -> Lost | None:
        """Plan what the codec lost: this replica's, and of the chunk that this rank merges now."""
        import torch

        names = [(*MERGE_ERROR, key) for one in self._parts(module) for key in self._keys(one)]
        form = next((form for name in names if (form := filling.form(".".join(name)))), None)
        if form is None or not self._local.config.error_feedback:
            return None
        begin, end = self._chunk(unit)
        tensors = unit.tensors()
        options = {"dtype": getattr(torch, form[0]), "device": tensors[0].device}
        sent = torch.zeros(sum(one.numel() for one in tensors), **options)
        lost = Lost(sent, begin, torch.zeros(end - begin, **options))
        for path, values, one, first in self._lost_of(lost, module):
            name = ".".join(map(str, (*path, self._keys(one)[0])))
            if path == MERGE_ERROR or filling.form(name) is not None:
                self._fill(filling, path, values, one, begin=first)
        return lost

    def _chunk(self, unit: Unit) -> tuple[int, int]:
        """Return begin and end of what this rank merges of a unit, in the transfer of its batch."""
        batch = [unit] if self._local.in_forward else self._local.units
        sizes = [sum(one.numel() for one in each.tensors()) for each in batch]
        return chunks_of(sizes, self._number, self._count)[batch.index(unit)]

    def _lost_of(self, lost: Lost, module: Any) -> Iterator[tuple[Path, torch.Tensor, Any, int]]:
        """Cut what was lost of a unit into its parts: path, values, part, first element of it."""
        at, spans = 0, list[tuple[Any, int, int]]()
        for one in self._parts(module):
            spans.append((one, at, at := at + self._size(one)))
        yield from (
            (self._own("error"), lost.sent[begin:end], one, 0)
            for one, begin, end in spans
            if begin < end
        )
        first, last = lost.begin, lost.begin + lost.merged.numel()
        for one, begin, end in spans:
            low, high = max(first, begin), min(last, end)
            if low < high:
                yield MERGE_ERROR, lost.merged[low - first : high - first], one, low - begin

    # Where elements lie: a subclass whose parts are no parameters under FSDP2 or DDP says it anew.

    def _parts(self, module: Any) -> Sequence[Any]:
        """Return the place of each tensor of a unit."""
        parts: Sequence[Any] = module.trained
        return parts

    def _keys(self, one: Any) -> list[str]:
        """Return the global tensors in which a part's elements lie."""
        return [one.name]

    def _size(self, one: Any) -> int:
        """Return the number of a part's elements."""
        return int(one.local.numel())

    def _is_first(self, one: Any) -> bool:
        """Return True if this rank stores what has one value for a whole parameter."""
        del one
        return self._local.shard_group.rank == 0

    def _is_cut(self, one: Any, shape: Sequence[int]) -> bool:
        """Return True if a stored value of this shape is cut among ranks as the parameter is."""
        return tuple(shape) == place_of(one).shape

    def _add(
        self,
        leaves: Leaves,
        path: Path,
        values: torch.Tensor,
        one: Any,
        *keys: str,
        begin: int = 0,
        stored: bool = True,
    ) -> None:
        """List the boxes of a part's values from an element on."""
        for view, shape, offsets in _boxes(values, one, begin):
            name = (*path, one.name, *keys)
            leaves.add_box(name, view, shape, offsets, trained=False, stored=stored)

    def _fill(
        self,
        filling: Filling,
        path: Path,
        values: torch.Tensor,
        one: Any,
        *keys: str,
        begin: int = 0,
    ) -> None:
        """Plan the copies into such boxes."""
        for view, shape, offsets in _boxes(values, one, begin):
            filling.fill_box(".".join(map(str, (*path, one.name, *keys))), view, shape, offsets)

    def _refuse_other_outer(self, filling: Filling) -> None:
        has = bool(filling.below(OUTER))
        if has and all(unit.outer.factory is None for unit in self._local.units):
            filling.wrong.append(_NO_OUTER)


def shards_of(
    local: Framework, trained: Sequence[Any], model: Any, optimizers: Sequence[Any]
) -> Shards:
    """Return the whole training state of one replica.

    Args:
        local: The replicas.
        trained: For each unit, a `ShardedUnit`.
        model: Under `fully_shard`.
        optimizers: The inner ones.
    """
    named = {
        "" if len(optimizers) == 1 else str(number): one for number, one in enumerate(optimizers)
    }
    whole = TorchShards({"": model}, named)
    replica = ReplicaShards(whole, local.place[0], shard=local.shard_group.rank)
    return Together(replica, LocalSGDShards(local, trained, replica))


def place_of(one: Any) -> LocalPart:
    """Return the place of this rank's shard in a whole trained parameter."""
    position = RankPosition(rank=0, world=1, local_rank=0, local_world=1)
    return locate_tensor(one.parameter, one.name, position)


def _of_unit(stored: Mapping[str, Any], unit: Unit) -> Any:
    """Return a unit's value; where another framework cut the units, that of any: all are alike.

    None: the checkpoint has none.
    """
    return stored[unit.name] if unit.name in stored else next(iter(stored.values()), None)


def chunks_of(sizes: Sequence[int], rank: int, ranks: int) -> list[tuple[int, int]]:
    """Return begin and end of what a rank merges of each unit, as `sync.reducers` cuts a batch.

    Args:
        sizes: Elements of the units that go in one transfer.
        rank: In the sync group.
        ranks: Of the sync group.
    """
    wide = -(-sum(sizes) // (ranks * BLOCK)) * BLOCK
    first, last = rank * wide, (rank + 1) * wide
    found, at = [], 0
    for size in sizes:
        low, high = max(first, at), min(last, at + size)
        found.append((low - at, high - at) if low < high else (0, 0))
        at += size
    return found


def _boxes(
    values: torch.Tensor, one: Any, begin: int
) -> Iterator[tuple[torch.Tensor, tuple[int, ...], tuple[int, ...]]]:
    """Cut values of a shard, from an element on, into boxes: view, whole shape, offsets."""
    place = place_of(one)
    if values.numel() == place.values.numel():  # also none
        yield values.view(place.values.shape), place.shape, place.offsets
        return
    flat, at = values.view(-1), 0
    for offsets, sizes in boxes_of_range(place.values.shape, begin, begin + values.numel()):
        size = math.prod(sizes)
        whole = tuple(a + b for a, b in zip(place.offsets, offsets, strict=True))
        yield flat[at : at + size].view(sizes), place.shape, whole
        at += size


def _detectors(units: list[Unit], names: Mapping[int, int]) -> dict[str, dict[str, list[float]]]:
    """Return the detectors of each replica in the checkpoint, by its number there."""
    return {
        unit.name: {
            str(names[rank]): list(one.state())
            for rank, one in unit.detectors.items()
            if rank in names
        }
        for unit in units
    }


def _settings(units: list[Unit]) -> dict[str, dict[str, Any]]:
    """Return the outer optimizers' numbers, such as a learning rate that a script has changed."""
    found = {}
    for unit in units:
        optimizer = unit.anchors.optimizer if unit.has_anchors else None
        if optimizer is not None:
            group = optimizer.param_groups[0]
            plain = {key: one for key, one in group.items() if type(one) in (int, float, bool)}
            found[unit.name] = plain
    return found


def _set(optimizer: Any, settings: dict[str, Any]) -> None:
    for group in optimizer.param_groups if optimizer is not None else ():
        group.update({key: one for key, one in settings.items() if key in group})
