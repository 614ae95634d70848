"""What a configuration may add is saved and restored too: precision, groups, offload, schedulers.

Each option is saved by one stage and world, and loaded by the same, and by others.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from checkpoints.deepspeed_world import DeepSpeedWorlds
from house.sample import sampled

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
WARM_UP = {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 4, "total_num_steps": 9}}
DYNAMIC = {"loss_scale": 0, "initial_scale_power": 8, "loss_scale_window": 2, "hysteresis": 1}
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
SMALL = {"sub_group_size": 20, "stage3_param_persistence_threshold": 10}
OPTIONS: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": "bf16", "groups": True},
    "bf16 with fp32 accumulation": {"dtype": "bf16", "accumulation_dtype": "fp32"},
    "fp16, dynamic scale": {"dtype": "fp16", "precision": DYNAMIC},
    "round robin": {"zero": {"round_robin_gradients": True}, "groups": True},
    "sub-groups": {"zero": SMALL, "groups": True},
    "offload": {"zero": OFFLOAD, "dtype": "bf16"},
    "accumulation": {"accumulate": 2, "groups": True},
    "LR scheduler": {"scheduler": WARM_UP, "groups": True},
    "frozen, tied": {"frozen": True, "tied": True},
    "SGD": {"optimizer": "SGD", "options": {"momentum": 0.9}, "moments": ["momentum_buffer"]},
}
EXACT = {"bf16": 2e-3, "fp16": 2e-3}
"""Largest difference of losses at another world: 16-bit sums depend on their order."""
PAIRS = [((2, 2), (3, 1)), ((3, 2), (1, 3))]
CASES = [(name, *pair) for name in OPTIONS for pair in PAIRS]
"""Six of twenty each time; `make test-matrix` has all."""


def comparable(found: dict[str, str], options: dict[str, Any], *, same: bool) -> dict[str, str]:
    """Return the hashes that tell something: all, but for what DeepSpeed itself mixes up.

    With `round_robin_gradients`, `safe_get_full_fp32_param` takes another parameter's elements, so
    what it gathers depends on the world; the weights that the model computes with do not.
    """
    if same or "round_robin_gradients" not in options.get("zero", {}):
        return found
    return {name: one for name, one in found.items() if name.startswith("low.")}


@pytest.mark.parametrize(("name", "saver", "other"), sampled(CASES, 2))
def test_an_option_comes_back_exactly(
    worlds: DeepSpeedWorlds,
    tmp_path: Path,
    name: str,
    saver: tuple[int, int],
    other: tuple[int, int],
) -> None:
    """Tensors, settings, counters and scales are the saved ones, and the next losses follow."""
    options = OPTIONS[name]
    saved = worlds.run(
        job="save", stage=saver[0], world=saver[1], root=tmp_path, steps=3, **options
    )
    for stage, world in (saver, other):
        ranks = worlds.run(job="load", stage=stage, world=world, roots=[tmp_path], **options)
        loads = [rank["loads"][0] for rank in ranks]
        wanted_hashes = comparable(saved[0]["digests"], options, same=(stage, world) == saver)
        for load in loads:
            assert wanted_hashes.items() <= load["digests"].items()
        assert [load["settings"] for load in loads] == [saved[0]["settings"]] * world
        losses, wanted = [load["losses"] for load in loads], [rank["losses"] for rank in saved]
        if (stage, world) == saver:
            assert losses == wanted
            continue
        after, before = (list(map(mean, zip(*one, strict=True))) for one in (losses, wanted))
        most = EXACT.get(options.get("dtype", ""), 1e-6)
        assert after == pytest.approx(before, rel=0, abs=most)


def test_zero_sized_parameters_keep_their_name_and_shape(
    worlds: DeepSpeedWorlds, tmp_path: Path
) -> None:
    """A parameter without elements is no difference; DeepSpeed trains it at stage 3 alone only."""
    common = {"zero_sized": True}
    for number, (stage, world) in enumerate(((1, 2), (3, 1))):
        root = tmp_path / f"{number}"
        worlds.run(job="save", stage=stage, world=world, root=root, steps=2, **common)
        for other, size, more in ((2, 2, 1), (3, 2, 0)):
            ranks = worlds.run(
                job="load", stage=other, world=size, roots=[root], more=more, **common
            )
            assert [rank["loads"][0]["start"] for rank in ranks] == [2] * size
        torch = worlds.run(job="torch", wrapper="ddp", world=1, root=root, steps=1, zero_sized=True)
        assert torch[0]["start"] == 2
