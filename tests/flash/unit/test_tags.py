"""Steps that a script names: they stay, whatever retention says, until the name goes on."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from checkpoints.small_models import state_of
from holdfast.flash import notices
from holdfast.flash.storage import retention
from holdfast.flash.storage.filesystem import Disk
from house.repository import ROOT

pytestmark = pytest.mark.train


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Torch warns about what is its own business."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch")
        yield


def _steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("step_*"))


def test_a_tagged_step_stays_until_its_tag_goes_on(tmp_path: Path) -> None:
    """Saved under it at once or after the step was saved; another process finds it."""
    model, _ = state_of()
    with holdfast.Checkpointer(tmp_path, model=model, keep_last=1) as flash:
        flash.save(1, tag="best")
        flash.save(2)
        flash.save(2, tag="milestone-1")
        for step in (3, 4):
            flash.save(step)
            flash.wait()
        assert _steps(tmp_path) == [1, 2, 4]
        assert [flash.latest("best"), flash.latest("milestone-1"), flash.latest("no")] == [1, 2, 0]
        flash.save(5, tag="best")
        flash.save(6)
        flash.wait()
        assert _steps(tmp_path) == [2, 5, 6]
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        assert (flash.latest("best"), flash.load(), flash.latest()) == (5, 6, 6)


def test_a_tag_holds_the_step_before_until_the_new_one_is_there(tmp_path: Path) -> None:
    """A crash before the commit leaves what the tag named; a later word does not grow for ever."""
    disk, root = Disk(), str(tmp_path)
    for step in (1, 2):
        (tmp_path / f"step_{step}").mkdir()
        retention.give_tag(disk, root, "best", step)
    for dead in (7, 8, 9):
        retention.give_tag(disk, root, "best", dead)
    assert (retention.step_of_tag(disk, root, "best"), retention.pinned_steps(disk, root)) == (
        2,
        frozenset((2, 7, 8, 9)),
    )
    (tmp_path / "step_9").mkdir()
    assert (retention.step_of_tag(disk, root, "best"), retention.pinned_steps(disk, root)) == (
        9,
        frozenset((9,)),
    )
    retention.give_tag(disk, root, "best", 9)
    assert (tmp_path / "tags/best").read_text() == "9\n"


@pytest.mark.parametrize("tag", ["", "a/b", "..", ".hidden", "a b", "x" * 65, 5])
def test_a_tag_that_is_none_is_refused(tmp_path: Path, tag: Any) -> None:
    """Before anything is saved."""
    with (
        holdfast.Checkpointer(tmp_path, model=state_of()[0]) as flash,
        pytest.raises(ValueError, match="expected 1 to 64"),
    ):
        flash.save(1, tag=tag)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("path", "durable"), [(True, False), (False, True)])
def test_a_tag_is_for_storage(tmp_path: Path, *, path: bool, durable: bool) -> None:
    """Memory has no room for what is to stay."""
    with (
        holdfast.Checkpointer(tmp_path if path else None, model=state_of()[0]) as flash,
        pytest.raises(ValueError, match="is for a step on storage"),
    ):
        flash.save(1, durable=durable, tag="best")


def test_close_saves_the_last_step_unless_it_is_saved(tmp_path: Path) -> None:
    """One call at the end of a script."""
    model, _ = state_of()
    flash = holdfast.Checkpointer(tmp_path, model=model)
    flash.save(1)
    flash.close(2)
    assert _steps(tmp_path) == [1, 2]
    flash = holdfast.Checkpointer(tmp_path, model=model)
    assert flash.load() == 2
    before = (tmp_path / "step_2").stat().st_ino
    flash.close(2)
    assert (tmp_path / "step_2").stat().st_ino == before


def test_what_is_missing_without_an_agent_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, and not again by another Checkpointer of the process."""
    monkeypatch.setattr(notices, "_said", [])
    model, _ = state_of()
    for _ in range(2):
        with holdfast.Checkpointer(tmp_path, model=model) as flash:
            flash.load()
            flash.save(1 + flash.latest())
    (said,) = [record.message for record in caplog.records if record.name == "holdfast"]
    assert str(tmp_path) in said
    assert "Missing without one: memory that outlives a process" in said


def test_the_example_uses_it_in_four_lines() -> None:
    """Made, loaded, stepped, closed: what a script of one's own needs too."""
    tree = ast.parse((ROOT / "examples/train_gpt.py").read_text())
    uses = {
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "flash"
    }
    assert len(uses) == 4
