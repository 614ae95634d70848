"""DeepSpeed's own checkpoints of ZeRO-1, 2 and 3, also of Megatron-DeepSpeed's ranks.

    mp_rank_MM_model_states.pt, or of ZeRO-3 zero_pp_rank_D_mp_rank_MM_model_states.pt
    zero_pp_rank_D_mp_rank_MM_optim_states.pt, with bf16_ or fp16_ before

Each data rank D has one flat range of each parameter's elements; they are put one after another.
Tensor-parallel slices are put together by the patterns that the script left in
`universal_checkpoint_info`, by the rules of DeepSpeed's `ds_to_universal`. A parameter that no rule
tells how to join is refused by name, never guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.tools.formats.deepspeed_files import (
    INFO,
    MOMENTS,
    ModelFiles,
    flat_range,
    group_values,
    scalar,
)
from holdfast.flash.tools.formats.foreign import (
    Checkpoint,
    ForeignError,
    ForeignPart,
    ForeignTensor,
    whole,
)
from holdfast.flash.tools.formats.pickles import Opaque, Pickles, TensorRef
from holdfast.flash.tools.formats.torch_file import TorchFile

if TYPE_CHECKING:
    import torch


_ROWS: Final = "parameter_with_row_parallelism_patterns"
_SAME: Final = "tp_replicated_parameter_patterns"
_MEAN: Final = "parameter_to_average_patterns"
_VOCABULARY: Final = "vocabulary_parameter_patterns"
_TWO: Final = "parameter_with_2_sub_params_cat_dim_0"
_REFUSED: Final = ("parameter_with_sub_params", "affine_map")


@dataclass(frozen=True, slots=True)
class _Rule:
    dim: int | None
    """Dimension that was cut; None: all ranks have the whole."""
    halves: int = 1
    """Number of sub-parameters that were cut each for itself."""
    rows: int | None = None
    """Rows of the vocabulary without padding."""


class Slices:
    """The parameters of all model-parallel ranks."""

    def __init__(self, files: ModelFiles) -> None:
        """Take the model files; raises `ForeignError` for an unknown version."""
        self.files = files
        files.version()
        info = files.get(INFO)
        self._info: Mapping[str, Any] = info if isinstance(info, Mapping) else {}

    def parameters(self) -> dict[str, dict[int, tuple[int, ...]]]:
        """Return each parameter's model-parallel ranks, with the shape of their slices.

        A parameter that the first and last pipeline stage both have is the first one's.
        """
        found: dict[str, dict[int, tuple[int, ...]]] = {}
        size = self.files.tensor_size
        for mp in self.files.ranks:
            for shapes in (*self.files.shapes(mp), self.files.frozen(mp)):
                for name, shape in shapes.items():
                    there = found.setdefault(name, {})
                    if not there or min(there) // size == mp // size:
                        there[mp] = shape
        for name, ranks in found.items():
            if len(ranks) != size:
                raise ForeignError(
                    f"{self.files.folder}: {name} is on {len(ranks)} of {size} tensor-parallel "
                    "ranks: copy the files of one save"
                )
        return found

    def join(self, path: Path, name: str, slices: Mapping[int, ForeignTensor]) -> ForeignTensor:
        """Return the whole of a parameter's slices; raises `ForeignError`."""
        ranks = [slices[mp] for mp in sorted(slices)]
        if len(ranks) == 1 and not self._matches(_VOCABULARY, name):
            return replace(ranks[0], path=path)
        rule = self._rule(name)
        if rule.dim is None:
            return _same(path, ranks)
        if any(len(one.shape) <= rule.dim for one in ranks):
            raise ForeignError(f"{self.files.folder}: {name} has no dimension {rule.dim} to join")
        return _joined(path, ranks, rule)

    def _rule(self, name: str) -> _Rule:
        if not self._info:
            raise ForeignError(
                f"{self.files.of(0).path}: no {INFO} tells how {name} was cut among "
                f"{self.files.tensor_size} tensor-parallel ranks: Megatron-DeepSpeed writes it "
                "with --universal-checkpoint; save once more with it"
            )
        for kind in _REFUSED:
            if self._info.get(kind):
                raise ForeignError(
                    f"{self.files.of(0).path}: {kind} is not read here, {name} may be cut by it: "
                    "convert it with ds_to_universal, and then the universal checkpoint"
                )
        if self._matches(_MEAN, name):
            raise ForeignError(
                f"{self.files.folder}: {name} is averaged over ranks by its script: the result is "
                "no exact copy. Convert it with ds_to_universal"
            )
        if self._matches(_SAME, name):
            return _Rule(None)
        rows = self._info.get("original_vocab_size") if self._matches(_VOCABULARY, name) else None
        if self._matches(_TWO, name):
            return _Rule(0, halves=2)
        return _Rule(1 if self._matches(_ROWS, name) else 0, rows=rows)

    def _matches(self, kind: str, name: str) -> bool:
        return any(re.match(pattern, name) for pattern in self._info.get(kind) or ())


def _same(path: Path, ranks: list[ForeignTensor]) -> ForeignTensor:
    """Return the first of equal slices; it compares them when it is read."""
    where = ", ".join(part.where for one in ranks for part in one.parts)
    return whole(path, ranks[0].dtype, ranks[0].shape, where, partial(_compared, ranks))


def _compared(ranks: list[ForeignTensor]) -> torch.Tensor:
    import torch

    values = ranks[0].load()
    for other in ranks[1:]:
        if not torch.equal(values, other.load()):
            raise ForeignError(
                f"{other.parts[0].where} differs from {ranks[0].parts[0].where}, and both should "
                "be one: the files are of two saves"
            )
    return values


def _joined(path: Path, ranks: list[ForeignTensor], rule: _Rule) -> ForeignTensor:
    """Return slices side by side, each sub-parameter for itself, without the padding's rows."""
    dim = rule.dim or 0
    total = sum(one.shape[dim] for one in ranks)
    shape = [*ranks[0].shape]
    shape[dim] = total if rule.rows is None else min(rule.rows, total)
    parts, end = list[ForeignPart](), 0
    for half in range(rule.halves):
        for one in ranks:
            length = one.shape[dim] // rule.halves
            begin, kept = half * length, min(length, shape[dim] - end)
            if kept > 0:
                parts.append(_cut(one, dim, (begin, kept), end))
            end += length
    return replace(ranks[0], path=path, shape=tuple(shape), parts=tuple(parts), grid=None)


def _cut(one: ForeignTensor, dim: int, span: tuple[int, int], at: int) -> ForeignPart:
    offsets, sizes = [0] * len(one.shape), [*one.shape]
    offsets[dim], sizes[dim] = at, span[1]
    return ForeignPart(
        offsets=tuple(offsets),
        sizes=tuple(sizes),
        where=", ".join(part.where for part in one.parts),
        read=lambda: one.load().narrow(dim, *span),
    )


OPTIM_FILE: Final = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")

_WEIGHTS: Final = 3
"""Stage that partitions the weights."""


@dataclass(frozen=True, slots=True)
class Range:
    """A flat range of a parameter in one rank's flat tensors."""

    name: str
    begin: int
    count: int
    group: int


def read(place: str, pickles: Pickles) -> Checkpoint:
    """Return a native checkpoint; raises `ForeignError` naming the file, OSError."""
    if experts := sorted(path.name for path in File(place).glob("*expert*_states.pt")):
        raise ForeignError(
            f"{place}/{experts[0]}: files of experts are not read: convert them with "
            "ds_to_universal, and then the universal checkpoint"
        )
    files = ModelFiles(place, pickles)
    files.refuse_mixed_up()
    optimizers = _optimizer_files(place, files, pickles)
    first = _inner(optimizers[0, 0])
    groups, stage = _base(first).get("param_groups"), _stage_of(first.get("zero_stage"))
    slices = Slices(files)
    ranks = _Ranks(files, optimizers, stage)
    tensors = [
        tensor
        for name, found in slices.parameters().items()
        for tensor in _parameter(slices, name, found, ranks)
    ]
    return Checkpoint(
        place=place,
        format="deepspeed",
        framework=f"DeepSpeed {files.get('ds_version', '')}".strip(),
        layout=f"ZeRO-{stage}",
        tensors=(*tensors, *files.aliases(tensors), *files.buffers()),
        notes=files.notes(),
        values=group_values(groups, optimizers[0, 0].path) | files.values(),
        step=files.get("global_steps"),
        sizes={
            "data": 1 + max(data for data, _ in optimizers),
            "tensor": files.tensor_size,
            "pipeline": len(files.ranks) // files.tensor_size,
        },
    )


def _optimizer_files(
    place: str, files: ModelFiles, pickles: Pickles
) -> dict[tuple[int, int], TorchFile]:
    """Return the optimizer files by (data rank, mp rank); raises `ForeignError` for a gap."""
    matches = {path: OPTIM_FILE.fullmatch(path.name) for path in sorted(File(place).iterdir())}
    found = {(int(m[1]), int(m[2])): TorchFile(pickles, str(p)) for p, m in matches.items() if m}
    if not found:
        raise ForeignError(
            f"{place} has no zero_pp_rank_*_optim_states.pt: it was saved without ZeRO, or without "
            "its optimizer; copy all files"
        )
    due = max(int(files.get("dp_world_size") or 1), 1 + max(data for data, _ in found))
    for mp in files.ranks:
        for data in range(due):
            if (data, mp) not in found:
                raise ForeignError(
                    f"{place}/…zero_pp_rank_{data}_mp_rank_{mp:02d}_optim_states.pt is missing; "
                    f"{due} data ranks saved: copy the files of all ranks"
                )
    return found


def _inner(file: TorchFile) -> Mapping[str, Any]:
    found = file.state.get("optimizer_state_dict") if isinstance(file.state, Mapping) else None
    if not isinstance(found, Mapping):
        raise ForeignError(f"{file.path}: optimizer_state_dict is missing: copy the file again")
    return found


def _base(inner: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("base_optimizer_state", "optimizer_state_dict"):
        if isinstance(found := inner.get(name), Mapping):
            return found
    return {}


def _stage_of(value: Any) -> int:
    """Return a ZeRO stage, which DeepSpeed writes as an enum or a number."""
    if isinstance(value, Opaque) and value.args:
        value = value.args[0]
    return int(value) if isinstance(value, int) else 0


class _Ranks:
    """Flat tensors of all ranks, and the ranges of the parameters in them."""

    def __init__(
        self, files: ModelFiles, optimizers: Mapping[tuple[int, int], TorchFile], stage: int
    ) -> None:
        self.files, self._optimizers, self._stage = files, optimizers, stage
        self.data = 1 + max(data for data, _ in optimizers)
        self._known: dict[tuple[int, int], dict[str, Range]] = {}

    def file(self, data: int, mp: int) -> TorchFile:
        return self._optimizers[data, mp]

    def ranges(self, mp: int, name: str) -> Iterator[tuple[int, Range]]:
        """Yield the data ranks that have a range of a parameter, each with it."""
        find = self._of_stage_3 if self._stage == _WEIGHTS else self._mapped
        for data in range(self.data):
            if (data, mp) not in self._known:
                self._known[data, mp] = {one.name: one for one in find(data, mp)}
            if found := self._known[data, mp].get(name):
                yield data, found

    def _mapped(self, data: int, mp: int) -> Iterator[Range]:
        file = self.file(data, mp)
        mappings = _inner(file).get("param_slice_mappings")
        if not isinstance(mappings, list):
            raise ForeignError(
                f"{file.path}: param_slice_mappings is missing: DeepSpeed before 0.7 wrote it; "
                "load and save it with a newer one"
            )
        for group, mapping in enumerate(mappings):
            for name, fragment in mapping.items():
                begin, count = _fragment(fragment, file.path, name)
                yield Range(name, begin, count, group)

    def _of_stage_3(self, data: int, mp: int) -> Iterator[Range]:
        groups = _inner(self.file(data, mp)).get("ds_zero_partition_groups") or []
        for number, shapes in enumerate(self.files.shapes(mp)):
            own = groups[number] if number < len(groups) else {}
            count = int(own.get("partition_count", self.data))
            rank, begin = int(own.get("partition_rank", data)), 0
            for name, shape in shapes.items():
                whole_count = math.prod(shape)
                share = -(-whole_count // count)
                real = max(0, min(share, whole_count - rank * share))
                yield Range(name, begin, real, number)
                begin += share

    def kinds(self, mp: int, name: str) -> list[str]:
        """Return the kinds of optimizer state of a parameter, without its step."""
        for data, found in self.ranges(mp, name):
            if found.count:
                own = self._state(data, mp, found.group)
                return sorted(str(key) for key in own if key != "step")
        return [*MOMENTS]

    def _state(self, data: int, mp: int, group: int) -> Mapping[str, Any]:
        state = _base(_inner(self.file(data, mp))).get("state")
        return state.get(group, {}) if isinstance(state, Mapping) else {}

    def flat(self, data: int, mp: int, group: int, key: str) -> Any:
        """Return the reference to a flat tensor, or a step; None: it is not there."""
        if key != "fp32":
            return self._state(data, mp, group).get(key)
        inner = _inner(self.file(data, mp))
        flats = inner.get("single_partition_of_fp32_groups", inner.get("fp32_flat_groups"))
        return flats[group] if isinstance(flats, list) and group < len(flats) else None


def _fragment(fragment: Any, file: str, name: str) -> tuple[int, int]:
    if not isinstance(fragment, Opaque):
        raise ForeignError(f"{file}: the mapping of {name} is no fragment_address")
    try:
        return int(fragment.field("start")), int(fragment.field("numel"))
    except (KeyError, TypeError, ValueError) as error:
        raise ForeignError(f"{file}: the mapping of {name} lacks {error}") from error


def _parameter(
    slices: Slices, name: str, at: dict[int, tuple[int, ...]], ranks: _Ranks
) -> Iterator[ForeignTensor]:
    """Yield a parameter's tensors. at: model-parallel rank → shape of its slice."""
    made = {
        key: {mp: _slice(ranks, mp, name, shape, key) for mp, shape in at.items()}
        for key in ("fp32", *ranks.kinds(min(at), name))
    }
    if any(one is None for one in made["fp32"].values()):  # the model file has it
        own = {mp: slices.files.untrained(mp, name, shape) for mp, shape in at.items()}
        yield slices.join(("model", name), name, own)
        return
    for key, found in made.items():
        path: Path = ("model", name) if key == "fp32" else ("optimizer", "state", name, key)
        parts = {mp: one for mp, one in found.items() if one is not None}
        if len(parts) == len(at):
            yield slices.join(path, name, parts)
    yield from _step(ranks, min(at), name)


def _slice(
    ranks: _Ranks, mp: int, name: str, shape: tuple[int, ...], key: str
) -> ForeignTensor | None:
    """Return one tensor-parallel slice of a parameter; None: no rank has it."""
    parts, end, dtype = list[ForeignPart](), 0, "float32"
    for data, found in ranks.ranges(mp, name):
        if not found.count:
            continue
        file, ref = ranks.file(data, mp), ranks.flat(data, mp, found.group, key)
        if ref is None:
            return None
        where = f"{file.path}: {key} of {name}"
        if not isinstance(ref, TensorRef) or found.begin + found.count > ref.count:
            raise ForeignError(
                f"{where}: elements {found.begin} to {found.begin + found.count} are due, and "
                f"{getattr(ref, 'count', 0)} are there: copy the file again"
            )
        reader = partial(flat_range, file, ref, found.begin, found.count)
        parts.append(ForeignPart(offsets=(end,), sizes=(found.count,), where=where, read=reader))
        end, dtype = end + found.count, ref.dtype
    if not parts and 0 not in shape:
        return None
    count = math.prod(shape)
    return ForeignTensor(
        path=("model", name), dtype=dtype, shape=shape, parts=tuple(parts), grid=(count,)
    )


def _step(ranks: _Ranks, mp: int, name: str) -> Iterator[ForeignTensor]:
    for data, found in ranks.ranges(mp, name):
        value = ranks.flat(data, mp, found.group, "step")
        yield from scalar(ranks.file(data, mp), ("optimizer", "state", name, "step"), value)
        return
