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
from holdfast.flash.tools.formats.training_state import add_keys, keys_of
from holdfast.flash.tools.printing import INTERRUPTED, refuse
from holdfast.flash.trainer.leaves import StateError


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
        made = convert(options.source, options.target, step=options.step, keys=keys_of(options))
        return f"{made.path}: load() takes it, with partial=True if parts are missing"
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
