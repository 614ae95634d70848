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


def test_a_rank_reads_the_bytes_of_its_own_shards_from_storage(
    worlds: Worlds, tmp_path: Path
) -> None:
    """Three shards of 384 MiB load as two, as one, as three: extra memory below tensor + 64 MiB."""
    here = {"job": "memory", "root": str(tmp_path / "run"), "durable": True}
    worlds.run(kind="fsdp", world=3, **here)
    wrong = []
    for kind, size in (("fsdp", 3), ("fsdp", 2), ("plain", 1)):
        answers = worlds.run(kind=kind, world=size, **here)
        wrong += faults_of(answers, "storage")
    assert wrong == []


def test_a_rank_reads_the_bytes_of_its_own_shards_from_memory(
    worlds: Worlds, tmp_path: Path
) -> None:
    """The same from the arenas of its node, with nothing on storage."""
    with Keeping(tmp_path) as keeping:
        here = {"job": "memory", "root": None, "durable": False, "arena": keeping.path}
        worlds.run(kind="fsdp", world=3, round=1, **here)
        wrong = []
        for number, (kind, size) in enumerate((("fsdp", 3), ("fsdp", 2), ("plain", 1))):
            answers = worlds.run(kind=kind, world=size, round=2 + number, **here)
            wrong += faults_of(answers, "memory")
    assert wrong == []
