"""State that could be saved or restored in part only is refused by name, or comes back whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import holdfast
from checkpoints.small_models import load, same, save, state_of, train, unchanged
from holdfast.flash.trainer import arguments
from holdfast.flash.trainer.holders import Holders
from holdfast.flash.trainer.leaves import StateError
from holdfast.flash.trainer.planner import RankPosition
from holdfast.flash.trainer.reshard import of_files, stored
from holdfast.flash.trainer.restore import RestoreError, restore
from holdfast.flash.trainer.state_dict import collect

pytestmark = [pytest.mark.train, pytest.mark.timeout(60)]


@pytest.fixture
def sharded(tmp_path: Path) -> Iterator[Any]:
    """A model whose parameters are DTensors."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    model = nn.Linear(4, 3)
    fully_shard(model)
    yield model
    dist.destroy_process_group()


@pytest.mark.parametrize("wrap", [dict, lambda weights: {"of": [(weights["weight"],)]}])
def test_a_shard_within_a_value_is_refused(tmp_path: Path, sharded: Any, wrap: Any) -> None:
    """Only one rank's would be stored, and all would take it for theirs; per_rank has each."""
    ema = {name: one.detach().clone() for name, one in sharded.state_dict().items()}
    with pytest.raises(StateError, match=r"extra\.ema holds a DTensor.*model=\[\.\.\.\]"):
        save(tmp_path / "a", model=sharded, extra={"ema": wrap(ema)})
    own = {"ema": wrap(ema)}
    save(tmp_path / "b", model=sharded, per_rank=own)


def test_settings_that_only_the_checkpoint_has_come_back(tmp_path: Path) -> None:
    """A scheduler that is made after the load begins from the first rate, as the one before did."""
    model, optimizer = state_of()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.param_groups[0] |= {"name": "decay", "drift": torch.tensor([1.0, 2.0])}
    for _ in range(3):
        train(model, optimizer)
        scheduler.step()
    save(tmp_path, 3, model=model, optimizer=optimizer)
    other, fresh = state_of(1)
    assert load(tmp_path, model=other, optimizer=fresh) == 3
    group = fresh.param_groups[0]
    assert (group["lr"], group["initial_lr"], group["name"]) == (0.0125, 0.1, "decay")
    assert same(group["drift"], torch.tensor([1.0, 2.0]))
    again = torch.optim.lr_scheduler.StepLR(fresh, 1, gamma=0.5, last_epoch=3)
    assert again.base_lrs == [0.1]


def test_what_was_saved_of_each_rank_and_is_not_given_is_an_error(tmp_path: Path) -> None:
    """As with an extra; partial=True leaves it."""
    model, _ = state_of()
    save(tmp_path, model=model, per_rank={"position": 5})
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        with pytest.raises(RestoreError, match=r"position of each rank \(per_rank\) is not in the"):
            flash.load()
        assert flash.load(partial=True) == 1


def test_one_optimizer_of_two_is_an_error_and_none_is_a_load_for_evaluation(tmp_path: Path) -> None:
    """The state of the second would be gone with the next save."""
    pairs = [state_of(seed) for seed in (1, 2)]
    models, optimizers = [list(one) for one in zip(*pairs, strict=True)]
    for model, optimizer in pairs:
        train(model, optimizer)
    save(tmp_path, model=models, optimizer=optimizers)
    with pytest.raises(RestoreError, match="is not in the state"):
        load(tmp_path, model=models, optimizer=[optimizers[0]])
    assert load(tmp_path, model=models) == 1


def test_a_scripted_module_is_refused_by_name(tmp_path: Path) -> None:
    """Its parameters are those of the module that it was made of, and that one is taken."""
    inner = nn.Linear(2, 2)
    model = nn.Sequential(nn.Linear(2, 2), torch.jit.script(inner))
    with pytest.raises(StateError, match=r"1 is scripted.*torch\.jit\.script was called with"):
        save(tmp_path, model=model)
    save(tmp_path, model=nn.Sequential(model[0], inner))


def test_a_lazy_module_is_refused_until_it_has_run(tmp_path: Path) -> None:
    """The remedy is a forward pass."""
    model = nn.LazyLinear(3)
    with holdfast.Checkpointer(tmp_path, model=model) as flash:
        with pytest.raises(StateError, match=r"model\.\w+ has no values yet: run a forward pass"):
            flash.save(1)
        model(torch.ones(1, 2))
        flash.save(1)


class Position:
    """Each rank's place in the data, which another world cannot take over."""

    def state_dict(self) -> Any:
        return {"at": 3}

    def load_state_dict(self, state: Any) -> None:
        """Take it back."""

    def reshard(self, states: list[Any], rank: int, world: int) -> Any:
        raise ZeroDivisionError(f"{len(states)} states for rank {rank} of {world}")


def test_a_reshard_that_fails_is_an_error_with_its_name(tmp_path: Path) -> None:
    """Of that rank; the others hear of it, and no tensor was changed."""
    model, _ = state_of()
    save(tmp_path, model=model, per_rank={"data": Position()})
    other, _ = state_of(1)
    parts = arguments.parts(other, None, None, None, {"data": Position()})
    place = RankPosition(rank=0, world=2, local_rank=0, local_world=2)
    found = stored(of_files(str(tmp_path / "step_1")), 1)
    state = collect(parts, 0), found
    text = r"rank_0\.data: its reshard failed: ZeroDivisionError"
    with unchanged(other), pytest.raises(RestoreError, match=text):
        restore(parts, place, Holders(), lambda: state, lambda _: None, partial=False, threads=1)


def test_a_key_that_becomes_an_equal_one_of_another_type_is_saved(tmp_path: Path) -> None:
    """1 == True, but a reader is told which it is."""
    model, _ = state_of()
    extra: dict[str, Any] = {"seen": {1: "x"}}
    with holdfast.Checkpointer(tmp_path, model=model, extra=extra) as flash:
        flash.save(1)
        extra["seen"] = {True: "x"}
        flash.save(2)
    loaded: dict[str, Any] = {"seen": None}
    assert load(tmp_path, model=model, extra=loaded) == 2
    assert [type(key) for key in loaded["seen"]] == [bool]
