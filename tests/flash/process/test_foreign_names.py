"""Directories whose own names, and what lies in them, mean something to others but not here."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import holdfast
from checkpoints.small_models import load, same, state_of
from holdfast.flash import dcp as flash_dcp
from holdfast_cli.main import main

pytestmark = pytest.mark.train
NAMES = ["run [1-2]*?", "100%s %(x)s {a} {0} {}", 'it\'s "so"\t$HOME `id`\\', "-n"]
"""Patterns, formats, templates, quotes, and what a shell or a flag would take for its own."""


@pytest.mark.parametrize("name", NAMES)
def test_a_path_may_have_any_name(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved, kept few, tagged, loaded, looked at by a relative path, and by the drop-in too."""
    import torch.distributed.checkpoint as dcp

    model, optimizer = state_of(1)
    root = tmp_path / name
    with holdfast.Checkpointer(root, model=model, optimizer=optimizer, keep_last=2) as flash:
        for step in range(1, 5):
            flash.save(step, tag="best" if step == 1 else None)
        flash.wait()
        assert flash.latest("best") == 1
    assert sorted(path.name for path in root.glob("step_*")) == ["step_1", "step_3", "step_4"]
    other = state_of(2)
    assert load(root, model=other[0], optimizer=other[1]) == 4
    assert same(other[0].state_dict(), model.state_dict())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["checkpoint", "verify", f"./{name}"])
    assert ended.value.code == 0
    its = tmp_path / f"{name} dcp"
    flash_dcp.async_save({"model": model.state_dict()}, checkpoint_id=its).result(timeout=60)
    flash_dcp.close()
    found = {"model": state_of(3)[0].state_dict()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about a load without a process group
        dcp.load(found, checkpoint_id=its)
    assert same(found["model"], dict(model.state_dict()))


def test_foreign_names_beside_the_steps_are_no_steps_and_stay(tmp_path: Path) -> None:
    """Numbers that are none, an NFS client's file, links: none counts, none goes, none is read."""
    model, optimizer = state_of(1)
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer, keep_last=2) as flash:
        for step in range(1, 4):
            flash.save(step)
        flash.wait()
        foreign = ["step_9e9", "step_", "step_-1", "step_07", "step_5.tmp", "step_1٣", "Step_9"]
        for name in foreign:
            (tmp_path / name).mkdir()
        (tmp_path / ".nfs0001").write_text("still open somewhere")
        (tmp_path / "latest").symlink_to("step_2")
        (tmp_path / "step_1e5").symlink_to("nowhere")
        foreign += [".nfs0001", "latest", "step_1e5"]
        for step in range(4, 7):
            flash.save(step)
        flash.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(tmp_path, model=model, optimizer=optimizer) == 6
    left = {path.name for path in tmp_path.iterdir()}
    assert left >= set(foreign)
    assert {name for name in left - set(foreign) if name.startswith("step")} == {"step_5", "step_6"}


def test_a_step_with_an_nfs_client_s_file_goes_once_that_is_gone(tmp_path: Path) -> None:
    """A file that somebody still has open keeps its step; retention comes back to it."""
    model, optimizer = state_of(1)
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer, keep_last=1) as flash:
        flash.save(1)
        flash.wait()
        held = tmp_path / "step_1" / ".nfs0002"
        held.write_text("still open somewhere")
        flash.save(2)
        flash.wait()
        flash.save(3)
        flash.wait()
        held.unlink()
        flash.save(4)
        flash.wait()
    assert [path.name for path in tmp_path.glob("step_*")] == ["step_4"]
