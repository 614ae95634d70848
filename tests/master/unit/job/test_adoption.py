"""A master without a journal takes a running job up from hellos and digests."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest

from holdfast_master.instructions import Reply
from holdfast_master.job.state.takeover_claims import Claims, DeferredReport
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, started, training
from simulation.steered.replicas import replicated, roster


def lose_the_journal(job: SteeredJob, after: float = 1.0) -> None:
    """The master's pod is gone with its disk."""
    job.restart_master(after, journal=False)


def test_a_whole_world_goes_on() -> None:
    """Nobody is restarted; charges, event numbers and the job's own time are continued."""
    job = training(3)
    job.agents[0].crash_worker()
    job.run(12.0)
    job.agents[1].crash_worker()
    job.run(12.0)
    charges, events, step = job.charges(), job.core.newest_event(), job.step(3)
    assert len(charges) == 2
    lose_the_journal(job)
    job.run(5.0)
    assert job.is_in("TRAINING")
    status = job.status
    assert (status.round, status.epoch) == (3, 2)
    assert job.step(3) > step
    assert job.charges() == charges
    assert job.core.events_after(0, 1)[0].sequence == 1
    assert job.core.newest_event() > events - 20
    assert status.job_seconds > 12.0
    assert status.goodput > 0.5
    assert "WorldAdopted" in job.reasons()
    assert job.refold() == job.state


def test_the_goodput_of_nodes_that_are_gone_survives() -> None:
    """Nobody brings it but the digest: nodes that are there bring their own."""
    job = training(3)
    job.run(20.0)
    job.ask(wire.ScaleRequest(replicas=2))
    job.run(10.0)
    job.agents[0].crash_worker()  # the digest is placed when something has changed
    job.run(12.0)
    assert 2 not in job.context.membership.nodes
    before = {node.node_rank: node.classes for node in job.core.goodput(job.moment()).nodes}
    lose_the_journal(job)
    job.run(5.0)
    found = job.core.goodput(job.moment())
    after = {node.node_rank: node.classes for node in found.nodes}
    assert after[2] == before[2]
    sums = [sum(entry.node_seconds for entry in classes) for classes in after.values()]
    assert sum(sums) == pytest.approx(found.node_seconds, abs=1e-6)
    assert job.refold() == job.state


def test_the_adopted_world_recovers_like_any_other() -> None:
    """The next round is newer, restart_count goes on."""
    job = training(2)
    job.agents[0].crash_worker()
    job.run(3.0)
    lose_the_journal(job)
    job.run(3.0)
    job.agents[1].crash_worker()
    job.run(2.0)
    assert job.is_in("TRAINING")
    assert job.assignments[-1][2] == 3
    assert job.assignments[-1][3].restart_count == 2


def test_a_world_with_a_missing_member_gives_way_to_a_fresh_round() -> None:
    """Five seconds for the members to come back, then one new round without it."""
    job = training(3, replaces=False)
    job.raises = 0.0
    job.kill_master()
    job.agents[2].crash(told=False)
    job.run(1.0)
    job.start_master(journal=False)
    job.run(4.0)
    assert job.is_in("WAITING")
    assert not job.members
    job.run(8.0)
    assert job.members == [0, 1]
    assert "WorldNotAdopted" in job.reasons()
    assert job.status.round == 2
    assert job.assignments[-1][3].restart_count == 1


def test_a_member_whose_node_answers_nothing_is_not_waited_for() -> None:
    """It was lost together with the master: the others train on at once, and it gets a new pod."""
    job = training(3, join_window_seconds=30.0, replaces=False)
    job.raises = 0.0
    job.kill_master()
    job.agents[2].crash(told=False)
    job.pods[2] = dataclasses.replace(job.pods[2], unreachable=True)
    job.run(1.0)
    job.start_master(journal=False)
    began = job.time.now
    job.run_until("TRAINING")
    assert job.time.now - began < 3.0, "the time that an agent takes to come back, and to start"
    assert job.members == [0, 1]
    assert "WorldNotAdopted" in job.reasons()
    assert job.context.operator.replacing == {}, "its agent may still come"
    job.run(5.0)
    assert job.context.operator.replacing[2].reason == "its Kubernetes node does not answer"
    job.replaces = True
    job.operator.replace(2)
    job.run(12.0)
    assert job.members == [0, 1, 2]


def test_a_node_that_only_seems_to_answer_nothing_loses_nothing() -> None:
    """The operator may be wrong: who says hello in time is as good a member as any."""
    job = training(3)
    job.pods[2] = dataclasses.replace(job.pods[2], unreachable=True)
    job.agents[2].blip()
    lose_the_journal(job)
    job.run(5.0)
    assert job.is_in("TRAINING")
    assert job.status.round == 1
    assert job.context.operator.replacing == {}


def test_where_the_others_are_too_few_a_node_that_answers_nothing_is_waited_for() -> None:
    """Nothing is won by not waiting, and the operator may be wrong: its processes go on."""
    job = training(2, min_replicas=2)
    job.pods[1] = dataclasses.replace(job.pods[1], unreachable=True)
    job.agents[1].cut_off()
    job.restart_master(1.0, journal=False)
    job.run(2.0)
    job.agents[1].reachable()
    job.run(4.0)
    assert job.is_in("TRAINING")
    assert job.status.round == 1
    assert "WorldAdopted" in job.reasons()


def test_nobody_else_may_be_missing_beside_a_node_that_answers_nothing() -> None:
    """A member of which nothing is known gets its time, as ever."""
    job = training(4, replaces=False)
    job.raises = 0.0
    job.kill_master()
    for rank in (2, 3):
        job.agents[rank].crash(told=False)
    job.pods[3] = dataclasses.replace(job.pods[3], unreachable=True)
    job.run(1.0)
    job.start_master(journal=False)
    job.run(4.0)
    assert job.is_in("WAITING")
    job.run(8.0)
    assert job.members == [0, 1]


def test_a_world_that_had_not_stepped_is_adopted_as_starting() -> None:
    """Its first step comes with the heartbeats."""
    job = training(2)
    job.agents[0].crash_worker()
    job.time.run(job.time.now + 1.0, lambda: len(job.rounds) == 2)
    job.time.run(job.time.now + 0.2, lambda: all(a.round == 2 for a in job.agents.values()))
    lose_the_journal(job, after=0.01)
    job.run(4.0)
    assert job.is_in("TRAINING")
    assert job.status.round == 2


def test_without_an_operator_the_spec_comes_from_the_digest() -> None:
    """A standalone job whose master is started anew."""
    job = started(2, agents={"unmanaged": True}, operator_up=False)
    job.run(2.0)
    lose_the_journal(job)
    job.run(3.0)
    assert job.is_in("TRAINING")
    assert job.core.spec() == job.spec


def test_idle_agents_claim_nothing() -> None:
    """Nobody waits for members of a world that does not exist; digests are heeded all the same."""
    job = SteeredJob(job_spec(replicas=2, min_replicas=2))
    job.add_agents(1)
    job.agents[0].digest = wire.StateDigest(
        fence=wire.Fence(epoch=1), sequence=5, excluded_nodes=("bad",)
    )
    job.agents[0].blip()
    job.run(1.0)
    lose_the_journal(job)
    job.run(1.0)
    status = job.status
    assert (status.phase.name, status.reason) == ("WAITING", "AwaitingEvidence")
    assert "waits up to 5 s for nodes that may still train under an earlier master" in status.text
    job.add_agent(1)
    job.run_until("TRAINING", limit=5.0)
    assert job.status.excluded_nodes == ("bad",)


@pytest.mark.parametrize("said", [{"ended_round": 1}, {"fence": wire.Fence(epoch=1, round=2)}])
def test_a_round_that_was_ended_is_not_adopted(said: dict[str, Any]) -> None:
    """A restart was granted and nobody was told: the digest knows, exactly one round follows."""
    job = training(3)
    for agent in job.agents.values():
        assert agent.digest is not None
        assert agent.digest.ended_round == 0
        agent.digest = dataclasses.replace(agent.digest, **said)
    lose_the_journal(job)
    job.run(8.0)
    assert job.is_in("TRAINING")
    assert len(job.rounds) == 2


def test_a_drain_that_was_granted_is_carried_out_without_a_journal() -> None:
    """The master dies before the barrier: the node leaves all the same."""
    job = training(3)
    before = job.agents[1].agent_id
    assert isinstance(job.answers[job.ask(wire.DrainNodeRequest(node_rank=1))], Reply)
    job.run(0.02)  # its agents know
    lose_the_journal(job)
    # The barrier that the first master armed may have to run out.
    job.run(45.0)
    assert job.is_in("TRAINING")
    assert before not in {agent.agent_id for agent in job.agents.values() if not agent.left}


def hello(rank: int, number: int, world: str, size: int = 2) -> wire.Hello:
    """A claim."""
    place = wire.WorldAssignment(group_rank=rank, group_world_size=size, world_hash=world)
    return wire.Hello(node_rank=rank, round=number, assignment=place)


def test_only_members_that_agree_make_a_world() -> None:
    """The newest round counts, and only with one hash."""
    claims = Claims()
    assert claims.whole() is None
    claims.keep(hello(1, 3, "y"))
    claims.keep(hello(0, 4, "x"))
    assert claims.top == (4, "x")
    assert claims.whole() is None
    claims.keep(hello(1, 4, "y"))
    assert claims.whole() is None
    claims.keep(hello(1, 3, "y"))
    assert claims.top == (4, "x"), "a claim that is taken back counts no more"
    assert claims.whole() is None
    claims.keep(hello(1, 4, "x"))
    members = claims.whole()
    assert members is not None
    assert [place.group_rank for _, place in members] == [0, 1]


@pytest.mark.parametrize("newer", [1, 3], ids=["a-lower-number", "a-higher-one"])
@pytest.mark.parametrize("first", [0, 1], ids=["the-older-comes-first", "the-newer-does"])
def test_of_two_worlds_the_newer_master_s_counts(newer: int, first: int) -> None:
    """Masters without a journal count rounds anew; a digest tells whose world it is."""

    def of(epoch: int, rank: int, number: int, world: str) -> wire.Hello:
        digest = wire.StateDigest(
            fence=wire.Fence(epoch=epoch, round=number), world_members=(rank,)
        )
        return dataclasses.replace(hello(rank, number, world, size=1), digest=digest)

    both = [of(1, 7, 2, "old"), of(2, 0, newer, "new")]
    claims = Claims()
    for one in (both[first], both[1 - first]):
        claims.keep(one)
    assert claims.top == (newer, "new")


@pytest.mark.parametrize("first", [0, 1], ids=["the-older-comes-first", "the-newer-does"])
@pytest.mark.parametrize("hashes", [("a", "b"), ("b", "a")])
def test_of_two_worlds_with_one_number_the_newer_master_s_counts(
    first: int, hashes: tuple[str, str]
) -> None:
    """Also before the newer one's agents have a digest: the older one's know no newer master."""
    old, new = (hello(7, 1, hashes[0], size=1), hello(3, 1, hashes[1], size=11))
    digest = wire.StateDigest(fence=wire.Fence(epoch=1, round=1), world_members=(7,))
    both = [dataclasses.replace(old, digest=digest), new]
    claims = Claims(followed={7: 1, 3: 2})
    for one in (both[first], both[1 - first]):
        claims.keep(one)
    assert claims.top == (1, hashes[1])
    assert claims.size == 11


def test_the_newest_digest_is_kept() -> None:
    """By epoch, then by sequence."""
    claims = Claims()
    old, new = (
        wire.StateDigest(fence=wire.Fence(epoch=1), sequence=9),
        wire.StateDigest(fence=wire.Fence(epoch=2)),
    )
    for digest in (None, new, old, wire.StateDigest()):
        claims.keep_digest(digest)
    assert claims.digest == new


def test_a_death_before_the_adoption_is_not_forgotten() -> None:
    """A rank dies after its agent's hello, while another member is still on its way."""
    job = training(2)
    job.raises = 0.0
    job.agents[1].cut_off()
    lose_the_journal(job)
    job.run(1.0)
    assert "NodeJoined" in job.reasons()
    job.agents[0].crash_worker(1, "ValueError")
    job.run(0.5)
    assert "WorldAdopted" not in job.reasons()
    job.agents[1].reachable()
    job.run(3.0)
    assert "WorldAdopted" in job.reasons()
    assert job.is_in("TRAINING")
    assert job.assignments[-1][2] == 2


def test_what_was_lost_with_the_master_is_not_waited_for_as_at_a_beginning() -> None:
    """The survivors' processes have ended as well: ten seconds, not the whole join window."""
    job = training(3, min_replicas=1, join_window_seconds=60.0, replaces=False)
    job.raises = 0.0
    job.kill_master()
    job.agents[2].crash(told=False)
    for agent in (job.agents[0], job.agents[1]):
        agent.crash_worker()
    job.run(1.0)
    job.start_master(journal=False)
    job.run(8.0)
    assert job.is_in("WAITING")
    job.run(6.0)
    assert job.is_in("TRAINING")
    assert job.assignments[-1][3].group_world_size == 2


def _rounds(job: SteeredJob) -> dict[int, int]:
    return {rank: agent.round for rank, agent in job.agents.items() if agent.alive}


def test_replicas_go_on_and_so_does_their_roster() -> None:
    """Nobody is restarted, though replicas began in different rounds; epochs and numbers go on."""
    job = replicated(6, 2)
    job.agents[3].crash_worker()
    job.run(10.0)
    known, before = roster(job), _rounds(job)
    assert known.replicas == (1, 3, 4)
    assert len(set(before.values())) == 2
    lose_the_journal(job)
    job.run(5.0)
    assert _rounds(job) == before
    assert roster(job) == known
    assert job.is_in("TRAINING")
    assert "WorldAdopted" in job.reasons()
    job.agents[0].crash_worker()
    job.run(10.0)
    assert roster(job).replicas == (3, 4, 5)
    assert roster(job).epoch > known.epoch
    assert [_rounds(job)[rank] for rank in (2, 3, 4, 5)] == [before[rank] for rank in (2, 3, 4, 5)]
    assert job.refold() == job.state


def test_a_replica_that_was_lost_with_the_journal_begins_anew() -> None:
    """All its nodes are back, so nobody waits for more; its number is not given again."""
    job = replicated(3)
    known, before = roster(job), _rounds(job)
    job.kill_master()
    job.agents[2].crash_worker()
    job.run(1.0)
    job.start_master(journal=False)
    job.run(10.0)
    assert roster(job).replicas == (1, 2, 4)
    assert roster(job).epoch > known.epoch
    assert {rank for rank in before if before[rank] != _rounds(job)[rank]} == {2}


def test_a_replica_whose_node_never_comes_back_holds_the_others_up_no_longer_than_a_world() -> None:
    """After the time for all to come back the others are adopted, and the next epoch says so."""
    job = replicated(3)
    before, job.replaces = _rounds(job), False
    job.kill_master()
    job.agents[2].crash()
    job.run(1.0)
    job.start_master(journal=False)
    job.run(job.settings.adopt_seconds + 5.0)
    assert [_rounds(job)[rank] for rank in (0, 1)] == [before[rank] for rank in (0, 1)]
    assert {1, 2} <= set(roster(job).replicas)
    assert 3 not in roster(job).replicas


def test_too_few_replicas_begin_anew_together() -> None:
    """A world is at least as large as the spec says."""
    job = replicated(3, min_replicas=2)
    before = _rounds(job)
    job.kill_master()
    for rank in (1, 2):
        job.agents[rank].crash_worker()
    job.run(1.0)
    job.start_master(journal=False)
    job.run(15.0)
    assert "WorldNotAdopted" in job.reasons()
    assert job.is_in("TRAINING")
    assert _rounds(job)[0] != before[0]
    assert len(roster(job).replicas) == 3


@pytest.mark.parametrize("change", [{"since": (1,)}, {"replicas": (2, 3, 9)}, {"replicas": ()}])
def test_an_odd_roster_claims_nothing(change: dict[str, tuple[int, ...]]) -> None:
    """The replica begins anew, and the others go on."""
    job = replicated(3)
    before = _rounds(job)
    told = job.agents[0].rosters
    odd = dataclasses.replace(roster(job), **change)  # type: ignore[arg-type]
    told[-1] = dataclasses.replace(told[-1], roster=odd)
    lose_the_journal(job)
    job.run(15.0)
    assert {rank for rank in before if before[rank] != _rounds(job)[rank]} == {0}
    assert roster(job).replicas == (2, 3, 4)


def test_each_node_has_its_share_of_the_reports_that_wait_for_an_adoption() -> None:
    """Those of 10,000 nodes are all kept, and one that is out of its senses takes no place."""
    claims = Claims()
    nodes, most = range(10_000), 100
    for rank in nodes:
        claims.hellos[rank] = wire.Hello(node_rank=rank, agent_id="a", local_world_size=1)
    report = DeferredReport(0, "a", None, wire.ReaderReport(dataset="d"))
    for _ in range(2 * most):
        assert claims.hold(report)
    for rank in [*nodes[1:]] * 3:
        assert claims.hold(dataclasses.replace(report, node_rank=rank))
    counts = collections.Counter(one.node_rank for one in claims.held)
    assert counts == {rank: 3 if rank else most for rank in nodes}
