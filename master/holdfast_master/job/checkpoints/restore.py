"""Restore coordination: nodes ask, the master chooses, all verify, then all start.

Belongs here: the messages of a start and their order. Does not belong here: the choice of the
version and of the nodes to read from (`policies.checkpoints`), reports about memory and storage
(`commits`).

Nobody begins before every node has found its share intact. A node that found damage after others
had begun would mix two steps.
"""

from __future__ import annotations

import dataclasses

from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.checkpoint_tracker import CheckpointTracker
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.job_state import JobState
from holdfast_master.job.state.membership import Membership
from holdfast_master.job.state.nodes import Node
from holdfast_master.job.state.outgoing_batch import Warn
from holdfast_master.job.state.wording import short
from holdfast_master.job.state.world import World
from holdfast_master.policies import checkpoints as policy
from holdfast_master.policies.checkpoints import MemoryPart, RestoreOffer
from holdfast_wire.messages import (
    CheckpointVersion,
    PartSource,
    RestorePlan,
    RestorePlanVerified,
    RestoreRequest,
    Tier,
)
from holdfast_wire.reasons import EventReason
from holdfast_wire.tiers import TIERS, offered, word

_MOST_NOTES = 16
_MOST_PARTS = 8
"""Versions whose parts a node may name: more are no agent's in its senses."""


def asked(job: JobContext, node: Node, number: int, message: RestoreRequest) -> None:
    """All ranks of a node wait to be told what to start from."""
    world = job.worlds.running_with(node, number)
    if world is None:
        return
    book = job.starts
    book.enter(number, world.holders, world.size)
    before = book.asked.get(node.rank)
    book.asked[node.rank] = message
    if before is not None and book.origin is not None and message.told is None:
        _tell(job, node, book.origin)  # it may not have heard of it
    job.touch(Change.RESTORE_REQUESTED)


def choose(job: JobContext) -> None:
    """Choose what the world starts from, once every node of it asks; it has no plan yet."""
    book, world = job.starts, job.worlds.running()
    if world is None or world.round != book.round:
        return
    if any(rank not in book.asked for rank in world.starting):
        return
    told = next((one.told for one in book.asked.values() if one.told is not None), None)
    if told is not None:  # an earlier master has told some of them
        if told.tier is Tier.MEMORY:
            book.sources = _sources(job, _offers(job), told.version)
        _go(job, world, told)
        return
    if any(pending.whole for pending in job.checkpoints.tracker.pending.values()):
        return  # it is being committed, and would be the newest
    _choose(job, world)


def _choose(job: JobContext, world: World) -> None:
    book, offers = job.starts, _offers(job)
    fact = job.state.checkpoint
    announced = fact.version if fact is not None else None
    choice = policy.origin(offers, book.damaged, announced, job.settings.gather_ranks)
    if choice.older and fact is not None and fact.version is not None:
        lost = f"step {fact.version.step} was durable and is not to be had"
        book.notes.append(lost)
        job.out.event(EventReason.CHECKPOINT_LOST, lost, Warn)
    book.reason, book.checked = choice.reason, set()
    book.sources = _sources(job, offers, choice.version) if choice.gathered else {}
    book.origin = RestorePlan(
        plan_id=job.out.command("origin", 0),
        version=choice.version,
        tier=choice.tier,
        partial=choice.partial,
        go=choice.version is None,
        notes=tuple(book.notes[-_MOST_NOTES:]),
    )
    if book.origin.go:
        _go(job, world, book.origin)
    else:
        _tell_all(job, world, book.origin)


def _offers(job: JobContext) -> dict[int, RestoreOffer]:
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
        for rank, one in job.starts.asked.items()
    }


def _address(membership: Membership, rank: int) -> str:
    """Return the address at which other agents read a node's memory; empty: there is none."""
    node = membership.nodes.get(rank)
    hello = node.hello if node is not None else None
    return hello.peer_address if hello is not None and hello.gathers else ""


def _sources(
    job: JobContext, offers: dict[int, RestoreOffer], version: CheckpointVersion | None
) -> dict[int, tuple[PartSource, ...]]:
    """By node, whose memory it reads what it lacks of a version."""
    most = job.settings.gather_ranks
    found = policy.sources(version, offers, most) if version is not None else None
    return {
        node: tuple(
            PartSource(node_rank=holder, address=_address(job.membership, holder), ranks=ranks)
            for holder, ranks in by_holder.items()
        )
        for node, by_holder in (found or {}).items()
    }


def _versions(
    state: JobState, book: CheckpointTracker, said: RestoreRequest
) -> dict[Tier, frozenset[CheckpointVersion]]:
    """Return what a node could take by tier, with what was committed since it looked."""
    found = {tier: frozenset(offered(said, tier)) for tier in TIERS}
    fact = state.checkpoint
    if fact is not None and fact.version is not None and book.committed_since(fact.version):
        found[Tier.STORAGE] |= {fact.version}
    return found


def _tell(job: JobContext, node: Node, origin: RestorePlan) -> None:
    world = job.worlds.running()
    if world is not None and node.rank in world.starting:
        share = world.starting.index(node.rank)
        job.out.send(node, _part(job.starts, world, origin, node.rank, share), world.round)


def _tell_all(job: JobContext, world: World, origin: RestorePlan) -> None:
    for share, rank in enumerate(world.starting):
        node = job.membership.nodes.get(rank)
        if node is not None:
            job.out.send(node, _part(job.starts, world, origin, rank, share), world.round)


def _part(
    book: CheckpointTracker, world: World, origin: RestorePlan, rank: int, share: int
) -> RestorePlan:
    """An origin as one node is told it: its share of the files, and whose memory it reads."""
    sources = book.sources.get(rank, ())
    shares = len(world.starting)
    return dataclasses.replace(origin, share=share, shares=shares, sources=sources)


def checked(job: JobContext, node: Node, number: int, message: RestorePlanVerified) -> None:
    """A node has looked at its share of the origin."""
    world, book = job.worlds.running_with(node, number), job.starts
    origin = book.origin
    if world is None or origin is None or origin.go or message.plan_id != origin.plan_id:
        return
    if message.error and origin.version is not None:
        text = f"step {origin.version.step} is passed over: node {node.rank}: {message.error}"
        job.out.event(EventReason.CHECKPOINT_DAMAGED, text, Warn, node=node.rank)
        book.notes.append(short(text))
        book.damaged.add((origin.version, origin.tier))
        book.origin = None
        job.touch(Change.RESTORE_REFUSED)
        return
    book.checked.add(node.rank)
    if all(rank in book.checked for rank in world.starting):
        _go(job, world, dataclasses.replace(origin, go=True))


def _go(job: JobContext, world: World, origin: RestorePlan) -> None:
    book = job.starts
    origin = dataclasses.replace(origin, go=True)
    book.origin = origin
    book.started(origin)
    _tell_all(job, world, origin)
    if origin.version is not None:
        where = word(origin.tier)
        text = f"round {world.round} starts from step {origin.version.step} in {where}"
        job.out.event(EventReason.CHECKPOINT_RESTORED, f"{text} ({book.reason or 'told before'})")
