"""A load in any world is one read: of the bytes that a rank needs, into the tensors themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpoints.flash_memory import WIDTH
from checkpoints.flash_world import Keeping, Worlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
LARGEST = WIDTH * WIDTH * 4
ROOM = 64 * 2**20


def faults_of(answers: list[dict[str, Any]], place: str) -> list[str]:
    """Return what ranks read more or less than their own bytes, or took too much memory for."""
    return [
        str(answer)
        for answer in answers
        if answer["start"] != 1
        or answer["read"] != {"memory": 0, "peers": 0, "storage": 0, place: answer["own"]}
        or answer["peak"] > LARGEST + ROOM
    ]


@pytest.mark.parametrize("place", ["storage", "memory"])
def test_a_rank_reads_the_bytes_of_its_own_shards(
    worlds: Worlds, tmp_path: Path, place: str
) -> None:
    """Three shards of 384 MiB load as two, as one, as three: extra memory below tensor + 64 MiB.

    From storage without an agent, and from the arenas of its node with nothing on storage.
    """
    with Keeping(tmp_path) as keeping:
        here: dict[str, Any] = {"root": str(tmp_path / "run"), "durable": True}
        if place == "memory":
            here = {"root": None, "durable": False, "arena": keeping.path}
        worlds.run(job="memory", kind="fsdp", world=3, round=1, **here)
        wrong = []
        for number, (kind, size) in enumerate((("fsdp", 3), ("fsdp", 2), ("plain", 1)), start=2):
            answers = worlds.run(job="memory", kind=kind, world=size, round=number, **here)
            wrong += faults_of(answers, place)
    assert wrong == []
