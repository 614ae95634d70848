"""A place in a foreign object: its value, its path, and reads that name the field if they fail."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast_cli.errors import BadInputError
from holdfast_operator.spec.problems import Path, show_path, show_value


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A value inside a foreign object; None: it is not written.

    Each read raises BadInputError with the field, its value and the wanted type.
    """

    value: Any
    path: Path = ()
    prefix: str = ""
    """Name of the object in front of the path, if there are several."""

    def __bool__(self) -> bool:
        """Return True if something is written here."""
        return self.value not in (None, "", {}, [])

    @property
    def field(self) -> str:
        """Path for people."""
        return self.prefix + show_path(self.path)

    def at(self, *steps: str) -> Source:
        """Return the place of a field below."""
        found = self
        for step in steps:
            found = Source(found.mapping().get(step), (*found.path, step), self.prefix)
        return found

    def mapping(self) -> dict[str, Any]:
        """Return the mapping here; empty: none is written."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self._wrong("a mapping")
        return self.value

    def entries(self) -> dict[str, Source]:
        """Return the places of the mapping's values."""
        return {name: self.at(name) for name in self.mapping()}

    def items(self) -> list[Source]:
        """Return the places of the list's items; empty: none is written."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self._wrong("a list")
        return [Source(item, (*self.path, at), self.prefix) for at, item in enumerate(self.value)]

    def integer(self) -> int | None:
        """Return the number here; None: none is written."""
        if self.value is None or (isinstance(self.value, int) and self.value is not True):
            return None if self.value is None else int(self.value)
        raise self._wrong("a whole number")

    def text(self) -> str:
        """Return the text here; empty: none is written."""
        if self.value is not None and not isinstance(self.value, str):
            raise self._wrong("a text")
        return self.value or ""

    def _wrong(self, wanted: str) -> BadInputError:
        value = show_value(self.value)
        return BadInputError(f"{self.field}: {value} is not {wanted}; write {wanted}")
