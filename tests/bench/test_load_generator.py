"""The load benchmark's pretended agents against a real master: they do what real ones do."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.load.herd import Herd, LoadError, Setup
from bench.load.master import JOB, LoadedMaster, ask, heartbeat_effects
from bench.load.scenarios import told_all, trains
from holdfast_agent.master_link import session
from holdfast_agent.policies import liveness, schedules
from holdfast_wire import codec
from holdfast_wire.messages import DumpStacksRequest, DumpStacksResponse
from house.repository import ROOT

NO_GO = 3
BUILD_SECONDS = 600
AGENTS = 6
RANKS = 2
WITHIN = 30.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(BUILD_SECONDS + 60),
    pytest.mark.extended(
        "builds the benchmark's pretended agents; real agents meet real masters in other tests",
        held_by=[
            "master/process/test_end_to_end.py::test_a_blip_of_a_stream_changes_nothing",
            "master/unit/server/test_agent_stream.py::test_an_agent_that_does_not_read_is_cut_off_and_nobody_else_notices",
        ],
    ),
]


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    script = ROOT / "scripts" / "load_generator.sh"
    made = subprocess.run(
        [script], capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    if made.returncode == NO_GO:
        pytest.skip(made.stderr.strip())
    assert made.returncode == 0, made.stderr


@pytest.fixture
def master(tmp_path: Path) -> Iterator[LoadedMaster]:
    """A master that waits for all agents, and trains on a failure with those it has."""
    made = LoadedMaster(tmp_path, AGENTS, {})
    made.start()
    yield made
    made.kill()


@pytest.fixture
def herd(master: LoadedMaster, tmp_path: Path) -> Iterator[Herd]:
    """Agents that are not connected yet."""
    setup = Setup(master.target, JOB, master.key.hex(), RANKS)
    with Herd(setup, AGENTS, tmp_path / "generators.log") as made:
        yield made


def first_world(herd: Herd, master: LoadedMaster, **special: int) -> dict[str, Any]:
    """Form it; the counts."""
    herd.connect(held=AGENTS - 1, **special)
    assert not herd.state()["rounds"]
    began = herd.tell(AGENTS - 1, "warm")["at"]
    state = told_all(herd, 1, AGENTS)
    assert began < state["rounds"][1][1]
    trains(master)
    return state


def test_it_waits_as_long_as_the_agent(herd: Herd) -> None:
    """Between tries and heartbeats, for a connection and the Welcome; alone and in a crowd."""
    grid = itertools.product(range(12), (0.0, 0.3, 1.0), (False, True), (1, 250, 251, 10_000))
    tries: list[dict[str, Any]] = [
        {"attempt": attempt, "share": share, "refused": refused, "crowd": crowd, "patience": 1.5}
        for attempt, share, refused, crowd in grid
    ]
    for patience in (5.0, 15.0, 20.0, 40.0):
        tries.append({**tries[0], "patience": patience})
    for number, one in enumerate(tries):
        one |= {"rank": 37 * number, "interval": 0.5 * (1 + number % 5), "wall": 1.8e9 + number / 7}
    for one, waits in zip(tries, herd.ask("delays", tries=tries), strict=True):
        pause = schedules.aligned_pause(one["rank"], one["interval"], one["interval"], one["wall"])
        assert waits.pop("pause") == pytest.approx(pause, abs=1e-5), one
        attempt, share, crowd = one["attempt"], one["share"], one["crowd"]
        assert waits == pytest.approx(
            {
                "delay": liveness.reconnect_pause(
                    attempt, share, refused=one["refused"], crowd=crowd
                ),
                "connect": liveness.connect_deadline(crowd, attempt),
                "welcome": liveness.welcome_deadline(crowd),
                "longer": session.longer(one["patience"]),
            }
        ), one


def test_agents_form_a_world_and_the_next_after_a_failure(master: LoadedMaster, herd: Herd) -> None:
    """Everybody is told once of each; watchers hear of the failure; stacks are answered."""
    first_world(herd, master)
    herd.watch(3, 0.1)
    herd.wait("watchers have their snapshot", lambda s: s["watching"] == 3, WITHIN)
    began = herd.tell(2, "fail")["at"]
    state = told_all(herd, 2, AGENTS)
    assert began < state["rounds"][2][1]
    state = herd.wait("watchers are told", lambda s: s["told"] == 3, WITHIN)
    assert began < state["told_at"]
    trains(master)
    with master.link() as link:
        answer: DumpStacksResponse = ask(link, "DumpStacks", DumpStacksRequest(node_rank=1))
    assert answer is not None
    state = herd.state()
    assert (state["up"], state["killed"], state["ended"], state["left"]) == (AGENTS, 0, {}, {})
    assert {count for count, _ in state["rounds"].values()} == {AGENTS}


def test_the_master_sees_the_progress_that_they_tell(master: LoadedMaster, herd: Herd) -> None:
    """A loss in a heartbeat is in the job's status; heartbeats go on by themselves."""
    first_world(herd, master)
    effects = heartbeat_effects(master, lambda loss: herd.tell(0, "tell_loss", loss=loss)["at"], 2)
    assert len(effects) == 2
    herd.forget()
    state = herd.wait("each beats twice", lambda s: s["sent"] >= 2 * AGENTS, WITHIN)
    assert not state["ended"]


def test_all_come_back_to_the_next_master_with_their_world(
    master: LoadedMaster, herd: Herd
) -> None:
    """Nobody's workers are killed and no world is made when the master was killed."""
    first_world(herd, master)
    master.kill()
    herd.wait("all noticed", lambda s: s["up"] == 0, WITHIN)
    herd.forget()
    master.start()
    herd.wait("all are back", lambda s: s["up"] == AGENTS, WITHIN)
    trains(master)
    state = herd.state()
    assert state["welcomes"] >= AGENTS
    assert (state["killed"], list(state["rounds"])) == (0, [1])


def test_an_agent_that_reads_no_more_is_seen_by_the_master(
    master: LoadedMaster, herd: Herd
) -> None:
    """Its window is closed: a few hundred bytes later its queue is full and it is cut off."""
    first_world(herd, master, slow=2)
    herd.tell(2, "deafen")
    request = codec.encode(DumpStacksRequest(node_rank=2))
    end = time.monotonic() + WITHIN
    with master.link() as link:
        call: Any = link.unary_unary("/holdfast.v1.JobService/DumpStacks")
        answers = []
        while not master.said("agent does not read") and time.monotonic() < end:
            answers.append(call.future(request, timeout=5))
            time.sleep(0.005)
        for answer in answers:
            answer.cancel()
    assert master.said("agent does not read")
    assert len(answers) < 400


def test_an_order_that_it_does_not_know_ends_it(herd: Herd, tmp_path: Path) -> None:
    """With the order in its log."""
    with pytest.raises(LoadError, match="a generator ended"):
        herd.ask("dance")
    assert '"do": "dance"' in (tmp_path / "generators.log").read_text()
