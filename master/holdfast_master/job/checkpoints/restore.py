"""Restore coordination: nodes ask, the master chooses, all verify, then all start.

Nobody begins before every node has found its share intact. A node that found damage after others
had begun would mix two steps.
"""

from __future__ import annotations

import dataclasses

from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.checkpoints import CheckpointTracker
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.job_state import JobState
from holdfast_master.job.state.membership import Membership, Node
from holdfast_master.job.state.wording import short
from holdfast_master.job.state.world import World
from holdfast_master.policies import checkpoints as policy
from holdfast_master.policies.checkpoints import MemoryPart, RestoreOffer
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason
from holdfast_wire.tiers import TIERS, offered, word

_MOST_NOTES = 16
_MOST_PARTS = 8
"""Versions whose parts a node may name: more are no agent's in its senses."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Start:
    """Nodes that start together: those of a world, or of one of its replicas."""

    tracker: CheckpointTracker
    ranks: tuple[int, ...]
    """Node ranks, in rank order."""
    round: int
    world: World


def _start_of(job: JobContext, world: World, rank: int) -> _Start:
    """The start that a member takes part in. Each replica has a plan of its own.

    Others may start, or train, or fail beside it.
    """
    if not world.replicas:
        return _Start(job.checkpoints.tracker, world.starting, world.round, world)
    replica, kept = world.places[rank].replica, job.checkpoints.starts
    if replica.number not in kept:
        for number in kept.keys() - world.by_replica.keys():
            del kept[number]
    tracker = kept.setdefault(replica.number, CheckpointTracker())
    return _Start(tracker, world.members_of(replica), replica.round, world)


def _world_of(job: JobContext, node: Node, number: int) -> World | None:
    """The world of a member that starts in a round; None: it is none, or it is over.

    A replica goes on with its start while no world runs because another one has failed.
    """
    own = job.worlds.in_replica(node.rank, node.agent_id, number)
    return own or job.worlds.running_with(node, number)


def asked(job: JobContext, node: Node, number: int, message: wire.RestoreRequest) -> None:
    """All ranks of a node wait to be told what to start from."""
    world = _world_of(job, node, number)
    if world is None:
        return
    start = _start_of(job, world, node.rank)
    tracker, places = start.tracker, world.places
    holders = tuple((rank, places[rank].member.agent_id) for rank in start.ranks)
    tracker.enter(number, holders, places[node.rank].size)
    before = tracker.asked.get(node.rank)
    tracker.asked[node.rank] = message
    if before is not None and tracker.origin is not None and message.told is None:
        _send(job, start, tracker.origin, only=node.rank)  # it may not have heard of it
    job.touch(Change.RESTORE_REQUESTED)


def choose(job: JobContext) -> None:
    """Choose what a world or replica starts from, once all its nodes ask; it has no plan yet."""
    if not job.spec.nodes_per_replica:
        world = job.worlds.running()
        if world is not None:
            _consider(job, _start_of(job, world, world.starting[0]))
        return
    last, kept = job.worlds.assigned, job.checkpoints.starts
    for one in last.replicas if last is not None else ():
        if last is not None and one.number in kept and kept[one.number].waits:
            _consider(job, _start_of(job, last, last.members_of(one)[0]))


def _consider(job: JobContext, start: _Start) -> None:
    tracker = start.tracker
    if tracker.origin is not None or start.round != tracker.round:
        return
    if any(rank not in tracker.asked for rank in start.ranks):
        return
    given = next((one.told for one in tracker.asked.values() if one.told is not None), None)
    if given is not None:  # an earlier master has told some of them
        if given.tier is wire.Tier.MEMORY:
            tracker.sources = _sources(job, _offers(job, tracker), given.version)
        _go(job, start, given)
        return
    if any(pending.whole for pending in job.checkpoints.tracker.pending.values()):
        return  # it is being committed, and would be the newest
    _choose(job, start)


def _choose(job: JobContext, start: _Start) -> None:
    tracker = start.tracker
    offers = _offers(job, tracker)
    stored = job.state.stored
    choice = policy.origin(offers, tracker.damaged, stored, job.settings.gather_ranks)
    if choice.older and stored is not None:
        lost = f"step {stored.step} was durable and is not to be had"
        tracker.notes.append(lost)
        job.out.warn(EventReason.CHECKPOINT_LOST, lost)
    tracker.reason, tracker.checked = choice.reason, set()
    tracker.sources = _sources(job, offers, choice.version) if choice.gathered else {}
    tracker.origin = wire.RestorePlan(
        plan_id=job.out.command("origin", 0),
        version=choice.version,
        tier=choice.tier,
        partial=choice.partial,
        go=choice.version is None,
        notes=tuple(tracker.notes[-_MOST_NOTES:]),
    )
    if tracker.origin.go:
        _go(job, start, tracker.origin)
    else:
        _send(job, start, tracker.origin)


def _offers(job: JobContext, tracker: CheckpointTracker) -> dict[int, RestoreOffer]:
    """Return, by node, the versions that it could start from and lend to others."""
    return {
        rank: RestoreOffer(
            versions=_versions(job.state, job.checkpoints.tracker, one),
            parts={
                part.version: MemoryPart(
                    world_size=part.world_size,
                    ranks=frozenset(part.ranks),
                    whole=part.whole,
                    world=part.world,
                )
                for part in one.parts[:_MOST_PARTS]
                if part.version is not None
            },
            gathers=bool(_address(job.membership, rank)),
        )
        for rank, one in tracker.asked.items()
    }


def _address(membership: Membership, rank: int) -> str:
    """The address at which other agents read a node's memory; empty: there is none."""
    node = membership.nodes.get(rank)
    hello = node.hello if node is not None else None
    return hello.peer_address if hello is not None and hello.gathers else ""


def _sources(
    job: JobContext, offers: dict[int, RestoreOffer], version: wire.CheckpointVersion | None
) -> dict[int, tuple[wire.PartSource, ...]]:
    """By node, whose memory it reads what it lacks of a version."""
    most = job.settings.gather_ranks
    found = policy.sources(version, offers, most) if version is not None else None
    return {
        node: tuple(
            wire.PartSource(node_rank=holder, address=_address(job.membership, holder), ranks=ranks)
            for holder, ranks in by_holder.items()
        )
        for node, by_holder in (found or {}).items()
    }


def _versions(
    state: JobState, tracker: CheckpointTracker, said: wire.RestoreRequest
) -> dict[wire.Tier, frozenset[wire.CheckpointVersion]]:
    """Return the versions that a node could take by tier, those committed since its look too."""
    found = {tier: frozenset(offered(said, tier)) for tier in TIERS}
    if state.stored is not None and tracker.committed_since(state.stored):
        found[wire.Tier.STORAGE] |= {state.stored}
    return found


def _send(
    job: JobContext, start: _Start, origin: wire.RestorePlan, only: int | None = None
) -> None:
    """Tell all nodes, or one: each its share of the files, and whose memory it reads."""
    shares = len(start.ranks)
    for share, rank in enumerate(start.ranks):
        node = job.membership.nodes.get(rank) if only in {None, rank} else None
        if node is not None:
            sources = start.tracker.sources.get(rank, ())
            own = dataclasses.replace(origin, share=share, shares=shares, sources=sources)
            job.out.send(node, own, start.round)


def checked(job: JobContext, node: Node, number: int, message: wire.RestorePlanVerified) -> None:
    """A node has looked at its share of the origin."""
    world = _world_of(job, node, number)
    if world is None:
        return
    start = _start_of(job, world, node.rank)
    tracker, origin = start.tracker, start.tracker.origin
    if origin is None or origin.go or message.plan_id != origin.plan_id:
        return
    if message.error and origin.version is not None:
        text = f"step {origin.version.step} is passed over: node {node.rank}: {message.error}"
        job.out.warn(EventReason.CHECKPOINT_DAMAGED, text, node=node.rank)
        tracker.notes.append(short(text))
        tracker.damaged.add((origin.version, origin.tier))
        tracker.origin = None
        job.touch(Change.RESTORE_REFUSED)
        return
    tracker.checked.add(node.rank)
    if all(rank in tracker.checked for rank in start.ranks):
        _go(job, start, dataclasses.replace(origin, go=True))


def _go(job: JobContext, start: _Start, origin: wire.RestorePlan) -> None:
    tracker = start.tracker
    origin = dataclasses.replace(origin, go=True)
    tracker.origin = origin
    tracker.started(origin)
    _send(job, start, origin)
    if origin.version is not None:
        job.counts.restores[origin.tier] += 1
        where = word(origin.tier)
        who = start.world.places[start.ranks[0]].replica.number
        name = f"replica {who}" if who else f"round {start.round}"
        text = f"{name} starts from step {origin.version.step} in {where}"
        job.out.event(
            EventReason.CHECKPOINT_RESTORED, f"{text} ({tracker.reason or 'told before'})"
        )
