"""Tools of the SDK, each in a process of its own: the command line itself has no torch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from holdfast_cli.errors import BadInputError


def call(module: str, *words: str, needs: str = "holdfast") -> None:
    """Run a tool of the SDK; the tool's exit code is the command's."""
    if importlib.util.find_spec(needs) is None:
        raise BadInputError(
            f"this is read by the SDK, which needs {needs}; that is not installed here"
        )
    tool = subprocess.Popen([sys.executable, "-m", f"holdfast.{module}", *words])
    while True:
        try:
            code = tool.wait()
        except KeyboardInterrupt:  # a terminal tells the tool too, which removes what it began
            continue
        sys.exit(code)
