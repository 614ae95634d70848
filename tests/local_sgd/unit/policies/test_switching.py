"""Choice between a sync in each step and local steps."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from holdfast.local_sgd.errors import LocalSGDConfigError
from holdfast.local_sgd.policies.switching import (
    Measurement,
    Mode,
    Proposal,
    RunningWorld,
    SwitchSettings,
    propose,
)

NOW = SwitchSettings(patience=1)
STEP = Measurement(members=4, step_seconds=0.1, sync_seconds=0.0)


def after(sync: float, running: RunningWorld | None = None) -> Proposal:
    """Return the proposal for a reduction of this many seconds."""
    measured = replace(STEP, sync_seconds=sync)
    return propose(measured, running if running is not None else RunningWorld(), NOW)


@pytest.mark.parametrize(
    ("sync", "mode", "interval"),
    [
        (0.0, Mode.SYNC, 1),
        (0.01, Mode.SYNC, 1),
        (0.011, Mode.LOCAL, 2),
        (0.08, Mode.LOCAL, 8),
        (0.081, Mode.LOCAL, 16),
        (1.28, Mode.LOCAL, 128),
        (50.0, Mode.LOCAL, 128),
    ],
)
def test_the_least_interval_that_keeps_the_cost_within_ten_per_cent(
    sync: float, mode: Mode, interval: int
) -> None:
    """A step takes 0.1 s, so 0.01 s of agreement in each are tolerated."""
    running = after(sync).running
    assert (running.mode, running.interval) == (mode, interval)


def test_the_reason_names_the_cost_and_the_change() -> None:
    """A person who reads it can check the figures."""
    assert after(0.08).reason == (
        "agreement costs 80.0% of a step of 0.1 s, above 10.0%: a round after each 8 steps"
    )
    back = after(0.001, RunningWorld(Mode.LOCAL, 8))
    assert back.reason == (
        "agreement costs 0.1% of a step of 0.1 s, and would cost at most 5.0%: a sync in each step"
    )
    assert after(50.0, RunningWorld(Mode.LOCAL, 128)).reason.endswith("128 is the longest interval")


@pytest.mark.parametrize("sync", [0.021, 0.04, 0.08])
def test_between_the_borders_an_interval_stays(sync: float) -> None:
    """With 8 steps a reduction of 0.02 to 0.08 s changes nothing: 4 would cost more than half."""
    proposal = after(sync, RunningWorld(Mode.LOCAL, 8))
    assert not proposal.changes
    assert proposal.reason.endswith("within the borders")


def test_a_cheaper_reduction_leads_back() -> None:
    """To the least interval that costs five per cent at most."""
    assert after(0.02, RunningWorld(Mode.LOCAL, 8)).running == RunningWorld(Mode.LOCAL, 4)
    assert after(0.005, RunningWorld(Mode.LOCAL, 8)).running == RunningWorld(Mode.SYNC, 1)


def test_a_measurement_that_wavers_changes_nothing() -> None:
    """Around either border of any interval, twenty per cent up and down."""
    chance = random.Random(3)
    for base in (0.01, 0.02, 0.04, 0.08, 0.5):
        running, changes = RunningWorld(), 0
        for _ in range(200):
            measured = replace(STEP, sync_seconds=base * chance.uniform(0.8, 1.2))
            proposal = propose(measured, running, SwitchSettings())
            changes += proposal.changes
            running = proposal.running
        assert changes <= 2, f"base {base}, seed 3"


def test_a_change_needs_three_measurements_in_a_row() -> None:
    """One slow reduction among ordinary ones is forgotten."""
    slow, ordinary = replace(STEP, sync_seconds=0.5), replace(STEP, sync_seconds=0.008)
    running, settings = RunningWorld(), SwitchSettings()
    for measured, changes in [
        (slow, False),
        (slow, False),
        (ordinary, False),
        (slow, False),
        (slow, False),
        (slow, True),
    ]:
        proposal = propose(measured, running, settings)
        assert proposal.changes == changes
        running = proposal.running
    assert running == RunningWorld(Mode.LOCAL, 64)


def test_one_replica_needs_no_agreement() -> None:
    """The last one left goes back to plain steps at once."""
    proposal = propose(replace(STEP, members=1), RunningWorld(Mode.LOCAL, 32), SwitchSettings())
    assert (proposal.running, proposal.changes) == (RunningWorld(), True)


@pytest.mark.parametrize(
    ("sync", "before", "interval"), [(0.0, 8, 2), (0.02, 2, 2), (0.03, 2, 4), (0.0, 1, 1)]
)
def test_replicas_that_come_and_go_never_average_gradients(
    sync: float, before: int, interval: int
) -> None:
    """A replica that is lost would stop a step of all others. One that is left alone waits on."""
    settings = replace(NOW, shortest=2)
    measured, running = replace(STEP, sync_seconds=sync), RunningWorld(Mode.LOCAL, before)
    assert propose(measured, running, settings).running == RunningWorld(Mode.LOCAL, interval)
    alone = propose(replace(measured, members=1), running, settings)
    assert (alone.running, alone.changes) == (running, False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("members", 0),
        ("step_seconds", 0.0),
        ("step_seconds", math.nan),
        ("sync_seconds", -1.0),
    ],
)
def test_an_impossible_measurement_is_refused(field: str, value: Any) -> None:
    """The message names it."""
    with pytest.raises(ValueError, match=f"{field}={value}"):
        propose(replace(STEP, **{field: value}), RunningWorld(), NOW)


@pytest.mark.parametrize(
    ("field", "value"),
    [("tolerated", 0), ("returns", 1.0), ("longest", 100), ("longest", 1), ("patience", 0)],
)
def test_a_border_that_is_not_valid_is_refused(field: str, value: Any) -> None:
    """The message names it."""
    with pytest.raises(LocalSGDConfigError, match=f"^{field}={value}: expected"):
        SwitchSettings(**{field: value})
