"""DeepSpeed's own checkpoints of ZeRO-1, 2 and 3, also of Megatron-DeepSpeed's ranks.

    mp_rank_MM_model_states.pt, or of ZeRO-3 zero_pp_rank_D_mp_rank_MM_model_states.pt
    zero_pp_rank_D_mp_rank_MM_optim_states.pt, with bf16_ or fp16_ before

Each data rank D has one flat range of each parameter's elements; they are put one after another.
Tensor-parallel slices are put together by the patterns that the script left in
`universal_checkpoint_info`, as DeepSpeed's own converter does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.tools.formats.deepspeed_files import (
    MOMENTS,
    ModelFiles,
    flat_range,
    group_values,
    moe_files,
    stage_of,
)
from holdfast.flash.tools.formats.deepspeed_slices import Slices
from holdfast.flash.tools.formats.foreign import (
    Checkpoint,
    ForeignError,
    ForeignTensor,
    Part,
    whole,
)
from holdfast.flash.tools.formats.pickles import Opaque, Pickles, TensorRef, TorchFile

if TYPE_CHECKING:
    import torch

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
    if experts := moe_files(path.name for path in File(place).iterdir()):
        raise ForeignError(
            f"{place}/{experts[0]}: files of experts are not read: convert them with "
            "ds_to_universal, and then the universal checkpoint"
        )
    files = ModelFiles(place, pickles)
    files.refuse_mixed_up()
    optimizers = _optimizer_files(place, files, pickles)
    first = _inner(optimizers[0, 0])
    groups, stage = _base(first).get("param_groups"), stage_of(first.get("zero_stage"))
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

    def range_of(self, data: int, mp: int, name: str) -> Range | None:
        """Return the range of a parameter on a rank; None: it has none."""
        if (data, mp) not in self._known:
            found = (
                self._of_stage_3(data, mp) if self._stage == _WEIGHTS else self._mapped(data, mp)
            )
            self._known[data, mp] = {one.name: one for one in found}
        return self._known[data, mp].get(name)

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
        for data in range(self.data):
            found = self.range_of(data, mp, name)
            if found is not None and found.count:
                state = _base(_inner(self.file(data, mp))).get("state")
                own = state.get(found.group, {}) if isinstance(state, Mapping) else {}
                return sorted(str(key) for key in own if key != "step")
        return [*MOMENTS]

    def flat(self, data: int, mp: int, group: int, key: str) -> Any:
        """Return the reference to a flat tensor, or a step; None: it is not there."""
        inner = _inner(self.file(data, mp))
        if key == "fp32":
            flats = inner.get("single_partition_of_fp32_groups", inner.get("fp32_flat_groups"))
            return flats[group] if isinstance(flats, list) and group < len(flats) else None
        state = _base(inner).get("state")
        return state.get(group, {}).get(key) if isinstance(state, Mapping) else None


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
    if any(one is None for one in made["fp32"].values()):
        yield from _untrained(slices, name, at)
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
    parts, end, dtype = list[Part](), 0, "float32"
    for data in range(ranks.data):
        found = ranks.range_of(data, mp, name)
        if found is None or not found.count:
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
        parts.append(Part(offsets=(end,), sizes=(found.count,), where=where, read=reader))
        end, dtype = end + found.count, ref.dtype
    if not parts and 0 not in shape:
        return None
    count = math.prod(shape)
    return ForeignTensor(
        path=("model", name), dtype=dtype, shape=shape, parts=tuple(parts), grid=(count,)
    )


def _untrained(
    slices: Slices, name: str, at: Mapping[int, tuple[int, ...]]
) -> Iterator[ForeignTensor]:
    """Yield the weight of a parameter that the optimizer does not know: it is in the model file."""
    found = {mp: slices.files.untrained(mp, name, shape) for mp, shape in at.items()}
    yield slices.join(("model", name), name, found)


def _step(ranks: _Ranks, mp: int, name: str) -> Iterator[ForeignTensor]:
    path = ("optimizer", "state", name, "step")
    for data in range(ranks.data):
        found = ranks.range_of(data, mp, name)
        if found is None:
            continue
        value, file = ranks.flat(data, mp, found.group, "step"), ranks.file(data, mp)
        if isinstance(value, TensorRef):
            yield whole(path, value.dtype, value.size, file.path, partial(file.tensor, value))
        elif isinstance(value, int | float):
            yield whole(path, "float32", (), file.path, partial(_number, float(value)))
        return


def _number(value: float) -> torch.Tensor:
    import torch

    return torch.tensor(value)
