"""`python -m holdfast_agent.health.node_check.main`: the tool behind `holdfast check`.

It measures the node that it runs on, judges each figure, and prints JSON. Exit codes: 0 no fault,
1 a fault was found, 2 bad input. The command line shows the JSON as a table.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from holdfast_agent.health.node_check import clock
from holdfast_agent.health.node_check.runner import CheckResult, alone_tasks, run
from holdfast_agent.policies.node_check import FAULTS, JudgedFigure, Reading, judge, limit_words
from holdfast_wire.resources import Resource

FAULT_FOUND = 1
BAD_INPUT = 2
NOBODY_READS = 141
_NO_STORAGE = "give a folder with --storage"
_NO_CLOCK = "a clock needs a reference: name an NTP server with --ntp"


class CheckInputError(Exception):
    """An option is wrong; the text names it, its value and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Figures of a healthy node, from the JSON of an earlier check."""

    kind: str
    figures: Mapping[tuple[Resource, str], float]


NO_REFERENCE = Reference(kind="", figures={})


def check_folder(path: str) -> str:
    """Return the absolute path of the option --storage.

    Raises CheckInputError: it is no folder that this user may write.
    """
    if not path:
        return ""
    if not Path(path).is_dir():
        raise CheckInputError(f"--storage {path!r}: there is no such folder; name one that exists")
    if not os.access(path, os.W_OK | os.X_OK):
        raise CheckInputError(
            f"--storage {path!r}: you may not write there; name a folder that this user may write"
        )
    return str(Path(path).resolve())


def check_server(server: str) -> str:
    """Return the option --ntp; raises CheckInputError if it is no HOST or HOST:PORT."""
    try:
        host, _ = clock.split(server) if server else ("-", 0)
    except ValueError as error:
        raise CheckInputError(f"--ntp {server!r}: {error}; write HOST or HOST:PORT") from error
    if not host:
        raise CheckInputError(f"--ntp {server!r}: there is no host; write HOST or HOST:PORT")
    return server


def read_reference(path: str) -> Reference:
    """Return the figures of the option --reference.

    Raises CheckInputError: the file is not the output of `holdfast check -o json`.
    """
    if not path:
        return NO_REFERENCE
    remedy = "make it on a healthy node with `holdfast check -o json`"
    try:
        plain = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckInputError(f"--reference {path!r} cannot be read: {error}; {remedy}") from error
    rows = plain.get("figures") if isinstance(plain, dict) else None
    if not isinstance(rows, list):
        raise CheckInputError(f"--reference {path!r} has no list `figures`; {remedy}")
    figures = dict[tuple[Resource, str], float]()
    for at, row in enumerate(rows):
        try:
            value = row["value"]
            if value is None or row["verdict"] in FAULTS:
                continue
            figures[Resource(row["resource"]), str(row["subject"])] = _positive(value)
        except (KeyError, TypeError, ValueError) as error:
            text = f"--reference {path!r}: figures[{at}] is {row!r}, which is no figure ({error})"
            raise CheckInputError(f"{text}; {remedy}") from error
    return Reference(kind=str(plain.get("kind", "")), figures=figures)


def _positive(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"value {value!r} is no number")
    if not 0 <= value < math.inf:
        raise ValueError(f"value {value!r} is out of range")
    return float(value)


def to_plain(
    result: CheckResult, reference: Reference, rows: Sequence[JudgedFigure]
) -> dict[str, Any]:
    """Return the whole answer in JSON's types."""
    notices = []
    if reference.kind and reference.kind != result.kind:
        notices.append(f"the reference is of other hardware: {reference.kind}")
    return {
        "node": socket.gethostname(),
        "kind": result.kind,
        "seconds": round(result.seconds, 3),
        "healthy": not any(row.verdict in FAULTS for row in rows),
        "notices": notices,
        "figures": [dataclasses.asdict(row) | {"limit": limit_words(row.resource)} for row in rows],
    }


def _absent(storage: str, ntp: str) -> list[Reading]:
    """Return the figures that were not measured because an option is missing."""
    readings = []
    if not storage:
        readings.append(Reading(resource=Resource.DISK_WRITE, skipped=_NO_STORAGE))
    if not ntp:
        readings.append(Reading(resource=Resource.CLOCK_OFFSET, skipped=_NO_CLOCK))
    return readings


def check(storage: str, reference: str, ntp: str) -> dict[str, Any]:
    """Return the answer for these options; raises CheckInputError before anything is measured."""
    folder, given, server = check_folder(storage), read_reference(reference), check_server(ntp)
    result = run(alone_tasks(storage=folder, ntp=server))
    rows = judge([*result.figures, *_absent(folder, server)], given.figures)
    return to_plain(result, given, rows)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CheckInputError(f"{message}; see `holdfast check --help`")


def main(words: Sequence[str] | None = None) -> int:
    """Check, print, and return the exit code."""
    parser = _Parser(prog="holdfast check", description=__doc__)
    for name in ("--storage", "--reference", "--ntp"):
        parser.add_argument(name, default="")
    try:
        options = parser.parse_args(words)
        answer = check(options.storage, options.reference, options.ntp)
    except CheckInputError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        return BAD_INPUT
    try:
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the interpreter's flush at its end would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    return 0 if answer["healthy"] else FAULT_FOUND


if __name__ == "__main__":
    sys.exit(main())
