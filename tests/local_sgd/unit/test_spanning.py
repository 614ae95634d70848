"""Collectives that span replicas in local steps: refused by time, named once by steps."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from holdfast.local_sgd.driver.spanning import SpanningCollectives
from holdfast.local_sgd.errors import LocalSGDError


class Shared(nn.Module):
    """A layer with a collective over all ranks."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Reduce the rows."""
        dist.all_reduce(rows)
        return rows


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    """A default group, of this process alone: it counts as one of many ranks does."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def spanning(model: nn.Module | None, *, by_time: bool) -> SpanningCollectives:
    """Return the count of the default group."""
    world = dist.group.WORLD
    assert world is not None
    return SpanningCollectives(world, model, by_time=by_time)


def steps(found: SpanningCollectives, model: nn.Module, alone: list[int]) -> None:
    """Make a step for each number of local steps before it."""
    for number in alone:
        model(torch.ones(2))
        found.before_count(number)
        found.after_count()


def test_by_time_the_layer_and_the_rule_are_named_before_anybody_waits() -> None:
    """At the next step, in which each layer was looked at."""
    model = nn.Sequential(nn.Identity(), nn.Sequential(Shared()))
    with pytest.raises(LocalSGDError, match=r"use_async=True: layer 1\.0 \(Shared\) makes coll"):
        steps(spanning(model, by_time=True), model, [0, 1, 2])


def test_by_steps_it_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """After three local steps in a row that have it; nothing is refused."""
    caplog.set_level(logging.WARNING, logger="holdfast")
    model = nn.Sequential(Shared())
    found = spanning(model, by_time=False)
    steps(found, model, [0, 1, 2])
    assert caplog.messages == []
    steps(found, model, [3, 4, 0, 1, 2, 3, 4])
    assert [one.split(",")[0] for one in caplog.messages] == [
        "local SGD: layer 0 (Shared) makes collectives over all replicas in local steps"
    ]


def test_what_follows_a_round_or_comes_now_and_then_is_no_fault() -> None:
    """After a round all may save; and a model without such layers is left alone."""
    model = nn.Sequential(nn.Identity())
    found = spanning(model, by_time=True)
    for alone in (0, 1, 2):
        if alone == 0:
            dist.all_reduce(torch.ones(1))
        steps(found, model, [alone])


def test_who_leaves_has_no_hooks_on_the_layers() -> None:
    """Also between the step that found a collective and the one that names its layer."""
    model = nn.Sequential(Shared())
    found = spanning(model, by_time=True)
    steps(found, model, [0, 1])
    assert model[0]._forward_hooks
    found.leave()
    assert not model[0]._forward_hooks
    assert not model[0]._forward_pre_hooks
