"""`python -m holdfast.flash.tools.convert`: committed steps to and from other formats.

Belongs here: the command line. `holdfast checkpoint export|import|convert` calls it in a process of
its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path as File

from holdfast.flash.storage.commit import CommitError
from holdfast.flash.storage.manifest import ManifestError
from holdfast.flash.tools.formats.conversion import convert
from holdfast.flash.tools.formats.foreign import ForeignError
from holdfast.flash.tools.formats.holdfast_step import check_target
from holdfast.flash.tools.formats.training_state import BY_NAME, Keys, add_keys, keys_of
from holdfast.flash.tools.printing import INTERRUPTED, refuse
from holdfast.flash.trainer.leaves import StateError


def take_in(source: str, root: str, step: int, keys: Keys = BY_NAME) -> str:
    """Make a committed step from a foreign checkpoint, in a directory without steps.

    Args:
        source: A file or directory of a format that is recognised, such as a file of torch.save or
            a directory of torch.distributed.checkpoint. Nothing in it is run.
        root: Directory of checkpoints; it is made, and must hold no step.
        step: Number of the step, from 1 on; `load()` returns it.
        keys: Under which a script of torch has saved model and optimizer.

    Returns:
        Path of the committed step.

    Raises:
        ForeignError: an argument cannot be taken; nothing was written.
        StateError: a value of the state is no plain data.
        CommitError: the step cannot be committed.
        OSError: a file cannot be read or written.
    """
    check_target(root, step)
    return convert(source, root, step=step, keys=keys).path


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert, print the outcome, and return the exit code: 0 done, 2 not, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        sys.stdout.write(_run(options) + "\n")
    except (ForeignError, CommitError, ManifestError, StateError, OSError) as error:
        return refuse(error)
    except KeyboardInterrupt:
        return refuse(f"interrupted: {options.target} is whole, or not there", INTERRUPTED)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="holdfast checkpoint", description=__doc__)
    tools = parser.add_subparsers(dest="tool", required=True)
    out, into, both = map(tools.add_parser, ("export", "import", "convert"))
    for tool in (out, into, both):
        tool.add_argument("source")
        tool.add_argument("target")
    into.add_argument("--step", type=int, required=True)
    both.add_argument("--to", default="")
    both.add_argument("--step", type=int)
    for tool in (out, both):
        tool.add_argument("--model-only", action="store_true")
    for tool in (into, both):
        add_keys(tool)
    return parser


def _run(options: argparse.Namespace) -> str:
    """Carry a command out; return what to tell."""
    if options.tool == "export":
        convert(options.source, options.target, "torch", model=options.model_only)
        return f"{options.target}: {File(options.target).stat().st_size} bytes, for torch.load"
    if options.tool == "import":
        path = take_in(options.source, options.target, options.step, keys_of(options))
        return f"{path}: load() takes it, with partial=True if parts are missing"
    made = convert(
        options.source,
        options.target,
        options.to,
        step=options.step,
        model=options.model_only,
        keys=keys_of(options),
    )
    lines = [f"{made.path}: written as {options.to or 'holdfast'}"]
    return "\n".join([*lines, *(f"note: {note}" for note in made.notes)])


if __name__ == "__main__":
    sys.exit(main())
