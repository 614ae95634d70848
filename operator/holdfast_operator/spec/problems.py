"""Problems of a job file: one value per fault, with field, value and remedy, and their text."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import json
import re
from collections.abc import Iterable
from typing import Any, Final

Path = tuple[str | int, ...]
"""Steps from the top of a document to a field: names for mappings, positions for lists."""

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_LONGEST_VALUE: Final = 80


class ProblemKind(enum.Enum):
    """Kind of fault; `cel_rules` skips rules about fields that cannot be read."""

    SYNTAX = "syntax"
    """The text is not the YAML that Kubernetes reads."""
    TYPE = "type"
    """A value of another type than the field holds."""
    REQUIRED = "required"
    """A required field is missing."""
    UNKNOWN = "unknown"
    """There is no such field."""
    CHOICE = "choice"
    """A text that is none of the allowed ones."""
    BOUND = "bound"
    """A value that is too small, too large, too long, or of the wrong form."""
    REPEAT = "repeat"
    """The same item, key or name, twice."""
    RELATION = "relation"
    """Fields that do not fit together, or a change that is not allowed."""
    UNAVAILABLE = "unavailable"
    """A field of a feature that this version does not have."""

    @property
    def unreadable(self) -> bool:
        """True if the field's value cannot be read, so that rules about it mean nothing."""
        return self in _UNREADABLE


_UNREADABLE: Final = frozenset(
    {
        ProblemKind.TYPE,
        ProblemKind.REQUIRED,
        ProblemKind.UNKNOWN,
        ProblemKind.CHOICE,
        ProblemKind.BOUND,
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One fault of one field."""

    path: Path
    """Path of the field; empty for the document as a whole."""
    kind: ProblemKind
    fault: str
    """Text of the fault, to be read after the field and its value."""
    remedy: str = ""
    """Instruction that leads to a valid value; empty if the fault says it already."""
    _: dataclasses.KW_ONLY
    value: str = ""
    """The value as the file has it, shortened; empty: there is none."""
    line: int | None = None
    """Line of the file, from 1; None: there is no file."""
    meant: Path | None = None
    """The field that was probably meant, if the name is unknown."""

    @property
    def field(self) -> str:
        """Full path for people, such as `spec.failurePolicy.rules[0].action`."""
        return show_path(self.path)

    def __str__(self) -> str:
        """Return one sentence: path, value, fault and remedy."""
        where = f"line {self.line}: " if self.line is not None else ""
        field = f"{self.field}: " if self.path else ""
        value = f"{self.value} " if self.value else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{where}{field}{value}{self.fault}{remedy}"


class InvalidJobError(ValueError):
    """A refused job file, or change of a job; carries every problem found."""

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        """Name of the file or of the change, for people."""
        self.problems = tuple(problems)
        """All problems, in the order of the file."""
        lines = [f"{source}: {problem}" for problem in self.problems]
        super().__init__("\n".join(lines))


def show_path(path: Path) -> str:
    """Return the path for people: dots, positions in brackets, odd names quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_NAME.match(step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step, ensure_ascii=False)}]"
    return text


def value_at(value: Any, path: Path) -> Any:
    """Return the value at a path inside plain mappings and lists; None if there is none."""
    for step in path:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def show_value(value: Any) -> str:
    """Return the value as JSON, shortened to one readable line; containers only by their kind."""
    if isinstance(value, dict):
        return f"(a mapping of {len(value)})"
    if isinstance(value, list):
        return f"(a list of {len(value)})"
    return shorten(json.dumps(value, ensure_ascii=False, default=str))


def shorten(text: str) -> str:
    """Return the text, cut to the length of a line."""
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` was probably meant to be; None: none is near."""
    names = sorted(known)
    for candidate in names:
        if candidate.lower() == name.lower():
            return candidate
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return found[0] if found else None
