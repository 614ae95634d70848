"""Saves of any world load on any other, exact: 16 into 16, from memory and storage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from checkpoints.flash_world import Keeping, Worlds
from house.extended import usual

pytestmark = [pytest.mark.train, pytest.mark.timeout(600)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "flash/process/test_matrix.py::test_from_memory_every_world_loads_what_any_other_saved",
        "flash/process/test_matrix.py::test_from_storage_every_world_loads_what_any_other_saved",
    ],
)
WORLDS = [(kind, size) for kind in ("ddp", "fsdp", "tp", "2-d") for size in (1, 2, 3, 4)]
USUAL = [("fsdp", 3), ("tp", 3), ("2-d", 4)]
"""Worlds that load in `make test`; each loads what all of them saved."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The checkpoint directory, keeper socket and digest that one world left behind."""

    name: str
    root: str
    arena: str
    """Socket of the keeper that holds its memory, which its ranks did not survive."""
    digest: str


@dataclass(slots=True)
class Matrix:
    """All sources, and the process that runs worlds."""

    worlds: Worlds
    sources: list[Saved]
    empty: str
    """Socket of a keeper whose memory holds nothing."""
    round: int = 10

    def load(self, kind: str, size: int, *, memory: bool) -> list[str]:
        """Load all sources in one world; return what is wrong."""
        loads = [(None, one.arena) if memory else (one.root, self.empty) for one in self.sources]
        answers = self.worlds.run(
            job="load", kind=kind, world=size, loads=loads, round=self.round, seed=99
        )
        self.round += len(loads)
        assert len(answers) == size
        return [
            f"{source.name} → {kind} {size}: step {start}, {digest} instead of {source.digest}"
            for answer in answers
            for source, (start, digest) in zip(self.sources, answer["found"], strict=True)
            if (start, digest) != (3, source.digest)
        ]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    """Every world has trained and saved, each other numbers, and was killed."""
    with Worlds() as worlds, ExitStack() as stack:
        sources = []
        for number, (kind, size) in enumerate(WORLDS):
            folder = tmp_path_factory.mktemp("source")
            arena, root = stack.enter_context(Keeping(folder)).path, str(folder / "ck")
            answers = worlds.run(
                job="save", kind=kind, world=size, root=root, arena=arena, round=1, seed=number
            )
            digests = {answer["saved"] for answer in answers}
            assert (len(answers), len(digests)) == (size, 1)
            sources.append(Saved(f"{kind} {size}", root, arena, digests.pop()))
        assert len({source.digest for source in sources}) == len(WORLDS)
        empty = stack.enter_context(Keeping(tmp_path_factory.mktemp("empty"))).path
        yield Matrix(worlds, sources, empty)


@pytest.mark.parametrize(("kind", "size"), usual(WORLDS, *USUAL, more=MORE))
def test_from_memory_every_world_loads_what_any_other_saved(
    matrix: Matrix, kind: str, size: int
) -> None:
    """All ranks were killed, the arenas live: weights, optimizer and schedule by hash."""
    assert matrix.load(kind, size, memory=True) == []


@pytest.mark.parametrize(("kind", "size"), usual(WORLDS, *USUAL, more=MORE))
def test_from_storage_every_world_loads_what_any_other_saved(
    matrix: Matrix, kind: str, size: int
) -> None:
    """With a keeper whose memory is empty: the same from the committed steps."""
    assert matrix.load(kind, size, memory=False) == []
