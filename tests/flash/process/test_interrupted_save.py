"""A save that is broken off, or that somebody makes who may not: nobody waits for half a step."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from checkpoints.small_models import load, opened, same, state_of, trained_state
from holdfast.flash import dcp
from holdfast.flash.memory.slots import SlotState
from holdfast.flash.trainer.copier import Copier

pytestmark = [
    pytest.mark.train,
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def _filled(model: Any, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def _loaded(path: Path) -> tuple[int, list[float]]:
    model, _ = state_of(7)
    with holdfast.Checkpointer(path, model=model) as flash:
        step = flash.load()
    return step, model[0].weight.unique().tolist()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_save_that_is_broken_off_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, overlap: bool
) -> None:
    """Ctrl-C in the copy: the same step can be saved, no slot is lost, and nobody waits for it."""
    model, optimizer = trained_state()
    copy = Copier.copy

    def broken(copier: Copier, slot: Any, *, trained: bool, threads: int) -> None:
        if trained:
            raise KeyboardInterrupt
        copy(copier, slot, trained=trained, threads=threads)

    with opened(tmp_path, (model, optimizer), overlap=overlap) as flash:
        flash.save(1)
        for _ in range(5):  # more often than there are slots
            monkeypatch.setattr(Copier, "copy", broken)
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - an overlapped one ends in join
                flash.save(2)
                flash.join()
            monkeypatch.undo()
            flash.wait(timeout_s=20)
        assert flash.latest() == 1
        _filled(model, 2.0)
        flash.save(2)
        flash.wait(timeout_s=20)
        assert flash.latest() == 2
    assert _loaded(tmp_path) == (2, [2.0])


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_counts_as_whole_only_with_its_last_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, overlap: bool
) -> None:
    """While anything is copied its slot is being written: a kill leaves the step before."""
    model, optimizer = trained_state()
    copy, seen = Copier.copy, list[tuple[bool, SlotState]]()

    def watched(copier: Copier, slot: Any, *, trained: bool, threads: int) -> None:
        copy(copier, slot, trained=trained, threads=threads)
        seen.append((trained, slot.state))

    monkeypatch.setattr(Copier, "copy", watched)
    with opened(tmp_path, (model, optimizer), overlap=overlap) as flash:
        flash.save(1)
        flash.join()
    assert seen == [(False, SlotState.WRITING), (True, SlotState.WRITING)]


def test_leaving_by_an_interrupt_waits_for_nothing_that_never_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`with` closes at once, and the step before is there."""
    model, _ = state_of()

    def broken(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def run() -> None:
        with holdfast.Checkpointer(tmp_path, model=model) as flash:
            _filled(model, 1.0)
            flash.save(1)
            monkeypatch.setattr(Copier, "copy", broken)
            flash.save(2)

    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.undo()
    assert _loaded(tmp_path) == (1, [1.0])


def _in_a_child(work: Any) -> str:
    """Return what a forked child says of its work; it must end by itself."""
    begin, end = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            work()
            said = "done"
        except BaseException as error:  # noqa: BLE001 - it is what the test is to see
            said = f"{type(error).__name__}: {error}"
        os.write(end, said.encode())
        os._exit(0)
    os.close(end)
    with os.fdopen(begin) as pipe:
        said = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return said


def test_a_forked_child_is_refused_and_ends_nothing_of_its_parents(tmp_path: Path) -> None:
    """Its save would write to memory that it has not got; its close would end the keeper."""
    model, _ = state_of()
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        flash.save(1)
        flash.wait()
        said = _in_a_child(lambda: flash.save(2))
        assert said.startswith("CheckpointError: process ")
        assert f"is a forked child of {os.getpid()}" in said
        assert _in_a_child(flash.close) == "done"
        _filled(model, 3.0)
        flash.save(3)
    assert _loaded(tmp_path) == (3, [3.0])


def test_a_forked_childs_drop_in_is_its_own(tmp_path: Path) -> None:
    """Both save, whoever closes first."""
    model, _ = state_of()

    def save(name: str) -> None:
        future = dcp.async_save({"model": model}, checkpoint_id=tmp_path / name)
        future.result(timeout=30)

    def in_child() -> None:
        save("childs")
        dcp.close()

    try:
        save("first")
        assert _in_a_child(in_child) == "done"
        save("second")
    finally:
        dcp.close()
    assert {path.name for path in tmp_path.iterdir()} == {"first", "childs", "second"}


def test_saves_of_two_threads_are_made_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No slot is written by both, and each step is what it was told to be."""
    model, optimizer = trained_state()
    copy, inside, most = Copier.copy, [0], [0]

    def counted(copier: Copier, slot: Any, *, trained: bool, threads: int) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.01)
        copy(copier, slot, trained=trained, threads=threads)
        inside[0] -= 1

    monkeypatch.setattr(Copier, "copy", counted)
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer) as flash:
        turns = [
            threading.Thread(target=flash.save, args=(step,), kwargs={"durable": False})
            for step in range(1, 9)
        ]
        for turn in turns:
            turn.start()
        for turn in turns:
            turn.join()
        flash.save(9)
    assert most == [1]
    again, its = state_of(3)
    assert load(tmp_path, model=again, optimizer=its) == 9
    assert same(again.state_dict(), model.state_dict())


def test_a_copy_that_fails_beside_is_told_to_the_save_that_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next save holds the lock while it waits: neither waits for the other."""
    model, optimizer = trained_state()
    copy, waits = Copier.copy, threading.Event()

    def broken(copier: Copier, slot: Any, *, trained: bool, threads: int) -> None:
        if trained:
            assert waits.wait(30)
            raise OSError("the copy failed")
        copy(copier, slot, trained=trained, threads=threads)

    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer, overlap=True) as flash:
        join = flash._saver.join

        def told() -> None:
            waits.set()
            join()

        with monkeypatch.context() as patch:
            patch.setattr(Copier, "copy", broken)
            flash.save(1)
            patch.setattr(flash._saver, "join", told)
            with pytest.raises(OSError, match="the copy failed"):
                flash.save(2)
        flash.save(2, durable=True)
        flash.wait(2)
    assert _loaded(tmp_path)[0] == 2
