"""The simulation itself: it repeats, it shrinks, and its parts do what real ones do."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest

from holdfast_wire.messages import JobPhase
from simulation.clock import VirtualTime
from simulation.coverage import Coverage
from simulation.faults import FAULTS
from simulation.run import Outcome, run
from simulation.scenario import SPANS, WEIGHTS, Fault, Scenario, draw
from simulation.shrink import Shrinker, report


def test_the_same_scenario_gives_the_same_run() -> None:
    """Bit for bit: inputs, events with their times, records, virtual time."""
    for seed in range(40, 52):
        scenario = draw(seed)
        assert run(scenario).fingerprint == run(scenario).fingerprint


def test_another_seed_gives_another_run() -> None:
    """The fingerprint is no constant."""
    assert len({run(draw(seed)).fingerprint for seed in range(10)}) == 10


def test_a_scenario_is_data_that_its_code_makes_again() -> None:
    """What a failing seed prints can be pasted."""
    scenario = draw(7)
    assert eval(scenario.code(), {"Scenario": Scenario, "Fault": Fault}) == scenario  # noqa: S307


def test_a_part_of_a_schedule_runs() -> None:
    """Each fault alone: nothing in a schedule depends on what came before."""
    scenario = draw(3)
    for fault in scenario.faults:
        outcome = run(dataclasses.replace(scenario, faults=(fault,)))
        assert outcome.ok, outcome.text


def test_every_fault_can_be_drawn_and_happens() -> None:
    """Names, weights and spans agree."""
    assert set(WEIGHTS) == set(FAULTS)
    assert set(SPANS) <= set(WEIGHTS)
    for what in FAULTS:
        fault = Fault(2.0, what, 1, 1.0 if what in SPANS else 0.0)
        outcome = run(Scenario(seed=5, faults=(fault,)))
        assert outcome.ok, f"{what}: {outcome.text}"


def fake(culprits: set[str], least: int) -> tuple[Shrinker, list[Scenario]]:
    """A shrinker of runs that fail where these faults are there and so many nodes."""
    seen: list[Scenario] = []

    def runner(scenario: Scenario) -> Outcome:
        seen.append(scenario)
        there = {fault.what for fault in scenario.faults}
        fails = culprits <= there and scenario.replicas >= least
        invariant = "it" if fails else ""
        return Outcome(scenario, invariant, "", "", 0, 0.0, Counter(), ())

    return Shrinker("it", runner), seen


def test_shrinking_leaves_what_is_needed() -> None:
    """Two faults of sixteen, three nodes of twelve, nothing unusual."""
    luck = random.Random(1)
    kinds = [what for what in WEIGHTS if what not in {"evict", "blip"}]
    faults = [Fault(i / 2, luck.choice(kinds), 3, 1.5) for i in range(14)]
    faults.insert(4, Fault(1.7, "blip", 2))
    faults.insert(9, Fault(4.2, "evict", 5, 2.0))
    scenario = Scenario(seed=1, replicas=12, maximum=16, standbys=2, local=2, skew=0.01)
    shrinker, seen = fake({"blip", "evict"}, 3)
    small = shrinker.shrink(dataclasses.replace(scenario, faults=tuple(faults)))
    assert [fault.what for fault in small.faults] == ["blip", "evict"]
    assert (small.replicas, small.standbys, small.local, small.skew) == (3, 0, 1, 0.0)
    assert len(seen) < 150


def test_shrinking_keeps_the_failure() -> None:
    """What does not fail in the same way is not taken."""
    shrinker, _ = fake({"nothing that is drawn"}, 1)
    scenario = draw(3)
    assert shrinker.shrink(scenario) == scenario


def test_a_report_says_what_a_person_needs() -> None:
    """Seed, invariant, code."""
    scenario = draw(3)
    text = report(Outcome(scenario, "it", "it: why", "", 0, 0.0, Counter(), ()))
    assert text.startswith("seed 3 breaks it: why")
    assert "Scenario(" in text


def test_time_goes_in_order() -> None:
    """Equal times in the order in which they were set; what is late happens now."""
    time, seen = VirtualTime(), list[str]()
    time.at(2.0, seen.append, "c")
    time.at(1.0, seen.append, "a")
    time.at(1.0, seen.append, "b")
    time.at(1.0, time.at, 0.5, seen.append, "late")
    assert not time.run(3.0)
    assert seen == ["a", "b", "late", "c"]
    assert time.now == 3.0
    assert time.run(9.0, lambda: True)


def test_coverage_names_what_was_not_seen() -> None:
    """And what was seen although it is listed as unreachable."""
    coverage = Coverage()
    coverage.add({(JobPhase.TRAINING, "Heartbeat"): 3, (JobPhase.TRAINING, "PeerRefused"): 1})
    assert ("TRAINING", "Heartbeat") not in coverage.missing()
    assert ("SAVING", "Heartbeat") in coverage.missing()
    assert coverage.impossible() == [("TRAINING", "PeerRefused")]
    with coverage.steps_counted():
        assert run(Scenario(seed=1)).ok
    assert coverage.steps["STARTING", "STEPPED"] >= 1


@pytest.mark.parametrize("nodes", [1, 2, 40])
def test_a_calm_job_of_any_size_ends_well(nodes: int) -> None:
    """No fault, no incident but growth."""
    outcome = run(Scenario(seed=1, replicas=nodes, minimum=1, maximum=nodes))
    assert outcome.ok, outcome.text


FOUND = {
    "a digest's draining node was counted in the world that it left too small": Scenario(
        seed=905212,
        replicas=2,
        minimum=2,
        maximum=2,
        faults=(
            Fault(2.0, "restart_node", 0, 0.0),
            Fault(2.0, "lose_journal", 1, 2.0),
            Fault(4.0, "cut_down", 0, 12.0),
            Fault(6.0, "kill_master", 0, 0.4128),
        ),
    ),
    "a world was adopted with a member that had left before the last one was back": Scenario(
        seed=1795391514258,
        replicas=3,
        maximum=3,
        heartbeat=0.5,
        faults=(
            Fault(3.0, "kill_worker", 0, 0.0),
            Fault(3.8127, "exit_worker", 0, 0.0),
            Fault(4.0, "lose_journal", 0, 1.0),
            Fault(5.8991, "leave", 0, 0.0),
        ),
    ),
    "a member that had saved and was made anew was taken for itself by the next master": Scenario(
        seed=1795391514491,
        replicas=3,
        minimum=2,
        maximum=3,
        heartbeat=0.5,
        commits=0.3,
        faults=(
            Fault(1.0, "freeze_agent", 0, 10.0),
            Fault(3.0, "crash_agent", 2, 0.0),
            Fault(5.0, "kill_master", 0, 5.0),
        ),
    ),
    "a master that was still asking who runs a world died, and its successor did not ask": Scenario(
        seed=1730,
        maximum=5,
        faults=(
            Fault(2.0, "lose_journal", 0, 2.844),
            Fault(3.0, "pause_node", 2, 5.0),
            Fault(3.2771, "crash_agent", 1, 0.0),
            Fault(4.0, "pause_node", 0, 14.0),
            Fault(5.2386, "restart_agent", 0, 0.0),
            Fault(5.4155, "zombie_master", 0, 9.2996),
            Fault(5.4319, "pause_node", 0, 13.0),
            Fault(5.4319, "operator_repeats", 0, 0.0),
            Fault(5.6336, "cut_all", 0, 7.7186),
        ),
    ),
    "a join window was counted from nodes that had gone while evidence was waited for": Scenario(
        seed=1795391525359,
        minimum=4,
        maximum=4,
        unit=2,
        replace_delay=3.0,
        commits=1.0,
        faults=(
            Fault(2.0, "crash_agent", 0, 0.0),
            Fault(2.0, "cut_all", 0, 11.0),
            Fault(2.0, "evict", 3, 6.0),
            Fault(3.0, "respec", 1, 0.0),
        ),
    ),
    "a join window was counted from nodes that had gone while a world had no store": Scenario(
        seed=1795391525359,
        replicas=4,
        minimum=4,
        maximum=4,
        unit=2,
        standbys=1,
        replace_delay=3.0,
        commits=1.0,
        faults=(
            Fault(1.8774, "crash_agent", 1, 0.0),
            Fault(1.8794, "cut_all", 0, 11.0),
            Fault(2.0, "evict", 3, 6.0),
            Fault(3.0, "respec", 1, 0.0),
            Fault(4.0, "stacks", 0, 0.0),
        ),
    ),
    "a join window was counted from nodes that a suspension had released": Scenario(
        seed=1795600009450,
        replicas=100,
        maximum=100,
        join_window=3.0,
        commits=1.0,
        faults=(
            Fault(0.0, "kill_master", 0, 3.0),
            Fault(1.0, "cut_half", 0, 12.0),
            Fault(2.0, "evict", 87, 1.0),
            Fault(4.4485, "evict", 94, 1.0),
            Fault(4.9709, "suspend", 0, 0.1623),
        ),
    ),
    "a change was begun, its boundary torn off the journal, and nobody went on with it": Scenario(
        seed=1795700001313,
        replicas=2,
        maximum=2,
        commits=1.0,
        faults=(
            Fault(0.3993, "cut_half", 0, 8.0),
            Fault(3.0, "tear_journal", 3, 5.0),
        ),
    ),
    "two masters offered schedules of checkpoints by the same number": Scenario(
        seed=1795800001419,
        replicas=2,
        minimum=2,
        maximum=3,
        standbys=1,
        heartbeat=1.0,
        faults=(Fault(2.0, "zombie_master", 0, 8.0),),
    ),
    "a master that was thought dead ended the job, and its successor was awaited to": Scenario(
        seed=1795400006644,
        replicas=1,
        maximum=1,
        heartbeat=1.0,
        commits=0.3,
        faults=(
            Fault(1.0, "stop_wish", 0, 1.0),
            Fault(1.0, "full_disk", 0, 2.0),
            Fault(1.0, "zombie_master", 0, 9.0),
            Fault(3.0, "kill_master", 0, 5.0),
        ),
    ),
}
"""What hours of `make soak` found, as it shrank it."""


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once_stays_mended(name: str) -> None:
    """The schedule that broke an invariant breaks none."""
    outcome = run(FOUND[name])
    assert outcome.ok, outcome.text
