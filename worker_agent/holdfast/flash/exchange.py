"""`python -m holdfast.flash.exchange`: committed steps to and from files of others.

Belongs here: one file that `torch.load` reads, out of a step; a step out of such a file or of a
checkpoint that torch.distributed.checkpoint wrote. All of it passes through this process's memory.
`holdfast checkpoint export|import` calls it in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path as File
from typing import Any, Final

from holdfast.flash.arena import BYTES_ROOM, Arena, geometry_of, in_memory
from holdfast.flash.commit import Attempt, CommitError, commit, open_attempt, unique, write_shard
from holdfast.flash.contents import Contents
from holdfast.flash.decide.slots import Version
from holdfast.flash.disk import PosixDisk
from holdfast.flash.manifest import MANIFEST_NAME, METADATA_NAME, ManifestError, Shard, hash_items
from holdfast.flash.planning import Place, Planner
from holdfast.flash.saving import RoomNeeded, Saver
from holdfast.flash.state import Leaves, StateError, TensorLeaf, ValueLeaf
from holdfast.flash.table import Path, encode

BAD_INPUT: Final = 2
_PART: Final = re.compile(r"model|optimizer|extra|rank_\d+")
"""What a training state consists of, by the first key."""
_DEEP: Final = len(("state", "parameter", "entry"))


class ExchangeError(Exception):
    """What was given cannot be taken; the text says why. Nothing was written."""


def export(step: str, file: str, *, model: bool) -> int:
    """Write a committed step into a new file that `torch.load` reads; return its bytes.

    model: only the model's weights and buffers, by their names in it.
    Raises `ExchangeError`, `ManifestError`, `StateError`, OSError.
    """
    import torch
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    target = File(file)
    if target.exists() or not target.parent.is_dir():
        why = "is there already" if target.exists() else "is in no directory"
        raise ExchangeError(f"{file} {why}: name a new file in a directory that exists")
    found = Contents(step)
    names = [n for n in (*found.forms, *found.values) if not model or found.paths[n][0] == "model"]
    if not names:
        raise ExchangeError(f"{step} holds no model")
    flat = {n: found.tensor(n) if n in found.forms else found.value(n) for n in names}
    state = unflatten_state_dict(flat, {name: found.paths[name] for name in names})
    private = target.with_name(f".{target.name}.{unique()}")
    try:
        with private.open("xb") as stream:
            torch.save(state["model"] if model else state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        PosixDisk().rename_new(str(private), str(target))  # nor is what came meanwhile replaced
    except BaseException:
        private.unlink(missing_ok=True)
        raise
    return target.stat().st_size


def take_in(source: str, root: str, step: int) -> str:
    """Make a committed step of a foreign checkpoint, in a directory without any; return its path.

    source: a file that `torch.save` wrote, with a model's state_dict or with "model" and others;
        or a directory that torch.distributed.checkpoint wrote. To read its `.metadata` is to run
        what it says: take it only from where you would take a program from.
    Raises `ExchangeError`, `CommitError`, `StateError`, OSError.
    """
    if step < 1:
        raise ExchangeError(f"--step={step}: steps count from 1; load() returns it")
    if any(File(root).glob("step_*")):
        raise ExchangeError(f"{root} has checkpoints: a script would start from the newest of all")
    state = _of_directory(source) if File(source).is_dir() else _of_file(source)
    if foreign := sorted(str(part) for part in state if not _PART.fullmatch(str(part))):
        raise ExchangeError(
            f"{source} has {', '.join(map(repr, foreign[:10]))} beside model, optimizer and "
            "extra: the parts of a training state, as holdfast checkpoint inspect shows them"
        )
    leaves = _leaves(state)
    File(root).mkdir(parents=True, exist_ok=True)
    return _write(PosixDisk(), str(File(root).absolute()), Version(0, step), leaves)


def _of_file(source: str) -> Mapping[str, Any]:
    import pickle

    import torch

    try:
        state = torch.load(source, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        first = str(error).splitlines()[0]
        raise ExchangeError(f"{source} is no file of plain tensors: {first}") from error
    if not isinstance(state, Mapping) or not state:
        raise ExchangeError(f"{source} holds {type(state).__name__}, not a state_dict")
    return state if isinstance(state.get("model"), Mapping) else {"model": state}


def _of_directory(source: str) -> Mapping[str, Any]:
    import pickle

    from torch.distributed.checkpoint.api import CheckpointException

    folder = File(source)
    if (folder / MANIFEST_NAME).exists():
        raise ExchangeError(f"{source} is Holdfast's own: its Checkpointer, and dcp.load, read it")
    if not (folder / METADATA_NAME).exists():
        raise ExchangeError(
            f"{source} has no {METADATA_NAME}: name a directory that torch.distributed.checkpoint "
            "wrote, or a file that torch.save wrote"
        )
    try:
        return _read_directory(source)
    except CheckpointException as error:
        reasons = "; ".join(str(one[0]) for one in error.failures.values())
        raise ExchangeError(f"{source} cannot be read: {reasons}") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, AttributeError, ValueError) as error:
        raise ExchangeError(f"{source} cannot be read: {error}") from error


def _read_directory(source: str) -> Mapping[str, Any]:
    import torch
    from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, load
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader, values = FileSystemReader(source), dict[str, Any]()

    class Plain(DefaultLoadPlanner):
        """Loads values as data."""

        def load_bytes(self, read_item: Any, value: Any) -> None:
            values[read_item.dest_index.fqn] = torch.load(value, weights_only=True)

    metadata = reader.read_metadata()
    flat: dict[str, Any] = {
        name: torch.empty(one.size, dtype=one.properties.dtype)
        if isinstance(one, TensorStorageMetadata)
        else None
        for name, one in metadata.state_dict_metadata.items()
    }
    load(flat, storage_reader=reader, planner=Plain(flatten_state_dict=False), no_dist=True)
    whole = {**flat, **values}
    nested: Mapping[str, Any] = unflatten_state_dict(whole, metadata.planner_data or {})
    return nested


def _leaves(state: Mapping[str, Any]) -> Leaves:
    """Return a nested state as `state.collect` would."""
    import torch

    leaves = Leaves()
    for path, value in _walk((), state):
        name = ".".join(map(str, path))
        if path[0] in ("model", "optimizer") and isinstance(value, torch.Tensor):
            leaves.tensors.append(TensorLeaf(name, path, {name: value}, name, value))
        else:
            leaves.values.append(ValueLeaf(name, path, _reader(value)))
    return leaves


def _walk(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield what is one tensor or value to a Checkpointer, with its keys."""
    if _is_leaf(path) or not isinstance(value, Mapping | list):
        yield path, value
        return
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, below in pairs:
        yield from _walk((*path, key), below)


def _is_leaf(path: Path) -> bool:
    """Tell what is not looked into: one extra, one entry of an optimizer, a module's own state."""
    match path:
        case ():
            return False
        case ("model", *names):
            return bool(names) and str(names[-1]).endswith("_extra_state")
        case ("optimizer", *keys):
            # Of one optimizer ("state", parameter, entry); of several their name stands before.
            return len(keys) >= _DEEP and keys[-_DEEP] in ("state", "param_groups")
        case _:
            return len(path) == len(("extra", "name"))


def _reader(value: Any) -> Callable[[], Any]:
    return lambda: value


def _write(disk: PosixDisk, root: str, version: Version, leaves: Leaves) -> str:
    """Commit a step as a world of one rank would."""
    room = BYTES_ROOM
    while True:
        plan = Planner(Place(rank=0, world=1, local_rank=0, local_world=1)).plan(leaves, room)
        body = encode(plan.table)
        fd = in_memory(body, geometry_of(plan.table, len(body), 1, room))
        arena = Arena(fd)
        os.close(fd)
        saver, slot = Saver(plan, leaves, arena), arena.slots[0]
        try:
            bodies = saver.values()
        except RoomNeeded as error:
            room = 2 * error.size
            continue
        break
    saver.begin(slot, version, bodies)
    saver.start(slot)
    saver.copy(slot, trained=False, threads=1)
    lengths = tuple(map(len, bodies))
    hashes = hash_items(slot.image, plan.table.spans(lengths))
    shard = Shard(table=plan.table, lengths=lengths, hashes=hashes)
    attempt = Attempt(version=version, number=unique())
    write_shard(disk, open_attempt(disk, root, attempt), shard, slot.image)
    return commit(disk, root, attempt, [shard])


def main(arguments: Sequence[str] | None = None) -> int:
    """Do it, say what was done, and return the exit code: 0 done, 2 not."""
    parser = argparse.ArgumentParser(prog="holdfast checkpoint", description=__doc__)
    tools = parser.add_subparsers(dest="tool", required=True)
    out = tools.add_parser("export")
    out.add_argument("source")
    out.add_argument("target")
    out.add_argument("--model", action="store_true")
    into = tools.add_parser("import")
    into.add_argument("source")
    into.add_argument("target")
    into.add_argument("--step", type=int, required=True)
    options = parser.parse_args(arguments)
    try:
        if options.tool == "export":
            size = export(options.source, options.target, model=options.model)
            sys.stdout.write(f"{options.target}: {size} bytes, for torch.load\n")
        else:
            path = take_in(options.source, options.target, options.step)
            sys.stdout.write(f"{path}: load() takes it, with partial=True if parts are missing\n")
    except (ExchangeError, CommitError, ManifestError, StateError, OSError) as error:
        sys.stderr.write(f"holdfast: {error}\n")
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
