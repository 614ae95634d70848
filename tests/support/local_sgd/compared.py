"""Trainings that are compared: one that saved on its way, and weights of nested lists.

Belongs here: what tests of several frameworks hold against each other. Does not belong here: what
ranks do (`fsdp2_training`, `ddp_saves`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

NESTEROV: Final = {"lr": 0.7, "momentum": 0.8, "nesterov": True}


@dataclass(frozen=True)
class Course:
    """A training, and the steps that it saved."""

    root: Path
    ranks: list[dict[str, Any]]

    def cut(self, at: int, to: Path) -> Path:
        """Return a copy of the directory as it was after that step."""
        shutil.copytree(self.root, to)
        for path in to.glob("step_*"):
            if int(path.name.removeprefix("step_")) > at:
                shutil.rmtree(path)
        return to


def ends(ranks: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Return what each rank has in the end, and its detectors."""
    return [(rank["end"], rank["detectors"]) for rank in ranks]


def apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the greatest difference of two models' weights."""
    assert one.keys() == other.keys()
    pairs = (zip(_flat(one[name]), _flat(other[name]), strict=True) for name in one)
    return max(abs(a - b) for several in pairs for a, b in several)


def _flat(values: Any) -> Iterator[float]:
    if isinstance(values, list):
        for one in values:
            yield from _flat(one)
    else:
        yield values
