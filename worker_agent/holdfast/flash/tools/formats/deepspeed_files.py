"""Names and values that DeepSpeed's native and universal checkpoints have in common.

Belongs here: the model files (`mp_rank_XX_model_states.pt`), settings of parameter groups. Does not
belong here: where the optimizer's tensors lie (`deepspeed_native`, `deepspeed_universal`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.tools.formats.foreign import ForeignError, ForeignPart, ForeignTensor, whole
from holdfast.flash.tools.formats.pickles import Pickles, TensorRef, plain
from holdfast.flash.tools.formats.torch_file import TorchFile, of_ref

if TYPE_CHECKING:
    import torch

MODEL_FILE: Final = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
MOMENTS: Final = ("exp_avg", "exp_avg_sq")
KNOWN_VERSIONS: Final = (0.2, 0.3, 0.4)
"""Versions of universal metadata. 0.4 tells the widths of unevenly cut sub-parameters."""
INFO: Final = "universal_checkpoint_info"
VERSION: Final = "universal_checkpoint_version"
_STRUCTURE: Final = {
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
    "frozen_param_fragments", "dp_world_size", "mp_world_size", "checkpoint_parallel_dimensions",
    "ds_config", "num_experts", "ds_autoep_layers", INFO,
}  # fmt: skip
"""Entries of a model file that describe it. All others, also the script's own, are values."""


class ModelFiles:
    """The model files of a directory, by (pipeline and tensor rank, data rank)."""

    def __init__(self, folder: str, pickles: Pickles) -> None:
        """Read them without their tensors; raises `ForeignError`, OSError."""
        self.folder = folder
        self.files: dict[tuple[int, int], TorchFile] = {}
        for path in sorted(File(folder).iterdir()):
            if match := MODEL_FILE.fullmatch(path.name):
                key = int(match[2]), int(match[1] or 0)
                if key in self.files and match[1] is not None:
                    continue  # a universal checkpoint for every stage has its file twice
                self.files[key] = TorchFile(pickles, str(path))
        if not self.files:
            raise ForeignError(
                f"{folder}: no mp_rank_00_model_states.pt: name the directory of one save"
            )
        self.ranks = sorted({mp for mp, _ in self.files})
        if self.ranks != list(range(len(self.ranks))):
            missing = min(set(range(len(self.ranks))) - set(self.ranks))
            raise ForeignError(
                f"{folder}: mp_rank_{missing:02d}_model_states.pt is missing, and there are "
                f"{len(self.ranks)} others: copy the files of all ranks"
            )

    def of(self, mp: int, data: int = 0) -> TorchFile:
        """Return a file; raises `ForeignError` if it is missing."""
        found = self.files.get((mp, data)) or self.files.get((mp, 0))
        if found is None:
            raise ForeignError(f"{self.folder}: the model file of mp_rank_{mp:02d} is missing")
        return found

    def module(self, mp: int = 0) -> dict[str, TensorRef]:
        """Return the tensors of a model file; with ZeRO-3 those of parameters have no elements."""
        found = self.of(mp).state.get("module")
        found = found if isinstance(found, Mapping) else {}
        return {name: ref for name, ref in found.items() if isinstance(ref, TensorRef)}

    def trained(self, mp: int = 0) -> set[str]:
        """Return the parameters that the optimizer has."""
        return {name for group in self.shapes(mp) for name in group}

    def tied(self, mp: int) -> dict[str, str]:
        """Return further names of trained parameters: they have one storage, also an empty one."""
        module, trained = self.module(mp), self.trained(mp)
        names = {module[one]: one for one in sorted(trained & module.keys())}
        found = {name: names[ref] for name, ref in module.items() if ref in names}
        shared = self.get("shared_params", mp=mp) or {}
        return {name: one for name, one in (found | shared).items() if name not in trained}

    def frozen(self, mp: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of parameters that are not trained."""
        passed = self.trained(mp) | {*(self.get("buffer_names", mp=mp) or ()), *self.tied(mp)}
        found = {
            name: ref.size
            for name, ref in self.module(mp).items()
            if ref.count and name not in passed
        }
        listed = self.get("frozen_param_shapes", mp=mp) or {}
        return found | {name: tuple(size) for name, size in listed.items()}

    def untrained(self, mp: int, name: str, shape: tuple[int, ...]) -> ForeignTensor:
        """Return a parameter that the optimizer does not have; raises `ForeignError`."""
        fragments = self._fragments(mp, name, shape)
        if fragments is not None:
            return fragments
        ref, file = self.module(mp).get(name), self.of(mp)
        if ref is None or ref.size != shape:
            raise ForeignError(
                f"{file.path}: {name} is in no optimizer file, and in this file it is "
                f"{getattr(ref, 'size', 'missing')}, not {shape}: copy the files of all ranks"
            )
        return of_ref(file, ("model", name), ref)

    def _fragments(self, mp: int, name: str, shape: tuple[int, ...]) -> ForeignTensor | None:
        """Return a frozen parameter that the ranks of ZeRO-3 share; None: it is none."""
        parts, end, left, dtype = list[ForeignPart](), 0, math.prod(shape), ""
        for file in (self.files[key] for key in sorted(self.files) if key[0] == mp):
            ref = (file.state.get("frozen_param_fragments") or {}).get(name)
            if not isinstance(ref, TensorRef) or ref.size == shape:
                return None
            count, dtype = min(ref.count, left - end), ref.dtype
            if count > 0:
                where = f"{file.path}: frozen {name}"
                reader = partial(flat_range, file, ref, 0, count)
                parts.append(ForeignPart(offsets=(end,), sizes=(count,), where=where, read=reader))
                end += count
        return ForeignTensor(
            path=("model", name), dtype=dtype, shape=shape, parts=tuple(parts), grid=(left,)
        )

    def get(self, name: str, default: Any = None, mp: int = 0) -> Any:
        """Return an entry of a model file."""
        state = self.of(mp).state
        return state.get(name, default) if isinstance(state, Mapping) else default

    @property
    def tensor_size(self) -> int:
        """Number of tensor-parallel ranks; raises `ForeignError` if files are missing."""
        degrees = self.get("checkpoint_parallel_dimensions") or {}
        due = max(int(self.get("mp_world_size") or 1), 1)
        stages = max(int(degrees.get("pp_degree") or 1), 1)
        size = int(degrees.get("tp_degree") or 0) or max(due // stages, 1)
        if len(self.ranks) not in (size * stages, due * stages, due):
            raise ForeignError(
                f"{self.folder}: model files of {len(self.ranks)} ranks, not of "
                f"{max(size * stages, due)}: copy the files of all ranks"
            )
        return min(size, len(self.ranks))

    def shapes(self, mp: int) -> list[dict[str, tuple[int, ...]]]:
        """Return the parameters' shapes by optimizer group; raises `ForeignError`."""
        found = self.get("param_shapes", mp=mp)
        groups = [found] if isinstance(found, Mapping) else found
        if not isinstance(groups, Sequence) or not all(isinstance(one, Mapping) for one in groups):
            raise ForeignError(
                f"{self.of(mp).path}: param_shapes is missing: it was saved without ZeRO; save "
                "with zero_optimization.stage from 1 on, or export the model's state_dict"
            )
        return [{name: tuple(size) for name, size in group.items()} for group in groups]

    def version(self) -> float | None:
        """Return the version of universal metadata; None: there are none. Raises `ForeignError`."""
        info = self.get(INFO)
        if not isinstance(info, Mapping):
            return None
        found = info.get(VERSION, 0.0)
        if found not in KNOWN_VERSIONS:
            raise ForeignError(
                f"{self.of(0).path}: {VERSION} is {found!r}; {', '.join(map(str, KNOWN_VERSIONS))} "
                "are read: convert it with ds_to_universal of an older DeepSpeed, or update "
                "Holdfast"
            )
        return float(found)

    def refuse_mixed_up(self) -> None:
        """Refuse files in which DeepSpeed gave the elements of a parameter another one's name.

        With `round_robin_gradients` its flat tensors have another order than `param_slice_mappings`
        says, which its own converter goes by too. Raises `ForeignError`.
        """
        config = self.get("ds_config")
        zero = config.get("zero_optimization") if isinstance(config, Mapping) else None
        settings: Mapping[str, Any] = zero if isinstance(zero, Mapping) else {}
        is_cut = settings.get("stage") in (1, 2) and int(self.get("dp_world_size") or 1) > 1
        if is_cut and settings.get("round_robin_gradients"):
            raise ForeignError(
                f"{self.of(0).path}: round_robin_gradients is on, and with it DeepSpeed's files "
                "mix up the parameters: load it with DeepSpeed in the world that saved, and save "
                "with holdfast.integrations.deepspeed"
            )

    def values(self) -> dict[Path, Any]:
        """Return the engine's state beside model and optimizer."""
        return {
            ("deepspeed", name): value
            for name, value in self._own()
            if value is not None and plain(value)
        }

    def notes(self) -> tuple[str, ...]:
        """Return a note on what of the engine's values is no plain data."""
        odd = sorted(name for name, value in self._own() if not plain(value))
        return (f"left out, no plain data: {', '.join(odd)}",) if odd else ()

    def _own(self) -> list[tuple[str, Any]]:
        state = self.of(0).state.items()
        return [(str(name), value) for name, value in state if name not in _STRUCTURE]

    def aliases(self, tensors: Iterable[ForeignTensor]) -> list[ForeignTensor]:
        """Return tied parameters under their further names."""
        found = {tensor.path: tensor for tensor in tensors}
        return [
            replace(found["model", name], path=("model", alias))
            for mp in self.ranks[:: self.tensor_size]
            for alias, name in self.tied(mp).items()
            if ("model", name) in found and ("model", alias) not in found
        ]

    def buffers(self) -> list[ForeignTensor]:
        """Return the modules' buffers, of the first tensor-parallel rank."""
        return [
            of_ref(self.of(mp), ("model", name), module[name])
            for mp in self.ranks[:: self.tensor_size]
            for module in (self.module(mp),)
            for name in self.get("buffer_names", mp=mp) or ()
            if name in module
        ]


def flat_range(file: TorchFile, ref: TensorRef, begin: int, count: int) -> torch.Tensor:
    """Return a range of a flat tensor."""
    return file.tensor(TensorRef(ref.key, ref.dtype, ref.at + begin, (count,), (1,)))


def scalar(file: TorchFile, path: Path, value: Any) -> Iterator[ForeignTensor]:
    """Yield a step count as torch keeps it; nothing if it is no number."""
    import torch

    if isinstance(value, TensorRef):
        yield whole(path, value.dtype, value.size, file.path, partial(file.tensor, value))
    elif isinstance(value, int | float):
        yield whole(path, "float32", (), file.path, torch.tensor(float(value)).clone)


def group_values(groups: Any, where: str) -> dict[Path, Any]:
    """Return the settings of parameter groups under torch's names; raises `ForeignError`."""
    if not isinstance(groups, list) or not all(isinstance(one, Mapping) for one in groups):
        raise ForeignError(f"{where}: param_groups is no list of settings: copy the file again")
    return {
        ("optimizer", "param_groups", number, name): value
        for number, group in enumerate(groups)
        for name, value in group.items()
        if name != "params" and plain(value)
    }
