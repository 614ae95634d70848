"""`python -m holdfast.flash.tools.convert`: committed steps to and from other formats.

Belongs here: a step to one file that `torch.load` reads; such a file, or a checkpoint that
torch.distributed.checkpoint wrote, to a step. All of it passes through this process's memory.
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

from holdfast.flash.ids import unique
from holdfast.flash.memory.arena import BYTES_ROOM, Arena, geometry_of, in_memory
from holdfast.flash.memory.hashes import hash_items
from holdfast.flash.memory.shard_table import Path, encode
from holdfast.flash.memory.slots import Version
from holdfast.flash.storage.commit import Attempt, CommitError, commit, open_attempt, write_shard
from holdfast.flash.storage.filesystem import PosixDisk
from holdfast.flash.storage.manifest import MANIFEST_NAME, METADATA_NAME, ManifestError, Shard
from holdfast.flash.tools.contents import Contents
from holdfast.flash.trainer.copier import RoomNeeded, Saver
from holdfast.flash.trainer.leaves import (
    OWN_BUFFERS,
    Leaves,
    StateError,
    TensorLeaf,
    ValueLeaf,
)
from holdfast.flash.trainer.planner import Planner, RankPosition

BAD_INPUT: Final = 2
_PART: Final = re.compile(rf"model|optimizer|extra|{OWN_BUFFERS}|rank_\d+")
"""First keys of a training state."""
_DEEP: Final = len(("state", "parameter", "entry"))


class ExchangeError(Exception):
    """Refusal to convert; the text says why. Nothing was written."""


def export(step: str, file: str, *, model: bool) -> int:
    """Write a committed step into one new file that `torch.load(weights_only=True)` reads.

    Tensors are whole, on the CPU, of the dtype that was saved.

    Args:
        step: Directory of the step.
        file: The file to write, in a directory that exists; it must not exist itself.
        model: Write the model's weights and buffers only, by their names in it; else a dict with
            "model", "optimizer", "extra", "rank_<n>" and, of buffers that each rank has for
            itself, "buffers".

    Returns:
        Size of the file in bytes.

    Raises:
        ExchangeError: `file` exists or has no directory, or the step holds no model.
        ManifestError: the step is damaged or incomplete.
        StateError: a value of it cannot be read as plain data.
        OSError: the file cannot be written; nothing is left of it.
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
        PosixDisk().rename_new(str(private), str(target))  # fails if a file appeared meanwhile
    except BaseException:
        private.unlink(missing_ok=True)
        raise
    return target.stat().st_size


def take_in(source: str, root: str, step: int) -> str:
    """Make a committed step from a foreign checkpoint, in a directory without steps.

    Args:
        source: A file that `torch.save` wrote, with a model's state_dict or with "model" and other
            parts; or a directory that torch.distributed.checkpoint wrote. Reading its `.metadata`
            runs code from it: only use a directory that you would run a program from.
        root: Directory of checkpoints; it is made, and must hold no step.
        step: Number of the step, from 1 on; `load()` returns it.

    Returns:
        Path of the committed step.

    Raises:
        ExchangeError: an argument cannot be taken; nothing was written.
        StateError: a value of the state is no plain data.
        CommitError: the step cannot be committed.
        OSError: a file cannot be read or written.
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
    """Return a nested state in the form of `state_dict.collect`."""
    import torch

    leaves = Leaves()
    for path, value in _walk((), state):
        name = ".".join(map(str, path))
        if path[0] in ("model", "optimizer", OWN_BUFFERS) and isinstance(value, torch.Tensor):
            leaves.tensors.append(TensorLeaf(name, path, {name: value}, name, value))
        else:
            leaves.values.append(ValueLeaf(name, path, _reader(value)))
    return leaves


def _walk(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield each tensor or value as a Checkpointer would save it, with its keys."""
    if _is_leaf(path) or not isinstance(value, Mapping | list):
        yield path, value
        return
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, below in pairs:
        yield from _walk((*path, key), below)


def _is_leaf(path: Path) -> bool:
    """Tell whether a path is saved as one: an extra, an optimizer's entry, a module's own state."""
    match path:
        case ():
            return False
        case ("model", *names):
            return bool(names) and str(names[-1]).endswith("_extra_state")
        case ("buffers", *_):
            return False
        case ("optimizer", *keys):
            # One optimizer: ("state", parameter, entry). Several: their name stands before.
            return len(keys) >= _DEEP and keys[-_DEEP] in ("state", "param_groups")
        case _:
            return len(path) == len(("extra", "name"))


def _reader(value: Any) -> Callable[[], Any]:
    return lambda: value


def _write(disk: PosixDisk, root: str, version: Version, leaves: Leaves) -> str:
    """Commit a step as a world of one rank would."""
    room = BYTES_ROOM
    while True:
        plan = Planner(RankPosition(rank=0, world=1, local_rank=0, local_world=1)).plan(
            leaves, room
        )
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
    """Convert, print the outcome, and return the exit code: 0 done, 2 not."""
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
