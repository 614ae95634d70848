"""Holders of each tensor where ranks differ: pipeline stages, experts.

Belongs here: the description of one rank's names, and the result from all descriptions. Does not
belong here: the exchange (`collectives`), the choice of the holder that stores a part (`planner`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.trainer.leaves import (
    Leaves,
    StateError,
    TensorLeaf,
    ValueLeaf,
    constant,
    in_replica,
    name_of,
)

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Holders of names that ranks have exchanged; by default all ranks have the same names."""

    ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Name → ranks that have it, for each name that some ranks lack. All state that an optimizer
    keeps for a parameter has one name: it may come later, on each rank with the parameter."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameter group → parameters of all ranks, for each group that is not alike on all ranks."""

    def of(self, name: str, path: Path) -> tuple[int, ...] | None:
        """Return the ranks that have this name; None: all of them."""
        found = self.ranks.get(name)
        if found is None and is_state(path):
            found = self.ranks.get(name_of(path[:-1]))
        return found

    def is_of_others(self, name: str, path: Path, rank: int) -> bool:
        """Return True if other ranks have this name, and this rank does not."""
        found = self.of(name, path)
        return found is not None and rank not in found


def is_state(path: Path) -> bool:
    """Return True if a path is an optimizer's state of a parameter."""
    path = in_replica(path)
    return path[:1] == ("optimizer",) and "state" in path[1:3] and len(path) > 3


def describe(leaves: Leaves) -> bytes:
    """Return this rank's names, dtypes and shapes, and the parameters of each group, as bytes."""
    groups = {leaf.name: leaf.read() for leaf in leaves.values if _is_group(leaf.path)}
    forms = {leaf.name: _form(leaf) for leaf in leaves.tensors if not is_state(leaf.path)}
    forms |= {leaf.name: "" for leaf in leaves.values if not leaf.own and not is_state(leaf.path)}
    forms |= dict.fromkeys(leaves.optimizers, "")
    for name, held in groups.items():
        begin = name.partition(".param_groups.")[0]
        forms |= {f"{begin}.state.{owner}": "" for owner in held}
    return json.dumps({"forms": forms, "groups": groups}, sort_keys=True).encode()


def _is_group(path: Path) -> bool:
    path = in_replica(path)
    return len(path) > 2 and path[0] == "optimizer" and path[-1] == "params"


def _form(leaf: TensorLeaf) -> str:
    from torch.nn import parameter

    if leaf.buffer:
        return ""  # each rank may have its own
    if parameter.is_lazy(leaf.tensor):
        raise StateError(f"{leaf.name} has no values yet")
    whole = leaf.tensor.shape if leaf.box is None else leaf.box.shape
    shape = "x".join(map(str, whole)) or "scalar"
    return f"{str(leaf.tensor.dtype).removeprefix('torch.')} {shape}"


def holders_of(told: Sequence[bytes]) -> Holders:
    """Return the holders according to the descriptions of all ranks, in their order.

    If a rank could not describe its state, its description is empty, and the result is too.
    Raises `StateError` if a name has another dtype or shape on another rank.
    """
    if not all(told):
        return Holders()
    found = [json.loads(one) for one in told]
    ranks: dict[str, list[int]] = {}
    groups: dict[str, dict[str, None]] = {}
    for rank, one in enumerate(found):
        for name in one["forms"]:
            ranks.setdefault(name, []).append(rank)
        for name, held in one["groups"].items():
            groups.setdefault(name, {}).update(dict.fromkeys(held))
    _compare([one["forms"] for one in found])
    return Holders(
        ranks={name: tuple(has) for name, has in ranks.items() if len(has) < len(told)},
        groups={
            name: tuple(held)
            for name, held in groups.items()
            if any(one["groups"].get(name) != list(held) for one in found)
        },
    )


def _compare(forms: Sequence[Mapping[str, str]]) -> None:
    first: dict[str, tuple[int, str]] = {}
    wrong = dict[str, str]()
    for rank, has in enumerate(forms):
        for name, form in has.items():
            other, known = first.setdefault(name, (rank, form))
            if known != form:
                wrong.setdefault(name, f"{name} is {known} on rank {other}, {form} on rank {rank}")
    if wrong:
        first_few = "; ".join(list(wrong.values())[:_SHOWN])
        raise StateError(
            f"ranks have other tensors under equal names: {first_few}. "
            "Give the modules of each stage names of their own (a ModuleDict by layer number), or "
            "pass what is each rank's own in per_rank"
        )


def with_groups_of_all(values: Sequence[ValueLeaf], holders: Holders) -> list[ValueLeaf]:
    """Return the values, with the parameters of all ranks in groups that are not alike."""
    return [
        replace(leaf, read=constant(list(holders.groups[leaf.name])))
        if leaf.name in holders.groups
        else leaf
        for leaf in values
    ]
