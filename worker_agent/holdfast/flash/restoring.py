"""Fills a training state from images, whatever world wrote them.

First everything is compared, then everything is read that can be refused, and only then is
anything changed. How a tensor is put together is `filling`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from holdfast.flash.agreement import all_or_none
from holdfast.flash.filling import Filler
from holdfast.flash.giving import Gift, GivingError, give
from holdfast.flash.optimizers import (
    OF_THE_CLASS,
    classes_of,
    other_class,
    other_form,
    other_settings,
)
from holdfast.flash.planning import Place, locate
from holdfast.flash.rng import Rng
from holdfast.flash.state import Leaves, Parts, parameter_names
from holdfast.flash.stored import Stored
from holdfast.flash.targets import is_like, new_like
from holdfast.flash.values import decode_value

_SHOWN: Final = 10
_RESEEDED: Final = "random generators of rank {} are reseeded from what others had: {}"


Fetch = Callable[[Mapping[tuple[int, int], int]], None]
"""Brings items of other nodes' memory, by rank and index, so many bytes each; raises when one
cannot be had."""


class RestoreError(Exception):
    """A checkpoint does not fit the state; no tensor was changed."""


class Restorer:
    """One restore of one state."""

    def __init__(
        self, parts: Parts, leaves: Leaves, place: Place, found: Stored, fetch: Fetch
    ) -> None:
        """Take the state as it is, what is stored, and how to get what another node has."""
        self._parts, self._leaves, self._place, self._found = parts, leaves, place, found
        self._fetch = fetch
        self._filler = Filler(found)
        self._wrong = self._filler.wrong
        self._fresh: dict[int, dict[Any, dict[Any, Any]]] = {}
        self._settings: list[tuple[dict[str, Any], str, Any]] = []
        self._values: dict[str, Any] = {}
        self._unfit: set[int] = set()
        """Parameters, by id, that the checkpoint has in another form: they stay as they are."""

    def run(self, *, partial: bool, threads: int) -> list[str]:
        """Restore; return what was noteworthy.

        partial: load what fits and leave the rest as it is.
        Raises `RestoreError` with the first differences.
        """
        import torch

        filler = self._filler
        # Not in the caller's inference mode: no optimizer could step with what is made in it.
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
            other = first.setdefault(id(leaf.tensor), leaf.name)
            if not self._filler.are_one(other, leaf.name):
                continue
            if not self._filler.fill(leaf.name, locate(leaf.tensor, leaf.name, self._place)):
                self._unfit.add(id(leaf.tensor))
        self._missing_or_new(names, "model")

    def _missing_or_new(self, names: set[str], part: str) -> None:
        there = {name for name in self._found.tensors if self._found.paths[name][0] == part}
        self._wrong += [f"{name} is not in the state" for name in sorted(there - names)]

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
                    self._wrong.append(f"{name} is not in the state")
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
        if given:  # none at all is a load for evaluation
            left = sorted(self._found.optimizers.keys() - given)
            self._wrong += [f"{name} is not in the state" for name in left]

    def _other(self, path: tuple[str, ...], optimizer: Any) -> str:
        """Return why the stored state is another optimizer's; empty: it is not."""
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

        What has the parameter's shape is sharded as the parameter is. Other state is as torch
        makes it: on the CPU where it counts steps, else beside the parameter. A tensor that is
        there already and is so is filled: to touch new memory takes longer than to copy.
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
        if there != set(range(len(optimizer.param_groups))):
            wrong.append(f"{'.'.join(begin)}: {len(there)} groups in the checkpoint")
            return
        for number, group in enumerate(optimizer.param_groups):
            saved = self._values.get(settings.get((number, "params"), ""), [])
            if sorted(saved) != sorted(names[id(parameter)] for parameter in group["params"]):
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
        """Take settings that this group does not have: what a scheduler has added, a name."""
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
            if path[:size] == begin and len(path) == size + 2
        }

    def _extras(self) -> None:
        for leaf in self._leaves.values:
            if leaf.name not in self._values and not leaf.own and leaf.path[0] != "optimizer":
                self._wrong.append(f"{leaf.name} is not in the checkpoint")
        known = {leaf.name for leaf in self._leaves.values}
        for name in self._values:
            if self._found.paths[name][0] in ("extra", "model") and name not in known:
                self._wrong.append(f"{name} is not in the state")
        own = {str(path[1]) for path in self._found.paths.values() if _is_per_rank(path)}
        left = sorted(own - self._parts.per_rank.keys())
        self._wrong += [f"{key} of each rank (per_rank) is not in the state" for key in left]

    def _unshard_nothing(self) -> None:
        """Have FSDP drop what it gathered before: it would outlive the values it came from."""
        for model in self._parts.models.values():
            for module in model.modules():
                if hasattr(module, "reshard") and hasattr(module, "_get_fsdp_state"):
                    module.reshard()  # type: ignore[operator] # checked above

    def _apply(self, *, partial: bool) -> None:
        import torch

        for optimizer in self._parts.optimizers.values():
            fresh = self._fresh[id(optimizer)]
            if partial:
                fresh = {**optimizer.state, **fresh}
            optimizer.state.clear()
            optimizer.state.update(fresh)
        for group, key, value in self._settings:
            here = group.get(key)
            if not isinstance(here, torch.Tensor) or not isinstance(value, torch.Tensor):
                group[key] = value
            elif here.shape == value.shape:
                here.copy_(value)
            else:
                group[key] = value

    def _give(self) -> list[str]:
        """Give everything but tensors; before those, because its owner may refuse it."""
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
                other = f"a world of {self._found.world} saved them, this one has "
                why = "its own are lost" if same else f"{other}{self._place.world}"
                notes.append(_RESEEDED.format(rank, why))
            elif reshard is not None and len(states) == self._found.world:
                whole = _resharded(name, reshard, states, rank, self._place.world)
                gifts.append(Gift(name, value, whole, self._parts.per_rank, key))
            else:
                saved = f"by a world of {self._found.world}, this one has {self._place.world}"
                why = f"it was saved {saved}" if states else "the checkpoint has none"
                notes.append(f"{key} of rank {rank} begins anew: {why}")
        return gifts, notes


def _is_per_rank(path: Sequence[str | int]) -> bool:
    return str(path[0]).startswith("rank_")


def _resharded(name: str, reshard: Any, states: list[Any], rank: int, world: int) -> Any:
    try:
        return reshard(states, rank, world)
    except Exception as error:  # whatever the owner's own code raises
        raise GivingError(
            f"{name}: its reshard failed: {error!r}; no tensor was changed"
        ) from error
