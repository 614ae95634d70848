"""A node is announced to go: its ranks save at a common step, and the others go on without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_wire.messages import BudgetKind
from jobs.local_job import STEPS, StartJob, assert_same_curve, loss_lines, losses

pytestmark = [pytest.mark.train, pytest.mark.deadline]


@pytest.fixture
def notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that node 1 of a job started afterwards looks at; node 0 has one of its own."""
    monkeypatch.setenv("HOLDFAST_NOTICES", f"file:{tmp_path}/notice-{{node_rank}}")
    return tmp_path / "notice-1"


@pytest.mark.extended(
    "one real job: the sources' part and the master's are tested by themselves",
    held_by=[
        "master/unit/job/test_notices.py::test_a_node_that_will_go_leaves_at_a_barrier",
        "agent/unit/test_notices.py::test_a_node_leaves_only_for_maintenance_that_ends_it",
        "recovery/test_one_job.py::test_sigterm_of_an_agent_is_a_preemption_and_spends_no_failure",
    ],
)
def test_a_notice_for_one_node_loses_no_step_and_is_no_failure(
    start_job: StartJob, unbroken: dict[int, float], tmp_path: Path, notice: Path
) -> None:
    """Each step is done once; the preemption budget pays, and a new agent takes the place."""
    job = start_job("--extra-work-ms=200")
    before = job.wait_step(15)
    leaving = job.nodes()[1].agent_pid
    notice.write_text("preemption 30 written by a test")
    job.wait_event("NoticeReceived")
    job.wait_event("BarrierReached")
    job.wait_step(before.step + 1, round_above=before.round)
    charged = job.charged()
    assert charged[BudgetKind.PREEMPTIONS] == 1
    assert charged[BudgetKind.FAILURES] == charged[BudgetKind.NO_PROGRESS] == 0
    job.wait_for("a new agent of node 1", lambda: job.nodes()[1].agent_pid not in (0, leaving))
    told = [event.text for event in job.events() if event.reason == "NoticeReceived"]
    assert len(told) == 1, "the next agent of the node has left for the notice to the one before it"
    assert "node 1: it will be taken away (file: written by a test, " in told[0]
    assert job.finish() == 0, job.evidence()
    steps = [line["step"] for line in loss_lines(tmp_path / "loss.jsonl")]
    assert steps == list(range(1, STEPS + 1)), "a step was done twice or left out"
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)
    assert "RolledBack" not in job.output
