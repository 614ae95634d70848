"""Local SGD's state is saved without a side effect, and loads in worlds of other meshes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from checkpoints.flash_world import Keeping, Worlds
from house.extended import usual
from local_sgd import fsdp2_training
from local_sgd.compared import NESTEROV, Course, ends

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "local_sgd/process/test_fsdp2_checkpoints.py::test_any_mesh_loads_what_two_by_two_ranks_saved",
    ],
)
DETECTORS: Final = {
    "local_sgd_sync_interval": 2,
    "local_sgd_warmup_steps": 1,
    "skip_anomaly": True,
    "ewma_warmup_steps": 2,
}
STEPS: Final = 8
OF_ALL: Final = ("anchors", "momentum")
"""What has to be the same on all replicas, in every world."""


class Training(Worlds):
    """Worlds that load, train and save."""

    script = fsdp2_training.__file__

    def saved(self, root: Path, mesh: list[int], steps: int, **world: Any) -> list[dict[str, Any]]:
        """Return what each rank has loaded and has in the end."""
        world = {"config": DETECTORS, "outer": NESTEROV, "gta": {"reducer": "linear"}, **world}
        count = mesh[0] * mesh[1]
        where = {"world": count, "mesh": mesh, "kind": "fsdp", "root": str(root)}
        return self.run(job="saved", steps=steps, **where, **world)


@pytest.fixture(scope="module")
def course(training: Training, tmp_path_factory: pytest.TempPathFactory) -> Course:
    """A training that saves on its way."""
    root = tmp_path_factory.mktemp("course") / "root"
    return Course(root, training.saved(root, [2, 2], STEPS, saves=[5, 6]))


def test_atorch_bug_10_a_save_changes_nothing(
    training: Training, course: Course, tmp_path: Path
) -> None:
    """A training that saves ends as one that never does: no round is forced."""
    assert ends(course.ranks) == ends(training.saved(tmp_path, [2, 2], STEPS))


@pytest.mark.parametrize("at", [5, 6], ids=["before a round", "between rounds"])
def test_a_training_goes_on_as_if_it_had_not_stopped(
    training: Training, course: Course, tmp_path: Path, at: int
) -> None:
    """Bit by bit: weights, inner state, anchors, momentum, and the detectors of each replica."""
    again = training.saved(course.cut(at, tmp_path / "cut"), [2, 2], STEPS - at)
    assert [rank["loaded"] for rank in again] == [rank["saved"][str(at)] for rank in course.ranks]
    assert ends(again) == ends(course.ranks)


@pytest.mark.parametrize(
    "mesh",
    usual([[1, 2], [1, 1], [4, 1], [2, 1], [1, 4], [3, 1]], [1, 4], [3, 1], more=MORE),
    ids=str,
)
def test_any_mesh_loads_what_two_by_two_ranks_saved(
    training: Training, course: Course, tmp_path: Path, mesh: list[int]
) -> None:
    """Anchors and momentum are exact; a replica that was not saved starts from the anchors."""
    first = [rank["saved"]["6"] for rank in course.ranks]
    ranks = training.saved(course.cut(6, tmp_path / "cut"), mesh, 2)
    for rank, found in enumerate(ranks):
        replica, loaded = rank // mesh[1], found["loaded"]
        saved = first[2 * replica] if replica < 2 else first[0]
        assert [loaded[key] for key in OF_ALL] == [saved[key] for key in OF_ALL]
        assert loaded["inner"] == saved["inner"]
        assert loaded["weights"] == (saved["weights"] if replica < 2 else saved["anchors"])
    assert len({tuple(rank["end"][key] for key in OF_ALL) for rank in ranks}) == 1


def test_a_plain_job_loads_the_first_replica(
    training: Training, course: Course, tmp_path: Path
) -> None:
    """Its names are torch's, and what only local SGD knows is passed over."""
    root = str(course.cut(6, tmp_path / "cut"))
    ranks = training.run(job="plain", world=3, mesh=[1, 3], kind="fsdp", root=root, steps=0)
    for rank in ranks:
        assert rank["start"] == 6
        assert rank["weights"] == course.ranks[0]["saved"]["6"]["weights"]


def test_local_sgd_begins_from_a_plain_job_s_checkpoint(training: Training, tmp_path: Path) -> None:
    """All replicas have its weights and its inner state; anchors are taken from them."""
    world: dict[str, Any] = {"world": 2, "mesh": [1, 2], "kind": "fsdp", "root": str(tmp_path)}
    saved = training.run(job="plain", steps=3, **world)
    ranks = training.saved(tmp_path, [2, 2], 3, config={"local_sgd_sync_interval": 2})
    assert {rank["loaded"]["weights"] for rank in ranks} == {saved[0]["end"]}
    assert {rank["clock"]["steps"] for rank in ranks} == {0}
    assert len({rank["end"]["anchors"] for rank in ranks}) == 1


def test_killed_ranks_go_on_from_memory(training: Training, course: Course, tmp_path: Path) -> None:
    """Nothing on storage: every replica's state, anchors and momentum come from the arenas."""
    with Keeping(tmp_path) as keeping:
        here: dict[str, Any] = {"arena": keeping.path, "saves": [6]}
        training.saved(tmp_path / "root", [2, 2], 6, round=1, die=True, **here)
        again = training.saved(tmp_path / "root", [2, 2], STEPS - 6, round=2, **here)
    assert [rank["start"] for rank in again] == [6] * 4
    assert ends(again) == ends(course.ranks)


@pytest.mark.extended(
    "DDP's and Megatron's save it by the same code",
    held_by=[
        "local_sgd/process/test_ddp_checkpoints.py::test_what_a_codec_lost_is_saved",
    ],
)
def test_what_a_codec_lost_is_saved(training: Training, tmp_path: Path) -> None:
    """With error feedback the rounds after a resume are those of a training that went on."""
    world: dict[str, Any] = {
        "config": {"local_sgd_sync_interval": 2, "codec": "int8", "error_feedback": True},
        "outer": None,
        "gta": None,
    }
    whole = training.saved(tmp_path / "root", [2, 2], STEPS, saves=[5], **world)
    again = training.saved(tmp_path / "root", [2, 2], STEPS - 5, **world)
    assert ends(again) == ends(whole)
    # Cut anew for other chunks: no box is left out or doubled, which a commit would refuse.
    ranks = training.saved(tmp_path / "root", [4, 1], 2, saves=[7], **world)
    assert [rank["start"] for rank in ranks] == [5] * 4


def test_a_warm_up_loads_in_any_mesh(training: Training, tmp_path: Path) -> None:
    """Without anchors all replicas begin with the first one's weights, which were equal."""
    config = {"local_sgd_sync_interval": 2, "local_sgd_warmup_steps": 20}
    first = training.saved(tmp_path, [2, 2], 3, saves=[3], config=config)
    ranks = training.saved(tmp_path, [4, 1], 2, config=config)
    assert {rank["loaded"]["weights"] for rank in ranks} == {first[0]["end"]["weights"]}
    assert len({rank["end"]["weights"] for rank in ranks}) == 1
