"""The runbook's points for each alert, as a person on call reads and runs them."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "runbook.md"
_SECTION: Final = re.compile(r"^### (\w+)$", re.MULTILINE)
_POINT: Final = re.compile(r"^- `([^`]+)`\s+prints\s+(.*)", re.DOTALL)
_SPAN: Final = re.compile(r"`([^`]+)`")
_TOOLS: Final = ("holdfast ", "kubectl ", "helm ")


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One command of the page."""

    command: str
    printed: tuple[str, ...]
    """Words that its output has."""

    def filled(self, **values: str) -> Point:
        """Return it with values in the place of words in capitals, such as JOB."""

        def fill(text: str) -> str:
            for name, value in values.items():
                text = re.sub(rf"\b{name}\b", value, text)
            return text

        return Point(fill(self.command), tuple(map(fill, self.printed)))

    @property
    def words(self) -> list[str]:
        """The command's words, as a shell would split it."""
        return shlex.split(self.command)


def alerts_part() -> str:
    """Return the part of the page about alerts."""
    text = PAGE.read_text(encoding="utf-8")
    return text.split("\n## Alerts\n", 1)[1].split("\n## ", 1)[0]


def points() -> dict[str, tuple[Point, ...]]:
    """Return the commands of each alert, in the page's order."""
    parts = _SECTION.split(alerts_part())
    return {name: tuple(_points(text)) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def _points(section: str) -> Iterator[Point]:
    for item in re.split(r"\n(?=- )|\n\n", section):
        found = _POINT.match(item.strip())
        if found:
            sentence = re.split(r"\.(?:\s|$)| \(", found[2], maxsplit=1)[0]
            yield Point(found[1], tuple(_SPAN.findall(sentence)))


def loose_commands() -> list[str]:
    """Return commands in the text that are no points: nothing would run them."""
    run = {one.command for section in points().values() for one in section}
    spans = _SPAN.findall(alerts_part())
    return [one for one in spans if one.startswith(_TOOLS) and " " in one and one not in run]
