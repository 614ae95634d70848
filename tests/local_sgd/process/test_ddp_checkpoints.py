"""Flash checkpoints of DDP's replicas: whole, without a side effect, in any number of replicas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from checkpoints.flash_world import Worlds
from house.extended import usual
from local_sgd import ddp_saves, fsdp2_training
from local_sgd.compared import NESTEROV, Course, ends

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "local_sgd/process/test_ddp_checkpoints.py::test_a_training_goes_on_as_if_it_had_not_stopped",
        "local_sgd/process/test_ddp_checkpoints.py::test_other_numbers_of_replicas_load_it",
        "local_sgd/process/test_ddp_checkpoints.py::test_fsdp2_loads_what_ddp_saved",
        "local_sgd/process/test_ddp_checkpoints.py::test_ddp_loads_what_fsdp2_saved",
    ],
)
SETTINGS: Final = {
    "config": {
        "local_sgd_sync_interval": 2,
        "local_sgd_warmup_steps": 1,
        "skip_anomaly": True,
        "ewma_warmup_steps": 2,
    },
    "outer": NESTEROV,
    "gta": {"reducer": "linear"},
}
STEPS: Final = 8
OF_ALL: Final = ("anchors", "momentum")
"""What has to be the same on all replicas, in every world."""


class Training(Worlds):
    """Worlds of DDP."""

    script = ddp_saves.__file__

    def saved(self, root: Path, replicas: int, steps: int, **world: Any) -> list[dict[str, Any]]:
        """Return what each replica has loaded and has in the end."""
        given = {"job": "saved", "world": replicas, "kind": "gloo", "root": str(root)}
        return self.run(steps=steps, **given, **{**SETTINGS, **world})


class Sharded(Worlds):
    """Worlds of FSDP2."""

    script = fsdp2_training.__file__

    def saved(self, root: Path, mesh: list[int], steps: int, **world: Any) -> list[dict[str, Any]]:
        """Return what each rank has loaded and has in the end."""
        where = {"world": mesh[0] * mesh[1], "mesh": mesh, "kind": "fsdp", "root": str(root)}
        return self.run(job="saved", steps=steps, **where, **{**SETTINGS, **world})


@pytest.fixture(scope="module")
def sharded() -> Iterator[Sharded]:
    """One process with torch for the worlds of FSDP2."""
    with Sharded() as started:
        yield started


@pytest.fixture(scope="module")
def course(training: Training, tmp_path_factory: pytest.TempPathFactory) -> Course:
    """A training that saves on its way."""
    root = tmp_path_factory.mktemp("course") / "root"
    return Course(root, training.saved(root, 2, STEPS, saves=[5, 6, 7]))


def test_a_save_changes_nothing(training: Training, course: Course, tmp_path: Path) -> None:
    """A training that saves ends as one that never does."""
    assert ends(course.ranks) == ends(training.saved(tmp_path, 2, STEPS))


@pytest.mark.parametrize("at", [5, 6], ids=["after a round", "between rounds"])
def test_a_training_goes_on_as_if_it_had_not_stopped(
    training: Training, course: Course, tmp_path: Path, at: int
) -> None:
    """Bit by bit: each replica's weights and inner state, anchors, momentum, detectors."""
    again = training.saved(course.cut(at, tmp_path / "cut"), 2, STEPS - at)
    assert [rank["loaded"] for rank in again] == [rank["saved"][str(at)] for rank in course.ranks]
    assert [rank["clock"]["alone"] for rank in again] == [0 if at == 5 else 1] * 2
    assert ends(again) == ends(course.ranks)


@pytest.mark.parametrize("replicas", usual([1, 3], 3, more=MORE))
def test_other_numbers_of_replicas_load_it(
    training: Training, course: Course, tmp_path: Path, replicas: int
) -> None:
    """Anchors and momentum are exact; a replica that was not saved starts from the anchors."""
    ranks = training.saved(course.cut(6, tmp_path / "cut"), replicas, 2)
    for number, rank in enumerate(ranks):
        saved = course.ranks[number if number < 2 else 0]["saved"]["6"]
        assert [rank["loaded"][key] for key in OF_ALL] == [saved[key] for key in OF_ALL]
        assert rank["loaded"]["inner"] == saved["inner"]
        assert rank["loaded"]["weights"] == saved["weights" if number < 2 else "anchors"]
    assert len({tuple(rank["end"][key] for key in OF_ALL) for rank in ranks}) == 1


@pytest.mark.parametrize("mesh", usual([[2, 2], [1, 1], [3, 1]], [2, 2], more=MORE), ids=str)
def test_fsdp2_loads_what_ddp_saved(
    sharded: Sharded, course: Course, tmp_path: Path, mesh: list[int]
) -> None:
    """In any mesh: the names are the parameters', whatever a unit is."""
    ranks = sharded.saved(course.cut(6, tmp_path / "cut"), mesh, 3)
    for number, rank in enumerate(ranks):
        replica = number // mesh[1]
        saved = course.ranks[replica if replica < 2 else 0]["saved"]["6"]
        assert [rank["loaded"][key] for key in OF_ALL] == [saved[key] for key in OF_ALL]
        assert rank["loaded"]["inner"] == saved["inner"]
        assert (rank["clock"]["steps"], rank["clock"]["alone"]) == (6, 1)
    assert len({tuple(rank["end"][key] for key in OF_ALL) for rank in ranks}) == 1


@pytest.mark.parametrize("at", [5, 6], ids=["before a round", "between rounds"])
def test_ddp_loads_what_fsdp2_saved(
    training: Training, sharded: Sharded, tmp_path: Path, at: int
) -> None:
    """Also where its checkpoint lies before a round: that runs before the next step."""
    saved = sharded.saved(tmp_path, [2, 2], at, saves=[at])
    ranks = training.saved(tmp_path, 2, 4)
    for number, rank in enumerate(ranks):
        assert rank["loaded"] == saved[2 * number]["saved"][str(at)]
        assert rank["clock"]["due"] == (at == 5)
    assert len({tuple(rank["end"][key] for key in OF_ALL) for rank in ranks}) == 1
    assert ranks[0]["end"]["momentum"] != saved[0]["saved"][str(at)]["momentum"]


def test_what_a_codec_lost_is_saved(training: Training, tmp_path: Path) -> None:
    """With error feedback the rounds after a resume are those of a training that went on."""
    world: dict[str, Any] = {
        "config": {"local_sgd_sync_interval": 2, "codec": "int8", "error_feedback": True},
        "outer": None,
        "gta": None,
    }
    whole = training.saved(tmp_path / "root", 2, STEPS, saves=[5], **world)
    again = training.saved(tmp_path / "root", 2, STEPS - 5, **world)
    assert ends(again) == ends(whole)


def test_a_resume_by_time_keeps_each_replica_s_steps(training: Training, tmp_path: Path) -> None:
    """A-EDiT: steps since the last round are those of each replica's own."""
    config = {"use_async": True, "local_sgd_sync_time": 600.0, "use_step_weight": True}
    saved = training.saved(tmp_path, 2, 3, config=config, saves=[3])
    again = training.saved(tmp_path, 2, 0, config=config)
    assert [rank["clock"]["alone"] for rank in again] == [3, 3]
    assert [rank["loaded"] for rank in again] == [rank["saved"]["3"] for rank in saved]
