"""`holdfast checkpoint`: a save that a person asks for, and tools that look at what was saved.

The tools belong to the SDK, which alone knows what its files mean; they run in a process of their
own. Here are only their options.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from holdfast_cli.arguments import complete_job, output_option
from holdfast_cli.failures import BadInputError

_TOOLS = "holdfast.flash.inspection"


class JobOrTool(click.Group):
    """`checkpoint JOB` saves; a job that is called as a tool is saved by `checkpoint save JOB`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `save` before what is a job."""
        known = {*ctx.help_option_names, *self.commands}
        return super().parse_args(ctx, args if not args or args[0] in known else ["save", *args])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer jobs beside the tools."""
        jobs = complete_job(ctx, click.Argument(["job"]), incomplete)
        return [*super().shell_complete(ctx, incomplete), *map(CompletionItem, jobs)]


@click.group(cls=JobOrTool, subcommand_metavar="JOB | TOOL PATH")
def checkpoint() -> None:
    """Have all ranks of JOB save after the same step; or look at a checkpoint on storage."""


def _tool(name: str, summary: str) -> Callable[..., Any]:
    @checkpoint.command(name, help=summary)
    @click.argument("path", type=click.Path(file_okay=False))
    @output_option
    def look(path: str, output: str) -> None:
        if importlib.util.find_spec(_TOOLS.partition(".")[0]) is None:
            raise BadInputError(
                "checkpoints are read by the SDK, which is not installed here; install holdfast"
            )
        command = [sys.executable, "-m", _TOOLS, name, path]
        command += ["--json"] if output == "json" else []
        sys.exit(subprocess.run(command, check=False).returncode)

    return look


inspect = _tool(
    "inspect",
    "List the steps in PATH; of a single step every tensor with its type, shape, size and ranks.",
)
verify = _tool(
    "verify",
    "Compare every hash of the steps in PATH. Exit codes: 0 whole, 7 a step is damaged.",
)
