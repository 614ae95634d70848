"""Megatron's two calls, made oddly: none fills or saves another state than the one it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.integrations.megatron.group_settings import Steps
from house.sample import sampled
from megatron_worlds.worlds import Worlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]


def _use(**given: Any) -> list[Any]:
    return ["use", given]


def _load(**given: Any) -> list[Any]:
    return ["load_checkpoint", given]


def _save(iteration: int, **given: Any) -> list[Any]:
    return ["save_checkpoint", {"iteration": iteration, **given}]


STEP: list[Any] = ["step", {}]


def _told(worlds: Worlds, *calls: list[Any], **world: Any) -> list[list[dict[str, Any]]]:
    """Return what each call returned or raised, of each rank."""
    script = [call if len(call) == 3 else [*call, "first"] for call in calls]
    return [one["told"] for one in worlds.run(job="script", calls=script, **{"world": 2, **world})]


def _saved(worlds: Worlds, root: Path, **world: Any) -> Any:
    """Save step 1 of a training; return the hashes of its weights."""
    given = {"save": root, **world.pop("args", {})}
    ranks = _told(worlds, _use(**given), STEP, _save(1), **world)
    return ranks[0][0]["weights"]


def test_each_model_has_its_own_checkpoint(worlds: Worlds, tmp_path: Path) -> None:
    """A model without an optimizer is filled from --load; what is saved is the other one."""
    student = _saved(worlds, tmp_path / "run", seed=1)
    teacher = _saved(worlds, tmp_path / "teacher", seed=5)
    calls = (
        _use(save=tmp_path / "run", load_teacher=tmp_path / "teacher"),
        [*_load(load_arg="load_teacher", alone=True), "other"],
        _load(),
        STEP,
        _save(2),
        ["finish", {}],
        [*_load(), "other"],
    )
    for its, own, saved, back in _told(worlds, *calls, seed=9):
        assert its["weights"] == teacher
        assert (own["weights"], own["returned"][0]) == (student, 1)
        assert (back["weights"], back["returned"][0]) == (saved["weights"], 2)


def test_a_second_load_counts_no_steps_twice(worlds: Worlds, tmp_path: Path) -> None:
    """Megatron's scheduler adds the stored steps to its own: they replace them here."""
    _saved(worlds, tmp_path)
    for told in _told(worlds, _use(save=tmp_path), _load(), _load(), seed=9):
        assert [one["scheduled"] for one in told] == [4, 4]


def test_what_a_scheduler_refuses_leaves_the_model(worlds: Worlds, tmp_path: Path) -> None:
    """Another learning rate is told before a tensor is changed, with the arguments that decide."""
    _saved(worlds, tmp_path)
    other = ["set", {"max_lr": 0.5, "use_checkpoint_opt_param_scheduler": False}]
    for (told,) in _told(worlds, _use(save=tmp_path), other, _load(), seed=9):
        assert "learning rate do not match" in told["raised"]
        assert "--override-opt_param-scheduler" in told["raised"]
        assert told["untouched"]


def test_a_job_that_saves_nothing_may_load_a_part(worlds: Worlds, tmp_path: Path) -> None:
    """Without --save there is no directory to go on from: the usual evaluation."""
    saved = _saved(worlds, tmp_path)
    use = _use(save=None, load=tmp_path, no_load_optim=True, no_load_rng=True)
    for (told,) in _told(worlds, use, _load(), seed=9):
        assert (told["returned"], told["weights"]) == ([1, 0], saved)


def test_only_the_directory_that_is_read_must_be_holdfasts(worlds: Worlds, tmp_path: Path) -> None:
    """A job that has moved may keep --load on Megatron's old checkpoints."""
    old = tmp_path / "old"
    old.mkdir()
    (old / "latest_checkpointed_iteration.txt").write_text("10")
    use = _use(save=tmp_path / "run", load=str(old))
    assert "Megatron's own format" in _told(worlds, use, _load())[0][0]["raised"]
    _saved(worlds, tmp_path / "run")
    assert _told(worlds, use, _load())[0][0]["returned"][0] == 1


def test_a_pretrained_checkpoint_begins_a_finetuning(worlds: Worlds, tmp_path: Path) -> None:
    """--pretrained-checkpoint counts while --load has none, with the weights alone."""
    saved = _saved(worlds, tmp_path / "old")
    args = {"save": tmp_path / "new", "pretrained_checkpoint": tmp_path / "old"}
    for (told,) in _told(worlds, _use(**args), _load(), seed=9):
        assert (told["returned"], told["weights"]) == ([0, 0], saved)
        assert told["scheduled"] == 0
    missing = _use(save=tmp_path / "new", pretrained_checkpoint=tmp_path / "none")
    assert "has no checkpoint" in _told(worlds, missing, _load())[0][0]["raised"]


@pytest.mark.parametrize(
    ("call", "said"),
    sampled(
        [
            (_save(1, storage_type="MEMORY"), "'storage_type': pass non_persistent_ckpt=True"),
            (_load(strikt=False), "'strikt': leave it out"),
            (_load(skip_load_to_model_and_opt=True), "skip_load_to_model_and_opt=True"),
        ],
        1,
    ),
)
def test_a_parameter_without_effect_is_refused(
    worlds: Worlds, tmp_path: Path, call: list[Any], said: str
) -> None:
    """A misspelled parameter, or one of another library, is named."""
    told = _told(worlds, _use(save=tmp_path), call, world=1)
    assert said in told[0][0]["raised"]


def test_a_checkpoint_of_weights_alone_is_told_apart(worlds: Worlds, tmp_path: Path) -> None:
    """What --no-save-optim has left out is said once, with the way to load the rest."""
    _saved(worlds, tmp_path, args={"no_save_optim": True})
    for (told,) in _told(worlds, _use(save=tmp_path), _load()):
        assert "1 differences" in told["raised"] or "has no state" in told["raised"]
        assert "--no-load-optim" in told["raised"]
        assert told["untouched"]


def test_steps_are_counted_for_the_optimizer() -> None:
    """Whoever reads them later, of an optimizer without state, knows of a load by another."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    saver, loader = Steps([optimizer]), Steps([optimizer])
    loader.set(100)
    del optimizer.param_groups[0]["step"]
    optimizer.step()
    assert (saver.read(), loader.read()) == (101, 101)
