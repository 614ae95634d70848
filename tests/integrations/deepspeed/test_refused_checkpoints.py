"""A checkpoint that does not fit an engine is refused by name, and the engine stays as it is."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints.deepspeed_world import DeepSpeedWorlds
from holdfast.flash.trainer.leaves import StateError
from holdfast.integrations.deepspeed.engine_state import warn_of_another_scheduler
from holdfast.integrations.deepspeed.partitions import Flat, FlatPiece, refuse_whole_momentum
from house.sample import sampled

pytestmark = [pytest.mark.train, pytest.mark.timeout(200)]
WARM_UP = {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}
DECAY = {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 4, "total_num_steps": 9}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "a changed model": (
        {},
        {"width": 10},
        ["model.first.weight is float32 (10, 5), in the checkpoint ('float32', (9, 5))"],
    ),
    "another optimizer": (
        {},
        {"optimizer": "SGD"},
        ["optimizer:", "was saved by AdamW", "this job has SGD", "train with AdamW"],
    ),
    "another form of the optimizer": (
        {},
        {"options": {"amsgrad": True}},
        ["optimizer:", "was saved with amsgrad=False, this job has amsgrad=True"],
    ),
    "other groups": (
        {"groups": True},
        {},
        ["optimizer.param_groups: 2 groups in the checkpoint, 1 here"],
    ),
    "a trained parameter that was frozen": (
        {"frozen": True},
        {},
        [
            "optimizer.state.middle.weight.exp_avg is not in the checkpoint",
            "optimizer.param_groups.0.params",
            "lacks middle.weight",
        ],
    ),
    "a frozen parameter that was trained": (
        {},
        {"frozen": True},
        ["optimizer.state.middle.weight.exp_avg is not in the state"],
    ),
    "another scheduler": (
        {"scheduler": WARM_UP},
        {"scheduler": DECAY},
        ["deepspeed.lr_scheduler is a WarmupLR in the checkpoint, a WarmupDecayLR here"],
    ),
}


@pytest.mark.parametrize("name", sampled(list(CASES), 2))
def test_a_difference_is_named_and_nothing_is_touched(
    worlds: DeepSpeedWorlds, tmp_path: Path, name: str
) -> None:
    """The error names what was found and what would be right; masters and moments stay."""
    saver, loader, texts = CASES[name]
    common = {"world": 2}
    worlds.run(job="save", stage=2, root=tmp_path, steps=2, more=0, **common, **saver)
    for stage in (1, 3):
        ranks = worlds.run(job="load", stage=stage, roots=[tmp_path], warm=1, **common, **loader)
        for rank in ranks:
            load = rank["loads"][0]
            assert load["untouched"]
        told = " ".join(rank["loads"][0]["refused"] for rank in ranks)
        for text in texts:
            assert text in told


def test_another_dtype_is_named(worlds: DeepSpeedWorlds, tmp_path: Path) -> None:
    """A checkpoint without fp32 masters is refused: its bf16 weights are not what ZeRO steps."""
    worlds.run(
        job="torch", wrapper="ddp", world=1, root=tmp_path, steps=2, save=True, cast="bfloat16"
    )
    ranks = worlds.run(job="load", stage=2, world=2, roots=[tmp_path], warm=1, dtype="bf16")
    told = " ".join(rank["loads"][0]["refused"] for rank in ranks)
    assert "model.first.weight is float32 (9, 5), in the checkpoint ('bfloat16', (9, 5))" in told
    assert all(rank["loads"][0]["untouched"] for rank in ranks)


def test_partial_takes_what_fits(worlds: DeepSpeedWorlds, tmp_path: Path) -> None:
    """With `partial=True` an engine with another head has the rest of the weights, and trains."""
    common = {"stage": 2}
    saved = worlds.run(job="save", world=2, root=tmp_path, steps=2, frozen=True, **common)
    ranks = worlds.run(job="load", world=3, roots=[tmp_path], partial=True, more=2, **common)
    for rank in ranks:
        load = rank["loads"][0]
        same = {name for name, one in saved[0]["digests"].items() if load["digests"][name] == one}
        assert same >= {"model.first.weight", "model.head.bias", "model.scale"}
        assert len(load["losses"]) == 2


def test_a_thawed_layer_leaves_the_learning_rate(worlds: DeepSpeedWorlds, tmp_path: Path) -> None:
    """A fresh engine's rate is that of the warm-up's first step, while the scheduler goes on."""
    warm_up = {"warmup_min_lr": 0, "warmup_max_lr": 1e-2, "warmup_num_steps": 8}
    scheduler = {"type": "WarmupLR", "params": warm_up}
    common = {"stage": 1, "world": 1, "scheduler": scheduler}
    (saved,) = worlds.run(job="save", root=tmp_path, steps=3, more=0, frozen=True, **common)
    (told,) = worlds.run(job="load", roots=[tmp_path], partial=True, more=1, **common)
    (load,) = told["loads"]
    assert load["settings"]["groups"] == saved["settings"]["groups"]
    assert float(load["settings"]["groups"][0]["lr"]) > 0


def test_a_save_between_micro_batches_is_refused(worlds: DeepSpeedWorlds, tmp_path: Path) -> None:
    """Accumulated gradients are no part of a checkpoint, so there is none with them missing."""
    ranks = worlds.run(job="half", stage=2, world=2, accumulate=2, root=tmp_path)
    for rank in ranks:
        assert "gradients of 1 of 2 micro-batches are accumulated" in rank["refused"]
        assert rank["latest"] == 0


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([FlatPiece(None, (2, 3), 0, 6, 0), FlatPiece(None, (4,), 0, 4, 6)], ""),
        ([FlatPiece(None, (2, 3), 2, 6, 0), FlatPiece(None, (4,), 0, 4, 4)], "take stage 3"),
        ([FlatPiece(None, (2, 3), 0, 6, 0)], "take stage 3"),
    ],
    ids=["whole", "shared", "padded"],
)
def test_momentum_of_whole_parameters_is_never_cut(pieces: list[FlatPiece], said: str) -> None:
    """DeepSpeed's Muon keeps it at stages 1 and 2; its size may be the partition's by chance."""
    flats = [Flat(torch.zeros(10), 0, (), tuple(pieces))]
    refuse_whole_momentum([{"use_muon": False}], flats)
    with pytest.raises(StateError, match=said) if said else contextlib.nullcontext():
        refuse_whole_momentum([{"use_muon": True}], flats)


class _Engine:
    """What an engine keeps of schedulers: the script gave it none."""

    lr_scheduler = None

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


def test_a_scheduler_that_nobody_saves_is_named() -> None:
    """The script, or Accelerate, steps it: after a restart it would warm up once more."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    warn_of_another_scheduler(_Engine(optimizer), [])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    with pytest.warns(RuntimeWarning, match=r'extra=\{"scheduler": scheduler\}'):
        warn_of_another_scheduler(_Engine(optimizer), [{"epoch": 1}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_another_scheduler(_Engine(optimizer), [scheduler])
        chained = torch.optim.lr_scheduler.ChainedScheduler([scheduler])
        warn_of_another_scheduler(_Engine(optimizer), [chained])
