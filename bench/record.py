"""The record of a benchmark: its results file, the page made of it, and the options about both.

A results file holds JSON lines: first what is known of the run, then each result as soon as it is
known. What is measured, how a result reads and what the page says belong to the benchmark.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ROOT = Path(__file__).resolve().parents[1]
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Record:
    """The name of one benchmark, which its files carry, and the maker of its page."""

    name: str
    """Of the package in bench/, of the results file and of the page."""
    page: Callable[[Iterable[str]], str]
    """Makes the page of a results file's lines."""

    def parser(self, description: str | None) -> argparse.ArgumentParser:
        """Return a parser with the options of every recorded benchmark."""
        published = _published(self.name)
        parser = argparse.ArgumentParser(
            prog=f"python -m bench.{self.name}", description=description
        )
        parser.add_argument("--out", type=Path, default=ROOT / f"build/bench/{self.name}.jsonl")
        parser.add_argument(
            "--publish",
            action="store_true",
            help=f"also write {published.with_suffix('.jsonl').name} and {published.name} in docs/",
        )
        parser.add_argument(
            "--page-of", type=Path, help="print the page of a results file and leave"
        )
        return parser

    def make(self, options: argparse.Namespace, measure: Callable[[], None]) -> int:
        """Measure, show the page and publish it if that is wanted; return the exit code."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # also tidies up
        try:
            measure()
        except KeyboardInterrupt:
            said = f"bench.{self.name}: interrupted; the results so far: {options.out}"
            print(said, file=sys.stderr)
            return 130
        text = options.out.read_text()
        page = self.page(text.splitlines())
        print(page)
        if options.publish:
            published = _published(self.name)
            published.parent.mkdir(parents=True, exist_ok=True)
            published.with_suffix(".jsonl").write_text(text)
            published.write_text(page)
        return 0

    def show(self, options: argparse.Namespace) -> int:
        """Print the page of the results file that ``--page-of`` names; return the exit code."""
        sys.stdout.write(self.page(options.page_of.read_text().splitlines()))
        return 0


@contextlib.contextmanager
def written(path: Path, about: Mapping[str, Any]) -> Iterator[Callable[[str], None]]:
    """Begin a results file; yield the function that adds one line to the file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as out:

        def add(line: str) -> None:
            out.write(line + "\n")
            out.flush()

        add(json.dumps({"about": about}))
        yield add


def to_line(result: DataclassInstance) -> str:
    """Write a result as one line of JSON, to four digits behind the point."""
    return json.dumps(_rounded(asdict(result)))


def read(
    lines: Iterable[str], from_line: Callable[[str], Read]
) -> tuple[dict[str, Any], list[Read]]:
    """Read a results file: return the facts about the run (its first line), and the results."""
    about, *rest = [line for line in lines if line.strip()]
    return json.loads(about)["about"], [from_line(line) for line in rest]


def _published(name: str) -> Path:
    return ROOT / "docs" / "benchmarks" / f"{name}.md"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
