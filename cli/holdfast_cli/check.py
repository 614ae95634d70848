"""`holdfast check`: is this node fit to train?

The measurements belong to the agent and run in a process of their own. Here are the options and the
table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from holdfast_cli.arguments import output_option
from holdfast_cli.errors import CliError
from holdfast_cli.render import columns, duration

_TOOL = "holdfast_agent.health.node_check.main"
_HEADER = ("RESOURCE", "MEASURED", "REFERENCE", "VERDICT", "")
FAULT_FOUND = 1
"""Exit code where a fault was found."""


@click.command()
@click.option(
    "--storage",
    metavar="DIR",
    default="",
    help="Also measure room and speed of this folder, where checkpoints are to go.",
)
@click.option(
    "--reference",
    metavar="FILE",
    default="",
    help="Compare with a healthy node: a file that its `holdfast check -o json` wrote.",
)
@click.option(
    "--ntp",
    metavar="HOST[:PORT]",
    default="",
    help="Also compare the clock with this NTP server.",
)
@output_option
def check(storage: str, reference: str, ntp: str, output: str) -> None:
    """Measure this node in about ten seconds, without a cluster and without root.

    CPUs, memory, /dev/shm, the loopback network, gloo, each CUDA device, and what the options name.
    Exit codes: 0 no fault, 1 a fault was found, 2 bad input. A figure without a reference is shown
    and is no fault.
    """
    words = ("--storage", storage, "--reference", reference, "--ntp", ntp)
    command = [sys.executable, "-P", "-m", _TOOL, *words]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE)
    if done.returncode not in {0, FAULT_FOUND}:
        sys.exit(done.returncode)  # it has said why
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        raise CliError(f"the check itself failed with exit code {done.returncode}") from error
    click.echo(done.stdout.decode().rstrip() if output == "json" else table(answer))
    sys.exit(done.returncode)


def table(answer: Mapping[str, Any]) -> str:
    """Return the answer as an aligned table, with a line about the whole node below it."""
    rows = [tuple(_cells(row)) for row in answer["figures"]]
    text = [columns(_HEADER, rows), ""]
    text += [f"notice: {notice}" for notice in answer["notices"]]
    return "\n".join((*text, _summary(answer)))


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    subject = f" ({row['subject']})" if row["subject"] else ""
    yield row["resource"].replace("_", " ") + subject
    yield _amount(row, row["value"]) or "-"
    yield _amount(row, row["reference"]) or row["limit"] or "-"
    yield row["verdict"]
    yield row["reason"]


def _amount(row: Mapping[str, Any], value: float | None) -> str:
    return "" if value is None else f"{value:.3g} {row['unit']}"


def _summary(answer: Mapping[str, Any]) -> str:
    faults = _named(answer["figures"], ("slow", "faulty"))
    words = f"{answer['node']} ({answer['kind']}), in {duration(answer['seconds'])}: "
    words += f"FAULT: {', '.join(faults)}" if faults else "no fault found"
    unknown = _named(answer["figures"], ("no reference",))
    left = _named(answer["figures"], ("not checked",))
    if unknown:
        words += f"; without a reference: {', '.join(unknown)}"
    if left:
        words += f"; not checked: {', '.join(left)}"
    return words


def _named(rows: Sequence[Mapping[str, Any]], verdicts: Sequence[str]) -> list[str]:
    found = [row["resource"].replace("_", " ") for row in rows if row["verdict"] in verdicts]
    return list(dict.fromkeys(found))
