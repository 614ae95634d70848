"""The report on a checkpoint of another framework or library, for people and as JSON.

Belongs here: framework, layout, parallel sizes and tensors of what `formats` reads; a comparison of
all its checksums. Does not belong here: steps of Holdfast (`inspect`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from holdfast.flash.storage.manifest import ManifestError
from holdfast.flash.tools.formats.conversion import format_of, open_checkpoint
from holdfast.flash.tools.formats.foreign import Checkpoint, ForeignError
from holdfast.flash.tools.formats.pickles import Pickles
from holdfast.flash.tools.formats.progress import Bar
from holdfast.flash.tools.formats.training_state import Keys
from holdfast.flash.tools.printing import put, size_text, table_text
from holdfast.flash.trainer.leaves import StateError

DAMAGED: Final = 7
BAD_INPUT: Final = 2


def is_foreign(place: str) -> bool:
    """Tell whether a path has a checkpoint of another framework."""
    try:
        return Path(place).exists() and format_of(place).format not in ("", "holdfast")
    except OSError:
        return False


def below(place: str) -> str:
    """Return the names of directories in a directory that have a foreign checkpoint."""
    try:
        return ", ".join(format_of(place).below[:5])
    except OSError:
        return ""


def report(place: str, keys: Keys, *, deep: bool, as_json: bool) -> int:
    """Print what a foreign checkpoint is; return 0, 7 if it is damaged, 2 if it is not read.

    deep: read all of it, and compare its checksums.
    """
    try:
        with Pickles() as pickles:
            found = open_checkpoint(place, pickles, keys=keys)
            if deep:
                _read_all(found)
    except (ForeignError, ManifestError, StateError) as error:
        sys.stderr.write(f"holdfast: {error}\n")
        return DAMAGED if deep else BAD_INPUT
    except (OSError, ImportError) as error:
        sys.stderr.write(f"holdfast: {place}: {error}\n")
        return BAD_INPUT
    text = json.dumps([facts(found)], indent=2) if as_json else _text(found, deep=deep)
    return put([text + "\n"], 0)


def _read_all(found: Checkpoint) -> None:
    with Bar(found.bytes) as bar:
        for tensor in found.tensors:
            tensor.load()
            bar(tensor.bytes)


def facts(found: Checkpoint) -> dict[str, Any]:
    """Return the report as JSON values."""
    return {
        "path": found.place,
        "format": found.format,
        "framework": found.framework,
        "layout": found.layout,
        "parallel": dict(found.sizes),
        "step": found.step,
        "tensors": len(found.tensors),
        "values": len(found.values),
        "bytes": found.bytes,
        "notes": list(found.notes),
        "items": [
            {"name": one.name, "dtype": one.dtype, "shape": one.shape, "bytes": one.bytes}
            for one in found.tensors
        ],
    }


def _text(found: Checkpoint, *, deep: bool) -> str:
    sizes = "".join(f", {name} parallel {size}" for name, size in found.sizes.items())
    step = f", step {found.step}" if found.step is not None else ""
    head = (
        f"{found.place}: {found.framework}, {found.layout}{sizes}{step}: {len(found.tensors)} "
        f"tensors, {len(found.values)} other values, {size_text(found.bytes)}"
    )
    lines = [head, *(f"note: {note}" for note in found.notes)]
    if deep:
        return "\n".join([*lines, "all of it was read, and compared with what checksums it has"])
    rows = [("NAME", "DTYPE", "SHAPE", "SIZE")]
    for one in found.tensors:
        shape = "x".join(map(str, one.shape)) or "scalar"
        rows.append((one.name, one.dtype, shape, size_text(one.bytes)))
    return "\n".join([*lines, table_text(rows)])
