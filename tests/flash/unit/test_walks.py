"""A reader of a save or a restore opens no module of the checkpoint server in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints.led_nodes import Node, Rank, announced, plan, rank_of, received, served
from checkpoints.walks import RESTORE, SAVE, entered
from holdfast.flash.memory.slots import Version
from holdfast.flash.server.protocol import Durable, Restore, RestoreStart
from holdfast_wire.messages import Tier

_BESIDE_A_SAVE = {
    "ids",
    "notices",
    "memory.hashes",
    "memory.replica_check",
    "memory.shard_table",
    "server.coordinated_restore",
    "storage.filesystem",
}
"""Modules that run beside the save, and need not be opened."""
_BESIDE_A_RESTORE = {
    "ids",
    "notices",
    "memory.hashes",
    "memory.shard_table",
    "memory.slots",
    "server.coordinated_commit",
    "server.peer_parts",
    "storage.commit",
    "storage.dcp_metadata",
    "storage.filesystem",
}
"""The same of a restore. `commit` deletes what an earlier world left unfinished."""


def _save(node: Node, rank: Rank, step: int) -> None:
    """Have a step written, granted and announced, and wait until its rank hears that."""
    rank.save(Version(1, step), durable=True)
    assert node.grant(node.master.hears("written"), f"w1e1c{step}") == ""
    node.word(announced(Version(1, step)))
    assert received(rank.link, Durable) == Durable(step=step)


def test_the_server_runs_the_modules_of_a_save_and_no_others(tmp_path: Path) -> None:
    """From the word of a rank that a slot is valid to the word that the step is committed."""
    with entered("holdfast.flash") as found, served(tmp_path) as node:
        with rank_of(node, tmp_path, 0, world=1) as rank:
            for step in (1, 2, 3):
                _save(node, rank, step)
            found.clear()
            _save(node, rank, 4)
            seen = set(found)
        assert not (tmp_path / "step_1").exists(), "retention was a part of it"
    assert seen - _BESIDE_A_SAVE == SAVE.server


@pytest.mark.parametrize("tier", [Tier.MEMORY, Tier.STORAGE], ids=lambda tier: tier.name)
def test_the_server_runs_the_modules_of_a_restore_and_no_others(tmp_path: Path, tier: Tier) -> None:
    """From the request of a rank to its start, whichever tier the master chose."""
    with entered("holdfast.flash") as found, served(tmp_path) as node:
        with rank_of(node, tmp_path, 0, world=1) as rank:
            _save(node, rank, 1)
        with rank_of(node, tmp_path, 0, world=1, round_number=2) as rank:
            found.clear()
            rank.link.send(Restore())
            node.master.hears("asks")
            for go in (False, True):
                answer = plan(version=Version(1, 1), tier=tier, go=go)
                node.word(answer, 2)
                if not go:
                    assert node.master.hears("checked").error == ""
            start = received(rank.link, RestoreStart)
            seen = set(found)
            assert (start.step, bool(start.path)) == (1, tier is Tier.STORAGE)
    assert seen - _BESIDE_A_RESTORE == RESTORE.server
