"""A state that one layout saved is the same in every other layout, and trains on alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from house.extended import usual
from house.sample import sampled
from megatron_worlds.worlds import Worlds

pytestmark = pytest.mark.train
OTHER_WAY = pytest.mark.extended(
    "the same along the other dimension",
    held_by=[
        "integrations/megatron/test_reshapes.py::test_extra_states_of_modules_move_with_their_layers"
    ],
)
LAYOUTS = [
    {"world": world, "tensor": tensor, "pipeline": pipeline}
    for tensor, pipeline in ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1))
    for world in (1, 2, 4)
    if world % (tensor * pipeline) == 0
]


def _of(layout: dict[str, int], **model: Any) -> dict[str, Any]:
    """Return a world's arguments."""
    setup = {key: value for key, value in layout.items() if key != "world"}
    return {"world": layout["world"], "setup": {**setup, **model}}


def _named(layout: dict[str, int]) -> str:
    data = layout["world"] // layout["tensor"] // layout["pipeline"]
    return f"tensor{layout['tensor']}-pipeline{layout['pipeline']}-data{data}"


@pytest.mark.slow
@pytest.mark.parametrize("layout", sampled(LAYOUTS, 1), ids=_named)
def test_any_layout_goes_on_from_any_other(
    worlds: Worlds, tmp_path: Path, layout: dict[str, int]
) -> None:
    """Every global tensor has the same bytes, and the next losses differ by less than 1e-6.

    Some layouts each time; `make test-matrix` has all 81 pairs.
    """
    first = worlds.run(root=tmp_path, until=4, save_at=[2], seed=7, **_of(layout))[0]
    assert len(first["saved"]) == 68  # weights, masters, two moments of 17 global tensors
    for other in [layout, *sampled(LAYOUTS[::-1], 3)]:
        for rank in worlds.run(root=tmp_path, until=4, seed=9, **_of(other)):
            assert rank["start"] == 2
            assert rank["loaded"] == first["saved"], _named(other)
            assert rank["losses"] == pytest.approx(first["losses"][2:], abs=1e-6), _named(other)
            if other == layout:
                assert rank["final"] == first["final"]


MODELS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "bf16": (
        {"world": 4, "tensor": 2, "precision": "bf16"},
        [{"world": 1, "tensor": 1}, {"world": 4, "pipeline": 2}, {"world": 4, "tensor": 4}],
    ),
    "buckets": (
        {"world": 4, "tensor": 1, "buckets": 3000, "gated": True},
        [{"world": 1, "buckets": None}, {"world": 4, "buckets": 500}, {"world": 4, "tensor": 2}],
    ),
    "late-gather": (
        {"world": 4, "precision": "bf16", "buckets": 3000, "late_gather": True},
        [{"world": 4, "late_gather": False}, {"world": 4, "tensor": 2}],
    ),
    "gated": (
        {"world": 4, "tensor": 2, "pipeline": 2, "gated": True},
        [{"world": 1, "tensor": 1, "pipeline": 1}, {"world": 4, "tensor": 4, "pipeline": 1}],
    ),
    "tied": (
        {"world": 4, "pipeline": 2, "tied": True},
        [{"world": 1, "pipeline": 1}, {"world": 4, "tensor": 2}, {"world": 2}],
    ),
    "virtual": (
        {"world": 4, "pipeline": 2, "virtual": 2},
        [{"world": 1, "pipeline": 1, "virtual": None}, {"world": 4, "tensor": 2}, {"world": 2}],
    ),
    "experts": (
        {"world": 4, "expert": 2, "experts": 4},
        [{"world": 1, "expert": 1}, {"world": 4, "expert": 4}, {"world": 4, "pipeline": 2}],
    ),
    "fused": (
        {"world": 4, "pipeline": 2, "optimizer": "fused"},
        [{"world": 1, "pipeline": 1}, {"world": 4, "optimizer": "adam"}],
    ),
    "instances": (
        {"world": 4, "instances": 2, "buckets": 3000},
        [{"world": 1, "instances": 1, "buckets": None}, {"world": 4, "tensor": 2, "instances": 1}],
    ),
    "not-distributed": (
        {"world": 2, "distributed": False},
        [{"world": 4, "distributed": True}, {"world": 4, "tensor": 2}, {"world": 1}],
    ),
    "not-distributed-bf16": (
        {"world": 2, "distributed": False, "precision": "bf16"},
        [{"world": 4, "distributed": True}, {"world": 1}],
    ),
}


@pytest.mark.parametrize("name", sampled(list(MODELS), 1))
def test_any_model_goes_on_in_another_layout(worlds: Worlds, tmp_path: Path, name: str) -> None:
    """That holds for 16-bit weights, halves of gated units, tied weights, chunks, experts."""
    saver, others = MODELS[name]
    first = worlds.run(root=tmp_path, until=4, save_at=[2], seed=7, **_of(saver))[0]
    near = 2e-3 if saver.get("precision") == "bf16" else 1e-6  # sums in another order
    for other in (saver, *others):
        rank = worlds.run(root=tmp_path, until=4, seed=9, **_of({**saver, **other}))[0]
        assert rank["start"] == 2
        assert rank["loaded"] == first["saved"], other
        assert rank["losses"] == pytest.approx(first["losses"][2:], abs=near), other
        if other == saver:
            assert rank["final"] == first["final"]


@pytest.mark.extended(
    "padded weights are reshaped as others are",
    held_by=[
        "integrations/megatron/test_reshapes.py::test_any_layout_goes_on_from_any_other",
        "integrations/megatron/test_reshapes.py::test_any_model_goes_on_in_another_layout",
    ],
)
def test_a_vocabulary_may_be_padded_to_another_size(worlds: Worlds, tmp_path: Path) -> None:
    """Megatron pads it to a multiple that depends on the tensor parallel size."""
    small, large = {"vocabulary": 64}, {"vocabulary": 72, "tensor": 2}
    first = worlds.run(world=2, root=tmp_path, until=1, save_at=[1], setup=large, seed=7)[0]
    fewer = worlds.run(world=2, root=tmp_path, setup=small, seed=9)[0]
    assert fewer["start"] == 1
    padded = {key for key in first["saved"] if "word_embeddings" in key or "output_layer" in key}
    assert len(padded) == 8
    for key in first["saved"]:
        assert (fewer["loaded"][key] == first["saved"][key]) is (key not in padded), key
    back = worlds.run(world=2, root=tmp_path / "b", until=1, save_at=[1], setup=small, seed=7)[0]
    more = worlds.run(world=2, root=tmp_path / "b", until=3, setup=large, seed=9)[0]
    assert more["start"] == 1
    assert {key for key in back["saved"] if more["loaded"][key] != back["saved"][key]} == padded


@pytest.mark.parametrize(
    "other", usual([{"pipeline": 2}, {"tensor": 2}], {"tensor": 2}, more=OTHER_WAY)
)
def test_extra_states_of_modules_move_with_their_layers(
    worlds: Worlds, tmp_path: Path, other: dict[str, int]
) -> None:
    """Bytes, as FP8 scales are, belong to a layer of the whole model, on whatever rank it is."""
    setup = {"pipeline": 2, "tensor": 2}
    saver: dict[str, Any] = {"world": 4, "until": 1, "save_at": [1], "setup": setup}
    worlds.run(root=tmp_path, scales="saved", **saver)
    ranks = worlds.run(root=tmp_path, world=2, setup=other, scales="here")
    found = {key: value for rank in ranks for key, value in rank["restored"].items()}
    assert found == {f"{number}": f"saved {number}" for number in (1, 2, 3, 4)}


def test_overlapped_copies_have_the_state_of_their_step(worlds: Worlds, tmp_path: Path) -> None:
    """The next optimizer step waits for the copies of the masters and moments."""
    setup = {"precision": "bf16", "tensor": 2}
    first = worlds.run(
        world=4, root=tmp_path, until=3, save_at=[2], setup=setup, seed=7, overlap=True
    )[0]
    rank = worlds.run(world=4, root=tmp_path, setup=setup, seed=9)[0]
    assert rank["loaded"] == first["saved"]


def test_weights_alone_load_without_an_optimizer(worlds: Worlds, tmp_path: Path) -> None:
    """For an evaluation, 16-bit weights are rounded from the masters, as a step rounds them."""
    setup = {"precision": "bf16", "tensor": 2}
    first = worlds.run(world=4, root=tmp_path, until=2, save_at=[2], setup=setup, seed=7)[0]
    found = worlds.run(world=1, job="evaluate", root=tmp_path, setup={"precision": "bf16"})
    assert found[0]["start"] == 2
    assert found[0]["weights"] == first["saved weights"]
