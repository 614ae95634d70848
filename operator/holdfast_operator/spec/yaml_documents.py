"""YAML text to plain documents, read as Kubernetes reads it, with the line of every field.

Does not belong here: the value of a single node (`yaml_nodes`), the meaning of the documents.
"""

from __future__ import annotations

import dataclasses
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
from holdfast_operator.spec.yaml_nodes import FilePosition, NodeLoader, NodeReader

LONGEST_TEXT: Final = 1 << 20
"""Characters in a file; etcd refuses an object of more than 1.5 MiB anyway."""


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
        for end in range(len(path), 0, -1):
            mark = self.marks.get(path[:end])
            if mark is not None:
                return mark.line
        return self.line


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
    return Problem(path=path, kind=ProblemKind.SYNTAX, fault=fault, line=line)
