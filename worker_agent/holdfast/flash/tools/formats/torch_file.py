"""Reads a file of `torch.save`: a model's state_dict, or "model" and other parts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from holdfast.flash.memory.shard_table import Path
from holdfast.flash.tools.formats.foreign import Checkpoint, ForeignError, ForeignTensor, whole
from holdfast.flash.tools.formats.pickles import Pickles, TensorRef, TorchFile, plain
from holdfast.flash.tools.formats.torch_names import foreign_parts, is_tensor_place, walk


def read(place: str, pickles: Pickles) -> Checkpoint:
    """Return a file's content; raises `ForeignError`, OSError."""
    file = TorchFile(pickles, place)
    state = file.state
    if not isinstance(state, Mapping) or not state:
        raise ForeignError(f"{place} holds {type(state).__name__}, not a state_dict")
    if not isinstance(state.get("model"), Mapping):
        state = {"model": state}
    if foreign := foreign_parts(state):
        raise ForeignError(
            f"{place} has {', '.join(map(repr, foreign[:10]))} beside model, optimizer and extra: "
            "the parts of a training state, as holdfast checkpoint inspect shows them"
        )
    tensors, values = list[ForeignTensor](), dict[Path, Any]()
    for path, value in walk((), state):
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
    )


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
