"""An ended job can be asked: what its master said last is kept, whole and for its owner only."""

from __future__ import annotations

import contextlib
import dataclasses
import stat
import time
from pathlib import Path

import pytest

from holdfast_cli import final_state, live_view
from holdfast_cli.client import JobClient
from holdfast_cli.errors import MasterRefusedError, MasterUnreachableError
from holdfast_cli.job_directory import JobHome
from holdfast_cli.runner.supervisor import silent, stop_grace, with_end
from holdfast_wire import messages as wire
from jobs.ended_job import recorded_home

ENDING = final_state.FinalState(
    job=wire.GetJobResponse(
        status=wire.JobStatus(
            name="gpt",
            phase=wire.JobPhase.FAILED,
            reason="NoProgress",
            loss=float("nan"),
            has_loss=True,
        )
    ),
    nodes=wire.ListNodesResponse(nodes=(wire.NodeInfo(node_rank=1, host="h"),)),
    events=wire.ListEventsResponse(
        events=tuple(wire.JobEvent(sequence=n, reason="NodeLost", text=f"e{n}") for n in (1, 2, 3)),
        newest_sequence=3,
    ),
    goodput=wire.GetGoodputResponse(node_seconds=2.5, goodput=0.5),
)


@pytest.fixture
def home(tmp_path: Path) -> JobHome:
    """Return the home of a job whose runner is gone."""
    return recorded_home(tmp_path)


def test_what_was_written_answers(home: JobHome) -> None:
    """Every question about the past gets the last answer; the file is 0600."""
    final_state.write(home, ENDING)
    assert stat.S_IMODE((home.path / "ended.json").stat().st_mode) == 0o600
    with JobClient(home) as client:
        assert repr(client.call(wire.GetJobRequest())) == repr(ENDING.job)
        assert client.call(wire.ListNodesRequest()) == ENDING.nodes
        assert client.call(wire.GetGoodputRequest()) == ENDING.goodput
        later = client.call(wire.ListEventsRequest(after_sequence=1, limit=1))
        assert [event.text for event in later.events] == ["e2"]
        assert [event.text for event in client.events(most=2).events] == ["e2", "e3"]
        assert [event.text for event in client.events(after=2, most=2).events] == ["e3"]
        assert client.call(wire.StopJobRequest()) is not None
        with pytest.raises(MasterRefusedError, match="gpt has ended, and `holdfast scale` needs"):
            client.call(wire.ScaleRequest(replicas=2))


@pytest.mark.parametrize(
    ("request_", "command"),
    [
        (wire.ScaleRequest(), "scale"),
        (wire.DrainNodeRequest(), "drain"),
        (wire.RestartWorkerRequest(), "restart"),
        (wire.TriggerCheckpointRequest(), "checkpoint"),
        (wire.DumpStacksRequest(), "stacks"),
    ],
)
def test_a_refusal_names_the_command_that_needs_a_running_job(
    request_: object, command: str
) -> None:
    """People typed a command, and know no name of the wire."""
    with pytest.raises(MasterRefusedError, match=f"`holdfast {command}` needs a running one"):
        ENDING.answer(request_)


@pytest.mark.parametrize("method", [name for name in wire.METHODS if "JobService" in name])
def test_every_request_is_answered_or_refused(method: str) -> None:
    """A command about a job that has ended gives one line at the worst, never a traceback."""
    request = getattr(wire, wire.METHODS[method][0])
    if request is wire.WatchJobRequest:
        return  # `snapshot` answers it
    with contextlib.suppress(MasterRefusedError):
        assert ENDING.answer(request()) is not None


@pytest.mark.parametrize("request_", [wire.ListIncidentsRequest(), wire.GetIncidentRequest()])
def test_the_incidents_of_an_ended_job_of_a_cluster_are_refused_with_what_is_left(
    request_: object,
) -> None:
    """They ended with the master; the words say what the cluster keeps."""
    there = dataclasses.replace(ENDING, goodput=None)
    with pytest.raises(MasterRefusedError, match="the cluster keeps its status"):
        there.answer(request_)


def test_the_health_of_an_ended_job_says_that_no_world_runs() -> None:
    """It is no fault to ask: the screen says why there is nothing to see."""
    assert (
        ENDING.answer(wire.GetHealthRequest()).not_judged == "the job has ended, and no world runs"
    )


def test_a_watch_of_an_ended_job_ends_at_once(home: JobHome) -> None:
    """Its events and its last status are shown."""
    final_state.write(home, ENDING)
    lines: list[str] = []
    began = time.monotonic()
    last = live_view.Follower(home, live_view.PlainView(lines.append)).run()
    assert time.monotonic() - began < 5
    assert (last.phase, last.reason) == (wire.JobPhase.FAILED, "NoProgress")
    assert [line for line in lines if "e3" in line]


@pytest.mark.parametrize("text", [None, "", "{", '{"job": 1}', '{"job": {"status": 7}}'])
def test_a_job_that_left_no_word_is_unreachable_at_once(home: JobHome, text: str | None) -> None:
    """Its runner was killed, or the file is damaged: no half a minute of tries."""
    if text is not None:
        (home.path / "ended.json").write_text(text)
    began = time.monotonic()
    with pytest.raises(MasterUnreachableError, match="not running any more"):
        live_view.Follower(home, live_view.PlainView(print)).run()
    assert time.monotonic() - began < 5


def test_an_end_that_the_master_did_not_see_is_made_final() -> None:
    """Interrupted twice, or a master that could not be started."""
    left = silent("gpt", "u", wire.JobStatus(phase=wire.JobPhase.TRAINING, step=7))
    loss = wire.JobStatus(loss=0.5, has_loss=True)
    cut = with_end(left, None, loss).status
    assert (cut.phase, cut.reason) == (wire.JobPhase.FAILED, "Interrupted")
    assert (cut.step, cut.loss) == (7, 0.5)
    lost = wire.JobStatus(phase=wire.JobPhase.FAILED, reason="MasterLost", text="it ended at once")
    assert with_end(left, lost, wire.JobStatus()).status.reason == "MasterLost"
    assert with_end(ENDING, lost, wire.JobStatus()).status.reason == "NoProgress"


@pytest.mark.parametrize(
    ("pod", "seconds"), [({}, 15.0), ({"grace": 150}, 150.0), ({"grace": 0}, 1)]
)
def test_the_template_says_how_long_a_job_may_take_to_stop(
    pod: dict[str, int], seconds: float
) -> None:
    """A save at the end of a large job takes minutes, of which a scheduler tells ahead."""
    spec = {"terminationGracePeriodSeconds": pod["grace"]} if pod else {}
    assert stop_grace({"spec": spec}) == seconds
