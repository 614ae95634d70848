"""Opens a checkpoint of any known format, and writes it in another one.

Belongs here: which reader and which writer; a target that appears as a whole or not at all. Does
not belong here: the formats themselves, the command line (`tools.convert`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path as File
from typing import Any, Final

from holdfast.flash.ids import unique
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.tools.formats import (
    dcp,
    deepspeed_native,
    deepspeed_universal,
    holdfast_step,
    megatron,
    safetensors,
    torch_checkpointing,
    torch_file,
)
from holdfast.flash.tools.formats.foreign import Checkpoint, ForeignError
from holdfast.flash.tools.formats.pickles import Pickles
from holdfast.flash.tools.formats.recognise import FormatVerdict, recognise
from holdfast.flash.tools.formats.training_state import BY_NAME, Keys
from holdfast.flash.tools.printing import Bar

Progress = Callable[[int], None]
_READERS: Final[dict[str, Callable[[str, Pickles], Checkpoint]]] = {
    "holdfast": lambda place, _: holdfast_step.read(place),
    "deepspeed-universal": deepspeed_universal.read,
    "deepspeed": deepspeed_native.read,
    "torch-checkpointing": torch_checkpointing.read,
    "safetensors": lambda place, _: safetensors.read(place),
}
_OF_SCRIPTS: Final = {"torch": torch_file.read, "dcp": dcp.read}
"""Formats whose first keys the script chooses."""


@dataclass(frozen=True, slots=True)
class Made:
    """The result of a conversion."""

    path: str
    notes: tuple[str, ...]
    """Omissions, and notes for a reader."""


_WRITERS: Final[dict[str, Callable[[Checkpoint, File, Progress], None]]] = {
    "safetensors": safetensors.write,
    "deepspeed-universal": partial(deepspeed_universal.write, version=0.4),
    "deepspeed-universal-0.3": partial(deepspeed_universal.write, version=0.3),
    "torch": torch_file.write,
}
TARGETS: Final = ("holdfast", *_WRITERS)
"""Formats that are written."""


def format_of(place: str) -> FormatVerdict:
    """Return the format of a path, with the reason; raises OSError if there is nothing."""
    path = File(place)
    if path.is_file():
        with path.open("rb") as stream:
            return recognise(place, None, stream.read(16))
    names = sorted(os.listdir(path))  # noqa: PTH208 - raises for what does not exist
    if (path / "zero").is_dir():
        names += [f"zero/{name}" for name in sorted(os.listdir(path / "zero"))]  # noqa: PTH208
    return recognise(place, names, config=_config(path), deeper=_deeper(path, names))


def _config(path: File) -> dict[str, Any] | None:
    """Return the content of `metadata.json`: {} if there is none, None if it is no JSON object."""
    try:
        found = json.loads((path / "metadata.json").read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _deeper(path: File, names: list[str]) -> list[str]:
    """Return directories below that hold something themselves."""
    found = []
    for name in names[:1000]:
        with contextlib.suppress(OSError):
            if "/" not in name and (path / name).is_dir():
                inside = os.listdir(path / name)  # noqa: PTH208
                if recognise(name, inside, config=_config(path / name)).format:
                    found.append(name)
    return found


def open_checkpoint(
    place: str, pickles: Pickles, *, model: bool = False, keys: Keys = BY_NAME
) -> Checkpoint:
    """Return a checkpoint of any known format, without its tensors' bytes.

    model: only the model, as it was saved: of Megatron its weights, not their masters.
    keys: under which a script of torch has saved model and optimizer.

    Raises `ForeignError` if the format is unknown, or a file is missing or damaged; `ManifestError`
    for a damaged step of Holdfast; OSError.
    """
    verdict = format_of(place)
    if not verdict.format:
        raise ForeignError(verdict.reason)
    place = place.rstrip("/") or "/"
    if verdict.format in _OF_SCRIPTS:
        found = _OF_SCRIPTS[verdict.format](place, pickles, keys)
    elif keys != BY_NAME:
        raise ForeignError(
            f"--model KEY and --optimizer KEY are for {' and '.join(_OF_SCRIPTS)}: {verdict.reason}"
        )
    elif verdict.format == "megatron":
        found = megatron.read(place, pickles, model=model)
    else:
        found = _READERS[verdict.format](place, pickles)
    if model:
        kept = tuple(tensor for tensor in found.tensors if tensor.path[0] == "model")
        values = {path: value for path, value in found.values.items() if path[0] == "model"}
        found = replace(found, tensors=kept, values=values)
    if not found.tensors:
        raise ForeignError(f"{place} holds no {'model' if model else 'tensor'}")
    names = [tensor.name for tensor in found.tensors]
    if len(set(names)) != len(names):
        twice = min(name for name in names if names.count(name) > 1)
        raise ForeignError(f"{place}: {twice} is there twice: the files are of two saves")
    return found


def convert(
    source: str,
    target: str,
    to: str = "",
    *,
    step: int | None = None,
    model: bool = False,
    keys: Keys = BY_NAME,
) -> Made:
    """Write a checkpoint in another format; on an error nothing was written.

    target: with "holdfast" a directory of checkpoints without a step, with "torch" a new file, else
    a new directory. to: a name of `TARGETS`; empty: "holdfast". step: None: the one that the source
    tells. model: convert the model only. keys: under which a script of torch has saved its parts.

    Raises `ForeignError` if it cannot be converted exactly, `ManifestError` if a step of Holdfast
    is damaged, `StateError` if a value is no plain data, `CommitError`, OSError.
    """
    to = to or "holdfast"
    if to not in TARGETS:
        raise ForeignError(f"--to={to}: {', '.join(TARGETS)} can be written")
    with Pickles() as pickles:
        if to == "holdfast" == format_of(source).format:
            raise ForeignError(f"{source} is Holdfast's own: name --to {' or '.join(_WRITERS)}")
        found = open_checkpoint(source, pickles, model=model, keys=keys)
        for tensor in found.tensors:
            tensor.check()
        with Bar(found.bytes) as bar:
            if to == "holdfast":
                made = holdfast_step.write(found, target, _step(found, step), bar)
                return Made(made, found.notes)
            writer = partial(torch_file.write, model=model) if to == "torch" else _WRITERS[to]
            _write(target, partial(writer, found), bar, is_file=to == "torch")
            lost = deepspeed_universal.left_out(found) if to.startswith("deepspeed") else ()
            return Made(target, (*found.notes, *lost))


def _step(found: Checkpoint, step: int | None) -> int:
    number = found.step if step is None else step
    if number is None:
        raise ForeignError(f"{found.place} tells no step: name one with --step N")
    return number


def _write(
    target: str, writer: Callable[[File, Progress], None], progress: Progress, *, is_file: bool
) -> None:
    final, what = File(target), "file" if is_file else "directory"
    if final.exists() or not final.parent.is_dir():
        why = "is there already" if final.exists() else "is in no directory"
        raise ForeignError(f"{target} {why}: name a new {what} in a directory that exists")
    private = final.with_name(f".{final.name}.{unique()}")
    try:
        if not is_file:
            private.mkdir()
        writer(private, progress)
        Disk().rename_new(str(private), str(final))  # fails if one appeared meanwhile
    finally:  # whatever ended the work
        if private.is_dir():
            shutil.rmtree(private)
        else:
            private.unlink(missing_ok=True)
    Disk().sync_dir(str(final.parent))
