"""A checkpoint that does not fit is refused by name, and the model stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from holdfast import Checkpointer
from holdfast.flash.trainer.leaves import Leaves
from holdfast.flash.trainer.reshard import Filling, of_files, stored
from holdfast.flash.trainer.values import decode_value
from megatron_worlds.worlds import Worlds

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # it reads alone
]


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


class _Whole:
    """A checkpoint's state as whole tensors, to be saved again after a change."""

    def __init__(self, root: Path) -> None:
        """Read step 1 of a directory."""
        found = stored(of_files(str(root / "step_1")), 1)
        self.tensors = _tensors(root / "step_1")
        self._paths, self._kinds = found.paths, found.optimizers
        self._values = {name: decode_value(name, found.value(name)) for name in found.values}

    def collect(self, leaves: Leaves) -> None:
        """List everything but what each rank has for itself."""
        for name, tensor in self.tensors.items():
            leaves.add_box(self._paths[name], tensor, tensor.shape, (0,) * tensor.dim())
        for name, value in self._values.items():
            if self._paths[name][0] in {"optimizer", "megatron"}:
                leaves.add_value(self._paths[name], partial(copy, value))
        leaves.optimizers.update(self._kinds)

    def accept(self, filling: Filling) -> None:
        """Load nothing."""

    def finish(self, *, partial: bool) -> None:
        """Load nothing."""


def _tensors(step: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of a checkpoint, read by torch alone."""
    metadata = dcp.FileSystemReader(step).read_metadata().state_dict_metadata
    found = {
        name: torch.empty(one.size, dtype=one.properties.dtype)
        for name, one in metadata.items()
        if isinstance(one, TensorStorageMetadata)
    }
    loaded: dict[str, Any] = dict(found)
    dcp.load(loaded, checkpoint_id=step, no_dist=True)
    return found


def _rewrite(root: Path, change: Callable[[dict[str, torch.Tensor]], None], target: Path) -> None:
    """Write a step again, after a change of its tensors."""
    whole = _Whole(root)
    change(whole.tensors)
    with Checkpointer(target, shards=whole) as flash:
        flash.save(1)


MOMENT = "optimizer.state.decoder.final_layernorm.weight.exp_avg"


def _halved(state: dict[str, torch.Tensor]) -> None:
    state[MOMENT] = state[MOMENT].half()


def _without(state: dict[str, torch.Tensor]) -> None:
    del state[MOMENT]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_halved, f"{MOMENT} is float32 (32,), in the checkpoint ('float16', (32,))"),
        (_without, f"{MOMENT} is not in the checkpoint"),
    ],
)
def test_wrong_or_missing_state_is_refused(
    worlds: Worlds, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], said: str
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
