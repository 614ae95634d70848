"""`python -m holdfast.flash.tools.inspect`: the steps in a directory, and their damages.

Belongs here: the report on a step, or on a checkpoint of another framework or library, for people
and as JSON. Nothing is changed. `holdfast checkpoint inspect|verify` calls it in a process of its
own.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.flash.memory.shard_table import ByteItem
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


def look(path: str, how: Callable[[str], Manifest], *, items: bool = False) -> list[dict[str, Any]]:
    """Return a report on each step at a path, as JSON values, oldest first.

    path: directory of a step, or one of steps.
    how: reads a step's manifest; raises `ManifestError` for a step that is not whole.
    items: list every tensor and value too, if there is one step.

    Raises `ForeignError` if there is no step.
    """
    found, there = list[dict[str, Any]](), _steps_at(path)
    for step in there:
        try:
            manifest = how(step)
            found.append(_facts(step, manifest))
            if items and len(there) == 1:
                found[0]["items"] = _items(manifest)
        except ManifestError as error:
            found.append({"path": step, "wrong": str(error)})
    return found


def _facts(path: str, manifest: Manifest) -> dict[str, Any]:
    tables = [shard.table for shard in manifest.shards]
    return {
        "path": path,
        "step": manifest.version.step,
        "lineage": manifest.version.lineage,
        "ranks": len(tables),
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "tensors": len({one.name for each in tables for one in each.tensors if not one.tail}),
        "values": len({one.name for each in tables for one in each.byte_items if not one.tail}),
    }


def _items(manifest: Manifest) -> list[dict[str, Any]]:
    known: dict[str, dict[str, Any]] = {}
    for shard in manifest.shards:
        sizes = (*(one.size for one in shard.table.tensors), *shard.lengths)
        for item, size in zip(shard.table.items, sizes, strict=True):
            if item.tail:
                continue  # it was only in memory
            dtype, shape = ("", None) if isinstance(item, ByteItem) else (item.dtype, item.shape)
            blank = {"dtype": dtype, "shape": shape, "bytes": 0, "ranks": list[int]()}
            one = known.setdefault(item.name, {"name": item.name, **blank})
            one["bytes"] += size
            one["ranks"] += [] if shard.table.rank in one["ranks"] else [shard.table.rank]
    return [known[name] for name in sorted(known)]


def _steps_at(path: str) -> list[str]:
    folder = Path(path)
    if not folder.is_dir():
        if folder.exists():  # a file of a format that is read is not looked for here
            raise ForeignError(format_of(path).reason)
        raise ForeignError(
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
    raise ForeignError(f"{path} holds no checkpoint: no step_N directory{more}")


def _verified(disk: Disk, path: str) -> Manifest:
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


def _summary(one: Mapping[str, Any]) -> str:
    if "wrong" in one:
        return f"{one['path']}: NOT WHOLE: {one['wrong']}"
    return (
        f"{one['path']}: step {one['step']}, saved by {_count(one['ranks'], 'rank')} in round "
        f"{one['lineage']}: {_count(one['tensors'], 'tensor')}, "
        f"{_count(one['values'], 'other value')}, {size_text(one['bytes'])}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _table(items: Iterable[Mapping[str, Any]], *more: str) -> str:
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
    read = _verified if deep else read_manifest
    if _format(options.path).format not in ("", "holdfast"):
        return foreign_report(options.path, keys_of(options), deep=deep, as_json=options.json)
    try:
        found = look(options.path, partial(read, disk), items=not deep)
    except (ForeignError, OSError) as error:
        return refuse(error)
    if keys_of(options) != BY_NAME:
        return refuse(
            f"{options.path} has steps of Holdfast, whose parts have fixed names: leave out "
            "--model and --optimizer"
        )
    text = json.dumps(found, indent=2) if options.json else _as_text(found, deep=deep)
    return put([text + "\n"], NOT_WHOLE if any("wrong" in one for one in found) else 0)


def _as_text(found: Sequence[Mapping[str, Any]], *, deep: bool) -> str:
    whole = ": every hash is right" if deep else ""
    lines = [_summary(one) + ("" if "wrong" in one else whole) for one in found]
    lines += [_table(one["items"], "RANKS") for one in found if "items" in one]
    return "\n".join(lines)


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
    return "\n".join([head, *notes, read if deep else _table(facts["items"])])


if __name__ == "__main__":
    end(main)
