"""`holdfast journal` and `holdfast replay`: a master's facts and inputs, for people.

The tools belong to the master, which alone knows the format of its files; they run in a process of
their own, as the master itself does. Only their options are here.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import click

from holdfast_cli.arguments import job_argument, output_option
from holdfast_cli.errors import BadInputError
from holdfast_cli.job_directory import find_job
from holdfast_wire import codec

_TOOLS = "holdfast_master.replay.inspect"
_RECORD = codec.proto_of("JournalRecord").DESCRIPTOR
_KINDS = (one.message_type for one in _RECORD.oneofs_by_name["fact"].fields)
FACTS = sorted({kind.name for kind in _KINDS if kind is not None} - {"JobFolded"})
"""Kinds of facts, for the completion and the check of --kind; a folded job is a file's base."""
_incident = click.option("--incident", default="", help="Only records of this incident id.")
_first = click.option(
    "--from", "first", type=click.IntRange(min=0), default=0, help="From this record on."
)


@click.group()
def journal() -> None:
    """Look at the journal of a job's master; changes nothing, needs no running master."""


@journal.command()
@job_argument
@click.option("--kind", multiple=True, type=click.Choice(FACTS), help="Only facts of this kind.")
@click.option("--round", "round_", type=click.IntRange(min=0), help="Only facts of this round.")
@_incident
@_first
@click.option("--to", "last", type=click.IntRange(min=0), default=0, help="Up to this record.")
@output_option
def show(
    job: str,
    kind: tuple[str, ...],
    round_: int | None,
    incident: str,
    first: int,
    last: int,
    output: str,
) -> None:
    """Print the facts of JOB (a name, or a journal's directory) in order, with their reasons."""
    arguments = [f"--kind={name}" for name in kind]
    arguments += [] if round_ is None else [f"--round={round_}"]
    arguments += [f"--incident={incident}", f"--from={first}", f"--to={last}"]
    _run("show", job, [*arguments, *_json(output)])


@journal.command()
@job_argument
@output_option
def verify(job: str, output: str) -> None:
    """Check every file of JOB's journal. Exit codes: 0 intact, 6 damaged, 7 facts are lost."""
    _run("verify", job, _json(output))


@click.command()
@job_argument
@_incident
@_first
@click.option("--step", is_flag=True, help="Wait for Enter after each decision.")
def replay(job: str, incident: str, first: int, step: bool) -> None:
    """Step through the inputs and decisions of JOB's master, and decide again with this release.

    Exit codes: 0 decided alike, 8 decided differently (the first difference is shown).
    """
    arguments = [f"--incident={incident}", f"--from={first}"]
    _run("replay", job, [*arguments, *(["--step"] if step else [])])


def _json(output: str) -> list[str]:
    return ["--json"] if output == "json" else []


def _run(tool: str, job: str, arguments: list[str]) -> None:
    if importlib.util.find_spec(_TOOLS.partition(".")[0]) is None:
        raise BadInputError(
            "the journal is read by the master's package, which is not installed here; "
            "install holdfast[master]"
        )
    command = [sys.executable, "-m", _TOOLS, tool, str(_directory(job)), *arguments]
    sys.exit(subprocess.run(command, check=False).returncode)


def _directory(job: str) -> Path:
    """Return the journal of a job of this machine, or the named directory."""
    path = Path(job)
    if path.is_dir() and (os.sep in job or job in {".", ".."}):
        return path
    return find_job(os.environ, job).journal
