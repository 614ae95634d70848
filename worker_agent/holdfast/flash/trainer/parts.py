"""What a `Checkpointer` saves: a framework's state, the script's own values, and those of ranks.

Belongs here: the list of all of it under unique names. Does not belong here: the framework's part
of that list (`shards`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.flash.trainer.leaves import GlobalBox, Leaves, StateError, Stateful, ValueLeaf
from holdfast.flash.trainer.shards import Shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Arguments of a `Checkpointer`, by kind."""

    shards: Shards
    """State of the framework: weights, and what its optimizer keeps."""
    extra: Mapping[str, Any]
    per_rank: Mapping[str, Any]


def collect(parts: Parts, rank: int) -> Leaves:
    """Return all leaves; raises `StateError` for a value that cannot be saved."""
    leaves = Leaves()
    parts.shards.collect(leaves)
    for source, first, own in (
        (parts.extra, "extra", False),
        (parts.per_rank, f"rank_{rank}", True),
    ):
        leaves.counts.append((_AtLeast(source), len(source)))
        for key in source:
            if not isinstance(key, str):
                raise StateError(f"{first} has the name {key!r}: expected text")
            path, read = (first, key), _reader(source, key)
            leaves.values.append(ValueLeaf(".".join(path), path, read, own=own))
    _check_names(leaves)
    return leaves


class _AtLeast:
    """Counts the keys of a mapping; a missing key is found by its reader."""

    def __init__(self, source: Mapping[str, Any]) -> None:
        self._source, self._least = source, len(source)

    def __len__(self) -> int:
        return max(self._least, len(self._source))


def _check_names(leaves: Leaves) -> None:
    """Refuse a name that two leaves have, and a name that is no text for a file.

    Boxes of one global tensor have one name.
    """
    names: dict[str, GlobalBox | None] = {}
    boxes = [(leaf.name, leaf.box) for leaf in leaves.tensors]
    for name, box in [*boxes, *((leaf.name, None) for leaf in leaves.values)]:
        if name in names and (box is None or names[name] is None):
            raise StateError(f"two things are named {name!r}: rename one of them")
        names[name] = box
        if not name.isascii():
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise StateError(f"the name {name!r} is no text: {error}") from error


def _reader(source: Mapping[str, Any], key: str) -> Callable[[], Any]:
    def read() -> Any:
        if key not in source:
            raise StateError(f"{key!r} is no longer in what was given to the Checkpointer")
        value = source[key]  # at each save: the script may have put another object there
        return value.state_dict() if isinstance(value, Stateful) else value

    return read
