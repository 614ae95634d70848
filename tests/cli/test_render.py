"""What people and programs see of a job."""

from __future__ import annotations

import dataclasses
import json

import pytest

from holdfast_cli import render
from holdfast_cli.summary import summary
from holdfast_wire.messages import (
    BudgetKind,
    BudgetState,
    CheckpointInterval,
    GetGoodputResponse,
    GoodputClass,
    GoodputEntry,
    Incident,
    JobEvent,
    JobPhase,
    JobStatus,
    NodeInfo,
    NodeState,
    RankInfo,
)

STATUS = JobStatus(
    name="gpt",
    uid="u-1",
    phase=JobPhase.TRAINING,
    round=3,
    world_size=2,
    step=120,
    loss=2.3141,
    has_loss=True,
    samples_per_second=12_345.0,
    goodput=0.931,
    budgets=(BudgetState(kind=BudgetKind.FAILURES, used=1, limit=32),),
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12 ms"), (3.21, "3.2 s"), (61.0, "1 min 1 s"), (7265.0, "2 h 1 min")],
)
def test_duration_is_shown_in_the_unit_a_person_would_choose(seconds: float, text: str) -> None:
    """Milliseconds, seconds, minutes and hours each have their range."""
    assert render.duration(seconds) == text


def test_status_line_has_every_number_that_progress_is_read_from() -> None:
    """World, round, step, loss, tokens and goodput are on one line."""
    line = render.status_line(STATUS)
    for part in ("world 2", "round 3", "step 120", "loss 2.3141", "tokens 12.3k/s", "goodput 93%"):
        assert part in line


@pytest.mark.parametrize(
    ("stored", "memory", "text"),
    [
        (0, 0, "none yet"),
        (100, 0, "step 100 on storage"),
        (0, 119, "step 119 in memory"),
        (100, 119, "step 100 on storage, step 119 in memory"),
    ],
)
def test_status_names_the_newest_step_of_each_tier(stored: int, memory: int, text: str) -> None:
    """What a crash would go back to, and what the loss of the nodes would."""
    status = dataclasses.replace(STATUS, stored_step=stored, memory_step=memory)
    lines = render.status_table(status).splitlines()
    assert f"{'Checkpoints:':<13}{text}" in lines


def test_json_names_enums_and_keeps_field_names() -> None:
    """Programs read the same names as in the .proto files."""
    data = json.loads(render.to_json(STATUS))
    assert data["phase"] == "TRAINING"
    assert data["budgets"][0]["kind"] == "FAILURES"
    assert data["samples_per_second"] == 12_345.0


def test_columns_align_and_end_without_blanks() -> None:
    """A table's columns begin at the same place in each line."""
    text = render.columns(("A", "LONG"), [("value", "x"), ("v", "")])
    lines = text.splitlines()
    assert lines[0].index("LONG") == lines[1].index("x")
    assert all(line == line.rstrip() for line in lines)


def test_nodes_table_shows_ranks_and_the_slowest_step() -> None:
    """A node with two ranks shows both, its lowest step and its slowest step time."""
    ranks = (
        RankInfo(rank=2, pid=11, step=7, step_seconds=0.02),
        RankInfo(rank=3, pid=12, step=6, step_seconds=0.04),
    )
    node = NodeInfo(node_rank=1, state=NodeState.ACTIVE, agent_pid=9, host="h", ranks=ranks)
    row = render.nodes_table([node]).splitlines()[1]
    assert row.split()[:5] == ["1", "Active", "2,3", "6", "40"]


def test_event_line_names_the_node_only_where_there_is_one() -> None:
    """An event about the job has no node in its line."""
    assert "node" not in render.event_line(JobEvent(reason="JobStarted", text="hello"))
    assert "node 3" in render.event_line(JobEvent(reason="AgentLost", node="3", text="gone"))


def test_summary_says_how_it_ended_and_where_the_seconds_went() -> None:
    """Outcome, final loss, classes and each incident's pieces are in the summary."""
    incident = Incident(
        cause="WorkerCrashed",
        text="signal 9",
        culprit_node="1",
        culprit_rank="1",
        charged=BudgetKind.FAILURES,
        from_round=1,
        to_round=2,
        decided_seconds=0.001,
        respawned_seconds=0.051,
        first_step_seconds=0.251,
        detection_seconds=0.009,
        steps_redone=4,
    )
    goodput = GetGoodputResponse(
        totals=(GoodputEntry(kind=GoodputClass.ROLLED_BACK, node_seconds=1.5),),
        node_seconds=1.5,
        incidents=(incident,),
    )
    text = summary(STATUS, goodput)
    assert "final loss 2.3141" in text
    assert "rolled back" in text
    assert "round 1 -> 2  WorkerCrashed node 1 rank 1" in text
    assert "260 ms to the next step" in text
    assert "respawned 50 ms, restored and first step 200 ms; 4 steps redone" in text


def test_summary_does_not_invent_a_step_that_never_came() -> None:
    """The job's last incident says how far it came."""
    incident = Incident(cause="WorkerCrashed", from_round=7, decided_seconds=0.002)
    text = summary(STATUS, GetGoodputResponse(incidents=(incident,)))
    assert "round 7 -> none" in text
    assert "no step followed: detected 0 ms, decided 2 ms; 0 steps redone" in text


def test_the_table_of_incidents_has_dashes_for_what_never_was() -> None:
    """Another one was sooner: nothing was respawned, and there was no first step."""
    incident = Incident(cause="PodFailed", from_round=2, text="gone", charged=BudgetKind.FAILURES)
    row = render.goodput_table(GetGoodputResponse(incidents=(incident,))).splitlines()[-1]
    assert row.split()[-5:] == ["-", "-", "-", "0", "steps"]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_json_has_null_where_a_number_is_not_finite(loss: float) -> None:
    """JSON knows neither NaN nor infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    status = dataclasses.replace(STATUS, loss=loss)
    assert json.loads(render.to_json(status), parse_constant=refuse)["loss"] is None


def test_the_status_says_how_far_apart_checkpoints_are_and_why() -> None:
    """A line for each tier; none where nobody follows the master's schedule."""
    tiers = (
        CheckpointInterval(tier="memory", every=3, reason="a save stops training for 10 ms"),
        CheckpointInterval(tier="storage", every=0, reason="the script says so"),
    )
    text = render.status_table(dataclasses.replace(STATUS, checkpoint_intervals=tiers))
    assert "Memory:      saved every 3 steps: a save stops training for 10 ms" in text
    assert "Storage:     no saves of its own: the script says so" in text
    assert "Memory:" not in render.status_table(STATUS)
