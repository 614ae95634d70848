"""The SDK in one process: what is saved, what is refused, and what `dcp.load` makes of it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

import holdfast
from checkpoints.small_models import (
    assert_loads,
    load,
    opened,
    same,
    save,
    state_of,
    train,
    trained_state,
)
from holdfast.flash.memory.arena import BYTES_ROOM
from holdfast.flash.memory.shard_table import lacking
from holdfast.flash.schedule import Schedule
from holdfast.flash.trainer.client import CheckpointError
from holdfast.flash.trainer.planner import Planner, RankPosition, parts_of_model
from holdfast.flash.trainer.state_dict import Parts, collect
from holdfast.flash.trainer.torch_shards import TorchShards
from holdfast.job import CONTINUE

pytestmark = pytest.mark.train


@pytest.mark.parametrize(
    "optimizer",
    [
        {"kind": "AdamW"},
        {"kind": "SGD", "momentum": 0.9},
        {"kind": "SGD"},
        {"kind": "Adagrad"},
        {"kind": "Adam", "amsgrad": True, "foreach": True},
        {"kind": "RMSprop", "centered": True},
        {"kind": "LBFGS"},
    ],
    ids=lambda value: "-".join(map(str, value.values())),
)
def test_any_optimizer_comes_back_with_all_its_state(
    tmp_path: Path, optimizer: dict[str, Any]
) -> None:
    """Moments, counters and groups are those that were saved; saving changed nothing."""
    model, trained = state_of(**optimizer)
    inputs = torch.randn(4, 5)

    def loss() -> Any:
        trained.zero_grad()
        value = model(inputs).square().mean()
        value.backward()
        return value

    trained.step(loss)
    before = trained.state_dict()
    with opened(tmp_path, (model, trained)) as flash:
        flash.save(1)
        assert same(trained.state_dict(), before)
    assert_loads(tmp_path, 1, (model, trained), state_of(1, **optimizer))


def test_a_restore_fills_the_moments_that_are_there(tmp_path: Path) -> None:
    """A load fills fitting moments in place. Other types and missing ones get new tensors."""
    model, trained = trained_state(kind="AdamW")
    with opened(tmp_path, (model, trained)) as flash:
        flash.save(1)
        wanted = {name: value.clone() for name, value in model.state_dict().items()}
        parameters = list(model.parameters())
        moments = [dict(trained.state[one]) for one in parameters]
        copies = [{key: value.clone() for key, value in entry.items()} for entry in moments]
        train(model, trained)
        trained.state[parameters[0]]["exp_avg"] = moments[0]["exp_avg"].double()
        del trained.state[parameters[1]]["exp_avg_sq"]
        assert flash.load() == 1
    assert same(dict(model.state_dict()), wanted)
    found = [trained.state[one] for one in parameters]
    assert same(found, copies)
    fresh = [
        (number, key)
        for number, entry in enumerate(found)
        for key, value in entry.items()
        if value is not moments[number][key]
    ]
    assert sorted(fresh) == [(0, "exp_avg"), (1, "exp_avg_sq")]


def test_the_next_save_goes_to_the_arena_that_was_restored_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is mapped once, and the version that was restored is intact until a newer one is whole."""
    socket = tmp_path / "keeper"
    arenas = subprocess.Popen(
        [sys.executable, "-m", "holdfast.flash.server.main", "--listen", str(socket)]
    )
    try:
        while not socket.exists():
            assert arenas.poll() is None
            time.sleep(0.01)
        monkeypatch.setenv("HOLDFAST_ARENA", str(socket))
        model, trained = trained_state(kind="AdamW")
        save(None, 7, model=model, optimizer=trained)
        for round_number in (1, 2):
            monkeypatch.setenv("HOLDFAST_ROUND", str(round_number))
            model2, trained2 = state_of(round_number, kind="AdamW")
            with opened(None, (model2, trained2)) as flash:
                assert flash.load() == 6 + round_number
                mapped = list(flash._preparer._mapped.values())
                flash.prepare()
                assert flash._preparer.copier is not None
                assert flash._preparer.copier.arena is mapped[0]
                assert flash._preparer._mapped == {}
                flash.save(7 + round_number)
            assert same(dict(model2.state_dict()), dict(model.state_dict()))
    finally:
        arenas.terminate()
        arenas.wait(30)


def test_plain_dcp_reads_what_was_committed(tmp_path: Path) -> None:
    """Every dtype and shape, values that are no tensors, two names of one tensor: all are there."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
                self.register_buffer(f"of_{str(dtype)[6:]}", torch.randn(3, 5).to(dtype))
            self.register_buffer("of_int8", torch.arange(7, dtype=torch.int8))
            self.register_buffer("of_bool", torch.tensor([True, False]))
            self.register_buffer("of_complex", torch.randn(3, dtype=torch.complex64))
            self.register_buffer("scalar", torch.tensor(3.5))
            self.register_buffer("empty", torch.empty(0, 4))
            self.register_buffer("transposed", torch.randn(4, 6).t())
            self.register_buffer("strided", torch.randn(4, 6)[:, ::2])
            self.register_buffer("hidden", torch.ones(2), persistent=False)
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)
            self.second.weight = self.first.weight

    model = Odd()
    save(tmp_path, 3, model=model, extra={"note": {"a": [1, 2.5]}})
    target: dict[str, Any] = {
        "model": {key: torch.zeros_like(value) for key, value in model.state_dict().items()},
        "extra": {"note": None},
    }
    dcp.load(target, checkpoint_id=tmp_path / "step_3", no_dist=True)
    assert same(target["model"], dict(model.state_dict()))
    assert target["extra"]["note"] == {"a": [1, 2.5]}
    assert "hidden" not in target["model"]
    other = Odd()
    assert load(tmp_path, model=other, extra={"note": None}) == 3
    assert same(dict(model.state_dict()), dict(other.state_dict()))


def test_plain_dcp_reads_values_that_have_grown_and_shrunk(tmp_path: Path) -> None:
    """Each step has the lengths of its own values, though nothing was planned anew between."""
    model, optimizer = state_of()
    extra: dict[str, Any] = {"note": "x", "other": [1]}
    train(model, optimizer)
    notes: list[Any] = ["short", "longer " * 900, ["odd", {"a": 1.5}], "s"]
    weights = []
    with opened(tmp_path, (model, optimizer), extra=extra, keep_last=9) as flash:
        for step, note in enumerate(notes, 1):
            extra["note"], extra["other"] = note, [step] * step
            flash.save(step)
            weights.append(model[0].weight.detach().clone())
            train(model, optimizer)
        assert flash._preparer._room == BYTES_ROOM
    for step, note in enumerate(notes, 1):
        target: dict[str, Any] = {
            "model": {"0.weight": torch.zeros(7, 5)},
            "extra": {"note": None, "other": None},
        }
        dcp.load(target, checkpoint_id=tmp_path / f"step_{step}", no_dist=True)
        assert target["extra"] == {"note": note, "other": [step] * step}
        assert same(target["model"]["0.weight"], weights[step - 1])


def test_the_metadata_written_without_torch_is_the_one_that_torch_writes(tmp_path: Path) -> None:
    """Same names, sizes, dtypes, chunks and planner data as `dcp.save` of the same state."""
    model, optimizer = trained_state()
    save(tmp_path / "ours", model=model, optimizer=optimizer)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    ours: Any = dcp.FileSystemReader(tmp_path / "ours/step_1").read_metadata()
    theirs: Any = dcp.FileSystemReader(tmp_path / "theirs").read_metadata()
    for name, kind in theirs.state_dict_metadata.items():
        mine = ours.state_dict_metadata[name]
        assert type(mine) is type(kind), name
        if hasattr(kind, "size"):
            assert (mine.size, mine.chunks) == (kind.size, kind.chunks), name
            assert mine.properties.dtype == kind.properties.dtype, name
        assert ours.planner_data[name] == theirs.planner_data[name], name
    extra = ours.state_dict_metadata.keys() - theirs.state_dict_metadata.keys()
    assert extra == {"rank_0.rng"}


def test_steps_follow_the_schedule_and_the_newest_stay(tmp_path: Path) -> None:
    """`step` saves what is due, answers as `job.step` does; retention keeps as many as told."""
    model, optimizer = state_of()
    with opened(
        tmp_path,
        (model, optimizer),
        schedule=Schedule(memory_every=0, storage_every=2),
        keep_last=2,
    ) as flash:
        for step in range(1, 9):
            train(model, optimizer)
            assert flash.step(step) is CONTINUE
            flash.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owners", "step_6", "step_8"]


def test_what_others_wrote_neither_goes_nor_counts(tmp_path: Path) -> None:
    """Retention deletes its own steps; a name that is taken is refused, not replaced."""
    model, _ = state_of()
    for name in ("step_1/model.safetensors", "step_2/.metadata", "step_4/.metadata"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("precious")
    (tmp_path / "step_3").write_text("a file")
    with holdfast.Checkpointer(tmp_path, model=model, keep_last=1) as flash:
        flash.save(4)
        with pytest.raises(CheckpointError, match=r"step_4 was not written by Holdfast: move it"):
            flash.wait()
        for step in (5, 6):
            flash.save(step)
            flash.wait()
    assert {path.name for path in tmp_path.iterdir()} >= {f"step_{n}" for n in (1, 2, 3, 4, 6)}
    assert not (tmp_path / "step_5").exists()
    assert (tmp_path / "step_4/.metadata").read_text() == "precious"


def test_a_scheduled_save_that_fails_is_a_warning(tmp_path: Path) -> None:
    """Training goes on; once what was wrong is mended, steps are saved again."""
    model, _ = state_of()
    extra: dict[str, Any] = {"best": 1, "odd": 2}
    each = Schedule(memory_every=0, storage_every=1)
    with holdfast.Checkpointer(tmp_path, model=model, extra=extra, schedule=each) as flash:
        flash.prepare()
        del extra["odd"]
        with pytest.warns(RuntimeWarning, match=r"step 1 was not saved: 'odd' is no longer"):
            assert flash.step(1) is CONTINUE
        extra["odd"] = Schedule()
        with pytest.warns(RuntimeWarning, match=r"step 2 was not saved: extra.odd is no plain"):
            assert flash.step(2) is CONTINUE
        extra["odd"] = 3
        flash.step(3)
        flash.wait(3)
        assert flash.latest() == 3


def test_a_step_that_is_not_to_be_on_storage_is_not_waited_for(tmp_path: Path) -> None:
    """Neither one that was never saved nor one in memory alone counts as durable."""
    model, _ = state_of()
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        flash.save(1, durable=False)
        for step in (1, 7):
            with pytest.raises(CheckpointError, match=rf"step {step} is not on its way to storage"):
                flash.wait(step)
        flash.save(1)
        flash.wait(1)
        flash.wait(1)


def test_a_full_directory_is_told_and_training_may_go_on(tmp_path: Path) -> None:
    """A step that cannot be committed raises in `wait`, by name; the next one is tried anew."""
    model, _ = state_of()
    flash = holdfast.Checkpointer(tmp_path / "ck", model=model)
    flash.save(1)
    flash.wait()
    (tmp_path / "ck").rename(tmp_path / "gone")
    flash.save(2)
    with pytest.raises(CheckpointError, match=r"step 2: .*No such file"):
        flash.wait()
    (tmp_path / "gone").rename(tmp_path / "ck")
    flash.save(3)
    flash.wait()
    assert flash.latest() == 3
    flash.close()


def test_a_damaged_newest_step_is_passed_over_with_a_warning(tmp_path: Path) -> None:
    """The step before it is loaded, and the warning names file and item."""
    model, _ = state_of()
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        for step in (1, 2):
            flash.save(step)
    path = tmp_path / "step_2" / "__0_0.distcp"
    content = bytearray(path.read_bytes())
    content[1500] ^= 1
    path.write_bytes(content)
    other, _ = state_of(3)
    with (
        holdfast.Checkpointer(tmp_path, model=other) as flash,
        pytest.warns(RuntimeWarning, match=r"step 2 was passed over: .*__0_0\.distcp: model\."),
    ):
        assert flash.load() == 1


def test_training_goes_on_without_its_keeper(tmp_path: Path) -> None:
    """A keeper that is killed is a warning once; a save that was asked for is an error."""
    model, optimizer = state_of()
    schedule = Schedule(memory_every=1, storage_every=2)
    flash = opened(tmp_path, (model, optimizer), schedule=schedule)
    flash.step(1)
    assert not flash._client, "memory that ends with this process is no use"
    flash.save(1, durable=False)
    assert flash._client is not None
    assert flash._client._process is not None
    flash._client._process.kill()
    flash._client._process.wait()
    with pytest.warns(RuntimeWarning, match="the checkpoint server is gone"):
        flash.step(2)
    for step in range(3, 9):
        assert flash.step(step) is CONTINUE
    with pytest.raises(CheckpointError, match="step 9: no slot"):
        flash.save(9)
    flash.close()


def test_a_step_is_saved_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    """One that is in memory is written from there; one that was written is not written again."""
    model, optimizer = state_of()
    with opened(tmp_path, (model, optimizer)) as flash:
        flash.save(3, durable=False)
        flash.save(3)
        flash.wait(3)
        before = (tmp_path / "step_3").stat().st_ino
        flash.save(3)
        flash.wait()
        assert (tmp_path / "step_3").stat().st_ino == before
    again, its_optimizer = state_of()
    with opened(tmp_path, (again, its_optimizer)) as flash:
        assert flash.load() == 3
        flash.save(3)
    assert (tmp_path / "step_3").stat().st_ino == before


def test_without_a_directory_and_an_agent_nothing_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script is the same: it starts from 0, steps, and no process is started for it."""
    monkeypatch.chdir(tmp_path)
    model, optimizer = state_of()
    with opened(None, (model, optimizer)) as flash:
        assert flash.load() == 0
        assert flash.step(1) is CONTINUE
        flash.save(1)
        flash.wait()
        assert flash.latest() == 0
        assert flash._client is None
    assert list(tmp_path.iterdir()) == []


def test_the_ranks_of_a_node_together_hold_what_each_of_them_needs() -> None:
    """Of what the whole world has alike; one rank alone does not, unless the node has no other."""
    model = torch.nn.Linear(2048, 1024)  # 8 MiB: cut into rows
    parts = Parts(shards=TorchShards({"": model}, {}), extra={}, per_rank={})

    def table(rank: int, local_world: int) -> Any:
        place = RankPosition(
            rank=rank, world=4, local_rank=rank % local_world, local_world=local_world
        )
        return Planner(place).plan(collect(parts, rank)).table

    whole = parts_of_model(
        collect(parts, 0), RankPosition(rank=0, world=4, local_rank=0, local_world=2)
    )
    assert whole == {"model.weight": (((0, 0), (1024, 2048)),), "model.bias": (((0,), (1024,)),)}
    assert lacking([table(0, 2), table(1, 2)], [whole]) == []
    assert "model.weight" in lacking([table(0, 2)])
    assert not table(2, 1).needs
