"""A `PipelineModule` with a tied layer moves to another number of stages and replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints.deepspeed_world import DeepSpeedWorlds
from house.extended import usual

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]


MORE = pytest.mark.extended(
    "two replicas of the same stages save as one does",
    held_by=[
        "integrations/deepspeed/test_pipelines.py::test_a_pipeline_continues_with_other_stages_and_replicas"
    ],
)


@pytest.mark.parametrize("saver", usual([[2, 2], [4, 2]], [2, 2], more=MORE))
def test_a_pipeline_continues_with_other_stages_and_replicas(
    worlds: DeepSpeedWorlds, tmp_path: Path, saver: list[int]
) -> None:
    """(ranks, stages): each loads the other's tensors, and the next losses are the same."""
    root, (world, stages) = tmp_path / "saved", saver
    common = {"job": "pipe", "root": root}
    saved = worlds.run(world=world, pipe=stages, steps=3, save=True, more=5, **common)
    folders = [f"{root}/step_3"]
    for ranks, count in (saver, (1, 1), (3, 1), (4, 4)):
        copy = tmp_path / f"{ranks}_{count}"
        loads = worlds.run(world=ranks, pipe=count, steps=5, seed=4, copy=str(copy), **common)
        folders.append(f"{copy}/step_3")
        for rank in loads:
            assert rank["start"] == 3
            assert rank["steps"] == 8
            if [ranks, count] == saver:
                assert rank["losses"] == saved[0]["more"]
            assert rank["losses"] == pytest.approx(saved[0]["more"], rel=0, abs=1e-6)
    first, *others = worlds.run(kind="plain", job="read", world=1, folders=folders)[0]["hashes"]
    assert len(first) > 20
    for other in others:
        assert other == first


def test_a_tied_layer_with_an_untied_bias_is_refused(
    worlds: DeepSpeedWorlds, tmp_path: Path
) -> None:
    """DeepSpeed ties weights alone by default: each stage trains its own bias, and one is lost."""
    ranks = worlds.run(
        job="pipe", root=tmp_path, world=2, pipe=2, steps=1, save=True, untied=True, may_fail=True
    )
    for rank in ranks:
        assert "bias of a tied layer differs on its stages" in rank["error"]
        assert "tied_weight_attr=['weight', 'bias']" in rank["error"]
