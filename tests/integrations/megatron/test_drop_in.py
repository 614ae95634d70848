"""Megatron's own calls: only the two lines of import change."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from checkpoints.forked_worlds import SUPPORT
from holdfast.integrations.megatron.arguments import OF_LOAD, OF_SAVE, refuse_unknown
from house.extended import usual
from house.patience import patience
from house.sample import sampled
from megatron_worlds.worlds import Worlds

pytestmark = pytest.mark.train
MORE = pytest.mark.extended(
    "the other precision of the same test",
    held_by=["integrations/megatron/test_drop_in.py::test_a_finetuning_takes_the_weights_alone"],
)
LATEST = "latest_checkpointed_iteration.txt"


def _train(worlds: Worlds, root: Path, **more: Any) -> list[dict[str, Any]]:
    return worlds.run(**{"world": 2, "job": "drop-in", "root": root, "seed": 7, **more})


def test_a_job_goes_on_with_all_that_megatron_counts(worlds: Worlds, tmp_path: Path) -> None:
    """Iteration, operations, samples and losses are those of an unbroken run, in any layout."""
    first = _train(worlds, tmp_path, until=4, save_at=[2])
    assert (first[0]["start"], first[0]["operations"]) == (0, 0)
    for setup in ({}, {"tensor": 2}):
        again = _train(worlds, tmp_path, until=4, setup=setup, seed=9)
        for one, other in zip(first, again, strict=True):
            assert (other["start"], other["operations"]) == (2, 2e9)
            assert other["samples"] == 8
            assert other["losses"] == pytest.approx(one["losses"][2:], abs=1e-6)


def test_iterations_have_the_folders_of_megatron(worlds: Worlds, tmp_path: Path) -> None:
    """Tools that follow the text find the newest iteration; nothing is stored twice."""
    _train(worlds, tmp_path, until=3, save_at=[1, 2, 3])
    assert (tmp_path / LATEST).read_text() == "3"
    folders = sorted(path.name for path in tmp_path.glob("iter_*"))
    assert folders == ["iter_0000001", "iter_0000002", "iter_0000003"]
    for number, name in enumerate(folders, 1):
        assert (tmp_path / name).readlink() == Path(f"step_{number}")
        assert (tmp_path / name / ".metadata").is_file()


def test_retention_takes_the_folder_of_a_deleted_iteration(worlds: Worlds, tmp_path: Path) -> None:
    """With --save-retain-interval, a link never outlives what it names."""
    _train(worlds, tmp_path, until=5, save_at=[2, 3, 4, 5], args={"save_retain_interval": 2})
    folders = {path.name for path in tmp_path.glob("iter_*")}
    assert folders == {"iter_0000002", "iter_0000004", "iter_0000005"}
    assert all(path.exists() for path in tmp_path.glob("iter_*"))


def test_a_job_starts_from_another_directory_once(worlds: Worlds, tmp_path: Path) -> None:
    """--load is where it begins; once it has saved, it goes on from --save."""
    old, new = tmp_path / "old", tmp_path / "new"
    first = _train(worlds, old, until=2, save_at=[2])
    args = {"load": str(old)}
    begun = _train(worlds, new, until=3, save_at=[3], args=args, setup={"tensor": 2}, seed=9)
    assert (begun[0]["start"], begun[0]["loaded"]) == (2, first[0]["weights"])
    again = _train(worlds, new, args=args, seed=9)
    assert (again[0]["start"], again[0]["loaded"]) == (3, begun[0]["weights"])


@pytest.mark.parametrize("precision", usual(["fp32", "bf16"], "bf16", more=MORE))
def test_a_finetuning_takes_the_weights_alone(
    worlds: Worlds, tmp_path: Path, precision: str
) -> None:
    """--finetune starts at iteration 0 with fresh moments, its own seed, and the old weights."""
    old, setup = tmp_path / "old", {"precision": precision}
    first = _train(worlds, old, until=2, save_at=[2], setup=setup)
    args = {"load": str(old), "finetune": True}
    begun = _train(worlds, tmp_path / "new", until=1, args=args, seed=9, setup=setup)
    fresh = _train(worlds, tmp_path / "other", until=1, seed=9, setup=setup)
    assert (begun[0]["start"], begun[0]["samples"]) == (0, 0)
    assert begun[0]["loaded"] == first[0]["weights"]
    assert begun[0]["drawn"] == fresh[0]["drawn"]


def test_an_older_iteration_can_be_loaded(worlds: Worlds, tmp_path: Path) -> None:
    """--ckpt-step names it; without an optimizer's state the iteration is kept all the same."""
    old = tmp_path / "old"
    _train(worlds, old, until=3, save_at=[1, 3])
    args = {"load": str(old), "ckpt_step": 1, "no_load_optim": True}
    assert _train(worlds, tmp_path / "new", args=args)[0]["start"] == 1
    refused = _train(worlds, tmp_path / "new", args={**args, "ckpt_step": 2})[0]["refused"]
    assert "has no step 2, only [1, 3]" in str(refused)


@pytest.mark.parametrize(
    ("args", "said"),
    sampled(
        [
            ({"finetune": True}, "--finetune with --save and --load"),
            ({"num_attention_heads": 4}, "num_attention_heads is 4, in the checkpoint 8"),
            (
                {"use_checkpoint_args": True},
                "Megatron reads the arguments from a checkpoint of its",
            ),
        ],
        1,
    ),
)
def test_arguments_that_do_not_fit_are_refused(
    worlds: Worlds, tmp_path: Path, args: dict[str, Any], said: str
) -> None:
    """An argument that no tensor's shape shows is compared, as Megatron compares it."""
    _train(worlds, tmp_path, until=1, save_at=[1])
    for rank in _train(worlds, tmp_path, args=args):
        assert said in str(rank["refused"]) or "rank 0 refused" in str(rank["refused"])


def test_checkpoints_of_megatrons_own_format_are_told_apart(worlds: Worlds, tmp_path: Path) -> None:
    """They are not taken for an empty directory, and the error says how to move."""
    (tmp_path / LATEST).write_text("10")
    (tmp_path / "iter_0000010").mkdir()
    refused = str(_train(worlds, tmp_path)[0]["refused"])
    assert "Megatron's own format" in refused
    assert "megatron.training.checkpointing.load_checkpoint" in refused


ALONE = """
import os, sys
from megatron_worlds.cpu_shim import install
install()
import torch
from megatron_worlds.gpt import Setup, build, step
from megatron_worlds.jobs import use_arguments
from holdfast.integrations.megatron import load_checkpoint, save_checkpoint
torch.distributed.init_process_group("gloo", init_method=sys.argv[2], rank=0, world_size=1)
training = build(Setup(), 1)
state = training.chunks, training.optimizer, training.scheduler
use_arguments(save=sys.argv[1])
load_checkpoint(*state)
step(training, 0)
save_checkpoint(1, *state, 0)
if sys.argv[3] == "fail":
    raise RuntimeError("a planted failure")
"""


@pytest.mark.parametrize("end", ["well", "fail"])
def test_a_script_waits_for_its_saves_unless_it_fails(tmp_path: Path, end: str) -> None:
    """Nothing of Holdfast is called at the end: Megatron's training knows nothing of it."""
    root = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(root), f"file://{tmp_path / 'meet'}", end],
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        timeout=100 * patience(),
        check=False,
    )
    assert done.returncode == (1 if end == "fail" else 0), done.stderr
    if end == "well":
        assert (root / LATEST).read_text() == "1"
        assert (root / "iter_0000001" / ".metadata").is_file()
    else:
        assert "a planted failure" in done.stderr


def test_the_functions_take_the_arguments_of_megatron() -> None:
    """Megatron's training calls them with these."""
    from holdfast.integrations.megatron import load_checkpoint, save_checkpoint

    more = {"train_data_iterator": None, "preprocess_common_state_dict_fn": None}
    groups = dict.fromkeys(("tp_group", "pp_group", "dp_cp_group", "dp_group", "expt_dp_group"))
    known = {**groups, "rng_state_key_prefix": ""}
    refuse_unknown("save_checkpoint", {**known, **more}, OF_SAVE)
    refuse_unknown("load_checkpoint", known, OF_LOAD)
    with pytest.raises(ValueError, match="rng_state_key_prefix='encoder"):
        refuse_unknown("load_checkpoint", {"rng_state_key_prefix": "encoder."}, OF_LOAD)
    inspect.signature(save_checkpoint).bind(
        10, [], None, None, 0, {}, non_persistent_ckpt=True, **more
    )
    inspect.signature(load_checkpoint).bind(
        [], None, None, checkpointing_context={}, skip_load_to_model_and_opt=False
    )


def test_a_newer_megatrons_parameter_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed function has it, so training calls with it; what none has is a mistake."""
    newer = types.ModuleType("megatron.training.checkpointing")
    vars(newer)["load_checkpoint"] = lambda ddp_model, strict, brand_new=None: None
    monkeypatch.setitem(sys.modules, newer.__name__, newer)
    monkeypatch.setitem(sys.modules, "megatron.training", types.ModuleType("megatron.training"))
    refuse_unknown("load_checkpoint", {"brand_new": 1}, OF_LOAD)
    for function, name in (("load_checkpoint", "brand_old"), ("save_checkpoint", "brand_new")):
        with pytest.raises(TypeError, match=f"{function}.* has no parameter '{name}'"):
            refuse_unknown(function, {name: 1}, OF_LOAD)
