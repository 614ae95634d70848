"""What the cluster keeps of a job that has ended, shown as a local job's end is."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_cli.cluster.ended import ending_of, holding
from holdfast_cli.failures import RefusedError
from holdfast_wire.messages import (
    EventSeverity,
    GetGoodputRequest,
    GetJobRequest,
    JobPhase,
    ListEventsRequest,
    ListNodesRequest,
    ScaleRequest,
    StopJobRequest,
    StopJobResponse,
)


def _body(kind: str = "Complete", **status: Any) -> dict[str, Any]:
    condition = {"type": kind, "status": "True", "reason": "Why", "message": "because"}
    return {
        "metadata": {"name": "gpt", "uid": "u", "generation": 3},
        "spec": {"replicas": 4},
        "status": {
            "conditions": [condition],
            "startTime": "2026-01-01T00:00:00Z",
            "completionTime": "2026-01-01T00:01:40Z",
            **status,
        },
    }


def _event(second: int, **fields: Any) -> dict[str, Any]:
    time = f"2026-01-01T00:00:{second:02}.500000Z"
    return {"eventTime": time, "type": "Normal", "reason": "R", "note": f"at {second}", **fields}


def test_the_status_says_how_it_ended() -> None:
    """Phase, reason, where it was, how long it took."""
    world = {"round": 7, "epoch": 1001, "step": 900}
    restarts = {"inPlace": 2, "replaced": 1}
    body = _body(world=world, restarts=restarts, goodputPercent=93)
    status = ending_of(body, []).answer(GetJobRequest()).status
    assert (status.phase, status.reason, status.text) == (JobPhase.SUCCEEDED, "Why", "because")
    assert (status.round, status.step, status.restarts_in_place) == (7, 900, 2)
    assert (status.job_seconds, status.goodput, status.replicas) == (100.0, 0.93, 4)


def test_a_job_that_never_started_has_an_end_too() -> None:
    """Its template was refused, say: the status has little more than conditions."""
    body = _body("Failed")
    del body["status"]["startTime"]
    status = ending_of(body, []).status
    assert (status.phase, status.job_seconds) == (JobPhase.FAILED, 0.0)


def test_events_come_in_their_order_with_their_repetitions() -> None:
    """A list of the API server has no order; numbers let --after work."""
    warning = _event(1, type="Warning", series={"count": 3})
    ending = ending_of(_body(), [_event(5), warning, _event(3)])
    events = ending.answer(ListEventsRequest()).events
    assert [event.text for event in events] == ["at 1 (3 times)", "at 3", "at 5"]
    assert events[0].severity is EventSeverity.WARNING
    later = ending.answer(ListEventsRequest(after_sequence=2)).events
    assert [event.text for event in later] == ["at 5"]


@pytest.mark.parametrize("request_", [ListNodesRequest(), GetGoodputRequest(), ScaleRequest()])
def test_what_only_a_master_knows_is_refused(request_: object) -> None:
    """Rather than shown as empty."""
    with pytest.raises(RefusedError, match="job gpt has ended"):
        ending_of(_body(), []).answer(request_)


def test_stopping_what_has_ended_is_no_error() -> None:
    """As with a local job."""
    assert ending_of(_body(), []).answer(StopJobRequest()) == StopJobResponse()


def test_a_condition_is_told_with_its_message() -> None:
    """For a job whose master does not run."""
    status = {"conditions": [{"type": "MasterReady", "reason": "Starting", "message": "wait"}]}
    assert holding(status, "MasterReady") == "Starting: wait"
    assert holding(status, "Other") == holding({}, "MasterReady") == ""
