"""Reads a file of `torch.save`: a model's state_dict, or "model" and other parts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.tools.formats.foreign import Checkpoint, ForeignError, ForeignTensor, whole
from holdfast.flash.tools.formats.pickles import Opaque, Pickles, TensorRef, TorchFile, plain
from holdfast.flash.tools.formats.torch_names import is_tensor_place, walk
from holdfast.flash.tools.formats.training_state import (
    BY_NAME,
    Keys,
    arrange,
    left_out,
    step_in,
    without_objects,
)


def read(place: str, pickles: Pickles, keys: Keys = BY_NAME) -> Checkpoint:
    """Return a file's content; raises `ForeignError`, OSError."""
    file = TorchFile(pickles, place)
    if isinstance(file.state, Opaque):
        raise ForeignError(
            f"{place} holds an object, a {file.state.name}: save its state_dict() instead"
        )
    if not isinstance(file.state, Mapping) or not file.state:
        raise ForeignError(f"{place} holds {type(file.state).__name__}, not a state_dict")
    parts, left = arrange(place, file.state, keys, _shape), list[str]()
    if isinstance(extra := parts.state.get("extra"), Mapping):
        parts.state["extra"] = without_objects(extra, "extra", _is_data, left)
    tensors, values = list[ForeignTensor](), dict[Path, Any]()
    for path, value in walk((), parts.state):
        if is_tensor_place(path) and isinstance(value, TensorRef):
            tensors.append(of_ref(file, path, value))
        else:
            values[path] = _value(file, path, value)
    return Checkpoint(
        place=place,
        format="torch",
        framework="torch",
        layout="one file of torch.save",
        tensors=tuple(tensors),
        values=values,
        step=step_in({str(path[1]): one for path, one in values.items() if path[0] == "extra"}),
        notes=(*parts.notes, *left_out(left)),
    )


def _shape(value: Any) -> tuple[int, ...] | None:
    return value.size if isinstance(value, TensorRef) else None


def _is_data(value: Any) -> bool:
    return plain(without_tensors(value))


def of_ref(file: TorchFile, path: Path, ref: TensorRef) -> ForeignTensor:
    """Return a tensor of a file."""
    where = f"{file.path}: {'.'.join(map(str, path))}"
    return whole(path, ref.dtype, ref.size, where, partial(file.tensor, ref))


def _value(file: TorchFile, path: Path, value: Any) -> Any:
    bare = without_tensors(value)
    if not plain(bare):
        raise ForeignError(f"{file.path}: {'.'.join(map(str, path))} has objects that are no data")
    return file.with_tensors(value)


def without_tensors(value: Any) -> Any:
    """Return data with None in the place of its tensors."""
    if isinstance(value, TensorRef):
        return None
    if isinstance(value, Mapping):
        return {key: without_tensors(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_tensors(one) for one in value]
    return value
