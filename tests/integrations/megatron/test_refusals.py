"""A checkpoint that does not fit is refused by name, and the model stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from megatron_worlds.worlds import Worlds

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),  # it reads alone
]


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (
            {"hidden": 64},
            "is float32 (64, 64), in the checkpoint ('float32', (64, 32))",
        ),
        ({"gated": True}, "model.decoder.layers.mlp.linear_fc1.weight is float32 (4, 128, 32)"),
        ({"tied": True}, "model.output_layer.weight is not in the state"),
        ({"optimizer": "sgd", "distributed": False}, "was saved by AdamW"),
    ],
)
def test_another_model_or_optimizer_is_refused(
    worlds: Worlds, tmp_path: Path, here: dict[str, Any], said: str
) -> None:
    """The error names the tensor, the form here and the form there; another layout is no error."""
    worlds.run(world=2, root=str(tmp_path), until=1, save_at=[1], setup={"tensor": 2})
    for setup in (here, {**here, "pipeline": 2}):
        told = worlds.run(world=2, root=str(tmp_path), setup=setup, seed=2)
        assert any(said in rank["refused"] for rank in told), told[0]["refused"]
        assert all(rank["untouched"] for rank in told)


def _rewrite(root: Path, change: Callable[[dict[str, Any]], None], target: Path) -> None:
    """Write a step again, with plain torch state that a change was made to."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch import nn

    from holdfast import Checkpointer

    reader = dcp.FileSystemReader(root / "step_1")
    metadata = reader.read_metadata()
    state = {
        name: torch.empty(one.size, dtype=one.properties.dtype)
        for name, one in metadata.state_dict_metadata.items()
        if hasattr(one, "size")
    }
    dcp.load(state, checkpoint_id=root / "step_1", no_dist=True)
    change(state)
    values = _values(root)

    class Plain(nn.Module):
        """Nothing."""

    class Shards:
        """The state as whole tensors."""

        def collect(self, leaves: Any) -> None:
            for name, tensor in state.items():
                leaves.add_box(_paths(root)[name], tensor, tensor.shape, (0,) * tensor.dim())
            for path, value in values.values():
                if path[0] in ("optimizer", "megatron"):
                    leaves.add_value(path, _constant(value))
            leaves.optimizers["optimizer"] = ("torch.optim.adamw.AdamW", "torch.optim.adam.Adam")

        def accept(self, filling: Any) -> None:
            """Nothing is loaded."""

        def finish(self, *, partial: bool) -> None:
            """Nothing is loaded."""

    with Checkpointer(target, shards=Shards()) as flash:
        flash.save(1)


def _constant(value: Any) -> Any:
    return lambda: value


def _paths(root: Path) -> Mapping[str, tuple[str | int, ...]]:
    from holdfast.flash.trainer.reshard import of_files, stored

    return stored(of_files(str(root / "step_1")), 1).paths


def _values(root: Path) -> dict[str, tuple[tuple[str | int, ...], Any]]:
    from holdfast.flash.trainer.reshard import of_files, stored
    from holdfast.flash.trainer.values import decode_value

    found = stored(of_files(str(root / "step_1")), 1)
    return {
        name: (found.paths[name], decode_value(name, found.value(name))) for name in found.values
    }


MOMENT = "optimizer.state.decoder.final_layernorm.weight.exp_avg"


def _halved(state: dict[str, Any]) -> None:
    state[MOMENT] = state[MOMENT].half()


def _without(state: dict[str, Any]) -> None:
    del state[MOMENT]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_halved, f"{MOMENT} is float32 (32,), in the checkpoint ('float16', (32,))"),
        (_without, f"{MOMENT} is not in the checkpoint"),
    ],
)
def test_wrong_or_missing_state_is_refused(
    worlds: Worlds, tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    """Moments in 16 bits, or a tensor that is gone, are named; the whole state stays."""
    worlds.run(world=2, root=str(tmp_path / "a"), until=1, save_at=[1], setup={"tensor": 2})
    _rewrite(tmp_path / "a", lambda _: None, tmp_path / "b")
    assert worlds.run(world=2, root=str(tmp_path / "b"))[0]["start"] == 1, "the same, rewritten"
    _rewrite(tmp_path / "a", change, tmp_path / "c")
    told = worlds.run(world=2, root=str(tmp_path / "c"), setup={"pipeline": 2})
    assert any(said in rank["refused"] for rank in told), told[0]["refused"]
    assert all(rank["untouched"] for rank in told)


def test_partial_takes_what_fits(worlds: Worlds, tmp_path: Path) -> None:
    """load(partial=True) fills the tensors that have the same form, and trains on."""
    setup = {"tensor": 2}
    worlds.run(world=2, root=str(tmp_path), until=1, save_at=[1], setup=setup)
    told = worlds.run(
        world=2, root=str(tmp_path), until=2, setup={**setup, "gated": True}, partial=True, seed=2
    )
    assert told[0]["start"] == 1
    assert len(told[0]["losses"]) == 1
