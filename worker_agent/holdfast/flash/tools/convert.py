"""`python -m holdfast.flash.tools.convert`: committed steps to and from other formats.

Belongs here: the command line; a step to one file that `torch.load` reads, which passes through
this process's memory. Does not belong here: the formats (`tools.formats`), which are read and
written one tensor at a time. `holdfast checkpoint export|import|convert` calls it in a process of
its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path as File
from typing import Final

from holdfast.flash.ids import unique
from holdfast.flash.storage.commit import CommitError
from holdfast.flash.storage.filesystem import PosixDisk
from holdfast.flash.storage.manifest import ManifestError
from holdfast.flash.tools.contents import Contents
from holdfast.flash.tools.formats.conversion import convert
from holdfast.flash.tools.formats.foreign import ForeignError
from holdfast.flash.tools.formats.holdfast_step import check_target
from holdfast.flash.trainer.leaves import StateError

BAD_INPUT: Final = 2


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
        ForeignError: `file` exists or has no directory, or the step holds no model.
        ManifestError: the step is damaged or incomplete.
        StateError: a value of it cannot be read as plain data.
        OSError: the file cannot be written; nothing is left of it.
    """
    import torch
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    target = File(file)
    if target.exists() or not target.parent.is_dir():
        why = "is there already" if target.exists() else "is in no directory"
        raise ForeignError(f"{file} {why}: name a new file in a directory that exists")
    found = Contents(step)
    names = [n for n in (*found.forms, *found.values) if not model or found.paths[n][0] == "model"]
    if not names:
        raise ForeignError(f"{step} holds no model")
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
        source: A file or directory of a format that is recognised, such as a file of torch.save or
            a directory of torch.distributed.checkpoint. Nothing in it is run.
        root: Directory of checkpoints; it is made, and must hold no step.
        step: Number of the step, from 1 on; `load()` returns it.

    Returns:
        Path of the committed step.

    Raises:
        ForeignError: an argument cannot be taken; nothing was written.
        StateError: a value of the state is no plain data.
        CommitError: the step cannot be committed.
        OSError: a file cannot be read or written.
    """
    check_target(root, step)
    return convert(source, root, step=step).path


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert, print the outcome, and return the exit code: 0 done, 2 not."""
    options = _parser().parse_args(arguments)
    try:
        sys.stdout.write(_run(options) + "\n")
    except (ForeignError, CommitError, ManifestError, StateError, OSError) as error:
        sys.stderr.write(f"holdfast: {error}\n")
        return BAD_INPUT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="holdfast checkpoint", description=__doc__)
    tools = parser.add_subparsers(dest="tool", required=True)
    out = tools.add_parser("export")
    into = tools.add_parser("import")
    both = tools.add_parser("convert")
    for tool in (out, into, both):
        tool.add_argument("source")
        tool.add_argument("target")
    out.add_argument("--model", action="store_true")
    into.add_argument("--step", type=int, required=True)
    both.add_argument("--to", default="")
    both.add_argument("--step", type=int)
    both.add_argument("--model", action="store_true")
    return parser


def _run(options: argparse.Namespace) -> str:
    """Carry a command out; return what to tell."""
    if options.tool == "export":
        size = export(options.source, options.target, model=options.model)
        return f"{options.target}: {size} bytes, for torch.load"
    if options.tool == "import":
        path = take_in(options.source, options.target, options.step)
        return f"{path}: load() takes it, with partial=True if parts are missing"
    made = convert(
        options.source, options.target, options.to, step=options.step, model=options.model
    )
    lines = [f"{made.path}: written as {options.to or 'holdfast'}"]
    return "\n".join([*lines, *(f"note: {note}" for note in made.notes)])


if __name__ == "__main__":
    sys.exit(main())
