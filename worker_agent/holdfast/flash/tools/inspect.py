"""`python -m holdfast.flash.tools.inspect`: the steps in a directory, and their damages.

Belongs here: the report on a step, or on a checkpoint of another framework or library, for people
and as JSON. Nothing is changed. `holdfast checkpoint inspect|verify` calls it in a process of its
own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.flash.storage.commit import attempts
from holdfast.flash.storage.dcp_metadata import metadata_pickle
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import (
    MANIFEST_NAME,
    METADATA_NAME,
    Manifest,
    ManifestError,
    read_manifest,
    steps,
)
from holdfast.flash.storage.reader import verify
from holdfast.flash.tools.formats.conversion import format_of, open_checkpoint
from holdfast.flash.tools.formats.foreign import Checkpoint, ForeignError
from holdfast.flash.tools.formats.pickles import Pickles
from holdfast.flash.tools.formats.recognise import FormatVerdict
from holdfast.flash.tools.formats.training_state import BY_NAME, Keys, add_keys, keys_of
from holdfast.flash.tools.printing import (
    BAD_INPUT,
    Bar,
    end,
    put,
    refuse,
    shape_text,
    size_text,
    table_text,
)
from holdfast.flash.trainer.leaves import StateError

NOT_WHOLE: Final = 7
_STEP: Final = re.compile(r"step_\d+")


class InspectionError(Exception):
    """There is no step at the path; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One committed step, or the reason why it is not whole."""

    path: str
    manifest: Manifest | None
    wrong: str = ""

    def facts(self, *, items: bool) -> dict[str, Any]:
        """Return the report as JSON values; items: with every tensor and value."""
        if self.manifest is None:
            return {"path": self.path, "wrong": self.wrong}
        shards, version = self.manifest.shards, self.manifest.version
        tables = [shard.table for shard in shards]
        tensors = {item.name for table in tables for item in table.tensors if not item.tail}
        values = {item.name for table in tables for item in table.byte_items if not item.tail}
        found: dict[str, Any] = {
            "path": self.path,
            "step": version.step,
            "lineage": version.lineage,
            "ranks": len(shards),
            "bytes": sum(shard.bytes for shard in shards),
            "tensors": len(tensors),
            "values": len(values),
        }
        return found | ({"items": list(self._items())} if items else {})

    def _items(self) -> list[dict[str, Any]]:
        known: dict[str, dict[str, Any]] = {}
        for shard in self.manifest.shards if self.manifest else ():
            for tensor in (tensor for tensor in shard.table.tensors if not tensor.tail):
                one = known.setdefault(tensor.name, _item(tensor.name, tensor.dtype, tensor.shape))
                one["bytes"] += tensor.size
                one["ranks"] += [] if shard.table.rank in one["ranks"] else [shard.table.rank]
            for value, size in zip(shard.table.byte_items, shard.lengths, strict=True):
                if value.tail:
                    continue  # it was only in memory
                one = known.setdefault(value.name, _item(value.name, "", None))
                one["bytes"] += size
                one["ranks"].append(shard.table.rank)
        return [known[name] for name in sorted(known)]


def _item(name: str, dtype: str, shape: tuple[int, ...] | None) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape, "bytes": 0, "ranks": []}


def look(path: str, how: Callable[[str], Manifest]) -> list[Look]:
    """Return the steps at a path, oldest first; raises `InspectionError` if there is none.

    path: directory of a step, or one of steps.
    how: reads a step's manifest; raises `ManifestError` for a step that is not whole.
    """
    found = []
    for step in _steps_at(path):
        try:
            found.append(Look(path=step, manifest=how(step)))
        except ManifestError as error:
            found.append(Look(path=step, manifest=None, wrong=str(error)))
    return found


def _steps_at(path: str) -> list[str]:
    folder = Path(path)
    if not folder.is_dir():
        if folder.exists():  # a file of a format that is read is not looked for here
            raise InspectionError(format_of(path).reason)
        raise InspectionError(
            f"{path} does not exist: name a step's directory, or the one that holds them"
        )
    path = str(folder)  # without a slash at its end
    if (folder / MANIFEST_NAME).exists():
        return [path]
    if numbers := steps(Disk(), path):
        return [f"{path}/step_{number}" for number in numbers]
    if _STEP.fullmatch(folder.name):
        return [path]
    begun = len(attempts(Disk(), path))
    more = f", only {begun} that were never finished" if begun else ""
    if names := ", ".join(_format(path).below[:5]):
        more += f"; {names} in it has a checkpoint"
    raise InspectionError(f"{path} holds no checkpoint: no step_N directory{more}")


def verified(disk: Disk, path: str) -> Manifest:
    """Return a step's manifest after comparing all of its files with it.

    Raises `ManifestError` if a file is missing, or differs from its hashes.
    """
    manifest, file = verify(disk, path), f"{path}/{METADATA_NAME}"
    written = metadata_pickle((shard.table, shard.lengths) for shard in manifest.shards)
    try:
        found = disk.read(file)
    except OSError as error:
        raise ManifestError(f"{file}: {error}") from error
    if found != written:
        raise ManifestError(
            f"{file} is damaged: torch.distributed.checkpoint reads it, Holdfast loads without it"
        )
    return manifest


def summary(one: Look) -> str:
    """Return one line about a step."""
    facts = one.facts(items=False)
    if one.wrong:
        return f"{one.path}: NOT WHOLE: {one.wrong}"
    return (
        f"{one.path}: step {facts['step']}, saved by {_count(facts['ranks'], 'rank')} in round "
        f"{facts['lineage']}: {_count(facts['tensors'], 'tensor')}, "
        f"{_count(facts['values'], 'other value')}, {size_text(facts['bytes'])}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def table(items: Iterable[Mapping[str, Any]], *more: str) -> str:
    """Return the items of a checkpoint, one per line; more: a further column, of lists."""
    rows = [("NAME", "DTYPE", "SHAPE", "SIZE", *more)]
    for item in items:
        shape = "-" if item["shape"] is None else shape_text(item["shape"])
        lists = (",".join(map(str, item[name.lower()])) for name in more)
        rows.append((item["name"], item["dtype"] or "-", shape, size_text(item["bytes"]), *lists))
    return table_text(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Inspect, print, and return the exit code: 0 whole, 7 a step is not, 2 no step there."""
    parser = argparse.ArgumentParser(prog="holdfast checkpoint", description=__doc__)
    parser.add_argument("tool", choices=["inspect", "verify"])
    parser.add_argument("path")
    parser.add_argument("--json", action="store_true")
    add_keys(parser)
    options = parser.parse_args(arguments)
    disk, deep = Disk(), options.tool == "verify"
    if _format(options.path).format not in ("", "holdfast"):
        return foreign_report(options.path, keys_of(options), deep=deep, as_json=options.json)
    try:
        found = look(options.path, lambda step: (verified if deep else read_manifest)(disk, step))
    except (InspectionError, OSError) as error:
        return refuse(error)
    if keys_of(options) != BY_NAME:
        return refuse(
            f"{options.path} has steps of Holdfast, whose parts have fixed names: leave out "
            "--model and --optimizer"
        )
    text = _as_json(found, deep=deep) if options.json else _as_text(found, deep=deep)
    return put([text], NOT_WHOLE if any(one.wrong for one in found) else 0)


def _as_json(found: Sequence[Look], *, deep: bool) -> str:
    items = not deep and len(found) == 1
    return json.dumps([one.facts(items=items) for one in found], indent=2) + "\n"


def _as_text(found: Sequence[Look], *, deep: bool) -> str:
    whole = ": every hash is right" if deep else ""
    lines = [summary(one) + ("" if one.wrong else whole) for one in found]
    if not deep and len(found) == 1 and not found[0].wrong:
        lines.append(table(found[0].facts(items=True)["items"], "RANKS"))
    return "\n".join(lines) + "\n"


def _format(place: str) -> FormatVerdict:
    """Return the format of a path; none if it cannot be read."""
    try:
        return format_of(place)
    except OSError as error:
        return FormatVerdict("", str(error))


def foreign_report(place: str, keys: Keys, *, deep: bool, as_json: bool) -> int:
    """Print what a foreign checkpoint is; return 0, 7 if it is damaged, 2 if it is not read.

    deep: read all of it, and compare its checksums.
    """
    try:
        with Pickles() as pickles:
            found = open_checkpoint(place, pickles, keys=keys)
            if deep:
                with Bar(found.bytes) as bar:
                    for tensor in found.tensors:
                        tensor.load()
                        bar(tensor.bytes)
    except (ForeignError, ManifestError, StateError) as error:
        return refuse(error, NOT_WHOLE if deep else BAD_INPUT)
    except (OSError, ImportError) as error:
        return refuse(f"{place}: {error}")
    facts = foreign_facts(found)
    text = json.dumps([facts], indent=2) if as_json else _foreign_text(facts, deep=deep)
    return put([text + "\n"], 0)


def foreign_facts(found: Checkpoint) -> dict[str, Any]:
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


def _foreign_text(facts: Mapping[str, Any], *, deep: bool) -> str:
    sizes = "".join(f", {name} parallel {size}" for name, size in facts["parallel"].items())
    step = f", step {facts['step']}" if facts["step"] is not None else ""
    head = (
        f"{facts['path']}: {facts['framework']}, {facts['layout']}{sizes}{step}: "
        f"{facts['tensors']} tensors, {facts['values']} other values, {size_text(facts['bytes'])}"
    )
    read = "all of it was read, and compared with what checksums it has"
    notes = (f"note: {note}" for note in facts["notes"])
    return "\n".join([head, *notes, read if deep else table(facts["items"])])


if __name__ == "__main__":
    end(main)
