"""The simulation itself: it repeats, it shrinks, and its parts do what real ones do."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import pytest

from campaigns import soak
from holdfast_master.instructions import Record
from holdfast_wire.messages import JobPhase, ScheduleConfirmed
from simulation.clock import VirtualTime
from simulation.coverage import Coverage
from simulation.disk import Written
from simulation.faults import FAULTS
from simulation.found.scenarios import FOUND
from simulation.job import Job
from simulation.planted.bugs import BUGS, planted
from simulation.run import Outcome, run
from simulation.scenario import SPANS, WEIGHTS, Fault, Scenario, draw, pasted
from simulation.shrink import Shrinker, report

pytestmark = pytest.mark.slow


def test_the_same_scenario_gives_the_same_run() -> None:
    """Bit for bit: inputs, events with their times, records, virtual time."""
    for seed in range(40, 52):
        scenario = draw(seed)
        assert run(scenario).fingerprint == run(scenario).fingerprint


_PRINT = """
from simulation.run import run
from simulation.scenario import draw, pasted

for seed in (3, 44, 71):
    print(run(draw(seed)).fingerprint)
"""


def test_a_run_does_not_depend_on_how_strings_are_hashed() -> None:
    """Two processes that iterate over sets in different orders print the same fingerprints."""
    told = []
    for number in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": number,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        ran = subprocess.run(
            [sys.executable, "-c", _PRINT],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        told.append(ran.stdout.splitlines())
    assert told[0] == told[1]
    assert len(set(told[0])) == 3


def test_another_seed_gives_another_run() -> None:
    """The fingerprint is no constant."""
    assert len({run(draw(seed)).fingerprint for seed in range(10)}) == 10


def test_a_scenario_is_data_that_its_code_makes_again() -> None:
    """The code that a failing seed prints makes the same scenario."""
    scenario = draw(7)
    assert eval(scenario.code(), {"pasted": pasted}) == scenario  # noqa: S307


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


def test_a_bug_among_sixteen_faults_is_shrunk_to_code_that_shows_it() -> None:
    """The scenario in a report has at most two faults and breaks the same invariant again."""
    seeds = (seed for seed in range(1000) if len(draw(seed).faults) == 16)
    with planted(BUGS["nothing charged"]):
        outcome = next(found for seed in seeds if not (found := run(draw(seed))).ok)
        text = report(outcome)
        code = text[text.index("pasted(") : text.index("\n)\n") + 2]
        small = eval(code, {"pasted": pasted})  # noqa: S307
        assert run(small).invariant == outcome.invariant
    assert len(small.faults) <= 2
    assert run(small).ok


def test_shrinking_keeps_the_failure() -> None:
    """The shrinker takes no scenario that does not fail in the same way."""
    shrinker, _ = fake({"nothing that is drawn"}, 1)
    scenario = draw(3)
    assert shrinker.shrink(scenario) == scenario


def test_a_report_says_what_a_person_needs() -> None:
    """Seed, invariant, code."""
    scenario = draw(3)
    text = report(Outcome(scenario, "it", "it: why", "", 0, 0.0, Counter(), ()))
    assert text.startswith("seed 3 breaks it: why")
    assert "pasted(" in text


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
    carriers = {"Received", "OperatorMessage", "UserCall"}
    assert not carriers & {kind for _, kind in coverage.missing()}, "their contents count"
    with coverage.steps_counted():
        assert run(Scenario(seed=1)).ok
    assert coverage.steps["STARTING", "STEPPED"] >= 1


def test_a_calm_job_syncs_nothing_for_its_heartbeats() -> None:
    """Twenty seconds of training: only schedules of checkpoints wait for the disk."""
    job = Job(Scenario(seed=1, heartbeat=0.5))
    job.make_pods(4)
    job.time.run(10.0, lambda: job.phase is JobPhase.TRAINING)
    job.time.run(job.time.now + 3.0)
    facts: list[type] = []
    inputs = job.inputs
    append = job.disk.append

    def noted(segment: Written, records: Sequence[Record], *, durable: bool) -> bool:
        if durable:
            facts.extend(type(record.fact) for record in records if record.durable)
        return append(segment, records, durable=durable)

    job.disk.append = noted  # type: ignore[method-assign]
    job.time.run(job.time.now + 20.0)
    assert job.inputs - inputs > 100
    assert set(facts) <= {ScheduleConfirmed}


@pytest.mark.parametrize("nodes", [1, 2, 40])
def test_a_calm_job_of_any_size_ends_well(nodes: int) -> None:
    """No fault, no incident but growth."""
    outcome = run(Scenario(seed=1, replicas=nodes, minimum=1, maximum=nodes))
    assert outcome.ok, outcome.text


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once_stays_mended(name: str) -> None:
    """The schedule that broke an invariant breaks none."""
    outcome = run(FOUND[name])
    assert outcome.ok, outcome.text


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--minutes=0", "more than 0"),
        ("--minutes=nan", "more than 0"),
        ("--processes=0", "from 1"),
        ("--record=/nowhere/soak.jsonl", "no such directory"),
    ],
)
def test_a_soak_with_wrong_options_says_so_before_its_hours(
    option: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A soak with a wrong option is refused before it begins."""
    monkeypatch.setattr("sys.argv", ["soak", option])
    with pytest.raises(SystemExit, match="2"):
        soak.main()
    assert words in capsys.readouterr().err
