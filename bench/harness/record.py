"""One benchmark: its options, its results file, and the page that is made of that file.

A results file holds JSON lines: first what is known of the run, then each result as soon as it is
known. What is measured, and what the page says, belong to the benchmark.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import ROOT
from bench.harness import machine, sandbox
from bench.harness.launch import WorldError

DOCS = ROOT / "docs" / "benchmarks"
Line = Mapping[str, Any]
"""A result of a bench that has no type of its own for one."""
Note = Callable[..., None]
"""`note(result)` adds a result to the file and prints it; `note(result, said)` prints `said`,
if it is not empty."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """The name of one benchmark, which its files carry, and the makers of its results and page."""

    name: str
    """Of the package in bench/, of the results file and of the page."""
    page: Callable[[Mapping[str, Any], Sequence[Any]], str]
    """Makes the page of what is known of a run, and of its results."""
    result: Callable[..., Any] = dict
    """Makes a result of the fields of its line."""
    module: str = ""
    """The name in bench/ where it is another one."""

    def parser(self, description: str | None) -> argparse.ArgumentParser:
        """Return a parser with the options of every benchmark."""
        parser = argparse.ArgumentParser(
            prog=f"python -m bench.{self.module or self.name}", description=description
        )
        parser.add_argument("--out", type=Path, default=ROOT / f"build/bench/{self.name}.jsonl")
        parser.add_argument(
            "--publish",
            action="store_true",
            help=f"also write {self.name}.jsonl and {self.name}.md in docs/",
        )
        parser.add_argument(
            "--page-of", type=Path, help="print the page of a results file and leave"
        )
        return parser

    def main(
        self, options: argparse.Namespace, measure: Callable[[argparse.Namespace], None]
    ) -> int:
        """Measure, show the page, and publish it if that is wanted; return the exit code.

        With `--page-of` nothing is measured.
        """
        if options.page_of:
            sys.stdout.write(self.page_of(options.page_of.read_text().splitlines()))
            return 0
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # also tidies up
        try:
            measure(options)
        except sandbox.SandboxError as error:
            print(f"bench.{self.name}: {error}", file=sys.stderr)
            return 2
        except WorldError as error:
            print(f"bench.{self.name}: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            said = f"bench.{self.name}: interrupted; the results so far: {options.out}"
            print(said, file=sys.stderr)
            return 130
        text = options.out.read_text()
        page = self.page_of(text.splitlines())
        print(page)
        if options.publish:
            DOCS.mkdir(parents=True, exist_ok=True)
            (DOCS / f"{self.name}.jsonl").write_text(text)
            (DOCS / f"{self.name}.md").write_text(page)
        return 0

    def read(self, lines: Iterable[str]) -> tuple[dict[str, Any], list[Any]]:
        """Read a results file: the facts about the run (its first line), and the results."""
        about, *rest = [json.loads(line) for line in lines if line.strip()]
        return about["about"], [self.result(**fields) for fields in rest]

    def page_of(self, lines: Iterable[str]) -> str:
        """Return the page of a results file's lines."""
        return self.page(*self.read(lines))


@contextlib.contextmanager
def recording(
    out: Path, left_out: Any = (), *, plan: str = "record", **facts: Any
) -> Iterator[Note]:
    """Begin a results file; yield what adds a result to it at once, and prints it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w") as file:

        def note(result: Any, said: str | None = None) -> None:
            line = result if isinstance(result, str) else to_line(result)
            file.write(line + "\n")
            file.flush()
            if said != "":
                print(line if said is None else said, flush=True)

        file.write(json.dumps({"about": machine.about(plan, left_out) | facts}) + "\n")
        yield note


def to_line(result: Any) -> str:
    """Write a result as one line of JSON, to four digits behind the point; a dict as it is."""
    if isinstance(result, dict):
        return json.dumps(result)
    return json.dumps(_rounded(dataclasses.asdict(result)))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
