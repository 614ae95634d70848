"""Views of a job for people and programs."""

from __future__ import annotations

import dataclasses
import json

import pytest

from holdfast_cli import render
from holdfast_cli.summary import summary
from holdfast_wire import messages as wire

STATUS = wire.JobStatus(
    name="gpt",
    uid="u-1",
    phase=wire.JobPhase.TRAINING,
    round=3,
    world_size=2,
    step=120,
    loss=2.3141,
    has_loss=True,
    samples_per_second=12_345.0,
    goodput=0.931,
    budgets=(wire.BudgetState(kind=wire.BudgetKind.FAILURES, used=1, limit=32),),
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12 ms"), (3.21, "3.2 s"), (61.0, "1 min 1 s"), (7265.0, "2 h 1 min")],
)
def test_duration_is_shown_in_the_unit_a_person_would_choose(seconds: float, text: str) -> None:
    """Milliseconds, seconds, minutes and hours each have their range."""
    assert render.duration(seconds) == text


def test_status_line_has_every_number_that_progress_is_read_from() -> None:
    """World, round, step, loss, samples and goodput are on one line."""
    line = render.status_line(STATUS)
    for part in ("world 2", "round 3", "step 120", "loss 2.3141", "samples 12.3k/s", "goodput 93%"):
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
    """The status line names the newest step on storage and the newest in memory."""
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


def test_what_replicas_have_chosen_is_shown_with_its_reason() -> None:
    """What runs, or what they would choose; no line where they have not chosen."""
    sync = wire.SyncChosen(step=24, interval=4, made=True, reason="it costs 40 %")
    shown = render.status_table(wire.JobStatus(name="j", sync=sync))
    assert "each 4 steps, chosen at step 24: it costs 40 %" in shown
    sync = wire.SyncChosen(step=8, interval=1, reason="it costs 1 %")
    shown = render.status_table(wire.JobStatus(name="j", sync=sync))
    assert "in each step is proposed since step 8: it costs 1 %" in shown
    assert "Sync:" not in render.status_table(wire.JobStatus(name="j"))


def test_replicas_are_shown_where_a_job_has_some() -> None:
    """Who synchronises in the status, and each node's replica in the table of nodes."""
    status = wire.JobStatus(name="j", outer_replicas=(1, 3), outer_epoch=4)
    assert "Synchronise: replicas 1, 3, since epoch 4" in render.status_table(status)
    assert "Synchronise" not in render.status_table(wire.JobStatus(name="j"))
    header, first, second = render.nodes_table(
        [
            wire.NodeInfo(node_rank=0, replica=3, replica_state=wire.ReplicaState.IN_STEP),
            wire.NodeInfo(node_rank=1),
        ]
    ).splitlines()
    assert header.endswith("REPLICA   IN STEP")
    assert first.split()[-2:] == ["3", "yes"]
    assert second.split()[-2:] == ["-", "-"]


_REPLICATED = wire.JobStatus(
    name="j",
    replicas=6,
    min_replicas=2,
    max_replicas=8,
    world_size=12,
    ranks_in_step=8,
    replicas_in_step=2,
    wanted_replicas=3,
)


def _replica(number: int, state: wire.ReplicaState = wire.ReplicaState.IN_STEP) -> wire.ReplicaInfo:
    nodes = (2 * number - 2, 2 * number - 1)
    return wire.ReplicaInfo(
        number=number, state=state, node_ranks=nodes, ranks=4, round=number, step=10 * number
    )


def test_a_status_counts_workers_and_replicas_apart() -> None:
    """`spec.replicas` are workers; ranks are those of the whole job, and of whom are in step."""
    lines = render.status_table(_REPLICATED).splitlines()
    assert "World:       12 ranks, 8 in step, round 0, epoch 0" in lines
    assert "Workers:     6 (min 2, max 8)" in lines
    assert "Replicas:    2 of 3 in step" in lines
    assert "in step 2/3" in render.status_line(_REPLICATED)
    plain = render.status_table(dataclasses.replace(_REPLICATED, wanted_replicas=0))
    assert "Replicas:    6 (min 2, max 8)" in plain.splitlines()
    assert "in step" not in plain + render.status_line(STATUS)


def test_a_status_lists_each_replica_with_its_state() -> None:
    """Number, nodes, round and step; a replica without a step has a dash."""
    frozen = _replica(2, wire.ReplicaState.FROZEN)
    fresh = dataclasses.replace(_replica(5, wire.ReplicaState.STARTING), step=0)
    answer = wire.GetJobResponse(status=_REPLICATED, replicas=(_replica(1), frozen, fresh))
    table = [line.split() for line in render.status_screen(answer).splitlines()[-4:]]
    assert table == [
        ["REPLICA", "STATE", "NODES", "RANKS", "ROUND", "STEP"],
        ["1", "in", "step", "0,1", "4", "1", "10"],
        ["2", "frozen", "2,3", "4", "2", "20"],
        ["5", "starting", "8,9", "4", "5", "-"],
    ]
    one_world = wire.GetJobResponse(status=STATUS)
    assert render.status_screen(one_world) == render.status_table(STATUS)


def test_of_many_replicas_those_are_listed_that_are_not_in_step() -> None:
    """A thousand lines of the same hide the one that matters."""
    many = [_replica(number) for number in range(1, 1001)]
    many[499] = _replica(500, wire.ReplicaState.LOST)
    text = render.status_screen(wire.GetJobResponse(status=_REPLICATED, replicas=tuple(many)))
    lines = text.splitlines()
    assert lines[-2].split()[:2] == ["500", "lost"]
    assert lines[-1] == "999 more replicas"


def test_the_table_of_incidents_says_how_many_replicas_each_stopped() -> None:
    """A job of one world has no column for it."""
    one = wire.Incident(cause="WorkerCrashed", lost_replicas=(2,), going_replicas=3)
    whole = wire.Incident(cause="WorkerCrashed", lost_replicas=(2, 3))
    grown = wire.Incident(cause="Rescaled", going_replicas=3)
    header, *rows = render.incidents_table([one, whole, grown]).splitlines()
    assert header.endswith("REPLICAS STOPPED")
    assert [row.split("   ")[-1].strip() for row in rows] == ["1 of 4", "all", "-"]
    assert "REPLICAS" not in render.incidents_table([grown])


def test_ranks_of_replicas_are_told_apart_in_health() -> None:
    """Each replica has a rank 0."""
    ranks = tuple(wire.RankHealth(rank=0, node_rank=one, replica=one + 1) for one in (0, 1))
    health = wire.GetHealthResponse(not_judged="why", ranks=ranks)
    lines = render.health_screen(health).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["REPLICA", "1", "2"]


def test_nodes_table_shows_verdicts_once_a_node_was_checked() -> None:
    """Jobs that check nobody have no column for it."""
    nodes = [wire.NodeInfo(node_rank=0, preflight="slow"), wire.NodeInfo(node_rank=1)]
    header, first, second = render.nodes_table(nodes).splitlines()
    assert (header.split()[-1], first.split()[-1], second.split()[-1]) == ("CHECK", "slow", "-")
    assert "CHECK" not in render.nodes_table(nodes[1:])


def test_nodes_table_shows_ranks_and_the_slowest_step() -> None:
    """A node with two ranks shows both, its lowest step and its slowest step time."""
    ranks = (
        wire.RankInfo(rank=2, pid=11, step=7, step_seconds=0.02),
        wire.RankInfo(rank=3, pid=12, step=6, step_seconds=0.04),
    )
    node = wire.NodeInfo(
        node_rank=1, state=wire.NodeState.ACTIVE, agent_pid=9, host="h", ranks=ranks
    )
    row = render.nodes_table([node]).splitlines()[1]
    assert row.split()[:5] == ["1", "Active", "2,3", "6", "40"]


def test_event_line_names_the_node_only_where_there_is_one() -> None:
    """An event about the job has no node in its line."""
    assert "node" not in render.event_line(wire.JobEvent(reason="JobStarted", text="hello"))
    assert "node 3" in render.event_line(wire.JobEvent(reason="AgentLost", node="3", text="gone"))


def test_summary_says_how_it_ended_and_where_the_seconds_went() -> None:
    """Outcome, last loss, classes and each incident's pieces are in the summary."""
    incident = wire.Incident(
        cause="WorkerCrashed",
        text="signal 9",
        culprit_node="1",
        culprit_rank="1",
        charged=wire.BudgetKind.FAILURES,
        from_round=1,
        to_round=2,
        decided_seconds=0.001,
        respawned_seconds=0.051,
        first_step_seconds=0.251,
        detection_seconds=0.009,
        steps_redone=4,
    )
    goodput = wire.GetGoodputResponse(
        totals=(wire.GoodputEntry(kind=wire.GoodputClass.ROLLED_BACK, node_seconds=1.5),),
        node_seconds=1.5,
        incidents=(incident,),
    )
    text = summary(STATUS, goodput)
    assert "last loss of rank 0: 2.3141" in text
    assert "rolled back" in text
    assert "round 1 -> 2  WorkerCrashed node 1 rank 1" in text
    assert "260 ms to the next step" in text
    assert "respawned 50 ms, restored and first step 200 ms; 4 steps redone" in text


def test_a_rescale_trains_on_until_its_barrier() -> None:
    """That time is no cost, and the summary does not call it one; without a barrier it is."""
    incident = wire.Incident(
        cause="Rescaled",
        from_round=1,
        to_round=2,
        decided_seconds=2.0,
        respawned_seconds=2.1,
        first_step_seconds=2.4,
    )
    text = summary(STATUS, wire.GetGoodputResponse(incidents=(incident,)))
    assert "Incidents, and the time to the next step:" in text
    assert "trained on to the barrier 2.0 s, respawned" in text
    redone = dataclasses.replace(incident, steps_redone=1)
    text = summary(STATUS, wire.GetGoodputResponse(incidents=(redone,)))
    assert "decided 2.0 s" in text
    assert "1 step redone" in text


@pytest.mark.parametrize(
    ("cause", "course"),
    [
        ("Rescaled", "decided 2.0 s"),
        ("Drained", "decided 2.0 s"),
        ("RestartAsked", "barrier 2.0 s"),
    ],
)
def test_replicas_come_and_go_without_a_barrier(cause: str, course: str) -> None:
    """Only a restart of all waits for one, and only its time is the job's."""
    incident = wire.Incident(
        cause=cause,
        from_round=1,
        to_round=2,
        decided_seconds=2.0,
        first_step_seconds=5.0,
        going_replicas=0 if cause == "RestartAsked" else 2,
    )
    status = dataclasses.replace(STATUS, outer_replicas=(1, 2), outer_epoch=3)
    text = summary(status, wire.GetGoodputResponse(incidents=(incident,)))
    assert course in text
    assert ("trained on to the barrier" in text) is (cause == "RestartAsked")
    alone = "5.0 s to its own next step, while other replicas trained on: "
    assert (alone in text) is (cause != "RestartAsked")


def test_summary_does_not_invent_a_step_that_never_came() -> None:
    """The job's last incident says how far it came."""
    incident = wire.Incident(cause="WorkerCrashed", from_round=7, decided_seconds=0.002)
    text = summary(STATUS, wire.GetGoodputResponse(incidents=(incident,)))
    assert "round 7 -> none" in text
    assert "no step followed: detected 0 ms, decided 2 ms; 0 steps redone" in text


def test_the_table_of_incidents_has_dashes_for_what_never_was() -> None:
    """Another one was sooner: nothing was respawned, and there was no first step."""
    incident = wire.Incident(
        cause="PodFailed", from_round=2, text="gone", charged=wire.BudgetKind.FAILURES
    )
    row = render.goodput_table(wire.GetGoodputResponse(incidents=(incident,))).splitlines()[-1]
    assert row.split()[-5:] == ["-", "-", "-", "0", "steps"]


def test_what_no_rank_reports_is_shown_as_a_guess_or_not_at_all() -> None:
    """Without the SDK: no time to the next step, and a goodput with a tilde and its reason."""
    status = dataclasses.replace(STATUS, goodput_assumed=True)
    assert "goodput ~93%" in render.status_line(status)
    assert "~93.1% (assumed where no rank reports steps" in render.status_table(status)
    incident = wire.Incident(
        cause="WorkerCrashed",
        from_round=1,
        to_round=2,
        decided_seconds=0.002,
        respawned_seconds=0.1,
        first_step_unseen=True,
    )
    goodput = wire.GetGoodputResponse(incidents=(incident,), goodput_assumed=True)
    table = render.goodput_table(goodput)
    assert "productive: assumed where no rank reports steps" in table
    assert "not seen" in table.splitlines()[-1]
    text = summary(status, goodput)
    assert "Goodput ~93.1%." in text
    assert "no rank reports its next step: detected 0 ms, decided 2 ms, respawned 98 ms" in text
    assert "productive: assumed" in text


def test_a_guessed_step_has_a_tilde_everywhere() -> None:
    """In the status, its line, the table of nodes, an incident and the summary."""
    status = dataclasses.replace(STATUS, step=120, step_guessed=True)
    assert "step ~120" in render.status_line(status)
    assert "~120" in render.status_table(status)
    rank = wire.RankInfo(step=120, step_guessed=True)
    assert "~120" in render.nodes_table([wire.NodeInfo(ranks=(rank,))])
    incident = wire.Incident(
        cause="WorkerCrashed",
        to_round=2,
        respawned_seconds=0.1,
        first_step_seconds=31.2,
        first_step_guessed=True,
    )
    goodput = wire.GetGoodputResponse(incidents=(incident,))
    assert "~31.2 s" in render.goodput_table(goodput)
    assert "step ~120" in summary(status, goodput)
    assert "~31.2 s to the next step" in summary(status, goodput)


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
        wire.CheckpointInterval(
            tier=wire.Tier.MEMORY, every=3, reason="a save stops training for 10 ms"
        ),
        wire.CheckpointInterval(tier=wire.Tier.STORAGE, every=0, reason="the script says so"),
    )
    text = render.status_table(dataclasses.replace(STATUS, checkpoint_intervals=tiers))
    assert "Memory:      saved every 3 steps: a save stops training for 10 ms" in text
    assert "Storage:     no saves of its own: the script says so" in text
    assert "Memory:" not in render.status_table(STATUS)


@pytest.mark.parametrize("reason", ["StoppedByUser", "StoppedByOperator"])
def test_a_job_that_somebody_ended_is_called_stopped(reason: str) -> None:
    """It did not fail; programs still see the phase FAILED, and the reason."""
    status = dataclasses.replace(STATUS, phase=wire.JobPhase.FAILED, reason=reason, text="enough")
    assert render.status_line(status).startswith("Stopped ")
    assert f"Stopped  {reason}  enough" in render.status_table(status)
    assert "Job gpt was stopped after" in summary(status, wire.GetGoodputResponse())
    crashed = dataclasses.replace(status, reason="NoProgress")
    assert render.status_line(crashed).startswith("Failed ")
    assert "Job gpt failed after" in summary(crashed, wire.GetGoodputResponse())


def test_a_node_that_failed_its_check_is_not_called_ready() -> None:
    """No world takes it; one that leaves for it says that."""
    kept_out = wire.NodeInfo(node_rank=1, state=wire.NodeState.READY, preflight="slow", unfit=True)
    nodes = [kept_out, dataclasses.replace(kept_out, node_rank=2, state=wire.NodeState.DRAINING)]
    _, first, second = render.nodes_table(nodes).splitlines()
    assert (first.split()[1], first.split()[-1]) == ("Unfit", "slow")
    assert second.split()[1] == "Draining"


def test_a_host_that_the_job_avoids_is_listed_without_a_strike() -> None:
    """Its event said so: the history must not contradict it."""
    history = [wire.HostHistory(host="gpu-7", avoided="a failure rule")]
    _, row = render.history_table(history).splitlines()
    assert " ".join(row.split()) == "gpu-7 0.00 no yes - this one - - a failure rule"


def test_a_strike_names_the_job_that_it_comes_from() -> None:
    """People see whether this job had the trouble, or another one before it."""
    strikes = (
        wire.NodeStruck(host="gpu-7", node_rank=3, cause="Hang", text="it hung", job="team/gpt"),
        wire.NodeStruck(host="gpu-7", node_rank=1, cause="Failure", text="it crashed"),
        wire.NodeStruck(host="gpu-7", cause="Condition", text="condition x is True", job="node"),
    )
    history = [wire.HostHistory(host="gpu-7", points=1.0, strikes=strikes)]
    header, first, second, third = render.history_table(history).splitlines()
    assert header.split()[3:7] == ["AVOIDED", "TIME", "JOB", "NODE"]
    assert first.split()[3] == second.split()[3] == "no"
    assert first.split()[5:8] == ["team/gpt", "3", "Hang"]
    assert second.split()[5:9] == ["this", "one", "1", "Failure"]
    assert third.split()[5:8] == ["-", "-", "Condition"]
