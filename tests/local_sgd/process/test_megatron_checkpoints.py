"""Local SGD under Megatron is saved without a side effect, and loads in worlds of other layouts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from house.extended import usual
from local_sgd.compared import NESTEROV, Course
from megatron_worlds.worlds import Worlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "local_sgd/process/test_megatron_checkpoints.py::test_any_layout_loads_what_two_by_two_ranks_saved",
    ],
)
UNTIL: Final = 8
AT: Final = 6
"""Between the rounds after steps 5 and 7."""
TRAINING: Final = {
    "config": {
        "local_sgd_warmup_steps": 1,
        "local_sgd_sync_interval": 2,
        "skip_anomaly": True,
        "ewma_warmup_steps": 2,
    },
    "outer": NESTEROV,
}
SMALL: Final = {"layers": 2, "hidden": 16}


def _run(worlds: Worlds, root: Path, **given: Any) -> list[dict[str, Any]]:
    setup = {**SMALL, **given.pop("setup", {})}
    shared = {"world": 4, "replicas": 2, "until": UNTIL, **TRAINING, **given}
    return worlds.run(job="replicas", call="saved", root=str(root), setup=setup, **shared)


@pytest.fixture(scope="module")
def course(worlds: Worlds, tmp_path_factory: pytest.TempPathFactory) -> Course:
    """A training that saves on its way."""
    root = tmp_path_factory.mktemp("course") / "root"
    return Course(root, _run(worlds, root, saves=[AT]))


def test_a_training_goes_on_as_if_it_had_not_stopped(
    worlds: Worlds, course: Course, tmp_path: Path
) -> None:
    """Bit by bit, between two rounds: masters, inner state, anchors, momentum."""
    again = _run(worlds, course.cut(AT, tmp_path / "cut"))
    assert [one["start"] for one in again] == [AT] * 4
    assert [one["loaded"] for one in again] == [one[f"saved {AT}"] for one in course.ranks]
    assert [one["end"] for one in again] == [one["end"] for one in course.ranks]
    assert [one["weights"] for one in again] == [one["weights"] for one in course.ranks]


@pytest.mark.extended(
    "codecs are the same code in each framework",
    held_by=["local_sgd/process/test_ddp_checkpoints.py::test_what_a_codec_lost_is_saved"],
)
def test_what_a_codec_lost_is_in_the_checkpoint(worlds: Worlds, tmp_path: Path) -> None:
    """With error feedback, too, a training goes on bit by bit, with anchors in host memory."""
    config = {
        "local_sgd_sync_interval": 2,
        "codec": "int8",
        "error_feedback": True,
        "cpu_offload": True,
    }
    coarse = {"config": config, "outer": None}
    course = _run(worlds, tmp_path / "root", saves=[AT], **coarse)
    again = _run(worlds, tmp_path / "root", **coarse)
    assert [one["start"] for one in again] == [AT] * 4
    assert [one["end"] for one in again] == [one["end"] for one in course]
    shutil.rmtree(tmp_path / "root")
    exact = {"config": {**config, "codec": "none", "error_feedback": False}, "outer": None}
    assert _run(worlds, tmp_path / "root", **exact)[0]["end"] != course[0]["end"]


LAYOUTS: Final[dict[str, dict[str, Any]]] = {
    "one replica of two": {"world": 2, "replicas": 1},
    "four replicas of one": {"replicas": 4},
    "tensor parallel replicas": {"setup": {"tensor": 2}},
    "pipelines": {"setup": {"pipeline": 2}},
    "plain optimizer": {"setup": {"distributed": False}},
}


@pytest.mark.parametrize("name", usual(LAYOUTS, *list(LAYOUTS)[::3], more=MORE))
def test_any_layout_loads_what_two_by_two_ranks_saved(
    worlds: Worlds, course: Course, tmp_path: Path, name: str
) -> None:
    """Anchors and momentum are exact; a replica that was not saved starts from the anchors."""
    saved = [course.ranks[rank][f"saved {AT}"] for rank in (0, 2)]
    ranks = _run(worlds, course.cut(AT, tmp_path / "cut"), until=AT + 1, **LAYOUTS[name])
    for one in ranks:
        loaded = one["loaded"]
        assert [loaded[key] for key in ("anchors", "momentum")] == [
            saved[0][key] for key in ("anchors", "momentum")
        ]
        known = {each["masters"]: each["inner"] for each in saved}
        known.setdefault(saved[0]["anchors"], saved[0]["inner"])
        assert known[loaded["masters"]] == loaded["inner"]
    replicas = LAYOUTS[name].get("replicas", 2)
    assert len({one["loaded"]["masters"] for one in ranks}) == min(replicas, 3)
    assert len({(one["end"]["anchors"], one["end"]["momentum"]) for one in ranks}) == 1
