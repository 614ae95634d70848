"""A checkpoint that does not fit is refused by name, and the model stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.flash.tools.formats import holdfast_step
from holdfast.flash.tools.formats.foreign import ForeignTensor, whole
from megatron_worlds.worlds import Worlds

pytestmark = pytest.mark.train


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ({"hidden": 64}, "is float32 (64, 64), in the checkpoint ('float32', (64, 32))"),
        ({"gated": True}, "model.decoder.layers.mlp.linear_fc1.weight is float32 (4, 128, 32)"),
        ({"tied": True}, "model.output_layer.weight is not in the state"),
        ({"optimizer": "sgd", "distributed": False}, "was saved by AdamW"),
    ],
)
def test_another_model_or_optimizer_is_refused(
    worlds: Worlds, tmp_path: Path, here: dict[str, Any], said: str
) -> None:
    """The error names the tensor, the form here and the form there; another layout is no error."""
    worlds.run(world=2, root=tmp_path, until=1, save_at=[1], setup={"tensor": 2})
    for setup in (here, {**here, "pipeline": 2}):
        told = worlds.run(world=2, root=tmp_path, setup=setup, seed=2)
        assert any(said in rank["refused"] for rank in told), told[0]["refused"]
        assert all(rank["untouched"] for rank in told)


@pytest.mark.parametrize(
    ("world", "setup", "name"),
    [
        (
            4,
            {"pipeline": 2, "tied": True, "buckets": 3000},
            "model.embedding.word_embeddings.weight",
        ),
        (2, {"tensor": 2}, "optimizer.state.decoder.layers.mlp.linear_fc2.bias.exp_avg"),
    ],
    ids=["tied", "norms"],
)
def test_parted_copies_are_never_saved_as_one(
    worlds: Worlds, tmp_path: Path, world: int, setup: dict[str, Any], name: str
) -> None:
    """Tied embeddings lie in other ranges of both stages' optimizers; norms are on two ranks."""
    told = worlds.run(world=world, job="parted", root=tmp_path, setup=setup, part=name)
    assert all(f"{name} on rank" in rank["refused"] for rank in told), told


STATE = {"optimizer", "megatron"}
_Tensors = dict[str, ForeignTensor]


def _rewrite(root: Path, change: Callable[[_Tensors], None], target: Path) -> None:
    """Write step 1 again, after a change of its tensors, without what each rank has for itself."""
    found = holdfast_step.read(str(root / "step_1"))
    tensors = {one.name: one for one in found.tensors}
    change(tensors)
    values = {path: one for path, one in found.values.items() if path[0] in STATE}
    changed = replace(found, tensors=tuple(tensors.values()), values=values)
    holdfast_step.write(changed, str(target), 1, lambda _: None)


MOMENT = "optimizer.state.decoder.final_layernorm.weight.exp_avg"


def _halved(state: _Tensors) -> None:
    one = state[MOMENT]
    state[MOMENT] = whole(one.path, "float16", one.shape, "", lambda: one.load().half())


def _without(state: _Tensors) -> None:
    del state[MOMENT]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_halved, f"{MOMENT} is float32 (32,), in the checkpoint ('float16', (32,))"),
        (_without, f"{MOMENT} is not in the checkpoint"),
    ],
)
def test_wrong_or_missing_state_is_refused(
    worlds: Worlds, tmp_path: Path, change: Callable[[_Tensors], None], said: str
) -> None:
    """Moments in 16 bits, or a tensor that is gone, are named; the whole state stays."""
    worlds.run(world=2, root=tmp_path / "a", until=1, save_at=[1], setup={"tensor": 2})
    _rewrite(tmp_path / "a", lambda _: None, tmp_path / "b")
    assert worlds.run(world=2, root=tmp_path / "b")[0]["start"] == 1, "the same, rewritten"
    _rewrite(tmp_path / "a", change, tmp_path / "c")
    told = worlds.run(world=2, root=tmp_path / "c", setup={"pipeline": 2})
    assert any(said in rank["refused"] for rank in told), told[0]["refused"]
    assert all(rank["untouched"] for rank in told)


def test_partial_takes_what_fits(worlds: Worlds, tmp_path: Path) -> None:
    """load(partial=True) fills the tensors that have the same form, and trains on."""
    setup = {"tensor": 2}
    worlds.run(world=2, root=tmp_path, until=1, save_at=[1], setup=setup)
    told = worlds.run(
        world=2, root=tmp_path, until=2, setup={**setup, "gated": True}, partial=True, seed=2
    )
    assert told[0]["start"] == 1
    assert len(told[0]["losses"]) == 1
