"""Megatron's `torch_dist` directories: torch's files, with common.pt and metadata.json.

Names are Megatron's global keys under torch's scheme: `model.<key>` is the fp32 master where the
optimizer keeps one, `optimizer.state.<key>.exp_avg` a moment.

megatron-core 0.16 to 0.19 writes `fully_reshardable` optimizer state from wrong offsets once there
are several gradient buckets (`overlap_grad_reduce`) with padding between them. No file tells the
number of buckets. But master and moments of a parameter are cut at the same offset, and the master,
rounded, is the weight that the model itself saved: so each master is compared with its weight, and
a checkpoint with one that differs is refused.

`dp_reshardable` optimizer state is in flat buckets, whose parameters have no names:

    optimizer.distributed.dp_group_idx_G.gbuf_idx_B.dtype_D.bucket_idx_N.{param,exp_avg,exp_avg_sq}

A bucket has parameters of one model-parallel rank side by side, each from a multiple of 64 elements
on. Each place in a bucket is found by its first values, which are a weight's, and the whole master
is compared when it is read. Two weights with the same values cannot be told apart, and a place that
is no weight's has no name: both are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.tools.formats.dcp import Directory, files_of
from holdfast.flash.tools.formats.foreign import (
    Checkpoint,
    ForeignError,
    ForeignPart,
    ForeignTensor,
    whole,
    width,
)
from holdfast.flash.tools.formats.pickles import Opaque, Pickles, plain
from holdfast.flash.tools.formats.torch_file import TorchFile

if TYPE_CHECKING:
    import torch


_BUCKET: Final = re.compile(r"(optimizer\..*dp_group_idx_(\d+)\..*bucket_idx_\d+)\.([a-z_0-9]+)")
MASTER: Final = "param"
KINDS: Final = (MASTER, "exp_avg", "exp_avg_sq")
_ALIGN: Final = 64
"""Elements; a parameter begins at a multiple of them."""
_HEAD: Final = 64
"""Elements that find a weight."""
_OFFSETS: Final = (
    ": megatron-core 0.16 to 0.19 writes the optimizer state of fully_reshardable from wrong "
    "offsets when there are several gradient buckets. Save once more without overlap_grad_reduce, "
    "or with one bucket (--ddp-num-buckets 1), or take the model only (--model-only)"
)
REMEDY: Final = (
    "load it in Megatron with the same layout and save once with "
    "--dist-ckpt-optim-fully-reshardable, or take the model only (--model-only)"
)


@dataclass(frozen=True, slots=True)
class _Weight:
    """A box of a weight: what one model-parallel rank has of it."""

    key: str
    number: int
    """Of the box."""
    dtype: str
    count: int
    head: bytes
    """Its first values."""


@dataclass(frozen=True, slots=True)
class _Place:
    bucket: str
    begin: int


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A bucket of a model-parallel rank."""

    name: str
    group: int
    count: int
    starts: frozenset[int]
    """Where its pieces begin: parameters, padding, and what another data rank has."""


@dataclass(slots=True)
class Buckets:
    """Where each box of each weight has its state."""

    found: Directory
    weights: list[str]
    _weights: dict[bytes, list[_Weight]] = field(default_factory=dict)
    _places: dict[str, dict[int, _Place]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find them; raises `ForeignError` naming the bucket or the weights."""
        for key in self.weights:
            for number, count in self._boxes(key):
                one = self._weight(key, number, count)
                first = one.head[: width(one.dtype)]
                self._weights.setdefault(first, []).append(one)
        taken = dict[tuple[int, str, int], _Place]()
        for bucket in _buckets(self.found):
            for weight, begin in self._walk(bucket):
                place = _Place(bucket.name, begin)
                there = taken.setdefault((bucket.group, weight.key, weight.number), place)
                if there != place:
                    raise self._error(
                        f"{weight.key} has the values of two places, {there.begin} of "
                        f"{there.bucket} and {begin} of {bucket.name}"
                    )
                self._places.setdefault(weight.key, {}).setdefault(weight.number, place)
        for key, places in self._places.items():
            if len(places) != len(self._boxes(key)):
                raise self._error(f"{key} has optimizer state of a part of it only")

    def state(self, key: str, kind: str, path: Path) -> ForeignTensor | None:
        """Return a weight's master or moment under its name; None: it has no state."""
        if key not in self._places:
            return None
        weight, parts = self.found.tensors[key], list[ForeignPart]()
        for number, place in sorted(self._places[key].items()):
            offsets, sizes = weight.boxes[number]
            name = f"{place.bucket}.{kind}"
            reader = partial(self.found.flat, name, place.begin, math.prod(sizes))
            where = f"{self.found.place}: {name} at {place.begin}"
            parts.append(ForeignPart(offsets=offsets, sizes=sizes, where=where, read=reader))
        dtype = self.found.tensors[f"{place.bucket}.{kind}"].dtype
        return ForeignTensor(path=path, dtype=dtype, shape=weight.shape, parts=tuple(parts))

    def _boxes(self, key: str) -> list[tuple[int, int]]:
        """Return numbers and element counts of a weight's boxes, without empty ones."""
        counts = (math.prod(sizes) for _, sizes in self.found.tensors[key].boxes)
        return [(number, count) for number, count in enumerate(counts) if count]

    def _weight(self, key: str, number: int, count: int) -> _Weight:
        head = self.found.head(key, number, min(count, _HEAD))
        dtype = self.found.tensors[key].dtype
        return _Weight(key, number, dtype, count, _bits(head, dtype))

    def _walk(self, bucket: _Bucket) -> Iterator[tuple[_Weight, int]]:
        """Yield each weight of a bucket, and where it begins."""
        at = 0
        while at < bucket.count:
            if at % _ALIGN and at in bucket.starts:
                at += -at % _ALIGN  # padding
                continue
            one = self._at(bucket, at)
            yield one, at
            at += one.count

    def _at(self, bucket: _Bucket, begin: int) -> _Weight:
        """Return the weight at a place; raises `ForeignError` unless it is one and only one."""
        left = bucket.count - begin
        head = self.found.flat(f"{bucket.name}.{MASTER}", begin, min(left, _HEAD), checked=False)
        known = [one for one in self._alike(head) if one.count <= left]
        if len(known) > 1:
            known = [one for one in known if self._ends(bucket, begin, one)]
        if len(known) != 1:
            names = " and ".join(f"{one.key} (part {one.number})" for one in known[:3])
            why = f"the values of {names}" if known else "the values of no weight"
            raise self._error(f"the parameter at {begin} of {bucket.name} has {why}")
        return known[0]

    def _alike(self, head: torch.Tensor) -> Iterator[_Weight]:
        """Yield the weights that begin with the values, as far as these go."""
        for dtype in sorted({self.found.tensors[key].dtype for key in self.weights}):
            bits = _bits(head, dtype)
            for one in self._weights.get(bits[: width(dtype)], ()):
                if one.dtype == dtype and bits.startswith(one.head):
                    yield one

    def _ends(self, bucket: _Bucket, begin: int, one: _Weight) -> bool:
        """Return True if all of a weight has the values of a place, where a piece ends with it."""
        end = begin + one.count
        if end != bucket.count and end not in bucket.starts:
            return False
        master = self.found.flat(f"{bucket.name}.{MASTER}", begin, one.count)
        weight = self.found.head(one.key, one.number, one.count)
        return _bits(master, one.dtype) == _bits(weight, one.dtype)

    def _error(self, text: str) -> ForeignError:
        return ForeignError(
            f"{self.found.place}: optimizer state by buckets (dp_reshardable) has no names, and "
            f"{text}, so it is not known whose it is: {REMEDY}"
        )


def is_bucket(name: str) -> bool:
    """Return True if a name is that of optimizer state in a bucket."""
    return _BUCKET.fullmatch(name) is not None


def _buckets(found: Directory) -> list[_Bucket]:
    kinds: dict[str, set[str]] = {}
    groups = dict[str, int]()
    for match in filter(None, map(_BUCKET.fullmatch, found.tensors)):
        kinds.setdefault(match[1], set()).add(match[3])
        groups[match[1]] = int(match[2])
    made = list[_Bucket]()
    for name, there in sorted(kinds.items()):
        if there != {*KINDS}:
            raise ForeignError(
                f"{found.place}/.metadata: {name} has {', '.join(sorted(there))}, where "
                f"{', '.join(KINDS)} of an Adam are due: {REMEDY}"
            )
        shapes = {found.tensors[f"{name}.{kind}"].shape for kind in KINDS}
        for kind in KINDS:
            found.tensor(f"{name}.{kind}", (name, kind)).check()
        if len(shapes) != 1 or len(min(shapes)) != 1:
            raise ForeignError(
                f"{found.place}/.metadata: {name} has shapes {shapes}: copy it again"
            )
        one = found.tensors[f"{name}.{MASTER}"]
        starts = frozenset(offsets[0] for offsets, _ in one.boxes)
        made.append(_Bucket(name, groups[name], one.shape[0], starts))
    return made


def _bits(values: torch.Tensor, dtype: str) -> bytes:
    """Return values, rounded to a dtype, as bytes."""
    import torch

    rounded = values.to(getattr(torch, dtype)).contiguous().view(-1)
    return rounded.view(torch.uint8).numpy().tobytes()


_STATE: Final = re.compile(r"optimizer\.state\.(param|fp32_param|exp_avg|exp_avg_sq)\.(.+)")
_SETTINGS: Final = re.compile(r"optimizer\..*dp_group_idx_\d+\.optimizer/.+")
_MASTERS: Final = ("param", "fp32_param")
_OWN_RANK: Final = re.compile(r"(rng_state|rerun_state_machine_state)\b.*")
"""Values of each rank that begin anew in another world."""
_KEPT: Final = (
    "iteration", "checkpoint_version", "num_floating_point_operations_so_far",
    "opt_param_scheduler",
)  # fmt: skip
"""Values of common.pt that are kept beside the arguments."""
_SIZES: Final = {"tensor": "tensor_model_parallel_size", "pipeline": "pipeline_model_parallel_size"}


_StateNames = dict[str, dict[str, str]]
"""Key of a parameter → kind of its state → name in the directory."""


def read(place: str, pickles: Pickles, *, model: bool = False) -> Checkpoint:
    """Return a directory of Megatron; raises `ForeignError` naming file and tensor, OSError.

    model: only the weights, as the model has them; the optimizer's state is not looked at.
    """
    found = Directory(place, pickles)
    common = _common(place, pickles)
    if model:
        weights = [name for name in found.tensors if not name.startswith("optimizer.")]
        return _checkpoint(found, common, [found.tensor(one, ("model", one)) for one in weights])
    weights, names = _names(found)
    states = _states(found, weights, names)
    tensors = [one for key in weights for one in _parameter(found, key, states.get(key))]
    return _checkpoint(found, common, tensors)


def _checkpoint(
    found: Directory, common: Mapping[str, Any], tensors: list[ForeignTensor]
) -> Checkpoint:
    objects, notes = _objects(found)
    step = common.get("iteration")
    return Checkpoint(
        place=found.place,
        format="megatron",
        framework="Megatron",
        layout=_layout(common, found),
        tensors=tuple(tensors),
        values=_settings(found, common) | _values(common) | objects,
        step=step if isinstance(step, int) and step > 0 else None,
        sizes=_sizes(common),
        notes=notes,
    )


def _common(place: str, pickles: Pickles) -> Mapping[str, Any]:
    file = File(place, "common.pt")
    if not file.exists():
        raise ForeignError(f"{file} is missing: copy the whole directory")
    state = TorchFile(pickles, str(file)).state
    if not isinstance(state, Mapping):
        raise ForeignError(f"{file} holds a {type(state).__name__}, not a dict: copy it again")
    return state


def _names(found: Directory) -> tuple[list[str], _StateNames]:
    """Return the names of weights and states; raises `ForeignError` for one without the other."""
    weights, states = list[str](), _StateNames()
    for name in sorted(found.tensors):
        if match := _STATE.fullmatch(name):
            kind = MASTER if match[1] in _MASTERS else match[1]
            states.setdefault(match[2], {})[kind] = name
        elif name.startswith("optimizer.") and not is_bucket(name):
            raise ForeignError(
                f"{found.place}/.metadata: {name} is optimizer state of an unknown kind: save "
                "with --dist-ckpt-optim-fully-reshardable"
            )
        elif not is_bucket(name):
            weights.append(name)
    for key, kinds in states.items():
        missing = {*KINDS} - kinds.keys()
        if missing or key not in found.tensors:
            what = f"optimizer.state of {key}: {', '.join(sorted(missing))}" if missing else key
            raise ForeignError(
                f"{found.place}/.metadata: {what} is missing beside {min(kinds.values())}: copy "
                "the directory again"
            )
    return weights, states


def _states(
    found: Directory, weights: list[str], names: _StateNames
) -> dict[str, dict[str, ForeignTensor]]:
    """Return master and moments of each parameter that has them; raises `ForeignError`."""
    states = {
        key: {kind: found.tensor(name, _path(key, kind)) for kind, name in kinds.items()}
        for key, kinds in names.items()
    }
    if any(map(is_bucket, found.tensors)):
        buckets = Buckets(found, weights)
        for key in set(weights) - states.keys():
            made = {kind: buckets.state(key, kind, _path(key, kind)) for kind in KINDS}
            states[key] = {kind: one for kind, one in made.items() if one is not None}
    return states


def _path(key: str, kind: str) -> Path:
    return ("model", key) if kind == MASTER else ("optimizer", "state", key, kind)


def _parameter(
    found: Directory, key: str, states: Mapping[str, ForeignTensor] | None
) -> Iterator[ForeignTensor]:
    weight = found.tensor(key, ("model", key))
    if not states:
        yield weight
        return
    for kind in ("exp_avg", "exp_avg_sq"):
        yield _of_shape(found, states[kind], weight)
    master = _of_shape(found, states[MASTER], weight)
    where = ", ".join(sorted({part.where for part in master.parts})[:2])
    master.check()
    weight.check()
    read = partial(_compared, master, weight, where)
    yield whole(master.path, master.dtype, master.shape, where, read)


def _of_shape(found: Directory, state: ForeignTensor, weight: ForeignTensor) -> ForeignTensor:
    if state.shape != weight.shape:
        raise ForeignError(
            f"{found.place}/.metadata: {state.name} has shape {state.shape}, its parameter "
            f"{weight.shape}: copy the directory again"
        )
    return state


def _compared(master: ForeignTensor, weight: ForeignTensor, where: str) -> torch.Tensor:
    """Return a master whose rounded values are the weight's; raises `ForeignError`."""
    import torch

    values, rounded = master.load(), weight.load()
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[rounded.itemsize]
    mine = values.to(rounded.dtype).view(-1).view(bits)
    if not (wrong := int((mine != rounded.view(-1).view(bits)).sum())):
        return values
    why = f", which begins with the same values: {REMEDY}" if "bucket_idx" in where else _OFFSETS
    raise ForeignError(
        f"{where}: {wrong} of {values.numel()} masters are not the weight of {weight.name}{why}"
    )


def _settings(found: Directory, common: Mapping[str, Any]) -> dict[Path, Any]:
    """Return the optimizer's settings under torch's names.

    With buckets each model-parallel rank has them as an object; they are the same.
    """
    own = sorted(name for name in found.values if _SETTINGS.fullmatch(name))
    held: Any = found.value(own[0]) if own else common.get("optimizer")
    return {
        ("optimizer", "param_groups", number, str(name)): value
        for number, group in enumerate(_groups(held[0] if own else held))
        for name, value in group.items()
        if name != "params" and plain(value)
    }


def _values(common: Mapping[str, Any]) -> dict[Path, Any]:
    """Return the settings of Megatron alone, under `megatron`."""
    args = {str(name): value for name, value in _arguments(common).items() if plain(value)}
    found = {"args": args or None, **{name: common.get(name) for name in _KEPT}}
    return {
        ("megatron", name): value
        for name, value in found.items()
        if value is not None and plain(value)
    }


def _arguments(common: Mapping[str, Any]) -> Mapping[str, Any]:
    args = common.get("args")
    return args.state if isinstance(args, Opaque) and isinstance(args.state, Mapping) else {}


def _groups(optimizer: Any) -> list[Mapping[str, Any]]:
    """Return the parameter groups of an optimizer, or of a chain of them, in order."""
    if not isinstance(optimizer, Mapping):
        return []
    inner = optimizer.get("optimizer", optimizer)
    if isinstance(inner, Mapping) and isinstance(inner.get("param_groups"), list):
        return [group for group in inner["param_groups"] if isinstance(group, Mapping)]
    chain = sorted(key for key in optimizer if isinstance(key, int))
    return [group for key in chain for group in _groups(optimizer[key])]


def _objects(found: Directory) -> tuple[dict[Path, Any], tuple[str, ...]]:
    """Return objects of modules that are data, and a note on what was left out."""
    objects, left = dict[Path, Any](), list[str]()
    for name in sorted(found.values):
        if name.startswith("optimizer."):
            continue  # settings of a group, which are under torch's names
        if _OWN_RANK.fullmatch(name):
            left.append(name)
            continue
        value = found.value(name)
        if value not in ([None], None):
            objects["megatron", "objects", name] = value
    notes = (f"left out, each rank's own: {', '.join(left[:4])}",) if left else ()
    return objects, notes


def _layout(common: Mapping[str, Any], found: Directory) -> str:
    content = common.get("content_metadata")
    kind = content.get("distrib_optim_sharding_type") if isinstance(content, Mapping) else None
    has_state = any(_STATE.fullmatch(name) or is_bucket(name) for name in found.tensors)
    optimizer = f", optimizer {kind or 'of parameters'}" if has_state else ", no optimizer"
    return f"torch_dist, {files_of(found.place)} files{optimizer}"


def _sizes(common: Mapping[str, Any]) -> dict[str, int]:
    fields = _arguments(common)
    found = {name: fields[key] for name, key in _SIZES.items() if isinstance(fields.get(key), int)}
    world = fields.get("world_size")
    if isinstance(world, int) and len(found) == len(_SIZES):
        found["data"] = world // max(math.prod(found.values()), 1)
    return found
