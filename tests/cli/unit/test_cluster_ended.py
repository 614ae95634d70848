"""Records that the cluster keeps of an ended job, shown as a local job's end is."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_cli import render
from holdfast_cli.cluster.ended import ending_of, holding
from holdfast_cli.errors import MasterRefusedError
from holdfast_wire import messages as wire


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


def _spent(name: str) -> dict[str, Any]:
    return {"name": name, "used": 2, "limit": 5}


def test_the_status_says_how_it_ended() -> None:
    """Phase, reason, where it was, how long it took."""
    world = {"round": 7, "epoch": 1001, "step": 900}
    restarts = {"inPlace": 2, "replaced": 1}
    body = _body(world=world, restarts=restarts, goodputPercent=93)
    status = ending_of(body, []).answer(wire.GetJobRequest()).status
    assert (status.phase, status.reason, status.text) == (wire.JobPhase.SUCCEEDED, "Why", "because")
    assert (status.round, status.step, status.restarts_in_place) == (7, 900, 2)
    assert (status.job_seconds, status.goodput, status.replicas) == (100.0, 0.93, 4)


@pytest.mark.parametrize("assumed", [True, False])
def test_a_goodput_that_is_a_guess_is_told_as_one(*, assumed: bool) -> None:
    """`holdfast status` shows the tilde of a running job after its end too."""
    said: dict[str, Any] = {"goodputAssumed": True} if assumed else {}
    body = _body(goodputPercent=93, **said)
    status = ending_of(body, []).answer(wire.GetJobRequest()).status
    assert status.goodput_assumed is assumed
    assert ("~93.0%" in render.status_table(status)) is assumed


def test_what_the_object_does_not_keep_is_told_as_such() -> None:
    """No checkpoint, no loss, and no budget that was never spent is made up."""
    body = _body(budgets=[_spent("noProgressRestarts"), _spent("ofANewerOperator")])
    ending = ending_of(body, [])
    lines = render.status_table(ending.status, ending.unkept).splitlines()
    assert "Budgets:     no progress 2/5" in lines
    for name in ("Checkpoints", "Loss", "Goodput", "Restarts"):
        assert f"{name + ':':<13}told only while the job runs" in lines
    assert not any("none yet" in line or "not reported" in line for line in lines)
    spent = ending_of(_body(budgets=[]), [])
    assert "Budgets:     untouched" in render.status_table(spent.status, spent.unkept)
    assert "Budgets" in ending_of(_body(), []).unkept


def test_a_round_that_the_cluster_does_not_keep_is_a_dash() -> None:
    """A Kubernetes event has neither round nor node."""
    events = ending_of(_body(), [_event(1)]).events.events
    assert render.events_table(events).splitlines()[1].split()[1:4] == ["Normal", "-", "-"]


def test_a_job_that_never_started_has_an_end_too() -> None:
    """Its template was refused, say: the status has little more than conditions."""
    body = _body("Failed")
    del body["status"]["startTime"]
    status = ending_of(body, []).status
    assert (status.phase, status.job_seconds) == (wire.JobPhase.FAILED, 0.0)


def test_events_come_in_their_order_with_their_repetitions() -> None:
    """A list of the API server has no order; numbers let --after work."""
    warning = _event(1, type="Warning", series={"count": 3})
    ending = ending_of(_body(), [_event(5), warning, _event(3)])
    events = ending.answer(wire.ListEventsRequest()).events
    assert [event.text for event in events] == ["at 1 (3 times)", "at 3", "at 5"]
    assert events[0].severity is wire.EventSeverity.WARNING
    later = ending.answer(wire.ListEventsRequest(after_sequence=2)).events
    assert [event.text for event in later] == ["at 5"]


@pytest.mark.parametrize(
    "request_", [wire.ListNodesRequest(), wire.GetGoodputRequest(), wire.ScaleRequest()]
)
def test_what_only_a_master_knows_is_refused(request_: object) -> None:
    """Rather than shown as empty."""
    with pytest.raises(MasterRefusedError, match="job gpt has ended"):
        ending_of(_body(), []).answer(request_)


def test_stopping_what_has_ended_is_no_error() -> None:
    """As with a local job."""
    assert ending_of(_body(), []).answer(wire.StopJobRequest()) == wire.StopJobResponse()


def test_a_condition_is_told_with_its_message() -> None:
    """For a job whose master does not run."""
    status = {"conditions": [{"type": "MasterReady", "reason": "Starting", "message": "wait"}]}
    assert holding(status, "MasterReady") == "Starting: wait"
    assert holding(status, "Other") == holding({}, "MasterReady") == ""
