"""Fills a training state from images, whatever world saved them.

The order is: compare everything, read everything that can be refused, and only then change the
state. Does not belong here: the copies that fill a tensor (`reshard`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.flash.trainer.collectives import all_or_none
from holdfast.flash.trainer.holders import Holders
from holdfast.flash.trainer.optimizers import (
    OF_THE_CLASS,
    classes_of,
    other_class,
    other_form,
    other_settings,
)
from holdfast.flash.trainer.planner import RankPosition, locate
from holdfast.flash.trainer.reshard import Filler, Stored, is_like, new_like
from holdfast.flash.trainer.rng import Rng
from holdfast.flash.trainer.state_dict import (
    Leaves,
    Parts,
    Stateful,
    TensorLeaf,
    is_own,
    of_rank,
    parameter_names,
)
from holdfast.flash.trainer.values import decode_value

_SHOWN: Final = 10
_MOST_THREADS: Final = 4
"""Threads of one rank's restore: more threads do not read memory faster."""
_LOST: Final = "random generators of rank {} are reseeded from what others had: its own are lost"
_BUFFERS_LOST: Final = "buffers of rank {} are those of another rank: its own are lost"
_RESEEDED: Final = (
    "the random generators of all ranks are reseeded from those of rank 0: a world of %d saved "
    "them, this one has %d"
)
log: Final = logging.getLogger("holdfast")


Fetch = Callable[[Mapping[tuple[int, int], int]], None]
"""Fetches items from other nodes' memory: (rank, index) → bytes; raises if one is missing."""


class RestoreError(Exception):
    """A checkpoint does not fit the state; no tensor was changed."""


class Restorer:
    """One restore of one state."""

    def __init__(
        self,
        parts: Parts,
        leaves: Leaves,
        place: RankPosition,
        found: Stored,
        fetch: Fetch,
        holders: Holders = Holders(),  # noqa: B008 - frozen
    ) -> None:
        """Take the present state, the stored one, and the function that fetches other nodes' items.

        holders: holders of each name in this world, if the ranks differ.
        """
        self._holders = holders
        self._parts, self._leaves, self._place, self._found = parts, leaves, place, found
        self._fetch = fetch
        self._filler = Filler(found)
        self._wrong = self._filler.wrong
        self._fresh: dict[int, dict[Any, dict[Any, Any]]] = {}
        self._settings: list[tuple[dict[str, Any], str, Any]] = []
        self._values: dict[str, Any] = {}
        self._lacks_own = False
        """True: the world that saved kept buffers per rank, and this rank's are lost."""
        self._unfit: set[int] = set()
        """Ids of parameters with another form in the checkpoint: they stay as they are."""

    def run(self, *, partial: bool, threads: int) -> list[str]:
        """Restore; return notes for the user.

        partial: load the parts that fit, and leave the rest as it is.
        Raises `RestoreError` with the first differences.
        """
        import torch

        filler = self._filler
        # Not in the caller's inference mode: optimizers cannot step with tensors made in it.
        with torch.inference_mode(mode=False), torch.no_grad():
            with all_or_none(self._place.world, RestoreError):
                self._decode()
                self._models()
                self._optimizers()
                self._extras()
                if self._wrong and not partial:
                    raise RestoreError(
                        f"{len(self._wrong)} differences between checkpoint and state, the first: "
                        f"{'; '.join(self._wrong[:_SHOWN])}. load(partial=True) takes what fits"
                    )
            with all_or_none(self._place.world, RestoreError):
                if filler.wanted:
                    self._fetch(dict(sorted(filler.wanted.items())))
                notes = self._give()
            self._unshard_nothing()
            filler.copy(threads)
        self._apply(partial=partial)
        return notes

    def _decode(self) -> None:
        for name in self._found.values:
            self._values[name] = decode_value(name, self._found.value(name))

    def _models(self) -> None:
        names, first = set(), dict[int, str]()
        for leaf in self._leaves.tensors:
            if leaf.path[0] != "model":
                continue
            names.add(leaf.name)
            name = self._stored_name(leaf)
            other = first.setdefault(id(leaf.tensor), name)
            if not self._filler.are_one(other, name):
                continue
            local = locate(leaf.tensor, name, self._place)
            if not self._filler.fill(name, local, files_first=leaf.buffer):
                self._unfit.add(id(leaf.tensor))
        self._missing_or_new(names, "model")

    def _stored_name(self, leaf: TensorLeaf) -> str:
        """Return the name under which this rank's values of a tensor are stored.

        A buffer's own values go back to the rank of an equally large world; else all get rank 0's.
        """
        found = self._found
        if not leaf.buffer or found.world != self._place.world:
            return leaf.name
        own = of_rank(leaf, self._place.rank).name
        if own in found.tensors:
            return own
        self._lacks_own |= is_own(leaf) and any(
            of_rank(leaf, rank).name in found.tensors for rank in range(found.world)
        )
        return leaf.name

    def _missing_or_new(self, names: set[str], part: str) -> None:
        there = {name for name in self._found.tensors if self._found.paths[name][0] == part}
        self._wrong += self._unless_of_others(there - names)

    def _unless_of_others(self, names: Iterable[str]) -> list[str]:
        """Return errors for stored names that this rank lacks; none for names of other ranks."""
        left = [name for name in sorted(names) if not self._is_of_others(name)]
        return [f"{name} is not in the state" for name in left]

    def _is_of_others(self, name: str) -> bool:
        """Tell whether other ranks take this name, and this rank has no place for it."""
        path = self._found.paths.get(name, ())
        return self._holders.is_of_others(name, path, self._place.rank)

    def _optimizers(self) -> None:
        for prefix, optimizer in self._parts.optimizers.items():
            path = ("optimizer", prefix) if prefix else ("optimizer",)
            names = parameter_names(self._parts, prefix)
            if other := self._other(path, optimizer):
                self._wrong.append(f"{'.'.join(path)}: {other}")
                self._fresh[id(optimizer)] = {}
                continue
            by_name = {
                names[id(parameter)]: (parameter, group)
                for group in optimizer.param_groups
                for parameter in group["params"]
            }
            fresh: dict[Any, dict[Any, Any]] = {}
            for name, full in self._found.paths.items():
                if full[: len(path) + 1] != (*path, "state"):
                    continue
                owner, key = str(full[len(path) + 1]), full[len(path) + 2]
                if owner not in by_name:
                    self._wrong += self._unless_of_others([name])
                    continue
                parameter, group = by_name[owner]
                if id(parameter) in self._unfit:
                    continue
                state = fresh.setdefault(parameter, {})
                if name in self._values:
                    state[key] = self._values[name]
                elif name in self._found.tensors:
                    here = (optimizer.state.get(parameter) or {}).get(key)
                    state[key] = self._state_tensor(name, key, parameter, group, here)
            self._fresh[id(optimizer)] = {
                one: state for one, state in fresh.items() if id(one) not in self._unfit
            }
            self._compare_groups(path, optimizer, names)
        given = {".".join(("optimizer", *([one] if one else []))) for one in self._parts.optimizers}
        if given:  # without any optimizer it is a load for evaluation
            self._wrong += self._unless_of_others(self._found.optimizers.keys() - given)

    def _other(self, path: tuple[str, ...], optimizer: Any) -> str:
        """Return the reason why the stored state is another optimizer's; empty: it is not."""
        found, groups = self._found, optimizer.param_groups
        settings = self._below((*path, "param_groups"))
        saved = [
            {key: self._values.get(name) for (at, key), name in settings.items() if at == number}
            for number in range(len(groups))
        ]
        kinds = found.optimizers.get(".".join(path), ())
        return (
            other_class(kinds, classes_of(optimizer), found.step)
            or other_settings({key for _, key in settings}, {key for one in groups for key in one})
            or other_form(saved, groups, found.step)
        )

    def _state_tensor(
        self, name: str, key: str | int, parameter: Any, group: dict[str, Any], here: Any
    ) -> Any:
        """Return the tensor for a state entry, with the copies into it planned.

        A tensor of the parameter's shape is sharded like the parameter. Other state is placed as
        torch does: a step count on the CPU, the rest on the parameter's device. An existing tensor
        of that form is filled in place: touching new memory takes longer than the copy.
        """
        import torch

        item = self._found.tensors[name][0].item
        dtype = getattr(torch, item.dtype)
        whole = item.shape == tuple(parameter.shape)
        on_device = whole or key != "step" or group.get("capturable") or group.get("fused")
        device = parameter.device if on_device else torch.device("cpu")
        like = parameter if whole else None
        if is_like(here, item, dtype, device, like):
            state = here
        elif whole:
            state = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        else:
            state = torch.empty(item.shape, dtype=dtype, device=device)
        if not self._filler.fill(name, locate(state, name, self._place)):
            self._unfit.add(id(parameter))
        return state

    def _compare_groups(
        self, path: tuple[str, ...], optimizer: Any, names: Mapping[int, str]
    ) -> None:
        """Compare the groups' parameters; plan the copies of settings that are tensors."""
        begin, wrong = (*path, "param_groups"), self._wrong
        settings = self._below(begin)
        there = {number for number, _ in settings}
        others = {
            number
            for (number, _), name in settings.items()
            if number not in range(len(optimizer.param_groups)) and self._is_of_others(name)
        }
        if there - others != set(range(len(optimizer.param_groups))):
            wrong.append(
                f"{'.'.join(begin)}: {len(there)} groups in the checkpoint, "
                f"{len(optimizer.param_groups)} here: add_param_group() before load() what the "
                "run that saved had added by then"
            )
            return
        for number, group in enumerate(optimizer.param_groups):
            held = f"{'.'.join(begin)}.{number}.params"
            own = [names[id(parameter)] for parameter in group["params"]]
            saved = self._values.get(held, [])
            if sorted(saved) != sorted(self._holders.groups.get(held, own)):
                wrong.append(f"{'.'.join(begin)}.{number}: other parameters in the checkpoint")
                continue
            for key, value in group.items():
                name = settings.get((number, key)) if key not in OF_THE_CLASS else None
                if name in self._found.tensors and name is not None:
                    group_value = new_like(self._found.tensors[name][0].item, value)
                    self._filler.fill(name, locate(group_value, name, self._place))
                    self._settings.append((group, key, group_value))
                elif name is not None and key != "params":
                    self._settings.append((group, key, self._values[name]))
            self._only_stored(number, group, settings)

    def _only_stored(
        self, number: int, group: dict[str, Any], settings: Mapping[tuple[Any, Any], str]
    ) -> None:
        """Take stored settings that this group lacks, such as one that a scheduler has added."""
        for (at, key), name in settings.items():
            if at != number or key in group or key in OF_THE_CLASS:
                continue
            if name in self._found.tensors:
                value = new_like(self._found.tensors[name][0].item, None)
                self._filler.fill(name, locate(value, name, self._place))
                self._settings.append((group, key, value))
            elif name in self._values:
                self._settings.append((group, key, self._values[name]))

    def _below(self, begin: tuple[str, ...]) -> dict[tuple[Any, Any], str]:
        """Return the stored names two keys below a path."""
        size = len(begin)
        return {
            (path[size], path[size + 1]): name
            for name, path in self._found.paths.items()
            if path[:size] == begin and len(path) == size + 2 and self._is_stored(name)
        }

    def _is_stored(self, name: str) -> bool:
        return name in self._values or name in self._found.tensors

    def _extras(self) -> None:
        for leaf in self._leaves.values:
            if leaf.name not in self._values and not leaf.own and leaf.path[0] != "optimizer":
                self._wrong.append(f"{leaf.name} is not in the checkpoint")
        known = {leaf.name for leaf in self._leaves.values}
        for name in self._values:
            taken = name in known or self._is_of_others(name)
            if self._found.paths[name][0] in ("extra", "model") and not taken:
                self._wrong.append(f"{name} is not in the state")
        own = {str(path[1]) for path in self._found.paths.values() if _is_per_rank(path)}
        left = sorted(own - self._parts.per_rank.keys())
        self._wrong += [f"{key} of each rank (per_rank) is not in the state" for key in left]

    def _unshard_nothing(self) -> None:
        """Have FSDP drop its gathered parameters: they would outlive the values they came from."""
        for model in self._parts.models.values():
            for module in model.modules():
                if hasattr(module, "reshard") and hasattr(module, "_get_fsdp_state"):
                    module.reshard()  # type: ignore[operator] # checked above

    def _apply(self, *, partial: bool) -> None:
        for optimizer in self._parts.optimizers.values():
            fresh = self._fresh[id(optimizer)]
            if partial:
                fresh = {**optimizer.state, **fresh}
            optimizer.state.clear()
            optimizer.state.update(fresh)
        for group, key, value in self._settings:
            _set(group, key, value)

    def _give(self) -> list[str]:
        """Load everything but tensors; this comes before the tensors, as an owner may refuse."""
        gifts = [
            Gift(f"extra.{key}", value, self._values[f"extra.{key}"], self._parts.extra, key)
            for key, value in self._parts.extra.items()
            if f"extra.{key}" in self._values
        ]
        for leaf in self._leaves.values:
            if leaf.path[0] == "model" and leaf.name in self._values:
                module = getattr(leaf.read, "__self__", None)
                if module is not None:
                    gifts.append(Gift(leaf.name, module, self._values[leaf.name]))
        try:
            own, notes = self._per_rank()
            give([*gifts, *own])
        except GivingError as error:
            raise RestoreError(str(error)) from error
        return notes

    def _per_rank(self) -> tuple[list[Gift], list[str]]:
        rank, notes, gifts = self._place.rank, list[str](), list[Gift]()
        if self._lacks_own:
            notes.append(_BUFFERS_LOST.format(rank))
        same = self._found.world == self._place.world
        for key, value in self._parts.per_rank.items():
            states = [
                self._values[f"rank_{number}.{key}"]
                for number in range(self._found.world)
                if f"rank_{number}.{key}" in self._values
            ]
            name, reshard = f"rank_{rank}.{key}", getattr(value, "reshard", None)
            if same and name in self._values:
                gifts.append(Gift(name, value, self._values[name], self._parts.per_rank, key))
            elif states and isinstance(value, Rng):
                fresh = value.reshard(states, rank, self._place.world)
                gifts.append(Gift(name, value, fresh, self._parts.per_rank, key))
                if same:
                    notes.append(_LOST.format(rank))
                elif rank == 0:  # as intended: a script has nothing to change
                    log.info(_RESEEDED, self._found.world, self._place.world)
            elif reshard is not None and len(states) == self._found.world:
                whole = _resharded(name, reshard, states, rank, self._place.world)
                gifts.append(Gift(name, value, whole, self._parts.per_rank, key))
            else:
                saved = f"by a world of {self._found.world}, this one has {self._place.world}"
                why = f"it was saved {saved}" if states else "the checkpoint has none"
                notes.append(f"{key} of rank {rank} begins anew: {why}")
        return gifts, notes


def _set(group: dict[str, Any], key: str, value: Any) -> None:
    """Set a group's setting in the script's own form: a number or a tensor.

    A compiled step and a CUDA graph hold that very tensor; some of torch's steps take no tensor.
    """
    import torch

    here = group.get(key)
    is_tensor = isinstance(value, torch.Tensor)
    if isinstance(here, torch.Tensor) and is_tensor and here.shape == value.shape:
        here.copy_(value)
    elif isinstance(here, torch.Tensor) and here.numel() == 1 and type(value) in (int, float):
        here.fill_(value)
    elif type(here) is float and is_tensor and value.numel() == 1:
        group[key] = value.item()
    else:
        group[key] = value


def _is_per_rank(path: Sequence[str | int]) -> bool:
    return str(path[0]).startswith("rank_")


def _resharded(name: str, reshard: Any, states: list[Any], rank: int, world: int) -> Any:
    try:
        return reshard(states, rank, world)
    except Exception as error:  # any error of the owner's own code
        raise GivingError(
            f"{name}: its reshard failed: {error!r}; no tensor was changed"
        ) from error


class GivingError(Exception):
    """An owner refused its state."""


@dataclass(frozen=True, slots=True)
class Gift:
    """A value and its owner."""

    name: str
    owner: Any
    """A module with an extra state, an object with `load_state_dict`, or plain data."""
    state: Any
    holder: Any = None
    """Container of plain data; None: the owner is a module."""
    key: str = ""


def give(gifts: Sequence[Gift]) -> None:
    """Load all gifts; raises `GivingError` naming the owner that refused, and those before it.

    An owner is the user's code, and may refuse: so this comes before any tensor is changed. The
    owners' previous states are not kept for a rollback: one may be as large as a model.
    """
    given: list[str] = []
    for gift in gifts:
        try:
            _give(gift)
        except Exception as error:  # any error of the owner's own code
            before = f"; {', '.join(given)} are restored already" if given else ""
            raise GivingError(
                f"{gift.name}: {type(gift.owner).__name__} refused what was saved of it: "
                f"{error!r}; no tensor was changed{before}"
            ) from error
        given.append(gift.name)


def _give(gift: Gift) -> None:
    if gift.holder is None:
        gift.owner.set_extra_state(gift.state)
    elif isinstance(gift.owner, Stateful):
        gift.owner.load_state_dict(gift.state)
    else:
        gift.holder[gift.key] = gift.state


def idle_cores(place: RankPosition) -> int:
    """Return the number of threads for one rank's restore: no rank trains meanwhile."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)) // place.local_world)
