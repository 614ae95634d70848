"""`python -m holdfast_master.replay.inspect`: what `holdfast journal` and `holdfast replay` run.

Exit codes: 0 intact, or decided alike; 2 there is no journal, or this release cannot read it;
6 damaged, nothing lost; 7 facts lost; 8 today's code decides differently.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from holdfast_master.journal.segments import JournalError
from holdfast_master.replay.inspect import replay, show, verify

EXIT_USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run one tool; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except (JournalError, FileNotFoundError) as error:
        sys.stderr.write(f"holdfast: {error}\n")
        return EXIT_USAGE
    except BrokenPipeError:
        # The reader (head, less) has enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="holdfast_master.replay.inspect")
    tools = parser.add_subparsers(required=True)
    shown = tools.add_parser("show")
    shown.add_argument("directory", type=Path)
    shown.add_argument("--kind", action="append", default=[])
    shown.add_argument("--round", type=int)
    shown.add_argument("--incident", default="")
    shown.add_argument("--from", dest="first", type=int, default=0)
    shown.add_argument("--to", dest="last", type=int, default=0)
    shown.add_argument("--json", action="store_true")
    shown.set_defaults(run=_show)
    verified = tools.add_parser("verify")
    verified.add_argument("directory", type=Path)
    verified.add_argument("--json", action="store_true")
    verified.set_defaults(run=_verify)
    replayed = tools.add_parser("replay")
    replayed.add_argument("directory", type=Path)
    replayed.add_argument("--incident", default="")
    replayed.add_argument("--from", dest="first", type=int, default=0)
    replayed.add_argument("--step", action="store_true")
    replayed.set_defaults(run=_replay)
    return parser


def _show(options: argparse.Namespace) -> int:
    wanted = show.Filter(
        kinds=tuple(options.kind),
        round=options.round,
        incident=options.incident,
        first=options.first,
        last=options.last,
    )
    found = show.everything(options.directory)
    _print(show.show(found, wanted, as_json=options.json))
    for note in found.notes:
        sys.stderr.write(f"holdfast: {note}\n")
    return 0


def _verify(options: argparse.Namespace) -> int:
    report = verify.verify(options.directory)
    _print(verify.lines(report, as_json=options.json))
    return int(report.verdict)


def _replay(options: argparse.Namespace) -> int:
    span = replay.span_of(options.directory, options.incident, options.first)
    player = replay.Player(options.directory, span, lambda line: _print([line]))
    return player.play(_wait_for_key if options.step else lambda: None)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _wait_for_key() -> None:
    with contextlib.suppress(EOFError):
        input("-- Enter: next, Ctrl-C: end -- ")


if __name__ == "__main__":
    sys.exit(main())
