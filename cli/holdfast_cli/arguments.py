"""Arguments and options that several commands share, with their shell completion."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from holdfast_cli.home import known_jobs

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, JSON for programs (a number that is not finite is null).",
)


def complete_job(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the jobs of this machine that begin so."""
    return [name for name in known_jobs(os.environ) if name.startswith(incomplete)]


def job_argument(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the argument JOB."""
    return click.argument("job", shell_complete=complete_job)(command)
