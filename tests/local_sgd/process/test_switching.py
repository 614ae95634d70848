"""Switch between a sync in each step and local steps, by measured reductions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from checkpoints.flash_world import Worlds
from holdfast_wire.messages import SyncChosen
from holdfast_wire.proto_json import from_json
from local_sgd import switch_world

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
UNITS = 4


class Training(Worlds):
    """Worlds that switch."""

    script = switch_world.__file__
    told: Path
    """File to which a rank appends its choices."""

    def train(self, how: str, **world: Any) -> list[dict[str, Any]]:
        """Return what two ranks tell: a step takes 30 ms, and at first each reduction 50."""
        config = {"switching": how, "switching_tolerated": 0.8, **world.pop("config", {})}
        given = {"kind": "fsdp", "mesh": [2, 1], "config": config, "delay": 0.05, **world}
        given["file"] = str(self.told)
        return self.run(job="train", world=2, seconds=0.03, patience=2, after=4, **given)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """One process with torch for all tests here."""
    with Training() as started:
        started.told = tmp_path_factory.mktemp("choices") / "choices"
        yield started


def chosen(training: Training) -> list[SyncChosen]:
    """Take what the agent is told of choices."""
    text = training.told.read_text(encoding="utf-8")
    training.told.unlink()
    return [from_json(SyncChosen, line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def switched(training: Training) -> list[dict[str, Any]]:
    """Return two replicas whose link is slow at first, and fast after the first change."""
    return training.train("act", steps=400)


def test_slow_reductions_lead_to_local_steps_and_fast_ones_back(
    switched: list[dict[str, Any]],
) -> None:
    """All replicas change after the same steps, to the same intervals."""
    way = switched[0]["way"]
    assert way == switched[1]["way"]
    modes = [mode for _, mode, _ in way]
    assert modes[:2] == ["sync", "local"]
    assert modes[-1] == "sync"
    assert all(interval >= 2 for _, mode, interval in way if mode == "local")
    assert "of a step of" in switched[0]["reason"]


def test_reductions_are_made_where_the_mode_says(switched: list[dict[str, Any]]) -> None:
    """One of each unit's gradients in each step, or of its delta in each round."""
    [told, _], reductions = switched, switched[0]["reductions"]
    for (begin, mode, _), (end, *_) in pairwise([*told["way"], [len(reductions)]]):
        made = reductions[begin:end]
        if mode == "sync":
            assert made == [UNITS] * len(made)
        else:
            assert sum(made) <= UNITS * (1 + len(made) / 2)
    assert told["rounds"] >= 1


def test_after_the_way_back_the_replicas_are_equal(switched: list[dict[str, Any]]) -> None:
    """Weights and AdamW's state, also after more steps: equal gradients move all alike.

    The old anchors are gone: a job that loads this with local steps alone must not start from them.
    """
    one, other = (rank["end"] for rank in switched)
    assert one["weights"] == other["weights"]
    assert one["inner"] == other["inner"]
    assert [any(rank["anchors"]) for rank in switched] == [False, False]


def test_the_agent_is_told_of_each_switch_by_one_rank(
    training: Training, switched: list[dict[str, Any]]
) -> None:
    """The step, both intervals and the reason; nobody reads a log for it."""
    way, told = switched[0]["way"], chosen(training)
    assert [(one.step, one.interval_before, one.interval) for one in told] == [
        (step, before, after) for (*_, before), (step, _, after) in pairwise(way)
    ]
    assert all(one.made and "agreement costs" in one.reason for one in told)


def test_ddp_chooses_the_interval_alone(training: Training) -> None:
    """Its gradients are torch's: there is no sync in each step. A state has the choice."""
    config = {
        "switching": "act",
        "switching_tolerated": 0.4,
        "local_sgd_sync_interval": 2,
        "local_sgd_warmup_steps": 3,
    }
    one, other = training.run(
        job="train ddp",
        world=2,
        seconds=0.02,
        patience=2,
        delay=0.3,
        steps=90,
        lr=0.1,
        config=config,
    )
    assert one["way"] == other["way"]
    assert one["weights"] == other["weights"]
    (_, *begun), (changed, _, interval), *back = one["way"]
    assert begun == ["local", 2]
    assert interval > 2
    assert [mode for _, mode, _ in back] == ["local"] * len(back)
    assert changed == 3 + 3 * 2  # the first round has none behind it, two vote
    assert one["rounds"][:4] == [5, 7, 9, 9 + interval]
    assert one["kept"] == [True, True]


def test_a_proposal_changes_nothing(training: Training) -> None:
    """It says what it would do, and goes on in the steps and the interval of the settings."""
    # However long a step takes on a busy machine, a reduction costs more than that share of it.
    interval = {"local_sgd_sync_interval": 2, "switching_tolerated": 0.0001}
    training.told.unlink(missing_ok=True)
    ranks = training.train("propose", steps=10, delay=0.1, config=interval)
    assert [rank["way"] for rank in ranks] == [[[0, "local", 2]]] * 2
    assert "agreement costs" in ranks[0]["reason"]  # how much depends on what runs beside
    assert ranks[0]["rounds"] == 5
    told = chosen(training)  # twice in five rounds of patience two, and told where it is news
    assert len({one.interval for one in told}) == len(told) >= 1
    assert not any(one.made for one in told)
