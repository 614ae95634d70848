"""YAML text to plain documents, read as Kubernetes reads it, with the line of every field.

The type of a scalar is as in the YAML library of Kubernetes. Refused here: repeated keys, keys and
tags that JSON cannot hold, aliases that expand without bound. Does not belong here: the meaning of
the documents.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

from holdfast_operator.spec.problems import (
    InvalidJobError,
    Path,
    Problem,
    ProblemKind,
    shorten,
    show_value,
)

LONGEST_TEXT: Final = 1 << 20
"""Characters in a file; etcd refuses an object of more than 1.5 MiB anyway."""
MOST_VALUES: Final = 100_000
"""Values in a document after its aliases are expanded."""
DEEPEST: Final = 100
"""Depth of nested mappings and lists."""
TOO_DEEP: Final = f"nested more than {DEEPEST} deep"

_TAG: Final = "tag:yaml.org,2002:"
_FORMS: Final[tuple[tuple[str, str, str], ...]] = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    (
        "bool",
        r"true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF",
        "tTfFyYnNoO",
    ),
    ("int", r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)", "-+0123456789"),
    (
        "float",
        (
            r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
        "-+.0123456789",
    ),
    ("merge", r"<<", "<"),
)
"""Types of an unquoted scalar in the YAML library of Kubernetes: no dates and no base-60 numbers,
but yes, no, on and off are booleans and 3e-4 is a number."""
_TRUE: Final = frozenset({"true", "yes", "on"})


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One document of a file: plain mappings, lists, texts, numbers, booleans and nulls."""

    body: dict[str, Any]
    marks: Mapping[Path, FilePosition]
    line: int
    """First line, from 1."""

    def locate(self, problem: Problem) -> Problem:
        """Return the problem with its line, and the value as it is written there.

        A missing field gets the line of the mapping that should contain it.
        """
        mark = self.marks.get(problem.path)
        if mark is None:
            return dataclasses.replace(problem, line=self._line_above(problem.path))
        if problem.kind is ProblemKind.REQUIRED:
            return dataclasses.replace(problem, line=mark.line, fault="is empty, but must be set")
        quoted = not mark.text or problem.value.startswith('"')
        value = problem.value if quoted or not problem.value else shorten(mark.text)
        return dataclasses.replace(problem, line=mark.line, value=value)

    def _line_above(self, path: Path) -> int:
        above = (self.marks.get(path[:end]) for end in range(len(path), 0, -1))
        return next((mark.line for mark in above if mark is not None), self.line)


def read_documents(text: str, source: str) -> tuple[Document, ...]:
    """Return all documents of a YAML (or JSON) text that are not empty.

    Args:
        text: The file's content.
        source: Name of the file, for the error.

    Raises:
        InvalidJobError: The text is not YAML, or holds a value that JSON cannot; with all such
        faults.
    """
    if len(text) > LONGEST_TEXT:
        fault = f"the file has {len(text)} characters, more than {LONGEST_TEXT}"
        raise InvalidJobError(source, [_syntax((), fault, None)])
    found: list[Document] = []
    problems: list[Problem] = []
    try:
        for node in yaml.compose_all(text, Loader=NodeLoader):
            reader = NodeReader()
            body = reader.read(node, ())
            problems += reader.problems
            if isinstance(body, dict):
                found.append(Document(body, reader.marks, node.start_mark.line + 1))
            elif body is not None:
                fault = f"the document is {show_value(body)}, not a mapping of fields"
                problems.append(_syntax((), fault, node.start_mark.line + 1))
    except yaml.YAMLError as error:
        problems.append(_broken(error))
    if problems:
        raise InvalidJobError(source, problems)
    return tuple(found)


def _broken(error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark is not None else None
    parts: Iterable[object] = (getattr(error, "context", None), getattr(error, "problem", None))
    said = ": ".join(str(part) for part in parts if part) or str(error)
    return _syntax((), f"is not YAML: {said}", line)


def _syntax(path: Path, fault: str, line: int | None) -> Problem:
    return Problem(path, ProblemKind.SYNTAX, fault, line=line)


class NodeLoader(yaml.SafeLoader):
    """PyYAML's parser with the scalar forms of Kubernetes."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node; refuse a depth that would overflow a recursive reader's stack."""
        if self._depth > DEEPEST:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


for _name, _form, _first in _FORMS:
    NodeLoader.add_implicit_resolver(
        _TAG + _name, re.compile(rf"(?:{_form})\Z"), ["" if c == "\0" else c for c in _first]
    )


@dataclasses.dataclass(frozen=True, slots=True)
class FilePosition:
    """Position of a value in the file, and its spelling there."""

    line: int
    """Line, from 1."""
    text: str
    """The scalar as written; empty for mappings and lists."""


class NodeReader:
    """Turns one document's nodes into plain values, and notes lines and faults."""

    def __init__(self) -> None:
        self.marks: dict[Path, FilePosition] = {}
        self.problems: list[Problem] = []
        self._values = 0
        self._open: set[int] = set()

    def read(self, node: yaml.Node, path: Path) -> Any:
        """Return the node's value; None if it is at fault."""
        self._values += 1
        if self._values > MOST_VALUES:
            if self._values == MOST_VALUES + 1:
                self._fault(path, node, f"the document has more than {MOST_VALUES} values")
            return None
        if isinstance(node, yaml.ScalarNode):
            self.marks[path] = FilePosition(node.start_mark.line + 1, node.value)
            return self._scalar(node, path)
        self.marks[path] = FilePosition(node.start_mark.line + 1, "")
        if id(node) in self._open:
            self._fault(path, node, "is an alias of what it stands in")
            return None
        if len(path) > DEEPEST:
            self._fault(path, node, f"is {TOO_DEEP}")
            return None
        self._open.add(id(node))
        value = (
            self._sequence(node, path)
            if isinstance(node, yaml.SequenceNode)
            else (self._mapping(node, path))
        )
        self._open.discard(id(node))
        return value

    def _sequence(self, node: yaml.SequenceNode, path: Path) -> list[Any]:
        self._plain_tag(node, path, "seq")
        return [self.read(item, (*path, at)) for at, item in enumerate(node.value)]

    def _mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        self._plain_tag(node, path, "map")
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        seen: dict[str, int] = {}
        mine = self.marks[path]
        for value in (value for key, value in node.value if key.tag == _TAG + "merge"):
            self._merge(value, path, merged)
        self.marks[path] = mine
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                continue
            name = self._key(key, path)
            if name is None:
                continue
            if name in seen:
                fault = f"stands twice in the same mapping, first on line {seen[name]}"
                self._fault((*path, name), key, fault, "remove one", ProblemKind.REPEAT)
                continue
            seen[name] = key.start_mark.line + 1
            result[name] = self.read(value, (*path, name))
        return {**merged, **result}

    def _merge(self, value: yaml.Node, path: Path, into: dict[str, Any]) -> None:
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for source in reversed(sources):
            body = self.read(source, path)
            if isinstance(body, dict):
                into.update(body)
            else:
                self._fault(path, source, "<< merges something that is not a mapping")

    def _key(self, key: yaml.Node, path: Path) -> str | None:
        if not isinstance(key, yaml.ScalarNode):
            self._fault(path, key, "has a key that is a mapping or a list", "use a text as key")
            return None
        if key.tag != _TAG + "str":
            kind = key.tag.removeprefix(_TAG)
            fault = f"is a key that YAML reads as {kind}, not as text"
            self._fault((*path, key.value), key, fault, f'write it in quotes: "{key.value}"')
            return None
        return self._text(key, path)

    def _text(self, node: yaml.ScalarNode, path: Path) -> str:
        """Return the node's text; join the two halves of a rare character that JSON escapes."""
        try:
            return str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self._fault(path, node, "holds half of a character (a lone surrogate)", "remove it")
            return ""

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if kind == "str":
            return self._text(node, path)
        if kind == "null":
            return None
        if kind == "bool":
            return node.value.lower() in _TRUE
        if kind in {"int", "float"}:
            return self._number(node, path, kind)
        if kind == "merge":
            return node.value
        self._fault(path, node, f"has the tag {node.tag}, which JSON does not have")
        return None

    def _number(self, node: yaml.ScalarNode, path: Path, kind: str) -> int | float | None:
        text = node.value.replace("_", "")
        try:
            value = _integer(text) if kind == "int" else float(_dotless(text))
        except ValueError:
            self._fault(path, node, f"{node.value} is not a number")
            return None
        if not math.isfinite(value) or (kind == "int" and not -(2**63) <= value < 2**63):
            self._fault(path, node, f"{node.value} is a number that does not fit into 64 bits")
            return None
        return value

    def _plain_tag(self, node: yaml.Node, path: Path, kind: str) -> None:
        if node.tag != _TAG + kind:
            self._fault(path, node, f"has the tag {node.tag}, which JSON does not have")

    def _fault(
        self,
        path: Path,
        node: yaml.Node,
        fault: str,
        remedy: str = "",
        kind: ProblemKind = ProblemKind.SYNTAX,
    ) -> None:
        line = node.start_mark.line + 1
        self.problems.append(Problem(path, kind, fault, remedy, line=line))


def _integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def _dotless(text: str) -> str:
    return re.sub(r"\.(?=inf|nan)", "", text.lower())
