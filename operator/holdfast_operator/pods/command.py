"""The words of a `holdfast-run` command, parsed as the agent would, before anything starts.

torchrun's flags as a table: the parser itself is torch's, which neither the operator nor the
command line imports. A test compares the two. Does not belong here: checks that need the disk
(`preflight` of the runner).
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn

from holdfast_operator.spec.problems import (
    Path,
    Problem,
    ProblemKind,
    nearest,
    show_path,
    show_value,
)
from holdfast_wire.keys import RDZV_BACKEND

AGENT: Final = "holdfast-run"


def _flags(text: str) -> tuple[tuple[str, ...], ...]:
    """Return all names of each flag: torchrun spells a long one with dashes or underscores."""
    named = (flag.split("/") for flag in text.split())
    spelt = ((*names, "--" + names[-1][2:].replace("-", "_")) for names in named)
    return tuple(tuple(dict.fromkeys(names)) for names in spelt)


SWITCHES: Final = (
    *_flags("--standalone -m/--module --no-python --run-path --virtual-local-rank"),
    ("--no-worker-server",),  # the agent's own
)
"""Flags without a value."""
TEXTS: Final = _flags(
    """
    --nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf
    --event-log-handler --role --log-dir -r/--redirects -t/--tee --log-line-prefix-template
    --local-ranks-filter --duplicate-stdout-filters --duplicate-stderr-filters --master-addr
    --local-addr --logs-specs --signals-to-handle
    """
)
NUMBERS: Final = _flags("--max-restarts --node-rank --master-port --shutdown-timeout")
FRACTIONS: Final = _flags("--monitor-interval")
CHOICES: Final = {
    ("--start-method", "--start_method"): ("spawn", "fork", "forkserver"),
    ("--numa-binding", "--numa_binding"): ("node", "socket", "exclusive", "core-complex"),
    ("--print-completion", "--print_completion"): ("bash", "zsh", "tcsh"),
}
_KNOWN: Final = [
    name
    for names in (*SWITCHES, *TEXTS, *NUMBERS, *FRACTIONS, *CHOICES)
    for name in names
    if "_" not in name
]
_LAUNCHER: Final = re.compile(r"holdfast|torchrun|torch\.distributed|launch|accelerate|deepspeed")
"""Part of a word in a command that starts agents through another program."""
_PROCESSES: Final = ("auto", "cpu", "gpu", "xpu")


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Program that the agent is to start."""

    name: str
    """Script, module or program."""
    is_module: bool
    is_program: bool


class CommandError(ValueError):
    """The agent would refuse the command; the text names the wrong word and valid ones."""


def is_agent(words: Sequence[str]) -> bool:
    """Return True if the command is the agent's, by its name or by a path to it."""
    return bool(words) and words[0].rpartition("/")[2] == AGENT


def read_command(words: Sequence[str]) -> Target:
    """Read an agent's command; references such as $(NAME) stand for any value.

    Raises:
        CommandError: A flag, its value or the script is wrong.
    """
    parser = _parser()
    found, unknown = parser.parse_known_args(list(words[1:]))
    if unknown:
        near = nearest(unknown[0].partition("=")[0], _KNOWN)
        remedy = f"did you mean {near}?" if near else f"see `{AGENT} --help`"
        raise CommandError(f"{unknown[0]!r} is not a flag of {AGENT}; {remedy}")
    _check_processes(found.nproc_per_node)
    _check_nodes(found.nnodes)
    if found.max_restarts is not None and found.max_restarts < 0:
        raise CommandError(f"--max-restarts={found.max_restarts} is below 0")
    if found.module and found.no_python:
        raise CommandError("--no-python and --module exclude each other; remove one")
    is_program = found.no_python and not found.run_path
    return Target(found.training_script, found.module, is_program)


def check_command(words: Sequence[str], path: Path) -> Iterator[Problem]:
    """Yield each problem of a main container's command and arguments; `path` of the container."""
    if words and not words[0]:
        yield _wrong((*path, "command", 0), words[0], "is not a program; name one")
    if not is_agent(words):
        return
    try:
        read_command(words)
    except CommandError as error:
        yield _wrong((*path, "command"), None, str(error))


def notice(words: Sequence[str], path: Path) -> Iterator[str]:
    """Say that a main container's words look as if they started no agent, for people."""
    program = words[0].rpartition("/")[2] if words else ""
    if not re.fullmatch(r"python[0-9.]*", program) or any(map(_LAUNCHER.search, words[1:])):
        return
    yield (
        f"{show_path((*path, 'command'))}: {program} starts no agent by itself; unless the script "
        f"does, begin with {AGENT} (or torchrun --rdzv-backend={RDZV_BACKEND})"
    )


def is_open(word: str) -> bool:
    """Return True if the word's value is known only once its pod exists."""
    return "$(" in word


def _parser() -> _Parser:
    parser = _Parser(prog=AGENT, add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    for names in SWITCHES:
        parser.add_argument(*names, action="store_true")
    for names in TEXTS:
        parser.add_argument(*names)
    for names in NUMBERS:
        parser.add_argument(*names, type=_number)
    for names in FRACTIONS:
        parser.add_argument(*names, type=_fraction)
    for names, choices in CHOICES.items():
        parser.add_argument(*names, type=_one_of(choices))
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


class _Parser(argparse.ArgumentParser):
    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Ignore a word that could be short for several flags: it may be the script's."""
        found: list[Any] = super()._get_option_tuples(option_string)
        return found if len(found) < 2 else []

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message instead of ending the process."""
        if message.startswith("the following arguments are required: training_script"):
            message = "names no script to start; add it after the flags"
        raise CommandError(f"{AGENT}: {message}")


def _number(text: str) -> int:
    return 0 if is_open(text) else int(text)


def _fraction(text: str) -> float:
    return 0.0 if is_open(text) else float(text)


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in choices and not is_open(text):
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return check


def _check_processes(text: str | None) -> None:
    if text is None or text in _PROCESSES or is_open(text):
        return
    if not text.isdecimal() or int(text) < 1:
        kinds = ", ".join(_PROCESSES)
        raise CommandError(f"--nproc-per-node={text!r} is no number from 1 and none of {kinds}")


def _check_nodes(text: str | None) -> None:
    if text is None or is_open(text):
        return
    parts = text.split(":")
    numbers = [int(part) for part in parts if part.isdecimal()]
    if len(numbers) != len(parts) or len(parts) > 2 or not 1 <= numbers[0] <= numbers[-1]:
        raise CommandError(f"--nnodes={text!r} is no number from 1 and no MIN:MAX")


def _wrong(path: Path, value: Any, fault: str) -> Problem:
    shown = "" if value is None else show_value(value)
    return Problem(path, ProblemKind.BOUND, fault, value=shown)
