"""A real `Checkpointer` that restores from a third tier, which the trainer's code does not know."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import pytest

import holdfast
from checkpoints.copies_tier import copies_tier, node_with_copies
from checkpoints.small_models import same, state_of, train, trained_state
from holdfast.flash.server.protocol import Saved
from holdfast_wire.messages import Tier

pytestmark = pytest.mark.train
WAIT_SECONDS = 60.0


def _comes_to_be(folder: Path, name: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not list(folder.glob(name)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_state_comes_back_from_a_third_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is newer there than on storage, and it is not taken for durable."""
    copies = copies_tier()
    monkeypatch.setitem(Tier._value2member_map_, copies.value, copies)
    root = tmp_path / "root"
    with node_with_copies(tmp_path, copies, "first") as node:
        monkeypatch.setenv("HOLDFAST_ARENA", node.path)
        model, trained = trained_state(kind="AdamW")
        with holdfast.Checkpointer(root, model=model, optimizer=trained) as flash:
            flash.save(7)
            flash.wait(7)
            train(model, trained)
            flash.save(8, durable=False)
            flash._connect()._link.send(Saved(lineage=flash._lineage, step=8, tier=copies))
            _comes_to_be(tmp_path / "copies", "*.8")
    with node_with_copies(tmp_path, copies, "second") as node, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch")
        monkeypatch.setenv("HOLDFAST_ARENA", node.path)
        monkeypatch.setenv("HOLDFAST_ROUND", "1")
        model2, trained2 = state_of(1, kind="AdamW")
        with holdfast.Checkpointer(root, model=model2, optimizer=trained2) as flash:
            assert flash.load() == 8
            assert flash.latest() == 0
            assert same(model.state_dict(), model2.state_dict())
            assert same(trained.state_dict(), trained2.state_dict())
            train(model2, trained2)
            flash.save(9)
            flash.wait(9)
