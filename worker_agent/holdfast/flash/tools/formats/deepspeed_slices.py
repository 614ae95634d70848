"""Tensor-parallel slices of Megatron-DeepSpeed put together, by the patterns of the script.

The rules are those of DeepSpeed's `ds_to_universal`. A parameter that no rule tells how to join is
refused by name, never guessed. Does not belong here: the data ranks' flat ranges
(`deepspeed_native`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.tools.formats.deepspeed_files import INFO, ModelFiles
from holdfast.flash.tools.formats.foreign import ForeignError, ForeignTensor, Part

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
    first = ranks[0]
    where = ", ".join(part.where for one in ranks for part in one.parts)
    part = Part(
        offsets=(0,) * len(first.shape),
        sizes=first.shape,
        where=where,
        read=partial(_compared, ranks),
    )
    return replace(first, path=path, parts=(part,), grid=None)


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
    parts, end = list[Part](), 0
    for half in range(rule.halves):
        for one in ranks:
            length = one.shape[dim] // rule.halves
            begin, kept = half * length, min(length, shape[dim] - end)
            if kept > 0:
                parts.append(_cut(one, dim, (begin, kept), end))
            end += length
    return replace(ranks[0], path=path, shape=tuple(shape), parts=tuple(parts), grid=None)


def _cut(one: ForeignTensor, dim: int, span: tuple[int, int], at: int) -> Part:
    offsets, sizes = [0] * len(one.shape), [*one.shape]
    offsets[dim], sizes[dim] = at, span[1]
    where = ", ".join(part.where for part in one.parts)
    reader = partial(_narrowed, one, dim, span)
    return Part(offsets=tuple(offsets), sizes=tuple(sizes), where=where, read=reader)


def _narrowed(one: ForeignTensor, dim: int, span: tuple[int, int]) -> torch.Tensor:
    return one.load().narrow(dim, *span).contiguous()
