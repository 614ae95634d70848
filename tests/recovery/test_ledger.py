"""The goodput ledger of a real job: every second in one class, every incident with its record."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from agents.loop_script import loop_script
from holdfast_wire.messages import BudgetKind, GetGoodputResponse, JobEvent
from jobs.local_job import RunningJob, StartJob

pytestmark = [pytest.mark.train, pytest.mark.deadline]

TOLERANCE_SECONDS = 1.0
"""Of each node: its first hello and the event of it are not one moment."""


def joined_at(job: RunningJob) -> dict[int, float]:
    """Return when each node said its first hello, by the events (Unix time)."""
    joined: dict[str, JobEvent] = {}
    for event in job.events():
        if event.reason == "NodeJoined":
            joined.setdefault(event.node, event)
    return {int(node): event.unix_time for node, event in joined.items()}


def check_sum(job: RunningJob) -> GetGoodputResponse:
    """Every node's classes sum to its wall time; the job's to the nodes'."""
    asked = time.time()
    ledger: GetGoodputResponse = job.goodput()
    waited = time.time() - asked
    sums = {n.node_rank: sum(c.node_seconds for c in n.classes) for n in ledger.nodes}
    joined = joined_at(job)
    assert sums.keys() == joined.keys(), ledger
    for node, since in joined.items():
        more = sums[node] - (asked - since)
        assert -TOLERANCE_SECONDS <= more <= waited + TOLERANCE_SECONDS, ledger
    assert sum(sums.values()) == pytest.approx(ledger.node_seconds, abs=0.01)
    assert sum(c.node_seconds for c in ledger.totals) == pytest.approx(ledger.node_seconds)
    return ledger


def test_every_second_is_in_one_class_also_while_the_master_is_dead(
    start_job: StartJob, tmp_path: Path
) -> None:
    """A rank, the master, a rank again are killed; the records say who, when, and who paid."""
    job = start_job(script=loop_script(tmp_path, "--steps=1000000", "--step-seconds=0.05"))
    before = job.wait_step(10)
    check_sum(job)
    os.kill(job.rank_pid(1), signal.SIGKILL)
    first = job.wait_step(5, round_above=before.round)
    endpoint = job.home.endpoint()
    assert endpoint is not None
    os.kill(endpoint.pid, signal.SIGKILL)
    job.wait_for("a new epoch", lambda: job.status().epoch > first.epoch)
    check_sum(job)
    # Only new steps between them make it a failure and no job that does not get on.
    job.wait_step(job.status().step + 20)
    os.kill(job.rank_pid(0), signal.SIGKILL)
    job.wait_step(5, round_above=first.round)
    job.wait_for("closed", lambda: all(not i.open for i in job.goodput().incidents))
    ledger = check_sum(job)
    assert [incident.culprit_rank for incident in ledger.incidents] == ["1", "0"]
    for incident in ledger.incidents:
        assert incident.cause == "WorkerCrashed"
        assert incident.charged is BudgetKind.FAILURES
        assert incident.opened_unix > 0.0
        steps = (0.0, incident.decided_seconds, incident.respawned_seconds)
        assert list(steps) == sorted(steps)
        assert incident.first_step_seconds > incident.respawned_seconds > 0.0
        assert sum(entry.node_seconds for entry in incident.cost) > 0.0
    shown = job.cli("goodput", job.name).stdout
    assert shown.count("WorkerCrashed") == 2
    assert job.cli("stop", job.name, "--now").returncode == 0
    job.finish(60)
    assert job.output.count("budget: failures") == 2
