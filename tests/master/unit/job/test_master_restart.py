"""A new master takes a job up from the journal: nobody is restarted for it."""

from __future__ import annotations

import pytest

from holdfast_master.core import Core
from holdfast_master.inputs import Connected, Moment, Received, Ticked
from holdfast_master.instructions import Finished, Record, Send, StepDown
from holdfast_master.job.state.outgoing_batch import EPOCH_BITS
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, training


def restart(job: SteeredJob, after: float = 1.0) -> None:
    """The master dies and another starts a while later."""
    job.restart_master(after)


def test_a_running_world_is_adopted() -> None:
    """The same round goes on; goodput and events too."""
    job = training(3)
    events, step = job.core.newest_event(), job.step(1)
    restart(job, after=3.0)
    job.run(5.0)
    assert job.is_in("TRAINING")
    status = job.status
    assert (status.round, status.epoch) == (1, 2)
    assert job.core.newest_event() > events
    assert job.step(1) > step + 60
    assert len(job.assignments) == 3


@pytest.mark.parametrize("journal", [True, False])
def test_no_two_masters_give_out_the_same_number(*, journal: bool) -> None:
    """Agents, ranks and operators remember numbers, also those of masters that nobody else does."""
    job = training(2)
    job.kill_master()
    before = list(job.records)
    job.start_master(journal=journal)
    job.run(10.0)
    job.agents[0].crash()
    job.run(10.0)
    issued = {
        epoch: [fact.command_id for fact in facts if isinstance(fact, wire.CommandIssued)]
        for epoch, facts in ((1, [r.fact for r in before]), (2, [r.fact for r in job.records]))
    }
    new = [number for number in issued[2] if number not in issued[1]]
    assert issued[1]
    assert new
    assert {number >> EPOCH_BITS for number in issued[1]} == {1}
    assert {number >> EPOCH_BITS for number in new} == {2}


def test_a_member_that_does_not_come_back_is_lost_after_the_limit() -> None:
    """Five seconds, then the others go on."""
    job = training(3, min_replicas=1, replaces=False)
    job.kill_master()
    job.agents[1].crash(told=False)
    job.run(1.0)
    job.pods[1] = job.pods[1]
    job.start_master()
    job.run(4.0)
    assert job.status.round == 1
    job.run(4.0)
    assert job.members == [0, 2]


def test_a_failure_that_nobody_heard_is_found() -> None:
    """A worker died while no master was there."""
    job = training(2)
    job.kill_master()
    job.agents[1].crash_worker()
    job.run(1.0)
    job.start_master()
    job.run(15.0)
    assert job.is_in("TRAINING")
    assert job.charges() == [wire.BudgetKind.FAILURES]
    assert job.incidents[0].culprit_node == "1"


def test_an_open_incident_is_closed_and_charged_once() -> None:
    """Opened by one master, closed by the next."""
    job = training(2)
    job.agents[1].crash_worker()
    job.run(2.0)
    restart(job)
    job.run(15.0)
    assert job.charges() == [wire.BudgetKind.FAILURES]
    assert [item.open for item in job.incidents] == [False]


@pytest.mark.parametrize("phase", ["FORMING", "STARTING", "SAVING", "WAITING"])
def test_restart_in_any_phase(phase: str) -> None:
    """Whatever was on its way, the job trains again, whole."""
    job = training(3)
    if phase == "FORMING":
        job.store_failures = 1.0
        for _ in range(4):  # until no node has a store left
            job.agents[0].crash_worker()
            job.run(0.4)
    elif phase == "STARTING":
        job.agents[0].crash_worker()
    elif phase == "SAVING":
        job.ask(wire.DrainNodeRequest(node_rank=2))
    else:
        job.agents[0].cut_off()
        job.run(0.5)
        job.agents[1].crash_worker()
        job.time.after(3.0, job.agents[0].reachable)
    job.time.run(job.time.now + 5.0, lambda: job.is_in(phase))
    assert job.is_in(phase)
    restart(job)
    job.store_failures = 0.0
    job.run(20.0)
    assert job.is_in("TRAINING")
    assert job.refold() == job.state


@pytest.mark.parametrize("away", [0.1, 0.5, 3.0])
@pytest.mark.parametrize(("lived", "armed"), [(0.2, 1), (0.0, 2)], ids=["all-told", "none-told"])
def test_a_barrier_goes_on_under_the_next_master(lived: float, armed: int, away: float) -> None:
    """All save and stop at the first master's step, or at a later one where nobody knew it."""
    job = training(3)
    job.ask(wire.DrainNodeRequest(node_rank=2))
    assert job.is_in("SAVING")
    job.run(lived)
    restart(job, after=away)
    job.run_until("TRAINING", limit=20.0)
    assert job.members == [0, 1]
    [incident] = job.incidents
    assert incident.steps_redone == 0
    reasons = job.reasons()
    assert (reasons.count("BarrierReached"), reasons.count("BarrierSet")) == (1, armed)


def test_restart_before_the_first_world() -> None:
    """Nodes that were known come back and form it."""
    job = SteeredJob(job_spec(replicas=3))
    job.add_agents(2)
    job.run(1.0)
    restart(job)
    job.add_agent(2)
    job.run_until("TRAINING", limit=10.0)
    assert job.status.round == 1


def test_restart_while_the_first_world_waits_for_its_store() -> None:
    """It was decided, nobody was told."""
    job = SteeredJob(job_spec(replicas=2))
    job.store_failures = 1.0
    job.add_agents(2)
    job.time.run(5.0, lambda: job.is_in("FORMING"))
    restart(job)
    job.store_failures = 0.0
    job.run_until("TRAINING", limit=10.0)


def test_restart_while_stopping() -> None:
    """The agents are told again, the end is the same."""
    job = training(2)
    job.agents[0].freeze()
    job.ask(wire.StopJobRequest(reason="enough", now=True))
    job.run(1.0)
    restart(job)
    job.agents[0].thaw()
    job.run(10.0)
    assert job.end == "StoppedByUser"
    assert "enough" in job.status.text


def test_restart_after_the_end_says_so_at_once() -> None:
    """The shell may exit again."""
    job = training(2)
    job.ask(wire.StopJobRequest(now=True))
    job.run(2.0)
    job.finished = None
    restart(job)
    assert job.finished == Finished(succeeded=False, reason="StoppedByUser")


def test_replacements_that_were_asked_for_are_asked_for_again() -> None:
    """The operator was away when the first master asked."""
    job = training(3)
    job.operator.leave()
    job.agents[1].freeze()
    job.run(7.0)
    assert "ReplaceRequested" in job.reasons()
    restart(job)
    job.agents[1].crash(told=False)
    job.operator.come_back()
    job.run(15.0)
    assert sorted(job.members) == [0, 1, 2]


def test_the_journal_alone_gives_the_same_state() -> None:
    """Every durable change goes through a fact."""
    job = training(3)
    job.agents[0].crash_worker()
    job.ask(wire.ScaleRequest(replicas=4))
    job.run(20.0)
    job.ask(wire.DrainNodeRequest(node_rank=1))
    job.run(20.0)
    assert job.refold() == job.state


def test_records_count_up_and_say_the_jobs_own_time() -> None:
    """No gap, and the time stands still while no master runs.

    What ran since the last record before its end is forgotten.
    """
    job = training(2)
    restart(job, after=50.0)
    job.run(2.0)
    sequences = [record.sequence for record in job.records]
    assert sequences == list(range(1, len(sequences) + 1))
    assert 2.0 < job.status.job_seconds < job.time.now - 50.0


def test_a_master_that_stood_still_expires_nobody() -> None:
    """Twenty seconds of SIGSTOP: no node is lost, no deadline has passed."""
    job = training(3)
    job.master.freeze()
    job.run(20.0)
    job.master.thaw()
    job.run(3.0)
    assert job.is_in("TRAINING")
    assert job.status.round == 1
    assert "NodeLost" not in job.reasons()


def identity(epoch: int = 3) -> CoreIdentity:
    """A master of this epoch."""
    return CoreIdentity(
        job_name="job", job_uid="uid-1", epoch=epoch, incarnation="mine", version="0"
    )


NOW = Moment(5.0, 1000.0)


@pytest.mark.parametrize(
    ("fence", "zombie"),
    [
        (None, False),
        (wire.Fence(), False),
        (wire.Fence(epoch=2, incarnation="old"), False),
        (wire.Fence(epoch=3, incarnation="mine"), False),
        (wire.Fence(epoch=3, incarnation="other"), True),
        (wire.Fence(epoch=4, incarnation="new"), True),
    ],
)
def test_a_newer_fence_makes_this_master_step_down(
    fence: wire.Fence | None, *, zombie: bool
) -> None:
    """An agent has accepted a newer master: this one stops acting, and says why."""
    core = Core(identity(), CoreSettings())
    core.open(NOW)
    hello = wire.Hello(job_uid="uid-1", agent_id="a", local_world_size=1)
    batch = core.handle(Connected(1, hello, fence), NOW)
    assert any(isinstance(item, StepDown) for item in batch) is zombie
    batch = core.handle(Received(1, fence, wire.Heartbeat()), NOW)
    assert not any(isinstance(item, StepDown) for item in batch)
    if zombie:
        assert batch == []
        assert core.next_deadline() is None


def test_a_zombie_learns_of_it_by_any_message() -> None:
    """Not only by a hello."""
    job = training(2)
    job.say(0, wire.Heartbeat(), epoch=9)
    assert job.stepped_down


def test_the_first_batch_opens_the_segment_on_disk() -> None:
    """Before anything else can depend on it."""
    core = Core(identity(), CoreSettings())
    batch = core.open(NOW)
    first = batch[0]
    assert isinstance(first, Record)
    assert first.durable
    assert first.journal().sequence == 1
    assert core.job.state.sequence == len(batch)
    assert core.spec() is None


def test_no_second_is_lost_with_the_master() -> None:
    """Classes stay what they were, and the time without a master is counted as what was done."""
    job = training(2)
    job.run(5.45)
    job.agents[1].crash_worker()
    job.run(3.0)
    before = goodput_of(job)
    assert before[wire.GoodputClass.ROLLED_BACK] > 0
    job.run(20.0)
    job.restart_master(2.0)
    job.run(3.0)
    after = goodput_of(job)
    for kind in (
        wire.GoodputClass.ROLLED_BACK,
        wire.GoodputClass.RESTART,
        wire.GoodputClass.RESCALE,
    ):
        assert after.get(kind, 0.0) == pytest.approx(before.get(kind, 0.0))
    assert after[wire.GoodputClass.PRODUCTIVE] - before[wire.GoodputClass.PRODUCTIVE] > 2 * 24.0
    assert sum(after.values()) == pytest.approx(sum(before.values()) + 2 * 25.0, abs=0.5)


def goodput_of(job: SteeredJob) -> dict[wire.GoodputClass, float]:
    """Node-seconds by class."""
    answer = job.core.goodput(job.moment())
    return {entry.kind: entry.node_seconds for entry in answer.totals}


def test_nodes_that_wait_for_their_turn_to_come_back_are_not_lost() -> None:
    """A herd's handshakes take longer than the silence limit; it is over 5 s after the last one."""
    now, old = 100.0, Core(identity(), CoreSettings())
    batch = old.open(Moment(now, now))
    for rank in range(4):
        batch += old.handle(Connected(rank + 1, said_hello(rank), None), Moment(now, now))
    records = [item.journal() for item in batch if isinstance(item, Record)]
    core = Core(identity(4), CoreSettings(), records)
    core.open(Moment(now, now))
    for rank in range(3):
        now += 4.0
        run_until(core, now)
        core.handle(Connected(10 + rank, said_hello(rank), None), Moment(now, now))
        for back in range(rank + 1):
            core.handle(Received(10 + back, None, wire.Heartbeat()), Moment(now, now))
    assert {node.node_rank for node in core.nodes(Moment(now, now))} == {0, 1, 2, 3}
    for _ in range(6):
        now += 1.0
        run_until(core, now)
        for back in range(3):
            core.handle(Received(10 + back, None, wire.Heartbeat()), Moment(now, now))
    assert {node.node_rank for node in core.nodes(Moment(now, now))} == {0, 1, 2}


def test_a_crowd_has_time_until_its_first_is_back() -> None:
    """Its handshakes go on side by side: none of them is done before the silence limit."""
    now, crowd, old = 100.0, 4_000, Core(identity(), CoreSettings())
    batch = old.open(Moment(now, now))
    for rank in range(crowd):
        batch += old.handle(Connected(rank + 1, said_hello(rank), None), Moment(now, now))
    records = [item.journal() for item in batch if isinstance(item, Record)]
    core = Core(identity(4), CoreSettings(), records)
    core.open(Moment(now, now))
    run_until(core, now + 19.9)
    assert len(core.nodes(Moment(now + 19.9, now))) == crowd
    run_until(core, now + 31.0)
    assert not core.nodes(Moment(now + 31.0, now))


def test_a_crowd_that_comes_back_keeps_its_long_interval() -> None:
    """The first Welcome of a new master already names it."""
    settings = CoreSettings(crowd_nodes=2, crowd_messages_per_second=1.0)
    old = Core(identity(), settings)
    batch = old.open(Moment(1.0, 1.0))
    for rank in range(4):
        batch += old.handle(Connected(rank + 1, said_hello(rank), None), Moment(1.0, 1.0))
    records = [item.journal() for item in batch if isinstance(item, Record)]
    core = Core(identity(4), settings, records)
    core.open(Moment(2.0, 2.0))
    batch = core.handle(Connected(1, said_hello(0), None), Moment(2.1, 2.1))
    (welcome,) = [
        item.response.message
        for item in batch
        if isinstance(item, Send) and isinstance(item.response.message, wire.Welcome)
    ]
    assert welcome.heartbeat_seconds == 4.0


def said_hello(rank: int) -> wire.Hello:
    """An agent's first word."""
    return wire.Hello(
        job_uid="uid-1", node_rank=rank, agent_id=f"a{rank}", local_world_size=1, warm=True
    )


def run_until(core: Core, end: float) -> None:
    """Let every deadline up to a moment come."""
    while (due := core.next_deadline()) is not None and due <= end:
        core.handle(Ticked(), Moment(due, due))
